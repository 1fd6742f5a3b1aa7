//! Where the bytes of a tree's files are.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use super::holes::{self, Found};
use super::member::MemberContent;
use super::overlay::Overlay;
use super::place::SourcePath;
use super::reach::reach;
use super::sparse::{self, Span};

/// Where a regular file's bytes are.
#[derive(Clone, Debug)]
pub enum Content {
    /// In a file of the operating system.
    Path(SourcePath),
    /// In part of an open file, such as an archive.
    Range(Arc<File>, u64),
    /// Parts of an open file, in order and none twice, with zeros between them and behind.
    Spans(Arc<File>, Arc<[Span]>),
    /// A member of an archive.
    Member(MemberContent),
    /// In memory.
    Bytes(Arc<[u8]>),
    /// A file of another image, with changes. Clusters that did not change are copied as they are.
    Overlay(Arc<Overlay>),
}

impl Content {
    /// Reads `len` bytes from `offset` of the content into `bytes`, whatever was in it.
    pub(crate) fn read(&self, offset: u64, len: usize, bytes: &mut Vec<u8>) -> io::Result<Found> {
        match self {
            Self::Path(path) => return holes::read(&File::open(reach(&path.to_path_buf())?)?, offset, len, bytes),
            Self::Range(file, start) => {
                bytes.resize(len, 0);
                file.read_exact_at(bytes, start + offset)?;
            }
            Self::Spans(file, spans) => return sparse::read(file, spans, offset, len, bytes),
            Self::Member(member) => return member.read(offset, len, bytes),
            Self::Overlay(overlay) => return overlay.read(offset, len, bytes),
            Self::Bytes(source) => {
                bytes.resize(len, 0);
                crate::source::ReadAt::read_exact_at(&**source, bytes, offset)?;
            }
        }
        Ok(Found::Bytes)
    }

    pub(crate) fn name(&self) -> PathBuf {
        match self {
            Self::Path(path) => path.to_path_buf(),
            Self::Member(member) => member.name(),
            Self::Range(..) | Self::Spans(..) => PathBuf::from("part of an open file"),
            Self::Overlay(_) => PathBuf::from("a disk"),
            Self::Bytes(_) => PathBuf::from("file in memory"),
        }
    }
}

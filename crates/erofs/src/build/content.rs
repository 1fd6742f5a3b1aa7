//! Sources of file content in a tree.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use super::holes::{self, ReadContent};
use super::live::{LiveFile, State};
use super::member::MemberContent;
use super::overlay::Overlay;
use super::place::SourcePath;
use super::source_file::SourceFile;
use super::sparse::{self, Span};
use crate::error::Error;

/// The source of a regular file's content.
#[derive(Clone, Debug)]
pub enum Content {
    /// A file of the operating system.
    Path(SourceFile),
    /// The same, but changes after the scan are recorded
    /// ([`ScanOptions::skip_unreadable`](crate::ScanOptions::skip_unreadable)).
    Live(LiveFile),
    /// An open file, and its path for messages.
    Open(Arc<File>, SourcePath),
    /// A part of an open file, such as an archive.
    Range(Arc<File>, u64),
    /// Parts of an open file, ascending and without overlap, with zeros between and after them.
    Spans(Arc<File>, Arc<[Span]>),
    /// A member of an archive.
    Member(MemberContent),
    /// Bytes in memory.
    Bytes(Arc<[u8]>),
    /// A file of another image with changes. Unchanged clusters are copied verbatim.
    Overlay(Arc<Overlay>),
}

impl Content {
    /// Reads `len` bytes of the content at `offset` into `bytes`, whose previous contents are
    /// ignored.
    pub(crate) fn read(&self, offset: u64, len: usize, bytes: &mut Vec<u8>) -> io::Result<ReadContent> {
        match self {
            Self::Path(file) => return holes::read(&file.open()?, offset, len, bytes),
            Self::Live(file) => return file.read(offset, len, bytes),
            Self::Open(file, _) => return holes::read(file, offset, len, bytes),
            Self::Range(file, start) => {
                bytes.resize(len, 0);
                file.read_exact_at(bytes, start + offset)?;
            }
            Self::Spans(file, spans) => return sparse::read(file, spans, offset, len, bytes),
            Self::Member(member) => return member.read(offset, len, bytes),
            Self::Overlay(overlay) => return overlay.read(offset, len, bytes),
            Self::Bytes(source) => {
                bytes.resize(len, 0);
                pagefold_storage::ReadAt::read_exact_at(&**source, bytes, offset)?;
            }
        }
        Ok(ReadContent::Bytes)
    }

    /// Fills `buf` with the content from `offset` on. Meant for small files: it copies.
    ///
    /// # Errors
    /// The source cannot be read, or ends before.
    pub fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let mut bytes = Vec::new();
        match self.read(offset, buf.len(), &mut bytes)? {
            ReadContent::Bytes => buf.copy_from_slice(&bytes[..buf.len()]),
            ReadContent::Zeros => buf.fill(0),
        }
        Ok(())
    }

    /// Reads content again that was read before, to verify an image.
    pub(crate) fn read_again(&self, offset: u64, len: usize, bytes: &mut Vec<u8>) -> io::Result<ReadContent> {
        match self {
            Self::Live(file) => file.read_again(offset, len, bytes),
            _ => self.read(offset, len, bytes),
        }
    }

    /// Returns whether the content belongs to a file that was left out of the image.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self, Self::Live(file) if matches!(file.state(), State::Gone | State::Replaced))
    }

    /// Returns how a failed read of the content is reported.
    pub(crate) fn failed(&self) -> impl FnOnce(io::Error) -> Error + '_ {
        |error| {
            let what = match error.kind() {
                io::ErrorKind::UnexpectedEof => "was truncated while the image was built".to_owned(),
                _ => error.to_string(),
            };
            Error::Source { path: self.name(), what }
        }
    }

    pub(crate) fn name(&self) -> PathBuf {
        match self {
            Self::Path(file) => file.path().to_path_buf(),
            Self::Live(file) => file.path().to_path_buf(),
            Self::Member(member) => member.name(),
            Self::Open(_, path) => path.to_path_buf(),
            Self::Range(..) | Self::Spans(..) => PathBuf::from("part of an open file"),
            Self::Overlay(_) => PathBuf::from("its content"),
            Self::Bytes(_) => PathBuf::from("file in memory"),
        }
    }
}

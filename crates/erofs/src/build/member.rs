//! The content of archive members.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::holes::ReadContent;
use super::sparse::{self, Span};

/// An open archive, and its name for messages.
#[derive(Debug)]
pub(super) struct Archive {
    pub(super) file: File,
    pub(super) name: PathBuf,
}

/// The location of a member's bytes.
#[derive(Debug)]
pub(super) enum Place {
    /// Contiguous, from this offset on.
    Whole(u64),
    /// These spans, with zeros between them.
    Spans(Box<[Span]>),
}

/// The content of an archive member.
#[derive(Clone, Debug)]
pub struct MemberContent(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    archive: Arc<Archive>,
    path: Box<[u8]>,
    place: Place,
}

impl MemberContent {
    pub(super) fn new(archive: &Arc<Archive>, path: &[u8], place: Place) -> Self {
        Self(Arc::new(Inner { archive: Arc::clone(archive), path: path.into(), place }))
    }

    /// Reads `len` bytes at `offset` into `bytes`, whose previous contents are ignored.
    pub(crate) fn read(&self, offset: u64, len: usize, bytes: &mut Vec<u8>) -> io::Result<ReadContent> {
        let file = &self.0.archive.file;
        match &self.0.place {
            Place::Whole(start) => {
                bytes.resize(len, 0);
                file.read_exact_at(bytes, start + offset)?;
                Ok(ReadContent::Bytes)
            }
            Place::Spans(spans) => sparse::read(file, spans, offset, len, bytes),
        }
    }

    /// Returns the parts that are stored, if there are zeros between them.
    pub(crate) fn spans(&self) -> Option<&[Span]> {
        match &self.0.place {
            Place::Whole(_) => None,
            Place::Spans(spans) => Some(spans),
        }
    }

    /// Returns the archive and the member, for messages.
    pub(crate) fn name(&self) -> PathBuf {
        of_archive(&self.0.archive.name, &shown(&self.0.path))
    }
}

/// Returns the name in messages of the member at `path` in the archive `name`.
pub(crate) fn of_archive(name: &Path, path: &Path) -> PathBuf {
    if name == Path::new("") {
        return path.to_owned();
    }
    let mut text = name.as_os_str().to_owned();
    text.push(": ");
    text.push(path);
    PathBuf::from(text)
}

/// Returns a path for messages.
pub(super) fn shown(path: &[u8]) -> PathBuf {
    PathBuf::from(String::from_utf8_lossy(path).into_owned())
}

//! The contents of an archive's members.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::holes::Found;
use super::sparse::{self, Span};

/// An archive that is open, and what messages call it.
#[derive(Debug)]
pub(super) struct Archive {
    pub(super) file: File,
    pub(super) name: PathBuf,
}

/// Where a member's bytes are.
#[derive(Debug)]
pub(super) enum Place {
    /// Behind each other from here on.
    Whole(u64),
    /// In these parts, with zeros between them.
    Spans(Box<[Span]>),
}

/// The bytes of a member of an archive.
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

    /// Reads `len` bytes from `offset` on into `bytes`, whatever was in it.
    pub(crate) fn read(&self, offset: u64, len: usize, bytes: &mut Vec<u8>) -> io::Result<Found> {
        let file = &self.0.archive.file;
        match &self.0.place {
            Place::Whole(start) => {
                bytes.resize(len, 0);
                file.read_exact_at(bytes, start + offset)?;
                Ok(Found::Bytes)
            }
            Place::Spans(spans) => sparse::read(file, spans, offset, len, bytes),
        }
    }

    /// The archive and the member, for people.
    pub(crate) fn name(&self) -> PathBuf {
        of_archive(&self.0.archive.name, &shown(&self.0.path))
    }
}

/// What a member is called that is at `path` in the archive `name`.
pub(crate) fn of_archive(name: &Path, path: &Path) -> PathBuf {
    if name == Path::new("") {
        return path.to_owned();
    }
    let mut text = name.as_os_str().to_owned();
    text.push(": ");
    text.push(path);
    PathBuf::from(text)
}

/// A path for people.
pub(super) fn shown(path: &[u8]) -> PathBuf {
    PathBuf::from(String::from_utf8_lossy(path).into_owned())
}

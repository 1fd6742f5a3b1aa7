//! What is looked at: a directory's files, one file or device, or a process's memory.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::PathBuf,
    sync::Arc,
};

use pagefold_erofs::{Content, Span};
use rustix::fs::OFlags;

use super::stratum::{Stratum, Unit};

/// What an input is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InputKind {
    Directory,
    File,
    Device,
    Process,
}

/// Names of a directory tree, counted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Names {
    pub(super) files: u64,
    pub(super) directories: u64,
    /// Symbolic links, devices, pipes and sockets.
    pub(super) others: u64,
    /// Bytes of the directories' content in an image.
    pub(super) directory_bytes: u64,
    /// Bytes of symbolic links' targets.
    pub(super) target_bytes: u64,
}

/// What was left out.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Skipped {
    /// Files, directories or ranges of memory that could not be read.
    pub(super) unreadable: u64,
    /// The walk took too long: there are more files.
    pub(super) more: bool,
    /// Bytes of a process's unchanged pages of files, which no swap disk gets.
    pub(super) of_files_bytes: u64,
}

/// Where the bytes are.
#[derive(Debug)]
pub(super) enum Files {
    /// In files below directories: each is the number of its directory and a name.
    Many { directories: Vec<PathBuf>, files: Vec<(u32, Box<std::ffi::OsStr>)> },
    /// In one open file.
    One(Arc<File>),
    /// In these parts of one open file, in order, one behind the other.
    Parts(Arc<File>, Vec<Span>),
}

/// What is looked at.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) kind: InputKind,
    pub(super) name: String,
    pub(super) files: Files,
    pub(super) strata: Vec<Stratum>,
    pub(super) names: Names,
    pub(super) skipped: Skipped,
    /// Holes of sparse files, which are not sampled.
    pub(super) hole_bytes: u64,
}

impl Input {
    /// Bytes that are sampled.
    pub(super) fn sampled_bytes(&self) -> u64 {
        self.strata.iter().fold(0, |sum: u64, stratum| sum.saturating_add(stratum.bytes))
    }

    /// Their pages: the last one of a file counts whole.
    pub(super) fn sampled_pages(&self) -> u64 {
        self.strata.iter().fold(0, |sum: u64, stratum| sum.saturating_add(stratum.pages))
    }

    /// Bytes of all files, holes and all.
    pub(super) fn bytes(&self) -> u64 {
        self.sampled_bytes().saturating_add(self.hole_bytes)
    }

    /// Files that have content.
    pub(super) fn sampled_files(&self) -> u64 {
        match &self.files {
            Files::Many { files, .. } => files.len() as u64,
            Files::One(_) | Files::Parts(..) => 1,
        }
    }

    /// Opens what a unit lies in, as content of the unit's length.
    pub(super) fn content(&self, unit: Unit) -> io::Result<Content> {
        match &self.files {
            Files::Many { directories, files } => {
                let (directory, name) = files.get(unit.file as usize).ok_or(io::ErrorKind::NotFound)?;
                let path = directories.get(*directory as usize).ok_or(io::ErrorKind::NotFound)?.join(&**name);
                Ok(Content::Range(Arc::new(open_regular(&path, unit)?), unit.offset))
            }
            Files::One(file) => Ok(Content::Range(Arc::clone(file), unit.offset)),
            Files::Parts(file, parts) => {
                let end = unit.offset + unit.len_bytes;
                let first = parts.partition_point(|part| part.at + part.len <= unit.offset);
                let inside = parts[first..].iter().take_while(|part| part.at < end).map(|part| {
                    let from = part.at.max(unit.offset);
                    let len = (part.at + part.len).min(end) - from;
                    Span { at: from - unit.offset, len, source: part.source + (from - part.at) }
                });
                Ok(Content::Spans(Arc::clone(file), inside.collect()))
            }
        }
    }

    /// Reads a unit into `bytes`, whatever was in it.
    pub(super) fn read(&self, unit: Unit, bytes: &mut Vec<u8>) -> io::Result<()> {
        bytes.clear();
        bytes.resize(unit.len_bytes as usize, 0);
        match self.content(unit)? {
            Content::Range(file, offset) => file.read_exact_at(bytes, offset),
            Content::Spans(file, spans) => spans.iter().try_for_each(|span| {
                file.read_exact_at(&mut bytes[span.at as usize..][..span.len as usize], span.source)
            }),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

/// Opens a file that was regular when it was found, and still is. Another program may have put a
/// pipe there, which is not waited for.
fn open_regular(path: &std::path::Path, unit: Unit) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.len() < unit.offset + unit.len_bytes {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file has changed"));
    }
    Ok(file)
}

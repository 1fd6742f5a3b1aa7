//! The data to sample: a directory's files, one file or device, or a process's memory.

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

/// The kind of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InputKind {
    Directory,
    File,
    Device,
    Process,
}

/// Counts of the names in a directory tree.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Names {
    pub(super) files: u64,
    pub(super) directories: u64,
    /// Symbolic links, devices, pipes and sockets.
    pub(super) others: u64,
    /// Bytes of everything but regular files in an image in which no inode is compact.
    pub(super) metadata_bytes: u64,
    /// The number of compact inodes.
    pub(super) compact: u64,
}

/// Parts of the input that were left out.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Skipped {
    /// Unreadable files, directories or memory ranges.
    pub(super) unreadable: u64,
    /// The walk took too long: there are more files.
    pub(super) more: bool,
    /// Bytes of unchanged file pages of a process, which are never swapped out.
    pub(super) of_files_bytes: u64,
}

/// The files that contain the data.
#[derive(Debug)]
pub(super) enum Files {
    /// Files below directories; each has the index of its directory and a name.
    Many { directories: Vec<PathBuf>, files: Vec<(u32, Box<std::ffi::OsStr>)> },
    /// One open file.
    One(Arc<File>),
    /// These consecutive parts of one open file.
    Parts(Arc<File>, Vec<Span>),
}

/// The data to sample.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) kind: InputKind,
    pub(super) name: String,
    pub(super) files: Files,
    pub(super) strata: Vec<Stratum>,
    pub(super) names: Names,
    pub(super) skipped: Skipped,
    /// Bytes of holes in sparse files, which are not sampled.
    pub(super) hole_bytes: u64,
}

impl Input {
    /// Returns the number of bytes to sample from.
    pub(super) fn sampled_bytes(&self) -> u64 {
        self.strata.iter().fold(0, |sum: u64, stratum| sum.saturating_add(stratum.bytes))
    }

    /// Returns their number of pages. A partial last page of a file counts as one.
    pub(super) fn sampled_pages(&self) -> u64 {
        self.strata.iter().fold(0, |sum: u64, stratum| sum.saturating_add(stratum.pages))
    }

    /// Returns the bytes of all files, including holes.
    pub(super) fn bytes(&self) -> u64 {
        self.sampled_bytes().saturating_add(self.hole_bytes)
    }

    /// Returns the number of files that have content.
    pub(super) fn sampled_files(&self) -> u64 {
        match &self.files {
            Files::Many { files, .. } => files.len() as u64,
            Files::One(_) | Files::Parts(..) => 1,
        }
    }

    /// Opens the file of a unit, as content of the unit's length.
    pub(super) fn content(&self, unit: Unit) -> io::Result<Content> {
        match &self.files {
            Files::Many { directories, files } => {
                let (directory, name) = files.get(unit.file as usize).ok_or(io::ErrorKind::NotFound)?;
                let path = directories.get(*directory as usize).ok_or(io::ErrorKind::NotFound)?.join(&**name);
                Ok(Content::Range(Arc::new(open_regular(&path, unit.offset + unit.len_bytes)?), unit.offset))
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

    /// Replaces the content of `bytes` with a unit.
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

/// Opens a file that was regular and had `len_bytes` when it was found; fails if it no longer does. Does not block on a
/// pipe that another program may have put there.
pub(super) fn open_regular(path: &std::path::Path, len_bytes: u64) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.len() < len_bytes {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file has changed"));
    }
    Ok(file)
}

//! The data to sample: a directory's files, one file or device, or a process's memory.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::PathBuf,
    sync::Arc,
};

use pagefold_erofs::Span;
use rustix::fs::OFlags;

use super::{
    clock::Deadline,
    estimate::Estimate,
    stratum::{Stratum, Unit},
};

/// Bytes that are read between two checks of the time: Linux's default readahead.
const STEP_BYTES: usize = 128 << 10;

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
    /// Bytes of the gaps between inodes.
    pub(super) gaps: Estimate,
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

    /// Replaces the content of `bytes` with a unit. Fails with `TimedOut` if the time ends before.
    pub(super) fn read(&self, unit: Unit, bytes: &mut Vec<u8>, end: Deadline<'_>) -> io::Result<()> {
        bytes.clear();
        bytes.resize(unit.len_bytes as usize, 0);
        let mut steps = Steps { left_bytes: STEP_BYTES, end };
        match &self.files {
            Files::Many { directories, files } => {
                let (directory, name) = files.get(unit.file as usize).ok_or(io::ErrorKind::NotFound)?;
                let path = directories.get(*directory as usize).ok_or(io::ErrorKind::NotFound)?.join(&**name);
                steps.read(&open_regular(&path, unit.offset + unit.len_bytes)?, bytes, unit.offset)
            }
            Files::One(file) => steps.read(file, bytes, unit.offset),
            Files::Parts(file, parts) => {
                let end = unit.offset + unit.len_bytes;
                let first = parts.partition_point(|part| part.at + part.len <= unit.offset);
                parts[first..].iter().take_while(|part| part.at < end).try_for_each(|part| {
                    let from = part.at.max(unit.offset);
                    let to = (part.at + part.len).min(end);
                    let here = &mut bytes[(from - unit.offset) as usize..(to - unit.offset) as usize];
                    steps.read(file, here, part.source + (from - part.at))
                })
            }
        }
    }
}

/// Reads in steps, between which it checks the time: slow storage may take milliseconds for a page.
struct Steps<'a> {
    left_bytes: usize,
    end: Deadline<'a>,
}

impl Steps<'_> {
    fn read(&mut self, file: &File, mut to: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !to.is_empty() {
            if self.left_bytes == 0 {
                if self.end.is_over() {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                self.left_bytes = STEP_BYTES;
            }
            let (here, rest) = to.split_at_mut(to.len().min(self.left_bytes));
            file.read_exact_at(here, offset)?;
            offset += here.len() as u64;
            self.left_bytes -= here.len();
            to = rest;
        }
        Ok(())
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

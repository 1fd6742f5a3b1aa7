//! Disks that come and go beside the soak's own.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};
use pagefold_codec::{PAGE_SIZE, Page};

use crate::{
    server::{Server, program},
    synthetic,
};

/// Disks at a time.
const DISKS: usize = 4;

/// How far pages compress, as those of the soak's own disk do.
const PERCENT: usize = 40;

/// Those that come later are smaller by one part in this many, so that they fit in what the first
/// leave.
const SMALLER: usize = 16;

/// Some disks, each with pages that no other has had.
pub(super) struct Visitors<'a> {
    server: &'a Server,
    pagefold: &'a Path,
    nbdcopy: PathBuf,
    pages: Vec<Page>,
    /// The generation of each disk that is there.
    disks: [Option<Disk>; DISKS],
    generations: u64,
    /// Disks that took all of their pages, and those that were refused room for them.
    pub(super) written: u64,
    pub(super) refused: u64,
}

#[derive(Clone, Copy)]
struct Disk {
    generation: u64,
    pages: usize,
}

impl Disk {
    fn name(self) -> String {
        format!("visitor-{}", self.generation)
    }
}

impl<'a> Visitors<'a> {
    /// Adds disks of `bytes` each and writes them.
    pub(super) fn new(server: &'a Server, pagefold: &'a Path, bytes: u64) -> anyhow::Result<Self> {
        let count = (bytes / PAGE_SIZE as u64) as usize;
        ensure!(count >= SMALLER, "the limit is too small for disks beside the first");
        let mut visitors = Self {
            server,
            pagefold,
            nbdcopy: program("nbdcopy")?,
            pages: synthetic::of_ratio(PERCENT, count),
            disks: [None; DISKS],
            generations: 0,
            written: 0,
            refused: 0,
        };
        for at in 0..DISKS {
            visitors.come(at, count)?;
        }
        Ok(visitors)
    }

    /// Compares the oldest disk with what was written to it, removes it, and puts another in its
    /// place.
    pub(super) fn change(&mut self) -> anyhow::Result<()> {
        let at = self.generations as usize % DISKS;
        if let Some(disk) = self.disks[at].take() {
            self.compare(disk)?;
            self.control(&["remove", &disk.name()])?;
        }
        self.come(at, self.pages.len() - self.pages.len() / SMALLER)
    }

    /// Compares all disks with what was written to them.
    pub(super) fn compare_all(&self) -> anyhow::Result<()> {
        self.disks.iter().flatten().try_for_each(|&disk| self.compare(disk))
    }

    fn come(&mut self, at: usize, pages: usize) -> anyhow::Result<()> {
        let disk = Disk { generation: self.generations, pages };
        self.generations += 1;
        self.control(&["add", &disk.name(), "--size", &(pages * PAGE_SIZE).to_string()])?;
        let file = self.server.folder().join("visitor");
        fs::write(&file, self.content(disk))?;
        let output = Command::new(&self.nbdcopy).arg(&file).arg(self.server.uri(&disk.name())).output()?;
        if output.status.success() {
            self.written += 1;
            self.disks[at] = Some(disk);
            return Ok(());
        }
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(error.contains("No space left"), "nbdcopy to {}: {error}", disk.name());
        self.refused += 1;
        self.control(&["remove", &disk.name()])
    }

    fn compare(&self, disk: Disk) -> anyhow::Result<()> {
        let output = Command::new(&self.nbdcopy).arg(self.server.uri(&disk.name())).arg("-").output()?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "nbdcopy from {}: {error}", disk.name());
        ensure!(output.stdout == self.content(disk), "{} is not what was written to it", disk.name());
        Ok(())
    }

    /// What is written to a disk: each page is its generation's and its own.
    fn content(&self, disk: Disk) -> Vec<u8> {
        let Disk { generation, pages } = disk;
        let mut bytes = Vec::with_capacity(pages * PAGE_SIZE);
        for at in 0..pages {
            let page = &self.pages[(at + generation as usize) % self.pages.len()];
            bytes.extend_from_slice(&generation.to_le_bytes());
            bytes.extend_from_slice(&(at as u64).to_le_bytes());
            bytes.extend_from_slice(&page[16..]);
        }
        bytes
    }

    /// Tells the server something.
    fn control(&self, args: &[&str]) -> anyhow::Result<()> {
        let mut command = Command::new(self.pagefold);
        let output =
            command.args(args).arg("--dir").arg(self.server.folder()).output().context("cannot start pagefold")?;
        ensure!(output.status.success(), "pagefold {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }
}

//! Disks that are added and removed while the soak runs on its own disk.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};
use pagefold_codec::{PAGE_SIZE, Page};

use pagefold_kinds::synthetic;
use pagefold_report::tool;

use crate::server::Server;

/// Number of disks at a time.
const DISKS: usize = 4;

/// Percentage that pages compress to, like those of the soak's own disk.
const PERCENT: usize = 40;

/// Later disks are smaller by one part in this many, so that they fit in the memory that the first
/// ones free.
const SMALLER: usize = 16;

/// The disks. No two disks ever have a page in common.
pub(super) struct Visitors<'a> {
    server: &'a Server,
    pagefold: &'a Path,
    nbdcopy: PathBuf,
    pages: Vec<Page>,
    /// The disks that exist.
    disks: [Option<Disk>; DISKS],
    generations: u64,
    /// Numbers of disks that accepted all of their pages, and of disks that were refused room.
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
        ensure!(count >= SMALLER, "the limit is too small for additional disks");
        let mut visitors = Self {
            server,
            pagefold,
            nbdcopy: tool::find("nbdcopy")?,
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

    /// Compares the oldest disk with the data written to it, removes it, and adds another in its
    /// place.
    pub(super) fn change(&mut self) -> anyhow::Result<()> {
        let at = self.generations as usize % DISKS;
        if let Some(disk) = self.disks[at].take() {
            self.compare(disk)?;
            self.control(&["remove", "--force", &disk.name()])?;
        }
        self.come(at, self.pages.len() - self.pages.len() / SMALLER)
    }

    /// Compares all disks with the data written to them.
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
        self.control(&["remove", "--force", &disk.name()])
    }

    fn compare(&self, disk: Disk) -> anyhow::Result<()> {
        let output = Command::new(&self.nbdcopy).arg(self.server.uri(&disk.name())).arg("-").output()?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "nbdcopy from {}: {error}", disk.name());
        ensure!(output.stdout == self.content(disk), "{} is not what was written to it", disk.name());
        Ok(())
    }

    /// Returns the data of a disk: each page has the disk's generation and its own number.
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

    /// Runs a command of `pagefold` on the server.
    fn control(&self, args: &[&str]) -> anyhow::Result<()> {
        let mut command = Command::new(self.pagefold);
        let output =
            command.args(args).arg("--dir").arg(self.server.folder()).output().context("cannot start pagefold")?;
        ensure!(output.status.success(), "pagefold {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }
}

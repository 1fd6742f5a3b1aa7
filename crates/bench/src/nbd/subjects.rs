//! The servers to measure, and their disks.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use anyhow::Context;
use clap::ValueEnum;
use pagefold_codec::PAGE_SIZE;
use pagefold_kinds::{Content, Versions, is_changed};
use pagefold_report::tool;
use tempfile::TempDir;

use super::{
    connection::Served,
    load::{read_through, write_pages, write_through},
};
use crate::{
    client::Control,
    server::{DAEMON_EXPORT, Server, qcow2_overlay},
};

/// A server with a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Subject {
    /// A RAM disk with the default codec
    PagefoldDefault,
    /// A RAM disk with LZ4
    PagefoldLz4,
    /// A RAM disk with the default codec, whose server may use one CPU (large writes only)
    PagefoldOneCpu,
    /// A fork of an EROFS image with LZ4 and clusters of 4 KiB
    ForkLz4,
    /// A fork of an EROFS image with Zstandard and clusters of 64 KiB
    ForkZstd,
    /// A fork of a raw file
    ForkRaw,
    /// A qcow2 overlay of a raw file in qemu-nbd
    Qcow2Nbd,
    /// The same in qemu-storage-daemon, from qemu 9 on with a thread for the export
    Qcow2Daemon,
    /// nbdkit's cow filter over a raw file
    NbdkitCow,
    /// nbdkit's memory plugin, uncompressed
    NbdkitMalloc,
    /// nbdkit's memory plugin with Zstandard
    NbdkitZstd,
}

use Subject::{
    ForkLz4, ForkRaw, ForkZstd, NbdkitCow, NbdkitMalloc, NbdkitZstd, PagefoldDefault, PagefoldLz4, PagefoldOneCpu,
    Qcow2Daemon, Qcow2Nbd,
};

impl Subject {
    /// Returns its name in figures and options.
    pub(super) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Whether its disk starts as a copy of a base.
    pub(super) fn is_copy(self) -> bool {
        self.is_fork() || matches!(self, Qcow2Nbd | Qcow2Daemon | NbdkitCow)
    }

    /// Whether it is a fork in pagefold.
    pub(super) fn is_fork(self) -> bool {
        matches!(self, ForkLz4 | ForkZstd | ForkRaw)
    }

    /// Returns the program that it needs in addition to pagefold.
    fn program(self) -> Option<&'static str> {
        match self {
            Qcow2Nbd => Some("qemu-nbd"),
            Qcow2Daemon => Some("qemu-storage-daemon"),
            NbdkitCow | NbdkitMalloc | NbdkitZstd => Some("nbdkit"),
            _ => None,
        }
    }

    /// Returns the version line of its program.
    pub(super) fn version(self) -> anyhow::Result<Option<String>> {
        let Some(name) = self.program() else { return Ok(None) };
        let output = Command::new(tool::find(name)?).arg("--version").output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        // Some programs print the path that they were started with.
        let words: Vec<&str> = text.lines().next().unwrap_or_default().split_whitespace().skip(1).collect();
        Ok(Some(format!("{name} {}", words.join(" "))))
    }
}

/// What all subjects have in common.
pub(super) struct Setup {
    pub(super) pagefold: PathBuf,
    /// More options of forks' servers.
    pub(super) serve: Vec<String>,
    pub(super) content: Content,
    pages: u64,
    scratch: TempDir,
    /// The folder in memory.
    pub(super) tmpfs: TempDir,
}

/// The export of a base, and of a fork.
pub(super) const BASE: &str = "base";
const FORK: &str = "disk";

impl Setup {
    pub(super) fn new(
        pagefold: PathBuf,
        serve: Vec<String>,
        content: Content,
        mib: u64,
        scratch: &Path,
        tmpfs: &Path,
    ) -> anyhow::Result<Self> {
        let folder = |parent: &Path| {
            TempDir::new_in(parent)
                .with_context(|| format!("cannot create a temporary directory in {}", parent.display()))
        };
        Ok(Self { pagefold, serve, content, pages: mib << 8, scratch: folder(scratch)?, tmpfs: folder(tmpfs)? })
    }

    /// Returns the number of pages of each disk.
    pub(super) fn pages(&self) -> u64 {
        self.pages
    }

    /// Returns the path of the base as a raw file, which is written when it is first needed.
    fn raw(&self) -> anyhow::Result<PathBuf> {
        let path = self.scratch.path().join("base.img");
        if !path.exists() {
            let mut file = File::create(&path)?;
            let mut pages = Vec::new();
            for number in 0..self.pages {
                self.content.append(number, 0, &mut pages);
                if pages.len() >= 1 << 20 || number + 1 == self.pages {
                    file.write_all(&pages).with_context(|| format!("cannot write {}", path.display()))?;
                    pages.clear();
                }
            }
        }
        Ok(path)
    }

    /// Returns the path of a fork's base.
    pub(super) fn base(&self, subject: Subject) -> anyhow::Result<PathBuf> {
        let (name, options) = match subject {
            ForkLz4 => ("lz4.erofs", ["--codec", "lz4", "--cluster", "4K"]),
            ForkZstd => ("zstd.erofs", ["--codec", "zstd,3", "--cluster", "64K"]),
            _ => return self.raw(),
        };
        let path = self.scratch.path().join(name);
        if !path.exists() {
            tool::run(Command::new(&self.pagefold).arg("pack").args(options).arg(self.raw()?).arg("-o").arg(&path))?;
        }
        Ok(path)
    }
}

/// A disk of a subject, and what it should hold.
pub(super) struct Disk {
    server: Arc<Server>,
    socket: PathBuf,
    export: String,
    versions: Versions,
    _overlay: Option<Overlay>,
}

/// A file that is removed with its disk.
struct Overlay(PathBuf);

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl Disk {
    /// Starts a server whose disk holds the base.
    pub(super) fn new(setup: &Setup, subject: Subject) -> anyhow::Result<Self> {
        let mut disk = Self::start(setup, subject)?;
        if !subject.is_copy() {
            write_through(disk.served(setup))?;
        } else if subject.is_fork() {
            disk.export = FORK.to_owned();
            disk.control()?.fork(BASE, FORK)?;
        }
        Ok(disk)
    }

    fn start(setup: &Setup, subject: Subject) -> anyhow::Result<Self> {
        let size = format!("{}M", setup.pages >> 8);
        let plain = |options: &[&str]| Server::pagefold(&setup.pagefold, &[&["--size", &size], options].concat());
        let nbdkit = |args: &[&str]| Server::nbdkit(&tool::find("nbdkit")?, args, setup.tmpfs.path());
        let memory = |allocator: &str| nbdkit(&["memory", &format!("size={size}"), &format!("allocator={allocator}")]);
        let overlay = || {
            let raw = setup.raw()?;
            let file = tempfile::Builder::new().suffix(".qcow2").tempfile_in(setup.tmpfs.path())?;
            let path = file.into_temp_path().keep()?;
            let overlay = Overlay(path);
            qcow2_overlay(&raw, &overlay.0)?;
            anyhow::Ok(overlay)
        };
        let (mut file, mut export) = (None, "");
        let server = match subject {
            PagefoldDefault => plain(&[])?,
            PagefoldLz4 => plain(&["--codec", "lz4"])?,
            PagefoldOneCpu => Server::one_cpu(|| plain(&[]))?,
            ForkLz4 | ForkZstd | ForkRaw => {
                let base = format!("{BASE}={}", setup.base(subject)?.display());
                let options: Vec<&str> = setup.serve.iter().chain([&base]).map(String::as_str).collect();
                Server::pagefold(&setup.pagefold, &options)?
            }
            Qcow2Nbd => Server::qemu_nbd(&tool::find("qemu-nbd")?, &file.insert(overlay()?).0)?,
            Qcow2Daemon => {
                export = DAEMON_EXPORT;
                Server::qemu_storage_daemon(&tool::find("qemu-storage-daemon")?, &file.insert(overlay()?).0)?
            }
            NbdkitCow => nbdkit(&["--filter=cow", "file", &setup.raw()?.to_string_lossy()])?,
            NbdkitMalloc => memory("malloc")?,
            NbdkitZstd => memory("zstd")?,
        };
        Ok(Self {
            socket: server.socket(),
            server: Arc::new(server),
            export: export.to_owned(),
            versions: Versions::new(setup.pages),
            _overlay: file,
        })
    }

    /// Returns a disk that holds the base: another fork in the same server, or another server.
    pub(super) fn another(&self, setup: &Setup, subject: Subject, name: &str) -> anyhow::Result<Self> {
        if !subject.is_fork() {
            return Self::new(setup, subject);
        }
        self.control()?.fork(BASE, name)?;
        Ok(Self {
            server: Arc::clone(&self.server),
            socket: self.socket.clone(),
            export: name.to_owned(),
            versions: Versions::new(setup.pages),
            _overlay: None,
        })
    }

    /// Removes a fork from its server.
    pub(super) fn remove(self, subject: Subject) -> anyhow::Result<()> {
        if subject.is_fork() { self.control()?.remove(&self.export) } else { Ok(()) }
    }

    /// Writes `percent` of the pages.
    pub(super) fn change(&self, setup: &Setup, percent: u32) -> anyhow::Result<()> {
        write_pages(self.served(setup), (0..setup.pages).filter(|&number| is_changed(number, percent))).map(drop)
    }

    /// Reads the whole disk and compares it.
    pub(super) fn compare(&self, setup: &Setup) -> anyhow::Result<()> {
        read_through(self.served(setup), 0..setup.pages)
    }

    pub(super) fn served<'a>(&'a self, setup: &'a Setup) -> Served<'a> {
        Served {
            socket: &self.socket,
            export: &self.export,
            content: &setup.content,
            versions: &self.versions,
            may_refuse: false,
        }
    }

    pub(super) fn control(&self) -> anyhow::Result<Control> {
        self.server.control()
    }

    /// Returns the memory of the server and of its files in memory.
    pub(super) fn memory_bytes(&self, setup: &Setup) -> anyhow::Result<f64> {
        self.server.whole_memory_bytes(setup.tmpfs.path())
    }
}

/// Pages per MiB.
pub(super) const MIB_PAGES: u64 = (1 << 20) / PAGE_SIZE as u64;

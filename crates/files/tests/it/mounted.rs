//! A mount of exports, for a test.

use std::{
    fs::{File, OpenOptions},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{Arc, Mutex, MutexGuard},
    thread,
    time::{Duration, Instant},
};

use pagefold_disk::{BlockDevice, Pool, PoolConfig, RamDisk};
use pagefold_executor::{Executor, Export, Exports, Memory};
use pagefold_files::{Files, Handed, Options, Paths};
use pagefold_testing::{programs, skip, skip_for_good};
use tempfile::TempDir;

/// How long to wait for what must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Exports that are mounted.
pub(crate) struct Mounted {
    // Dropped before the directory that it is mounted on.
    files: Option<Mutex<Files>>,
    pub(crate) exports: Exports,
    pub(crate) pool: Pool,
    folder: TempDir,
}

impl Mounted {
    /// Mounts an empty set, or reports why the machine does not allow it.
    pub(crate) fn new(test: &str) -> Option<Self> {
        Self::with_limit(test, 1 << 30)
    }

    /// The same with this limit for the pool of its disks.
    pub(crate) fn with_limit(test: &str, limit_bytes: u64) -> Option<Self> {
        if !Path::new("/dev/fuse").exists() {
            skip_for_good(test, "this kernel has no /dev/fuse");
            return None;
        }
        programs(test, ["fusermount3"])?;
        let pool = Pool::new(PoolConfig::default().memory_limit(limit_bytes)).expect("a pool");
        let folder = TempDir::new().expect("a folder");
        let mut mounted = Self { files: None, exports: Exports::new(), pool, folder };
        match mounted.mount() {
            Ok(files) => mounted.files = Some(Mutex::new(files)),
            Err(error) => {
                assert!(!rustix::process::geteuid().is_root(), "root cannot mount: {error}");
                skip(test, &error.to_string());
                return None;
            }
        }
        Some(mounted)
    }

    fn mount(&self) -> std::io::Result<Files> {
        let executor = Arc::new(Executor::new(64, Memory::new(64 << 20, None)));
        Files::mount(self.exports.clone(), &executor, &self.folder.path().join("files"), Options::default(), |_| ())
    }

    /// Returns the mount.
    pub(crate) fn files(&self) -> MutexGuard<'_, Files> {
        self.files.as_ref().expect("a mount").lock().expect("no panic")
    }

    /// Continues with what was handed over, with threads and memory of its own.
    pub(crate) fn continued(exports: &Exports, handed: &Handed, device: OwnedFd) -> std::io::Result<Files> {
        let executor = Arc::new(Executor::new(64, Memory::new(64 << 20, None)));
        Files::taken(exports.clone(), &executor, handed, device, Options::default(), |_| ())
    }

    /// Unmounts.
    pub(crate) fn unmount(&mut self) {
        self.files = None;
    }

    /// Returns where the files are.
    pub(crate) fn paths(&self) -> Paths {
        self.files().paths()
    }

    /// Adds a disk.
    pub(crate) fn disk(&self, name: &str, size_bytes: u64) -> Arc<RamDisk> {
        let disk = Arc::new(RamDisk::new(&self.pool, size_bytes).expect("a disk"));
        self.exports.add(Export::new(name, Arc::clone(&disk) as _)).expect("a new name");
        disk
    }

    /// Adds a read-only device.
    pub(crate) fn base(&self, name: &str, device: Arc<dyn BlockDevice>) {
        self.exports.add(Export::read_only(name, device)).expect("a new name");
    }

    /// Returns the path of a file.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("files").join(name)
    }

    /// Returns a path next to the mount.
    pub(crate) fn sibling(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Opens a file to read and write.
    pub(crate) fn open(&self, name: &str) -> File {
        OpenOptions::new().read(true).write(true).open(self.path(name)).expect("a file")
    }

    /// Returns the names in the directory, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let listed = std::fs::read_dir(self.path("")).expect("a directory");
        let mut names: Vec<_> = listed.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// Runs a program, which must succeed, and returns what it printed.
#[track_caller]
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().expect("the program starts");
    assert!(output.status.success(), "{command:?}: {}", text(&output));
    text(&output)
}

/// Returns what a program printed.
pub(crate) fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes)).concat()
}

/// Waits until something holds.
#[track_caller]
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Returns bytes that do not compress.
pub(crate) fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..len.div_ceil(8)).flat_map(|_| next()).take(len).collect()
}

//! Mounting exports as files, and the end of the mount.

use std::{
    fmt, fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use pagefold_executor::{Executor, Exports, Memory, THREAD_BYTES, Taken};
use pagefold_mount::{Log, Mount, Options as MountOptions, Unmounter};

use crate::{
    filesystem::ExportFilesystem,
    name,
    open::OpenFiles,
    read::Buffers,
    tree::{self, Tree},
};

/// The longest read and write, which is also the most that Linux asks for.
const MAX_REQUEST_BYTES: usize = 1 << 20;
/// The same if memory is short.
const MIN_REQUEST_BYTES: usize = 64 << 10;
/// Threads that receive requests, at least: while one runs a request, another receives the next.
const MIN_THREADS: usize = 2;
/// Threads that receive requests, at most.
const MAX_THREADS: usize = 8;
/// How long the end of a mount waits for programs that have files open.
const GRACE: Duration = Duration::from_secs(1);
/// Interval between two checks.
const PAUSE: Duration = Duration::from_millis(2);

/// How exports are shown as files. To set options, change fields of [`Options::default`].
#[non_exhaustive]
pub struct Options {
    /// The users who may read and write the files. If the mode permits something to a group or to
    /// all, other users than this process's may use them; that needs root, or `user_allow_other` in
    /// `/etc/fuse.conf`. The default is 0600.
    pub mode: u32,
    /// The files' group; by default, that of the process.
    pub group: Option<u32>,
    /// Gets a line about each export that has no file.
    pub log: Log,
}

impl Default for Options {
    fn default() -> Self {
        Self { mode: 0o600, group: None, log: Log::default() }
    }
}

/// Exports that are mounted as files. Dropping this unmounts them: requests of files that are still
/// open fail from then on.
pub struct Files {
    paths: Paths,
    unmounter: Unmounter,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Files").field("directory", &self.paths.directory).finish_non_exhaustive()
    }
}

/// Where exports are files. It may outlive the mount.
#[derive(Clone)]
pub struct Paths {
    directory: PathBuf,
    exports: Exports,
    open: Arc<OpenFiles>,
}

impl fmt::Debug for Paths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Paths").field("directory", &self.directory).finish_non_exhaustive()
    }
}

impl Paths {
    /// Returns the path of an export's file, unless its name is too long for one.
    pub fn of(&self, export: &str) -> Option<PathBuf> {
        Some(self.directory.join(&*name::of_export(export)?))
    }

    /// Lets changes of a file no longer wait for room: those that wait, and those that would, fail with
    /// ENOSPC. Wherever it is opened later, changes wait again. Returns whether there is such a file.
    pub fn refuse_waiting(&self, file: &Path) -> bool {
        let name = file.file_name().filter(|_| file.parent() == Some(&*self.directory));
        let found = name.and_then(|name| tree::find(&self.exports, name));
        found.inspect(|(number, _)| self.open.refuse_waiting(*number)).is_some()
    }
}

impl Files {
    /// Mounts `exports` on the directory `at`, which is created if it does not exist, and must be
    /// empty. A mount that a killed server left there is unmounted. Requests are served, with the
    /// executor's threads and memory, until the result is dropped; `ended` is called if the mount
    /// ends earlier, with an error or because a user unmounted the directory.
    ///
    /// # Errors
    /// The directory cannot be mounted on, `/dev/fuse` or `fusermount3` is missing, or memory is too
    /// short.
    pub fn mount(
        exports: Exports,
        executor: &Arc<Executor>,
        at: &Path,
        options: Options,
        ended: impl FnOnce(io::Result<()>) + Send + 'static,
    ) -> io::Result<Self> {
        let Options { mode, group, log } = options;
        let memory = executor.memory();
        let Reserve { threads, request_bytes, taken } = Reserve::take(memory).ok_or_else(|| {
            io::Error::new(io::ErrorKind::OutOfMemory, "the memory limit leaves no room for a single request")
        })?;
        match at.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::DirBuilder::new().recursive(true).mode(0o700).create(at)?;
            }
            _ => {}
        }
        let mut mount_options = MountOptions::default();
        mount_options.name = "pagefold-files".to_owned();
        mount_options.allow_other = mode & 0o066 != 0;
        mount_options.exec = false;
        mount_options.threads = threads;
        mount_options.read_ahead_kib = (request_bytes >> 10) as u32;
        mount_options.own_directory = true;
        let open = Arc::new(OpenFiles::new(Arc::clone(executor)));
        let buffers = Arc::new(Buffers::new(threads, request_bytes)?);
        let mount = Mount::new(at, &mount_options, |poller| ExportFilesystem {
            tree: Tree::new(exports.clone(), mode, group, log),
            open: Arc::clone(&open),
            buffers,
            request_bytes: request_bytes as u32,
            poller,
        })?;
        let (directory, unmounter) = (mount.directory().to_owned(), mount.unmounter());
        let serving = Arc::clone(&open);
        let paths = Paths { directory, exports, open };
        let serve = move || {
            let _taken = taken;
            let served = mount.serve();
            if !serving.has_ended() {
                ended(served);
            }
        };
        let thread = thread::Builder::new().name("files".to_owned()).spawn(serve);
        let thread = thread.inspect_err(|_| drop(unmounter.unmount()))?;
        Ok(Self { paths, unmounter, thread: Some(thread) })
    }

    /// Returns the directory, without symbolic links.
    pub fn directory(&self) -> &Path {
        &self.paths.directory
    }

    /// Returns where the files are.
    pub fn paths(&self) -> Paths {
        self.paths.clone()
    }

    /// Unmounts the files. Requests of files that are open fail from now on.
    ///
    /// # Errors
    /// The directory cannot be unmounted.
    pub fn stop(&self) -> io::Result<()> {
        self.paths.open.end();
        self.unmounter.unmount()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // The user sees that the directory is still mounted.
        let _ = self.stop();
        let Some(thread) = self.thread.take() else { return };
        let deadline = Instant::now() + GRACE;
        while !thread.is_finished() {
            if Instant::now() >= deadline {
                // Programs keep files open. The kernel ends their connection now or, if it cannot,
                // with this process.
                if self.unmounter.abort().is_err() {
                    return;
                }
                break;
            }
            thread::sleep(PAUSE);
        }
        // A panic of the thread has already been reported.
        let _ = thread.join();
    }
}

/// The memory of the threads that receive requests: each has a buffer for the longest write and one
/// for the longest read. One more is for reads that find no memory.
struct Reserve {
    threads: usize,
    request_bytes: usize,
    taken: Taken,
}

impl Reserve {
    /// Takes as much as is useful, or less if memory is short.
    fn take(memory: &Arc<Memory>) -> Option<Self> {
        let mut threads = thread::available_parallelism().map_or(1, usize::from).clamp(MIN_THREADS, MAX_THREADS);
        let mut request_bytes = MAX_REQUEST_BYTES;
        loop {
            let bytes = threads as u64 * (THREAD_BYTES + 2 * request_bytes as u64) + request_bytes as u64;
            if let Some(taken) = memory.lend(bytes) {
                return Some(Self { threads, request_bytes, taken });
            }
            if threads > MIN_THREADS {
                threads = (threads / 2).max(MIN_THREADS);
            } else if request_bytes > MIN_REQUEST_BYTES {
                request_bytes /= 2;
            } else {
                return None;
            }
        }
    }
}

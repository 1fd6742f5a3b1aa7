//! Mounts exports as files, and unmounts them.

use std::{
    fmt, fs, io,
    os::{fd::OwnedFd, unix::fs::DirBuilderExt},
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use fuser::INodeNo;
use pagefold_executor::{Executor, Exports, Memory, THREAD_BYTES, Taken};
use pagefold_mount::{Log, Mount, Options as MountOptions, Pauser, Unmounter};
use rustix::process::{getegid, geteuid};

use crate::{
    filesystem::ExportFilesystem,
    handover::Handed,
    name,
    open::OpenFiles,
    read::Buffers,
    tree::{self, Tree},
};

/// The longest read and write, which is also the most that Linux asks for.
const MAX_REQUEST_BYTES: usize = 1 << 20;
/// The longest read and write if memory is short.
const MIN_REQUEST_BYTES: usize = 64 << 10;
/// Threads that receive requests, at least: while one runs a request, another receives the next.
const MIN_THREADS: usize = 2;
/// Threads that receive requests, at most.
const MAX_THREADS: usize = 8;
/// How long the end of a mount waits for programs that have files open.
const GRACE: Duration = Duration::from_secs(1);
/// Interval between two checks whether threads of the executor have replied, before a pause: short,
/// because programs wait.
const TICK: Duration = Duration::from_micros(200);
/// Interval between two checks.
const PAUSE: Duration = Duration::from_millis(2);

/// How exports are shown as files. To set options, change fields of [`Options::default`].
#[non_exhaustive]
pub struct Options {
    /// The mode of the files; the default is 0600. A mode that permits anything to a group or to
    /// all needs root, or `user_allow_other` in `/etc/fuse.conf`.
    pub mode: u32,
    /// The files' group; by default, that of the process.
    pub group: Option<u32>,
    /// Receives a line about each export that has no file.
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
    shown: Shown,
    unmounter: Unmounter,
    pauser: Pauser,
    /// Starts the thread's work. `None` unless it waits, because the mount was another process's.
    begin: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// How the files look and how long their requests are, which stays the same when another process
/// continues.
#[derive(Clone, Copy)]
struct Shown {
    mode: u32,
    group: u32,
    made: SystemTime,
    request_bytes: usize,
}

impl Shown {
    fn options(&self, threads: usize) -> MountOptions {
        let mut options = MountOptions::default();
        options.name = "pagefold-files".to_owned();
        options.allow_other = self.mode & 0o066 != 0;
        options.exec = false;
        options.threads = threads;
        options.read_ahead_kib = (self.request_bytes >> 10) as u32;
        options.own_directory = true;
        options
    }

    fn tree(&self, exports: Exports, log: Log) -> Tree {
        Tree::new(exports, self.mode, self.group, self.made, log)
    }
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

    /// Makes changes of a file that wait for room, or would, fail with ENOSPC. Changes through
    /// later opens wait again. Returns whether there is such a file.
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
        let reserve = Reserve::most(executor.memory()).ok_or_else(no_room)?;
        let Reserve { threads, request_bytes, taken } = reserve;
        match at.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::DirBuilder::new().recursive(true).mode(0o700).create(at)?;
            }
            _ => {}
        }
        let group = group.unwrap_or_else(|| getegid().as_raw());
        let shown = Shown { mode, group, made: SystemTime::now(), request_bytes };
        let open = Arc::new(OpenFiles::new(Arc::clone(executor)));
        let buffers = Arc::new(Buffers::new(threads, request_bytes)?);
        let mount = Mount::new(at, &shown.options(threads), |poller| ExportFilesystem {
            tree: shown.tree(exports.clone(), log),
            open: Arc::clone(&open),
            buffers,
            request_bytes: request_bytes as u32,
            poller,
        })?;
        let unmounter = mount.unmounter();
        let made = Self::made(mount, shown, exports, open, taken, ended);
        let mut files = made.inspect_err(|_| drop(unmounter.unmount()))?;
        files.go_on();
        Ok(files)
    }

    /// Continues files that another process has handed over, with their device. Requests wait until
    /// [`go_on`](Self::go_on); before that, dropping the result leaves the mount as it is.
    /// `exports` has the other process's exports under the same numbers. Of the options, only `log`
    /// has an effect.
    ///
    /// # Errors
    /// The state or the device is not that of such files, this process runs as another user or sees
    /// something else in the directory, or memory is too short.
    pub fn taken(
        exports: Exports,
        executor: &Arc<Executor>,
        handed: &Handed,
        device: OwnedFd,
        options: Options,
        ended: impl FnOnce(io::Result<()>) + Send + 'static,
    ) -> io::Result<Self> {
        let &Handed { user, mode, group, made_ns, request_bytes, next_handle, .. } = handed;
        if user != geteuid().as_raw() {
            let what = format!("its files belong to the user {user}, who has to run this process too");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
        }
        if !(MIN_REQUEST_BYTES..=MAX_REQUEST_BYTES).contains(&request_bytes) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the length of requests is wrong"));
        }
        let made = UNIX_EPOCH + Duration::from_nanos(made_ns);
        let shown = Shown { mode, group, made, request_bytes };
        let Reserve { threads, taken, .. } = Reserve::take(executor.memory(), request_bytes).ok_or_else(no_room)?;
        let export = |number| tree::export(&exports, number);
        let open = Arc::new(OpenFiles::taken(Arc::clone(executor), &handed.open, next_handle, export)?);
        let buffers = Arc::new(Buffers::new(threads, request_bytes)?);
        let (at, number) = (&handed.directory, &handed.file_system);
        let mount = Mount::taken(at, number, device, &shown.options(threads), |poller| ExportFilesystem {
            tree: shown.tree(exports.clone(), options.log),
            open: Arc::clone(&open),
            buffers,
            request_bytes: request_bytes as u32,
            poller,
        })?;
        Self::made(mount, shown, exports, open, taken, ended)
    }

    /// Creates the thread that serves a mount. It waits before it begins.
    fn made(
        mount: Mount<ExportFilesystem>,
        shown: Shown,
        exports: Exports,
        open: Arc<OpenFiles>,
        taken: Taken,
        ended: impl FnOnce(io::Result<()>) + Send + 'static,
    ) -> io::Result<Self> {
        let (directory, unmounter, pauser) = (mount.directory().to_owned(), mount.unmounter(), mount.pauser());
        let serving = Arc::clone(&open);
        let paths = Paths { directory, exports, open };
        let (begin, begins) = mpsc::channel();
        let serve = move || {
            let _taken = taken;
            if begins.recv().is_err() {
                return;
            }
            let served = mount.serve();
            if !serving.has_ended() {
                ended(served);
            }
        };
        let thread = Some(thread::Builder::new().name("files".to_owned()).spawn(serve)?);
        Ok(Self { paths, shown, unmounter, pauser, begin: Some(begin), thread })
    }

    /// Finishes the requests in progress, and begins no others until [`go_on`](Self::go_on) or
    /// [`give_away`](Self::give_away); programs wait. Returns what another process needs to
    /// continue, or `None` if the directory was unmounted.
    ///
    /// # Errors
    /// Requests have not ended within `patience`, or cannot be handed over; the text says why. They
    /// continue.
    pub fn pause(&self, patience: Duration) -> Result<Option<(Handed, OwnedFd)>, String> {
        let deadline = Instant::now() + patience;
        let (directory, open) = (&self.paths.directory, &self.paths.open);
        let failed = |why: &dyn fmt::Display| format!("the files in '{}': {why}", directory.display());
        if directory.to_str().is_none() {
            return Err(failed(&"the name is not UTF-8"));
        }
        let late = |busy: Option<INodeNo>| {
            let export = busy.and_then(|number| tree::export(&self.paths.exports, number));
            let of = match export {
                Some(export) => format!("disk '{}'", export.name()),
                None => format!("the files in '{}'", directory.display()),
            };
            format!("requests of {of} have not ended in time; they may wait for memory or for storage")
        };
        let paused = self.pauser.pause(deadline).map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => late(open.busy()),
            _ => failed(&error),
        });
        let Some(device) = paused? else { return Ok(None) };
        while let Some(busy) = open.busy() {
            if Instant::now() >= deadline {
                self.pauser.go_on();
                return Err(late(Some(busy)));
            }
            thread::sleep(TICK);
        }
        let Shown { mode, group, made, request_bytes } = self.shown;
        let made_ns = made.duration_since(UNIX_EPOCH).map_or(0, |made| made.as_nanos());
        let (open, next_handle) = open.states();
        let handed = Handed {
            directory: directory.clone(),
            file_system: self.unmounter.number().unwrap_or_default().to_owned(),
            user: geteuid().as_raw(),
            mode,
            group,
            made_ns: u64::try_from(made_ns).unwrap_or(0),
            request_bytes,
            next_handle,
            open,
        };
        Ok(Some((handed, device)))
    }

    /// Ends a pause, or begins to serve what was taken over.
    pub fn go_on(&mut self) {
        match self.begin.take() {
            // The thread waits to receive this.
            Some(begin) => drop(begin.send(())),
            None => self.pauser.go_on(),
        }
    }

    /// Leaves the mount to the process that continues it, or from which it was taken. If it was
    /// [paused](Self::pause), its threads rest until this process ends.
    pub fn give_away(mut self) {
        if self.begin.is_none() {
            self.thread = None;
        }
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
        let Some(thread) = self.thread.take() else { return };
        match self.begin.take() {
            // Another process serves the mount.
            Some(begin) => drop(begin),
            // The user sees that the directory is still mounted.
            None => drop(self.stop()),
        }
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

/// The memory of the threads that receive requests. Each has a buffer for the longest write and one
/// for the longest read; one more buffer is for reads that find no memory.
struct Reserve {
    threads: usize,
    request_bytes: usize,
    taken: Taken,
}

impl Reserve {
    /// Reserves as much as is useful, or less if memory is short.
    fn most(memory: &Arc<Memory>) -> Option<Self> {
        let lengths = std::iter::successors(Some(MAX_REQUEST_BYTES), |bytes| Some(bytes / 2));
        lengths.take_while(|bytes| *bytes >= MIN_REQUEST_BYTES).find_map(|bytes| Self::take(memory, bytes))
    }

    /// Reserves what requests of this length need, with fewer threads if memory is short.
    fn take(memory: &Arc<Memory>, request_bytes: usize) -> Option<Self> {
        let mut threads = thread::available_parallelism().map_or(1, usize::from).clamp(MIN_THREADS, MAX_THREADS);
        loop {
            let bytes = threads as u64 * (THREAD_BYTES + 2 * request_bytes as u64) + request_bytes as u64;
            if let Some(taken) = memory.lend(bytes) {
                return Some(Self { threads, request_bytes, taken });
            }
            if threads == MIN_THREADS {
                return None;
            }
            threads = (threads / 2).max(MIN_THREADS);
        }
    }
}

fn no_room() -> io::Error {
    io::Error::new(io::ErrorKind::OutOfMemory, "the memory limit leaves no room for a single request")
}

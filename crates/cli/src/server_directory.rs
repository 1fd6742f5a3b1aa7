//! The directory in which a server and its clients find each other.

use std::{
    env,
    fs::{self, DirBuilder, File},
    io::{self, Read, Seek, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, bail};
use rustix::{
    fs::{FlockOperation, Mode, OFlags, flock, ftruncate, open, openat},
    io::Errno,
    process::geteuid,
};

use crate::report::misuse;

/// The socket for NBD clients.
const NBD_SOCKET: &str = "nbd.sock";
/// The control socket.
const CONTROL_SOCKET: &str = "control.sock";
/// Locked while a server runs; contains its process id.
const LOCK: &str = "lock";
/// Time within which clients that check the lock have released it.
const CLIENTS_LOCK: Duration = Duration::from_millis(50);
/// How long one 'pagefold attach' waits for another of the same server.
const ATTACH_LOCK: Duration = Duration::from_secs(60);
/// The longest content of a lock file: a process id and a line feed.
const LOCK_BYTES: u64 = 12;
/// Interval between two checks of the lock.
const PAUSE: Duration = Duration::from_millis(10);

/// Returns `given`, or the user's default directory: `/run/pagefold` for root,
/// `$XDG_RUNTIME_DIR/pagefold` for others. Root's does not depend on the environment, which `sudo`
/// may pass on.
pub(crate) fn path(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(given) = given {
        return std::path::absolute(given).with_context(|| format!("cannot use {}", given.display()));
    }
    if geteuid().is_root() {
        return Ok("/run/pagefold".into());
    }
    match env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
        Some(runtime) if runtime.is_absolute() => Ok(runtime.join("pagefold")),
        _ => Err(misuse(anyhow!("no directory for the server's sockets: give --dir DIR, or set XDG_RUNTIME_DIR"))),
    }
}

/// Returns the path of the control socket in a server's directory.
pub(crate) fn control_socket(directory: &Path) -> PathBuf {
    directory.join(CONTROL_SOCKET)
}

/// Waits until no other command attaches a disk of the server whose control socket is in a
/// directory. Until the result is dropped, other commands wait.
pub(crate) fn attaching(directory: &Path) -> anyhow::Result<File> {
    let shown = directory.display();
    let opened = open(directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let directory = File::from(opened.with_context(|| format!("cannot open {shown}"))?);
    let start = Instant::now();
    loop {
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(directory),
            Err(Errno::WOULDBLOCK) if start.elapsed() < ATTACH_LOCK => thread::sleep(PAUSE),
            Err(Errno::WOULDBLOCK) => bail!("another command has attached a disk of {shown} for a minute; try again"),
            Err(error) => return Err(error).with_context(|| format!("cannot lock {shown}")),
        }
    }
}

/// Returns the path of the lock in a server's directory.
pub(crate) fn lock(directory: &Path) -> PathBuf {
    directory.join(LOCK)
}

/// The lock of a server's directory, as other processes see it.
pub(crate) struct Claim(File);

impl Claim {
    /// Opens the lock. Returns `None` if there is none: no server has used the directory, or all
    /// sockets of the server were passed to it.
    pub(crate) fn open(directory: &Path) -> anyhow::Result<Option<Self>> {
        let path = directory.join(LOCK);
        match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => Ok(Some(Self(opened.with_context(|| format!("cannot open {}", path.display()))?))),
        }
    }

    /// Returns whether a server uses the directory. It may not listen there yet, or no longer.
    pub(crate) fn is_held(&self) -> bool {
        let is_held = flock(&self.0, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK);
        // A server that starts now must not find it locked.
        let _ = flock(&self.0, FlockOperation::Unlock);
        is_held
    }

    /// Returns the process that uses the directory. A server that has just started may not have written
    /// it yet.
    pub(crate) fn process(&self) -> Option<u32> {
        process(&self.0).filter(|_| self.is_held())
    }

    /// Waits until no server uses the directory, that is, until the process has exited. Returns
    /// whether this happened within `time`.
    pub(crate) fn wait_until_free(&self, time: Duration) -> bool {
        let start = Instant::now();
        while self.is_held() {
            if start.elapsed() >= time {
                return false;
            }
            thread::sleep(PAUSE);
        }
        true
    }
}

/// Returns the process that has signed a lock.
fn process(lock: &File) -> Option<u32> {
    let mut owner = String::new();
    lock.take(LOCK_BYTES).read_to_string(&mut owner).ok()?;
    owner.trim().parse().ok()
}

/// Locks a directory for a server. A client that checks whether it is locked holds the lock for
/// some microseconds.
fn lock_exclusively(lock: &File) -> rustix::io::Result<()> {
    let deadline = Instant::now() + CLIENTS_LOCK;
    loop {
        match flock(lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => thread::sleep(Duration::from_millis(1)),
            result => return result,
        }
    }
}

/// Creates a directory and its missing parents, with mode 0700 whatever the umask is.
fn make(directory: &Path) -> io::Result<()> {
    let create = || DirBuilder::new().mode(0o700).create(directory);
    let created = create().or_else(|error| match directory.parent() {
        Some(parent) if error.kind() == io::ErrorKind::NotFound && !parent.as_os_str().is_empty() => {
            make(parent)?;
            create()
        }
        _ => Err(error),
    });
    match created {
        Ok(()) => fs::set_permissions(directory, fs::Permissions::from_mode(0o700)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// A directory that belongs to one server while this value exists.
#[derive(Debug)]
pub(crate) struct ServerDirectory {
    directory: PathBuf,
    /// Locked; the kernel unlocks it however the process ends.
    lock: File,
}

impl ServerDirectory {
    /// Creates the directory if necessary, and claims it. The sockets of a server that has exited
    /// may then be replaced.
    pub(crate) fn claim(directory: PathBuf) -> anyhow::Result<Self> {
        let shown = directory.display();
        // Parents get the same mode. An existing directory stays as it is.
        match make(&directory) {
            Err(error) if fs::symlink_metadata(&directory).is_err() => {
                return Err(error).with_context(|| format!("cannot make the directory {shown}"));
            }
            _ => {}
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = match open(&directory, flags, Mode::empty()) {
            Err(Errno::LOOP | Errno::NOTDIR) => {
                bail!("{shown} is not a directory, or is a symbolic link: remove it, or choose another with --dir")
            }
            result => File::from(result.with_context(|| format!("cannot open the directory {shown}"))?),
        };
        let found = opened.metadata().with_context(|| format!("cannot stat {shown}"))?;
        if found.uid() != geteuid().as_raw() {
            bail!("{shown} belongs to user {}: choose another directory with --dir", found.uid());
        }
        if found.mode() & 0o022 != 0 {
            bail!("other users can write to {shown}: run 'chmod go-w {shown}', or choose another directory with --dir");
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock = openat(&opened, LOCK, flags, Mode::RUSR | Mode::WUSR);
        let mut lock = File::from(lock.with_context(|| format!("cannot open {shown}/{LOCK}"))?);
        let mode = lock.metadata().with_context(|| format!("cannot stat {shown}/{LOCK}"))?.mode();
        if mode & 0o600 != 0o600 {
            // The umask has removed them, and the next server could not open the file.
            let own = fs::Permissions::from_mode(mode & 0o777 | 0o600);
            lock.set_permissions(own).with_context(|| format!("cannot change the mode of {shown}/{LOCK}"))?;
        }
        match lock_exclusively(&lock) {
            Err(Errno::WOULDBLOCK) => {
                let process = process(&lock).map_or(String::new(), |pid| format!(" (process {pid})"));
                bail!("a server already uses {shown}{process}: stop it, or choose another directory with --dir");
            }
            result => result.with_context(|| format!("cannot lock {shown}/{LOCK}"))?,
        }
        // A file of another program, or of a user, may have this name.
        let mut old = Vec::new();
        (&mut lock)
            .take(LOCK_BYTES + 1)
            .read_to_end(&mut old)
            .with_context(|| format!("cannot read {shown}/{LOCK}"))?;
        let is_number = str::from_utf8(&old).is_ok_and(|text| text.trim_end().parse::<u32>().is_ok());
        if !old.is_empty() && (!is_number || old.len() as u64 > LOCK_BYTES) {
            bail!("{shown}/{LOCK} is not a server's lock: move it away, or choose another directory with --dir");
        }
        let mut claimed = Self { directory: directory.clone(), lock };
        claimed.sign().with_context(|| format!("cannot write {shown}/{LOCK}"))?;
        Ok(claimed)
    }

    /// Takes the directory over from another process, which has locked it with this file.
    pub(crate) fn taken(directory: PathBuf, lock: File) -> Self {
        Self { directory, lock }
    }

    /// Writes this process's id.
    pub(crate) fn sign(&mut self) -> io::Result<()> {
        self.lock.rewind()?;
        ftruncate(&self.lock, 0)?;
        writeln!(self.lock, "{}", std::process::id())
    }

    /// Returns another descriptor of the lock, with which another process keeps it locked.
    pub(crate) fn lock_file(&self) -> io::Result<File> {
        self.lock.try_clone()
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn nbd_socket(&self) -> PathBuf {
        self.directory.join(NBD_SOCKET)
    }

    pub(crate) fn control_socket(&self) -> PathBuf {
        control_socket(&self.directory)
    }
}

impl Drop for ServerDirectory {
    /// Unlocks the directory. Closing the file is not enough: a child between `fork` and `exec` has
    /// a copy of each descriptor.
    fn drop(&mut self) {
        // If this fails, the directory is free a moment later, when the last copy is closed.
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_server_has_a_directory_at_a_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let directory = folder.path().join("place");
        let first = ServerDirectory::claim(directory.clone()).expect("a place");
        assert_eq!(fs::metadata(&directory).expect("a folder").mode() & 0o777, 0o700);
        let message = ServerDirectory::claim(directory.clone()).expect_err("a taken place").to_string();
        assert!(message.contains(&format!("process {}", std::process::id())) && message.contains("--dir"), "{message}");
        // As a child between `fork` and `exec` has one.
        let copy = first.lock.try_clone().expect("a copy of the descriptor");
        drop(first);
        ServerDirectory::claim(directory).expect("the place of one that is gone");
        drop(copy);
    }

    #[test]
    fn a_directory_that_others_may_change_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let (open, link, file) = (folder.path().join("open"), folder.path().join("link"), folder.path().join("file"));
        fs::create_dir(&open).expect("a folder");
        fs::set_permissions(&open, fs::Permissions::from_mode(0o775)).expect("a mode");
        std::os::unix::fs::symlink(folder.path(), &link).expect("a link");
        fs::write(&file, "").expect("a file");
        let other = folder.path().join("other");
        fs::create_dir(&other).expect("a folder");
        for text in ["a text that is kept", "1234567890123", "\n"] {
            fs::write(other.join(LOCK), text).expect("a file");
            let message = ServerDirectory::claim(other.clone()).expect_err("a file of others").to_string();
            assert!(message.contains("lock is not a server's lock"), "{message}");
            assert_eq!(fs::read_to_string(other.join(LOCK)).expect("the file"), text);
        }
        fs::write(other.join(LOCK), "4194303\n").expect("a file");
        ServerDirectory::claim(other.clone()).expect("the place of one that is gone");
        assert_eq!(fs::read_to_string(other.join(LOCK)).expect("the lock"), format!("{}\n", std::process::id()));
        for (path, why) in [(open, "other users can write"), (link, "symbolic link"), (file, "not a directory")] {
            let message = ServerDirectory::claim(path).expect_err("a bad place").to_string();
            assert!(message.contains(why), "{message}");
        }
        ServerDirectory::claim("/proc/none/such".into()).expect_err("no directory can be made there");
    }

    #[test]
    fn parents_are_made_as_private_as_the_directory() {
        let folder = tempfile::tempdir().expect("a folder");
        ServerDirectory::claim(folder.path().join("a/b/c")).expect("a place");
        for name in ["a", "a/b", "a/b/c"] {
            assert_eq!(fs::metadata(folder.path().join(name)).expect("a folder").mode() & 0o777, 0o700, "{name}");
        }
    }

    /// Clients that check the lock, however often, do not keep a server from starting.
    #[test]
    fn a_claim_is_seen_by_others_while_it_lasts() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(Claim::open(folder.path()).expect("a folder").is_none());
        for _ in 0..20 {
            let place = ServerDirectory::claim(folder.path().to_owned()).expect("a place");
            let claim = Claim::open(folder.path()).expect("a file").expect("a lock");
            assert!(claim.is_held() && !claim.wait_until_free(Duration::ZERO));
            drop(place);
            assert!(!claim.is_held() && claim.wait_until_free(Duration::ZERO));
            thread::scope(|scope| {
                let looks = scope.spawn(|| (0..2000).filter(|_| claim.is_held()).count());
                drop(ServerDirectory::claim(folder.path().to_owned()).expect("a place"));
                looks.join().expect("a thread");
            });
        }
    }
}

//! Mounting and unmounting.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use fuser::{Config, Filesystem, MountOption, Session, SessionACL};
use rustix::io::Errno;

use crate::pause::Pauser;
use crate::place::{MountPoint, unmount_topmost};
use crate::poller::Poller;
use crate::session::continued;
use crate::table::{Mounted, escape, mounts_at};

/// The default minimum number of threads, so that others continue while one waits for the disk.
const MIN_THREADS: usize = 4;
/// The default maximum number of threads.
const MAX_THREADS: usize = 16;
/// The maximum number of threads that options can ask for: each opens the device again, and a
/// process may have a few thousand files open.
const MOST_THREADS: usize = 128;

/// How a file system is mounted. To set options, change fields of [`Options::default`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The source in the mount table.
    pub name: String,
    /// Refuses every change.
    pub read_only: bool,
    /// Gives other users access according to the files' permissions. Needs root, or
    /// `user_allow_other` in `/etc/fuse.conf`.
    pub allow_other: bool,
    /// Lets users open device files. Needs root.
    pub dev: bool,
    /// Honors set-id bits and file capabilities. Needs root.
    pub suid: bool,
    /// Lets users run the files as programs.
    pub exec: bool,
    /// The number of threads, at most 128; 0 for one per processor, but at least 4 and at most 16.
    pub threads: usize,
    /// How far the kernel reads ahead, in KiB, if this process may set it, as root may. 0 for the
    /// kernel's default, 128 KiB.
    pub read_ahead_kib: u32,
    /// The directory is for this file system alone and must be empty. A mount of the same name that
    /// a killed process left there is unmounted.
    pub own_directory: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            name: "pagefold".to_owned(),
            read_only: false,
            allow_other: false,
            dev: false,
            suid: false,
            exec: true,
            threads: 0,
            read_ahead_kib: 0,
            own_directory: false,
        }
    }
}

impl Options {
    /// Returns the number of threads that serve the mount.
    pub fn thread_count(&self) -> usize {
        match self.threads {
            0 => processors().clamp(MIN_THREADS, MAX_THREADS),
            threads => threads.min(MOST_THREADS),
        }
    }

    fn config(&self) -> Config {
        let mut config = Config::default();
        config.mount_options = vec![
            if self.read_only { MountOption::RO } else { MountOption::RW },
            if self.suid { MountOption::Suid } else { MountOption::NoSuid },
            if self.dev { MountOption::Dev } else { MountOption::NoDev },
            if self.exec { MountOption::Exec } else { MountOption::NoExec },
            MountOption::NoAtime,
            MountOption::DefaultPermissions,
            MountOption::FSName(plain(&self.name)),
            MountOption::Subtype("pagefold".to_owned()),
        ];
        config.acl = if self.allow_other { SessionACL::All } else { SessionACL::Owner };
        config.n_threads = Some(self.thread_count());
        config.clone_fd = true;
        config
    }
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// A mounted file system.
pub struct Mount<F: Filesystem> {
    session: Session<F>,
    place: MountPoint,
    poller: Arc<Poller>,
    /// Reserves the descriptors that [`serve`](Self::serve) needs.
    reserved: Vec<OwnedFd>,
}

/// Unmounts a [`Mount`], from any thread.
#[derive(Clone, Debug)]
pub struct Unmounter {
    place: MountPoint,
}

impl<F: Filesystem> Mount<F> {
    /// Mounts a file system on the directory `at`. When this returns, it is mounted, and its users
    /// block until [`serve`](Self::serve) is called. `make` creates it: each of its requests must
    /// be answered within [`Poller::answer`].
    ///
    /// # Errors
    /// `at` is not a directory or may not be mounted on, the options need root, `/dev/fuse` is
    /// missing, or `fusermount3` is missing for a user other than root. Nothing is mounted then.
    pub fn new(at: &Path, options: &Options, make: impl FnOnce(Arc<Poller>) -> F) -> io::Result<Self> {
        if (options.dev || options.suid) && !rustix::process::geteuid().is_root() {
            let what = if options.dev { "device files (dev)" } else { "set-id programs (suid)" };
            let what = format!("only root may enable {what}");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
        }
        let at = at.canonicalize()?;
        check_directory(&at, options)?;
        let poller = Arc::new(Poller::new(processors(), options.thread_count()));
        let session = Session::new(make(Arc::clone(&poller)), &at, &options.config()).map_err(explain)?;
        poller.watch(session.as_fd().try_clone_to_owned()?);
        let mounted = mounts_at(&at)?.pop();
        if let (Some(mounted), 1..) = (&mounted, options.read_ahead_kib) {
            let setting = format!("/sys/class/bdi/{}/read_ahead_kb", mounted.device);
            // Only root may set it; a smaller window costs only speed.
            let _ = fs::write(setting, options.read_ahead_kib.to_string());
        }
        let (id, device) = mounted.map(|mounted| (mounted.id, mounted.device)).unzip();
        Ok(Self { session, place: MountPoint { at, id, device }, poller, reserved: Vec::new() })
    }

    /// Continues a mount of another process that has [paused](Pauser) it or ended: the file system
    /// `number` on the directory `at`, with its `device`. Of the options, only `allow_other` and
    /// the number of threads have an effect. Dropping the result does not unmount.
    ///
    /// # Errors
    /// `device` belongs to no mount, or another file system is mounted on `at`, for example because
    /// this process is in another mount namespace.
    pub fn taken(
        at: &Path,
        number: &str,
        device: OwnedFd,
        options: &Options,
        make: impl FnOnce(Arc<Poller>) -> F,
    ) -> io::Result<Self> {
        let place = MountPoint::find(at, number)?;
        let poller = Arc::new(Poller::new(processors(), options.thread_count()));
        let session = continued(make(Arc::clone(&poller)), &device, options.config())?;
        let reserved = (1..options.thread_count()).map(|_| device.try_clone()).collect::<io::Result<_>>()?;
        poller.watch(device);
        Ok(Self { session, place, poller, reserved })
    }

    /// Returns a handle that lets the mount pause while it is served.
    pub fn pauser(&self) -> Pauser {
        Pauser::new(Arc::clone(&self.poller), self.place.clone())
    }

    /// Returns a handle that unmounts this mount while it is served.
    pub fn unmounter(&self) -> Unmounter {
        Unmounter { place: self.place.clone() }
    }

    /// Returns the directory, without symbolic links.
    pub fn directory(&self) -> &Path {
        &self.place.at
    }

    /// Serves requests until the file system is unmounted by [`Unmounter`], `fusermount3 -u` or
    /// `umount`.
    ///
    /// # Errors
    /// The kernel's device failed, or a thread panicked. The file system is then unmounted.
    pub fn serve(self) -> io::Result<()> {
        drop(self.reserved);
        let mut background = self.session.spawn()?;
        let done = std::mem::replace(&mut background.guard, std::thread::spawn(|| Ok(())));
        // When fuser's mount handle is dropped, it unmounts the directory again although the mount
        // is gone (0.18 takes POLLERR as the sign of a mount). By then, another file system may be
        // mounted there, so the handle is leaked.
        std::mem::forget(background);
        match done.join() {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => self.place.unmount().and(Err(error)),
            Err(_) => self.place.unmount().and(Err(io::Error::other("a request thread panicked"))),
        }
    }
}

impl Unmounter {
    /// Unmounts, unless that already happened. Files that are open stay usable, no others can be
    /// opened, and [`Mount::serve`] returns when the last is closed.
    pub fn unmount(&self) -> io::Result<()> {
        self.place.unmount()
    }

    /// Ends the kernel's connection, also after an unmount that left files open: they fail from now
    /// on, and [`Mount::serve`] returns.
    ///
    /// # Errors
    /// The system has no file that ends the connection, for example because fusectl is not mounted.
    pub fn abort(&self) -> io::Result<()> {
        let number = self.place.device.as_deref().and_then(|device| device.split(':').nth(1));
        let number = number.ok_or(io::ErrorKind::NotFound)?;
        fs::write(format!("/sys/fs/fuse/connections/{number}/abort"), "1")
    }

    /// Returns the number of the mount's file system.
    pub fn number(&self) -> Option<&str> {
        self.place.device.as_deref()
    }
}

/// Checks that a file system may be mounted on a directory.
fn check_directory(at: &Path, options: &Options) -> io::Result<()> {
    // Killed processes may have left several stale mounts, one on top of another.
    loop {
        match at.metadata() {
            Ok(metadata) if metadata.is_dir() => break,
            Ok(_) => return Err(io::ErrorKind::NotADirectory.into()),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOTCONN) => {
                let is_own = |mounted: &Mounted| {
                    mounted.is_fuse() && mounted.source.as_bytes() == escape(plain(&options.name).as_bytes())
                };
                if options.own_directory && mounts_at(at)?.last().is_some_and(is_own) {
                    unmount_topmost(at)?;
                    continue;
                }
                let what = "a stale mount without a server is there; unmount it first (fusermount3 -u)";
                return Err(io::Error::new(io::ErrorKind::NotConnected, what));
            }
            Err(error) => return Err(error),
        }
    }
    if let Some(mounted) = mounts_at(at)?.pop().filter(Mounted::is_fuse) {
        let what = format!("{} is mounted there; unmount it first (fusermount3 -u)", mounted.source);
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
    }
    if options.own_directory && fs::read_dir(at)?.next().is_some() {
        let what = "the directory is not empty: choose an empty one, whose files the mount would not hide";
        return Err(io::Error::new(io::ErrorKind::DirectoryNotEmpty, what));
    }
    Ok(())
}

/// Explains which file is missing or inaccessible if the device cannot be opened. `fusermount3`
/// reports errors about the directory.
fn explain(error: io::Error) -> io::Error {
    let denied = error.raw_os_error().is_some() && error.kind() == io::ErrorKind::PermissionDenied;
    match error.kind() {
        io::ErrorKind::NotFound => io::Error::new(error.kind(), "/dev/fuse or fusermount3 is missing"),
        _ if denied => {
            let what = "this user may not open /dev/fuse; on most systems, everybody may (mode 0666)";
            io::Error::new(error.kind(), what)
        }
        // The message of `fusermount3` ends with a newline.
        kind if error.get_ref().is_some() => io::Error::new(kind, error.to_string().trim_end()),
        _ => error,
    }
}

/// Replaces characters that separate mount options.
fn plain(name: &str) -> String {
    name.chars().map(|letter| if matches!(letter, ',' | '\\') || letter.is_control() { '_' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_add_options() {
        assert_eq!(plain("a,suid\\b\nc d"), "a_suid_b_c d");
    }
}

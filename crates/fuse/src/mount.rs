//! Mounting and unmounting.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use fuser::{Config, MountOption, Session, SessionACL};
use pagefold_erofs::Image;
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use crate::filesystem::ImageFilesystem;
use crate::log::Log;
use crate::poller::Poller;

/// The default minimum number of threads: while one waits for the disk, others continue.
const MIN_THREADS: usize = 4;
/// The default maximum number of threads.
const MAX_THREADS: usize = 16;
/// The maximum number of threads for any options: each opens the device once more, and a process
/// may have a few thousand files open.
const MOST_THREADS: usize = 128;

/// Options for mounting an image. To set them, change fields of [`MountOptions::default`].
#[non_exhaustive]
pub struct MountOptions {
    /// The source in the mount table.
    pub name: String,
    /// Gives other users access according to the permissions in the image. Needs root, or
    /// `user_allow_other` in `/etc/fuse.conf`.
    pub allow_other: bool,
    /// Lets users open device files of the image. Needs root.
    pub dev: bool,
    /// Honors set-id bits and file capabilities of the image. Needs root.
    pub suid: bool,
    /// Lets users run programs of the image.
    pub exec: bool,
    /// The number of threads, at most 128; 0 for one per processor, but at least 4 and at most 16.
    pub threads: usize,
    /// The log for errors of the image.
    pub log: Log,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            name: "pagefold".to_owned(),
            allow_other: false,
            dev: false,
            suid: false,
            exec: true,
            threads: 0,
            log: Log::default(),
        }
    }
}

/// A mounted image.
pub struct Mount {
    session: Session<ImageFilesystem>,
    place: MountPoint,
}

/// Unmounts a [`Mount`], from any thread.
pub struct Unmounter {
    place: MountPoint,
}

/// A mount in the system's mount table.
#[derive(Clone)]
struct MountPoint {
    at: PathBuf,
    id: Option<u64>,
}

impl Mount {
    /// Mounts `image` on the directory `at`. When this returns, the image is mounted, and its users
    /// block until [`serve`](Self::serve) is called.
    ///
    /// # Errors
    /// `at` is not a directory or may not be mounted on, the options need root, `/dev/fuse` is
    /// missing, or `fusermount3` is missing for a user other than root. Nothing is mounted then.
    pub fn new(image: Image, at: &Path, options: MountOptions) -> io::Result<Self> {
        if (options.dev || options.suid) && !rustix::process::geteuid().is_root() {
            let what = if options.dev { "device files (dev)" } else { "set-id programs (suid)" };
            let what = format!("only root may enable the image's {what}");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
        }
        let at = at.canonicalize()?;
        match at.metadata() {
            Ok(metadata) if metadata.is_dir() => {}
            Ok(_) => return Err(io::ErrorKind::NotADirectory.into()),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOTCONN) => {
                let what = "a stale mount without a server is there; unmount it first (fusermount3 -u)";
                return Err(io::Error::new(io::ErrorKind::NotConnected, what));
            }
            Err(error) => return Err(error),
        }
        if let Some((kind, source)) = topmost(&at)?
            && (kind == "fuse" || kind.starts_with("fuse."))
        {
            let what = format!("{source} is mounted there; unmount it first (fusermount3 -u)");
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
        }
        let processors = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = match options.threads {
            0 => processors().clamp(MIN_THREADS, MAX_THREADS),
            threads => threads.min(MOST_THREADS),
        };
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::RO,
            if options.suid { MountOption::Suid } else { MountOption::NoSuid },
            if options.dev { MountOption::Dev } else { MountOption::NoDev },
            if options.exec { MountOption::Exec } else { MountOption::NoExec },
            MountOption::NoAtime,
            MountOption::DefaultPermissions,
            MountOption::FSName(plain(&options.name)),
            MountOption::Subtype("pagefold".to_owned()),
        ];
        config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
        config.n_threads = Some(threads);
        config.clone_fd = true;
        let poller = Arc::new(Poller::new(processors(), threads));
        let filesystem = ImageFilesystem::new(image, options.log, Arc::clone(&poller));
        let session = Session::new(filesystem, &at, &config).map_err(explain)?;
        poller.watch(session.as_fd().try_clone_to_owned()?);
        let id = mounts_at(&at)?.last().copied();
        Ok(Self { session, place: MountPoint { at, id } })
    }

    /// Returns a handle that unmounts this mount while it is served.
    pub fn unmounter(&self) -> Unmounter {
        Unmounter { place: self.place.clone() }
    }

    /// Serves requests until the image is unmounted by [`Unmounter`], `fusermount3 -u` or `umount`.
    /// Defects of the image cause errors for its readers and log lines, but this method continues.
    ///
    /// # Errors
    /// The kernel's device failed, or a thread panicked. The image is then unmounted.
    pub fn serve(self) -> io::Result<()> {
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
    /// Unmounts, unless that already happened. If files are open, their users keep them, no new
    /// access is possible, and [`Mount::serve`] returns when the last is closed.
    pub fn unmount(&self) -> io::Result<()> {
        self.place.unmount()
    }
}

impl MountPoint {
    fn unmount(&self) -> io::Result<()> {
        let mounts = mounts_at(&self.at)?;
        if !mounts.iter().any(|id| Some(*id) == self.id) {
            return Ok(());
        }
        if mounts.last().copied() != self.id {
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, "something else is mounted on top of it"));
        }
        match unmount(&self.at, UnmountFlags::empty()) {
            Err(Errno::BUSY) => Ok(unmount(&self.at, UnmountFlags::DETACH)?),
            Err(Errno::PERM) => {
                let status = Command::new("fusermount3").args(["-u", "-z", "--"]).arg(&self.at).status()?;
                if status.success() { Ok(()) } else { Err(io::Error::other(format!("fusermount3: {status}"))) }
            }
            result => Ok(result?),
        }
    }
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

/// Returns the ids of the mounts on a directory, the topmost last.
fn mounts_at(directory: &Path) -> io::Result<Vec<u64>> {
    let lines = lines_at(directory)?;
    let id = |line: &Vec<u8>| std::str::from_utf8(line.split(|byte| *byte == b' ').next()?).ok()?.parse().ok();
    Ok(lines.iter().filter_map(id).collect())
}

/// Returns the file system type and the source of the topmost mount on a directory; `None` if there
/// is none.
fn topmost(directory: &Path) -> io::Result<Option<(String, String)>> {
    let of = |line: &Vec<u8>| {
        let mut fields = line.split(|byte| *byte == b' ').skip_while(|field| *field != b"-").skip(1);
        let mut next = || Some(String::from_utf8_lossy(fields.next()?).into_owned());
        Some((next()?, next()?))
    };
    Ok(lines_at(directory)?.last().and_then(of))
}

/// Returns the lines about a directory in the mount table (`proc_pid_mountinfo(5)`). Does not access
/// the mounts themselves.
fn lines_at(directory: &Path) -> io::Result<Vec<Vec<u8>>> {
    let escaped = |byte: &u8| match byte {
        b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}").into_bytes(),
        byte => vec![*byte],
    };
    let directory: Vec<u8> = directory.as_os_str().as_bytes().iter().flat_map(escaped).collect();
    let table = std::fs::read("/proc/self/mountinfo")?;
    let is_here = |line: &&[u8]| line.split(|byte| *byte == b' ').nth(4).is_some_and(|at| at == directory);
    Ok(table.split(|byte| *byte == b'\n').filter(is_here).map(<[u8]>::to_vec).collect())
}

/// Replaces characters that separate mount options.
fn plain(name: &str) -> String {
    name.chars().map(|letter| if matches!(letter, ',' | '\\') || letter.is_control() { '_' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_found_in_the_table() {
        assert!(!mounts_at(Path::new("/proc")).unwrap().is_empty());
        assert!(mounts_at(Path::new("/proc/self")).unwrap().is_empty());
        assert_eq!(topmost(Path::new("/proc")).unwrap().unwrap().0, "proc");
        assert_eq!(topmost(Path::new("/proc/self")).unwrap(), None);
    }

    #[test]
    fn a_name_cannot_add_options() {
        assert_eq!(plain("a,suid\\b\nc d"), "a_suid_b_c d");
    }
}

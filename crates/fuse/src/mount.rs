//! Mounting and unmounting.

use std::io;
use std::path::{Path, PathBuf};

use fuser::{Config, MountOption, Session, SessionACL, SessionUnmounter};
use pagefold_erofs::Image;
use rustix::mount::{UnmountFlags, unmount};

use crate::filesystem::ImageFilesystem;
use crate::log::Log;

/// Threads that answer, at the least: while one waits for the disk, others go on.
const MIN_THREADS: usize = 4;
/// And at the most, unless the options say otherwise.
const MAX_THREADS: usize = 16;

/// How an image is mounted.
pub struct MountOptions {
    /// What the table of mounts says where it comes from.
    pub name: String,
    /// Let other users in, as the permissions in the image say. Needs root, or `user_allow_other` in `/etc/fuse.conf`.
    pub allow_other: bool,
    /// Threads that answer; 0 for one a processor, but at least 4 and at most 16.
    pub threads: usize,
    /// Where errors of the image are told.
    pub log: Log,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self { name: "pagefold".to_owned(), allow_other: false, threads: 0, log: Log::default() }
    }
}

/// A mounted image.
pub struct Mount {
    session: Session<ImageFilesystem>,
    at: PathBuf,
}

/// Unmounts a [`Mount`], from any thread.
pub struct Unmounter {
    session: SessionUnmounter,
    at: PathBuf,
}

impl Mount {
    /// Mounts `image` at the directory `at`. When this returns the image is mounted, and those who use it wait for
    /// [`serve`](Self::serve). Set-id bits and device files in it are without effect.
    pub fn new(image: Image, at: &Path, options: MountOptions) -> io::Result<Self> {
        let at = at.canonicalize()?;
        if !at.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let processors = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = match options.threads {
            0 => processors().clamp(MIN_THREADS, MAX_THREADS),
            threads => threads,
        };
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::RO,
            MountOption::NoSuid,
            MountOption::NoDev,
            MountOption::NoAtime,
            MountOption::DefaultPermissions,
            MountOption::FSName(plain(&options.name)),
            MountOption::Subtype("pagefold".to_owned()),
        ];
        config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
        config.n_threads = Some(threads);
        config.clone_fd = true;
        let session = Session::new(ImageFilesystem::new(image, options.log), &at, &config)?;
        Ok(Self { session, at })
    }

    /// What unmounts this mount while it is served.
    pub fn unmounter(&mut self) -> Unmounter {
        Unmounter { session: self.session.unmount_callable(), at: self.at.clone() }
    }

    /// Answers until the image is unmounted, by [`Unmounter`], `fusermount3 -u` or `umount`.
    pub fn serve(self) -> io::Result<()> {
        self.session.run()
    }
}

impl Unmounter {
    /// Unmounts. If files are open, their users keep them, nobody else gets in, and [`Mount::serve`] ends with the last.
    pub fn unmount(&mut self) -> io::Result<()> {
        match self.session.unmount() {
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()) => {
                unmount(&self.at, UnmountFlags::DETACH).map_err(Into::into)
            }
            result => result,
        }
    }
}

/// A name without what separates mount options.
fn plain(name: &str) -> String {
    name.chars().map(|letter| if matches!(letter, ',' | '\\') || letter.is_control() { '_' } else { letter }).collect()
}

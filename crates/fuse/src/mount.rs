//! Images as mounts.

use std::io;
use std::path::Path;

use pagefold_erofs::Image;
use pagefold_mount::{Log, Mount as Mounted, Options, Unmounter};

use crate::filesystem::ImageFilesystem;

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
pub struct Mount(Mounted<ImageFilesystem>);

impl Mount {
    /// Mounts `image` on the directory `at`. When this returns, the image is mounted, and its users
    /// block until [`serve`](Self::serve) is called.
    ///
    /// # Errors
    /// `at` is not a directory or may not be mounted on, the options need root, `/dev/fuse` is
    /// missing, or `fusermount3` is missing for a user other than root. Nothing is mounted then.
    pub fn new(image: Image, at: &Path, options: MountOptions) -> io::Result<Self> {
        let MountOptions { name, allow_other, dev, suid, exec, threads, log } = options;
        let mut options = Options::default();
        options.name = name;
        options.read_only = true;
        options.allow_other = allow_other;
        options.dev = dev;
        options.suid = suid;
        options.exec = exec;
        options.threads = threads;
        Mounted::new(at, &options, |poller| ImageFilesystem::new(image, log, poller)).map(Self)
    }

    /// Returns a handle that unmounts this mount while it is served.
    pub fn unmounter(&self) -> Unmounter {
        self.0.unmounter()
    }

    /// Serves requests until the image is unmounted by [`Unmounter`], `fusermount3 -u` or `umount`.
    /// Defects of the image cause errors for its readers and log lines, but this method continues.
    ///
    /// # Errors
    /// The kernel's device failed, or a thread panicked. The image is then unmounted.
    pub fn serve(self) -> io::Result<()> {
        self.0.serve()
    }
}

//! Files in which outputs are made.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use tempfile::{NamedTempFile, TempPath};

use crate::{Result, error::During};

/// Handles a named file that would stay if a signal ended the program. The guard is called before
/// the file is created, and the function that it returns is called with the file's path.
pub type Guard<'a> = &'a dyn Fn() -> io::Result<WhenNamed>;

/// See [`Guard`].
pub type WhenNamed = Box<dyn FnOnce(&Path)>;

/// A guard that does nothing.
pub(crate) const UNGUARDED: Guard<'static> = &|| Ok(Box::new(|_| {}));

/// An output that is not complete.
#[derive(Debug)]
pub enum Draft {
    /// A file without a name, which disappears when the program ends for any reason.
    Unnamed(File),
    /// A named file, where unnamed ones are unsupported. It is removed when this value is dropped.
    Named(NamedTempFile),
}

/// Prefix of a draft's name, while it has one.
pub(crate) const PREFIX: &str = ".pagefold-";

impl Draft {
    /// Creates a file in `folder`, to be given a name there later.
    pub(crate) fn new_in(folder: &Path, guard: Guard<'_>) -> Result<Self> {
        let unnamed = unnamed_in(folder).during(|| format!("making a file in {}", folder.display()))?;
        unnamed.map_or_else(|| named_in(folder, guard).map(Self::Named), |file| Ok(Self::Unnamed(file)))
    }

    /// Returns the file to write to.
    pub fn file(&self) -> &File {
        match self {
            Self::Unnamed(file) => file,
            Self::Named(file) => file.as_file(),
        }
    }

    /// Gives the file the name `path`, if no file has it. Returns whether it did; otherwise, the
    /// file has a temporary name.
    pub(crate) fn link(self, path: &Path) -> io::Result<Linked> {
        match self {
            Self::Unnamed(file) => match link(&file, path) {
                Ok(()) => Ok(Linked::There),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    let folder = path.parent().unwrap_or(Path::new("/"));
                    let named = tempfile::Builder::new().prefix(PREFIX).make_in(folder, |path| link(&file, path))?;
                    Ok(Linked::Apart(named.into_temp_path()))
                }
                Err(error) => Err(error),
            },
            Self::Named(file) => Ok(Linked::Apart(file.into_temp_path())),
        }
    }
}

/// The place at which a draft was named.
pub(crate) enum Linked {
    /// At the requested path.
    There,
    /// At a temporary path in the same directory.
    Apart(TempPath),
}

/// Creates a file in `folder` that can be given a name later; returns `None` if the system cannot.
fn unnamed_in(folder: &Path) -> io::Result<Option<File>> {
    // The usual mode of new files; the umask applies.
    let mode = Mode::from_raw_mode(0o666);
    match rustix::fs::open(folder, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, mode) {
        Ok(file) => {
            let file = File::from(file);
            Ok(fs::exists(path_of(&file))?.then_some(file))
        }
        // These errors would occur for any file.
        Err(error @ (Errno::ACCESS | Errno::NOENT | Errno::NOTDIR | Errno::ROFS | Errno::NOSPC)) => Err(error.into()),
        Err(_) => Ok(None),
    }
}

fn path_of(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

fn link(file: &File, path: &Path) -> io::Result<()> {
    Ok(rustix::fs::linkat(CWD, path_of(file), CWD, path, AtFlags::SYMLINK_FOLLOW)?)
}

fn named_in(folder: &Path, guard: Guard<'_>) -> Result<NamedTempFile> {
    let guarding = guard().during(|| "cannot catch signals".to_owned())?;
    let file = tempfile::Builder::new()
        .prefix(PREFIX)
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder)
        .during(|| format!("making a file in {}", folder.display()))?;
    guarding(file.path());
    Ok(file)
}

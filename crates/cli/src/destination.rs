//! Destinations of an image.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, IsTerminal, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, bail, ensure};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use signal_hook::low_level::emulate_default_handler;
use tempfile::NamedTempFile;

use crate::signals;

/// The destination given by `--output`, checked before the work starts.
pub(crate) enum Destination {
    /// A file that gets this name only once the image is complete.
    File(PathBuf),
    /// Standard output, a device or a pipe, and its name. The complete image is copied there.
    Stream(Box<dyn io::Write>, String),
}

impl Destination {
    pub(crate) fn of(path: &Path) -> anyhow::Result<Self> {
        if path == Path::new("-") {
            let stdout = io::stdout();
            ensure!(
                !stdout.is_terminal(),
                "refusing to write an image to a terminal: name a file or redirect standard output"
            );
            return Ok(Self::Stream(Box::new(stdout), "standard output".to_owned()));
        }
        let shown = || path.display().to_string();
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => bail!("{} is a directory; name a file in it", shown()),
            // A symbolic link stays, and its target is replaced.
            Ok(metadata) if metadata.is_file() => Ok(Self::File(fs::canonicalize(path).with_context(shown)?)),
            Ok(metadata) => {
                // A disk that is mounted or otherwise in use cannot be opened exclusively.
                let disk = metadata.file_type().is_block_device();
                let flags = if disk { OFlags::EXCL } else { OFlags::empty() };
                let stream = OpenOptions::new().write(true).custom_flags(flags.bits().cast_signed()).open(path);
                let stream = stream.map_err(|error| match error.kind() {
                    ErrorKind::ResourceBusy if disk => {
                        io::Error::new(error.kind(), "it is mounted or otherwise in use")
                    }
                    _ => error,
                });
                Ok(Self::Stream(Box::new(stream.with_context(shown)?), shown()))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                ensure!(!path.as_os_str().as_bytes().ends_with(b"/"), "{} is not a file name", shown());
                Ok(Self::File(path.to_owned()))
            }
            Err(error) => Err(error).with_context(shown),
        }
    }

    /// Returns a description of where the image is built.
    pub(crate) fn place(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Stream(..) => format!("a file in {}, from which the image is sent", std::env::temp_dir().display()),
        }
    }

    /// Creates a file to build the image in.
    pub(crate) fn make_draft(&self) -> anyhow::Result<Draft> {
        let Self::File(path) = self else {
            let folder = std::env::temp_dir();
            let failed = || format!("making a file in {}", folder.display());
            return Ok(Draft::Unnamed(tempfile::tempfile_in(&folder).with_context(failed)?));
        };
        let folder = folder_of(path);
        let unnamed = unnamed_in(folder).with_context(|| format!("making a file in {}", folder.display()))?;
        unnamed.map_or_else(|| named_in(folder).map(Draft::Named), |file| Ok(Draft::Unnamed(file)))
    }

    /// Moves the complete image to its destination.
    pub(crate) fn take(self, draft: Draft) -> anyhow::Result<()> {
        match (self, draft) {
            (Self::File(path), Draft::Unnamed(file)) => {
                give_name(&file, &path).with_context(|| format!("writing {}", path.display()))
            }
            (Self::File(path), Draft::Named(file)) => {
                file.persist(&path)
                    .map_err(|failure| failure.error)
                    .with_context(|| format!("writing {}", path.display()))?;
                Ok(())
            }
            (Self::Stream(mut stream, name), draft) => {
                let mut file = draft.file();
                file.rewind()?;
                io::copy(&mut file, &mut stream).and_then(|_| stream.flush()).with_context(|| format!("writing {name}"))
            }
        }
    }
}

/// An image that is being built.
pub(crate) enum Draft {
    /// A file without a name, which disappears when the program ends for any reason.
    Unnamed(File),
    /// A named file, where unnamed ones are unsupported. It is removed when this value is dropped
    /// or when the program is ended by a signal that it can catch.
    Named(NamedTempFile),
}

impl Draft {
    pub(crate) fn file(&self) -> &File {
        match self {
            Self::Unnamed(file) => file,
            Self::Named(file) => file.as_file(),
        }
    }
}

/// Prefix of a draft's name, while it has one.
const PREFIX: &str = ".pagefold-";

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
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

/// Gives an unnamed file the name `path`, replacing an existing file.
fn give_name(file: &File, path: &Path) -> io::Result<()> {
    let link = |path: &Path| -> io::Result<()> {
        Ok(rustix::fs::linkat(CWD, path_of(file), CWD, path, AtFlags::SYMLINK_FOLLOW)?)
    };
    match link(path) {
        // A link cannot replace a file. Link to a temporary name, then rename that.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            tempfile::Builder::new().prefix(PREFIX).make_in(folder_of(path), link)?.into_temp_path().persist(path)?;
            Ok(())
        }
        done => done,
    }
}

fn named_in(folder: &Path) -> anyhow::Result<NamedTempFile> {
    let mut signals = signals::catch().context("cannot catch signals")?;
    let file = tempfile::Builder::new()
        .prefix(PREFIX)
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder)
        .with_context(|| format!("making a file in {}", folder.display()))?;
    let path = file.path().to_owned();
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            for signal in signals.forever() {
                let _ = fs::remove_file(&path);
                let _ = emulate_default_handler(signal);
            }
        })
        .context("cannot start a thread")?;
    Ok(file)
}

//! Where an image goes.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, ErrorKind, IsTerminal, Seek};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, bail, ensure};
use signal_hook::low_level::emulate_default_handler;
use tempfile::NamedTempFile;

use crate::signals;

/// What `--output` names, looked at before the work.
pub(crate) enum Destination {
    /// A file that is there with this name when the image is whole, not before.
    File(PathBuf),
    /// Standard output, a device or a pipe: the whole image is copied there.
    Stream(Box<dyn io::Write>),
}

impl Destination {
    pub(crate) fn of(path: &Path) -> anyhow::Result<Self> {
        if path == Path::new("-") {
            let stdout = io::stdout();
            ensure!(!stdout.is_terminal(), "an image is nothing for a terminal; name a file, or send it elsewhere");
            return Ok(Self::Stream(Box::new(stdout)));
        }
        let shown = || path.display().to_string();
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => bail!("{} is a directory; name a file in it", shown()),
            // A link stays, and the file that it leads to is replaced.
            Ok(metadata) if metadata.is_file() => Ok(Self::File(fs::canonicalize(path).with_context(shown)?)),
            Ok(_) => Ok(Self::Stream(Box::new(OpenOptions::new().write(true).open(path).with_context(shown)?))),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                ensure!(!path.as_os_str().as_bytes().ends_with(b"/"), "{} is no file's name", shown());
                Ok(Self::File(path.to_owned()))
            }
            Err(error) => Err(error).with_context(shown),
        }
    }

    /// A file to make the image in. It goes when this value does, and when a signal ends the program.
    pub(crate) fn make_file(&self) -> anyhow::Result<NamedTempFile> {
        let directory = match self {
            Self::File(path) => match path.parent() {
                Some(parent) if parent != Path::new("") => parent.to_owned(),
                _ => PathBuf::from("."),
            },
            Self::Stream(_) => std::env::temp_dir(),
        };
        let mut signals = signals::catch().context("cannot catch signals")?;
        let file = tempfile::Builder::new()
            .prefix(".pagefold-")
            // As other new files are, less what the umask takes away.
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(&directory)
            .with_context(|| format!("making a file in {}", directory.display()))?;
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

    /// Puts the whole image in its place.
    pub(crate) fn take(self, mut image: NamedTempFile) -> anyhow::Result<()> {
        match self {
            Self::File(path) => {
                let failed = || format!("writing {}", path.display());
                image.persist(&path).map_err(|failure| failure.error).with_context(failed)?;
            }
            Self::Stream(mut stream) => {
                image.rewind()?;
                io::copy(image.as_file_mut(), &mut stream).and_then(|_| stream.flush()).context("writing the image")?;
            }
        }
        Ok(())
    }
}

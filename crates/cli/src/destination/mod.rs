//! Where outputs are written to: files, block devices and streams, and what they may replace.
//!
//! An output never replaces a file that the command reads, or a file of another kind without
//! `--force`. Both are checked before the work starts. When the output gets its name, that name
//! must have the same file as then, or none.

mod device;
mod draft;
mod existing;
mod image_format;
mod inputs;
mod new_file;

use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal, Seek};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use pagefold_erofs::ImageFile;

use self::device::Device;
pub(crate) use self::{draft::Draft, existing::Written, image_format::ImageFormat, inputs::Inputs, new_file::NewFile};

/// The destination given by `--output`, checked before the work starts.
pub(crate) enum Destination {
    /// A file that gets this name only once the image is complete.
    File(NewFile),
    /// A block device. The complete image is copied there.
    Device(Device),
    /// Standard output. The complete image is copied there.
    StandardOutput,
    /// A character device or a pipe, and its name. The complete image is copied there.
    Stream(File, String),
}

impl Destination {
    /// Examines the place for an image of this format. Without `force`, an existing file is replaced
    /// only if it has this format too, and is not a raw disk.
    ///
    /// # Errors
    /// Nothing may or can be written there.
    pub(crate) fn of(path: &Path, format: ImageFormat, force: bool, inputs: &Inputs) -> anyhow::Result<Self> {
        if path == Path::new("-") {
            ensure!(
                !io::stdout().is_terminal(),
                "refusing to write an image to a terminal: name a file or redirect standard output"
            );
            inputs.check_standard_output()?;
            return Ok(Self::StandardOutput);
        }
        let shown = || path.display().to_string();
        let written = Written::Image(format);
        let metadata = match fs::metadata(path) {
            Ok(metadata) if !metadata.is_file() && !metadata.is_dir() => metadata,
            _ => return NewFile::at(path, written, force, inputs).map(Self::File),
        };
        let kind = metadata.file_type();
        inputs.check(path, &metadata)?;
        if kind.is_block_device() {
            return Device::open(path, written, force).map(Self::Device);
        }
        if kind.is_socket() {
            bail!("{} is a socket: write to a file, a block device or a pipe", shown());
        }
        let stream = OpenOptions::new().write(true).open(path).with_context(shown)?;
        Ok(Self::Stream(stream, shown()))
    }

    /// Returns a description of where the image is built.
    pub(crate) fn place(&self) -> String {
        match self {
            Self::File(file) => file.path().display().to_string(),
            Self::Device(_) | Self::StandardOutput | Self::Stream(..) => {
                format!("a file in {}, from which the image is sent", std::env::temp_dir().display())
            }
        }
    }

    /// Checks that there is room for an output of this size, where the room is known.
    pub(crate) fn check_room(&self, len_bytes: u64) -> anyhow::Result<()> {
        match self {
            Self::Device(device) => device.check_room(len_bytes),
            Self::File(_) | Self::StandardOutput | Self::Stream(..) => Ok(()),
        }
    }

    /// Returns the file that the image will replace or be written to, so that a scan can leave it
    /// out.
    pub(crate) fn replaced(&self) -> anyhow::Result<Option<ImageFile>> {
        let path = match self {
            Self::File(file) if file.replaces() => file.path(),
            Self::StandardOutput if fs::metadata(inputs::STANDARD_OUTPUT).is_ok_and(|found| found.is_file()) => {
                Path::new(inputs::STANDARD_OUTPUT)
            }
            _ => return Ok(None),
        };
        match ImageFile::replaced_at(path) {
            // A file without a name is in no directory.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            found => found.map(Some).with_context(|| path.display().to_string()),
        }
    }

    /// Creates a file to build the image in.
    pub(crate) fn make_draft(&self) -> anyhow::Result<Draft> {
        if let Self::File(file) = self {
            return file.make_draft();
        }
        let folder = std::env::temp_dir();
        let failed = || format!("making a file in {}", folder.display());
        Ok(Draft::Unnamed(tempfile::tempfile_in(&folder).with_context(failed)?))
    }

    /// Moves the complete image to its destination.
    pub(crate) fn take(self, draft: Draft) -> anyhow::Result<()> {
        match self {
            Self::File(file) => file.take(draft),
            Self::Device(device) => device.put(draft.file()),
            Self::StandardOutput => send(draft.file(), io::stdout(), "standard output"),
            Self::Stream(stream, name) => send(draft.file(), stream, &name),
        }
    }
}

/// Copies an image to a stream.
fn send(mut image: &File, mut stream: impl io::Write, name: &str) -> anyhow::Result<()> {
    image.rewind()?;
    io::copy(&mut image, &mut stream).and_then(|_| stream.flush()).with_context(|| format!("writing {name}"))
}

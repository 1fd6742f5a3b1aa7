//! Destinations of images.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal, Seek};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use pagefold_erofs::ImageFile;

use crate::{
    Device, Draft, Guard, ImageFormat, Inputs, NewFile, Result, Written,
    draft::UNGUARDED,
    error::{During, ensure, refuse},
    inputs::STANDARD_OUTPUT,
    standard_output::{is_name, standard_output},
};

/// Standard output in messages.
const OUTPUT_NAME: &str = "standard output";

/// The destination of an image, checked before the work starts.
#[derive(Debug)]
pub enum Destination {
    /// A file that gets this name only once the image is complete.
    File(NewFile),
    /// A block device. The complete image is copied there.
    Device(Device),
    /// Standard output. The complete image is copied there.
    StandardOutput(File),
    /// A character device or a pipe, and its name. The complete image is copied there.
    Stream(File, String),
}

impl Destination {
    /// Examines the place for an image of this format; `-` is standard output. Without `force`, an
    /// existing file is replaced only if it has this format too, and is not a raw disk.
    ///
    /// # Errors
    /// Nothing can, or may, be written there.
    pub fn of(path: &Path, format: ImageFormat, force: bool, inputs: &Inputs) -> Result<Self> {
        if path == Path::new("-") {
            ensure!(
                !io::stdout().is_terminal(),
                "refusing to write an image to a terminal: name a file or redirect standard output"
            );
            inputs.check_standard_output()?;
            return standard_output().map(Self::StandardOutput).during(|| OUTPUT_NAME.to_owned());
        }
        let shown = || path.display().to_string();
        if is_name(path) {
            standard_output().during(shown)?;
        }
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
            refuse!("{} is a socket: write to a file, a block device or a pipe", shown());
        }
        let stream = OpenOptions::new().write(true).open(path).during(shown)?;
        Ok(Self::Stream(stream, shown()))
    }

    /// Returns a description of where the image is built, for errors.
    pub fn place(&self) -> String {
        match self {
            Self::File(file) => file.path().display().to_string(),
            Self::Device(_) | Self::StandardOutput(_) | Self::Stream(..) => {
                format!("a file in {}, from which the image is sent", std::env::temp_dir().display())
            }
        }
    }

    /// Checks that there is room for an output of this size, where the room is known.
    ///
    /// # Errors
    /// A device is smaller.
    pub fn check_room(&self, len_bytes: u64) -> Result<()> {
        match self {
            Self::Device(device) => device.check_room(len_bytes),
            Self::File(_) | Self::StandardOutput(_) | Self::Stream(..) => Ok(()),
        }
    }

    /// Returns the file that the image will replace or be written to, so that a scan can leave it
    /// out.
    pub fn replaced(&self) -> Result<Option<ImageFile>> {
        let path = match self {
            Self::File(file) if file.replaces() => file.path(),
            Self::StandardOutput(_) if fs::metadata(STANDARD_OUTPUT).is_ok_and(|found| found.is_file()) => {
                Path::new(STANDARD_OUTPUT)
            }
            _ => return Ok(None),
        };
        match ImageFile::replaced_at(path) {
            // A file without a name is in no directory.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            found => found.map(Some).during(|| path.display().to_string()),
        }
    }

    /// Creates a file to build the image in.
    pub fn make_draft(&self) -> Result<Draft> {
        self.make_guarded_draft(UNGUARDED)
    }

    /// Like [`make_draft`](Self::make_draft), with a guard of the file if it has a name.
    pub fn make_guarded_draft(&self, guard: Guard<'_>) -> Result<Draft> {
        if let Self::File(file) = self {
            return file.make_guarded_draft(guard);
        }
        let folder = std::env::temp_dir();
        let failed = || format!("making a file in {}", folder.display());
        Ok(Draft::Unnamed(tempfile::tempfile_in(&folder).during(failed)?))
    }

    /// Moves the complete image to its destination.
    ///
    /// # Errors
    /// Another file has got the name, and stays; a device has too little room, and is unchanged; or
    /// the system failed.
    pub fn take(self, draft: Draft) -> Result<()> {
        match self {
            Self::File(file) => file.take(draft),
            Self::Device(device) => device.put(draft.file()),
            Self::StandardOutput(output) => send(draft.file(), output, OUTPUT_NAME),
            Self::Stream(stream, name) => send(draft.file(), stream, &name),
        }
    }
}

/// Copies an image to a stream.
fn send(mut image: &File, mut stream: impl io::Write, name: &str) -> Result<()> {
    let copied = image.rewind().and_then(|()| io::copy(&mut image, &mut stream));
    copied.and_then(|_| stream.flush()).during(|| format!("writing {name}"))
}

//! Examines what an existing file holds, to decide whether an output may replace it.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use pagefold_base::{Format, Signature};
use pagefold_erofs::ReadAt;
use rustix::fs::{FlockOperation, flock};

use crate::{
    ImageFormat, Result,
    error::{During, refuse},
};

/// Kinds of data that outputs hold. Without `--force`, only an existing file of the same kind is
/// replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// An image of this format.
    Image(ImageFormat),
    /// The chunk index of an image.
    ChunkIndex,
    /// A trace: the chunks of an image that are read first.
    Trace,
    /// A manual page of pagefold.
    ManualPage,
    /// The process ID of a server.
    ProcessId,
}

/// Bytes at either end of a device that are examined. Partition tables, file systems and volume
/// managers put their magic numbers there.
const END_BYTES: u64 = 1 << 20;

/// The longest file with a process id: a number and a line feed.
const PROCESS_ID_BYTES: u64 = 12;

impl Written {
    fn described(self) -> &'static str {
        match self {
            Self::Image(format) => format.described(),
            Self::ChunkIndex => "a chunk index",
            Self::Trace => "a trace",
            Self::ManualPage => "a manual page of pagefold",
            Self::ProcessId => "an unlocked file with a process ID",
        }
    }

    /// Returns the end of a refusal to replace a file: `serve` has no `--force`.
    pub(crate) fn or_force(self) -> &'static str {
        match self {
            Self::ProcessId | Self::Trace => "",
            Self::Image(_) | Self::ChunkIndex | Self::ManualPage => ", or replace it with --force",
        }
    }

    /// Returns whether a file holds the kind of data that is to be written. Nothing distinguishes a
    /// raw disk from other data.
    fn is_in(self, file: &File) -> io::Result<bool> {
        match self {
            Self::Image(ImageFormat::Erofs) => Format::Erofs.is_in(file, 0),
            Self::Image(ImageFormat::Qcow2) => Format::Qcow2.is_in(file, 0),
            Self::Image(ImageFormat::Raw) => Ok(false),
            Self::ChunkIndex => {
                let mut front = Vec::new();
                file.take(4).read_to_end(&mut front)?;
                Ok(front == [0xcd, 0xe4, 0xec, 0x67])
            }
            Self::Trace => {
                let mut front = Vec::new();
                file.take(8).read_to_end(&mut front)?;
                Ok(front == b"pgftrac1")
            }
            Self::ManualPage => {
                let mut front = Vec::new();
                file.take(4096).read_to_end(&mut front)?;
                Ok(front.windows(13).any(|part| part == b"\n.TH pagefold"))
            }
            Self::ProcessId => {
                let mut text = String::new();
                let is_text = file.take(PROCESS_ID_BYTES + 1).read_to_string(&mut text).is_ok();
                let is_number =
                    is_text && text.len() as u64 <= PROCESS_ID_BYTES && text.trim_end().parse::<u32>().is_ok();
                // The lock of a server's directory also holds a process ID.
                Ok(is_number && flock(file, FlockOperation::NonBlockingLockShared).is_ok())
            }
        }
    }

    /// Returns whether a file may be replaced without `--force`: it is empty, or holds the same kind
    /// of data.
    pub(crate) fn may_replace(self, file: &File) -> io::Result<bool> {
        Ok(file.metadata()?.len() == 0 || self.is_in(file)?)
    }

    /// Returns why a file may not be replaced.
    pub(crate) fn refusal(self, path: &Path, file: &File) -> io::Result<String> {
        let shown = path.display();
        Ok(match (found(file)?, self) {
            (Some(found), _) => format!("{shown} exists and is {found}"),
            (None, Self::Image(ImageFormat::Raw)) => format!("{shown} exists"),
            (None, written) => format!("{shown} exists and is not {}", written.described()),
        })
    }

    /// Checks that a block device may be overwritten without `--force`: both ends of it are zeros,
    /// or it holds the same kind of data.
    ///
    /// # Errors
    /// It may not be overwritten, or cannot be read.
    pub(crate) fn check_overwritten(self, path: &Path, device: &File, size_bytes: u64) -> Result<()> {
        let shown = || path.display().to_string();
        let zeros = || -> io::Result<bool> {
            let len_bytes = END_BYTES.min(size_bytes);
            let mut bytes = vec![0; len_bytes as usize];
            for at in [0, size_bytes - len_bytes] {
                ReadAt::read_exact_at(device, &mut bytes, at)?;
                if bytes.iter().any(|byte| *byte != 0) {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        if self.is_in(device).during(shown)? || zeros().during(shown)? {
            return Ok(());
        }
        let found = found(device).during(shown)?.unwrap_or_else(|| "data".to_owned());
        refuse!(
            "{}, {}, holds {found}: write to another device, or overwrite it with --force",
            shown(),
            pagefold_size::written(size_bytes)
        )
    }
}

/// Returns the name of the file's format, if it is well-known.
fn found(file: &File) -> io::Result<Option<String>> {
    Ok(Signature::of(file, 0)?.map(|found| found.name().to_owned()))
}

//! A disk at one instant, to be saved as an image.

use std::{
    fmt, io,
    sync::{Arc, Mutex, PoisonError},
};

use pagefold_control::{BaseRecord, Client, Command, FrozenRuns, Held, Instant, Stored};
use pagefold_disk::{BlockDevice, Checked};
use pagefold_erofs::{Change, ReadAt};

use super::{
    error::{FreezeError, Result, refuse},
    reader::InstantReader,
};

/// Returns where the data of an instant are stored, from this byte on.
type Runs = Box<dyn Fn(u64) -> Result<FrozenRuns>>;

/// A disk as it was at one instant, until this is dropped. The disk stays in use.
pub struct Frozen {
    record: Instant,
    runs: Runs,
    reader: Arc<dyn ReadAt>,
    /// Of a server in this process.
    _held: Option<Held>,
}

impl Frozen {
    /// Makes the server at the other end of `control` keep its disk `name` as it is now. The data are
    /// read over NBD.
    ///
    /// # Errors
    /// The server has no such disk, or cannot be reached over NBD.
    pub fn of_client(mut control: Client, name: &str) -> Result<Self, FreezeError> {
        let record: Instant = control.call(&Command::Freeze { name: name.to_owned() })?;
        let reader = Arc::new(InstantReader::connect_to(&record)?);
        // The instant ends when this connection does.
        let (control, export) = (Mutex::new(control), record.export.clone());
        let runs = move |offset_bytes| {
            let command = Command::FrozenRuns { export: export.clone(), offset_bytes };
            Ok(control.lock().unwrap_or_else(PoisonError::into_inner).call(&command)?)
        };
        Ok(Self { record, runs: Box::new(runs), reader, _held: None })
    }

    /// Returns an instant of a server in this process, which `held` keeps.
    pub(crate) fn of_server(
        record: Instant,
        held: Held,
        runs: impl Fn(u64) -> Result<FrozenRuns> + 'static,
        device: Arc<dyn BlockDevice>,
    ) -> Self {
        let reader = Arc::new(DeviceReader(Checked::new(device)));
        Self { record, runs: Box::new(runs), reader, _held: Some(held) }
    }

    /// Returns the disk's name.
    pub fn name(&self) -> &str {
        &self.record.name
    }

    /// Returns a text for users with the disk's name and, if there is one, the file below it.
    pub fn described(&self) -> String {
        let base = self.base().map_or_else(String::new, |base| format!(" over {}", base.path));
        format!("disk '{}'{base}", self.record.name)
    }

    /// Returns the disk's size.
    pub fn size_bytes(&self) -> u64 {
        self.record.size_bytes
    }

    /// Returns the reader of the disk, for any number of threads.
    pub fn reader(&self) -> Arc<dyn ReadAt> {
        Arc::clone(&self.reader)
    }

    pub(super) fn base(&self) -> Option<&BaseRecord> {
        self.record.base.as_ref()
    }

    /// Returns the ranges selected by `wanted`.
    pub(super) fn changes(&self, wanted: Wanted) -> Result<Vec<Change>> {
        let size_bytes = self.record.size_bytes;
        let mut changes = Vec::<Change>::new();
        let mut at = 0;
        loop {
            let FrozenRuns { runs, next_bytes } = (self.runs)(at)?;
            for run in runs {
                let end = at.checked_add(run.len_bytes).filter(|end| run.len_bytes > 0 && *end <= size_bytes);
                let Some(end) = end else { refuse!("the server reported more bytes than the disk has") };
                let zeros = match run.stored {
                    Stored::Own => Some(false),
                    Stored::OwnZeros => (wanted != Wanted::Bytes).then_some(true),
                    Stored::Base => (wanted != Wanted::AboveBase).then_some(false),
                    Stored::BaseZeros => None,
                };
                if let Some(zeros) = zeros {
                    match changes.last_mut() {
                        Some(last) if last.at + last.len == at && last.zeros == zeros => last.len += run.len_bytes,
                        _ => changes.push(Change { at, len: run.len_bytes, zeros }),
                    }
                }
                at = end;
            }
            match next_bytes {
                None if at == size_bytes => return Ok(changes),
                Some(next) if next == at => {}
                _ => refuse!("the server did not describe the whole disk"),
            }
        }
    }
}

impl fmt::Debug for Frozen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frozen").field("record", &self.record).finish_non_exhaustive()
    }
}

/// Which ranges of a disk are requested.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Stored data.
    Bytes,
    /// Stored data, and zeros that were written or discarded.
    BytesAndZeros,
    /// Everything that differs or may differ from the base.
    AboveBase,
}

/// Reads a disk in this process.
struct DeviceReader(Checked<Arc<dyn BlockDevice>>);

impl ReadAt for DeviceReader {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.0.size_bytes())
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read(offset, buf).map_err(io::Error::other)
    }
}

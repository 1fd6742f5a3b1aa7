//! Finds data and holes of files.

use std::sync::Arc;

use fuser::{Errno, ReplyLseek};
use pagefold_disk::BlockDevice;
use pagefold_executor::{Device, Operation, Started};

use crate::{open::OpenFile, read::errno};

/// The length that the receiving thread searches, if storage cannot delay it.
const FIRST_BYTES: u64 = 4 << 20;

/// After this length, a search checks whether it should end.
const STEP_BYTES: u64 = 1 << 30;

/// A search for the next data, or for the next hole. The end of a file counts as a hole.
pub(crate) struct Search {
    pub(crate) file: Arc<OpenFile>,
    pub(crate) from: u64,
    pub(crate) hole: bool,
    pub(crate) reply: ReplyLseek,
}

impl Search {
    /// Answers the request; a thread of the executor does a long search.
    pub(crate) fn run(mut self) {
        let started = self.file.client.access().activity.begin(Operation::Other, 0);
        match self.file.device().and_then(|device| self.first(&device)) {
            Ok(Some(found)) => self.send(started, Ok(found)),
            Ok(None) => {
                let file = Arc::clone(&self.file);
                file.hand_on(move |_| self.finish(started));
            }
            Err(errno) => self.send(started, Err(errno)),
        }
    }

    /// Searches a short range, if that needs no waiting.
    fn first(&mut self, device: &Device) -> Result<Option<u64>, Errno> {
        let size = device.size_bytes();
        if self.from >= size {
            return Err(Errno::ENXIO);
        }
        if device.may_block() { Ok(None) } else { self.look(device, size.min(self.from.saturating_add(FIRST_BYTES))) }
    }

    fn finish(mut self, started: Started) {
        let result = loop {
            // Looked up for each step: a search must not hold a removed device.
            let looked = self.file.device().and_then(|device| {
                let size = device.size_bytes();
                if self.from >= size {
                    return if self.hole { Ok(Some(size)) } else { Err(Errno::ENXIO) };
                }
                self.look(&device, size.min(self.from.saturating_add(STEP_BYTES)))
            });
            match looked {
                Ok(Some(found)) => break Ok(found),
                Ok(None) => {}
                Err(errno) => break Err(errno),
            }
        };
        self.send(started, result);
    }

    /// Searches from `from` to `end`, and sets `from` to where it stopped.
    fn look(&mut self, device: &Device, end: u64) -> Result<Option<u64>, Errno> {
        let (mut at, mut found, hole) = (self.from, None, self.hole);
        let looked = device.extents(self.from, end - self.from, &mut |extent| {
            if extent.hole == hole {
                found = Some(at);
                return false;
            }
            at += extent.len_bytes;
            true
        });
        looked.map_err(|error| errno(&error))?;
        self.from = end;
        Ok(found)
    }

    fn send(self, started: Started, result: Result<u64, Errno>) {
        let result = result.and_then(|found| i64::try_from(found).map_err(|_| Errno::EOVERFLOW));
        self.file.client.access().activity.end(started, result.is_ok());
        match result {
            Ok(found) => self.reply.offset(found),
            Err(errno) => self.reply.error(errno),
        }
    }
}

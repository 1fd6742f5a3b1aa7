//! Reads of files.

use std::sync::{Arc, Mutex, PoisonError};

use fuser::{Errno, ReplyData};
use memmap2::MmapMut;
use pagefold_disk::{BlockDevice, Error};
use pagefold_executor::{Device, Lent, Memory, Share};

use crate::open::OpenFile;

/// The shortest buffer, so that small reads of different lengths use the same ones.
const LEAST_BYTES: usize = 16 << 10;

/// How often a read begins again because its device was resized.
const MOST_TRIES: usize = 8;

/// Buffers of reads.
pub(crate) struct Buffers {
    share: Arc<Share>,
    /// For one read at a time if there is no memory for more. As long as the longest read.
    reserve: Mutex<MmapMut>,
    request_bytes: usize,
}

impl Buffers {
    /// Creates buffers for reads of at most `request_bytes`. The caller has counted those of the
    /// reserve; at most `limit_bytes` more are taken from `memory`.
    pub(crate) fn new(memory: &Arc<Memory>, request_bytes: usize, limit_bytes: usize) -> std::io::Result<Self> {
        let reserve = Mutex::new(MmapMut::map_anon(request_bytes)?);
        Ok(Self { share: Share::new(Arc::clone(memory), limit_bytes), reserve, request_bytes })
    }

    /// Answers a read.
    pub(crate) fn read(self: &Arc<Self>, file: &Arc<OpenFile>, offset: u64, size: u32, reply: ReplyData) {
        let len = match file.device() {
            Ok(device) => within(&device, offset, self.request_bytes.min(size as usize)),
            Err(errno) => return reply.error(errno),
        };
        if len == 0 {
            return reply.data(&[]);
        }
        let reading = Reading { file: Arc::clone(file), offset, len, reply };
        match file.client.access().rate.begin(len as u64) {
            None => self.begin(reading),
            Some(start) => {
                let buffers = Arc::clone(self);
                file.run_at(start, move || buffers.begin(reading));
            }
        }
    }

    /// Reads what is in memory here; a thread of the executor waits for the rest.
    fn begin(&self, reading: Reading) {
        let Some(mut buffer) = self.share.lend(reading.len.max(LEAST_BYTES)) else {
            let mut reserve = self.reserve.lock().unwrap_or_else(PoisonError::into_inner);
            return reading.finish(&mut reserve, 0);
        };
        let tried = reading.file.device().and_then(|device| {
            let tried = device.try_read(reading.offset, &mut buffer.as_mut()[..reading.len]);
            tried.or_else(|error| if is_outside(&error) { Ok(0) } else { Err(errno(&error)) })
        });
        match tried {
            Ok(filled) if filled == reading.len => reading.reply.data(&buffer.as_ref()[..filled]),
            Ok(filled) => reading.hand_on(buffer, filled),
            Err(errno) => reading.reply.error(errno),
        }
    }
}

/// A read in progress, of at least a byte.
struct Reading {
    file: Arc<OpenFile>,
    offset: u64,
    len: usize,
    reply: ReplyData,
}

impl Reading {
    /// Lets a thread of the executor read the rest; without one, reads it here.
    fn hand_on(self, mut buffer: Lent, filled: usize) {
        let client = Arc::clone(&self.file.client);
        if let Err(work) = client.hand_on(move |_| self.finish(buffer.as_mut(), filled)) {
            work(&mut []);
        }
    }

    /// Reads the rest, waiting for storage, and replies.
    fn finish(self, buffer: &mut [u8], mut filled: usize) {
        let mut len = self.len.min(buffer.len());
        let result = self.file.device().and_then(|device| {
            for _ in 0..MOST_TRIES {
                match device.read(self.offset + filled as u64, &mut buffer[filled..len]) {
                    Ok(()) => return Ok(()),
                    // The device shrank, and may have grown again since.
                    Err(error) if is_outside(&error) => len = within(&device, self.offset, self.len.min(buffer.len())),
                    Err(error) => return Err(errno(&error)),
                }
                filled = filled.min(len);
            }
            Err(Errno::EIO)
        });
        match result {
            Ok(()) => self.reply.data(&buffer[..len]),
            Err(errno) => self.reply.error(errno),
        }
    }
}

/// Returns how many of `len` bytes at `offset` are within the device.
pub(crate) fn within(device: &Device, offset: u64, len: usize) -> usize {
    let left = device.size_bytes().saturating_sub(offset);
    usize::try_from(left).map_or(len, |left| left.min(len))
}

fn is_outside(error: &Error) -> bool {
    matches!(error, Error::OutOfRange { .. })
}

/// Returns how the kernel reports an error to a reader.
pub(crate) fn errno(error: &Error) -> Errno {
    Errno::from_i32(error.errno())
}

//! Reads of files.
//!
//! A read is tried by the thread that received it, in one of as many buffers as there are such
//! threads. A read that has to wait for storage continues in another buffer, so that a file whose
//! storage hangs takes no buffer from others. A long read of a device that may wait is handed to
//! the executor without a try: that takes a fraction of the time of the try.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fuser::{Errno, ReplyData};
use memmap2::MmapMut;
use pagefold_disk::{BlockDevice, Error};
use pagefold_executor::{Device, Lent, Operation, Scratch, Started};

use crate::open::OpenFile;

/// How often a read is restarted because its device was resized.
const MOST_TRIES: usize = 8;
/// The longest read that is tried if its device may wait.
const MOST_TRIED_BYTES: usize = 64 << 10;

/// Buffers of reads, each for the longest one.
pub(crate) struct Buffers {
    /// For the threads that receive requests. The last one used is taken first, because it is in the
    /// CPU's caches.
    receiving: Mutex<Vec<MmapMut>>,
    /// For one long read at a time that waits for storage while there is no memory for it.
    reserve: Mutex<MmapMut>,
    request_bytes: usize,
}

impl Buffers {
    /// Creates buffers for `threads` threads, and one more. The caller has reserved the memory for
    /// all.
    pub(crate) fn new(threads: usize, request_bytes: usize) -> io::Result<Self> {
        let receiving = (0..threads).map(|_| MmapMut::map_anon(request_bytes)).collect::<io::Result<_>>()?;
        Ok(Self {
            receiving: Mutex::new(receiving),
            reserve: Mutex::new(MmapMut::map_anon(request_bytes)?),
            request_bytes,
        })
    }

    fn receiving(&self) -> MutexGuard<'_, Vec<MmapMut>> {
        self.receiving.lock().unwrap_or_else(PoisonError::into_inner)
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
        let started = file.client.access().activity.begin(Operation::Read, len as u64);
        let reading = Reading { buffers: Arc::clone(self), file: Arc::clone(file), offset, len, started, reply };
        match file.client.access().rate.begin(len as u64) {
            None => self.begin(reading),
            Some(start) => file.run_at(start, move || reading.finish(&mut Scratch::default(), None)),
        }
    }

    /// Reads what is in memory; a thread of the executor waits for the rest.
    fn begin(&self, reading: Reading) {
        if reading.len > MOST_TRIED_BYTES && reading.file.device().is_ok_and(|device| device.may_block()) {
            return reading.hand_on(&[]);
        }
        // There is a buffer for each thread that gets here.
        let Some(mut buffer) = self.receiving().pop() else { return reading.end(Err(Errno::ENOMEM)) };
        let tried = reading.file.device().and_then(|device| {
            let tried = device.try_read(reading.offset, &mut buffer[..reading.len]);
            tried.or_else(|error| if is_outside(&error) { Ok(0) } else { Err(errno(&error)) })
        });
        match tried {
            Ok(filled) if filled == reading.len => reading.end(Ok(&buffer[..filled])),
            Ok(filled) => reading.hand_on(&buffer[..filled]),
            Err(errno) => reading.end(Err(errno)),
        }
        self.receiving().push(buffer);
    }
}

/// A read in progress, of at least a byte.
struct Reading {
    buffers: Arc<Buffers>,
    file: Arc<OpenFile>,
    offset: u64,
    len: usize,
    started: Started,
    reply: ReplyData,
}

/// A buffer of this read's own, and how many of its bytes are read.
struct Begun {
    buffer: Lent,
    filled: usize,
}

impl Reading {
    fn end(self, result: Result<&[u8], Errno>) {
        self.file.client.access().activity.end(self.started, result.is_ok());
        match result {
            Ok(data) => self.reply.data(data),
            Err(errno) => self.reply.error(errno),
        }
    }

    /// Hands the rest after `start` to a thread of the executor or, without memory to keep `start`,
    /// everything.
    fn hand_on(self, start: &[u8]) {
        let begun = if start.is_empty() { None } else { self.file.client.share().lend(self.len) };
        let begun = begun.map(|mut buffer| {
            buffer.as_mut()[..start.len()].copy_from_slice(start);
            Begun { buffer, filled: start.len() }
        });
        let file = Arc::clone(&self.file);
        file.hand_on(move |scratch| self.finish(scratch, begun));
    }

    /// Reads the rest, waiting for storage, and replies.
    fn finish(self, scratch: &mut Scratch, begun: Option<Begun>) {
        if let Some(Begun { mut buffer, filled }) = begun {
            return self.finish_in(buffer.as_mut(), filled);
        }
        if let Some(buffer) = scratch.of(self.len) {
            return self.finish_in(buffer, 0);
        }
        if let Some(mut buffer) = self.file.client.share().lend(self.len) {
            return self.finish_in(buffer.as_mut(), 0);
        }
        let buffers = Arc::clone(&self.buffers);
        let mut reserve = buffers.reserve.lock().unwrap_or_else(PoisonError::into_inner);
        self.finish_in(&mut reserve, 0);
    }

    /// Like `finish`, in a buffer of at least `len` bytes, the first `filled` of which are read.
    fn finish_in(self, buffer: &mut [u8], mut filled: usize) {
        let mut len = self.len;
        let result = self.file.device().and_then(|device| {
            for _ in 0..MOST_TRIES {
                match device.read(self.offset + filled as u64, &mut buffer[filled..len]) {
                    Ok(()) => return Ok(()),
                    // The device shrank, and may have grown again since.
                    Err(error) if is_outside(&error) => len = within(&device, self.offset, self.len),
                    Err(error) => return Err(errno(&error)),
                }
                filled = filled.min(len);
            }
            Err(Errno::EIO)
        });
        self.end(result.map(|()| &buffer[..len]));
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

/// Returns the error number that a reader gets.
pub(crate) fn errno(error: &Error) -> Errno {
    Errno::from_i32(error.errno())
}

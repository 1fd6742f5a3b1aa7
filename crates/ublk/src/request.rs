//! Requests of a device: decoded, run, and answered.

use std::{
    os::unix::fs::FileExt,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use pagefold_disk::{BlockDevice, Error, Zeroes};
use pagefold_executor::{Client, Completion, Device, Failed, Operation, Started};
use rustix::io::Errno;

use crate::{
    abi::{self, MAX_DATA_BYTES, SECTOR_BYTES, request},
    queue::Queue,
    ring::Descriptor,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    /// Whether the change must be durable when the request is answered.
    Write {
        through: bool,
    },
    Flush,
    Discard,
    WriteZeroes(Zeroes),
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) kind: Kind,
    pub(crate) offset: u64,
    pub(crate) len_bytes: u64,
}

impl Request {
    /// Decodes a request. Fails with the number of an error.
    pub(crate) fn decode(descriptor: Descriptor) -> Result<Self, Errno> {
        let Descriptor { kind_and_flags, sectors, first_sector } = descriptor;
        let has = |flag| kind_and_flags & flag != 0;
        let kind = match kind_and_flags & request::KIND {
            request::READ => Kind::Read,
            request::WRITE => Kind::Write { through: has(request::FUA) },
            // The position of a flush has no meaning.
            request::FLUSH => return Ok(Self { kind: Kind::Flush, offset: 0, len_bytes: 0 }),
            request::DISCARD => Kind::Discard,
            request::WRITE_ZEROES if has(request::NO_UNMAP) => Kind::WriteZeroes(Zeroes::Allocated),
            request::WRITE_ZEROES => Kind::WriteZeroes(Zeroes::MayUnmap),
            _ => return Err(Errno::OPNOTSUPP),
        };
        let offset = first_sector.checked_mul(SECTOR_BYTES).ok_or(Errno::INVAL)?;
        let len_bytes = u64::from(sectors) * SECTOR_BYTES;
        if matches!(kind, Kind::Read | Kind::Write { .. }) && len_bytes > MAX_DATA_BYTES as u64 {
            return Err(Errno::INVAL);
        }
        Ok(Self { kind, offset, len_bytes })
    }

    /// Returns the operation as which the request is counted, and the bytes of its range.
    fn operation(&self) -> (Operation, u64) {
        let operation = match self.kind {
            Kind::Read => Operation::Read,
            Kind::Write { .. } => Operation::Write,
            Kind::Flush => Operation::Flush,
            Kind::Discard => Operation::Discard,
            Kind::WriteZeroes(_) => Operation::WriteZeroes,
        };
        (operation, self.len_bytes)
    }

    /// Returns the number of bytes that the request moves.
    pub(crate) fn data_bytes(&self) -> usize {
        // At most [`MAX_DATA_BYTES`].
        if matches!(self.kind, Kind::Read | Kind::Write { .. }) { self.len_bytes as usize } else { 0 }
    }
}

/// A request's answer, given once: EIO when this is dropped without one.
pub(crate) struct Reply {
    queue: Arc<Queue>,
    tag: u16,
    len_bytes: u64,
    /// Whether the device is flushed before success is reported.
    flushes: bool,
    started: Started,
    is_answered: bool,
}

impl Reply {
    pub(crate) fn new(queue: &Arc<Queue>, tag: u16, request: &Request) -> Self {
        let flushes = matches!(request.kind, Kind::Write { through: true });
        let (operation, len_bytes) = request.operation();
        let started = queue.client().access().activity.begin(operation, len_bytes);
        Self { queue: Arc::clone(queue), tag, len_bytes, flushes, started, is_answered: false }
    }

    fn answer(&mut self, result: i32) {
        self.is_answered = true;
        self.queue.client().access().activity.end(self.started, result >= 0);
        self.queue.answer(self.tag, result);
    }

    /// Passes the data of a read on, or its error.
    pub(crate) fn read(mut self, result: Result<&[u8], Error>) {
        match result {
            Ok(data) => match self.queue.file().write_all_at(data, abi::data_at(self.queue.number(), self.tag)) {
                Ok(()) => self.succeed(),
                // The device was stopped.
                Err(_) => self.answer(-Errno::IO.raw_os_error()),
            },
            Err(error) => self.answer(-error.errno()),
        }
    }

    /// Fetches the data of a write. If that fails, answers the request and returns false.
    pub(crate) fn receive(&mut self, data: &mut [u8]) -> bool {
        let is_there = self.queue.file().read_exact_at(data, abi::data_at(self.queue.number(), self.tag)).is_ok();
        if !is_there {
            self.answer(-Errno::IO.raw_os_error());
        }
        is_there
    }

    /// Reports how a request without data has ended.
    pub(crate) fn finish(mut self, result: Result<(), Error>) {
        self.done(result.map_err(Failed::from));
    }

    fn succeed(&mut self) {
        // Data of a request, or at most 1 GiB.
        self.answer(i32::try_from(self.len_bytes).unwrap_or(i32::MAX));
    }
}

impl Completion for Reply {
    fn client(&self) -> &Arc<Client> {
        self.queue.client()
    }

    fn is_ending(&self) -> bool {
        self.queue.has_ended().load(Relaxed) || self.client().has_ended()
    }

    fn done(&mut self, result: Result<(), Failed>) {
        let result = result.and_then(|()| match self.queue.client().device() {
            Some(device) if self.flushes => Ok(device.flush()?),
            _ => Ok(()),
        });
        match result {
            Ok(()) => self.succeed(),
            Err(failed) => self.answer(-failed.errno()),
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.is_answered {
            self.answer(-Errno::IO.raw_os_error());
        }
    }
}

/// Reads into the start of `buf`, and replies with the data.
pub(crate) fn read(device: &Device, request: &Request, buf: &mut [u8], reply: Reply) {
    let data = &mut buf[..request.data_bytes()];
    let result = device.read(request.offset, data);
    reply.read(result.map(|()| &*data));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(kind_and_flags: u32, sectors: u32, first_sector: u64) -> Result<Request, Errno> {
        Request::decode(Descriptor { kind_and_flags, sectors, first_sector })
    }

    #[test]
    fn what_the_driver_says_is_checked() {
        let read = decode(request::READ, 8, 3).expect("a request");
        assert_eq!((read.kind, read.offset, read.data_bytes()), (Kind::Read, 1536, 4096));
        let write = decode(request::WRITE | request::FUA, 256, 0).expect("a request");
        assert_eq!((write.kind, write.data_bytes()), (Kind::Write { through: true }, MAX_DATA_BYTES));
        let zeroes = decode(request::WRITE_ZEROES | request::NO_UNMAP, u32::MAX, 1).expect("a request");
        assert_eq!((zeroes.kind, zeroes.data_bytes()), (Kind::WriteZeroes(Zeroes::Allocated), 0));
        let flush = decode(request::FLUSH, 0, u64::MAX).expect("a request");
        assert_eq!((flush.kind, flush.offset, flush.data_bytes()), (Kind::Flush, 0, 0));
        assert_eq!(decode(request::READ, 257, 0), Err(Errno::INVAL));
        assert_eq!(decode(request::WRITE, u32::MAX, 0), Err(Errno::INVAL));
        assert_eq!(decode(request::DISCARD, 1, u64::MAX / 2), Err(Errno::INVAL));
        for kind in [4, 6, 9, 200, 255] {
            assert_eq!(decode(kind, 0, 0), Err(Errno::OPNOTSUPP), "{kind}");
        }
    }
}

//! Requests of the guest's driver: chains of descriptors, decoded, checked and run.
//!
//! ```text
//! readable: type (4) | reserved (4) | sector (8) | data to write, or ranges to discard
//! writable: data that was read | status (1)
//! ```
//!
//! Descriptors may cut a request anywhere. The guest can change its memory at any time, so each word
//! is read once and then checked, and data is copied before a device sees it.

use std::sync::Arc;

use pagefold_disk::{BlockDevice, Error, Read, Waits, Zeroes};
use pagefold_executor::{Activity, Attempt, Change, Device, Failed, Operation, Started, Storage};
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Address, Bytes, GuestAddress, GuestMemory as _, Permissions};

use crate::memory::GuestMemory;

/// Length of a sector, the unit of positions and sizes.
pub(crate) const SECTOR_BYTES: u64 = 512;

/// Maximum number of data segments of a request, which the device reports. With the header and the
/// status, a request fills a queue of 128 descriptors.
pub(crate) const MAX_SEGMENTS: u32 = 126;
/// Maximum number of descriptors in an indirect table.
const MAX_INDIRECT: u32 = 1024;
/// Maximum length of one request's data.
const MAX_DATA_BYTES: u64 = 1 << 30;
/// Sectors of one range to discard or to fill with zeros: 1 GiB.
pub(crate) const MAX_DISCARD_SECTORS: u32 = 1 << 21;
/// Maximum number of such ranges in one request.
pub(crate) const MAX_DISCARD_SEGMENTS: u32 = 32;
const DISCARD_SEGMENT_BYTES: u64 = 16;
const UNMAP: u32 = 1;
const HEADER_BYTES: u64 = 16;
/// Length of the answer to a request for the disk's identifier.
const ID_BYTES: usize = 20;

const TYPE_READ: u32 = 0;
const TYPE_WRITE: u32 = 1;
const TYPE_FLUSH: u32 = 4;
const TYPE_ID: u32 = 8;
const TYPE_DISCARD: u32 = 11;
const TYPE_WRITE_ZEROES: u32 = 13;

/// A request's result, as its status byte encodes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Status {
    Ok = 0,
    Failed = 1,
    Unsupported = 2,
}

/// A chain of descriptors without a byte for a status, so that the request cannot be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("a descriptor's number is beyond the end of its table")]
    Index,
    #[error("a chain of descriptors is a loop, or too long")]
    TooLong,
    #[error("a descriptor is outside of the guest's memory")]
    Table,
    #[error("an indirect table is within another, has a successor, or its length is not that of descriptors")]
    Indirect,
    #[error("a readable descriptor follows a writable one")]
    Order,
    #[error("a request has no byte in the guest's memory for its status")]
    NoStatus,
}

/// Where the descriptors of a queue are.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) memory: Arc<GuestMemory>,
    pub(crate) start: GuestAddress,
    pub(crate) len: u16,
}

/// A part of the guest's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    start: GuestAddress,
    len_bytes: u32,
}

/// A range to discard or to fill with zeros.
#[derive(Clone, Copy, Debug)]
struct Range {
    offset: u64,
    len_bytes: u64,
    unmap: bool,
}

#[derive(Debug)]
enum Kind {
    Read(u64),
    Write(u64),
    Flush,
    Identify,
    Discard(Vec<Range>),
    WriteZeroes(Vec<Range>),
    /// The request fails before it begins.
    Refused(Status),
}

/// A request that has been taken from a queue.
#[derive(Debug)]
pub(crate) struct Request {
    /// The number of its first descriptor.
    pub(crate) head: u16,
    kind: Kind,
    data: Vec<Segment>,
    data_bytes: u64,
    status: GuestAddress,
    progress: Progress,
    /// `None` once it is finished.
    started: Option<Started>,
}

/// How much of a request is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Ranges that are done.
    ranges: u32,
    /// Bytes of the data, or of the next range.
    bytes: u64,
}

/// Where a request stopped.
#[derive(Debug)]
pub(crate) enum Ran {
    /// At its end.
    Done(Status),
    /// Where it would have to wait for storage, and may not.
    Blocks,
    /// Where it found no room.
    NoRoom(Arc<Waits>),
}

/// How a request is run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mode {
    /// Whether it may wait for storage.
    pub(crate) may_wait: bool,
    /// A request with more data is run only if it may wait.
    pub(crate) most_bytes: u64,
    /// Whether the driver expects writes to be durable when they are done.
    pub(crate) write_through: bool,
}

/// Appends the segments of a chain, readable ones first, and returns how many are readable.
fn walk(table: &Table, head: u16, segments: &mut Vec<Segment>) -> Result<usize, Malformed> {
    let (mut start, mut entries, mut index) = (table.start, u32::from(table.len), u32::from(head));
    let (mut left, mut is_indirect, mut readable) = (entries, false, None);
    loop {
        if index >= entries {
            return Err(Malformed::Index);
        }
        left = left.checked_sub(1).ok_or(Malformed::TooLong)?;
        let at = start.checked_add(u64::from(index) * size_of::<Descriptor>() as u64).ok_or(Malformed::Table)?;
        let descriptor: Descriptor = table.memory.read_obj(at).map_err(|_| Malformed::Table)?;
        if descriptor.refers_to_indirect_table() {
            let size = size_of::<Descriptor>() as u32;
            entries = descriptor.len() / size;
            if is_indirect || descriptor.has_next() || !descriptor.len().is_multiple_of(size) || entries == 0 {
                return Err(Malformed::Indirect);
            }
            if entries > MAX_INDIRECT {
                return Err(Malformed::TooLong);
            }
            (start, index, left, is_indirect) = (descriptor.addr(), 0, entries, true);
            continue;
        }
        match (descriptor.is_write_only(), readable) {
            (true, None) => readable = Some(segments.len()),
            (false, Some(_)) => return Err(Malformed::Order),
            _ => {}
        }
        if descriptor.len() > 0 {
            segments.push(Segment { start: descriptor.addr(), len_bytes: descriptor.len() });
        }
        if !descriptor.has_next() {
            return Ok(readable.unwrap_or(segments.len()));
        }
        index = u32::from(descriptor.next());
    }
}

fn total_bytes(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| u64::from(segment.len_bytes)).sum()
}

/// Copies bytes of segments, `skip` bytes after their start. Fails if the segments are too short or
/// not in the guest's memory.
fn each_piece(
    segments: &[Segment],
    mut skip: u64,
    mut copy: impl FnMut(GuestAddress, usize) -> Option<()>,
    len_bytes: usize,
) -> Option<()> {
    let mut left = len_bytes;
    for segment in segments {
        if left == 0 {
            break;
        }
        let len = u64::from(segment.len_bytes);
        if skip >= len {
            skip -= len;
            continue;
        }
        let piece = usize::try_from(len - skip).ok()?.min(left);
        copy(segment.start.checked_add(skip)?, piece)?;
        (skip, left) = (0, left - piece);
    }
    (left == 0).then_some(())
}

fn flush(device: &Device, mode: Mode) -> Result<Ran, Error> {
    let is_flushed = if mode.may_wait { device.flush().map(|()| true) } else { device.try_flush() }?;
    Ok(if is_flushed { Ran::Done(Status::Ok) } else { Ran::Blocks })
}

/// Runs a change, and adds what is done of it to `done_bytes`. Returns where it stopped.
fn attempt(mut change: Change<&[u8]>, done_bytes: &mut u64, device: &Device, mode: Mode) -> Result<Ran, Error> {
    let storage = if mode.may_wait { Storage::Wait } else { Storage::DoNotWait };
    let all_bytes = change.left_bytes();
    let result = change.attempt(Some(device), storage);
    *done_bytes += all_bytes - change.left_bytes();
    match result {
        Attempt::Done(Ok(())) => Ok(Ran::Done(Status::Ok)),
        Attempt::Done(Err(Failed::Device(error))) => Err(error),
        Attempt::Done(Err(_)) => Ok(Ran::Done(Status::Failed)),
        Attempt::NoRoom(waits) => Ok(Ran::NoRoom(waits)),
        Attempt::Blocks => Ok(Ran::Blocks),
    }
}

fn copy_in(memory: &GuestMemory, segments: &[Segment], skip: u64, buf: &mut [u8]) -> Option<()> {
    let (mut at, len) = (0, buf.len());
    let copy = |start, len| {
        let to = buf.get_mut(at..at + len)?;
        at += len;
        memory.read_slice(to, start).ok()
    };
    each_piece(segments, skip, copy, len)
}

fn copy_out(memory: &GuestMemory, segments: &[Segment], skip: u64, buf: &[u8]) -> Option<()> {
    let mut at = 0;
    let copy = |start, len| {
        let from = buf.get(at..at + len)?;
        at += len;
        memory.write_slice(from, start).ok()
    };
    each_piece(segments, skip, copy, buf.len())
}

impl Request {
    /// Decodes the chain that begins with `head`. `segments` is empty; its allocation is used.
    pub(crate) fn decode(table: &Table, head: u16, mut segments: Vec<Segment>) -> Result<Self, Malformed> {
        let readable = walk(table, head, &mut segments)?;
        // The status is the last writable byte.
        let last = segments.get_mut(readable..).and_then(<[_]>::last_mut).ok_or(Malformed::NoStatus)?;
        last.len_bytes -= 1;
        let status = last.start.checked_add(u64::from(last.len_bytes)).ok_or(Malformed::NoStatus)?;
        if !table.memory.check_range(status, 1, Permissions::Write) {
            return Err(Malformed::NoStatus);
        }
        let mut request = Self {
            head,
            kind: Kind::Refused(Status::Failed),
            data: segments,
            data_bytes: 0,
            status,
            progress: Progress::default(),
            started: None,
        };
        if let Some(kind) = request.decode_kind(&table.memory, readable) {
            request.kind = kind;
        }
        Ok(request)
    }

    /// Continues a change where an earlier attempt stopped. The driver must not have changed the
    /// chain since; if it has, the request begins again unless it is as long as it was.
    pub(crate) fn resume(&mut self, progress: Progress) {
        let Progress { ranges, bytes } = progress;
        let is_within = match &self.kind {
            Kind::Write(_) => ranges == 0 && bytes <= self.data_bytes,
            Kind::Discard(all) | Kind::WriteZeroes(all) => {
                let next_bytes = usize::try_from(ranges).ok().and_then(|next| all.get(next)).map(|next| next.len_bytes);
                next_bytes.is_some_and(|next_bytes| bytes <= next_bytes)
            }
            _ => false,
        };
        if is_within {
            self.progress = progress;
        }
    }

    /// Counts the request, unless it is taken `again`.
    pub(crate) fn start(&mut self, activity: &Activity, again: bool) {
        let range_bytes = |ranges: &[Range]| ranges.iter().map(|range| range.len_bytes).sum();
        let (operation, len_bytes) = match &self.kind {
            Kind::Read(_) => (Operation::Read, self.data_bytes),
            Kind::Write(_) => (Operation::Write, self.data_bytes),
            Kind::Flush => (Operation::Flush, 0),
            Kind::Discard(ranges) => (Operation::Discard, range_bytes(ranges)),
            Kind::WriteZeroes(ranges) => (Operation::WriteZeroes, range_bytes(ranges)),
            Kind::Identify | Kind::Refused(_) => (Operation::Other, 0),
        };
        let started = if again { Activity::again(operation, len_bytes) } else { activity.begin(operation, len_bytes) };
        self.started = Some(started);
    }

    /// Returns how much of it is done.
    pub(crate) fn progress(&self) -> Progress {
        self.progress
    }

    /// Returns the action to run, and keeps only the data's segments.
    fn decode_kind(&mut self, memory: &GuestMemory, readable: usize) -> Option<Kind> {
        let mut header = [0; HEADER_BYTES as usize];
        let (from_driver, to_driver) = self.data.split_at(readable);
        if total_bytes(from_driver) < HEADER_BYTES {
            return None;
        }
        copy_in(memory, from_driver, 0, &mut header)?;
        let kind = u32::from_le_bytes(header[..4].try_into().ok()?);
        let sector = u64::from_le_bytes(header[8..].try_into().ok()?);
        let is_read = matches!(kind, TYPE_READ | TYPE_ID);
        let all_bytes = if is_read { total_bytes(to_driver) } else { total_bytes(from_driver) - HEADER_BYTES };
        if is_read {
            self.data.drain(..readable);
        } else {
            self.data.truncate(readable);
            self.cut_header();
        }
        self.data_bytes = all_bytes;
        let access = if is_read { Permissions::Write } else { Permissions::Read };
        let is_within = |part: &Segment| memory.check_range(part.start, part.len_bytes as usize, access);
        if all_bytes > MAX_DATA_BYTES || !self.data.iter().all(is_within) {
            return None;
        }
        let offset = || {
            let offset = sector.checked_mul(SECTOR_BYTES)?;
            all_bytes.is_multiple_of(SECTOR_BYTES).then_some(offset)
        };
        Some(match kind {
            TYPE_READ => Kind::Read(offset()?),
            TYPE_WRITE => Kind::Write(offset()?),
            TYPE_FLUSH => Kind::Flush,
            TYPE_ID => Kind::Identify,
            TYPE_DISCARD => self.decode_ranges(memory, 0).map_or_else(Kind::Refused, Kind::Discard),
            TYPE_WRITE_ZEROES => self.decode_ranges(memory, UNMAP).map_or_else(Kind::Refused, Kind::WriteZeroes),
            _ => Kind::Refused(Status::Unsupported),
        })
    }

    fn cut_header(&mut self) {
        let mut left = HEADER_BYTES;
        for segment in &mut self.data {
            let cut = left.min(u64::from(segment.len_bytes));
            segment.start = GuestAddress(segment.start.0.saturating_add(cut));
            // At most 16.
            segment.len_bytes -= cut as u32;
            left -= cut;
        }
        self.data.retain(|segment| segment.len_bytes > 0);
    }

    /// Returns the ranges of a request to discard, or to fill with zeros, which may have these flags.
    fn decode_ranges(&self, memory: &GuestMemory, flags: u32) -> Result<Vec<Range>, Status> {
        let count = self.data_bytes / DISCARD_SEGMENT_BYTES;
        if count == 0
            || count > u64::from(MAX_DISCARD_SEGMENTS)
            || !self.data_bytes.is_multiple_of(DISCARD_SEGMENT_BYTES)
        {
            return Err(Status::Failed);
        }
        let mut ranges = Vec::with_capacity(count as usize);
        for number in 0..count {
            let mut bytes = [0; DISCARD_SEGMENT_BYTES as usize];
            copy_in(memory, &self.data, number * DISCARD_SEGMENT_BYTES, &mut bytes).ok_or(Status::Failed)?;
            let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
            let sector = u64::from(word(0)) | u64::from(word(4)) << 32;
            if word(12) & !flags != 0 {
                return Err(Status::Unsupported);
            }
            if word(8) > MAX_DISCARD_SECTORS {
                return Err(Status::Failed);
            }
            let offset = sector.checked_mul(SECTOR_BYTES).ok_or(Status::Failed)?;
            let len_bytes = u64::from(word(8)) * SECTOR_BYTES;
            ranges.push(Range { offset, len_bytes, unmap: word(12) & UNMAP != 0 });
        }
        Ok(ranges)
    }

    /// Returns the bytes that count against an export's rate.
    pub(crate) fn cost_bytes(&self) -> u64 {
        if matches!(self.kind, Kind::Read(_) | Kind::Write(_)) { self.data_bytes } else { 0 }
    }

    /// Returns where a read begins.
    pub(crate) fn read_offset(&self) -> Option<u64> {
        if let Kind::Read(offset) = self.kind { offset.checked_add(self.progress.bytes) } else { None }
    }

    /// Returns how many bytes of data are left.
    pub(crate) fn left_bytes(&self) -> u64 {
        match self.kind {
            Kind::Read(_) | Kind::Write(_) => self.data_bytes - self.progress.bytes,
            _ => 0,
        }
    }

    /// Returns its segments' allocation.
    pub(crate) fn into_segments(mut self) -> Vec<Segment> {
        self.data.clear();
        self.data
    }

    /// Fails unless all that it reads or writes is within the device, so that a request that is
    /// partly outside changes nothing.
    fn check(&self, device: &Device) -> Result<(), Error> {
        let size_bytes = device.size_bytes();
        let check = |offset: u64, len_bytes: u64| match offset.checked_add(len_bytes) {
            Some(end) if end <= size_bytes => Ok(()),
            _ => Err(Error::OutOfRange { offset, len_bytes, size_bytes }),
        };
        match &self.kind {
            Kind::Read(offset) | Kind::Write(offset) => check(*offset, self.data_bytes),
            Kind::Discard(ranges) | Kind::WriteZeroes(ranges) => {
                ranges.iter().try_for_each(|range| check(range.offset, range.len_bytes))
            }
            _ => Ok(()),
        }
    }

    /// Runs the request, with `buf` for its data. Finished parts are not repeated: another request
    /// may have changed them since.
    pub(crate) fn run(
        &mut self,
        device: &Device,
        name: &dyn Fn() -> Arc<str>,
        memory: &GuestMemory,
        buf: &mut [u8],
        mode: Mode,
    ) -> Ran {
        self.try_run(device, name, memory, buf, mode).unwrap_or(Ran::Done(Status::Failed))
    }

    fn try_run(
        &mut self,
        device: &Device,
        name: &dyn Fn() -> Arc<str>,
        memory: &GuestMemory,
        buf: &mut [u8],
        mode: Mode,
    ) -> Result<Ran, Error> {
        // Checked again when the request continues: the driver may have changed the chain since.
        self.check(device)?;
        match &self.kind {
            Kind::Refused(status) => Ok(Ran::Done(*status)),
            Kind::Read(offset) => self.read(*offset, device, memory, buf, mode),
            Kind::Write(offset) => self.write(*offset, device, memory, buf, mode),
            Kind::Flush => flush(device, mode),
            Kind::Identify => {
                let mut id = [0; ID_BYTES];
                id.iter_mut().zip(name().bytes()).for_each(|(to, from)| *to = from);
                let len = usize::try_from(self.data_bytes).unwrap_or(ID_BYTES).min(ID_BYTES);
                copy_out(memory, &self.data, 0, &id[..len]).ok_or_else(gone)?;
                Ok(Ran::Done(Status::Ok))
            }
            Kind::Discard(_) | Kind::WriteZeroes(_) => self.clear(device, mode),
        }
    }

    /// Returns the length of the next piece of the data, which `buf` holds; `None` if what is left is too
    /// much without waiting.
    fn piece(&self, buf: &[u8], mode: Mode) -> Option<usize> {
        let left = self.left_bytes();
        let fits = mode.may_wait || left <= mode.most_bytes;
        fits.then(|| usize::try_from(left).map_or(buf.len(), |left| left.min(buf.len())))
    }

    fn read(
        &mut self,
        offset: u64,
        device: &Device,
        memory: &GuestMemory,
        buf: &mut [u8],
        mode: Mode,
    ) -> Result<Ran, Error> {
        while self.left_bytes() > 0 {
            let Some(len) = self.piece(buf, mode) else { return Ok(Ran::Blocks) };
            let (at, part) = (offset + self.progress.bytes, &mut buf[..len]);
            let got = if mode.may_wait { device.read(at, part).map(|()| len) } else { device.try_read(at, part) }?;
            copy_out(memory, &self.data, self.progress.bytes, &part[..got]).ok_or_else(gone)?;
            self.progress.bytes += got as u64;
            if got < len {
                return Ok(Ran::Blocks);
            }
        }
        Ok(Ran::Done(Status::Ok))
    }

    fn write(
        &mut self,
        offset: u64,
        device: &Device,
        memory: &GuestMemory,
        buf: &mut [u8],
        mode: Mode,
    ) -> Result<Ran, Error> {
        while self.left_bytes() > 0 {
            let Some(len) = self.piece(buf, mode) else { return Ok(Ran::Blocks) };
            let (at, part) = (offset + self.progress.bytes, &mut buf[..len]);
            copy_in(memory, &self.data, self.progress.bytes, part).ok_or_else(gone)?;
            match attempt(Change::write(at, &*part), &mut self.progress.bytes, device, mode)? {
                Ran::Done(Status::Ok) => {}
                stopped => return Ok(stopped),
            }
        }
        if mode.write_through { flush(device, mode) } else { Ok(Ran::Done(Status::Ok)) }
    }

    fn clear(&mut self, device: &Device, mode: Mode) -> Result<Ran, Error> {
        let (ranges, discards) = match &self.kind {
            Kind::Discard(ranges) => (ranges, true),
            Kind::WriteZeroes(ranges) => (ranges, false),
            _ => return Ok(Ran::Done(Status::Ok)),
        };
        let progress = &mut self.progress;
        while let Some(&Range { offset, len_bytes, unmap }) = ranges.get(progress.ranges as usize) {
            let (at, left_bytes) = (offset + progress.bytes, len_bytes - progress.bytes);
            if !mode.may_wait && left_bytes > mode.most_bytes {
                return Ok(Ran::Blocks);
            }
            let zeroes = if unmap { Zeroes::MayUnmap } else { Zeroes::Allocated };
            let change =
                if discards { Change::discard(at, left_bytes) } else { Change::write_zeroes(at, left_bytes, zeroes) };
            match attempt(change, &mut progress.bytes, device, mode)? {
                Ran::Done(Status::Ok) => *progress = Progress { ranges: progress.ranges + 1, bytes: 0 },
                stopped => return Ok(stopped),
            }
        }
        Ok(Ran::Done(Status::Ok))
    }

    /// Counts the result, and finishes the request.
    pub(crate) fn end(&mut self, activity: &Activity, memory: &GuestMemory, status: Status) -> u32 {
        if let Some(started) = self.started.take() {
            activity.end(started, status == Status::Ok);
        }
        self.finish(memory, status)
    }

    /// Writes the status, and returns how many bytes of the chain were written.
    pub(crate) fn finish(&self, memory: &GuestMemory, status: Status) -> u32 {
        // The address was checked. If the memory is gone since, no driver waits for the status.
        let _ = memory.write_obj(status as u8, self.status);
        match (&self.kind, status) {
            (Kind::Read(_), Status::Ok) => u32::try_from(self.data_bytes + 1).unwrap_or(u32::MAX),
            (Kind::Identify, Status::Ok) => self.data_bytes.min(ID_BYTES as u64) as u32 + 1,
            _ => 1,
        }
    }
}

/// Reads what is left of several requests, whose data fits into `buf`, and returns each one's result.
pub(crate) fn read_together(
    requests: &mut [Request],
    device: &Device,
    memory: &GuestMemory,
    mut buf: &mut [u8],
) -> Vec<Result<(), Error>> {
    let mut reads = Vec::with_capacity(requests.len());
    for request in &*requests {
        let len = usize::try_from(request.left_bytes()).map_or(buf.len(), |left| left.min(buf.len()));
        let (part, rest) = buf.split_at_mut(len);
        buf = rest;
        reads.push(Read::new(request.read_offset().unwrap_or(u64::MAX), part));
    }
    device.read_together(&mut reads);
    let finish = |(request, read): (&mut Request, Read<'_>)| {
        read.result?;
        copy_out(memory, &request.data, request.progress.bytes, read.buf).ok_or_else(gone)?;
        request.progress.bytes += read.buf.len() as u64;
        Ok(())
    };
    requests.iter_mut().zip(reads).map(finish).collect()
}

/// The error of a request whose memory cannot be accessed although it was checked.
fn gone() -> Error {
    Error::Io(std::io::Error::other("the guest's memory is gone"))
}

#[cfg(test)]
mod tests {
    use pagefold_disk::{Pool, PoolConfig, RamDisk};
    use pagefold_executor::Export;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;
    use crate::memory::{Description, Regions};

    #[test]
    fn a_request_that_the_driver_changed_since_is_checked_again() {
        let pool = Pool::new(PoolConfig::default()).expect("a pool");
        let disk = RamDisk::new(&pool, 1 << 20).expect("a disk");
        let access = Export::new("disk", Arc::new(disk)).open().expect("an export");
        let device = access.device().expect("a device");
        let file = memfd_create("memory", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a memfd");
        ftruncate(&file, 0x10_000).expect("a length");
        let mut regions = Regions::default();
        let region = Description { guest: 0, len_bytes: 0x10_000, user: 1 << 40, offset: 0 };
        regions.add(region, file).expect("a region");
        let memory = regions.memory().expect("memory");
        let range = |offset| vec![Range { offset, len_bytes: 4096, unmap: false }];
        let last = u64::MAX - 511;
        let mode = Mode { may_wait: true, most_bytes: u64::MAX, write_through: false };
        for kind in [Kind::Write(last), Kind::Discard(range(last)), Kind::WriteZeroes(range(1 << 20))] {
            let mut request = Request {
                head: 0,
                kind,
                data: vec![Segment { start: GuestAddress(0), len_bytes: 4096 }],
                data_bytes: 4096,
                status: GuestAddress(4096),
                progress: Progress::default(),
                started: None,
            };
            request.resume(Progress { ranges: 0, bytes: 1024 });
            assert_eq!(request.progress().bytes, 1024);
            let ran = request.run(&device, &|| "disk".into(), &memory, &mut [0; 4096], mode);
            assert!(matches!(ran, Ran::Done(Status::Failed)), "{request:?}: {ran:?}");
        }
    }
}

//! The log of requests that a queue has taken and not answered, in memory that the frontend keeps.
//!
//! A frontend that reconnects, to this server or to its successor, passes the log. Listed requests
//! are run again, in the order in which they were taken.
//!
//! ```text
//! each queue, from a multiple of 64 bytes:
//!  0 features (8) | 8 version (2) | 10 descriptors (2) | 12 last_head (2) | 14 used_index (2)
//! 16 for each descriptor: in flight (1) | 5 unused | next (2) | counter (8)
//! ```
//!
//! Giving an answer takes several steps, so that after a crash it is known whether it was given:
//!
//! ```text
//! last_head = head;  used ring;  in flight of head = 0;  used_index = index of the used ring
//! ```

use std::{
    fs::File,
    io,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::Ordering::{Acquire, Relaxed, Release},
    },
};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

use crate::{
    config::{MAX_QUEUE_SIZE, MAX_QUEUES},
    memory::is_sealed,
    state::LogsState,
    truncated::Listed,
};

const HEADER_BYTES: usize = 16;
const RECORD_BYTES: usize = 16;
const ALIGNMENT: usize = 64;
const VERSION: u16 = 1;

/// The logs of all queues of a frontend.
#[derive(Clone, Debug)]
pub(crate) struct Logs {
    memory: Arc<Mapped>,
    queues: u16,
    queue_size: u16,
}

/// A mapping of logs.
#[derive(Debug)]
struct Mapped {
    /// `None` if the file cannot become shorter. Dropped before the mapping.
    _listed: Option<Listed>,
    region: MmapRegion<()>,
}

/// Why a log cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogError {
    #[error(
        "a log of requests for {queues} queues of {queue_size} descriptors: at most {MAX_QUEUES} of {MAX_QUEUE_SIZE}"
    )]
    Shape { queues: u16, queue_size: u16 },
    #[error("a log of requests of {0} bytes is too short")]
    Short(u64),
    #[error("cannot map the log of requests: {0}")]
    Map(#[from] io::Error),
}

impl From<rustix::io::Errno> for LogError {
    fn from(error: rustix::io::Errno) -> Self {
        Self::Map(error.into())
    }
}

/// Returns the bytes of one queue's log.
fn log_bytes(queue_size: u16) -> usize {
    (HEADER_BYTES + RECORD_BYTES * usize::from(queue_size)).next_multiple_of(ALIGNMENT)
}

fn logs_bytes(queues: u16, queue_size: u16) -> Result<u64, LogError> {
    if !(1..=MAX_QUEUES).contains(&queues) || !(1..=MAX_QUEUE_SIZE).contains(&queue_size) {
        return Err(LogError::Shape { queues, queue_size });
    }
    Ok((usize::from(queues) * log_bytes(queue_size)) as u64)
}

impl Logs {
    /// Creates empty logs. Returns the file that the frontend keeps, and its length.
    pub(crate) fn create(queues: u16, queue_size: u16) -> Result<(OwnedFd, u64), LogError> {
        let len_bytes = logs_bytes(queues, queue_size)?;
        let file = memfd_create("vhost-user in flight", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, len_bytes)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
        let logs = Self::map(file.try_clone()?, 0, len_bytes, queues, queue_size)?;
        for queue in 0..queues {
            if let Some(log) = logs.of_queue(queue) {
                log.store(8, VERSION);
                log.store(10, queue_size);
            }
        }
        Ok((file, len_bytes))
    }

    /// Maps logs that a frontend kept.
    pub(crate) fn map(
        file: OwnedFd,
        offset: u64,
        len_bytes: u64,
        queues: u16,
        queue_size: u16,
    ) -> Result<Self, LogError> {
        let needed = logs_bytes(queues, queue_size)?;
        let can_shrink = !is_sealed(&file);
        let file_bytes = u64::try_from(fstat(&file)?.st_size).unwrap_or_default();
        let end = offset.checked_add(needed).ok_or(LogError::Short(len_bytes))?;
        if len_bytes < needed || file_bytes < end {
            return Err(LogError::Short(len_bytes.min(file_bytes)));
        }
        // The length that the frontend reports may be wrong, so it is not used.
        let len = usize::try_from(needed).map_err(|_| LogError::Short(len_bytes))?;
        let region = MmapRegion::from_file(FileOffset::new(File::from(file), offset), len).map_err(io::Error::other)?;
        let listed = if can_shrink { Some(Listed::new(region.as_ptr(), len)?) } else { None };
        Ok(Self { memory: Arc::new(Mapped { _listed: listed, region }), queues, queue_size })
    }

    /// Returns the description of the logs, and their file.
    pub(crate) fn state(&self) -> Option<(LogsState, &File)> {
        let file = self.memory.region.file_offset()?;
        let (offset, queues, queue_size) = (file.start(), self.queues, self.queue_size);
        Some((LogsState { offset, queues, queue_size }, file.file()))
    }

    /// Maps the logs that another process has handed over.
    pub(crate) fn of_state(state: &LogsState, file: OwnedFd) -> Result<Self, LogError> {
        let LogsState { offset, queues, queue_size } = *state;
        Self::map(file, offset, logs_bytes(queues, queue_size)?, queues, queue_size)
    }

    /// Returns the log of one queue; `None` if it has none.
    pub(crate) fn of_queue(&self, queue: u16) -> Option<Log> {
        let start = usize::from(queue) * log_bytes(self.queue_size);
        (queue < self.queues).then(|| Log {
            memory: Arc::clone(&self.memory),
            start,
            queue_size: self.queue_size,
            counter: 0,
        })
    }
}

/// The log of one queue. Its memory may have any content: the frontend can write it.
#[derive(Debug)]
pub(crate) struct Log {
    memory: Arc<Mapped>,
    start: usize,
    queue_size: u16,
    counter: u64,
}

impl Log {
    fn store<T: vm_memory::AtomicAccess>(&self, at: usize, value: T) {
        // This is within the mapping, because heads are checked.
        let _ = self.memory.region.as_volatile_slice().store(value, self.start + at, Release);
    }

    fn load<T: vm_memory::AtomicAccess + Default>(&self, at: usize) -> T {
        self.memory.region.as_volatile_slice().load(self.start + at, Acquire).unwrap_or_default()
    }

    fn record(head: u16) -> usize {
        HEADER_BYTES + RECORD_BYTES * usize::from(head)
    }

    /// Returns the number of the next request.
    pub(crate) fn counter(&self) -> u64 {
        self.counter
    }

    /// Sets the number of the next request, as another process had it.
    pub(crate) fn set_counter(&mut self, counter: u64) {
        self.counter = counter;
    }

    /// Returns whether the log has a record for each descriptor of a queue of this size.
    pub(crate) fn fits(&self, queue_size: u16) -> bool {
        queue_size <= self.queue_size
    }

    /// Returns the heads of the requests that were taken and not answered, in the order in which
    /// they were taken. `used_index` is the index of the used ring.
    pub(crate) fn recover(&mut self, used_index: u16, queue_size: u16) -> Vec<u16> {
        if self.load::<u16>(14) != used_index {
            // The last answer was given, but not recorded.
            let last: u16 = self.load(12);
            if last < queue_size {
                self.store(Self::record(last), 0_u8);
            }
            self.store(14, used_index);
        }
        let is_open = |head: &u16| self.load::<u8>(Self::record(*head)) == 1;
        let mut heads: Vec<u16> = (0..queue_size).filter(is_open).collect();
        heads.sort_by_key(|head| self.counter_of(*head));
        self.counter = heads.last().map_or(0, |last| self.counter_of(*last).wrapping_add(1));
        heads
    }

    /// Forgets all requests: the queue has stopped, and unanswered requests stay unanswered.
    pub(crate) fn clear(&self) {
        (0..self.queue_size).for_each(|head| self.store(Self::record(head), 0_u8));
    }

    fn counter_of(&self, head: u16) -> u64 {
        self.memory.region.as_volatile_slice().load(self.start + Self::record(head) + 8, Relaxed).unwrap_or_default()
    }

    /// Records that a request was taken. Heads beyond the log's size are not recorded.
    pub(crate) fn begin(&mut self, head: u16) {
        if head >= self.queue_size {
            return;
        }
        self.store(Self::record(head) + 8, self.counter);
        self.counter = self.counter.wrapping_add(1);
        self.store(Self::record(head), 1_u8);
    }

    /// Records that this request is answered next.
    pub(crate) fn before_answer(&self, head: u16) {
        if head >= self.queue_size {
            return;
        }
        self.store(Self::record(head) + 6, self.load::<u16>(12));
        self.store(12, head);
    }

    /// Records that the answer was given.
    pub(crate) fn after_answer(&self, head: u16, used_index: u16) {
        if head >= self.queue_size {
            return;
        }
        self.store(Self::record(head), 0_u8);
        self.store(14, used_index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(file: &OwnedFd, len_bytes: u64) -> Log {
        let logs = Logs::map(file.try_clone().expect("a copy"), 0, len_bytes, 2, 16).expect("logs");
        logs.of_queue(1).expect("the second of two")
    }

    #[test]
    fn unanswered_requests_are_found_in_order() {
        let (file, len_bytes) = Logs::create(2, 16).expect("logs");
        let mut first = log(&file, len_bytes);
        assert!(first.recover(7, 16).is_empty());
        [5, 3, 9, 0].into_iter().for_each(|head| first.begin(head));
        first.before_answer(3);
        first.after_answer(3, 8);
        assert_eq!(log(&file, len_bytes).recover(8, 16), [5, 9, 0]);
        // The answer is in the used ring, and the server ends before it is recorded.
        first.before_answer(9);
        assert_eq!(log(&file, len_bytes).recover(9, 16), [5, 0]);
        // The server ends before the answer.
        first.before_answer(5);
        let mut third = log(&file, len_bytes);
        assert_eq!(third.recover(9, 16), [5, 0]);
        third.begin(1);
        assert_eq!(log(&file, len_bytes).recover(9, 16), [5, 0, 1]);
        third.clear();
        assert!(log(&file, len_bytes).recover(0, 16).is_empty());
        assert!(Logs::map(file, 0, len_bytes, 2, 16).expect("logs").of_queue(2).is_none());
    }

    #[test]
    fn logs_that_are_too_short_or_too_many_are_refused() {
        for (queues, queue_size) in [(0, 1), (1, 0), (MAX_QUEUES + 1, 1), (1, MAX_QUEUE_SIZE + 1)] {
            assert!(matches!(Logs::create(queues, queue_size), Err(LogError::Shape { .. })));
        }
        let (file, len_bytes) = Logs::create(2, 16).expect("logs");
        let map = |offset, len_bytes, queues| {
            Logs::map(file.try_clone().expect("a copy"), offset, len_bytes, queues, 16).map(drop)
        };
        assert!(map(0, len_bytes, 2).is_ok() && map(0, u64::MAX, 2).is_ok());
        for (offset, len_bytes, queues) in [(0, len_bytes - 1, 2), (0, u64::MAX, 3), (1, len_bytes, 2)] {
            assert!(matches!(map(offset, len_bytes, queues), Err(LogError::Short(_))));
        }
        assert!(map(u64::MAX, len_bytes, 2).is_err());
    }

    /// Whatever a frontend writes into a log, only heads of the queue are read from it.
    #[test]
    fn a_log_with_any_content_names_only_heads_of_the_queue() {
        let (file, len_bytes) = Logs::create(2, 16).expect("logs");
        for byte in [1, 0xff] {
            let bytes = vec![byte; usize::try_from(len_bytes).expect("short")];
            rustix::io::pwrite(&file, &bytes, 0).expect("written");
            let heads = log(&file, len_bytes).recover(3, 8);
            assert!(heads.iter().all(|head| *head < 8), "{heads:?}");
        }
    }
}

//! One queue of a device, through which its thread exchanges requests and answers with the driver.
#![allow(unsafe_code)] // entries of the ring name descriptors and files; the driver writes to shared memory

use std::{
    fs::File,
    io,
    os::fd::{AsRawFd, OwnedFd},
    ptr,
    sync::Arc,
};

use io_uring::{
    IoUring,
    opcode::{PollAdd, UringCmd16},
    squeue,
    types::Fd,
};
use memmap2::{MmapOptions, MmapRaw};

use crate::abi::{self, DESCRIPTOR_BYTES, Layout, io_command};

/// Stands for the eventfd in the ring. Tags are smaller.
const WAKE: u64 = u64::MAX;

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The request with this tag waits for an answer.
    Request(u16),
    /// There will be no more requests with some tag.
    Gone,
    /// The eventfd was written.
    Woken,
}

/// A request, as the driver describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub(crate) kind_and_flags: u32,
    pub(crate) sectors: u32,
    pub(crate) first_sector: u64,
}

/// A queue. Only the thread that creates it may use it, which the driver checks. When it is
/// dropped, the driver treats the queue as abandoned.
pub(crate) struct Ring {
    ring: IoUring,
    descriptors: MmapRaw,
    file: Arc<File>,
    wake: Arc<OwnedFd>,
    queue: u16,
    depth: u16,
}

impl Ring {
    /// Opens a queue.
    pub(crate) fn open(file: &Arc<File>, wake: &Arc<OwnedFd>, queue: u16, layout: Layout) -> io::Result<Self> {
        let depth = layout.depth;
        // The kernel rounds it up in the same way.
        let len = (usize::from(depth) * DESCRIPTOR_BYTES).next_multiple_of(rustix::param::page_size());
        let descriptors = MmapOptions::new().offset(abi::descriptors_at(queue)).len(len).map_raw_read_only(&**file)?;
        // Room for all commands and the eventfd.
        let entries = u32::from(depth) + 1;
        let ring = IoUring::builder().setup_coop_taskrun().build(entries)?;
        Ok(Self { ring, descriptors, file: Arc::clone(file), wake: Arc::clone(wake), queue, depth })
    }

    /// Waits for the first requests. From now on, only this thread may use the queue.
    pub(crate) fn fetch(&mut self) -> io::Result<()> {
        self.watch()?;
        for tag in 0..self.depth {
            self.command(io_command::FETCH, tag, 0)?;
        }
        self.ring.submit().map(drop)
    }

    /// Answers a request, and waits for the next one with its tag. `tag` must be that of a request that
    /// has no answer yet.
    pub(crate) fn answer(&mut self, tag: u16, result: i32) -> io::Result<()> {
        self.command(io_command::COMMIT_AND_FETCH, tag, result)
    }

    /// Makes the next write to the eventfd wake this thread.
    pub(crate) fn watch(&mut self) -> io::Result<()> {
        /// `POLLIN`.
        const READABLE: u32 = 1;
        self.push(&PollAdd::new(Fd(self.wake.as_raw_fd()), READABLE).build().user_data(WAKE))
    }

    /// Sends answers, and waits until something has happened.
    pub(crate) fn wait(&mut self) -> io::Result<()> {
        match self.ring.submit_and_wait(1) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }

    /// Sends answers.
    pub(crate) fn submit(&self) -> io::Result<()> {
        self.ring.submit().map(drop)
    }

    /// Adds the events that have happened.
    pub(crate) fn take(&mut self, events: &mut Vec<Event>) {
        let depth = u64::from(self.depth);
        events.extend(self.ring.completion().map(|done| match (done.user_data(), done.result()) {
            (WAKE, _) => Event::Woken,
            (tag, 0) if tag < depth => Event::Request(tag as u16),
            _ => Event::Gone,
        }));
    }

    /// Returns the description of a request that has no answer yet.
    pub(crate) fn descriptor(&self, tag: u16) -> Option<Descriptor> {
        if tag >= self.depth {
            return None;
        }
        let at = usize::from(tag) * DESCRIPTOR_BYTES;
        // SAFETY: the mapping has a descriptor for each tag. Any bytes are valid, and the driver may
        // write them at any time, so they are read once.
        let bytes: [u8; DESCRIPTOR_BYTES] = unsafe { ptr::read_volatile(self.descriptors.as_ptr().add(at).cast()) };
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let mut first_sector = [0; 8];
        first_sector.copy_from_slice(&bytes[8..16]);
        let first_sector = u64::from_ne_bytes(first_sector);
        Some(Descriptor { kind_and_flags: word(0), sectors: word(4), first_sector })
    }

    fn command(&mut self, command: u32, tag: u16, result: i32) -> io::Result<()> {
        let word = abi::encode_io(self.queue, tag, result);
        let entry = UringCmd16::new(Fd(self.file.as_raw_fd()), command).cmd(word).build();
        self.push(&entry.user_data(tag.into()))
    }

    fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: the entry names no memory, and files that are open as long as this value.
        while unsafe { self.ring.submission().push(entry) }.is_err() {
            self.ring.submit()?;
        }
        Ok(())
    }
}

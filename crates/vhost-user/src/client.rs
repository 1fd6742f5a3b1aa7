//! A frontend with a driver of its own, for tests and benches: it shares memory as a virtual machine's
//! monitor does, and puts requests into rings as a guest's driver does.
//!
//! ```text
//! memory of a queue:  descriptors | available ring | used ring | slot 0 | slot 1 | …
//! a slot:             header (16) | status (1) | indirect table | data
//! ```

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, AsRawFd},
        unix::net::UnixStream,
    },
    path::Path,
    sync::{
        Arc,
        atomic::{Ordering, fence},
    },
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{MemfdFlags, ftruncate, memfd_create},
};
use vhost::{
    VhostBackend, VhostUserMemoryRegionInfo, VringConfigData,
    vhost_user::{
        Frontend, VhostUserFrontend,
        message::{VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserInflight, VhostUserProtocolFeatures},
    },
};
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};
use vmm_sys_util::{
    epoll::{ControlOperation, Epoll, EpollEvent, EventSet},
    eventfd::{EFD_NONBLOCK, EventFd},
};

use crate::config::{MAX_QUEUES, feature};

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
const PAGE_BYTES: u64 = 4096;
/// Descriptors of a slot's indirect table.
const TABLE_LEN: u64 = 128;
/// Where a slot's parts begin.
const STATUS_AT: u64 = 16;
const TABLE_AT: u64 = 32;
const DATA_AT: u64 = PAGE_BYTES;

/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why a client failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The protocol failed.
    #[error("vhost-user: {0}")]
    Protocol(#[from] vhost::Error),
    /// The protocol failed in a message.
    #[error("vhost-user: {0}")]
    Message(#[from] vhost::vhost_user::Error),
    /// The system failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The client's own memory failed.
    #[error("the client's memory: {0}")]
    Memory(String),
    /// A request failed with this status.
    #[error("the request failed with status {0}")]
    Status(u8),
    /// No answer came.
    #[error("no answer came")]
    Silence,
}

impl From<vm_memory::GuestMemoryError> for Error {
    fn from(error: vm_memory::GuestMemoryError) -> Self {
        Self::Memory(error.to_string())
    }
}

impl From<rustix::io::Errno> for Error {
    fn from(error: rustix::io::Errno) -> Self {
        Self::Io(error.into())
    }
}

/// The features that a client requests, and how much memory it shares.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Number of queues.
    pub queues: u16,
    /// Descriptors of a queue.
    pub queue_size: u16,
    /// Requests of a queue that can be in flight.
    pub depth: u16,
    /// Maximum length of a request's data.
    pub most_bytes: u64,
    /// Whether to use the event index.
    pub event_idx: bool,
    /// Features not to accept.
    pub without: u64,
    /// Whether the memory can be sealed.
    pub sealable: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            queues: 1,
            queue_size: 128,
            depth: 16,
            most_bytes: 64 << 10,
            event_idx: true,
            without: 0,
            sealable: true,
        }
    }
}

/// The operation of a request.
#[derive(Clone, Copy, Debug)]
pub enum Operation<'a> {
    /// Reads this number of bytes at an offset.
    Read(u64, u64),
    /// Writes bytes at an offset.
    Write(u64, &'a [u8]),
    /// Makes writes durable.
    Flush,
    /// Discards ranges: sector, number of sectors, flags.
    Discard(&'a [(u64, u32, u32)]),
    /// Fills ranges with zeros.
    WriteZeroes(&'a [(u64, u32, u32)]),
    /// Reads the disk's identifier.
    Identify,
    /// Any type, with a sector and data to write.
    Other(u32, u64, &'a [u8]),
}

/// How a request is laid out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Layout<'a> {
    /// Whether its descriptors are in an indirect table.
    pub indirect: bool,
    /// Lengths of the first segments of data. The last one has the rest.
    pub segments: &'a [u64],
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The slot of the request.
    pub slot: u16,
    /// The request's status.
    pub status: u8,
    /// Bytes that the device reports to have written.
    pub written: u32,
}

/// A frontend that is connected.
pub struct Client {
    frontend: Frontend,
    options: Options,
    memory: Arc<GuestMemoryMmap<()>>,
    /// The log of requests in flight, if the server keeps one.
    inflight: Option<(VhostUserInflight, File)>,
    /// The other end of the device's channel for requests to the frontend.
    channel: UnixStream,
    features: u64,
    /// Its queues; different threads may use them.
    pub queues: Vec<Queue>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("options", &self.options).finish_non_exhaustive()
    }
}

fn queue_bytes(options: &Options) -> u64 {
    let rings = (32 * u64::from(options.queue_size) + 64).next_multiple_of(PAGE_BYTES);
    rings + u64::from(options.depth) * slot_bytes(options)
}

fn slot_bytes(options: &Options) -> u64 {
    DATA_AT + options.most_bytes.next_multiple_of(PAGE_BYTES)
}

/// Returns new memory, in a file that can be shared.
fn shared_memory(len_bytes: u64, sealable: bool) -> Result<GuestMemoryMmap<()>, Error> {
    let sealing = if sealable { MemfdFlags::ALLOW_SEALING } else { MemfdFlags::empty() };
    let file = memfd_create("guest", MemfdFlags::CLOEXEC | sealing)?;
    ftruncate(&file, len_bytes)?;
    let failed = |error: &dyn std::fmt::Display| Error::Memory(error.to_string());
    let len = usize::try_from(len_bytes).map_err(|error| failed(&error))?;
    let part = (GuestAddress(0), len, Some(FileOffset::new(File::from(file), 0)));
    GuestMemoryMmap::from_ranges_with_files([part]).map_err(|error| failed(&error))
}

impl Client {
    /// Connects to a socket, and starts the queues.
    ///
    /// # Errors
    /// No server listens, or what the server offers is not enough.
    pub fn connect(path: &Path, options: Options) -> Result<Self, Error> {
        let memory = Arc::new(shared_memory(u64::from(options.queues) * queue_bytes(&options), options.sealable)?);
        let queues: Result<_, _> = (0..options.queues).map(|number| Queue::new(number, &options, &memory)).collect();
        Self::connect_with(path, options, memory, queues?, None)
    }

    /// Connects again, after the server has closed the connection, with the same memory, rings and log
    /// of requests.
    ///
    /// # Errors
    /// Those of [`connect`](Self::connect).
    pub fn reconnect(self, path: &Path) -> Result<Self, Error> {
        let Self { options, memory, inflight, queues, frontend, .. } = self;
        drop(frontend);
        Self::connect_with(path, options, memory, queues, inflight)
    }

    fn connect_with(
        path: &Path,
        options: Options,
        memory: Arc<GuestMemoryMmap<()>>,
        queues: Vec<Queue>,
        inflight: Option<(VhostUserInflight, File)>,
    ) -> Result<Self, Error> {
        let mut frontend = Frontend::connect(path, MAX_QUEUES.into())?;
        let without = if options.event_idx { options.without } else { options.without | feature::RING_EVENT_IDX };
        frontend.set_owner()?;
        let features = frontend.get_features()? & !without;
        let protocol = frontend.get_protocol_features()?;
        frontend.set_protocol_features(protocol)?;
        frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        let (channel, theirs) = UnixStream::pair()?;
        if protocol.contains(VhostUserProtocolFeatures::BACKEND_REQ) {
            frontend.set_backend_request_fd(&theirs)?;
        }
        let keeps_log = protocol.contains(VhostUserProtocolFeatures::INFLIGHT_SHMFD);
        let inflight = match inflight {
            None if keeps_log => {
                let shape = VhostUserInflight::new(0, 0, options.queues, options.queue_size);
                Some(frontend.get_inflight_fd(&shape)?)
            }
            inflight => inflight,
        };
        if let Some((log, file)) = &inflight {
            frontend.set_inflight_fd(log, file.as_raw_fd())?;
        }
        frontend.set_features(features)?;
        let regions: Result<Vec<_>, _> = memory.iter().map(VhostUserMemoryRegionInfo::from_guest_region).collect();
        frontend.set_mem_table(&regions?)?;
        let mut client = Self { frontend, options, memory, inflight, channel, features, queues };
        for number in 0..client.queues.len() {
            client.start(number)?;
        }
        Ok(client)
    }

    /// Starts a queue where it stopped.
    ///
    /// # Errors
    /// The server refuses it.
    pub fn start(&mut self, number: usize) -> Result<(), Error> {
        let Some(queue) = self.queues.get(number) else { return Ok(()) };
        let base = self.memory.iter().next().map_or(0, |region| region.as_ptr() as u64);
        self.frontend.set_vring_num(number, queue.size)?;
        // Requests that the driver has made available, but that the log does not list, follow those
        // that were used.
        self.frontend.set_vring_base(number, queue.used_index()?)?;
        let rings = VringConfigData {
            queue_max_size: queue.size,
            queue_size: queue.size,
            flags: 0,
            desc_table_addr: base + queue.descriptors,
            used_ring_addr: base + queue.used,
            avail_ring_addr: base + queue.available,
            log_addr: None,
        };
        self.frontend.set_vring_addr(number, &rings)?;
        self.frontend.set_vring_call(number, &queue.call)?;
        self.frontend.set_vring_kick(number, &queue.kick)?;
        self.frontend.set_vring_enable(number, true)?;
        Ok(())
    }

    /// Enables or disables a queue.
    ///
    /// # Errors
    /// The protocol failed.
    pub fn enable(&mut self, number: usize, enabled: bool) -> Result<(), Error> {
        Ok(self.frontend.set_vring_enable(number, enabled)?)
    }

    /// Stops a queue. Returns the index of its next request.
    ///
    /// # Errors
    /// The protocol failed.
    pub fn stop(&mut self, number: usize) -> Result<u32, Error> {
        Ok(self.frontend.get_vring_base(number)?)
    }

    /// Resets the drivers' side of all queues, whose rings must be empty and stopped.
    pub fn forget_requests(&mut self) {
        self.queues.iter_mut().for_each(Queue::reset);
    }

    /// Shares the memory once more, in a second mapping of the server.
    ///
    /// # Errors
    /// The protocol failed.
    pub fn share_again(&mut self) -> Result<(), Error> {
        let regions: Result<Vec<_>, _> = self.memory.iter().map(VhostUserMemoryRegionInfo::from_guest_region).collect();
        self.frontend.set_mem_table(&regions?)?;
        Ok(())
    }

    /// Returns the features that both sides know.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// Returns the frontend, for messages that the client does not send by itself.
    pub fn frontend(&mut self) -> &mut Frontend {
        &mut self.frontend
    }

    /// Returns the memory that the server sees, which begins at the guest's address 0.
    pub fn memory(&self) -> &Arc<GuestMemoryMmap<()>> {
        &self.memory
    }

    /// Makes the file of the shared memory shorter. From then on, the client cannot use its queues.
    ///
    /// # Errors
    /// The file is sealed.
    pub fn shorten(&self, len_bytes: u64) -> Result<(), Error> {
        let mut parts = self.memory.iter().filter_map(|region| region.file_offset());
        Ok(parts.try_for_each(|part| part.file().set_len(len_bytes))?)
    }

    /// Returns a part of the device's configuration.
    ///
    /// # Errors
    /// The protocol failed.
    pub fn config(&mut self, offset: u32, len_bytes: u32) -> Result<Vec<u8>, Error> {
        let buf = vec![0; len_bytes as usize];
        Ok(self.frontend.get_config(offset, len_bytes, VhostUserConfigFlags::empty(), &buf)?.1)
    }

    /// Writes a part of the device's configuration.
    ///
    /// # Errors
    /// The device refuses it.
    pub fn set_config(&mut self, offset: u32, part: &[u8]) -> Result<(), Error> {
        Ok(self.frontend.set_config(offset, VhostUserConfigFlags::WRITABLE, part)?)
    }

    /// Returns the disk's size.
    ///
    /// # Errors
    /// The protocol failed.
    pub fn size_bytes(&mut self) -> Result<u64, Error> {
        let bytes = self.config(0, 8)?;
        Ok(bytes.try_into().map_or(0, |bytes| u64::from_le_bytes(bytes) * 512))
    }

    /// Waits until the device says that its configuration has changed.
    ///
    /// # Errors
    /// [`Error::Silence`], or the server closed the channel.
    pub fn wait_for_change(&self) -> Result<(), Error> {
        wait_readable(&self.channel, PATIENCE)?;
        let mut message = [0; 12];
        io::Read::read_exact(&mut &self.channel, &mut message)?;
        Ok(())
    }
}

/// Waits until a file is readable.
fn wait_readable(file: impl AsFd, most: Duration) -> Result<(), Error> {
    let timeout = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
    match poll(&mut [PollFd::new(&file, PollFlags::IN)], Some(&timeout))? {
        0 => Err(Error::Silence),
        _ => Ok(()),
    }
}

/// A queue, as a guest's driver uses it.
#[derive(Debug)]
pub struct Queue {
    memory: Arc<GuestMemoryMmap<()>>,
    size: u16,
    /// Addresses of the guest.
    descriptors: u64,
    available: u64,
    used: u64,
    slots: u64,
    slot_bytes: u64,
    event_idx: bool,
    kick: EventFd,
    call: EventFd,
    /// Watches `call`.
    called: Epoll,
    next_available: u16,
    /// The index at the last kick.
    kicked: u16,
    last_used: u16,
    free_slots: Vec<u16>,
    free_descriptors: Vec<u16>,
    /// Each head's slot and descriptors.
    in_flight: Vec<Option<(u16, Vec<u16>)>>,
}

impl Queue {
    fn new(number: u16, options: &Options, memory: &Arc<GuestMemoryMmap<()>>) -> Result<Self, Error> {
        let (start, size) = (u64::from(number) * queue_bytes(options), u64::from(options.queue_size));
        let available = start + 16 * size;
        let used = (available + 2 * size + 6).next_multiple_of(4);
        let (kick, call) = (EventFd::new(EFD_NONBLOCK)?, EventFd::new(EFD_NONBLOCK)?);
        let called = Epoll::new()?;
        called.ctl(ControlOperation::Add, call.as_raw_fd(), EpollEvent::new(EventSet::IN, 0))?;
        Ok(Self {
            memory: Arc::clone(memory),
            size: options.queue_size,
            descriptors: start,
            available,
            used,
            slots: start + queue_bytes(options) - u64::from(options.depth) * slot_bytes(options),
            slot_bytes: slot_bytes(options),
            event_idx: options.event_idx,
            kick,
            call,
            called,
            next_available: 0,
            kicked: 0,
            last_used: 0,
            free_slots: (0..options.depth).rev().collect(),
            free_descriptors: (0..options.queue_size).rev().collect(),
            in_flight: (0..options.queue_size).map(|_| None).collect(),
        })
    }

    fn reset(&mut self) {
        (self.next_available, self.kicked, self.last_used) = (0, 0, 0);
        for (slot, numbers) in self.in_flight.iter_mut().filter_map(Option::take) {
            self.free_slots.push(slot);
            self.free_descriptors.extend(numbers);
        }
    }

    /// Returns where the descriptors, the available ring and the used ring are.
    pub fn rings(&self) -> [u64; 3] {
        [self.descriptors, self.available, self.used]
    }

    /// Returns where a slot's data is.
    pub fn data_address(&self, slot: u16) -> u64 {
        self.slots + u64::from(slot) * self.slot_bytes + DATA_AT
    }

    /// Returns a slot's data.
    ///
    /// # Errors
    /// It is not that long.
    pub fn data(&self, slot: u16, len_bytes: u64) -> Result<Vec<u8>, Error> {
        let mut data = vec![0; usize::try_from(len_bytes).unwrap_or_default()];
        self.copy_data(slot, &mut data)?;
        Ok(data)
    }

    /// Copies a slot's data.
    ///
    /// # Errors
    /// It is not that long.
    pub fn copy_data(&self, slot: u16, data: &mut [u8]) -> Result<(), Error> {
        Ok(self.memory.read_slice(data, GuestAddress(self.data_address(slot)))?)
    }

    /// Returns the number of requests that have no answer yet.
    pub fn in_flight(&self) -> usize {
        self.in_flight.iter().flatten().count()
    }

    /// Makes a request available, without a kick. Returns its slot, or `None` if there is no room.
    ///
    /// # Errors
    /// The client's memory is too small.
    pub fn submit(&mut self, operation: Operation<'_>, layout: Layout<'_>) -> Result<Option<u16>, Error> {
        let (kind, sector, to_device, from_device) = match operation {
            Operation::Read(offset, len) => (0, offset / 512, Vec::new(), len),
            Operation::Write(offset, data) => (1, offset / 512, data.to_vec(), 0),
            Operation::Flush => (4, 0, Vec::new(), 0),
            Operation::Identify => (8, 0, Vec::new(), 20),
            Operation::Discard(ranges) => (11, 0, encode_ranges(ranges), 0),
            Operation::WriteZeroes(ranges) => (13, 0, encode_ranges(ranges), 0),
            Operation::Other(kind, sector, data) => (kind, sector, data.to_vec(), 0),
        };
        let Some(&slot) = self.free_slots.last() else { return Ok(None) };
        let at = self.slots + u64::from(slot) * self.slot_bytes;
        let mut header = [0; 16];
        header[..4].copy_from_slice(&u32::to_le_bytes(kind));
        header[8..].copy_from_slice(&sector.to_le_bytes());
        self.memory.write_slice(&header, GuestAddress(at))?;
        self.memory.write_obj(0xff_u8, GuestAddress(at + STATUS_AT))?;
        self.memory.write_slice(&to_device, GuestAddress(at + DATA_AT))?;
        let mut chain = vec![(at, 16, 0)];
        let flag = if from_device > 0 { WRITE } else { 0 };
        let (mut start, mut left) = (at + DATA_AT, from_device.max(to_device.len() as u64));
        for len in layout.segments.iter().copied().chain([u64::MAX]) {
            let len = len.min(left);
            if len > 0 {
                chain.push((start, len, flag));
                (start, left) = (start + len, left - len);
            }
        }
        chain.push((at + STATUS_AT, 1, WRITE));
        let Some(head) = self.place(at, &chain, layout.indirect, slot)? else { return Ok(None) };
        self.free_slots.pop();
        let entry = self.available + 4 + 2 * u64::from(self.next_available % self.size);
        self.memory.store(head.to_le(), GuestAddress(entry), Ordering::Relaxed)?;
        self.next_available = self.next_available.wrapping_add(1);
        self.memory.store(self.next_available.to_le(), GuestAddress(self.available + 2), Ordering::Release)?;
        Ok(Some(slot))
    }

    /// Writes the descriptors of a chain. Returns its head.
    fn place(&mut self, at: u64, chain: &[(u64, u64, u16)], indirect: bool, slot: u16) -> Result<Option<u16>, Error> {
        let descriptor = |&(start, len, flags): &(u64, u64, u16), next: Option<u16>| {
            let flags = flags | if next.is_some() { NEXT } else { 0 };
            Descriptor::new(start, len as u32, flags, next.unwrap_or_default())
        };
        let needed = if indirect { 1 } else { chain.len() };
        if self.free_descriptors.len() < needed || chain.len() as u64 > TABLE_LEN {
            return Ok(None);
        }
        let numbers = self.free_descriptors.split_off(self.free_descriptors.len() - needed);
        let place = |number: u16| GuestAddress(self.descriptors + 16 * u64::from(number));
        if indirect {
            for (number, part) in chain.iter().enumerate() {
                let next = (number + 1 < chain.len()).then_some(number as u16 + 1);
                self.memory.write_obj(descriptor(part, next), GuestAddress(at + TABLE_AT + 16 * number as u64))?;
            }
            let table = Descriptor::new(at + TABLE_AT, 16 * chain.len() as u32, INDIRECT, 0);
            self.memory.write_obj(table, place(numbers[0]))?;
        } else {
            for (number, part) in chain.iter().enumerate() {
                let next = numbers.get(number + 1).copied();
                self.memory.write_obj(descriptor(part, next), place(numbers[number]))?;
            }
        }
        let head = numbers[0];
        self.in_flight[usize::from(head)] = Some((slot, numbers));
        Ok(Some(head))
    }

    /// Notifies the device of new requests, if it wants to be.
    ///
    /// # Errors
    /// The client's memory or eventfd failed.
    pub fn kick(&mut self) -> Result<(), Error> {
        fence(Ordering::SeqCst);
        let (new, old) = (self.next_available, std::mem::replace(&mut self.kicked, self.next_available));
        let wants = if self.event_idx {
            let event = GuestAddress(self.used + 4 + 8 * u64::from(self.size));
            let event = u16::from_le(self.memory.load(event, Ordering::Relaxed)?);
            new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
        } else {
            u16::from_le(self.memory.load(GuestAddress(self.used), Ordering::Relaxed)?) & 1 == 0
        };
        if wants { self.force_kick() } else { Ok(()) }
    }

    /// Notifies the device.
    ///
    /// # Errors
    /// The eventfd failed.
    pub fn force_kick(&self) -> Result<(), Error> {
        Ok(self.kick.write(1)?)
    }

    fn used_index(&self) -> Result<u16, Error> {
        Ok(u16::from_le(self.memory.load(GuestAddress(self.used + 2), Ordering::Acquire)?))
    }

    /// Takes an answer, if there is one.
    ///
    /// # Errors
    /// The client's memory failed, or the device answered what was not asked.
    pub fn take_answer(&mut self) -> Result<Option<Answer>, Error> {
        if self.used_index()? == self.last_used {
            return Ok(None);
        }
        let entry = self.used + 4 + 8 * u64::from(self.last_used % self.size);
        let head = u32::from_le(self.memory.read_obj(GuestAddress(entry))?);
        let written = u32::from_le(self.memory.read_obj(GuestAddress(entry + 4))?);
        self.last_used = self.last_used.wrapping_add(1);
        let taken = self.in_flight.get_mut(head as usize).and_then(Option::take);
        let (slot, numbers) = taken.ok_or_else(|| Error::Memory(format!("an answer to request {head}")))?;
        self.free_descriptors.extend(numbers);
        self.free_slots.push(slot);
        let status = self.memory.read_obj(GuestAddress(self.slots + u64::from(slot) * self.slot_bytes + STATUS_AT))?;
        Ok(Some(Answer { slot, status, written }))
    }

    /// Waits for an answer.
    ///
    /// # Errors
    /// Those of [`take_answer`](Self::take_answer), and [`Error::Silence`].
    pub fn wait(&mut self) -> Result<Answer, Error> {
        self.wait_for(PATIENCE)
    }

    /// Waits for an answer, for at most this time.
    ///
    /// # Errors
    /// Those of [`wait`](Self::wait).
    pub fn wait_for(&mut self, most: Duration) -> Result<Answer, Error> {
        let deadline = Instant::now() + most;
        loop {
            if let Some(answer) = self.take_answer()? {
                return Ok(answer);
            }
            // Asks to be notified of the next answer, and looks once more.
            let event = GuestAddress(self.available + 4 + 2 * u64::from(self.size));
            self.memory.store(self.last_used.to_le(), event, Ordering::Relaxed)?;
            fence(Ordering::SeqCst);
            if self.used_index()? != self.last_used {
                continue;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::Silence);
            }
            self.called.wait(i32::try_from(left.as_millis() + 1).unwrap_or(i32::MAX), &mut [EpollEvent::default()])?;
            match self.call.read() {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error.into()),
                _ => {}
            }
        }
    }

    /// Runs one request.
    ///
    /// # Errors
    /// [`Error::Status`], or no answer came.
    pub fn run(&mut self, operation: Operation<'_>, layout: Layout<'_>) -> Result<Answer, Error> {
        self.submit(operation, layout)?.ok_or_else(|| Error::Memory("no room for a request".to_owned()))?;
        self.kick()?;
        let answer = self.wait()?;
        if answer.status == 0 { Ok(answer) } else { Err(Error::Status(answer.status)) }
    }

    /// Reads bytes.
    ///
    /// # Errors
    /// Those of [`run`](Self::run).
    pub fn read(&mut self, offset: u64, len_bytes: u64) -> Result<Vec<u8>, Error> {
        let answer = self.run(Operation::Read(offset, len_bytes), Layout::default())?;
        self.data(answer.slot, len_bytes)
    }

    /// Writes bytes.
    ///
    /// # Errors
    /// Those of [`run`](Self::run).
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.run(Operation::Write(offset, data), Layout::default()).map(drop)
    }
}

fn encode_ranges(ranges: &[(u64, u32, u32)]) -> Vec<u8> {
    let encode = |&(sector, count, flags): &(u64, u32, u32)| {
        let words = [count.to_le_bytes(), flags.to_le_bytes()].concat();
        sector.to_le_bytes().into_iter().chain(words)
    };
    ranges.iter().flat_map(encode).collect()
}

//! One frontend: its messages, its memory and its queues.

use std::{
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use pagefold_disk::BlockDevice;
use pagefold_executor::Client;
use rustix::fs::{FileType, OFlags, fcntl_getfl, fcntl_setfl, fstat};

use crate::{
    config::{MAX_QUEUES, Space, WRITE_BACK_AT, feature, features, protocol},
    gate::{Gate, Turn},
    inflight::{LogError, Logs},
    memory::{Description, MAX_REGIONS, MemoryError, Regions},
    state::{FrontendState, Handed, QueueState},
    vring::{Broken, Vring},
    wire::{Arrival, Arriving, Message, WireError, request, send_config_changed},
    worker::{Context, Worker},
};

/// How serving a frontend has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// The frontend has closed its connection.
    Closed,
    /// Another process serves it.
    Given,
}

/// Why a frontend is no longer served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error("queue {0}: {1}")]
    Queue(u16, #[source] Broken),
    #[error("queue {0} does not exist: there are {MAX_QUEUES}")]
    NoQueue(u64),
    #[error("message {0} is too short, or lacks file descriptors that it needs")]
    Short(u32),
    #[error("message {0} is not supported")]
    Unknown(u32),
    #[error("features {0:#x} were not offered")]
    Features(u64),
    #[error("queue {0} cannot have {1} descriptors: a power of two up to 1024 is needed")]
    Size(u16, u32),
    #[error("the rings of queue {0} are not in the guest's memory, or not aligned")]
    Rings(u16),
    #[error("queue {0} needs an eventfd: polling is not supported")]
    Eventfd(u16),
    #[error("what was handed over of it is incomplete or invalid")]
    Incomplete,
    #[error("only the byte of the configuration that chooses between write-back and write-through can be written")]
    Config,
}

impl SessionError {
    /// Returns whether a frontend can cause this for the process that continues it, but not for the one that has
    /// served it.
    pub(crate) fn is_of_frontend(&self) -> bool {
        matches!(
            self,
            Self::Memory(MemoryError::ShortFile { .. }) | Self::Log(LogError::Short(_)) | Self::Queue(_, Broken::Log)
        )
    }
}

/// The part of a connected frontend that other threads need.
#[derive(Debug)]
pub(crate) struct Handle {
    client: Arc<Client>,
    socket: UnixStream,
    /// The disk's size that was last reported to the frontend.
    size_bytes: AtomicU64,
    /// The channel for the device's requests to the frontend.
    channel: Mutex<Option<OwnedFd>>,
    pub(crate) gate: Gate,
}

impl Handle {
    pub(crate) fn new(client: &Arc<Client>, socket: &UnixStream) -> io::Result<Self> {
        let (client, socket) = (Arc::clone(client), socket.try_clone()?);
        let size_bytes = AtomicU64::new(client.device().map_or(0, |device| device.size_bytes()));
        Ok(Self { client, socket, size_bytes, channel: Mutex::new(None), gate: Gate::new()? })
    }

    /// Ends the frontend's connection.
    pub(crate) fn close(&self) {
        // The frontend may have closed the socket.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }

    /// Asks the frontend to read the configuration again if the disk's size has changed.
    pub(crate) fn check_size(&self) {
        let Some(size_bytes) = self.client.device().map(|device| device.size_bytes()) else { return };
        if self.size_bytes.swap(size_bytes, Relaxed) == size_bytes {
            return;
        }
        let channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(channel) = &*channel {
            send_config_changed(channel.as_fd());
        }
    }
}

/// A frontend that is connected.
pub(crate) struct Session {
    context: Arc<Context>,
    handle: Arc<Handle>,
    /// The number of queues that guests should use.
    queues: u16,
    features: u64,
    acked_protocol: u64,
    regions: Regions,
    logs: Option<Logs>,
    arriving: Arriving,
    vrings: Vec<Arc<Vring>>,
    kicks: Vec<Option<OwnedFd>>,
    /// Queue `n` is served by thread `n` modulo the number of threads. Threads start with their queues.
    workers: Vec<Option<Worker>>,
}

/// The answer to a message.
enum Answer {
    /// A zero, if the frontend wants an answer.
    Done,
    Reply(Vec<u8>),
    ReplyWithFile(Vec<u8>, OwnedFd),
}

impl Session {
    pub(crate) fn new(context: Arc<Context>, handle: Arc<Handle>, threads: usize, queues: u16) -> Self {
        Self {
            context,
            handle,
            queues,
            features: 0,
            acked_protocol: 0,
            regions: Regions::default(),
            logs: None,
            arriving: Arriving::default(),
            vrings: (0..MAX_QUEUES).map(|number| Arc::new(Vring::new(number))).collect(),
            kicks: (0..MAX_QUEUES).map(|_| None).collect(),
            workers: (0..threads.max(1)).map(|_| None).collect(),
        }
    }

    /// Serves the frontend until it leaves.
    ///
    /// # Errors
    /// The frontend broke the protocol, or the system failed.
    pub(crate) fn serve(&mut self, socket: &UnixStream) -> Result<Left, SessionError> {
        let handle = Arc::clone(&self.handle);
        loop {
            if let Turn::Pause(deadline) = handle.gate.wait(socket)? {
                let handed = self.pause(socket, deadline);
                handle.gate.pause(handed);
                if !handle.gate.wait_for_end() {
                    return Ok(Left::Given);
                }
                self.go_on();
                continue;
            }
            let mut message = match self.arriving.receive(socket)? {
                Arrival::Message(message) => message,
                Arrival::Part => continue,
                Arrival::End => return Ok(Left::Closed),
            };
            let wants_answer = message.needs_reply && self.acked_protocol & protocol::REPLY_ACK != 0;
            match self.handle_message(&mut message) {
                Ok(Answer::Reply(body)) => message.reply(socket, &body, None)?,
                Ok(Answer::ReplyWithFile(body, file)) => message.reply(socket, &body, Some(file.as_fd()))?,
                Ok(Answer::Done) if wants_answer => message.reply(socket, &0_u64.to_ne_bytes(), None)?,
                Ok(Answer::Done) => {}
                Err(error) => {
                    if wants_answer {
                        message.reply(socket, &1_u64.to_ne_bytes(), None)?;
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Serves a frontend that was [restored](Self::restore), once the pause ends.
    ///
    /// # Errors
    /// As those of [`serve`](Self::serve).
    pub(crate) fn serve_later(&mut self, socket: &UnixStream) -> Result<Left, SessionError> {
        let handle = Arc::clone(&self.handle);
        if !handle.gate.wait_for_end() {
            return Ok(Left::Given);
        }
        self.go_on();
        self.serve(socket)
    }

    /// Takes no more requests, waits for the last to end, and returns what another process needs.
    fn pause(&self, socket: &UnixStream, deadline: Instant) -> Result<Handed, String> {
        self.vrings.iter().for_each(|vring| vring.pause());
        if !self.vrings.iter().all(|vring| vring.is_drained_until(deadline)) {
            return Err(late(&self.context.export.name()));
        }
        let handed = self.hand_over(socket);
        handed.map_err(|error| format!("a virtual machine's files cannot be duplicated: {error}"))
    }

    fn go_on(&self) {
        self.vrings.iter().for_each(|vring| vring.go_on());
        self.workers.iter().flatten().for_each(Worker::wake);
    }

    fn hand_over(&self, socket: &UnixStream) -> io::Result<Handed> {
        let mut descriptors = vec![socket.as_fd().try_clone_to_owned()?];
        let mut regions = Vec::new();
        for (description, file) in self.regions.files() {
            regions.push(description);
            descriptors.push(file.as_fd().try_clone_to_owned()?);
        }
        let channel = self.handle.channel.lock().unwrap_or_else(PoisonError::into_inner);
        let has_channel = channel.is_some();
        let channel = channel.as_ref().map(OwnedFd::try_clone).transpose()?;
        descriptors.extend(channel);
        let mut logs = None;
        if let Some((state, file)) = self.logs.as_ref().and_then(Logs::state) {
            logs = Some(state);
            descriptors.push(file.as_fd().try_clone_to_owned()?);
        }
        let mut queues = Vec::new();
        for (vring, kick) in self.vrings.iter().zip(&self.kicks) {
            let (state, eventfds) = vring.state()?;
            if kick.is_none() && state == Vring::new(vring.number).state()?.0 {
                continue;
            }
            descriptors.extend(kick.as_ref().map(OwnedFd::try_clone).transpose()?);
            descriptors.extend(eventfds);
            queues.push(QueueState { is_started: kick.is_some(), ..state });
        }
        let (received, files) = self.arriving.parts();
        let copies = files.iter().map(OwnedFd::try_clone).collect::<io::Result<Vec<_>>>()?;
        descriptors.extend(copies);
        let state = FrontendState {
            features: self.features,
            protocol: self.acked_protocol,
            write_back: self.context.write_back.load(Relaxed),
            size_bytes: self.handle.size_bytes.load(Relaxed),
            regions,
            has_channel,
            logs,
            queues,
            received: received.to_vec(),
            received_files: files.len(),
        };
        Ok(Handed { state, descriptors })
    }

    /// Restores the session that another process has handed over. It stays paused.
    ///
    /// # Errors
    /// What was handed over would not be accepted from a frontend, or the system failed.
    pub(crate) fn restore(
        &mut self,
        state: &FrontendState,
        descriptors: &mut dyn Iterator<Item = OwnedFd>,
    ) -> Result<(), SessionError> {
        let mut next = || descriptors.next().ok_or(SessionError::Incomplete);
        self.handle.gate.begin_paused();
        self.vrings.iter().for_each(|vring| vring.pause());
        self.accept_features(state.features)?;
        self.accept_protocol(state.protocol)?;
        self.context.write_back.store(state.write_back, Relaxed);
        self.handle.size_bytes.store(state.size_bytes, Relaxed);
        let regions = state.regions.iter().map(|description| Ok((*description, next()?)));
        self.regions.replace(regions.collect::<Result<_, SessionError>>()?)?;
        self.share_memory();
        if state.has_channel {
            *self.handle.channel.lock().unwrap_or_else(PoisonError::into_inner) = Some(next()?);
        }
        if let Some(logs) = &state.logs {
            self.keep_logs(Logs::of_state(logs, next()?)?);
        }
        for queue in &state.queues {
            let vring = Arc::clone(self.vring(queue.number.into())?);
            if !vring.set_size(queue.size.into()) {
                return Err(SessionError::Size(vring.number, queue.size.into()));
            }
            if !vring.set_addresses(queue.descriptors, queue.available, queue.used) {
                return Err(SessionError::Rings(vring.number));
            }
            let mut take = |has: bool| {
                let file = if has { Some(next()?) } else { None };
                let check = |file| eventfd(file).ok_or(SessionError::Eventfd(queue.number));
                file.map(check).transpose()
            };
            let (kick, call, error) = (take(queue.is_started)?, take(queue.has_call)?, take(queue.has_error)?);
            vring.restore(queue, call, error).map_err(|why| SessionError::Queue(queue.number, why))?;
            if let Some(kick) = kick {
                self.attend(&vring, kick)?;
            }
        }
        let files = (&mut *descriptors).take(state.received_files).collect::<Vec<_>>();
        if files.len() < state.received_files {
            return Err(SessionError::Incomplete);
        }
        self.arriving = Arriving::continued(state.received.clone(), files).ok_or(SessionError::Incomplete)?;
        Ok(())
    }

    fn handle_message(&mut self, message: &mut Message) -> Result<Answer, SessionError> {
        let (code, short) = (message.request, || SessionError::Short(message.request));
        let word = |at| message.u64(at).ok_or_else(short);
        match code {
            request::GET_FEATURES => return Ok(reply(features(self.context.export.is_read_only()))),
            request::SET_FEATURES => self.set_features(word(0)?)?,
            // No other process can be the owner.
            request::SET_OWNER => {}
            request::GET_PROTOCOL_FEATURES => return Ok(reply(protocol::ALL)),
            request::SET_PROTOCOL_FEATURES => {
                self.accept_protocol(word(0)?)?;
            }
            request::GET_QUEUE_NUM => return Ok(reply(u64::from(MAX_QUEUES))),
            request::GET_MAX_MEM_SLOTS => return Ok(reply(MAX_REGIONS as u64)),
            request::SET_MEM_TABLE => self.set_memory(message)?,
            request::ADD_MEM_REG => {
                let description = description(message, 8).ok_or_else(short)?;
                let file = message.only_file().ok_or(SessionError::Short(code))?;
                self.regions.add(description, file)?;
                self.share_memory();
            }
            request::REM_MEM_REG => {
                self.regions.remove(word(8)?)?;
                self.share_memory();
            }
            request::GET_CONFIG => return self.config(message),
            request::SET_CONFIG => self.set_config(message)?,
            request::SET_BACKEND_REQ_FD => {
                let file = message.only_file().ok_or(SessionError::Short(code))?;
                *self.handle.channel.lock().unwrap_or_else(PoisonError::into_inner) = Some(file);
            }
            request::GET_INFLIGHT_FD => return create_logs(message),
            request::SET_INFLIGHT_FD => self.set_logs(message)?,
            request::RESET_OWNER | request::RESET_DEVICE => {
                for number in 0..MAX_QUEUES {
                    self.stop(number)?;
                    self.vring(number.into())?.set_enabled(false);
                }
            }
            _ => return self.handle_queue_message(message),
        }
        Ok(Answer::Done)
    }

    /// Handles a message about one queue.
    fn handle_queue_message(&mut self, message: &mut Message) -> Result<Answer, SessionError> {
        let (code, short) = (message.request, || SessionError::Short(message.request));
        let (number, value) = (message.u32(0).ok_or_else(short), message.u32(4).ok_or_else(short));
        match code {
            request::SET_VRING_NUM => {
                let (vring, size) = (self.vring(number?.into())?, value?);
                if !vring.set_size(size) {
                    return Err(SessionError::Size(vring.number, size));
                }
            }
            request::SET_VRING_BASE => {
                // The index of the next request; the rest is of packed rings.
                self.vring(number?.into())?.set_base(value? as u16);
            }
            request::SET_VRING_ADDR => {
                let vring = self.vring(number?.into())?;
                let address = |at| message.u64(at).and_then(|user| self.regions.guest_address(user));
                let rings = (address(8), address(16), address(24));
                let (Some(descriptors), Some(used), Some(available)) = rings else {
                    return Err(SessionError::Rings(vring.number));
                };
                if !vring.set_addresses(descriptors, available, used) {
                    return Err(SessionError::Rings(vring.number));
                }
            }
            request::GET_VRING_BASE => {
                let number = self.vring(number?.into())?.number;
                let base = self.stop(number)?;
                let words = [u32::from(number), u32::from(base)];
                return Ok(Answer::Reply(words.iter().flat_map(|word| word.to_ne_bytes()).collect()));
            }
            request::SET_VRING_KICK | request::SET_VRING_CALL | request::SET_VRING_ERR => {
                self.set_eventfd(message)?;
            }
            request::SET_VRING_ENABLE => {
                let vring = self.vring(number?.into())?;
                vring.set_enabled(value? != 0);
                self.wake(vring.number);
            }
            _ => return Err(SessionError::Unknown(code)),
        }
        Ok(Answer::Done)
    }

    fn vring(&self, number: u64) -> Result<&Arc<Vring>, SessionError> {
        let found = usize::try_from(number).ok().and_then(|number| self.vrings.get(number));
        found.ok_or(SessionError::NoQueue(number))
    }

    fn worker(&self, number: u16) -> Option<&Worker> {
        self.workers.get(usize::from(number) % self.workers.len())?.as_ref()
    }

    fn wake(&self, number: u16) {
        if let Some(worker) = self.worker(number) {
            worker.wake();
        }
    }

    fn set_features(&mut self, acked: u64) -> Result<(), SessionError> {
        self.accept_features(acked)?;
        if acked & feature::PROTOCOL_FEATURES == 0 {
            self.vrings.iter().for_each(|vring| vring.set_enabled(true));
        }
        // A driver without these features expects that the disk has no write cache.
        let knows_caches = acked & (feature::FLUSH | feature::CONFIG_WCE) != 0;
        self.context.write_back.store(knows_caches, Relaxed);
        Ok(())
    }

    fn accept_features(&mut self, acked: u64) -> Result<(), SessionError> {
        let offered = features(self.context.export.is_read_only());
        if acked & !offered != 0 {
            return Err(SessionError::Features(acked & !offered));
        }
        self.features = acked;
        self.vrings.iter().for_each(|vring| vring.set_event_idx(acked & feature::RING_EVENT_IDX != 0));
        Ok(())
    }

    fn accept_protocol(&mut self, acked: u64) -> Result<(), SessionError> {
        if acked & !protocol::ALL != 0 {
            return Err(SessionError::Features(acked & !protocol::ALL));
        }
        self.acked_protocol = acked;
        Ok(())
    }

    fn set_memory(&mut self, message: &mut Message) -> Result<(), SessionError> {
        const HEADER_BYTES: usize = 8;
        const REGION_BYTES: usize = 32;
        let files = std::mem::take(&mut message.files);
        if message.u32(0).is_none_or(|count| count as usize != files.len()) {
            return Err(SessionError::Short(message.request));
        }
        let describe = |(number, file)| Some((description(message, HEADER_BYTES + REGION_BYTES * number)?, file));
        let regions: Option<Vec<_>> = files.into_iter().enumerate().map(describe).collect();
        self.regions.replace(regions.ok_or(SessionError::Short(message.request))?)?;
        self.share_memory();
        Ok(())
    }

    /// Gives all queues the current memory. Running requests keep the memory they use.
    fn share_memory(&self) {
        let memory = self.regions.memory();
        self.vrings.iter().for_each(|vring| vring.set_memory(memory.clone()));
        self.workers.iter().flatten().for_each(Worker::wake);
    }

    fn config(&self, message: &Message) -> Result<Answer, SessionError> {
        let words = [0, 4, 8].map(|at| message.u32(at));
        let [Some(offset), Some(len_bytes), Some(flags)] = words else {
            return Err(SessionError::Short(message.request));
        };
        let size_bytes = self.context.client.device().map_or(0, |device| device.size_bytes());
        let write_back = self.context.write_back.load(Relaxed);
        let part = Space { size_bytes, queues: self.queues, write_back }.part(offset, len_bytes);
        // A reply without bytes says that they do not exist.
        let part = part.unwrap_or_default();
        let len = u32::try_from(part.len()).unwrap_or_default();
        let words = [offset, len, flags].into_iter().flat_map(u32::to_ne_bytes);
        Ok(Answer::Reply(words.chain(part).collect()))
    }

    fn set_config(&self, message: &Message) -> Result<(), SessionError> {
        match (message.u32(0), message.u32(4), message.body.get(12..)) {
            (Some(WRITE_BACK_AT), Some(1), Some([write_back])) => {
                self.context.write_back.store(*write_back != 0, Relaxed);
                Ok(())
            }
            _ => Err(SessionError::Config),
        }
    }

    fn set_logs(&mut self, message: &mut Message) -> Result<(), SessionError> {
        let file = message.only_file().ok_or(SessionError::Short(message.request))?;
        let (queues, queue_size) = shape(message).ok_or(SessionError::Short(message.request))?;
        let (len_bytes, offset) = (message.u64(0).unwrap_or_default(), message.u64(8).unwrap_or_default());
        let logs = Logs::map(file, offset, len_bytes, queues, queue_size)?;
        self.keep_logs(logs);
        Ok(())
    }

    fn keep_logs(&mut self, logs: Logs) {
        self.vrings.iter().for_each(|vring| vring.set_log(logs.of_queue(vring.number)));
        self.logs = Some(logs);
    }

    fn set_eventfd(&mut self, message: &mut Message) -> Result<(), SessionError> {
        const NO_FILE: u64 = 1 << 8;
        let code = message.request;
        let word = message.u64(0).ok_or(SessionError::Short(code))?;
        let number = self.vring(word & 0xff)?.number;
        let file = match (word & NO_FILE != 0, message.only_file()) {
            (false, Some(file)) => Some(eventfd(file).ok_or(SessionError::Eventfd(number))?),
            (true, None) => None,
            _ => return Err(SessionError::Short(code)),
        };
        let vring = self.vring(number.into())?;
        match code {
            request::SET_VRING_CALL => vring.set_call(file),
            request::SET_VRING_ERR => vring.set_error(file),
            _ => self.start(number, file.ok_or(SessionError::Eventfd(number))?)?,
        }
        Ok(())
    }

    /// Starts a queue, which the driver notifies through `kick`.
    fn start(&mut self, number: u16, kick: OwnedFd) -> Result<(), SessionError> {
        let vring = Arc::clone(self.vring(number.into())?);
        self.attend(&vring, kick)?;
        vring.start().map_err(|why| SessionError::Queue(number, why))?;
        self.wake(number);
        Ok(())
    }

    /// Assigns a thread to a queue once it has started.
    fn attend(&mut self, vring: &Arc<Vring>, kick: OwnedFd) -> Result<(), SessionError> {
        let (at, count) = (usize::from(vring.number), self.workers.len());
        let Some(slot) = self.workers.get_mut(at % count) else { return Ok(()) };
        if slot.is_none() {
            *slot = Some(Worker::start(Arc::clone(&self.context))?);
        }
        let Some(worker) = slot else { return Ok(()) };
        worker.watch(&kick)?;
        if let Some(old) = self.kicks.get_mut(at).and_then(|slot| slot.replace(kick)) {
            worker.forget(&old);
        }
        worker.serve(vring);
        Ok(())
    }

    /// Stops a queue. Returns the index of its next request.
    fn stop(&mut self, number: u16) -> Result<u16, SessionError> {
        let base = self.vring(number.into())?.stop();
        self.forget_kick(number);
        Ok(base)
    }

    fn forget_kick(&mut self, number: u16) {
        let kick = self.kicks.get_mut(usize::from(number)).and_then(Option::take);
        if let (Some(kick), Some(worker)) = (kick, self.worker(number)) {
            worker.forget(&kick);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.context.client.end();
        self.vrings.iter().for_each(|vring| vring.abandon());
        self.workers.clear();
    }
}

/// Returns the message for requests that run longer than a pause may take.
pub(crate) fn late(name: &str) -> String {
    format!("requests of disk '{name}' have not ended in time; they may wait for memory or for storage")
}

fn reply(value: u64) -> Answer {
    Answer::Reply(value.to_ne_bytes().to_vec())
}

/// Returns the description of a region at this position of a message.
fn description(message: &Message, at: usize) -> Option<Description> {
    let word = |number: usize| message.u64(at + 8 * number);
    Some(Description { guest: word(0)?, len_bytes: word(1)?, user: word(2)?, offset: word(3)? })
}

/// Returns the number of queues of logs, and of their descriptors.
fn shape(message: &Message) -> Option<(u16, u16)> {
    let half = |at: usize| Some(u16::from_ne_bytes(message.body.get(at..at + 2)?.try_into().ok()?));
    Some((half(16)?, half(18)?))
}

fn create_logs(message: &Message) -> Result<Answer, SessionError> {
    let (queues, queue_size) = shape(message).ok_or(SessionError::Short(message.request))?;
    let (file, len_bytes) = Logs::create(queues, queue_size)?;
    let mut body = message.body.clone();
    let position = len_bytes.to_ne_bytes().into_iter().chain(0_u64.to_ne_bytes());
    body.iter_mut().zip(position).for_each(|(to, from)| *to = from);
    Ok(Answer::ReplyWithFile(body, file))
}

/// Returns the file, made non-blocking, if it is of the kind that eventfds are. Writing to another
/// could block a thread that others need.
fn eventfd(file: OwnedFd) -> Option<OwnedFd> {
    if FileType::from_raw_mode(fstat(&file).ok()?.st_mode) != FileType::Unknown {
        return None;
    }
    let flags = fcntl_getfl(&file).ok()?;
    fcntl_setfl(&file, flags | OFlags::NONBLOCK).ok()?;
    Some(file)
}

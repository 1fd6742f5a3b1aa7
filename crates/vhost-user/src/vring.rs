//! A queue of the guest's driver, shared by all threads.
//!
//! ```text
//! taken from the ring = answered + in flight
//! in flight           = run by a thread or task + waiting for room
//! ```

use std::{
    collections::VecDeque,
    io,
    os::fd::OwnedFd,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::Ordering::{Acquire, Relaxed},
    },
    time::{Duration, Instant},
};

use pagefold_disk::{Waiting, Waits};
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::GuestAddress;

use crate::{
    config::MAX_QUEUE_SIZE,
    inflight::Log,
    memory::GuestMemory,
    request::{Malformed, Progress, Request, Status, Table},
    state::QueueState,
};

/// The interval at which a queue that stops checks for requests in flight.
const PAUSE: Duration = Duration::from_millis(100);

/// A queue.
#[derive(Debug)]
pub(crate) struct Vring {
    pub(crate) number: u16,
    state: Mutex<State>,
    /// Notified when nothing is in flight.
    drained: Condvar,
}

#[derive(Debug)]
struct State {
    queue: Queue,
    memory: Option<Arc<GuestMemory>>,
    /// Whether the rings are in the memory.
    is_valid: bool,
    /// Whether the frontend has started the queue, and enabled it.
    is_started: bool,
    is_enabled: bool,
    is_broken: bool,
    /// Whether the queue pauses: it only finishes requests that were already taken.
    is_paused: bool,
    call: Option<OwnedFd>,
    error: Option<OwnedFd>,
    log: Option<Log>,
    in_flight: usize,
    /// Requests in flight that are to be run again.
    again: VecDeque<InFlight>,
    /// The number of requests at the end of `again` that wait for room.
    waiting: usize,
    /// One for each request that waits or is being retried.
    counted: Vec<Waiting>,
    /// Whether the driver notifies the device of requests.
    is_notified: bool,
}

/// Why a queue stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Broken {
    #[error("its rings are not in the guest's memory")]
    Memory,
    #[error("a file of the guest's memory was made shorter")]
    Lost,
    #[error("the driver made more requests available than the queue has descriptors")]
    TooMany,
    #[error("the driver made a request available whose number is beyond the end of the queue")]
    Head,
    #[error("its log of requests is shorter than the queue")]
    Log,
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

impl State {
    fn runs(&self) -> bool {
        self.is_started && self.is_enabled && self.is_valid && !self.is_broken
    }

    fn table(&self) -> Option<Table> {
        let memory = Arc::clone(self.memory.as_ref()?);
        Some(Table { memory, start: GuestAddress(self.queue.desc_table()), len: self.queue.size() })
    }

    fn breaks(&mut self, why: Broken) -> Broken {
        self.is_broken = true;
        signal(self.error.as_ref());
        why
    }

    /// Breaks the queue while requests are taken, the first `in_flight` of which count as in
    /// flight.
    fn give_up(&mut self, heads: &mut Vec<InFlight>, in_flight: usize, why: Broken) -> Broken {
        heads.clear();
        self.in_flight = self.in_flight.saturating_sub(in_flight);
        self.breaks(why)
    }

    fn check_memory(&mut self) {
        self.queue.set_ready(true);
        self.is_valid = self.memory.as_ref().is_some_and(|memory| self.queue.is_valid(&***memory));
    }
}

/// Wakes the thread that waits for an eventfd. The write fails only after 2^64 wakes without a
/// read.
fn signal(eventfd: Option<&OwnedFd>) {
    if let Some(eventfd) = eventfd {
        let _ = rustix::io::write(eventfd, &1_u64.to_ne_bytes());
    }
}

/// A request that is in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InFlight {
    /// The number of its first descriptor.
    pub(crate) head: u16,
    /// How much of it an earlier attempt has done. The rest is decoded again, so that waiting
    /// requests take little memory.
    pub(crate) progress: Progress,
}

impl InFlight {
    fn new(head: u16) -> Self {
        Self { head, progress: Progress::default() }
    }
}

/// Requests that were taken.
pub(crate) struct Heads {
    pub(crate) table: Table,
    /// How many of them, the first ones, had been taken before.
    pub(crate) again: usize,
}

impl Vring {
    pub(crate) fn new(number: u16) -> Self {
        let state = State {
            // Cannot fail: the size is a power of two.
            queue: Queue::new(MAX_QUEUE_SIZE).unwrap_or_default(),
            memory: None,
            is_valid: false,
            is_started: false,
            is_enabled: false,
            is_broken: false,
            is_paused: false,
            call: None,
            error: None,
            log: None,
            in_flight: 0,
            again: VecDeque::new(),
            waiting: 0,
            counted: Vec::new(),
            is_notified: true,
        };
        Self { number, state: Mutex::new(state), drained: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the number of descriptors. Returns false if it is invalid, or the queue has started.
    pub(crate) fn set_size(&self, size: u32) -> bool {
        let mut state = self.lock();
        !state.is_started && u16::try_from(size).is_ok_and(|size| state.queue.try_set_size(size).is_ok())
    }

    /// Sets where the rings are. Returns false if they are not aligned.
    pub(crate) fn set_addresses(&self, descriptors: u64, available: u64, used: u64) -> bool {
        let mut state = self.lock();
        let queue = &mut state.queue;
        let is_aligned = queue.try_set_desc_table_address(GuestAddress(descriptors)).is_ok()
            && queue.try_set_avail_ring_address(GuestAddress(available)).is_ok()
            && queue.try_set_used_ring_address(GuestAddress(used)).is_ok();
        state.check_memory();
        is_aligned
    }

    pub(crate) fn set_base(&self, base: u16) {
        let mut state = self.lock();
        state.queue.set_next_avail(base);
    }

    pub(crate) fn set_event_idx(&self, enabled: bool) {
        self.lock().queue.set_event_idx(enabled);
    }

    pub(crate) fn set_memory(&self, memory: Option<Arc<GuestMemory>>) {
        let mut state = self.lock();
        state.memory = memory;
        state.check_memory();
    }

    pub(crate) fn set_call(&self, call: Option<OwnedFd>) {
        let mut state = self.lock();
        state.call = call;
        // Earlier answers are not lost.
        signal(state.call.as_ref());
    }

    pub(crate) fn set_error(&self, error: Option<OwnedFd>) {
        self.lock().error = error;
    }

    pub(crate) fn set_log(&self, log: Option<Log>) {
        self.lock().log = log;
    }

    /// Starts the queue, with the requests that its log lists.
    pub(crate) fn start(&self) -> Result<(), Broken> {
        let mut state = self.lock();
        if state.is_started {
            return Ok(());
        }
        (state.is_broken, state.is_notified) = (false, true);
        state.check_memory();
        let Some(memory) = state.memory.clone().filter(|_| state.is_valid) else {
            return Err(state.breaks(Broken::Memory));
        };
        let used = state.queue.used_idx(&**memory, Acquire).map_err(|_| Broken::Memory)?.0;
        state.queue.set_next_used(used);
        let size = state.queue.size();
        if let Some(log) = &mut state.log {
            if !log.fits(size) {
                return Err(state.breaks(Broken::Log));
            }
            let heads = log.recover(used, size);
            // The log lists heads of the queue, so no more than its size.
            state.queue.set_next_avail(used.wrapping_add(heads.len() as u16));
            state.in_flight += heads.len();
            state.again.extend(heads.into_iter().map(InFlight::new));
        }
        state.is_started = true;
        Ok(())
    }

    pub(crate) fn set_enabled(&self, enabled: bool) {
        self.lock().is_enabled = enabled;
    }

    /// Appends at most `most` requests to `heads`, and returns where their descriptors are. With
    /// `with_waiting`, one of them may be a request that waits for room.
    ///
    /// # Errors
    /// The driver has broken the queue, which is not used until the frontend starts it again.
    pub(crate) fn take(
        &self,
        heads: &mut Vec<InFlight>,
        most: usize,
        with_waiting: bool,
    ) -> Result<Option<Heads>, Broken> {
        let mut state = self.lock();
        if !state.runs() {
            return Ok(None);
        }
        let Some(table) = state.table() else { return Ok(None) };
        if table.memory.is_lost() {
            return Err(state.breaks(Broken::Lost));
        }
        while heads.len() < most && state.again.len() > state.waiting {
            heads.extend(state.again.pop_front());
        }
        if with_waiting && heads.len() < most && state.waiting > 0 {
            heads.extend(state.again.pop_front());
            state.waiting -= 1;
        }
        let available = if state.is_paused { 0 } else { most.saturating_sub(heads.len()) };
        let first = heads.len();
        if available == 0 {
            return Ok(Some(Heads { table, again: first }));
        }
        let State { queue, .. } = &mut *state;
        match queue.iter(&**table.memory) {
            Ok(chains) => heads.extend(chains.take(available).map(|chain| InFlight::new(chain.head_index()))),
            Err(virtio_queue::Error::InvalidAvailRingIndex) => {
                return Err(state.give_up(heads, first, Broken::TooMany));
            }
            Err(_) => return Err(state.give_up(heads, first, Broken::Memory)),
        }
        let new = &heads[first..];
        if new.iter().any(|taken| taken.head >= table.len) {
            return Err(state.give_up(heads, first, Broken::Head));
        }
        if state.in_flight + new.len() > usize::from(table.len) {
            return Err(state.give_up(heads, first, Broken::TooMany));
        }
        state.in_flight += new.len();
        if let Some(log) = &mut state.log {
            new.iter().for_each(|taken| log.begin(taken.head));
        }
        if !new.is_empty() && state.is_notified {
            // While requests remain, checking the ring costs less than notifications.
            state.is_notified = false;
            let _ = state.queue.disable_notification(&**table.memory);
        }
        Ok(Some(Heads { table, again: first }))
    }

    /// Answers requests: each head, with the number of bytes that were written. Notifies the driver
    /// if it wants to be.
    pub(crate) fn answer(&self, answers: &[(u16, u32)]) {
        if answers.is_empty() {
            return;
        }
        let mut state = self.lock();
        state.in_flight = state.in_flight.saturating_sub(answers.len());
        let State { queue, memory, log, .. } = &mut *state;
        if let Some(memory) = memory.clone() {
            let mut is_answered = true;
            for &(head, len) in answers {
                if let Some(log) = log {
                    log.before_answer(head);
                }
                is_answered &= queue.add_used(&**memory, head, len).is_ok();
                if let Some(log) = log {
                    log.after_answer(head, queue.next_used());
                }
            }
            let notifies = queue.needs_notification(&**memory).unwrap_or(true);
            if notifies {
                signal(state.call.as_ref());
            }
            if !is_answered {
                state.breaks(Broken::Memory);
            }
        }
        if state.in_flight == 0 {
            self.drained.notify_all();
        }
    }

    /// Stops the queue permanently: a request cannot be answered.
    pub(crate) fn break_off(&self, why: Malformed) -> Broken {
        let mut state = self.lock();
        state.in_flight = state.in_flight.saturating_sub(1);
        if state.in_flight == 0 {
            self.drained.notify_all();
        }
        state.breaks(why.into())
    }

    /// Gives up all requests in flight, because the queue's thread panics.
    pub(crate) fn lose(&self) {
        let mut state = self.lock();
        state.is_broken = true;
        state.in_flight = 0;
        self.drained.notify_all();
    }

    /// Adds a request to those that wait for room.
    pub(crate) fn wait_for_room(&self, request: &Request, waits: &Arc<Waits>) {
        let mut state = self.lock();
        state.again.push_back(InFlight { head: request.head, progress: request.progress() });
        state.waiting += 1;
        if state.counted.len() < state.waiting {
            state.counted.push(waits.begin());
        }
        if !state.is_started {
            self.drained.notify_all();
        }
    }

    /// Returns how many requests wait for room.
    pub(crate) fn count_waiting(&self) -> usize {
        let mut state = self.lock();
        let waiting = state.waiting;
        state.counted.truncate(waiting);
        waiting
    }

    /// Asks the driver for notifications again. Returns whether there are requests already.
    pub(crate) fn listen(&self) -> bool {
        let mut state = self.lock();
        if !state.runs() {
            return false;
        }
        let Some(memory) = state.memory.clone() else { return false };
        if state.is_paused {
            return state.again.len() > state.waiting;
        }
        state.is_notified = true;
        state.again.len() > state.waiting || state.queue.enable_notification(&**memory).unwrap_or(false)
    }

    /// Returns whether there are requests.
    pub(crate) fn has_requests(&self) -> bool {
        let state = self.lock();
        let Some(memory) = state.memory.as_ref().filter(|_| state.runs()) else { return false };
        let available = !state.is_paused
            && state.queue.avail_idx(&***memory, Relaxed).is_ok_and(|index| index.0 != state.queue.next_avail());
        available || state.again.len() > state.waiting
    }

    /// Takes no more requests from the ring.
    pub(crate) fn pause(&self) {
        self.lock().is_paused = true;
    }

    /// Waits until nothing is in flight, at most until this time. Returns whether nothing is.
    pub(crate) fn is_drained_until(&self, deadline: Instant) -> bool {
        let mut state = self.lock();
        while state.in_flight > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.drained.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Ends a pause.
    pub(crate) fn go_on(&self) {
        self.lock().is_paused = false;
    }

    /// Returns what another process needs to continue the paused queue, and its eventfds.
    pub(crate) fn state(&self) -> io::Result<(QueueState, Vec<OwnedFd>)> {
        let state = self.lock();
        let State { queue, call, error, log, .. } = &*state;
        let eventfds = call.iter().chain(error).map(OwnedFd::try_clone).collect::<io::Result<_>>()?;
        let described = QueueState {
            number: self.number,
            size: queue.size(),
            descriptors: queue.desc_table(),
            available: queue.avail_ring(),
            used: queue.used_ring(),
            next_available: queue.next_avail(),
            next_used: queue.next_used(),
            is_started: state.is_started,
            is_enabled: state.is_enabled,
            is_broken: state.is_broken,
            has_call: call.is_some(),
            has_error: error.is_some(),
            log_counter: log.as_ref().map_or(0, Log::counter),
        };
        Ok((described, eventfds))
    }

    /// Continues another process's queue; rings, size and log are already set. It stays paused.
    ///
    /// # Errors
    /// Its log is shorter than the queue.
    pub(crate) fn restore(
        &self,
        described: &QueueState,
        call: Option<OwnedFd>,
        error: Option<OwnedFd>,
    ) -> Result<(), Broken> {
        let mut state = self.lock();
        let size = state.queue.size();
        if let Some(log) = &mut state.log {
            if described.is_started && !described.is_broken && !log.fits(size) {
                return Err(Broken::Log);
            }
            log.set_counter(described.log_counter);
        }
        state.queue.set_next_avail(described.next_available);
        state.queue.set_next_used(described.next_used);
        (state.call, state.error) = (call, error);
        (state.is_started, state.is_enabled, state.is_broken) =
            (described.is_started, described.is_enabled, described.is_broken);
        Ok(())
    }

    /// Stops the queue when all that is in flight has been answered. Requests that wait for room
    /// fail. Returns the index of the next request.
    pub(crate) fn stop(&self) -> u16 {
        let mut state = self.lock();
        state.is_started = false;
        state = self.drain(state, true);
        // A request that broke the queue gets no answer, and must not run when the queue starts
        // again.
        state.log.iter().for_each(Log::clear);
        state.call = None;
        state.queue.next_avail()
    }

    /// Ends the queue with its frontend. Requests that wait for room stay in the log.
    pub(crate) fn abandon(&self) {
        let mut state = self.lock();
        state.is_started = false;
        drop(self.drain(state, false));
    }

    /// Waits until nothing is in flight. Requests that wait for room fail if `fails`, and else end
    /// without an answer. A running one may still find no room and begin to wait.
    fn drain<'a>(&'a self, mut state: MutexGuard<'a, State>, fails: bool) -> MutexGuard<'a, State> {
        loop {
            let heads = std::mem::take(&mut state.again);
            state.waiting = 0;
            state.counted.clear();
            match state.table().filter(|_| fails && !heads.is_empty()) {
                Some(table) => {
                    drop(state);
                    for InFlight { head, .. } in heads {
                        match Request::decode(&table, head, Vec::new()) {
                            Ok(request) => self.answer(&[(head, request.finish(&table.memory, Status::Failed))]),
                            Err(why) => drop(self.break_off(why)),
                        }
                    }
                    state = self.lock();
                }
                // Without the guest's memory, there can be no answer.
                None => state.in_flight = state.in_flight.saturating_sub(heads.len()),
            }
            if state.in_flight == 0 {
                return state;
            }
            state = self.drained.wait_timeout(state, PAUSE).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

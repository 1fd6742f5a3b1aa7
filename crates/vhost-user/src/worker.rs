//! Threads that serve queues.
//!
//! ```text
//! loop
//!     run requests until all queues are empty
//!     look at the rings for a while: a request that comes now costs no wake
//!     let drivers notify the device again; if requests have come, continue
//!     sleep until a queue's eventfd, or this thread's own, is written
//! ```
//!
//! A request that need not wait runs on the queue's thread. A request that has to wait for storage,
//! or is large, is a task of the executor, which answers it.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicBool,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use memmap2::MmapMut;
use pagefold_disk::{BlockDevice, Error};
use pagefold_executor::{Client, Device, Export, Memory, Polling, SCRATCH_BYTES, THREAD_BYTES, Taken};
use rustix::{
    event::{EventfdFlags, Timespec, epoll, eventfd},
    io::Errno,
};

use crate::{
    memory::GuestMemory,
    request::{Mode, Ran, Request, Segment, Status, read_together},
    vring::{Broken, Heads, InFlight, Vring},
};

/// Maximum number of requests taken from a queue together.
const BATCH: usize = 16;
/// A request with more data runs on another thread.
const MOST_INLINE_BYTES: u64 = 64 << 10;
/// Length of a thread's buffer if there is no memory for a longer one.
const SMALL_BUFFER_BYTES: usize = 16 << 10;
/// Interval between two tries of requests that wait for room.
const ROOM_PAUSE: Duration = Duration::from_millis(20);

/// The state that all threads of one frontend share.
pub(crate) struct Context {
    pub(crate) export: Arc<Export>,
    pub(crate) client: Arc<Client>,
    /// Whether writes may be done before they are durable.
    pub(crate) write_back: AtomicBool,
    /// Called when a queue is broken.
    pub(crate) report_broken: Box<dyn Fn(u16, Broken) + Send + Sync>,
}

impl Context {
    fn mode(&self, may_wait: bool) -> Mode {
        Mode { may_wait, most_bytes: MOST_INLINE_BYTES, write_through: !self.write_back.load(Relaxed) }
    }

    /// Waits until a request may begin. Calls `wait` first if it has to.
    fn pace(&self, request: &Request, wait: impl FnOnce()) {
        let access = self.client.access();
        if let Some(start) = access.rate.begin(request.cost_bytes()) {
            wait();
            access.rate.wait_until(start, &|| self.client.has_ended() || access.is_closed());
        }
    }
}

/// A thread that serves queues, which ends when this is dropped.
pub(crate) struct Worker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    context: Arc<Context>,
    epoll: OwnedFd,
    wake: OwnedFd,
    ended: AtomicBool,
    vrings: Mutex<Vec<Arc<Vring>>>,
    /// Whether there are more queues than the thread knows.
    has_more: AtomicBool,
}

impl Shared {
    fn vrings(&self) -> MutexGuard<'_, Vec<Arc<Vring>>> {
        self.vrings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // The counter cannot overflow: no thread is woken 2^64 times.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

/// Watches an eventfd, which is never read: each write to it wakes the thread once.
fn watch(epoll: &OwnedFd, eventfd: impl AsFd) -> Result<(), Errno> {
    epoll::add(epoll, eventfd, epoll::EventData::new_u64(0), epoll::EventFlags::IN | epoll::EventFlags::ET)
}

impl Worker {
    /// Starts a thread.
    pub(crate) fn start(context: Arc<Context>) -> io::Result<Self> {
        let (queues, taken) = Queues::new(context)?;
        let shared = Arc::clone(&queues.shared);
        let serve = move || {
            queues.work();
            drop(taken);
        };
        let thread = thread::Builder::new().name("vhost queue".to_owned()).spawn(serve)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Serves one more queue.
    pub(crate) fn serve(&self, vring: &Arc<Vring>) {
        let mut vrings = self.shared.vrings();
        if !vrings.iter().any(|served| served.number == vring.number) {
            vrings.push(Arc::clone(vring));
            self.shared.has_more.store(true, Release);
        }
    }

    /// Wakes the thread whenever an eventfd is written.
    pub(crate) fn watch(&self, kick: &OwnedFd) -> io::Result<()> {
        Ok(watch(&self.shared.epoll, kick)?)
    }

    /// Ends [`watch`](Self::watch).
    pub(crate) fn forget(&self, kick: &OwnedFd) {
        // Fails only if the eventfd is not watched.
        let _ = epoll::delete(&self.shared.epoll, kick);
    }

    /// Makes the thread look at its queues.
    pub(crate) fn wake(&self) {
        self.shared.wake();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shared.ended.store(true, Release);
        self.shared.wake();
        if let Some(thread) = self.thread.take() {
            // A panic has been reported, and its requests have failed.
            let _ = thread.join();
        }
    }
}

/// Returns a thread's buffer, a short one if memory is scarce.
fn buffer(memory: &Arc<Memory>) -> io::Result<(MmapMut, Taken)> {
    let large = memory.lend(THREAD_BYTES + SCRATCH_BYTES as u64).map(|taken| (SCRATCH_BYTES, taken));
    let (len, taken) = large
        .or_else(|| memory.take_work(0).map(|taken| (SMALL_BUFFER_BYTES, taken)))
        .ok_or_else(|| io::Error::new(io::ErrorKind::OutOfMemory, "the memory limit leaves no room for a thread"))?;
    Ok((MmapMut::map_anon(len)?, taken))
}

/// Gives up a queue's requests if the thread panics, so that no thread waits for them.
struct IfPanics<'a>(&'a Vring);

impl Drop for IfPanics<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.lose();
        }
    }
}

/// A thread's queues, and the state to serve them.
pub(crate) struct Queues {
    shared: Arc<Shared>,
    buf: MmapMut,
    heads: Vec<InFlight>,
    answers: Vec<(u16, u32)>,
    /// The allocation of the last request's segments.
    spare: Vec<Segment>,
    /// When requests that wait for room were last tried.
    tried: Instant,
}

impl Queues {
    /// Creates what a thread needs to serve queues, and reserves its memory.
    pub(crate) fn new(context: Arc<Context>) -> io::Result<(Self, Taken)> {
        let (buf, taken) = buffer(context.client.executor().memory())?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        watch(&epoll, &wake)?;
        let shared = Arc::new(Shared {
            context,
            epoll,
            wake,
            ended: AtomicBool::new(false),
            vrings: Mutex::default(),
            has_more: AtomicBool::new(false),
        });
        let (heads, answers, spare) = Default::default();
        Ok((Self { shared, buf, heads, answers, spare, tried: Instant::now() }, taken))
    }

    fn work(mut self) {
        let (mut polling, mut retry) = (Polling::default(), false);
        while !self.shared.ended.load(Acquire) {
            self.shared.has_more.store(false, Release);
            let vrings = self.shared.vrings().clone();
            let working = self.shared.context.client.executor().begin_work();
            let idle_since = self.run_until_idle(&vrings, polling.time(), retry);
            drop(working);
            if vrings.iter().any(|vring| vring.listen()) {
                retry = false;
                continue;
            }
            retry = vrings.iter().map(|vring| vring.count_waiting()).sum::<usize>() > 0;
            self.sleep(retry.then_some(ROOM_PAUSE));
            polling.slept(idle_since.elapsed());
        }
    }

    /// Runs requests until none has come for `poll`. Returns when the last ended.
    fn run_until_idle(&mut self, vrings: &[Arc<Vring>], poll: Duration, mut retry: bool) -> Instant {
        let mut idle_since = Instant::now();
        while !self.shared.ended.load(Relaxed) && !self.shared.has_more.load(Relaxed) {
            let (mut ran, mut found_room) = (false, false);
            for vring in vrings {
                let waiting = if retry { vring.count_waiting() } else { 0 };
                ran |= self.run(vring, waiting > 0);
                found_room |= waiting > 0 && vring.count_waiting() < waiting;
            }
            // Each round retries one request of each queue, until none finds room.
            retry = found_room;
            if ran {
                idle_since = Instant::now();
                // Queues that are always busy leave no idle moment to retry requests of the others.
                if idle_since.duration_since(self.tried) >= ROOM_PAUSE {
                    (self.tried, retry) = (idle_since, true);
                }
                continue;
            }
            let is_spare = !poll.is_zero() && self.shared.context.client.executor().has_spare_cpu();
            while is_spare && idle_since.elapsed() < poll && !vrings.iter().any(|vring| vring.has_requests()) {
                std::hint::spin_loop();
            }
            if !is_spare || idle_since.elapsed() >= poll {
                break;
            }
        }
        idle_since
    }

    fn sleep(&self, most: Option<Duration>) {
        let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 8];
        let timeout = most.map(|most| Timespec { tv_sec: 0, tv_nsec: most.subsec_nanos().into() });
        // Waiting fails only if a signal interrupts it.
        let _ = epoll::wait(&self.shared.epoll, &mut events[..], timeout.as_ref());
    }

    /// Runs some requests of a queue. Returns whether there were any.
    pub(crate) fn run(&mut self, vring: &Arc<Vring>, with_waiting: bool) -> bool {
        let context = Arc::clone(&self.shared.context);
        self.heads.clear();
        let Heads { table, again } = match vring.take(&mut self.heads, BATCH, with_waiting) {
            Ok(Some(heads)) if !self.heads.is_empty() => heads,
            Ok(_) => return false,
            Err(why) => {
                (context.report_broken)(vring.number, why);
                return false;
            }
        };
        let _lost = IfPanics(vring);
        let (device, mut left) = (context.client.device(), Vec::new());
        self.answers.clear();
        let mut heads = std::mem::take(&mut self.heads);
        for (number, InFlight { head, progress }) in heads.drain(..).enumerate() {
            let mut request = match Request::decode(&table, head, std::mem::take(&mut self.spare)) {
                Ok(request) => request,
                Err(why) => {
                    (context.report_broken)(vring.number, vring.break_off(why));
                    continue;
                }
            };
            request.start(&context.client.access().activity, number < again);
            let Some(device) = &device else {
                self.finish(request, &table.memory, Status::Failed);
                continue;
            };
            request.resume(progress);
            if number >= again {
                context.pace(&request, || vring.answer(&std::mem::take(&mut self.answers)));
            }
            left.extend(self.begin(vring, request, device, &table.memory));
        }
        self.heads = heads;
        vring.answer(&self.answers);
        if let Some(device) = device {
            self.hand_on(vring, left, &device, &table.memory);
        }
        true
    }

    /// Runs a request if it need not wait. Returns it if it has to.
    fn begin(&mut self, vring: &Vring, mut request: Request, device: &Device, memory: &GuestMemory) -> Option<Request> {
        let context = Arc::clone(&self.shared.context);
        match request.run(device, &|| context.export.name(), memory, &mut self.buf, context.mode(false)) {
            Ran::Done(status) => self.finish(request, memory, status),
            Ran::Blocks => return Some(request),
            Ran::NoRoom(waits) => {
                vring.wait_for_room(&request, &waits);
                self.spare = request.into_segments();
            }
        }
        None
    }

    fn finish(&mut self, mut request: Request, memory: &GuestMemory, status: Status) {
        let activity = &self.shared.context.client.access().activity;
        self.answers.push((request.head, request.end(activity, memory, status)));
        self.spare = request.into_segments();
    }

    /// Hands requests to other threads, or runs them here if none is free.
    fn hand_on(&mut self, vring: &Arc<Vring>, left: Vec<Request>, device: &Arc<Device>, memory: &Arc<GuestMemory>) {
        let client = Arc::clone(&self.shared.context.client);
        for requests in groups(left, device.read_unit_bytes()) {
            let mut job = Job {
                worker: Arc::clone(&self.shared),
                vring: Arc::clone(vring),
                device: Arc::clone(device),
                memory: Arc::clone(memory),
                requests,
            };
            let thread = if device.may_block() { client.reserve() } else { client.reserve_spare() };
            match thread {
                Some(thread) => thread.run(move |scratch| job.run(scratch)),
                None => job.run(&mut self.buf),
            }
        }
    }
}

/// Groups requests: neighbouring reads that begin in the same unit run together.
fn groups(left: Vec<Request>, unit_bytes: u64) -> Vec<Vec<Request>> {
    let mut groups: Vec<Vec<Request>> = Vec::new();
    let unit = |request: &Request| request.read_offset().map(|offset| offset / unit_bytes.max(1));
    let mut bytes = 0;
    for request in left {
        let last = groups.last_mut().filter(|group| {
            let fits = bytes + request.left_bytes() <= SCRATCH_BYTES as u64;
            fits && unit(&request).is_some() && group.last().is_some_and(|last| unit(last) == unit(&request))
        });
        match last {
            Some(group) => {
                bytes += request.left_bytes();
                group.push(request);
            }
            None => {
                bytes = request.left_bytes();
                groups.push(vec![request]);
            }
        }
    }
    groups
}

/// Work for the executor: one request that waits for storage or is large, or several reads.
struct Job {
    worker: Arc<Shared>,
    vring: Arc<Vring>,
    device: Arc<Device>,
    memory: Arc<GuestMemory>,
    /// Requests that have no answer yet.
    requests: Vec<Request>,
}

impl Job {
    /// Answers the last request, or makes it wait for room.
    fn finish(&mut self, ran: Ran) {
        let Some(mut request) = self.requests.pop() else { return };
        let status = match ran {
            Ran::Done(status) => status,
            Ran::NoRoom(waits) => {
                self.vring.wait_for_room(&request, &waits);
                return self.worker.wake();
            }
            // A request that may wait always finishes.
            Ran::Blocks => Status::Failed,
        };
        let activity = &self.worker.context.client.access().activity;
        self.vring.answer(&[(request.head, request.end(activity, &self.memory, status))]);
    }

    /// Runs the last request.
    fn run_last(&mut self, scratch: &mut [u8]) -> Ran {
        let context = &self.worker.context;
        let Some(request) = self.requests.last_mut() else { return Ran::Blocks };
        let name = || context.export.name();
        request.run(&self.device, &name, &self.memory, scratch, context.mode(true))
    }

    /// Runs all requests.
    fn run(&mut self, scratch: &mut [u8]) {
        let left_bytes: u64 = self.requests.iter().map(Request::left_bytes).sum();
        if self.requests.len() > 1 && left_bytes <= scratch.len() as u64 {
            let results = read_together(&mut self.requests, &self.device, &self.memory, scratch);
            let status = |result: Result<(), Error>| if result.is_ok() { Status::Ok } else { Status::Failed };
            results.into_iter().rev().for_each(|result| self.finish(Ran::Done(status(result))));
        }
        while !self.requests.is_empty() {
            let ran = self.run_last(scratch);
            self.finish(ran);
        }
    }
}

/// Requests fail if their task panicked, or if no thread has run it when the server ends.
impl Drop for Job {
    fn drop(&mut self) {
        let activity = &self.worker.context.client.access().activity;
        for mut request in self.requests.drain(..) {
            self.vring.answer(&[(request.head, request.end(activity, &self.memory, Status::Failed))]);
        }
    }
}

//! Threads that serve queues.
//!
//! ```text
//! until no request can come, or the queue is ended and all requests that have begun have their answers
//!     send the answers that are there; sleep until there is a request or another answer
//!     unless the queue is ended: run each request that need not wait, and let threads of the executor
//!     run the others
//! ```
//!
//! Answers of other threads wake the queue's thread, which alone may send them.
//!
//! Requests that come after the end have no answer until the process ends: the driver then fails them, or
//! keeps them for the server that recovers the device. Until then the ring stays open. Linux 6.12 faults
//! when a process closes the rings of a device under load and continues.

use std::{
    io,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use memmap2::MmapMut;
use pagefold_disk::BlockDevice;
use pagefold_executor::{Change, Completion, Device, Operation, SCRATCH_BYTES, Scratch, THREAD_BYTES, Taken};

use crate::{
    abi::{Layout, MAX_DATA_BYTES},
    queue::Queue,
    request::{Kind, Reply, Request, read},
    ring::{Event, Ring},
};

// A thread's buffer has room for the data of any request.
const _: () = assert!(MAX_DATA_BYTES <= SCRATCH_BYTES);

/// A request that moves or clears more runs on another thread.
const MOST_INLINE_BYTES: u64 = 64 << 10;

/// While a thread waits until a request may begin, it sends answers at least this often.
const SLICE: Duration = Duration::from_millis(50);

/// Serves a queue in this thread until the driver has no more requests, or until the queue is
/// ended; then returns what has to stay open. Calls `report` when the queue has all that it needs.
/// `may_fetch` then says whether all queues have that. If so, calls `report` again once requests
/// can arrive. If only some queues of a device were served, it could neither start nor be served
/// again.
pub(crate) fn serve(
    queue: Arc<Queue>,
    layout: Layout,
    report: impl Fn(io::Result<()>),
    may_fetch: impl FnOnce() -> bool,
) -> Option<Left> {
    let mut worker = match Worker::open(queue, layout) {
        Ok(worker) => worker,
        Err(error) => {
            report(Err(error));
            return None;
        }
    };
    report(Ok(()));
    if !may_fetch() {
        return None;
    }
    let fetched = worker.ring.fetch();
    let is_fetched = fetched.is_ok();
    report(fetched);
    // If the ring fails, the driver treats the queue as abandoned.
    (is_fetched && worker.work().is_ok()).then(|| Left { ring: worker.ring, tags: worker.tags })
}

/// A queue whose requests are left to the driver.
pub(crate) struct Left {
    ring: Ring,
    tags: usize,
}

impl Left {
    /// Keeps the ring open until the device is stopped, or the process ends.
    pub(crate) fn keep(mut self) {
        let mut events = Vec::new();
        while self.tags > 0 && self.ring.wait().is_ok() {
            self.ring.take(&mut events);
            self.tags -= events.drain(..).filter(|event| *event == Event::Gone).count().min(self.tags);
        }
    }
}

struct Worker {
    queue: Arc<Queue>,
    ring: Ring,
    buf: MmapMut,
    _taken: Taken,
    /// Number of tags with which requests may still arrive.
    tags: usize,
    /// Requests that have begun and have no answer.
    running: usize,
    /// Kept empty, to reuse its allocation.
    answers: Vec<(u16, i32)>,
}

impl Worker {
    fn open(queue: Arc<Queue>, layout: Layout) -> io::Result<Self> {
        let taken = queue.client().executor().memory().lend(THREAD_BYTES + SCRATCH_BYTES as u64);
        let short = || io::Error::new(io::ErrorKind::OutOfMemory, "the memory limit leaves no room for a thread");
        let taken = taken.ok_or_else(short)?;
        let buf = MmapMut::map_anon(SCRATCH_BYTES)?;
        let ring = Ring::open(queue.file(), queue.wakes(), queue.number(), layout)?;
        Ok(Self { queue, ring, buf, _taken: taken, tags: layout.depth.into(), running: 0, answers: Vec::new() })
    }

    fn work(&mut self) -> io::Result<()> {
        let mut events = Vec::new();
        loop {
            self.collect()?;
            if self.tags == 0 || self.queue.has_ended().load(Relaxed) && self.running == 0 {
                return self.ring.submit();
            }
            if self.queue.may_sleep() {
                let waited = self.ring.wait();
                self.queue.woken();
                waited?;
            }
            let queue = Arc::clone(&self.queue);
            let _working = queue.client().executor().begin_work();
            self.ring.take(&mut events);
            let device = queue.client().device();
            for event in events.drain(..) {
                match event {
                    Event::Woken => {
                        let mut count = [0; 8];
                        // The eventfd is readable.
                        let _ = rustix::io::read(&**queue.wakes(), &mut count);
                        self.ring.watch()?;
                    }
                    Event::Gone => self.tags -= 1,
                    Event::Request(_) if queue.has_ended().load(Relaxed) => {}
                    Event::Request(tag) => {
                        self.running += 1;
                        self.begin(tag, device.as_ref())?;
                    }
                }
            }
        }
    }

    /// Passes available answers to the ring.
    fn collect(&mut self) -> io::Result<()> {
        self.queue.take_answers(&mut self.answers);
        for (tag, result) in self.answers.drain(..) {
            self.ring.answer(tag, result)?;
            self.running -= 1;
        }
        Ok(())
    }

    /// Runs a request here or on another thread.
    fn begin(&mut self, tag: u16, device: Option<&Arc<Device>>) -> io::Result<()> {
        let descriptor = self.ring.descriptor(tag).ok_or(io::ErrorKind::InvalidData)?;
        let request = match Request::decode(descriptor) {
            Ok(request) => request,
            Err(errno) => {
                self.queue.client().access().activity.refuse(Operation::Other);
                self.queue.answer(tag, -errno.raw_os_error());
                return Ok(());
            }
        };
        let mut reply = Reply::new(&self.queue, tag, &request);
        let Some(device) = device else {
            reply.done(Err(pagefold_executor::Failed::Removed));
            return Ok(());
        };
        self.pace(&request)?;
        let Request { kind, offset, len_bytes } = request;
        match kind {
            Kind::Read => self.read(device, request, reply),
            Kind::Write { through } => {
                let data = &mut self.buf[..request.data_bytes()];
                if reply.receive(data) {
                    begin_change(Change::write(offset, &*data), reply, through && device.may_block());
                }
            }
            Kind::Flush => flush(device, reply),
            Kind::Discard => begin_change(Change::discard(offset, len_bytes), reply, len_bytes > MOST_INLINE_BYTES),
            Kind::WriteZeroes(zeroes) => {
                let is_long = len_bytes > MOST_INLINE_BYTES;
                begin_change(Change::write_zeroes(offset, len_bytes, zeroes), reply, is_long);
            }
        }
        Ok(())
    }

    /// Waits until a request may begin, and sends answers in that time.
    fn pace(&mut self, request: &Request) -> io::Result<()> {
        let queue = Arc::clone(&self.queue);
        let access = queue.client().access();
        if request.data_bytes() == 0 {
            return Ok(());
        }
        let Some(start) = access.rate.begin(request.len_bytes) else { return Ok(()) };
        let ends = || queue.has_ended().load(Relaxed) || access.is_closed();
        loop {
            self.collect()?;
            self.ring.submit()?;
            access.rate.wait_until(start.min(Instant::now() + SLICE), &ends);
            if !access.rate.is_set() || ends() || Instant::now() >= start {
                return Ok(());
            }
        }
    }

    fn read(&mut self, device: &Arc<Device>, request: Request, reply: Reply) {
        let client = self.queue.client();
        if request.len_bytes <= MOST_INLINE_BYTES {
            let data = &mut self.buf[..request.data_bytes()];
            match device.try_read(request.offset, data) {
                Ok(got) if got < data.len() => {}
                result => return reply.read(result.map(|_| &*data)),
            }
        }
        let thread = if device.may_block() { client.reserve() } else { client.reserve_spare() };
        match thread {
            Some(thread) => {
                let device = Arc::clone(device);
                thread.run(move |scratch| read(&device, &request, scratch, reply));
            }
            None => read(device, &request, &mut self.buf, reply),
        }
    }
}

/// Runs a change until it would have to wait. If it is long, another thread does all of it.
fn begin_change(change: Change<&[u8]>, reply: Reply, is_long: bool) {
    if is_long {
        if let Err((change, reply)) = change.hand_on(reply) {
            change.finish(reply);
        }
    } else {
        change.start(reply);
    }
}

fn flush(device: &Arc<Device>, reply: Reply) {
    match device.try_flush() {
        Ok(false) => {}
        result => return reply.finish(result.map(drop)),
    }
    let client = Arc::clone(reply.client());
    let waiting = Arc::clone(device);
    if let Err(work) = client.hand_on(move |_: &mut Scratch| reply.finish(waiting.flush())) {
        work(&mut Scratch::default());
    }
}

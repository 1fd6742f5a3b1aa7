//! Devices that are served.

use std::{
    fmt,
    fs::File,
    io,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use pagefold_executor::Client;

use crate::{
    abi::{Layout, MAX_DEPTH, MAX_QUEUES},
    attendant::serve,
    queue::Queue,
};

/// A device that threads of this process serve: one for each queue. They end when the device is stopped.
/// When this is dropped, they end after the requests that run. Further requests wait until the process
/// ends; the device then waits for a server that recovers it, or fails.
pub struct Served {
    /// The threads own the queues, so that the client is gone when the threads end.
    queues: Vec<Weak<Queue>>,
    ended: Arc<AtomicBool>,
    threads: Arc<Threads>,
}

/// The threads of a device that have not ended.
#[derive(Default)]
struct Threads {
    count: Mutex<usize>,
    ended: Condvar,
}

impl Threads {
    fn lock(&self) -> MutexGuard<'_, usize> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(self: &Arc<Self>) -> Counted {
        *self.lock() += 1;
        Counted(Arc::clone(self))
    }
}

/// Counts a thread until it ends.
struct Counted(Arc<Threads>);

impl Drop for Counted {
    fn drop(&mut self) {
        *self.0.lock() -= 1;
        self.0.ended.notify_all();
    }
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Served").field("queues", &self.queues.len()).finish_non_exhaustive()
    }
}

impl Served {
    /// Serves a device, whose file was just opened, from the export of `client`. When this returns, the
    /// device can be started.
    ///
    /// # Errors
    /// The layout is not the device's, memory is short, or this process may not use io_uring.
    pub fn start(file: File, layout: Layout, client: Arc<Client>) -> io::Result<Self> {
        let Layout { queues, depth } = layout;
        if !(1..=MAX_QUEUES).contains(&queues) || !(1..=MAX_DEPTH).contains(&depth) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many queues or requests for a ublk device"));
        }
        let (file, ended, threads) = (Arc::new(file), Arc::new(AtomicBool::new(false)), Arc::<Threads>::default());
        // Ends the other threads if one cannot start.
        let mut served = Self { queues: Vec::new(), ended, threads };
        let (sender, receiver) = mpsc::channel();
        // Dropped before `served`, which waits for the threads.
        let mut may_fetch = Vec::new();
        for number in 0..queues {
            let queue = Arc::new(Queue::new(&client, &file, number, &served.ended)?);
            served.queues.push(Arc::downgrade(&queue));
            let (sender, counted) = (sender.clone(), served.threads.begin());
            let (permit, permitted) = mpsc::channel();
            may_fetch.push(permit);
            let body = move || {
                // If nothing receives this any more, the start has failed.
                let report = |result| drop(sender.send(result));
                let left = serve(queue, layout, report, || permitted.recv().is_ok());
                drop(counted);
                if let Some(left) = left {
                    left.keep();
                }
            };
            thread::Builder::new().name("ublk queue".to_owned()).spawn(body)?;
        }
        drop((sender, file, client));
        let wait_for_all = || -> io::Result<()> {
            for _ in 0..queues {
                receiver.recv().map_err(|_| io::Error::other("a thread has ended"))??;
            }
            Ok(())
        };
        wait_for_all()?;
        for permit in &may_fetch {
            permit.send(()).map_err(|_| io::Error::other("a thread has ended"))?;
        }
        wait_for_all()?;
        Ok(served)
    }

    /// Returns whether all threads have ended, as they do when the device is stopped.
    pub fn has_ended(&self) -> bool {
        *self.threads.lock() == 0
    }

    /// Makes current and later requests fail instead of waiting for room: a driver that stops the
    /// device waits for its requests.
    pub fn refuse_waiting(&self) {
        // All queues have the same client.
        if let Some(queue) = self.queues.iter().find_map(Weak::upgrade) {
            queue.client().end();
        }
    }

    /// Ends the threads once their current requests are done; none of these waits for room any
    /// longer. Returns whether all threads ended within `grace`.
    pub fn end(&self, grace: Duration) -> bool {
        self.ended.store(true, SeqCst);
        self.refuse_waiting();
        self.queues.iter().filter_map(Weak::upgrade).for_each(|queue| queue.wake());
        let deadline = Instant::now().checked_add(grace);
        let mut count = self.threads.lock();
        while *count > 0 {
            let left = deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return false;
            }
            count = self.threads.ended.wait_timeout(count, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.end(Duration::MAX);
    }
}

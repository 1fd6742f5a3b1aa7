//! Open files. Each is a client of its export.

use std::{
    collections::{HashMap, VecDeque},
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    time::Instant,
};

use fuser::{Errno, FileHandle, INodeNo};
use pagefold_executor::{Client, ClientLimits, Device, Executor, Export, OpenError, Scratch};

use crate::handover::OpenState;

/// Threads of the executor for one open file, and bytes of the buffers of changes that wait: as for
/// a connection.
const LIMITS: ClientLimits = ClientLimits { threads: 16, memory_bytes: 8 << 20 };

/// Handles taken over from another process are smaller than this.
const MAX_TAKEN_HANDLES: u64 = 1 << 63;

/// Work of an open file that waits for its turn.
type Paced = Box<dyn FnOnce() + Send>;

/// Work that may wait for storage. It gets the buffers of a thread of the executor, or none.
type Work = Box<dyn FnOnce(&mut Scratch) + Send>;

/// An open file.
pub(crate) struct OpenFile {
    pub(crate) client: Arc<Client>,
    number: INodeNo,
    /// Set when the file is closed or the mount ends. The client ends earlier if no change may wait
    /// for room.
    ended: AtomicBool,
    /// Requests that wait because of the rate of the export's clients. A thread runs them in order;
    /// `None` if there is no such thread.
    paced: Mutex<Option<VecDeque<(Instant, Paced)>>>,
    queue: Mutex<Queue>,
}

/// Work of a file for which there is no thread yet. Threads that have finished take it.
#[derive(Default)]
struct Queue {
    /// Threads that work for the file. If there are none, no work waits.
    running: usize,
    waiting: VecDeque<Work>,
}

/// Counts a thread that works for a file. If its work panics and it was the only one, what waits is
/// dropped, which replies EIO.
struct Running<'a>(&'a OpenFile);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.lock_queue();
        queue.running -= 1;
        let dropped = if queue.running == 0 { std::mem::take(&mut queue.waiting) } else { VecDeque::new() };
        drop(queue);
        drop(dropped);
    }
}

impl OpenFile {
    fn new(client: Arc<Client>, number: INodeNo) -> Arc<Self> {
        let (ended, paced, queue) = (AtomicBool::new(false), Mutex::default(), Mutex::default());
        Arc::new(Self { client, number, ended, paced, queue })
    }

    /// Returns the device.
    ///
    /// # Errors
    /// ESHUTDOWN once the export has been removed, or the server is stopping.
    pub(crate) fn device(&self) -> Result<Arc<Device>, Errno> {
        if self.has_ended() {
            return Err(Errno::ESHUTDOWN);
        }
        self.client.device().ok_or(Errno::ESHUTDOWN)
    }

    /// Returns whether further requests fail.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Acquire)
    }

    /// Makes further requests fail, and those that wait for room.
    fn end(&self) {
        self.ended.store(true, Release);
        self.client.end();
    }

    /// Waits until `start`, when the rate of the export's clients allows the next request.
    pub(crate) fn pace(&self, start: Instant) {
        let access = self.client.access();
        access.rate.wait_until(start, &|| self.has_ended() || access.is_closed());
    }

    /// Runs `work` at `start`, after other work that waits. One thread waits for all work of the
    /// file: one of the executor or, if none is free, this one.
    pub(crate) fn run_at(self: &Arc<Self>, start: Instant, work: impl FnOnce() + Send + 'static) {
        let mut paced = self.lock_paced();
        if let Some(paced) = &mut *paced {
            return paced.push_back((start, Box::new(work)));
        }
        *paced = Some(VecDeque::from([(start, Box::new(work) as Paced)]));
        drop(paced);
        let pacing = Pacing { file: Arc::clone(self), is_done: false };
        self.hand_on(move |_| pacing.run());
    }

    /// Makes a thread of the executor run `work`. If the file has its maximum of threads, one of
    /// them runs it later. So a file whose storage hangs does not occupy the threads that receive
    /// requests. Only if the executor has no thread at all does this thread run it.
    pub(crate) fn hand_on(self: &Arc<Self>, work: impl FnOnce(&mut Scratch) + Send + 'static) {
        let work: Work = Box::new(work);
        let mut queue = self.lock_queue();
        let thread = self.client.reserve();
        if thread.is_none() && queue.running > 0 {
            return queue.waiting.push_back(work);
        }
        queue.running += 1;
        drop(queue);
        match thread {
            Some(thread) => {
                let file = Arc::clone(self);
                thread.run(move |scratch| file.run(work, scratch));
            }
            None => self.run(work, &mut Scratch::default()),
        }
    }

    fn lock_queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work`, and then what waits.
    fn run(&self, mut work: Work, scratch: &mut Scratch) {
        let running = Running(self);
        loop {
            work(scratch);
            let mut queue = self.lock_queue();
            match queue.waiting.pop_front() {
                Some(next) => work = next,
                None => {
                    queue.running -= 1;
                    break;
                }
            }
        }
        std::mem::forget(running);
    }

    fn lock_paced(&self) -> MutexGuard<'_, Option<VecDeque<(Instant, Paced)>>> {
        self.paced.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs a file's paced work in order. If work panics, or no thread runs this, waiting work is
/// dropped, which replies EIO, and later work starts a new one.
struct Pacing {
    file: Arc<OpenFile>,
    is_done: bool,
}

impl Pacing {
    fn run(mut self) {
        loop {
            let mut paced = self.file.lock_paced();
            let Some((start, work)) = paced.as_mut().and_then(VecDeque::pop_front) else {
                *paced = None;
                self.is_done = true;
                return;
            };
            drop(paced);
            self.file.pace(start);
            work();
        }
    }
}

impl Drop for Pacing {
    fn drop(&mut self) {
        if !self.is_done {
            let dropped = self.file.lock_paced().take();
            drop(dropped);
        }
    }
}

/// All open files of a mount.
pub(crate) struct OpenFiles {
    executor: Arc<Executor>,
    /// By handle. `None` if the disk was dropped before another process handed the file over.
    files: RwLock<HashMap<u64, Option<Arc<OpenFile>>>>,
    next: AtomicU64,
    /// Closed files that had requests in progress.
    closed: Mutex<Vec<Weak<OpenFile>>>,
    /// No file may be opened any more.
    ended: AtomicBool,
}

impl OpenFiles {
    pub(crate) fn new(executor: Arc<Executor>) -> Self {
        let (files, closed) = (RwLock::default(), Mutex::default());
        Self { executor, files, next: AtomicU64::new(0), closed, ended: AtomicBool::new(false) }
    }

    /// Opens what another process had open. `export` returns the export of a file with this number, if it
    /// still exists.
    ///
    /// # Errors
    /// Memory is too short for all of them, or the handles are not valid.
    pub(crate) fn taken(
        executor: Arc<Executor>,
        states: &[OpenState],
        next: u64,
        export: impl Fn(INodeNo) -> Option<Arc<Export>>,
    ) -> io::Result<Self> {
        let mut files = HashMap::new();
        for &OpenState { handle, number, waits } in states {
            let client = match export(INodeNo(number)).map(|export| Client::reopen(&executor, &export, LIMITS)) {
                Some(Ok(client)) => Some(client),
                None | Some(Err(OpenError::Removed)) => None,
                Some(Err(error)) => return Err(io::Error::new(io::ErrorKind::OutOfMemory, error)),
            };
            client.iter().filter(|_| !waits).for_each(|client| client.end());
            let file = client.map(|client| OpenFile::new(client, INodeNo(number)));
            if handle >= next || next > MAX_TAKEN_HANDLES || files.insert(handle, file).is_some() {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the handles of open files are wrong"));
            }
        }
        Ok(Self { files: RwLock::new(files), next: AtomicU64::new(next), ..Self::new(executor) })
    }

    /// Returns what another process needs to continue, and the next handle.
    pub(crate) fn states(&self) -> (Vec<OpenState>, u64) {
        let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
        let states = files.iter().map(|(&handle, file)| OpenState {
            handle,
            number: file.as_ref().map_or(0, |file| file.number.0),
            waits: file.as_ref().is_none_or(|file| !file.client.has_ended()),
        });
        (states.collect(), self.next.load(Relaxed))
    }

    /// Returns the number of a file that has requests in progress: each holds the file until its
    /// reply is sent.
    pub(crate) fn busy(&self) -> Option<INodeNo> {
        let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
        let busy = files.values().flatten().find(|file| Arc::strong_count(file) > 1).map(|file| file.number);
        drop(files);
        let closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        busy.or_else(|| closed.iter().find_map(Weak::upgrade).map(|file| file.number))
    }

    /// Opens the file with this number, which is that of `export`.
    ///
    /// # Errors
    /// ESTALE if the export was removed; EUSERS if it has as many clients as its quota allows; ENFILE
    /// if the memory limit leaves no room for another; ESHUTDOWN if the server is stopping.
    pub(crate) fn open(&self, number: INodeNo, export: &Export) -> Result<(FileHandle, Arc<OpenFile>), Errno> {
        let client = Client::open(&self.executor, export, LIMITS).map_err(|error| match error {
            OpenError::Full(_) => Errno::EUSERS,
            OpenError::Memory | OpenError::ServerFull(_) => Errno::ENFILE,
            _ => Errno::ESTALE,
        })?;
        let file = OpenFile::new(client, number);
        let handle = self.next.fetch_add(1, Relaxed);
        let mut files = self.files.write().unwrap_or_else(PoisonError::into_inner);
        // Checked under the lock, so that `end` finds all others.
        if self.ended.load(Relaxed) {
            return Err(Errno::ESHUTDOWN);
        }
        files.insert(handle, Some(Arc::clone(&file)));
        Ok((FileHandle(handle), file))
    }

    /// Returns an open file.
    ///
    /// # Errors
    /// EBADF if there is none; ESHUTDOWN if its disk was dropped.
    pub(crate) fn get(&self, handle: FileHandle) -> Result<Arc<OpenFile>, Errno> {
        let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
        files.get(&handle.0).ok_or(Errno::EBADF)?.clone().ok_or(Errno::ESHUTDOWN)
    }

    /// Closes a file. Its requests that are in progress continue.
    pub(crate) fn close(&self, handle: FileHandle) {
        let closed = self.files.write().unwrap_or_else(PoisonError::into_inner).remove(&handle.0);
        let Some(file) = closed.flatten() else { return };
        file.end();
        if Arc::strong_count(&file) > 1 {
            let mut closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
            closed.retain(|file| file.strong_count() > 0);
            closed.push(Arc::downgrade(&file));
        }
    }

    /// For each open of the file with this number: makes requests that wait for room, or would,
    /// fail with ENOSPC.
    pub(crate) fn refuse_waiting(&self, number: INodeNo) {
        let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
        files.values().flatten().filter(|file| file.number == number).for_each(|file| file.client.end());
    }

    /// Returns whether requests fail because of [`end`](Self::end).
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Relaxed)
    }

    /// Makes requests of all files fail: those that wait for room, and further ones.
    pub(crate) fn end(&self) {
        let files = self.files.write().unwrap_or_else(PoisonError::into_inner);
        self.ended.store(true, Relaxed);
        files.values().flatten().for_each(|file| file.end());
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread, time::Duration};

    use pagefold_disk::{Pool, PoolConfig, RamDisk};
    use pagefold_executor::Memory;

    use super::*;

    fn file(threads: usize) -> Arc<OpenFile> {
        let pool = Pool::new(PoolConfig::default()).expect("a pool");
        let export = Export::new("a", Arc::new(RamDisk::new(&pool, 4096).expect("a disk")));
        let executor = Arc::new(Executor::new(threads, Memory::new(u64::MAX, None)));
        OpenFiles::new(executor).open(INodeNo(2), &export).expect("a client").1
    }

    /// Work that panics drops the work queued behind it, but later work runs.
    #[test]
    fn paced_work_goes_on_after_a_panic() {
        let file = file(4);
        let (sender, receiver) = mpsc::channel();
        let (open, gate) = mpsc::channel();
        file.run_at(Instant::now(), move || {
            let () = gate.recv().expect("the test");
            panic!("the test's own");
        });
        let lost = sender.clone();
        file.run_at(Instant::now(), move || lost.send("lost").expect("a receiver"));
        open.send(()).expect("work that waits");
        while file.lock_paced().is_some() {
            thread::sleep(Duration::from_millis(1));
        }
        file.run_at(Instant::now(), move || sender.send("run").expect("a receiver"));
        assert_eq!(receiver.recv_timeout(Duration::from_secs(60)), Ok("run"));
        assert!(receiver.recv().is_err(), "work behind the panic has run");
    }
}

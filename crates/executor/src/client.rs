//! Clients of exports: their requests in progress, and the resources that they hold.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicUsize,
            Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
        },
    },
};

use crate::{
    executor::{Batch, Executor, Reserved, Task},
    export::{Access, Device, Export},
    memory::Share,
    scratch::Scratch,
};

/// Why an export cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The export was removed.
    #[error("the export was removed")]
    Removed,
    /// The export has its maximum number of clients.
    #[error("all {0} connections that the export may have are in use")]
    Full(usize),
    /// The server has its maximum number of clients.
    #[error("all {0} connections that the server allows are in use, or kept for other exports")]
    ServerFull(usize),
    /// The server's account has no room for another client.
    #[error("the memory limit leaves no room for another client")]
    Memory,
}

/// The maximum that one client may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientLimits {
    /// Threads of the executor.
    pub threads: usize,
    /// Bytes of buffers.
    pub memory_bytes: usize,
}

/// A client's minimum memory and its place, both released when the client ends.
type Kept = Box<dyn Send + Sync>;

/// One client of an export: a connection, an open file, a queue. The export is in use while it
/// exists.
pub struct Client {
    executor: Arc<Executor>,
    access: Arc<Access>,
    share: Arc<Share>,
    most_threads: usize,
    /// Work that threads of the executor do for it.
    tasks: AtomicUsize,
    /// Changes that were set aside.
    pub(crate) aside: AtomicUsize,
    /// Whether buffers are kept while there is no task.
    keeps_buffers: AtomicBool,
    ended: AtomicBool,
    _keeps: Option<Kept>,
}

impl Client {
    /// Opens an export, which counts the client as one of its connections.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(executor: &Arc<Executor>, export: &Export, limits: ClientLimits) -> Result<Arc<Self>, OpenError> {
        Self::open_in(executor, export, limits, ())
    }

    /// Like `open`, for a client with a place among those of a server, which it holds while it exists.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_in<P: Send + Sync + 'static>(
        executor: &Arc<Executor>,
        export: &Export,
        limits: ClientLimits,
        place: P,
    ) -> Result<Arc<Self>, OpenError> {
        let access = export.open().ok_or(OpenError::Removed)?;
        export.seat(&access).map_err(OpenError::Full)?;
        let idle = executor.memory().take_idle().ok_or(OpenError::Memory)?;
        Ok(Self::made(executor, access, limits, Some(Box::new((idle, place)))))
    }

    /// Like `open`, for a client taken over from another process. It gets a place even above the
    /// quota.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn reopen(executor: &Arc<Executor>, export: &Export, limits: ClientLimits) -> Result<Arc<Self>, OpenError> {
        let access = export.reopen().ok_or(OpenError::Removed)?;
        let idle = executor.memory().take_idle().ok_or(OpenError::Memory)?;
        Ok(Self::made(executor, access, limits, Some(Box::new(idle))))
    }

    /// Creates a client of an open export. The caller counts its minimum memory.
    pub fn of_access(executor: &Arc<Executor>, access: Arc<Access>, limits: ClientLimits) -> Arc<Self> {
        Self::made(executor, access, limits, None)
    }

    fn made(executor: &Arc<Executor>, access: Arc<Access>, limits: ClientLimits, keeps: Option<Kept>) -> Arc<Self> {
        Arc::new(Self {
            share: Share::new(Arc::clone(executor.memory()), limits.memory_bytes),
            executor: Arc::clone(executor),
            access,
            most_threads: limits.threads,
            tasks: AtomicUsize::new(0),
            aside: AtomicUsize::new(0),
            keeps_buffers: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            _keeps: keeps,
        })
    }

    /// Returns the threads that work for this client.
    pub fn executor(&self) -> &Arc<Executor> {
        &self.executor
    }

    /// Returns its access to the device.
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// Returns the device, or `None` once the export has been removed.
    pub fn device(&self) -> Option<Arc<Device>> {
        self.access.device()
    }

    /// Returns the memory that its requests borrow.
    pub fn share(&self) -> &Arc<Share> {
        &self.share
    }

    /// Sets whether buffers are kept for its next requests while no task is in progress. Clients
    /// that were just created keep none.
    pub fn keep_buffers(&self, keeps: bool) {
        self.keeps_buffers.store(keeps, SeqCst);
        if !keeps {
            self.share.trim();
        }
    }

    /// Returns whether threads of the executor work for this client.
    pub fn is_busy(&self) -> bool {
        self.tasks.load(Relaxed) > 0
    }

    /// Returns whether this client may use one more thread of the executor.
    pub fn may_have_thread(&self) -> bool {
        self.tasks.load(Relaxed) < self.most_threads
    }

    /// Reserves a thread, unless the client uses as many as it may.
    pub fn reserve(self: &Arc<Self>) -> Option<Thread> {
        let in_progress = self.try_begin_task()?;
        Some(Thread { reserved: self.executor.reserve()?, in_progress })
    }

    /// Like `reserve`, for a thread with a CPU that is spare.
    pub fn reserve_spare(self: &Arc<Self>) -> Option<Thread> {
        let in_progress = self.try_begin_task()?;
        Some(Thread { reserved: self.executor.reserve_spare()?, in_progress })
    }

    /// Counts a task until the result is dropped, unless the client uses as many threads as it may.
    pub fn try_begin_task(self: &Arc<Self>) -> Option<InProgress> {
        let more = |tasks| (tasks < self.most_threads).then_some(tasks + 1);
        self.tasks.fetch_update(Relaxed, Relaxed, more).ok()?;
        Some(InProgress(Arc::clone(self)))
    }

    /// Makes a free thread call `work`. See [`Thread::run`].
    ///
    /// # Errors
    /// There is none; returns `work`.
    pub fn hand_on<F: FnOnce(&mut Scratch) + Send + 'static>(self: &Arc<Self>, work: F) -> Result<(), F> {
        match self.reserve() {
            Some(thread) => {
                thread.run(work);
                Ok(())
            }
            None => Err(work),
        }
    }

    /// Ends the client: its changes no longer wait for room.
    pub fn end(&self) {
        self.ended.store(true, Release);
        if self.aside.load(SeqCst) > 0 {
            self.executor.waiting.wake();
        }
    }

    /// Returns whether this client was ended.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Acquire)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("access", &self.access).field("tasks", &self.tasks).finish_non_exhaustive()
    }
}

/// Counts a task of a client until it is dropped.
#[derive(Debug)]
pub struct InProgress(Arc<Client>);

impl Drop for InProgress {
    fn drop(&mut self) {
        let client = &self.0;
        if client.tasks.fetch_sub(1, AcqRel) == 1 && !client.keeps_buffers.load(SeqCst) {
            client.share.trim();
        }
    }
}

/// A thread of the executor that is reserved for a client's work, and counts as the client's until
/// the work is done.
pub struct Thread {
    reserved: Reserved,
    in_progress: InProgress,
}

impl Thread {
    /// Makes the thread call `work`, with its buffers. Its result is dropped once the thread no
    /// longer uses the client.
    pub fn run<R>(self, work: impl FnOnce(&mut Scratch) -> R + Send + 'static) {
        self.run_task(|in_progress| Box::new(Work { work, in_progress }));
    }

    /// Makes the thread run the task that `make` returns. The task keeps the count.
    pub fn run_task(self, make: impl FnOnce(InProgress) -> Box<dyn Task>) {
        self.reserved.run(make(self.in_progress));
    }

    /// Makes the thread, and others with a spare CPU, help with the batch that `make` returns. The
    /// batch keeps the count of its first helper; others have their own.
    pub fn share<B: Batch + 'static>(self, make: impl FnOnce(InProgress) -> Arc<B>) -> Arc<B> {
        let batch = make(self.in_progress);
        self.reserved.share(Arc::clone(&batch) as _);
        batch
    }
}

impl fmt::Debug for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Thread").field("in_progress", &self.in_progress).finish_non_exhaustive()
    }
}

struct Work<F> {
    work: F,
    /// Dropped after `work`, so that its buffers are returned first.
    in_progress: InProgress,
}

impl<R, F: FnOnce(&mut Scratch) -> R + Send> Task for Work<F> {
    fn run(self: Box<Self>, scratch: &mut Scratch) {
        let Self { work, in_progress } = *self;
        let last = work(scratch);
        drop(in_progress);
        drop(last);
    }
}

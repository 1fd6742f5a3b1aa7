//! A queue of requests, and the threads that run them.

use std::{
    fs::File,
    io, mem,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use pagefold_executor::Client;
use rustix::event::{EventfdFlags, eventfd};

/// The state shared by the threads that run a queue's requests.
pub(crate) struct Queue {
    client: Arc<Client>,
    file: Arc<File>,
    number: u16,
    ended: Arc<AtomicBool>,
    /// Tags and results.
    answers: Mutex<Vec<(u16, i32)>>,
    /// Whether the queue's thread must be woken to see an answer.
    sleeps: AtomicBool,
    wake: Arc<OwnedFd>,
}

impl Queue {
    pub(crate) fn new(
        client: &Arc<Client>,
        file: &Arc<File>,
        number: u16,
        ended: &Arc<AtomicBool>,
    ) -> io::Result<Self> {
        Ok(Self {
            client: Arc::clone(client),
            file: Arc::clone(file),
            number,
            ended: Arc::clone(ended),
            answers: Mutex::default(),
            sleeps: AtomicBool::new(false),
            wake: Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?),
        })
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        &self.client
    }

    pub(crate) fn file(&self) -> &Arc<File> {
        &self.file
    }

    pub(crate) fn wakes(&self) -> &Arc<OwnedFd> {
        &self.wake
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    pub(crate) fn has_ended(&self) -> &AtomicBool {
        &self.ended
    }

    /// Hands an answer to the queue's thread to send.
    pub(crate) fn answer(&self, tag: u16, result: i32) {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).push((tag, result));
        if self.sleeps.load(SeqCst) {
            self.wake();
        }
    }

    /// Wakes the queue's thread, which then checks for answers and its end.
    pub(crate) fn wake(&self) {
        // The counter cannot overflow: no thread is woken 2^64 times.
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }

    pub(crate) fn take_answers(&self, into: &mut Vec<(u16, i32)>) {
        mem::swap(into, &mut self.answers.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Announces that the thread sleeps from now on, unless there are answers.
    pub(crate) fn may_sleep(&self) -> bool {
        self.sleeps.store(true, SeqCst);
        let is_idle = self.answers.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
        if !is_idle {
            self.sleeps.store(false, SeqCst);
        }
        is_idle
    }

    pub(crate) fn woken(&self) {
        self.sleeps.store(false, SeqCst);
    }
}

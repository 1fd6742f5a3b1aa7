//! The sockets on which a server listens, opened and closed while it runs.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{Error, Exports, listen::Listener};

/// A listening socket, and what its clients can see.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) listener: Listener,
    pub(crate) exports: Exports,
}

impl AsFd for Opened {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// The sockets by number, in the order in which they were opened.
#[derive(Debug, Default)]
pub(crate) struct Sockets(Mutex<SocketsState>);

#[derive(Debug, Default)]
struct SocketsState {
    /// No socket may be opened any more.
    closed: bool,
    next: u64,
    all: BTreeMap<u64, Arc<Opened>>,
}

impl Sockets {
    fn lock(&self) -> MutexGuard<'_, SocketsState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a socket and returns its number.
    pub(crate) fn add(&self, opened: Opened) -> Result<u64, Error> {
        let mut state = self.lock();
        if state.closed {
            return Err(Error::Stopping);
        }
        let number = state.next;
        state.next += 1;
        state.all.insert(number, Arc::new(opened));
        Ok(number)
    }

    /// Removes a socket with its file. The socket itself closes when no thread uses it any more.
    pub(crate) fn remove(&self, number: u64) {
        let opened = self.lock().all.remove(&number);
        // Removing a file may take time, so no lock is held.
        if let Some(opened) = opened {
            opened.listener.file().remove();
        }
    }

    /// Removes all sockets permanently.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let all = std::mem::take(&mut state.all);
        drop(state);
        all.values().for_each(|opened| opened.listener.file().remove());
    }

    /// Leaves the sockets' files to another server.
    pub(crate) fn leave_files(&self) {
        self.lock().all.values().for_each(|opened| opened.listener.file().leave());
    }

    /// Takes over the files of sockets that another server has left.
    pub(crate) fn own_files(&self) {
        self.lock().all.values().for_each(|opened| opened.listener.file().own());
    }

    pub(crate) fn get(&self, number: u64) -> Option<Arc<Opened>> {
        self.lock().all.get(&number).cloned()
    }

    pub(crate) fn list(&self) -> Vec<(u64, Arc<Opened>)> {
        self.lock().all.iter().map(|(&number, opened)| (number, Arc::clone(opened))).collect()
    }
}

//! The memory of the process that takes a server over. The server stores it, because the service
//! manager does not know the new process yet:
//!
//! ```text
//! new process                             server                           store
//! makes a file in memory, marks it as taken
//! MEMORY, with the file   →               keeps it                         → both files
//! READY                   →               marks it as free, then its own as taken
//!                         ←               GO
//! ```
//!
//! At each moment, at least one of the files is complete and marked as free. If both are, no client
//! has been served since their contents were equal.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use super::{
    channel::{Channel, Kind, Message},
    pool_file,
};
use crate::{
    DescriptorStore,
    memory_file::{mark_free, mark_taken},
    server::Giving,
};

/// How long the server waits for the memory before the pause. Earlier versions of the program send
/// none.
const PATIENCE: Duration = Duration::from_secs(2);

/// The room that the store must have: for the files of both.
const ROOM: usize = 2;

/// See the module documentation. When this is dropped, the store forgets the memory, unless the new process
/// [serves](Self::serves).
pub(super) struct Next {
    /// `None` if the server stores nothing.
    store: Option<Arc<dyn DescriptorStore>>,
    name: String,
    file: Option<OwnedFd>,
}

impl Next {
    pub(super) fn new(giving: &Giving, process: u32) -> Self {
        let store = giving.store.clone().filter(|store| store.room() > 0);
        Self { store, name: pool_file::name(process), file: None }
    }

    /// Returns whether the server stores the memory that it receives.
    pub(super) fn is_stored(&self) -> bool {
        self.store.is_some()
    }

    /// Waits for the memory for a while, and stores it. Fails with the reason.
    pub(super) fn arrives(&mut self, channel: &Channel) -> Result<(), String> {
        if !self.is_stored() || !channel.is_readable_within(PATIENCE) {
            return Ok(());
        }
        let message = channel.receive().map_err(|error| format!("the other process does not answer: {error}"))?;
        self.take(message)
    }

    /// Stores the memory that a message contains, if any. Fails with the reason.
    pub(super) fn take(&mut self, message: Message) -> Result<(), String> {
        let store = match (message.kind, &self.store) {
            (Kind::Memory, Some(store)) => Arc::clone(store),
            (Kind::Failed, _) => return Err(String::from_utf8_lossy(&message.bytes).into_owned()),
            _ => return Err("the other process has sent an unknown message".to_owned()),
        };
        // The other process may have begun again.
        self.forget();
        let Some(file) = message.descriptors.into_iter().next() else { return Ok(()) };
        if store.room() < ROOM {
            return Err(format!("the service manager stores fewer than {ROOM} descriptors (FileDescriptorStoreMax=)"));
        }
        // Only the owner of a file can mark it.
        mark_taken(&file).map_err(|error| format!("the memory of the other process cannot be marked: {error}"))?;
        let kept = store.keep(&self.name, file.as_fd()).and_then(|()| store.settle());
        self.file = Some(file);
        kept.map_err(|error| format!("the service manager does not keep the memory of the other process: {error}"))
    }

    /// Marks the memory as free: it is complete.
    pub(super) fn free(&self) -> Result<(), String> {
        let marked = self.file.as_ref().map_or(Ok(()), mark_free);
        marked.map_err(|error| format!("the memory of the other process cannot be marked: {error}"))
    }

    /// Records that the new process serves.
    pub(super) fn serves(&mut self) {
        self.file = None;
    }

    /// Marks the memory as taken, and removes it from the store.
    pub(super) fn forget(&mut self) {
        if let (Some(file), Some(store)) = (self.file.take(), &self.store) {
            let _ = mark_taken(file);
            let _ = store.remove(&self.name);
        }
    }
}

impl Drop for Next {
    fn drop(&mut self) {
        self.forget();
    }
}

//! The end of a server, triggered by a signal, a command or the end of a child process.

use std::sync::atomic::{AtomicBool, Ordering};

use pagefold_serve::ServerHandle;

use super::notify::notify;

pub(crate) struct Ending {
    begun: AtomicBool,
    server: ServerHandle,
}

impl Ending {
    pub(crate) fn new(server: ServerHandle) -> Self {
        Self { begun: AtomicBool::new(false), server }
    }

    /// Stops the server and notifies the service manager, once.
    pub(crate) fn begin(&self) {
        if !self.begun.swap(true, Ordering::SeqCst) {
            notify("STOPPING=1");
            self.server.stop();
        }
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::SeqCst)
    }
}

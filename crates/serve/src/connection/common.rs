//! State shared by all connections of a server.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use pagefold_executor::Executor;

use crate::Limits;

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) limits: Limits,
    /// The server is stopping: received requests are answered, then connections end.
    pub(crate) stopping: AtomicBool,
    /// No request may begin.
    pub(crate) pausing: AtomicBool,
    pub(crate) executor: Arc<Executor>,
}

impl Common {
    pub(crate) fn new(limits: Limits, executor: Arc<Executor>) -> Arc<Self> {
        Arc::new(Self { limits, stopping: AtomicBool::new(false), pausing: AtomicBool::new(false), executor })
    }

    pub(crate) fn is_pausing(&self) -> bool {
        self.pausing.load(Ordering::Relaxed)
    }
}

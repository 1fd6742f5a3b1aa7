//! The result of a client's negotiation.

use std::sync::Arc;

use pagefold_executor::Access;

use crate::protocol::{Context, Headers};

/// The result of the negotiation.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) access: Arc<Access>,
    pub(crate) headers: Headers,
    /// The contexts for which the client may request block status.
    pub(crate) contexts: Vec<Context>,
}

//! What a leader leaves because the server pauses.

use std::{sync::Arc, time::Instant};

use crate::{pieces::Pieces, request::Arrived};

/// A request of which only a part of the payload was received.
pub(crate) struct Unfinished {
    /// The leader is one holder until the payload is complete. If the write has failed, the rest is
    /// dropped.
    pub(crate) pieces: Arc<Pieces>,
    pub(crate) left_bytes: u64,
}

/// What a leader leaves because the server pauses.
#[derive(Default)]
pub(crate) struct Parked {
    /// Received bytes that were not used.
    pub(crate) input: Vec<u8>,
    pub(crate) unfinished: Option<Unfinished>,
    /// For the request at the front of `input`: its count, and whether the export's rate has
    /// admitted it, or when it will.
    pub(crate) arrived: Option<Arrived>,
    pub(crate) is_paced: bool,
    pub(crate) turn: Option<Instant>,
}

impl Parked {
    pub(crate) fn is_empty(&self) -> bool {
        self.input.is_empty() && self.unfinished.is_none()
    }
}

//! The end of a piece of a change.

use std::sync::Arc;

use pagefold_executor::{Client, Completion, Failed};

use super::{Connection, Keeper};
use crate::{
    pieces::Pieces,
    request::{REPLY_OVERHEAD_BYTES, Refusal, Replies},
    transport::Transport,
};

/// A piece of a change, or a whole change, that is running. The last piece sends the reply.
pub(super) struct Piece<T: Transport, G: Keeper<T>> {
    connection: Arc<Connection<T, G>>,
    pieces: Arc<Pieces>,
    is_done: bool,
}

impl<T: Transport, G: Keeper<T>> Piece<T, G> {
    /// Creates a piece that is counted as one of the holders of `pieces`.
    pub(super) fn new(connection: &Arc<Connection<T, G>>, pieces: Arc<Pieces>) -> Self {
        Self { connection: Arc::clone(connection), pieces, is_done: false }
    }
}

impl<T: Transport, G: Keeper<T>> Completion for Piece<T, G> {
    fn client(&self) -> &Arc<Client> {
        &self.connection.client
    }

    fn is_ending(&self) -> bool {
        self.connection.is_ending()
    }

    fn done(&mut self, result: Result<(), Failed>) {
        self.is_done = true;
        let Self { connection, pieces, .. } = self;
        if let Err(failed) = result {
            pieces.fail(Refusal::of_change(&failed, &pieces.request));
        }
        let device = connection.device();
        let Some(result) = pieces.done(device.as_deref()) else { return };
        drop(device);
        let mut replies = Replies::new([0; REPLY_OVERHEAD_BYTES]);
        replies.finish(&pieces.request, &connection.session, result);
        if connection.send(replies.filled()).is_err() {
            connection.end(true);
        }
    }
}

impl<T: Transport, G: Keeper<T>> Drop for Piece<T, G> {
    fn drop(&mut self) {
        // If a device panics, the peer must not wait for replies.
        if !self.is_done {
            self.connection.end(true);
        }
        // The thread that has run it no longer counts as one of the connection's.
        self.connection.rest_if_idle();
    }
}

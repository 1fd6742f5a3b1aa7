//! Small requests that were received together, which several threads take in turn.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
};

use pagefold_executor::{self as executor, InProgress, Lent, Scratch};

use super::{Connection, EndOnUnwind, Keeper, task::COMMON_BYTES};
use crate::{
    negotiate::Ended,
    request::{Arrived, Reading, Refusal, Replies, check, reply_bytes},
    transport::Transport,
};

/// Small requests that were received whole.
pub(super) struct Batch<T: Transport, G: Keeper<T>> {
    /// Each request, and where in `input` its payload is.
    requests: Vec<(Arrived, Range<usize>)>,
    /// The number of requests that were taken. It may exceed the number of requests once all were
    /// taken.
    taken: AtomicUsize,
    input: Option<Lent>,
    /// Whether a thread has helped, which `_in_progress` counts.
    has_helper: AtomicBool,
    /// Dropped after the buffer, so that it is returned first.
    _in_progress: InProgress,
    connection: Resting<T, G>,
}

/// A connection that may rest when this is dropped.
struct Resting<T: Transport, G: Keeper<T>>(Arc<Connection<T, G>>);

impl<T: Transport, G: Keeper<T>> Drop for Resting<T, G> {
    fn drop(&mut self) {
        self.0.rest_if_idle();
    }
}

impl<T: Transport, G: Keeper<T>> Batch<T, G> {
    pub(super) fn new(
        connection: &Arc<Connection<T, G>>,
        requests: Vec<(Arrived, Range<usize>)>,
        input: Option<Lent>,
        in_progress: InProgress,
    ) -> Arc<Self> {
        Arc::new(Self {
            requests,
            taken: AtomicUsize::new(0),
            input,
            has_helper: AtomicBool::new(false),
            _in_progress: in_progress,
            connection: Resting(Arc::clone(connection)),
        })
    }

    /// Takes requests and runs them until none is left. Returns whether this thread took all.
    pub(super) fn run<B: AsRef<[u8]> + AsMut<[u8]>>(
        &self,
        replies: &mut Replies<B>,
        reads: &mut Vec<Reading>,
    ) -> Result<bool, Ended> {
        let connection = &self.connection.0;
        let device = connection.device();
        let mut count = 0;
        while let Some((request, payload)) = self.requests.get(self.taken.fetch_add(1, Relaxed)) {
            count += 1;
            if replies.room_bytes() < reply_bytes(request) {
                connection.send(replies.filled())?;
                replies.clear();
            }
            let checked = device.as_deref().ok_or_else(Refusal::removed);
            match checked.and_then(|device| check(request, &connection.session, device).map(|()| device)) {
                Err(refusal) => replies.refuse(request, &connection.session, &refusal),
                Ok(device) => {
                    let input = self.input.as_ref().map_or(&[][..], Lent::as_ref);
                    let payload = input.get(payload.clone()).unwrap_or_default();
                    Connection::run_small(connection, *request, payload, device, replies, reads)?;
                }
            }
        }
        Ok(count == self.requests.len())
    }
}

impl<T: Transport, G: Keeper<T>> executor::Batch for Batch<T, G> {
    fn help(&self, scratch: &mut Scratch) {
        let connection = &self.connection.0;
        // The first helper must run requests even if the connection has its maximum of threads:
        // there may be no other thread, and further helpers may have started in the meantime.
        let is_first = !self.has_helper.swap(true, Relaxed);
        let in_progress = if is_first { None } else { connection.client.try_begin_task() };
        if !is_first && in_progress.is_none() {
            return;
        }
        let unwinding = EndOnUnwind(connection);
        let mut replies = Replies::new(&mut scratch[COMMON_BYTES..]);
        let mut reads = Vec::new();
        let helped = self.run(&mut replies, &mut reads).and_then(|_| {
            Connection::hand_reads_on(connection, &mut reads, &mut replies)?;
            if replies.filled().is_empty() { Ok(()) } else { connection.send(replies.filled()) }
        });
        if helped.is_err() {
            connection.end(true);
        }
        std::mem::forget(unwinding);
        drop(in_progress);
    }

    fn wants_help(&self) -> bool {
        self.taken.load(Relaxed) < self.requests.len() && self.connection.0.client.may_have_thread()
    }
}

//! Requests, or pieces of them, that threads of the executor run.

use std::sync::Arc;

use pagefold_disk::{BlockDevice, Read};
use pagefold_executor::{self as executor, Change, InProgress, Lent, Payload, Scratch, Thread};

use super::{Connection, EndOnUnwind, Keeper, piece::Piece};
use crate::{
    negotiate::Ended,
    pieces::Pieces,
    protocol::Request,
    request::{Arrived, Filled, Reading, Replies, reply_bytes},
    transport::Transport,
};

/// The start of a thread's scratch holds data that several reads share.
pub(super) const COMMON_BYTES: usize = 64 << 10;

/// What a thread of the executor runs.
pub(super) enum Task {
    /// A piece of a write, or another change as a whole.
    Change { pieces: Arc<Pieces>, change: Change<Payload> },
    /// Reads that share data of at most [`COMMON_BYTES`], or a single read.
    Reads(Vec<Reading>),
    /// A read with a buffer of its own.
    LargeRead { reading: Reading, replies: Replies<Lent> },
    /// A request that neither reads nor changes the device.
    Other(Arrived),
}

/// A task of a connection.
struct Job<T: Transport, G: Keeper<T>> {
    task: Task,
    /// Dropped after the task, so that its buffers are returned first.
    in_progress: InProgress,
    connection: Arc<Connection<T, G>>,
}

impl<T: Transport, G: Keeper<T>> executor::Task for Job<T, G> {
    fn run(self: Box<Self>, scratch: &mut Scratch) {
        let Self { task, in_progress, connection } = *self;
        let unwinding = EndOnUnwind(&connection);
        if Connection::run(&connection, task, scratch).is_err() {
            connection.end(true);
        }
        std::mem::forget(unwinding);
        drop(in_progress);
        connection.rest_if_idle();
    }
}

impl<T: Transport, G: Keeper<T>> Connection<T, G> {
    /// Hands a task to a thread.
    pub(super) fn hand_on(connection: &Arc<Self>, thread: Thread, task: Task) {
        let connection = Arc::clone(connection);
        thread.run_task(|in_progress| Box::new(Job { task, in_progress, connection }));
    }

    /// Runs a task, which may wait for storage, and replies.
    fn run(connection: &Arc<Self>, task: Task, scratch: &mut [u8]) -> Result<(), Ended> {
        let (common, own) = scratch.split_at_mut(COMMON_BYTES);
        match task {
            Task::Change { pieces, change } => {
                change.finish(Piece::new(connection, pieces));
                Ok(())
            }
            Task::LargeRead { reading, mut replies } => connection.read(reading, &mut replies),
            Task::Reads(mut readings) => {
                let mut replies = Replies::new(own);
                match (readings.pop(), readings.is_empty()) {
                    // Only the task holds the device, which is how requests in progress are
                    // counted.
                    (Some(single), true) => connection.read(single, &mut replies),
                    (last, _) => {
                        readings.extend(last);
                        connection.read_together(readings, common, &mut replies)
                    }
                }
            }
            Task::Other(request) => {
                let mut replies = Replies::new(own);
                replies.execute(&request, &connection.session, connection.device().as_deref());
                connection.send(replies.filled())
            }
        }
    }

    /// Answers a read in as many parts as necessary. Sends `replies` too, and leaves it empty.
    pub(super) fn read<B: AsRef<[u8]> + AsMut<[u8]>>(
        &self,
        mut reading: Reading,
        replies: &mut Replies<B>,
    ) -> Result<(), Ended> {
        let mut sending = None;
        loop {
            let filled = reading.fill(replies, &self.session, self.device().as_deref())?;
            let mut guard = sending.take().unwrap_or_else(|| self.sending());
            self.send_more(&mut guard, replies.filled())?;
            replies.clear();
            if filled == Filled::All {
                return Ok(());
            }
            sending = reading.is_in_one_piece().then_some(guard);
        }
    }

    /// Answers reads that share data.
    fn read_together(
        &self,
        readings: Vec<Reading>,
        common: &mut [u8],
        replies: &mut Replies<&mut [u8]>,
    ) -> Result<(), Ended> {
        let device = self.device();
        let mut reads = Vec::with_capacity(readings.len());
        let mut rest = common;
        for reading in &readings {
            let Request { offset, len_bytes, .. } = *reading.request();
            let Some((data, after)) = rest.split_at_mut_checked(len_bytes as usize) else { break };
            reads.push(Read::new(offset, data));
            rest = after;
        }
        if let Some(device) = &device {
            device.read_together(&mut reads);
        }
        let mut reads = reads.into_iter();
        for mut reading in readings {
            if replies.room_bytes() < reply_bytes(reading.request()) {
                self.send(replies.filled())?;
                replies.clear();
            }
            let data = reads.next().filter(|read| read.result.is_ok() && device.is_some());
            if let Some(Read { offset, buf, .. }) = data {
                let filled = reading.fill_with(replies, &self.session, device.as_deref(), true, |_, at, target| {
                    let start = (at - offset) as usize;
                    let found = buf.get(start..start + target.len());
                    if let Some(found) = found {
                        target.copy_from_slice(found);
                    }
                    Ok(found.is_some())
                })?;
                if filled == Filled::All {
                    continue;
                }
            }
            // The shared read failed. Each read runs again, to report its own error.
            self.send(replies.filled())?;
            replies.clear();
            self.read(reading, replies)?;
        }
        if replies.filled().is_empty() { Ok(()) } else { self.send(replies.filled()) }
    }
}

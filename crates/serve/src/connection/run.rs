//! Small requests, run until they would wait for storage.

use std::sync::Arc;

use pagefold_disk::BlockDevice;
use pagefold_executor::{Attempt, Change, Device, Storage};

use super::{
    Connection, INLINE_BYTES, INLINE_RANGE_BYTES, Keeper,
    piece::Piece,
    task::{COMMON_BYTES, Task},
};
use crate::{
    negotiate::Ended,
    pieces::{Pieces, whole_change},
    protocol::{Request, command, command_flag},
    request::{Arrived, Filled, Reading, Refusal, Replies, is_change},
    transport::Transport,
};

/// Returns whether a request is short enough for the leader.
pub(super) fn is_small(request: &Request) -> bool {
    let limit_bytes = match request.kind {
        command::READ | command::WRITE => INLINE_BYTES,
        command::TRIM | command::WRITE_ZEROES | command::BLOCK_STATUS => INLINE_RANGE_BYTES,
        _ => u64::MAX,
    };
    request.len_bytes <= limit_bytes
}

impl<T: Transport, G: Keeper<T>> Connection<T, G> {
    /// Runs a small request that was checked and received whole, until it would wait for storage.
    /// The reply is added to `replies`, which has room for it if there is memory. A read that must
    /// wait is added to `reads`; any other request that must wait is handed on.
    pub(super) fn run_small<B: AsRef<[u8]> + AsMut<[u8]>>(
        connection: &Arc<Self>,
        request: Arrived,
        payload: &[u8],
        device: &Device,
        replies: &mut Replies<B>,
        reads: &mut Vec<Reading>,
    ) -> Result<(), Ended> {
        if request.kind == command::READ {
            let mut reading = Reading::new(request, connection.headers());
            match reading.try_fill(replies, &connection.session, Some(device))? {
                Filled::All => {}
                Filled::Blocks => reads.push(reading),
                // Earlier contents of `replies` are sent together with later ones.
                Filled::Part => connection.read(reading, replies)?,
            }
            return Ok(());
        }
        if is_change(&request) {
            let mut change = whole_change(&request, payload);
            return match change.attempt(Some(device), Storage::DoNotWait) {
                Attempt::Done(Ok(())) if !is_flushed(&request, device) => {
                    Self::hand_change_on(connection, request, change, replies)
                }
                Attempt::Done(result) => {
                    let result = result.map_err(|failed| Refusal::of_change(&failed, &request));
                    replies.finish(&request, &connection.session, result);
                    Ok(())
                }
                Attempt::NoRoom(_) | Attempt::Blocks => Self::hand_change_on(connection, request, change, replies),
            };
        }
        if request.kind != command::BLOCK_STATUS && is_flushed(&request, device) {
            replies.finish(&request, &connection.session, Ok(()));
        } else if device.may_block()
            && let Some(thread) = connection.client.reserve()
        {
            Self::hand_on(connection, thread, Task::Other(request));
        } else {
            replies.execute(&request, &connection.session, Some(device));
        }
        Ok(())
    }

    /// Hands on what is left of a change; runs it here if there is no thread or no memory.
    fn hand_change_on<B: AsRef<[u8]> + AsMut<[u8]>>(
        connection: &Arc<Self>,
        request: Arrived,
        change: Change<&[u8]>,
        replies: &mut Replies<B>,
    ) -> Result<(), Ended> {
        let piece = Piece::new(connection, Pieces::new(request));
        if let Err((change, piece)) = change.hand_on(piece) {
            connection.send(replies.filled())?;
            replies.clear();
            change.finish(piece);
        }
        Ok(())
    }

    /// Hands reads on, those that share data together. Without a thread, runs them here.
    pub(super) fn hand_reads_on<B: AsRef<[u8]> + AsMut<[u8]>>(
        connection: &Arc<Self>,
        reads: &mut Vec<Reading>,
        replies: &mut Replies<B>,
    ) -> Result<(), Ended> {
        if reads.is_empty() {
            return Ok(());
        }
        if reads.iter().any(Reading::has_begun) {
            // The last chunk of a reply must not be sent before the first.
            connection.send(replies.filled())?;
            replies.clear();
        }
        let unit_bytes = connection.device().map_or(1, |device| device.read_unit_bytes()).max(1);
        reads.sort_by_key(|reading| reading.request().offset);
        let mut reads = reads.drain(..).peekable();
        while let Some(first) = reads.next() {
            let unit = first.request().offset / unit_bytes;
            let mut group_bytes = first.request().len_bytes;
            let mut group = vec![first];
            while let Some(next) = reads.next_if(|next| {
                let Request { offset, len_bytes, .. } = *next.request();
                offset / unit_bytes == unit && group_bytes + len_bytes <= COMMON_BYTES as u64
            }) {
                group_bytes += next.request().len_bytes;
                group.push(next);
            }
            if let Some(thread) = connection.client.reserve() {
                Self::hand_on(connection, thread, Task::Reads(group));
                continue;
            }
            if !replies.filled().is_empty() {
                connection.send(replies.filled())?;
                replies.clear();
            }
            for reading in group {
                connection.read(reading, replies)?;
            }
        }
        Ok(())
    }
}

/// Flushes the device if the request asks for it and that needs no waiting. Returns whether nothing
/// is left to flush. A flush that fails is tried again later, to report its error.
fn is_flushed(request: &Request, device: &Device) -> bool {
    let asks = request.kind == command::FLUSH || request.flags & command_flag::FUA != 0;
    !asks || device.try_flush().is_ok_and(|is_done| is_done)
}

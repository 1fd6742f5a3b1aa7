//! Received records that are not decrypted yet.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use pagefold_executor::{Growing, Share};

const HEADER_BYTES: usize = 5;
/// Largest record: TLS 1.2 allows 2 KiB more than its data have.
const MOST_RECORD_BYTES: usize = HEADER_BYTES + (16 << 10) + (2 << 10);
/// Enough for the messages of most clients during the handshake.
const HANDSHAKE_BYTES: usize = 4 << 10;
/// The largest message of a handshake that rustls accepts has 64 KiB. It comes in records, whose
/// headers need room too.
const LARGE_HANDSHAKE_BYTES: usize = 96 << 10;
/// Enough for one record.
pub(super) const SMALL_BYTES: usize = 20 << 10;
/// Bytes that one receive can return while the connection is busy.
const LARGE_BYTES: usize = 128 << 10;

const _: () = assert!(SMALL_BYTES >= MOST_RECORD_BYTES);

/// Received bytes: `buffer[start..end]` are records that have not been decrypted.
#[derive(Default)]
pub(super) struct Records {
    buffer: Option<Growing>,
    start: usize,
    end: usize,
    /// Since when the record at the front has been incomplete.
    since: Option<Instant>,
    /// The last receive has filled the buffer.
    is_filled: bool,
}

impl Records {
    pub(super) fn len(&self) -> usize {
        self.end - self.start
    }

    fn bytes(&self) -> &[u8] {
        self.buffer.as_ref().and_then(|buffer| buffer.as_ref().get(self.start..self.end)).unwrap_or_default()
    }

    /// Returns the first `len_bytes`.
    pub(super) fn front(&mut self, len_bytes: usize) -> &mut [u8] {
        let bytes = self.start..self.start + len_bytes.min(self.len());
        self.buffer.as_mut().and_then(|buffer| buffer.as_mut().get_mut(bytes)).unwrap_or_default()
    }

    pub(super) fn consume(&mut self, len_bytes: usize) {
        self.start += len_bytes.min(self.len());
        self.since = None;
    }

    /// Returns the length that the record at the front claims, once its header has been received.
    fn claimed_bytes(&self) -> io::Result<Option<usize>> {
        let Some(&[kind, version, _, high, low]) = self.bytes().first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let record_bytes = HEADER_BYTES + usize::from(u16::from_be_bytes([high, low]));
        // Kinds: a change of ciphers, an alert, a handshake message, data.
        if !(20..=23).contains(&kind) || version != 3 || record_bytes > MOST_RECORD_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a TLS record"));
        }
        Ok(Some(record_bytes))
    }

    /// Returns the length of the record at the front if it has been received whole.
    pub(super) fn whole_bytes(&self) -> io::Result<Option<usize>> {
        Ok(self.claimed_bytes()?.filter(|&record_bytes| record_bytes <= self.len()))
    }

    /// Returns how many bytes the record at the front lacks, or its header.
    pub(super) fn missing_bytes(&self) -> io::Result<usize> {
        Ok(self.claimed_bytes()?.unwrap_or(HEADER_BYTES).saturating_sub(self.len()))
    }

    /// To be called before more is received. Returns whether the record at the front has been
    /// incomplete for longer than `time`.
    pub(super) fn is_late(&mut self, time: Duration) -> bool {
        self.len() != 0 && self.since.get_or_insert_with(Instant::now).elapsed() >= time
    }

    /// Returns where to receive, which is empty only if a message is too large. After the handshake,
    /// the bytes received so far must not contain a whole record.
    pub(super) fn room(&mut self, share: &Arc<Share>, is_in_handshake: bool) -> io::Result<&mut [u8]> {
        let (small_bytes, large_bytes) =
            if is_in_handshake { (HANDSHAKE_BYTES, LARGE_HANDSHAKE_BYTES) } else { (SMALL_BYTES, LARGE_BYTES) };
        let len_bytes = self.len();
        let buffer_bytes = self.buffer.as_ref().map_or(0, |buffer| buffer.as_ref().len());
        if buffer_bytes < small_bytes {
            let mut larger = Growing::new(small_bytes)?;
            if let Some(target) = larger.as_mut().get_mut(..len_bytes) {
                target.copy_from_slice(self.bytes());
            }
            self.buffer = Some(larger);
            (self.start, self.end) = (0, len_bytes);
        }
        let Some(buffer) = &mut self.buffer else { return Ok(&mut []) };
        if self.start != 0 {
            buffer.as_mut().copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, len_bytes);
        }
        if self.is_filled || self.end == buffer.as_ref().len() {
            // The buffer was filled, so more data may arrive together next time.
            buffer.grow(share, large_bytes, 0..len_bytes);
            self.is_filled = false;
        }
        Ok(buffer.as_mut().get_mut(self.end..).unwrap_or_default())
    }

    /// Notes that bytes have been received into [`room`](Self::room).
    pub(super) fn received(&mut self, len_bytes: usize) {
        self.end += len_bytes;
        self.is_filled = self.buffer.as_ref().is_some_and(|buffer| buffer.as_ref().len() == self.end);
    }

    /// Gives the buffer up if it is empty.
    pub(super) fn rest(&mut self) {
        if self.len() == 0 {
            *self = Self::default();
        }
    }
}

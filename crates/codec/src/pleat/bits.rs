//! Bit streams, first bit lowest, written upwards and read in either direction.
//!
//! Two streams share one section of an object and need only one length: the first is read upwards
//! from the section's start, the second, with its bytes in reverse order, downwards from the
//! section's end.

/// Maximum bytes of a stream, a power of two: places are taken modulo this.
pub(super) const SIZE: usize = 8192;
/// Room for a wide access at the last place.
const SLACK: usize = 8;

/// Memory for one stream, or for the sections of an object.
pub(super) type Room = [u8; SIZE + SLACK];

/// Returns the 8 bytes at `at`, first byte lowest: the next bits of a stream that is read upwards.
#[inline(always)]
pub(super) fn word(room: &Room, at: usize) -> u64 {
    let at = at & (SIZE - 1);
    u64::from_le_bytes(room[at..at + 8].try_into().unwrap_or([0; 8]))
}

/// Returns the 8 bytes before `at`, last byte lowest: the next bits of a stream that is read
/// downwards.
#[inline(always)]
fn word_before(room: &Room, at: usize) -> u64 {
    word(room, at.wrapping_sub(8)).swap_bytes()
}

/// Copies the bytes of a stream to `to`, which has the same length, in reverse order.
#[inline(always)]
pub(super) fn turn(from: &[u8], to: &mut [u8]) {
    if let (Some(last), Some(first)) = (from.last_chunk::<8>(), to.first_chunk_mut::<8>()) {
        *first = u64::from_le_bytes(*last).to_be_bytes();
        for (to, from) in to.rchunks_exact_mut(8).zip(from.as_chunks::<8>().0) {
            to.copy_from_slice(&u64::from_le_bytes(*from).to_be_bytes());
        }
    } else {
        to.iter_mut().rev().zip(from).for_each(|(to, from)| *to = *from);
    }
}

/// Writes a stream. More than [`SIZE`] bytes wrap around and spoil it; no page needs that many.
pub(super) struct Writer<'a> {
    room: &'a mut Room,
    at: usize,
    bits: u64,
    count: u32,
}

impl<'a> Writer<'a> {
    pub(super) fn new(room: &'a mut Room) -> Self {
        Self { room, at: 0, bits: 0, count: 0 }
    }

    /// Appends the `count` bits of `bits`, which has no bit above them. Accepts at most 56 bits
    /// between two flushes.
    #[inline(always)]
    pub(super) fn put(&mut self, bits: u64, count: u32) {
        debug_assert!(self.count + count < 64 && bits >> count == 0);
        self.bits |= bits << self.count;
        self.count += count;
    }

    /// Moves whole bytes to memory; fewer than 8 bits remain.
    #[inline(always)]
    pub(super) fn flush(&mut self) {
        let at = self.at & (SIZE - 1);
        self.room[at..at + 8].copy_from_slice(&self.bits.to_le_bytes());
        self.at += (self.count >> 3) as usize;
        self.bits >>= self.count & !7;
        self.count &= 7;
    }

    /// Ends the stream and returns its length in bytes.
    pub(super) fn finish(mut self) -> usize {
        self.flush();
        self.at + usize::from(self.count > 0)
    }
}

/// Reads a stream: upwards, or downwards if `DOWN`.
///
/// A read beyond the section returns whatever bits are there; [`Reader::place`] shows that
/// afterwards.
#[derive(Clone, Copy)]
pub(super) struct Reader<const DOWN: bool> {
    /// Where the bits were last loaded.
    at: usize,
    /// The unread bits.
    bits: u64,
    /// In its low [`COUNT`] bits, the number of bits read since.
    read: u32,
}

/// Width of a count of bits.
pub(super) const COUNT: u32 = 6;

impl<const DOWN: bool> Reader<DOWN> {
    /// Creates a reader of the bytes from `at` upwards, or of those before `at` downwards.
    pub(super) fn new(at: usize) -> Self {
        Self { at, bits: 0, read: 0 }
    }

    /// Makes at least 56 bits available.
    #[inline(always)]
    pub(super) fn refill(&mut self, room: &Room) {
        let bytes = (self.read >> 3 & 7) as usize;
        self.read &= 7;
        let next = if DOWN {
            self.at = self.at.wrapping_sub(bytes);
            word_before(room, self.at)
        } else {
            self.at = self.at.wrapping_add(bytes);
            word(room, self.at)
        };
        self.bits = next >> self.read;
    }

    /// Returns the next bits; the available bits less those skipped are valid.
    #[inline(always)]
    pub(super) fn peek(&self) -> u64 {
        self.bits
    }

    /// Skips as many bits as the low [`COUNT`] bits of `count` say, at most to the end of the
    /// available bits.
    #[inline(always)]
    pub(super) fn skip(&mut self, count: u32) {
        self.bits >>= count & 63;
        self.read = self.read.wrapping_add(count);
    }

    /// Returns where the next whole unread byte begins (upwards) or ends (downwards).
    pub(super) fn place(&self) -> usize {
        let read = (self.read & 63).div_ceil(8) as usize;
        if DOWN { self.at.wrapping_sub(read) } else { self.at.wrapping_add(read) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read_both_ways(items in proptest::collection::vec((any::<u64>(), 0u32..=50), 0..300)) {
            let mut room = [0; SIZE + SLACK];
            let mut writer = Writer::new(&mut room);
            for &(bits, count) in &items {
                writer.put(bits & ((1 << count) - 1), count);
                writer.flush();
            }
            let len = writer.finish();
            let mut section = [0xa5; SIZE + SLACK];
            section[8..8 + len].copy_from_slice(&room[..len]);
            let mut up = Reader::<false>::new(8);
            for &(bits, count) in &items {
                up.refill(&section);
                prop_assert_eq!(up.peek() & ((1 << count) - 1), bits & ((1 << count) - 1));
                up.skip(count);
            }
            prop_assert_eq!(up.place(), 8 + len);
            section[8..8 + len].reverse();
            let mut down = Reader::<true>::new(8 + len);
            for &(bits, count) in &items {
                down.refill(&section);
                prop_assert_eq!(down.peek() & ((1 << count) - 1), bits & ((1 << count) - 1));
                down.skip(count);
            }
            prop_assert_eq!(down.place(), 8);
        }
    }
}

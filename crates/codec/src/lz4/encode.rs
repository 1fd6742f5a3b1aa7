//! The encoder of an LZ4 block for a page. `fill.rs` has the encoder for clusters.
//!
//! ```text
//! from the second byte on, until 12 bytes are left:
//!     find a position whose next bytes were seen before, by a hash table of every position tried;
//!         after 112 misses try every second position, after 48 more every third, and so on
//!         (56 and 24 in noise)
//!     extend the match backwards over literals, and forwards up to 5 bytes before the end
//!     if it is one of the shortest, and the table says so:
//!         take the one that begins a byte later, if that is longer
//!     write token, literals, offset, length
//!     remember, as the table says, the position after the match's start and the one 2 before
//!         its end
//! write the rest as literals
//! ```
//!
//! Speed:
//!
//! 1. The number of hashed bytes decides how many sequences a page has. Sequences cost most of the
//!    time, in unpredictable branches and dependent loads: `Lz4` selects the table by the page's
//!    kind. 4 to 13 % faster on text, 5 to 10 % on heaps. Pages of pointers hash 7 bytes and look
//!    twice at matches of 7: two similar 8-byte words, and what follows, then mostly make one
//!    sequence instead of two. 1 to 10 % fewer bytes, decoded 1.05 to 1.3× as fast.
//! 2. Matches are extended backwards by 8 bytes, and forwards by 8, 32 and 64, with no branch
//!    within a step on where they end; by 32 or 64 together where the table says that most matches
//!    are long, which is 1.2× as fast there.
//! 3. One comparison per sequence shows that it ends far from the ends of input and output, because
//!    the block so far is never longer than the input before it plus one byte in 255. Then 16 or 32
//!    literals are copied whatever their number. Otherwise `careful` writes the sequence, to the
//!    byte.
#![allow(unsafe_code)] // Unaligned loads and copies that overshoot.

use std::marker::PhantomData;

use super::{format::Format, table::Table};
use crate::{
    Page,
    mem::{common_prefix, common_prefix_by, common_prefix_wide, copy, load32, load64, store16},
};

/// Minimum length of a match that the search finds.
const FOUND: usize = 4;

/// Returns how far before the input's end a match must start so that it can be compared, first
/// `first` bytes, and literals before it copied in wide steps.
const fn far(first: usize) -> usize {
    FOUND + first + 5
}

/// Maximum output bytes of a sequence's token, offset, rounding of its literals to 32, length bytes
/// beyond one in 128, and of what `Fit::Front` reserves for the literals after it.
pub(super) const SLACK: usize = 40;

/// The bytes that must fit in the output.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fit {
    /// All of the input, or nothing.
    All,
    /// As much of its front as fits.
    Front,
}

/// Compresses `page` into `out` and returns the bytes written, or `None` if it does not fit.
///
/// A separate function for each kind of table: in one function for all, the loops lack registers,
/// which costs 1 to 2 % of the speed.
#[inline(never)]
pub(crate) fn encode<F: Format, T: Table>(mut table: T, page: &Page, out: &mut [u8]) -> Option<usize> {
    encode_after::<F, T>(&mut table, page, 0, out)
}

/// Compresses `window[before_len..]`, at most 64 KiB, as [`encode`] does, with matches that may
/// begin in the bytes before. `table` has positions for those: its first position is at least
/// `before_len`, unless that is 0.
#[inline(always)]
pub(crate) fn encode_after<F: Format, T: Table>(
    table: &mut T,
    window: &[u8],
    before_len: usize,
    out: &mut [u8],
) -> Option<usize> {
    let input = &window[before_len..];
    let mut writer = Writer::<F> { format: PhantomData, last_offset: 1, out: out.as_mut_ptr(), at: 0, cap: out.len() };
    let mut anchor = 0;
    if input.len() > F::LAST_START {
        // SAFETY: `input`, the rest of `window`, has more than `LAST_START` bytes.
        (writer, anchor) = unsafe { sequences(table, window, before_len, writer) }?;
    }
    if F::LAST_LITERALS == 0 && anchor == input.len() {
        return Some(writer.at);
    }
    let no_offset = if F::DYNAMIC { writer.offset_bytes(writer.at, 0) } else { 0 };
    let room = (writer.cap - writer.at).saturating_sub(no_offset);
    let left = input.len() - anchor;
    if 1 + length_bytes(left) + left > room {
        return None;
    }
    // SAFETY: `left` bytes of `input` are left, and they fit.
    unsafe { writer.exact(input.as_ptr().add(anchor), left, None) };
    Some(writer.at)
}

/// Returns the number of bytes that encode a length of `length` beyond the token.
fn length_bytes(length: usize) -> usize {
    if length < 15 { 0 } else { (length - 15) / 255 + 1 }
}

/// Returns the most literals that a last sequence of at most `room` bytes holds.
pub(super) fn most_literals(room: usize) -> Option<usize> {
    match room {
        0 => None,
        1..=16 => Some((room - 1).min(14)),
        _ => Some(room - 2 - (room - 16) / 256),
    }
}

/// Writes all sequences with a match, and returns where the literals after the last begin. Returns
/// `None` if one does not fit.
///
/// # Safety
/// `window` has more than `LAST_START` bytes after the first `before_len`.
#[inline(always)]
unsafe fn sequences<F: Format, T: Table>(
    table: &mut T,
    window: &[u8],
    before_len: usize,
    mut writer: Writer<F>,
) -> Option<(Writer<F>, usize)> {
    // Positions start at the table's `first`; `s.add(position)` is the byte there.
    let input_len = window.len() - before_len;
    let first = table.begin(input_len);
    let oldest = first - before_len;
    let s = window.as_ptr().wrapping_sub(oldest);
    let end = first + input_len;
    let (last_start, match_end) = (end - F::LAST_START, end - F::LAST_LITERALS);
    let mut anchor = first;
    let last_far = end.saturating_sub(far(T::FIRST));
    // A sequence that ends here or before needs fewer output bytes than the input up to its end
    // has, plus one in 128.
    let room = writer.cap.saturating_sub(SLACK);
    let last_easy = first + (room - (room >> 7));
    // SAFETY: positions are between `oldest` and `end`; `find` returns `seen < at <= last_start`. 8
    // bytes can be read from any position up to `last_start`, and after a match from any before its
    // end. If the match starts far enough before the end, `T::FIRST` bytes beyond its first 4 are
    // before `match_end`, and `far` bytes after its start before `end`. Before each call of
    // `sequence` the writer has `SLACK` to spare.
    unsafe {
        table.set(T::hash(load64(s.add(first))), first);
        let mut start = first + 1;
        loop {
            let (mut at, mut seen, mut back);
            if let Some(last_seen) = look(table, s, start) {
                (at, seen) = (start, last_seen);
                // There is one literal if it is the block's first byte.
                back = 0;
            } else {
                let Some(found) = find(table, s, start + 1, last_start) else { break };
                (at, seen) = found;
                back = common_suffix(s, oldest, anchor, at, seen);
            }
            let far = at <= last_far;
            let (forward_at, forward_seen) = (s.add(at + FOUND), s.add(seen + FOUND));
            let mut forward = if far {
                first_prefix::<T>(forward_at, forward_seen, s.add(match_end))
            } else {
                common_prefix(forward_at, forward_seen, s.add(match_end))
            };
            if forward < T::TWICE
                && at < last_far
                && let Some(later) = look(table, s, at + 1)
            {
                let longer = first_prefix::<T>(s.add(at + 1 + FOUND), s.add(later + FOUND), s.add(match_end));
                if longer > forward {
                    (at, seen, forward) = (at + 1, later, longer);
                    back = common_suffix(s, oldest, anchor, at, seen);
                }
            }
            let literals = at - back - anchor;
            let code = back + FOUND + forward - F::MIN_MATCH;
            let offset = at - seen;
            let next = at + FOUND + forward;
            if far && (next <= last_easy || writer.has_room(literals, code)) {
                writer.sequence(s.add(anchor), literals, offset, code);
            } else {
                let written;
                (writer.at, writer.last_offset, written) =
                    writer.careful(Fit::All, s.add(anchor), literals, offset, code);
                let Written::Whole = written else { return None };
            }
            anchor = next;
            start = next;
            if start > last_start {
                break;
            }
            if T::INSIDE.after_start {
                table.set(T::hash(load64(s.add(at + 1))), at + 1);
            }
            if T::INSIDE.before_end {
                table.set(T::hash(load64(s.add(next - 2))), next - 2);
            }
        }
    }
    Some((writer, anchor - first))
}

/// Returns how many bytes from `a`, before `a_end`, equal those from `b`, with a first step of
/// `T::FIRST`.
///
/// # Safety
/// As for [`common_prefix`], and at least `T::FIRST` bytes are before `a_end`.
#[inline(always)]
unsafe fn first_prefix<T: Table>(a: *const u8, b: *const u8, a_end: *const u8) -> usize {
    // SAFETY: upheld by the caller.
    unsafe {
        match T::FIRST {
            8 => common_prefix_wide(a, b, a_end),
            32 => common_prefix_by::<32>(a, b, a_end),
            _ => common_prefix_by::<64>(a, b, a_end),
        }
    }
}

/// Returns the earlier position, from the table, of the 4 bytes at `at`, if there is one. Remembers
/// `at`.
///
/// # Safety
/// 8 bytes can be read from `at`, and 4 from every position that the table returns.
#[inline(always)]
unsafe fn look<T: Table>(table: &mut T, s: *const u8, at: usize) -> Option<usize> {
    // SAFETY: upheld by the caller.
    unsafe {
        let bytes = load64(s.add(at));
        let hash = T::hash(bytes);
        let seen = table.get(hash, at);
        table.set(hash, at);
        (load32(s.add(seen)) == bytes as u32).then_some(seen)
    }
}

/// Finds the first position tried, from `start`, whose 4 bytes occurred earlier, and returns both
/// positions. Remembers every position tried.
///
/// # Safety
/// 8 bytes can be read from any position up to `last_start`, and from all that the table returns.
#[inline(always)]
unsafe fn find<T: Table>(table: &mut T, s: *const u8, start: usize, last_start: usize) -> Option<(usize, usize)> {
    // SAFETY: `at <= last_start`.
    let mut found = |at: usize| unsafe { look(table, s, at).map(|seen| (at, seen)) };
    let mut at = start;
    let single_end = (last_start + 1).min(start + T::STEP * 7 / 3);
    while at < single_end {
        if let Some(found) = found(at) {
            return Some(found);
        }
        at += 1;
    }
    let mut tries = 2 * T::STEP;
    while at <= last_start {
        if let Some(found) = found(at) {
            return Some(found);
        }
        at += tries / T::STEP;
        tries += 1;
    }
    None
}

/// Returns how many bytes before `at`, down to `anchor`, equal those before `seen`, down to
/// `oldest`.
///
/// # Safety
/// `oldest <= seen < at`, `anchor <= at`, and the bytes from `oldest` to `at` can be read.
#[inline(always)]
pub(super) unsafe fn common_suffix(s: *const u8, oldest: usize, anchor: usize, at: usize, seen: usize) -> usize {
    let literals = at - anchor;
    let mut back = 0;
    if seen >= oldest + 8 {
        // SAFETY: 8 bytes are before `seen`, and more before `at`.
        let diff = unsafe { load64(s.add(at - 8)) ^ load64(s.add(seen - 8)) };
        back = literals.min(diff.leading_zeros() as usize / 8);
        if back < 8 {
            return back;
        }
    }
    let most = literals.min(seen - oldest);
    // SAFETY: `back < most`, so both positions are at `oldest` or after.
    while back < most && unsafe { *s.add(at - back - 1) == *s.add(seen - back - 1) } {
        back += 1;
    }
    back
}

/// The output. `at <= cap` always.
#[derive(Clone, Copy)]
pub(super) struct Writer<F> {
    pub(super) format: PhantomData<F>,
    /// Where the last offset began, or where the first will begin.
    pub(super) last_offset: usize,
    pub(super) out: *mut u8,
    pub(super) at: usize,
    pub(super) cap: usize,
}

/// What [`Writer::careful`] wrote.
pub(super) enum Written {
    /// The sequence.
    Whole,
    /// The sequence with a shorter match, after which only literals fit.
    Cut { code: usize },
    /// Nothing, because it does not fit.
    Nothing,
}

impl<F: Format> Writer<F> {
    /// Returns whether a sequence of `literals` literals and a match of `code + F::MIN_MATCH` bytes
    /// can be written with `SLACK` to spare.
    #[inline(always)]
    fn has_room(&self, literals: usize, code: usize) -> bool {
        self.at + literals + (literals >> 7) + (code >> 7) + SLACK <= self.cap
    }

    /// Writes a sequence of `len` literals and a match of `code + F::MIN_MATCH` bytes.
    ///
    /// # Safety
    /// `len + 16` bytes can be read from `literals`, at least 32 if `len` is 15 or more, and there
    /// is [room](Writer::has_room).
    #[inline(always)]
    unsafe fn sequence(&mut self, literals: *const u8, len: usize, offset: usize, code: usize) {
        // SAFETY: upheld by the caller: 1 token, `len` rounded up to 32, 2 for the offset, and at
        // most `1 + (length >> 7)` bytes per length.
        unsafe {
            *self.out.add(self.at) = (len.min(15) << 4 | code.min(15)) as u8;
            self.at += 1;
            if F::DYNAMIC {
                self.offset::<true>(offset);
                // `match_length` would make the address of the literals depend on its result.
                if code >= 15 {
                    self.length(code - 15);
                }
            }
            if len < 15 {
                copy::<16>(literals, self.out.add(self.at));
            } else {
                self.length(len - 15);
                let to = self.out.add(self.at);
                copy::<32>(literals, to);
                if len > 32 {
                    to.add(32).copy_from_nonoverlapping(literals.add(32), len - 32);
                }
            }
            self.at += len;
            if !F::DYNAMIC {
                self.offset::<true>(offset);
                self.match_length(code);
            }
        }
    }

    /// Writes a sequence if it fits, and returns the resulting `at` and `last_offset`. For
    /// `Fit::Front`, enough room must stay free for the literals with which the format's rules
    /// require a block to end. A match for which that fails is cut to fit.
    ///
    /// # Safety
    /// `len` bytes can be read from `literals`.
    #[cold]
    #[inline(never)]
    pub(super) unsafe fn careful(
        mut self,
        fit: Fit,
        literals: *const u8,
        len: usize,
        offset: usize,
        code: usize,
    ) -> (usize, usize, Written) {
        let start = self.at + 1 + length_bytes(len) + len + self.offset_bytes(self.at, offset);
        let fits = |code: usize| {
            let last = F::LAST_LITERALS.max(F::LAST_START.saturating_sub(code + F::MIN_MATCH));
            let kept = if fit == Fit::Front { 1 + last } else { 0 };
            start + length_bytes(code) + kept <= self.cap
        };
        let mut written = Written::Whole;
        let mut code = code;
        if !fits(code) {
            if fit == Fit::All {
                return (self.at, self.last_offset, Written::Nothing);
            }
            let length_room = self.cap.saturating_sub(start + 1 + F::LAST_LITERALS);
            code = code.min(14 + 255 * length_room);
            if !fits(code) {
                return (self.at, self.last_offset, Written::Nothing);
            }
            written = Written::Cut { code };
        }
        // SAFETY: upheld by the caller; all bytes were counted above.
        unsafe { self.exact(literals, len, Some((offset, code))) };
        (self.at, self.last_offset, written)
    }

    /// Writes a token, `len` literals and, unless they are the block's last, a match.
    ///
    /// # Safety
    /// `len` bytes can be read from `literals`, and there is room for all that is written.
    pub(super) unsafe fn exact(&mut self, literals: *const u8, len: usize, found: Option<(usize, usize)>) {
        let (offset, code) = found.unwrap_or((0, 0));
        // SAFETY: upheld by the caller.
        unsafe {
            self.byte(len.min(15) << 4 | code.min(15));
            if F::DYNAMIC {
                self.offset::<false>(offset);
                if code >= 15 {
                    self.length(code - 15);
                }
            }
            if len >= 15 {
                self.length(len - 15);
            }
            self.out.add(self.at).copy_from_nonoverlapping(literals, len);
            self.at += len;
            if !F::DYNAMIC && found.is_some() {
                self.offset::<false>(offset);
                if code >= 15 {
                    self.length(code - 15);
                }
            }
        }
    }

    /// Writes one byte.
    ///
    /// # Safety
    /// There is room for it.
    #[inline(always)]
    unsafe fn byte(&mut self, byte: usize) {
        // SAFETY: upheld by the caller.
        unsafe { *self.out.add(self.at) = byte as u8 };
        self.at += 1;
    }

    /// Returns the bytes of an offset in the sequence whose token is at `token`. The first
    /// sequence's offset always has two.
    #[inline(always)]
    fn offset_bytes(&self, token: usize, offset: usize) -> usize {
        if F::DYNAMIC { 1 + usize::from((offset > 0x7F) | (token == 0)) } else { 2 }
    }

    /// Writes an offset; 0 means none. In the dynamic format it follows the token, and the previous
    /// offset, if any, is marked with the number of bytes of this one.
    ///
    /// # Safety
    /// There is room for its bytes; for two, if `WIDE`.
    #[inline(always)]
    unsafe fn offset<const WIDE: bool>(&mut self, offset: usize) {
        let bytes = if F::DYNAMIC { self.offset_bytes(self.at - 1, offset) } else { 2 };
        let bits = if F::DYNAMIC { offset << 1 } else { offset };
        // SAFETY: upheld by the caller; `last_offset` is before or at `at`.
        unsafe {
            if F::DYNAMIC {
                // In the first sequence this is the byte about to be written.
                *self.out.add(self.last_offset) |= (bytes - 1) as u8;
                self.last_offset = self.at;
            }
            if WIDE || bytes == 2 {
                store16(self.out.add(self.at), bits as u16);
            } else {
                *self.out.add(self.at) = bits as u8;
            }
        }
        self.at += bytes;
    }

    /// Writes the part of a match's length that the token does not hold. Writes a byte even if the
    /// token holds all of it: the next write replaces it.
    ///
    /// # Safety
    /// There is room for one byte and for the bytes of the length.
    #[inline(always)]
    unsafe fn match_length(&mut self, code: usize) {
        // SAFETY: upheld by the caller.
        unsafe {
            if code >= 15 + 255 {
                self.length(code - 15);
            } else {
                *self.out.add(self.at) = code.wrapping_sub(15) as u8;
                self.at += usize::from(code >= 15);
            }
        }
    }

    /// Writes `length / 255` bytes of 255, and one byte for the remainder.
    ///
    /// # Safety
    /// There is room for these bytes.
    #[inline(always)]
    pub(super) unsafe fn length(&mut self, length: usize) {
        // SAFETY: upheld by the caller.
        unsafe {
            let last = if length < 255 { length } else { self.full_bytes(length) };
            *self.out.add(self.at) = last as u8;
        }
        self.at += 1;
    }

    /// Writes `length / 255` bytes of 255, and returns the remainder.
    ///
    /// # Safety
    /// There is room for these bytes.
    #[cold]
    #[inline(never)]
    unsafe fn full_bytes(&mut self, length: usize) -> usize {
        // SAFETY: upheld by the caller.
        unsafe { self.out.add(self.at).write_bytes(255, length / 255) };
        self.at += length / 255;
        length % 255
    }
}

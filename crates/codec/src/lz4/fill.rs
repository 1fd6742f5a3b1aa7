//! The encoder of an LZ4 block that fills its output, for inputs of any length.
//!
//! ```text
//! from the second byte on, until 128 bytes are left:
//!     find a position whose next bytes were seen before, by a hash table of every position tried;
//!         after 112 misses try every second position, after 48 more every third, and so on
//!     extend the match forwards, and backwards over literals
//!     if it is one of the shortest: take the one that begins a byte later, if that is longer
//!     write token, literals, offset, length
//!     remember the position 2 before the match's end, and, of matches tried twice, the one after
//!         their start
//! the same to the end, with a test at each byte; then write the rest as literals
//! ```
//!
//! Speed:
//!
//! 1. The table has 16 bits per position, whatever the input's length: positions count from a base
//!    that moves along. When they reach [`TURN`], the base moves so that [`KEPT`] of them remain,
//!    and all entries are lowered by the same amount, down to 0, the base itself. So an offset
//!    reaches every entry, and the table uses half the cache that 32 bits would: 15 to 30 % less
//!    time in clusters of 64 KiB.
//! 2. A sequence has few data-dependent branches. Matches are first compared by 32 bytes, 32
//!    literals are always copied, and a byte for each length is always written; the next write
//!    overwrites those that are not needed. This takes 3 to 10 % less time on text. The backward
//!    extension branches only if all of 8 bytes are equal and more literals are left. Longer
//!    sequences and those near the output's end are written out of line, and each kind of search is
//!    a separate function: 7 % less time.
//! 3. The second look, for matches of at least 6 bytes, gives 2 to 5 % fewer sequences and 1 to 3 %
//!    fewer bytes for 10 % more time. Text in clusters of 4 KiB then has the same size as with
//!    matches of 5 bytes but 17 % fewer sequences, which speeds up reading.
#![allow(unsafe_code)] // Unaligned loads and copies that overshoot.

use std::marker::PhantomData;

use super::encode::{Fit, SLACK, Writer, Written, common_suffix, most_literals};
use super::format::{Format, Plain};
use crate::mem::{common_prefix, common_prefix_by, copy, load32, load64, store16};

/// The base moves at this position: positions up to here, and [`NEAR_END`] more, fit in 16 bits.
const TURN: usize = 65_400;

/// Distance of the base from the next position after a move: an offset always reaches this far.
const KEPT: usize = 57_344;

/// Bytes before the input's end that are encoded in small steps.
const NEAR_END: usize = 128;

/// Literals copied together.
const SHORT_LITERALS: usize = 32;

/// Minimum match length, less the shortest match's, that needs a second length byte.
const LONG: usize = 15 + 255;

/// Minimum length of a match that the search finds.
const FOUND: usize = 4;

/// Logarithm of the longest table, 32 KiB, of which a fill uses a part. With 14 instead of 13,
/// clusters of 64 KiB take 4 to 15 % more time and 1 to 5 % fewer bytes.
const MOST_BITS: u32 = 14;

/// The table.
pub(super) type Positions = [u16; 1 << MOST_BITS];

/// Returns the hash of the next `HASHED` bits, 40 or 48.
#[inline(always)]
fn hash<const HASHED: u32, const BITS: u32>(bytes: u64) -> usize {
    const { assert!(BITS <= MOST_BITS) };
    ((bytes << (64 - HASHED)).wrapping_mul(0x9E37_79B1_85EB_CA87) >> (64 - BITS)) as usize
}

/// Lowers all positions by the distance that the base moves.
fn lower(positions: &mut [u16], by: usize) {
    let by = u16::try_from(by).unwrap_or(u16::MAX);
    positions.iter_mut().for_each(|position| *position = position.saturating_sub(by));
}

/// Compresses `input`, or as much of its front as fits, into `out`, and returns the bytes consumed
/// and the bytes written. Returns `None` if `out` is empty. Searches a table of `2^BITS` positions
/// by the hash of `HASHED` bits; if `TWICE`, looks twice at the shortest matches.
///
/// A separate function for each combination: in one function for all, the loops lack registers.
#[inline(never)]
pub(super) fn fill<const HASHED: u32, const TWICE: bool, const BITS: u32>(
    positions: &mut Positions,
    input: &[u8],
    out: &mut [u8],
) -> Option<(usize, usize)> {
    positions[..1 << BITS].fill(0);
    let mut search = Search::<HASHED, TWICE, BITS> {
        writer: Writer { format: PhantomData, last_offset: 1, out: out.as_mut_ptr(), at: 0, cap: out.len() },
        base: 0,
        anchor: 0,
        next: 1,
    };
    // SAFETY: `anchor` and `next` are 0 and 1; each step leaves them where the next may begin.
    unsafe {
        let far = input.len().saturating_sub(NEAR_END);
        let mut full = false;
        while !full && search.next < far {
            search.turn(positions, TURN);
            full = search.stretch(positions, input, far.min(search.base + TURN));
        }
        if !full {
            search.turn(positions, TURN);
            search.end(positions, input);
        }
    }
    let Search { mut writer, anchor, .. } = search;
    let literals = (input.len() - anchor).min(most_literals(writer.cap - writer.at)?);
    // SAFETY: `literals` bytes are left of `input`, and they fit.
    unsafe { writer.exact(input.as_ptr().add(anchor), literals, None) };
    Some((anchor + literals, writer.at))
}

/// The progress within a block.
///
/// Invariants: `base <= next` and `anchor <= next`. The table's positions, counted from `base`, are
/// below `next`.
struct Search<const HASHED: u32, const TWICE: bool, const BITS: u32> {
    writer: Writer<Plain>,
    /// The byte of the input from which positions count.
    base: usize,
    /// The first byte not yet written.
    anchor: usize,
    /// The first position not yet tried.
    next: usize,
}

impl<const HASHED: u32, const TWICE: bool, const BITS: u32> Search<HASHED, TWICE, BITS> {
    /// Moves the base if `next` is at least `most` from it.
    fn turn(&mut self, positions: &mut Positions, most: usize) {
        if self.next - self.base >= most {
            let by = self.next - self.base - KEPT;
            lower(&mut positions[..1 << BITS], by);
            self.base += by;
        }
    }

    /// Encodes sequences that begin before `stop`, and returns whether the output is full.
    ///
    /// # Safety
    /// `NEAR_END` bytes are between `stop` and the input's end; `stop - self.base <= TURN`.
    #[inline(always)]
    unsafe fn stretch(&mut self, positions: &mut Positions, input: &[u8], stop: usize) -> bool {
        const SINGLE_STEPS: usize = 112;
        const STEPS: usize = 48;
        /// A match at most this much longer than [`FOUND`] is tried twice.
        const SHORT: usize = 2;
        debug_assert!(stop - self.base <= TURN && stop + NEAR_END <= input.len());
        let table = positions.as_mut_ptr();
        let mut writer = self.writer;
        // SAFETY: reads are at most 48 bytes after a position before `stop`, or before the match's
        // end, which is 5 bytes before the input's. Positions from `s` fit in 16 bits; hashes are
        // inside the table. `sequence` is called only if the output has room.
        unsafe {
            let s = input.as_ptr().add(self.base);
            let match_end = input.as_ptr().add(input.len() - Plain::LAST_LITERALS);
            let stop = stop - self.base;
            let mut start = self.next - self.base;
            let mut literal = input.as_ptr().add(self.anchor);
            // Returns the earlier position with the bytes of this one, if any, and remembers this
            // one.
            let look = |at: usize| {
                let bytes = load64(s.add(at));
                let entry = table.add(hash::<HASHED, BITS>(bytes));
                let seen = usize::from(*entry);
                *entry = at as u16;
                (load32(s.add(seen)) == bytes as u32).then_some(seen)
            };
            // A sequence that begins before this, with one byte per length, leaves `SLACK`.
            let easy = writer.cap.saturating_sub(SLACK + SHORT_LITERALS + 6);
            let full = 'all: loop {
                let mut at = start;
                let mut seen;
                'found: {
                    let single_end = stop.min(start + SINGLE_STEPS);
                    while at < single_end {
                        if let Some(found) = look(at) {
                            seen = found;
                            break 'found;
                        }
                        at += 1;
                    }
                    // Beyond this, the literals alone do not fit.
                    let most = literal.wrapping_add(writer.cap - writer.at).addr().saturating_sub(s.addr());
                    let mut tries = 2 * STEPS;
                    while at < stop.min(most) {
                        if let Some(found) = look(at) {
                            seen = found;
                            break 'found;
                        }
                        at += tries / STEPS;
                        tries += 1;
                    }
                    start = at;
                    break 'all at >= most;
                }
                let mut forward = common_prefix_by::<32>(s.add(at + FOUND), s.add(seen + FOUND), match_end);
                if TWICE && forward <= SHORT {
                    let bytes = load64(s.add(at + 1));
                    let entry = table.add(hash::<HASHED, BITS>(bytes));
                    let later = usize::from(*entry);
                    *entry = (at + 1) as u16;
                    let same = (load64(s.add(later)) ^ bytes).trailing_zeros() as usize / 8;
                    if same > FOUND + forward {
                        (at, seen) = (at + 1, later);
                        forward = common_prefix_by::<32>(s.add(at + FOUND), s.add(seen + FOUND), match_end);
                    }
                }
                let back = self.back(s, literal, at, seen);
                let literals = s.add(at - back).offset_from_unsigned(literal);
                let code = back + forward;
                if literals <= SHORT_LITERALS && code < LONG && writer.at < easy {
                    sequence(&mut writer, literal, literals, at - seen, code);
                } else {
                    let written;
                    (writer.at, _, written) = writer.careful(Fit::Front, literal, literals, at - seen, code);
                    match written {
                        Written::Whole => {}
                        Written::Cut { code } => {
                            literal = s.add(at - back + FOUND + code);
                            break 'all true;
                        }
                        Written::Nothing => break 'all true,
                    }
                }
                start = at + FOUND + forward;
                literal = s.add(start);
                if start >= stop {
                    break false;
                }
                if TWICE {
                    *table.add(hash::<HASHED, BITS>(load64(s.add(at + 1)))) = (at + 1) as u16;
                }
                *table.add(hash::<HASHED, BITS>(load64(s.add(start - 2)))) = (start - 2) as u16;
            };
            self.writer = writer;
            self.anchor = literal.offset_from_unsigned(input.as_ptr());
            self.next = self.base + start;
            full
        }
    }

    /// Returns how many bytes between `literal` and `at` equal those before `seen`.
    ///
    /// # Safety
    /// `literal` is not after the byte at `at`, an offset from `s`. `s` is `self.base` bytes into the
    /// input.
    #[inline(always)]
    unsafe fn back(&self, s: *const u8, literal: *const u8, at: usize, seen: usize) -> usize {
        // SAFETY: upheld by the caller; 8 bytes are before `seen`, and more before `at`.
        unsafe {
            let most = s.add(at).offset_from_unsigned(literal);
            if seen >= 8 {
                let differ = load64(s.add(at - 8)) ^ load64(s.add(seen - 8));
                let equal = differ.leading_zeros() as usize / 8;
                let back = equal.min(most);
                if back < 8 {
                    return back;
                }
            }
            far_back(s, most, at, seen)
        }
    }

    /// Encodes sequences to the input's end, or until the output is full.
    ///
    /// # Safety
    /// `self.next - self.base <= TURN`; all the table's positions are before `self.next`.
    #[cold]
    #[inline(never)]
    unsafe fn end(&mut self, positions: &mut Positions, input: &[u8]) {
        // SAFETY: 12 bytes are after each position tried; `seen` is before it.
        unsafe {
            let s = input.as_ptr().add(self.base);
            let match_end = input.as_ptr().add(input.len().saturating_sub(Plain::LAST_LITERALS));
            while self.next + Plain::LAST_START <= input.len() {
                let at = self.next - self.base;
                let bytes = load64(s.add(at));
                let entry = &mut positions[hash::<HASHED, BITS>(bytes)];
                let seen = usize::from(*entry);
                *entry = at as u16;
                self.next += 1;
                if load32(s.add(seen)) != bytes as u32 {
                    continue;
                }
                let forward = common_prefix(s.add(at + FOUND), s.add(seen + FOUND), match_end);
                let literal = input.as_ptr().add(self.anchor);
                let most = s.add(at).offset_from_unsigned(literal);
                let back = far_back(s, most, at, seen);
                let written;
                (self.writer.at, _, written) =
                    self.writer.careful(Fit::Front, literal, most - back, at - seen, back + forward);
                self.anchor = match written {
                    Written::Whole => self.base + at + FOUND + forward,
                    Written::Cut { code } => self.base + at - back + FOUND + code,
                    Written::Nothing => return,
                };
                if matches!(written, Written::Cut { .. }) {
                    return;
                }
                self.next = self.anchor;
            }
        }
    }
}

/// Returns how many bytes before `at`, at most `most`, equal those before `seen`.
///
/// # Safety
/// `at` is an offset from `s`, and the `most` bytes before it can be read.
#[cold]
#[inline(never)]
unsafe fn far_back(s: *const u8, most: usize, at: usize, seen: usize) -> usize {
    // SAFETY: upheld by the caller.
    unsafe { common_suffix(s, 0, at - most.min(at), at, seen) }
}

/// Writes a sequence of `len` literals and a match of `code + 4` bytes.
///
/// # Safety
/// `len <= SHORT_LITERALS` and `code < LONG`; 32 bytes can be read from `literals`, and 38 are free
/// in the output.
#[inline(always)]
unsafe fn sequence(writer: &mut Writer<Plain>, literals: *const u8, len: usize, offset: usize, code: usize) {
    // SAFETY: upheld by the caller: a token, a byte for each length, 32 literals and an offset are
    // written.
    unsafe {
        let (out, mut at) = (writer.out, writer.at);
        *out.add(at) = (len.min(15) << 4 | code.min(15)) as u8;
        at += 1;
        *out.add(at) = len.wrapping_sub(15) as u8;
        at += usize::from(len >= 15);
        copy::<SHORT_LITERALS>(literals, out.add(at));
        at += len;
        store16(out.add(at), offset as u16);
        at += 2;
        *out.add(at) = code.wrapping_sub(15) as u8;
        writer.at = at + usize::from(code >= 15);
    }
}

//! The decoder for AVX-512: it keeps the last 64 bytes of the page in a register.
//!
//! ```text
//! window := the 64 bytes before the page's place
//! for each token of `Sequences`:
//!     window := the highest 64 bytes of window, literals and match
//!         if the offset is at most 64, the match's bytes come from window and literals;
//!         otherwise from the page
//!     write the new bytes of the window
//! ```
//!
//! Why that is faster than copies in memory (figures in `docs/log/fold.md`, "Decoder"):
//!
//! 1. A match that reads bytes just written waits until they have left the store buffer, if two
//!    stores wrote them: that was 30 % of the copies' time on heaps. Here such a match is a
//!    permutation of window and literals. The order of the permutation is loaded from [`ORDERS`],
//!    which has a row for each offset; a length is an index into the row.
//! 2. One code path handles all tokens of at most 64 bytes, whatever their sizes, which cannot be
//!    predicted.
//! 3. A mispredicted branch is detected sooner: the lengths that it waits for are only loaded.
//! 4. New bytes of the window are written to their place by one more permutation, instead of
//!    writing the whole window. So a byte that a later match reads from the page was written once.
//! 5. A far match is read up to its source's end, not from its start: the bytes before were written
//!    longer ago (+4 %).
//! 6. Window and literals are permuted separately, and the window last, under a mask: each window
//!    follows from the previous one in 3 cycles (+5 to +7 %).
//! 7. Both masks come from the order, whose bytes say which of the three sources they belong to. A
//!    column with a mask per token would cost ten more instructions for sixteen tokens, and a slow
//!    load (+5 to +10 %).
//! 8. Everything that can be computed for sixteen tokens together is in a column, including offsets
//!    that repeat: 21 of 43 instructions per token remain (+9 % if another thread shares the core,
//!    ±0 if none does).
//! 9. The window after a long match is loaded from the match's source. A long match that reaches
//!    the page's end is written by whole stores, except for its last bytes (on Zen 4 half-random
//!    pages +9 to +11 %, file system blocks up to 2.3 times as fast).
#![allow(unsafe_code)] // All sums are checked before a byte is written.

use core::arch::x86_64::*;

use super::sequences::{FAR_ROW, ROW, Sequences, WINDOW};
use crate::PAGE_SIZE;

/// Byte `n` of row `offset` selects the `n`th byte of a window followed by a match of 64 bytes at
/// that offset: a byte of the window, numbered from [`FROM_WINDOW`], or [`FAR`]. Once a run is
/// added, bytes that were before the window's end are literals, numbered from 0.
#[repr(align(64))]
struct Orders([[u8; ROW]; WINDOW + 2]);

/// A byte's place in the window is numbered from here, so that the highest bit distinguishes it
/// from a literal's.
const FROM_WINDOW: u8 = 192;

/// Marks a byte that is not in the window but in the page. As a signed number it is greater than
/// every literal's place and every place in the window, even after a run is added.
const FAR: u8 = WINDOW as u8;

static ORDERS: Orders = {
    let mut rows = [[0; ROW]; WINDOW + 2];
    let mut offset = 1;
    while offset < rows.len() {
        let mut at = 0;
        while at < ROW {
            rows[offset][at] = if at < WINDOW {
                at as u8 + FROM_WINDOW
            } else if offset <= WINDOW {
                (WINDOW - offset + (at - WINDOW) % offset) as u8 + FROM_WINDOW
            } else {
                FAR
            };
            at += 1;
        }
        offset += 1;
    }
    Orders(rows)
};

/// Writes the output of `count` tokens to the start of `page`. Matches may begin before `page` only
/// if `dict`.
///
/// # Safety
/// `page` can be written. If `dict`, bytes before it can be read, as far back as matches begin
/// and at least [`WINDOW`]. `sequences` has `count` tokens as [`Sequences::parse`] left them. Their
/// output is at most a page. From `literals`, `literals_readable` bytes can be read: at least the
/// sum of the tokens' runs plus [`WINDOW`].
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512vbmi")]
#[inline(never)]
pub(super) unsafe fn copy(
    sequences: &Sequences,
    count: usize,
    dict: bool,
    literals: *const u8,
    literals_readable: usize,
    page: *mut u8,
) {
    let page = page..page.wrapping_add(PAGE_SIZE);
    let last_whole = page.end.wrapping_sub(WINDOW);
    let mut op = page.start;
    // SAFETY: upheld by the caller.
    let mut window = if dict { unsafe { _mm512_loadu_si512(op.sub(WINDOW).cast()) } } else { _mm512_setzero_si512() };
    let mut at = 0;
    // SAFETY: `at` is at most `count`, whose total stops the loop. Until then, `op` is where
    // `parse` found that the token begins. Therefore:
    // - `op + total` is in the page or its end. 64 bytes are written where they fit, fewer where
    //   they do not.
    // - `1 <= offset`, and a match's source begins in the page or in the bytes before it. The mask
    //   limits reads from the source to the match's own bytes, none of them at or after `op`, as
    //   offsets are above 64 there.
    // - 64 literals are read where at least `run` of them are left.
    unsafe {
        while op <= last_whole {
            let (total, first_literal) = sequences.total_and_literals(at);
            if total > WINDOW {
                if at == count {
                    return;
                }
                let run = sequences.total_and_literals(at + 1).1 - first_literal;
                let length = total - run;
                let (order, source) = sequences.order_and_source(at);
                let row = (order - length) / ROW;
                let source_end = source + WINDOW as isize;
                let far_offset = op.add(total).offset_from(page.start) - source_end;
                let offset = if row == FAR_ROW { far_offset as usize } else { row };
                let long = Long { run, length, offset };
                let literals_left = literals_readable - first_literal;
                window = long.copy(window, literals.add(first_literal), literals_left, op, page.end);
            } else {
                let new;
                (window, new) = copied(sequences, at, literals.add(first_literal), page.start, window);
                _mm512_storeu_si512(op.cast(), new);
            }
            op = op.add(total);
            at += 1;
        }
        while at < count {
            let (total, first_literal) = sequences.total_and_literals(at);
            let new;
            (window, new) = copied(sequences, at, literals.add(first_literal), page.start, window);
            _mm512_mask_storeu_epi8(op.cast(), !(!0 << total), new);
            op = op.add(total);
            at += 1;
        }
    }
}

/// Returns the window after token `at`, which has at most 64 bytes; and a register that starts with
/// the token's bytes.
///
/// # Safety
/// As for [`copy`], before `at` is copied.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
#[inline]
unsafe fn copied(
    sequences: &Sequences,
    at: usize,
    literals: *const u8,
    page: *const u8,
    window: __m512i,
) -> (__m512i, __m512i) {
    // SAFETY: upheld by the caller.
    unsafe {
        let (order, source) = sequences.order_and_source(at);
        let order = ORDERS.0.as_ptr().cast::<u8>().add(order);
        let run = _mm512_set1_epi32(*sequences.run_bytes.as_ptr().add(at) as i32);
        let total = _mm512_set1_epi32(*sequences.total_bytes.as_ptr().add(at) as i32);
        let window = moved(window, order, run, literals, page.wrapping_offset(source));
        (window, last_first(window, total))
    }
}

/// Returns the window after literals and a match. The 64 bytes at `order`, with `run` added to
/// each, say where its bytes come from.
///
/// # Safety
/// 64 bytes can be read from `order` and `literals`; and from `source`, the bytes whose order is
/// [`FAR`].
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
#[inline]
unsafe fn moved(window: __m512i, order: *const u8, run: __m512i, literals: *const u8, source: *const u8) -> __m512i {
    // SAFETY: upheld by the caller.
    unsafe {
        let order = _mm512_add_epi8(_mm512_loadu_si512(order.cast()), run);
        let new = _mm512_permutexvar_epi8(order, _mm512_loadu_si512(literals.cast()));
        let far = _mm512_cmpgt_epi8_mask(order, _mm512_set1_epi8(FAR as i8 - 1));
        let new = _mm512_mask_loadu_epi8(new, far, source.cast());
        _mm512_mask_permutexvar_epi8(new, _mm512_movepi8_mask(order), order, window)
    }
}

/// Returns a register that starts with the last bytes of the window; each byte of `count` holds
/// their number.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
#[inline]
fn last_first(window: __m512i, count: __m512i) -> __m512i {
    // SAFETY: a row has 128 bytes.
    let places = unsafe { _mm512_load_si512(ORDERS.0[FAR_ROW].as_ptr().cast()) };
    _mm512_permutexvar_epi8(_mm512_sub_epi8(places, count), window)
}

/// A token of more than 64 bytes.
struct Long {
    run: usize,
    length: usize,
    offset: usize,
}

impl Long {
    /// Copies the token to `op` and returns the window after it.
    ///
    /// # Safety
    /// As for [`copy`]: the token fits in the page, and `literals_left` is at least its run plus
    /// [`WINDOW`].
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512vbmi")]
    #[inline]
    unsafe fn copy(
        self,
        mut window: __m512i,
        mut literals: *const u8,
        literals_left: usize,
        mut op: *mut u8,
        page_end: *mut u8,
    ) -> __m512i {
        let Self { mut run, mut length, offset } = self;
        let room = page_end.addr() - op.addr();
        // SAFETY: upheld by the caller. The first branch checks that reads and writes past the
        // token's ends fit. The other writes whole registers inside the token, except for the last
        // one, for which it checks the room.
        unsafe {
            if offset > WINDOW
                && length <= 2 * WINDOW
                && room >= run + length + 2 * WINDOW
                && literals_left >= run + 2 * WINDOW
            {
                // Copies 128 bytes together, whatever the lengths: fewer branches than steps of 64.
                let mut done = 0;
                while done < run {
                    _mm512_storeu_si512(op.add(done).cast(), _mm512_loadu_si512(literals.add(done).cast()));
                    done += WINDOW;
                    _mm512_storeu_si512(op.add(done).cast(), _mm512_loadu_si512(literals.add(done).cast()));
                    done += WINDOW;
                }
                op = op.add(run);
                let source = op.sub(offset);
                _mm512_storeu_si512(op.cast(), _mm512_loadu_si512(source.cast()));
                _mm512_storeu_si512(op.add(WINDOW).cast(), _mm512_loadu_si512(source.add(WINDOW).cast()));
                // From the sources: a load of bytes just written would wait for them.
                let before_match = WINDOW.saturating_sub(length);
                let window = _mm512_loadu_si512(literals.add(run).sub(before_match).cast());
                return _mm512_mask_loadu_epi8(
                    window,
                    !0 << before_match,
                    source.wrapping_add(length).wrapping_sub(WINDOW).cast(),
                );
            }
            while run >= WINDOW {
                window = _mm512_loadu_si512(literals.cast());
                _mm512_storeu_si512(op.cast(), window);
                literals = literals.add(WINDOW);
                op = op.add(WINDOW);
                run -= WINDOW;
            }
            if run + length > WINDOW {
                if run > 0 {
                    window = part(window, run, 0, 1, literals, op);
                    _mm512_storeu_si512(op.cast(), last_first(window, _mm512_set1_epi8(run as i8)));
                    op = op.add(run);
                    run = 0;
                }
                if offset > WINDOW {
                    while length > WINDOW {
                        window = _mm512_loadu_si512(op.sub(offset).cast());
                        _mm512_storeu_si512(op.cast(), window);
                        op = op.add(WINDOW);
                        length -= WINDOW;
                    }
                } else if length > WINDOW {
                    let order = _mm512_load_si512(ORDERS.0[offset].as_ptr().add(WINDOW).cast());
                    let repeats = offset.is_power_of_two();
                    window = _mm512_permutexvar_epi8(order, window);
                    loop {
                        _mm512_storeu_si512(op.cast(), window);
                        op = op.add(WINDOW);
                        length -= WINDOW;
                        if length <= WINDOW {
                            break;
                        }
                        if !repeats {
                            window = _mm512_permutexvar_epi8(order, window);
                        }
                    }
                }
            }
            window = part(window, run, length, offset, literals, op);
            let total = run + length;
            let new = last_first(window, _mm512_set1_epi8(total as i8));
            if page_end.addr() - op.addr() >= WINDOW {
                _mm512_storeu_si512(op.cast(), new);
            } else {
                _mm512_mask_storeu_epi8(op.cast(), !(!0 << total), new);
            }
            window
        }
    }
}

/// Returns the window after `run` literals and `length` bytes from `offset` back, together at most
/// 64 bytes.
///
/// # Safety
/// `op` is their place in the page, and 64 bytes of `literals` can be read.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512vbmi")]
#[inline]
unsafe fn part(
    window: __m512i,
    run: usize,
    length: usize,
    offset: usize,
    literals: *const u8,
    op: *const u8,
) -> __m512i {
    // SAFETY: upheld by the caller.
    unsafe {
        let order = ORDERS.0[offset.min(FAR_ROW)].as_ptr().add(length);
        // A load from bytes just written would wait for them, even if its mask is 0.
        let source =
            if offset > WINDOW { op.wrapping_add(run + length).wrapping_sub(offset + WINDOW) } else { literals };
        moved(window, order, _mm512_set1_epi8(run as i8), literals, source)
    }
}

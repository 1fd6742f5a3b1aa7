//! The decoder for AVX-512: it keeps the last 64 bytes of the page in a register.
//!
//! ```text
//! window := the 64 bytes before the page's place
//! for each token of `Sequences`:
//!     window := the highest 64 bytes of window, literals and match
//!         where the offset is 64 or less, the match's bytes come from window and literals; otherwise from the page
//!     write what came to the window
//! ```
//!
//! Why that is quicker than copies in memory (figures in `docs/log/fold.md`, "Decoder, third round"
//! and "fourth round"):
//!
//! 1. A match that reads bytes just written waits until they have left the store buffer, if they
//!    came by two stores: that was 30 % of the copies' time on heaps. Here such a match is a
//!    permutation of window and literals. Its order is a load: [`ORDERS`] has a row for each
//!    offset, and a length is a place in it.
//! 2. There is one way for all tokens of 64 bytes or less, whatever their sizes, which cannot be
//!    predicted.
//! 3. A mispredicted branch is found sooner: the lengths it waits for are only loaded.
//! 4. What came to the window is written from its place on, by one more permutation, not up to its
//!    end: a byte that a later match reads from the page is then written once.
//! 5. A far match is read up to its source's end, not from its start on: what lies before was
//!    written longer ago (+4 %).
//! 6. Window and literals are permuted each by itself, and the window last, under a mask: one
//!    window comes from the one before in 3 cycles (+5 to +7 %).
//! 7. Both masks come from the order, whose bytes say which of the three they are of. A mask of
//!    each token's own in a column is ten more instructions for sixteen tokens, and a slow load (+5
//!    to +10 %).
//! 8. All that can be computed for sixteen tokens at once is in a column, offsets that repeat among
//!    it: 21 instructions are left for each of 43 (+9 % where another thread shares the core, ±0
//!    where none does).
#![allow(unsafe_code)] // All sums are checked before a byte is written.

use core::arch::x86_64::*;

use super::sequences::Sequences;
use crate::PAGE_SIZE;

/// Bytes in the register.
pub(super) const WINDOW: usize = 64;

/// Bytes of a row of [`ORDERS`].
pub(super) const ROW: usize = 2 * WINDOW;

/// The row for a match at any larger offset.
pub(super) const FAR_ROW: usize = WINDOW + 1;

/// Byte `n` of row `offset` says which byte is the `n`th of a window and a match of 64 bytes at
/// that offset: one of the window, from [`FROM_WINDOW`] on, or [`FAR`]. Once a run is added, bytes
/// that were before the window's end are literals, from 0 on.
#[repr(align(64))]
struct Orders([[u8; ROW]; WINDOW + 2]);

/// A byte's place in the window is said from here on, so that the highest bit tells it from a
/// literal's.
const FROM_WINDOW: u8 = 192;

/// Says that a byte is not in the window but in the page. As a signed number it is above every
/// literal's and every place in the window, and so it is with a run added.
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

/// Writes what `count` tokens say to the start of `page`. Matches may begin before it only if
/// `beyond`.
///
/// # Safety
/// `page` is one that can be written; if `beyond`, bytes before it can be read, as far as matches
/// begin there and [`WINDOW`] at least. `sequences` has `count` tokens as [`Sequences::parse`] left
/// them. They come to a page at most, and from `literals` on, `literals_readable` bytes can be
/// read: as many as their runs come to, and [`WINDOW`] more, or more than that.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512vbmi")]
#[inline(never)]
pub(super) unsafe fn copy(
    sequences: &Sequences,
    count: usize,
    beyond: bool,
    literals: *const u8,
    literals_readable: usize,
    page: *mut u8,
) {
    let page = page..page.wrapping_add(PAGE_SIZE);
    let last_whole = page.end.wrapping_sub(WINDOW);
    let mut op = page.start;
    // SAFETY: the caller's.
    let mut window = if beyond { unsafe { _mm512_loadu_si512(op.sub(WINDOW).cast()) } } else { _mm512_setzero_si512() };
    let mut at = 0;
    // SAFETY: `at` is at most `count`, for which there is a total that stops the loop. Before, `op`
    // is where `parse` found that the token begins, and so:
    // - `op + total` is in the page or its end. 64 bytes are written where they fit, less where
    //   they do not.
    // - `1 <= offset`, and a match's source begins in the page or in what is before it. Only a
    //   match's own bytes are read from there, by the mask; none from `op` on, as offsets are above
    //   64 there.
    // - 64 literals are read where `run` of them or more are left.
    unsafe {
        while op <= last_whole {
            let total = *sequences.totals.as_ptr().add(at) as usize;
            if total > WINDOW {
                if at == count {
                    return;
                }
                let first_literal = *sequences.literals.as_ptr().add(at) as usize;
                let run = *sequences.literals.as_ptr().add(at + 1) as usize - first_literal;
                let length = total - run;
                let row = (*sequences.orders.as_ptr().add(at) as usize - length) / ROW;
                let source_end = *sequences.sources.as_ptr().add(at) as i32 as isize + WINDOW as isize;
                let far_offset = op.add(total).offset_from(page.start) - source_end;
                let offset = if row == FAR_ROW { far_offset as usize } else { row };
                let long = Long { run, length, offset };
                let literals_left = literals_readable - first_literal;
                window = long.copy(window, literals.add(first_literal), literals_left, op, page.end);
            } else {
                let new;
                (window, new) = copied(sequences, at, literals, page.start, window);
                _mm512_storeu_si512(op.cast(), new);
            }
            op = op.add(total);
            at += 1;
        }
        while at < count {
            let total = *sequences.totals.as_ptr().add(at) as usize;
            let new;
            (window, new) = copied(sequences, at, literals, page.start, window);
            _mm512_mask_storeu_epi8(op.cast(), !(!0 << total), new);
            op = op.add(total);
            at += 1;
        }
    }
}

/// The window after token `at`, of 64 bytes or less; and the token's bytes first.
///
/// # Safety
/// That of [`copy`], before `at` is copied.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
#[inline]
unsafe fn copied(
    sequences: &Sequences,
    at: usize,
    literals: *const u8,
    page: *const u8,
    window: __m512i,
) -> (__m512i, __m512i) {
    // SAFETY: the caller's.
    unsafe {
        let order = ORDERS.0.as_ptr().cast::<u8>().add(*sequences.orders.as_ptr().add(at) as usize);
        let run = _mm512_set1_epi32(*sequences.run_bytes.as_ptr().add(at) as i32);
        let total = _mm512_set1_epi32(*sequences.total_bytes.as_ptr().add(at) as i32);
        let literals = literals.add(*sequences.literals.as_ptr().add(at) as usize);
        let source = page.wrapping_offset(*sequences.sources.as_ptr().add(at) as i32 as isize);
        let window = moved(window, order, run, literals, source);
        (window, last_first(window, total))
    }
}

/// The window after literals and a match: 64 bytes from `order` on, `run` added to each, say where
/// its bytes come from.
///
/// # Safety
/// 64 bytes can be read from `order` and `literals`, and from `source` those that are [`FAR`].
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
#[inline]
unsafe fn moved(window: __m512i, order: *const u8, run: __m512i, literals: *const u8, source: *const u8) -> __m512i {
    // SAFETY: the caller's.
    unsafe {
        let order = _mm512_add_epi8(_mm512_loadu_si512(order.cast()), run);
        let new = _mm512_permutexvar_epi8(order, _mm512_loadu_si512(literals.cast()));
        let far = _mm512_cmpgt_epi8_mask(order, _mm512_set1_epi8(FAR as i8 - 1));
        let new = _mm512_mask_loadu_epi8(new, far, source.cast());
        _mm512_mask_permutexvar_epi8(new, _mm512_movepi8_mask(order), order, window)
    }
}

/// The window's last bytes, as many as each byte of `count` says, and then others.
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
    /// That of [`copy`]: the token fits the page, and `literals_left` literals are its run and
    /// [`WINDOW`] more, or more.
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
        // SAFETY: the caller's; what is read or written past the token's ends was seen to fit.
        unsafe {
            if offset > WINDOW
                && length <= 2 * WINDOW
                && room >= run + length + 2 * WINDOW
                && literals_left >= run + 2 * WINDOW
            {
                // 128 bytes at once, whatever the lengths: fewer branches than by steps of 64.
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
                return _mm512_loadu_si512(op.add(length).sub(WINDOW).cast());
            }
            if room >= run + length + WINDOW {
                while run >= WINDOW {
                    window = _mm512_loadu_si512(literals.cast());
                    _mm512_storeu_si512(op.cast(), window);
                    literals = literals.add(WINDOW);
                    op = op.add(WINDOW);
                    run -= WINDOW;
                }
                if run + length > WINDOW {
                    window = part(window, run, 0, 1, literals, op);
                    _mm512_storeu_si512(op.cast(), last_first(window, _mm512_set1_epi8(run as i8)));
                    op = op.add(run);
                    run = 0;
                    let row = ORDERS.0[offset.min(FAR_ROW)].as_ptr();
                    let order = _mm512_load_si512(row.add(WINDOW).cast());
                    while length > WINDOW {
                        window = if offset > WINDOW {
                            _mm512_loadu_si512(op.sub(offset).cast())
                        } else {
                            _mm512_permutexvar_epi8(order, window)
                        };
                        _mm512_storeu_si512(op.cast(), window);
                        op = op.add(WINDOW);
                        length -= WINDOW;
                    }
                }
                window = part(window, run, length, offset, literals, op);
                _mm512_storeu_si512(op.cast(), last_first(window, _mm512_set1_epi8((run + length) as i8)));
                return window;
            }
            while run + length > 0 {
                let run_here = run.min(WINDOW);
                let length_here = if run_here < run { 0 } else { length.min(WINDOW - run) };
                window = part(window, run_here, length_here, offset, literals, op);
                let total = run_here + length_here;
                _mm512_mask_storeu_epi8(
                    op.cast(),
                    u64::MAX >> (WINDOW - total),
                    last_first(window, _mm512_set1_epi8(total as i8)),
                );
                literals = literals.add(run_here);
                op = op.add(total);
                run -= run_here;
                length -= length_here;
            }
            window
        }
    }
}

/// The window after `run` literals and `length` bytes from `offset` back, 64 bytes or less.
///
/// # Safety
/// `op` is where they come in the page, and 64 bytes of `literals` can be read.
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
    // SAFETY: the caller's.
    unsafe {
        let order = ORDERS.0[offset.min(FAR_ROW)].as_ptr().add(length);
        let source = op.wrapping_add(run + length).wrapping_sub(offset + WINDOW);
        moved(window, order, _mm512_set1_epi8(run as i8), literals, source)
    }
}

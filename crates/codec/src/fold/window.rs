//! The decoder for AVX-512: it keeps the last 64 bytes of the page in a register.
//!
//! ```text
//! window := the 64 bytes before the page's place
//! for each token of `Sequences`:
//!     new := the literals; if the offset is more than 64, the match's bytes behind them, from the page
//!     window := the highest 64 bytes of window and new, after the match's bytes where the offset is 64 or less
//!     write what came to the window
//! ```
//!
//! Why that is quicker than copies in memory (figures in `docs/codecs-log/fold.md`, "Decoder, third round"):
//!
//! 1. A match that reads bytes just written waits until they have left the store buffer, if they came by two stores: that was
//!    30 % of the copies' time on heaps. Here such a match is one permutation of the window and the new literals. Its
//!    order is a load: [`ORDERS`] has a row for each offset, and a length is a place in it.
//! 2. There is one way for all tokens of 64 bytes or less, whatever their sizes, which cannot be predicted.
//! 3. A mispredicted branch is found sooner: the lengths it waits for are only loaded.
//! 4. What came to the window is written from its place on, by one more permutation, not up to its end: a byte that
//!    a later match reads from the page is then written once.
#![allow(unsafe_code)] // All sums are checked before a byte is written.

use core::{arch::x86_64::*, hint::select_unpredictable};

use super::sequences::{BEFORE, LAST, Sequences};
use crate::Page;

/// Bytes in the register.
const WINDOW: usize = 64;

/// The row for new bytes as they are.
const FAR_ROW: usize = WINDOW + 1;

/// Byte `n` of row `offset` says which of 128 bytes, a window and 64 new ones, is the `n`th where the new bytes are a match
/// at that offset: from the 64th on, bytes of the window repeat.
#[repr(align(64))]
struct Orders([[u8; 2 * WINDOW]; WINDOW + 2]);

static ORDERS: Orders = {
    let mut rows = [[0; 2 * WINDOW]; WINDOW + 2];
    let mut offset = 1;
    while offset < rows.len() {
        let mut at = 0;
        while at < 2 * WINDOW {
            let repeats = at >= WINDOW && offset <= WINDOW;
            rows[offset][at] = if repeats { WINDOW - offset + (at - WINDOW) % offset } else { at } as u8;
            at += 1;
        }
        offset += 1;
    }
    Orders(rows)
};

/// Writes what `count` tokens say to the start of `page`. `None`, with any bytes written, if a match begins before the page.
/// Changes `sequences`.
///
/// # Safety
/// `sequences` has `count` tokens as [`Sequences::parse`] left them. They come to a page at most, and from `literals` on,
/// `literals_readable` bytes can be read: as many as their runs come to, and [`WINDOW`] more, or more than that.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512vbmi")]
#[inline(never)]
pub(super) unsafe fn copy(
    sequences: &mut Sequences,
    count: usize,
    mut literals: *const u8,
    literals_readable: usize,
    page: &mut Page,
) -> Option<()> {
    let orders = ORDERS.0.as_ptr().cast::<u8>();
    let far_order = ORDERS.0[FAR_ROW].as_ptr();
    let page = page.as_mut_ptr_range();
    let last_whole = page.end.wrapping_sub(WINDOW);
    let last_literals = literals.wrapping_add(literals_readable).wrapping_sub(2 * WINDOW);
    let mut op = page.start;
    let (mut last, mut before) = (1, 1);
    let mut window = _mm512_setzero_si512();
    let mut at = 0;
    // SAFETY: `at` is at most `count`, for which there is an offset that stops the loop. Before, `op` is where `parse`
    // found that the token begins, and so:
    // - `op + run + length` is in the page or its end. 64 bytes are written where they fit, less where they do not.
    // - `offset <= reach` is where the match begins in the page, so a match's source does not begin before the page. Only a
    //   match's own bytes are read from there: `run` bytes less are not, by the mask; none from `op` on, as offsets are
    //   above 64 there.
    // - 64 literals are read where `run` of them or more are left.
    // `1 <= offset`: new ones are, and so are `last` and `before` at first. A row is that of an offset up to FAR_ROW; in it, 64
    // bytes are read from `length` or less on, at most 64.
    unsafe {
        loop {
            let new = *sequences.offsets.as_ptr().add(at) as i32;
            let offset = select_unpredictable(new == LAST, last, new);
            let offset = select_unpredictable(new <= BEFORE, before, offset);
            before = select_unpredictable(new == LAST, before, last);
            last = offset;
            if offset as u32 > *sequences.reaches.as_ptr().add(at) {
                break;
            }
            let mut offset = offset as usize;
            let mut run = *sequences.runs.as_ptr().add(at) as usize;
            let mut length = *sequences.lengths.as_ptr().add(at) as usize;
            let mut shift = _mm512_set1_epi32(*sequences.shifts.as_ptr().add(at) as i32);
            at += 1;
            if run + length > WINDOW {
                let room = page.end.addr() - op.addr();
                if offset > WINDOW
                    && length <= 2 * WINDOW
                    && room >= run + length + 2 * WINDOW
                    && literals.wrapping_add(run) <= last_literals
                {
                    // 128 bytes at once, whatever the lengths: fewer branches than by steps of 64.
                    let mut done = 0;
                    while done < run {
                        _mm512_storeu_si512(op.add(done).cast(), _mm512_loadu_si512(literals.add(done).cast()));
                        done += WINDOW;
                        _mm512_storeu_si512(op.add(done).cast(), _mm512_loadu_si512(literals.add(done).cast()));
                        done += WINDOW;
                    }
                    literals = literals.add(run);
                    op = op.add(run);
                    let source = op.sub(offset);
                    _mm512_storeu_si512(op.cast(), _mm512_loadu_si512(source.cast()));
                    _mm512_storeu_si512(op.add(WINDOW).cast(), _mm512_loadu_si512(source.add(WINDOW).cast()));
                    op = op.add(length);
                    window = _mm512_loadu_si512(op.sub(WINDOW).cast());
                    continue;
                }
                if room >= run + length + WINDOW {
                    // All of it but the last 64 bytes or less.
                    while run >= WINDOW {
                        window = _mm512_loadu_si512(literals.cast());
                        _mm512_storeu_si512(op.cast(), window);
                        literals = literals.add(WINDOW);
                        op = op.add(WINDOW);
                        run -= WINDOW;
                    }
                    shift = _mm512_set1_epi8(run as i8);
                    if run + length > WINDOW {
                        let here = _mm512_loadu_si512(literals.cast());
                        _mm512_storeu_si512(op.cast(), here);
                        let order = _mm512_add_epi8(_mm512_load_si512(far_order.cast()), shift);
                        window = _mm512_permutex2var_epi8(window, order, here);
                        literals = literals.add(run);
                        op = op.add(run);
                        run = 0;
                        shift = _mm512_setzero_si512();
                        let order = _mm512_load_si512(orders.add((2 * offset.min(FAR_ROW) + 1) * WINDOW).cast());
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
                } else {
                    // Near the page's end: a part of the token, and the rest of it as a token that is next.
                    at -= 1;
                    let (all_run, all_length) = (run, length);
                    run = run.min(WINDOW - 1);
                    length = length.min(WINDOW - run);
                    if run < all_run {
                        length = 0;
                        offset = 1; // It may be more than what is before `op + run`.
                    }
                    *sequences.runs.as_mut_ptr().add(at) = (all_run - run) as u32;
                    *sequences.shifts.as_mut_ptr().add(at) = u32::from((all_run - run) as u8) * 0x0101_0101;
                    *sequences.lengths.as_mut_ptr().add(at) = (all_length - length) as u32;
                    *sequences.offsets.as_mut_ptr().add(at) = LAST as u32;
                    shift = _mm512_set1_epi8(run as i8);
                }
            }
            let far = offset > WINDOW;
            let row = select_unpredictable(far, FAR_ROW, offset) * 2 * WINDOW;
            let order = _mm512_add_epi32(_mm512_loadu_si512(orders.add(row + length).cast()), shift);
            let source = select_unpredictable(far, op.wrapping_sub(offset).cast_const(), literals);
            let here = _mm512_loadu_si512(literals.cast());
            let here = _mm512_mask_loadu_epi8(here, !0_u64 << (run & 63), source.cast());
            window = _mm512_permutex2var_epi8(window, order, here);
            let to_place = _mm512_loadu_si512(far_order.add(WINDOW - run - length).cast());
            let new = _mm512_permutexvar_epi8(to_place, window);
            if op <= last_whole {
                _mm512_storeu_si512(op.cast(), new);
            } else {
                let room = page.end.addr() - op.addr();
                _mm512_mask_storeu_epi8(op.cast(), !(!0 << room), new);
            }
            literals = literals.add(run);
            op = op.add(run + length);
        }
    }
    (at == count).then_some(())
}

//! Primitives that some machines have instructions for, in their form for any machine.

use std::hint::select_unpredictable;

use super::format::{FIRST_REPS, Sequence, Step};

/// Operations that have an instruction on some machines only.
pub(super) trait Isa {
    /// Collects the bits of `value` where `mask` has ones at the low end (BMI2's `pext`). `mask`
    /// belongs to a [`Meaning`](super::format::Meaning).
    fn gather(value: u64, mask: u64) -> u64;

    /// Moves the low bits of `value` to where `mask` has ones (BMI2's `pdep`). `mask` belongs to a
    /// [`Meaning`](super::format::Meaning).
    fn scatter(value: u64, mask: u64) -> u64;

    /// The last three offsets, newest first.
    type Recent: Copy;

    /// Returns the last three offsets before a page's first sequence.
    fn first() -> Self::Recent;

    /// Returns the numbers of `sequence`, with a repeated offset looked up in `recent`, and
    /// `recent` after it.
    fn resolve(sequence: Sequence, recent: Self::Recent) -> (Step, Self::Recent);
}

/// The implementation for any machine.
pub(super) struct Generic;

impl Isa for Generic {
    type Recent = [u16; 3];

    #[inline(always)]
    fn first() -> Self::Recent {
        FIRST_REPS
    }

    #[inline(always)]
    fn resolve(sequence: Sequence, [newest, second, third]: Self::Recent) -> (Step, Self::Recent) {
        let rep = sequence.rep();
        let mut offset = sequence.offset() as u16;
        offset = select_unpredictable(rep == 0, newest, offset);
        offset = select_unpredictable(rep == 1, second, offset);
        offset = select_unpredictable(rep == 2, third, offset);
        let third = select_unpredictable(rep >= 2, second, third);
        let second = select_unpredictable(rep >= 1, newest, second);
        let step = Step { run: sequence.run() as u16, length: sequence.length() as u16, offset, rest: 0 };
        (step, [offset, second, third])
    }

    #[inline(always)]
    fn gather(value: u64, mask: u64) -> u64 {
        let [run, length, offset] = [mask & 0xffff, mask >> 16 & 0xffff, mask >> 32];
        let lengths = (value & run) | (value >> 16 & length) << run.count_ones();
        let offset_at = offset.trailing_zeros() & 63;
        lengths | (value >> 32 & offset) >> offset_at << (run.count_ones() + length.count_ones())
    }

    #[inline(always)]
    fn scatter(value: u64, mask: u64) -> u64 {
        let [run, length, offset] = [mask & 0xffff, mask >> 16 & 0xffff, mask >> 32];
        let after_run = value >> run.count_ones();
        let after_length = after_run >> length.count_ones();
        let offset_at = offset.trailing_zeros() & 63;
        value & run | (after_run & length) << 16 | (after_length << offset_at & offset) << 32
    }
}

//! The encoder and decoder in their fastest form for the machine: one algorithm, compiled for any
//! machine and for some instructions of x86-64. All builds give the same bytes.

use std::hint::select_unpredictable;

use super::{
    PleatTables,
    bits::Room,
    decode, encode,
    format::{FIRST_REPS, Sequence},
    lanes::Bounds,
    literals::{self, Literals},
    sequences::Step,
    tables::{Lookup, Lookups},
    window::Window,
};
use crate::{Corrupt, Page};

pub(super) type Encode = fn(&PleatTables, &Window, &mut encode::Scratch, &mut [u8]) -> Option<usize>;
pub(super) type Decode = fn(&PleatTables, &[u8], &mut Window, &mut decode::Scratch, &mut Page) -> Result<(), Corrupt>;

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

    /// Decodes the first `count` of `literals`, at least [`SIXTEEN_FROM`](super::lanes::SIXTEEN_FROM),
    /// from the sixteen lanes between the places `bounds`. May call `beside` while it waits, any number of
    /// times.
    fn decode_16<const N: usize>(
        lookups: &Lookups<N>,
        first: Lookup,
        room: &Room,
        bounds: &Bounds,
        literals: &mut Literals,
        count: usize,
        beside: impl FnMut(),
    ) -> Result<(), Corrupt>;
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

    #[inline(always)]
    fn decode_16<const N: usize>(
        lookups: &Lookups<N>,
        first: Lookup,
        room: &Room,
        bounds: &Bounds,
        literals: &mut Literals,
        count: usize,
        _: impl FnMut(),
    ) -> Result<(), Corrupt> {
        literals::decode_16(lookups, first, room, bounds, literals, count)
    }
}

/// An encoder and a decoder.
#[derive(Clone, Copy)]
pub(super) struct Shims {
    pub(super) encode: Encode,
    pub(super) decode: Decode,
}

impl Shims {
    /// The build for any machine.
    pub(super) const GENERIC: Self = Self {
        encode: |tables, window, scratch, out| encode::encode::<Generic>(tables, window, scratch, out),
        decode: |tables, object, window, scratch, page| {
            decode::decode::<Generic>(tables, object, window, scratch, page)
        },
    };

    /// Returns the builds that this machine can run, the fastest last.
    pub(super) fn every() -> impl Iterator<Item = Self> {
        #[cfg(target_arch = "x86_64")]
        let others = super::x86::builds();
        #[cfg(not(target_arch = "x86_64"))]
        let others = [None; 0];
        std::iter::once(Self::GENERIC).chain(others.into_iter().flatten())
    }

    /// Returns the fastest build for this machine.
    pub(super) fn best() -> Self {
        Self::every().last().unwrap_or(Self::GENERIC)
    }
}

/// Decodes the literals of an object; see [`literals::decode`].
#[cfg(test)]
pub(super) type DecodeLiterals =
    fn(&super::tables::LiteralSet, &Room, &Bounds, &mut Literals, usize) -> Result<(), Corrupt>;

#[cfg(test)]
pub(super) fn decode_literals<I: Isa>(
    set: &super::tables::LiteralSet,
    room: &Room,
    bounds: &Bounds,
    literals: &mut Literals,
    count: usize,
) -> Result<(), Corrupt> {
    literals::decode::<I, _>(&set.decode, set.first(), room, bounds, literals, count, || ())
}

/// Returns each build's decoder of literals, of those that this machine can run.
#[cfg(test)]
pub(super) fn literal_decoders() -> Vec<DecodeLiterals> {
    #[cfg(target_arch = "x86_64")]
    let others = super::x86::literal_decoders();
    #[cfg(not(target_arch = "x86_64"))]
    let others = [];
    std::iter::once(decode_literals::<Generic> as DecodeLiterals).chain(others).collect()
}

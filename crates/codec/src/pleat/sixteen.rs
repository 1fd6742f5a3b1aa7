//! Decodes sixteen lanes of literals in parallel, with AVX-512: eight lanes that are read upwards
//! and eight that are read downwards. Each lane is one 64-bit element of a register.
//!
//! ```text
//! step, until all lanes are at their ends:
//!     four times, for eight lanes together: gather the look-ups of the next bits; add their
//!         literals, two at most, to a word for each lane
//!     scatter the words to where the lanes' next literals belong
//! ```
//!
//! Speed:
//!
//! 1. A look-up waits for the one before, some 25 cycles. In this time the processor makes those of
//!    the other eight lanes and reads a few sequences, which do not depend on literals.
//! 2. The next bits are gathered together with a step's last look-ups, and rotated by their lengths after
//!    that.
#![allow(unsafe_code)] // Gathers and scatters, at places that are masked or that lanes' ends bound.

use std::arch::x86_64::{
    __m512i, __mmask8, _mm512_add_epi64, _mm512_and_si512, _mm512_cmpgt_epi64_mask, _mm512_cmple_epu64_mask,
    _mm512_cmplt_epi64_mask, _mm512_i64gather_epi64, _mm512_i64scatter_epi64, _mm512_loadu_si512,
    _mm512_mask_i64scatter_epi64, _mm512_maskz_mov_epi64, _mm512_rorv_epi64, _mm512_set1_epi64, _mm512_set4_epi64,
    _mm512_setzero_si512, _mm512_shrdv_epi64, _mm512_shuffle_epi8, _mm512_slli_epi64, _mm512_srli_epi64,
    _mm512_srlv_epi64, _mm512_sub_epi64, _mm512_ternarylogic_epi64,
};

use super::{
    bits::{Room, SIZE},
    lanes::{self, Bounds, GROUP, PAIRS, SIXTEEN_FROM},
    literals::{BAD_LANES, Literals, OVERLAP_MAX},
    tables::{LITERAL_MAX, Lookup, Lookups},
};
use crate::{Corrupt, PAGE_SIZE};

/// Look-ups of a step.
const ROUNDS: usize = 4;
/// Maximum literals that these give in a lane: as many as fit in a word.
const STEP: usize = 2 * ROUNDS;
// One refill, less the bits of a byte, serves the step's look-ups and the last of the step before.
const _: () = assert!((ROUNDS + 1) * LITERAL_MAX as usize <= 57);
// A word that is stored just before a lane's end spoils the start of the next lane only.
const _: () = assert!(SIXTEEN_FROM / GROUP / (2 * PAIRS) * GROUP >= STEP);

/// Every lane.
const ALL: __mmask8 = 0xff;

/// Eight lanes, read upwards, or downwards if `DOWN`.
#[derive(Clone, Copy)]
struct Eight<const DOWN: bool> {
    /// Where the bits were last loaded.
    at: __m512i,
    /// The unread bits, the next one lowest.
    bits: __m512i,
    /// In the low 6 bits, the number of bits read since they were loaded.
    read: __m512i,
    /// The results of the last look-ups: [`Lookup`]s, below 32 bits without meaning.
    last: __m512i,
    /// The last literals, the newest in the highest byte.
    word: __m512i,
    /// Eight times the number of literals in `word` that are not stored.
    fresh: __m512i,
    /// Where the next literals are stored.
    to: __m512i,
    /// Where the next lane starts.
    end: __m512i,
}

impl<const DOWN: bool> Eight<DOWN> {
    /// Creates every second of the lanes that start at `starts`, in pairs between `bounds`.
    #[inline]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,avx512f,avx512bw,avx512vbmi2")]
    fn new(first: Lookup, bounds: &Bounds, starts: &[u64; 2 * PAIRS + 1]) -> Self {
        let second = usize::from(DOWN);
        // SAFETY: an array of eight words is read.
        let load = |words: [u64; PAIRS]| unsafe { _mm512_loadu_si512(words.as_ptr().cast()) };
        let zero = _mm512_setzero_si512();
        Self {
            at: load(std::array::from_fn(|pair| bounds[pair + second] as u64)),
            bits: zero,
            read: zero,
            last: _mm512_set1_epi64(i64::from(first.0)),
            word: zero,
            fresh: zero,
            to: load(std::array::from_fn(|pair| starts[2 * pair + second])),
            end: load(std::array::from_fn(|pair| starts[2 * pair + second + 1])),
        }
    }

    /// Makes at least 57 bits available.
    #[inline]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,avx512f,avx512bw,avx512vbmi2")]
    fn refill(&mut self, room: &Room) {
        let seven = _mm512_set1_epi64(7);
        let bytes = _mm512_and_si512(_mm512_srli_epi64::<3>(self.read), seven);
        self.read = _mm512_and_si512(self.read, seven);
        self.at = if DOWN { _mm512_sub_epi64(self.at, bytes) } else { _mm512_add_epi64(self.at, bytes) };
        let at = if DOWN { _mm512_sub_epi64(self.at, _mm512_set1_epi64(8)) } else { self.at };
        let at = _mm512_and_si512(at, _mm512_set1_epi64(SIZE as i64 - 1));
        // SAFETY: a room has 8 bytes after SIZE, which all places are below.
        let next = unsafe { _mm512_i64gather_epi64::<1>(at, room.as_ptr().cast()) };
        let next = if DOWN {
            let [low, high] = [0x0001_0203_0405_0607, 0x0809_0a0b_0c0d_0e0f];
            _mm512_shuffle_epi8(next, _mm512_set4_epi64(high, low, high, low))
        } else {
            next
        };
        self.bits = _mm512_srlv_epi64(next, self.read);
    }

    /// Looks up the next bits, and finds nothing in lanes that are at their ends.
    #[inline]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,avx512f,avx512bw,avx512vbmi2")]
    fn look_up<const N: usize>(&self, lookups: &Lookups<N>, left: __m512i) -> __m512i {
        const { assert!(N.is_power_of_two()) };
        // A bit of `bits` where the first has a one, otherwise of `last`, which has the context.
        let index = _mm512_ternarylogic_epi64::<0xca>(_mm512_set1_epi64((1 << LITERAL_MAX) - 1), self.bits, self.last);
        let index = _mm512_and_si512(index, _mm512_set1_epi64(N as i64 - 1));
        // SAFETY: indexes are below N, and one look-up more follows these: 8 bytes can be read.
        let found = unsafe { _mm512_i64gather_epi64::<4>(index, std::ptr::from_ref(lookups).cast()) };
        _mm512_maskz_mov_epi64(self.open(left), found)
    }

    /// Skips the bits of the look-ups `found` and adds their literals.
    #[inline]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,avx512f,avx512bw,avx512vbmi2")]
    fn take(&mut self, found: __m512i) {
        self.bits = _mm512_rorv_epi64(self.bits, found);
        self.read = _mm512_add_epi64(self.read, found);
        let fresh = _mm512_and_si512(_mm512_srli_epi64::<{ 30 - 3 }>(found), _mm512_set1_epi64(3 << 3));
        self.word = _mm512_shrdv_epi64(self.word, _mm512_srli_epi64::<14>(found), fresh);
        self.fresh = _mm512_add_epi64(self.fresh, fresh);
        self.last = found;
    }

    /// Returns eight times the number of literals left when all were stored; below zero if a lane's
    /// last look-up gave one too many.
    #[inline]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,avx512f,avx512bw,avx512vbmi2")]
    fn left(&self) -> __m512i {
        _mm512_slli_epi64::<3>(_mm512_sub_epi64(self.end, self.to))
    }

    /// Returns the lanes that are not at their end, of which so much was left.
    #[inline]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,avx512f,avx512bw,avx512vbmi2")]
    fn open(&self, left: __m512i) -> __mmask8 {
        _mm512_cmpgt_epi64_mask(left, self.fresh)
    }

    /// Stores the literals of the lanes `open`, which have all that are not stored.
    ///
    /// # Safety
    /// These lanes' next literals belong before their ends, which 8 bytes of `literals` follow.
    #[inline]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,avx512f,avx512bw,avx512vbmi2")]
    unsafe fn store(&mut self, literals: *mut u8, open: __mmask8, left: __m512i) {
        let word = _mm512_srlv_epi64(self.word, _mm512_sub_epi64(_mm512_set1_epi64(64), self.fresh));
        let near_end = _mm512_cmplt_epi64_mask(left, _mm512_set1_epi64(64));
        // SAFETY: upheld by the caller.
        unsafe {
            if near_end == 0 {
                _mm512_i64scatter_epi64::<1>(literals.cast(), self.to, word);
            } else {
                // The words may spoil what follows their lanes.
                let next = _mm512_i64gather_epi64::<1>(self.end, literals.cast());
                _mm512_mask_i64scatter_epi64::<1>(literals.cast(), open, self.to, word);
                _mm512_i64scatter_epi64::<1>(literals.cast(), self.end, next);
            }
        }
        self.to = _mm512_add_epi64(self.to, _mm512_srli_epi64::<3>(self.fresh));
        self.fresh = _mm512_setzero_si512();
    }

    /// Returns where the next whole unread bytes begin or, if `DOWN`, end.
    #[inline]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,avx512f,avx512bw,avx512vbmi2")]
    fn place(&self) -> __m512i {
        let read = _mm512_and_si512(self.read, _mm512_set1_epi64(63));
        let bytes = _mm512_srli_epi64::<3>(_mm512_add_epi64(read, _mm512_set1_epi64(7)));
        if DOWN { _mm512_sub_epi64(self.at, bytes) } else { _mm512_add_epi64(self.at, bytes) }
    }
}

/// Does the same as [`literals::decode_16`](super::literals::decode_16), and calls `while_waiting` once for
/// every two gathers of look-ups, whose work is done while these are on their way.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,avx512f,avx512bw,avx512vbmi2")]
pub(super) fn decode<const N: usize>(
    lookups: &Lookups<N>,
    first: Lookup,
    room: &Room,
    bounds: &Bounds,
    literals: &mut Literals,
    count: usize,
    mut while_waiting: impl FnMut(),
) -> Result<(), Corrupt> {
    let count = count.clamp(SIXTEEN_FROM, PAGE_SIZE);
    let starts = std::array::from_fn(|lane| lanes::start(lane, 2 * PAIRS, count) as u64);
    let mut up = Eight::<false>::new(first, bounds, &starts);
    let mut down = Eight::<true>::new(first, bounds, &starts);
    let literals = literals.as_mut_ptr();
    up.refill(room);
    down.refill(room);
    loop {
        let left = (up.left(), down.left());
        let open = (up.open(left.0), down.open(left.1));
        if open == (0, 0) {
            break;
        }
        for round in 1..=ROUNDS {
            let found = (up.look_up(lookups, left.0), down.look_up(lookups, left.1));
            while_waiting();
            if round == ROUNDS {
                up.refill(room);
                down.refill(room);
            }
            up.take(found.0);
            down.take(found.1);
        }
        // SAFETY: open lanes are not at their ends, the last of which is at `count` at most: 64 bytes
        // follow it.
        unsafe {
            up.store(literals, open.0, left.0);
            down.store(literals, open.1, left.1);
        }
    }
    let overlap = _mm512_sub_epi64(up.place(), down.place());
    let near = _mm512_cmple_epu64_mask(overlap, _mm512_set1_epi64(OVERLAP_MAX as i64));
    if near == ALL { Ok(()) } else { Err(BAD_LANES) }
}

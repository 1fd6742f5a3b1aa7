//! Bit streams, highest bit first.

use crate::Corrupt;

/// Writes bits into a buffer, checking for room once per word.
pub(super) struct BitWriter<'a> {
    out: &'a mut [u8],
    at: usize,
    /// Bits not yet written, at the low end.
    held: u64,
    held_bits: u32,
    overrun: bool,
}

impl<'a> BitWriter<'a> {
    pub(super) fn new(out: &'a mut [u8]) -> Self {
        Self { out, at: 0, held: 0, held_bits: 0, overrun: false }
    }

    /// Writes the low `bits` ≤ 32 bits of `value`, which has no other bits set.
    #[inline(always)]
    pub(super) fn write(&mut self, value: u64, bits: u32) {
        self.held = self.held << bits | value;
        self.held_bits += bits;
        if self.held_bits >= 32 {
            self.held_bits -= 32;
            self.word((self.held >> self.held_bits) as u32);
        }
    }

    #[inline(always)]
    fn word(&mut self, word: u32) {
        match self.out.get_mut(self.at..).and_then(|rest| rest.first_chunk_mut()) {
            Some(place) => *place = word.to_be_bytes(),
            None => self.overrun = true,
        }
        self.at += 4;
    }

    /// Returns whether some of the output did not fit.
    pub(super) fn is_overrun(&self) -> bool {
        self.overrun
    }

    /// Pads to a multiple of 8 bytes and returns the length, or `None` if the output did not fit.
    pub(super) fn finish(mut self) -> Option<usize> {
        let spare = (64 - (self.at as u32 * 8 + self.held_bits) % 64) % 64;
        self.write(0, spare / 2);
        self.write(0, spare - spare / 2);
        (!self.overrun).then_some(self.at)
    }
}

/// Reads bits of an object.
pub(super) struct BitReader<'a> {
    rest: &'a [u8],
    /// Bits not yet read, at the high end, followed by zeros.
    held: u64,
    held_bits: u32,
}

impl<'a> BitReader<'a> {
    pub(super) fn new(object: &'a [u8]) -> Self {
        Self { rest: object, held: 0, held_bits: 0 }
    }

    /// Reads the next `bits` bits, 1 to 32.
    #[inline(always)]
    pub(super) fn read(&mut self, bits: u32) -> Result<u64, Corrupt> {
        if self.held_bits < bits {
            self.refill(bits)?;
        }
        let value = self.held >> (64 - bits);
        self.held <<= bits;
        self.held_bits -= bits;
        Ok(value)
    }

    #[inline(always)]
    fn refill(&mut self, bits: u32) -> Result<(), Corrupt> {
        if let Some((word, rest)) = self.rest.split_first_chunk() {
            self.held |= u64::from(u32::from_be_bytes(*word)) << (32 - self.held_bits);
            self.held_bits += 32;
            self.rest = rest;
            return Ok(());
        }
        while self.held_bits < bits {
            let (&byte, rest) = self.rest.split_first().ok_or(Corrupt { what: "842 stream is truncated" })?;
            self.held |= u64::from(byte) << (56 - self.held_bits);
            self.held_bits += 8;
            self.rest = rest;
        }
        Ok(())
    }

    /// Returns whether nothing is left but the zero bits that pad to 8 bytes.
    pub(super) fn is_at_end(&self) -> bool {
        self.held == 0 && self.held_bits < 64 && self.rest.len() < 8 && self.rest.iter().all(|&byte| byte == 0)
    }
}

//! The hashes by which places are remembered.

/// Bits of a hash of a word's upper bytes.
pub(super) const WORD_HASH_BITS: u32 = 9;

/// Bits of liblz4's hash of four bytes for an input below 64 KiB.
pub(super) const FIELD_HASH_BITS: u32 = 13;

/// Hashes a word's upper seven bytes.
#[inline(always)]
pub(super) fn hash_word(word: u64) -> usize {
    ((word >> 8).wrapping_mul(0x9E37_79B1_85EB_CA87) >> (64 - WORD_HASH_BITS)) as usize
}

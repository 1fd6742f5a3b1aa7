//! Numbers of the format, which `x842.rs` describes.

/// Bytes of a block.
pub(super) const BLOCK: usize = 8;

/// Sizes in bytes of the rings of 2, 4 and 8-byte phrases.
pub(super) const RING2: usize = 2 << INDEX2_BITS;
pub(super) const RING4: usize = 4 << INDEX4_BITS;
pub(super) const RING8: usize = 8 << INDEX8_BITS;

pub(super) const TEMPLATE_BITS: u32 = 5;
pub(super) const INDEX2_BITS: u32 = 8;
pub(super) const INDEX4_BITS: u32 = 9;
pub(super) const INDEX8_BITS: u32 = 8;
pub(super) const REPEAT_BITS: u32 = 6;
pub(super) const TAIL_BITS: u32 = 3;
pub(super) const SUM_BITS: u32 = 32;

/// The templates other than two halves.
pub(super) const WHOLE: u64 = 25;
pub(super) const REPEAT: u64 = 27;
pub(super) const ZEROS: u64 = 28;
pub(super) const TAIL: u64 = 29;
pub(super) const END: u64 = 30;

//! The instructions of an LZO1X stream.
//!
//! Lengths that do not fit in an instruction's field are extended: the field is 0, followed by as
//! many zero bytes as there are whole 255s in the remainder, then the rest, 1 to 255. Two bits S of
//! almost every instruction give the number of literals, 0 to 3, that directly follow it; longer
//! runs of literals have a separate instruction.
//!
//! ```text
//! first byte      17 1         version 1 (LZO-RLE); the stream's real first byte follows
//!                 18..=255     byte - 17 literals
//!                 otherwise    an instruction
//! 0000LLLL                     a run of literals, length 3 + L (extended over 15), after S = 0
//! 0000DDSS H                   match of 2 at distance H·4 + D + 1, after 1 to 3 literals
//! 0000DDSS H                   match of 3 at distance H·4 + D + 2049, after 4 or more literals
//! 0001HLLL dddddddd ddddddSS   match of 2 + L (extended over 7) at distance H·16384 + d + 16384;
//!                              the end of the stream if the distance is 16384;
//!                              in version 1, if H = 1 and all d are set:
//!                              a fourth byte X, a run of X·8 + L + 4 zeros
//! 001LLLLL dddddddd ddddddSS   match of 2 + L (extended over 31) at distance d + 1
//! 01LDDDSS H                   match of 3 + L at distance H·8 + D + 1
//! 1LLDDDSS H                   match of 5 + L at distance H·8 + D + 1
//! ```
//!
//! The 16 bits after the opcode are little-endian with S lowest. In a page no distance reaches
//! 16384, so the `0001` instruction only ends streams and encodes runs of zeros.

/// The version of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    /// Version 0, LZO1X.
    Plain,
    /// Version 1, with runs of zeros.
    Runs,
}

/// The first bytes of a stream of version 1.
pub(super) const RUNS_HEADER: [u8; 2] = [17, 1];
/// The end of a stream: a `0001` match at distance 16384.
pub(super) const END: [u8; 3] = [0x11, 0, 0];
/// The first byte of a stream is this plus the number of its first literals.
pub(super) const FIRST_LITERALS: usize = 17;

/// The two-byte form encodes matches of 3 to 8 bytes at distances up to 2048.
pub(super) const NEAR_LENGTH: usize = 8;
pub(super) const NEAR_DISTANCE: usize = 2048;

/// The longest match of the three-byte form whose length needs no extra bytes.
pub(super) const FAR_LENGTH: usize = 33;

/// The minimum and maximum run of zeros of one instruction.
pub(super) const ZEROS_LEAST: usize = 4;
pub(super) const ZEROS_MOST: usize = (0xff << 3 | 7) + ZEROS_LEAST;

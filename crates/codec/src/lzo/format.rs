//! The instructions of an LZO1X stream.
//!
//! Lengths that do not fit an instruction's field are continued: the field is 0, then as many zero
//! bytes as there are whole 255s in what is left, then the rest, 1 to 255. Two bits S of almost
//! every instruction say how many literals, 0 to 3, follow it at once; longer runs of literals have
//! an instruction of their own.
//!
//! ```text
//! first byte      17 1         version 1 (LZO-RLE) of the stream; the stream's true first byte follows
//!                 18..=255     byte - 17 literals
//!                 otherwise    an instruction
//! 0000LLLL                     a run of literals, length 3 + L (continued over 15), after S = 0
//! 0000DDSS H                   match of 2 at distance H·4 + D + 1, after 1 to 3 literals
//! 0000DDSS H                   match of 3 at distance H·4 + D + 2049, after 4 literals and more
//! 0001HLLL dddddddd ddddddSS   match of 2 + L (continued over 7) at distance H·16384 + d + 16384;
//!                              the end of the stream if the distance is 16384;
//!                              version 1, H = 1 and all d set: a fourth byte X, a run of X·8 + L + 4 zeros
//! 001LLLLL dddddddd ddddddSS   match of 2 + L (continued over 31) at distance d + 1
//! 01LDDDSS H                   match of 3 + L at distance H·8 + D + 1
//! 1LLDDDSS H                   match of 5 + L at distance H·8 + D + 1
//! ```
//!
//! The 16 bits after the opcode are little-endian with S lowest. In a page no distance reaches
//! 16384, so the `0001` instruction only ends streams and makes runs of zeros.

/// Which of the two streams.
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
/// What the first byte of a stream adds to the number of literals that it begins with.
pub(super) const FIRST_LITERALS: usize = 17;

/// The shortest match of the two-byte form has 3 bytes, the longest 8, at distances to 2048.
pub(super) const NEAR_LENGTH: usize = 8;
pub(super) const NEAR_DISTANCE: usize = 2048;

/// The longest match of the three-byte form whose length needs no further bytes.
pub(super) const FAR_LENGTH: usize = 33;

/// A run of zeros: the least and the most that one instruction makes.
pub(super) const ZEROS_LEAST: usize = 4;
pub(super) const ZEROS_MOST: usize = (0xff << 3 | 7) + ZEROS_LEAST;

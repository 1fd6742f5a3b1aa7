#![allow(unsafe_code)]
//! LZ4 clusters by liblz4. Unsafe for one call: decoding in place needs a source and a destination that overlap,
//! which two Rust slices cannot, so liblz4 is called with pointers into one slice.

use std::ffi::{c_char, c_int};

use lzzzz::{lz4, lz4_hc};

use super::{ClusterEncoder, EncoderError, Extent, Filled};
use crate::Corrupt;

/// The longest input for which liblz4 indexes its hash table with 16-bit positions: twice the entries in the same
/// memory, which finds more matches. Longer inputs are tried only when this much fits into one cluster.
const SHORT_INPUT: usize = (64 << 10) - 12;

pub(super) struct Fast;

impl ClusterEncoder for Fast {
    fn fill(&mut self, src: &[u8], dst: &mut [u8]) -> Option<Filled> {
        fill_short_first(src, |src| lz4::compress_fill(src, dst).ok())
    }
}

pub(super) struct High {
    level: i32,
}

impl High {
    pub(super) fn new(level: i32) -> Result<Self, EncoderError> {
        if (1..=12).contains(&level) {
            Ok(Self { level })
        } else {
            Err(EncoderError { codec: "lz4hc", what: "levels are 1 to 12" })
        }
    }
}

impl ClusterEncoder for High {
    fn fill(&mut self, src: &[u8], dst: &mut [u8]) -> Option<Filled> {
        gained(lz4_hc::compress_fill(src, dst, self.level).ok()?)
    }
}

fn fill_short_first(src: &[u8], mut fill: impl FnMut(&[u8]) -> Option<(usize, usize)>) -> Option<Filled> {
    if src.len() > SHORT_INPUT {
        let (consumed, written) = fill(&src[..SHORT_INPUT])?;
        if consumed < SHORT_INPUT {
            return gained((consumed, written));
        }
    }
    gained(fill(src)?)
}

fn gained((consumed, written): (usize, usize)) -> Option<Filled> {
    (written > 0 && written < consumed).then_some(Filled { consumed, written })
}

pub(super) fn decode(src: &[u8], dst: &mut [u8], extent: Extent) -> Result<(), Corrupt> {
    let done = match extent {
        Extent::Whole => lz4::decompress(src, dst),
        Extent::Prefix => {
            let len = dst.len();
            lz4::decompress_partial(src, dst, len)
        }
    };
    match done {
        Ok(len) if len == dst.len() => Ok(()),
        Ok(_) => Err(Corrupt { what: "lz4 cluster is shorter than its extent" }),
        Err(_) => Err(Corrupt { what: "malformed lz4 cluster" }),
    }
}

/// Bytes that a buffer for decoding in place must have beyond the decoded length, when `src_len` compressed bytes lie
/// at its end (lz4.h, `LZ4_DECOMPRESS_INPLACE_MARGIN`): without them the writer would overtake the reader.
pub fn lz4_in_place_margin(src_len: usize) -> usize {
    (src_len >> 8) + 32
}

unsafe extern "C" {
    // From the liblz4 that lzzzz bundles and links.
    fn LZ4_decompress_safe(src: *const c_char, dst: *mut c_char, compressed_size: c_int, dst_capacity: c_int) -> c_int;
}

/// Decodes the last `src_len` bytes of `buffer` to exactly its first `dst_len`.
///
/// ```text
/// buffer   |<------- dst_len ------->|<- margin ->|
///                      |<-------- src_len ------->|
/// ```
///
/// `buffer` must be at least `dst_len + lz4_in_place_margin(src_len)` long; a shorter one is refused. The compressed
/// bytes are overwritten. Any bytes give a full front or [`Corrupt`], with nothing touched outside `buffer`; after an
/// error it holds unspecified bytes.
pub fn lz4_decode_in_place(buffer: &mut [u8], src_len: usize, dst_len: usize) -> Result<(), Corrupt> {
    let fits = dst_len.checked_add(lz4_in_place_margin(src_len)).is_some_and(|room| room <= buffer.len());
    let (Some(src_at), true) = (buffer.len().checked_sub(src_len), fits) else {
        return Err(Corrupt { what: "lz4 cluster does not fit its buffer for decoding in place" });
    };
    let (Ok(src_size), Ok(dst_size)) = (c_int::try_from(src_len), c_int::try_from(dst_len)) else {
        return Err(Corrupt { what: "lz4 cluster is longer than 2 GiB" });
    };
    let start = buffer.as_mut_ptr();
    // SAFETY: both ranges lie inside `buffer` (checked above), which this function borrows exclusively, and all its
    // bytes are initialised. liblz4 documents that the ranges may overlap; it reads only [src, src + src_size) and
    // writes only [dst, dst + dst_size) whatever the bytes are, so an overtaken source is a wrong result, never an
    // access outside.
    let done = unsafe { LZ4_decompress_safe(start.add(src_at).cast_const().cast(), start.cast(), src_size, dst_size) };
    match usize::try_from(done) {
        Ok(len) if len == dst_len => Ok(()),
        Ok(_) => Err(Corrupt { what: "lz4 cluster is shorter than its extent" }),
        Err(_) => Err(Corrupt { what: "malformed lz4 cluster" }),
    }
}

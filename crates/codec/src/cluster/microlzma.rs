#![allow(unsafe_code)]
//! MicroLZMA clusters by liblzma (`lzma/container.h`, `lzma_microlzma_encoder` and `_decoder`).
//! Unsafe because liblzma's interface is C structures with raw pointers, and no safe binding has
//! these two functions.

use std::mem::MaybeUninit;

use liblzma_sys::{
    LZMA_FINISH, LZMA_OK, LZMA_STREAM_END, lzma_code, lzma_end, lzma_lzma_preset, lzma_microlzma_decoder,
    lzma_microlzma_encoder, lzma_options_lzma, lzma_ret, lzma_stream,
};

use super::{ClusterEncoder, EncoderError, Filled, Portion};
use crate::Corrupt;

/// A `lzma_stream` that is ended when dropped. Initialising it again keeps its allocations.
struct Stream(Box<lzma_stream>);

// SAFETY: liblzma does not tie a stream to a thread; all its state is reachable only through the
// structure, which is owned here and accessed only through `&mut`.
unsafe impl Send for Stream {}

impl Stream {
    fn new() -> Self {
        // SAFETY: all-zero bytes are LZMA_STREAM_INIT (lzma/base.h): null pointers, zero counts,
        // reserved enums 0.
        Self(Box::new(unsafe { MaybeUninit::<lzma_stream>::zeroed().assume_init() }))
    }

    /// Runs an initialised coder over `src` and `dst` in one call. Returns liblzma's code and the
    /// numbers of bytes read and written.
    fn run(&mut self, src: &[u8], dst: &mut [u8]) -> (lzma_ret, usize, usize) {
        self.0.next_in = src.as_ptr();
        self.0.avail_in = src.len();
        self.0.next_out = dst.as_mut_ptr();
        self.0.avail_out = dst.len();
        // SAFETY: the stream was initialised by its caller. liblzma reads at most `avail_in` bytes
        // and writes at most `avail_out`, the slices' lengths. It keeps neither pointer past the
        // call's use: they are cleared below before the slices' borrows end.
        let code = unsafe { lzma_code(&mut *self.0, LZMA_FINISH) };
        let counts = (src.len() - self.0.avail_in, dst.len() - self.0.avail_out);
        self.0.next_in = std::ptr::null();
        self.0.next_out = std::ptr::null_mut();
        self.0.avail_in = 0;
        self.0.avail_out = 0;
        (code, counts.0, counts.1)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the stream is zeroed or was initialised by liblzma; both may be ended, and it is
        // not used afterwards.
        unsafe { lzma_end(&mut *self.0) }
    }
}

pub(super) struct Encoder {
    stream: Stream,
    options: Box<lzma_options_lzma>,
}

// SAFETY: the options' pointers (a preset dictionary, reserved fields) stay null.
unsafe impl Send for Encoder {}

impl Encoder {
    pub(super) fn new(preset: u32, dict_bytes: u32) -> Result<Self, EncoderError> {
        let error = |what| EncoderError { codec: "lzma", what };
        if preset > 9 {
            return Err(error("presets are 0 to 9"));
        }
        if !(4096..=8 << 20).contains(&dict_bytes) {
            return Err(error("dictionaries are 4 KiB to 8 MiB"));
        }
        // SAFETY: the structure is plain integers, enums stored as integers with a 0 variant, and
        // nullable pointers.
        let mut options = Box::new(unsafe { MaybeUninit::<lzma_options_lzma>::zeroed().assume_init() });
        // SAFETY: `options` is a live, exclusive structure for liblzma to fill.
        if unsafe { lzma_lzma_preset(&mut *options, preset) } != 0 {
            return Err(error("liblzma refused the preset"));
        }
        options.dict_size = dict_bytes;
        Ok(Self { stream: Stream::new(), options })
    }
}

impl ClusterEncoder for Encoder {
    fn fill(&mut self, src: &[u8], dst: &mut [u8]) -> Option<Filled> {
        // SAFETY: both structures are live; liblzma copies the options and reuses the stream's
        // allocations.
        if unsafe { lzma_microlzma_encoder(&mut *self.stream.0, &*self.options) } != LZMA_OK {
            return None;
        }
        let (code, consumed, written) = self.stream.run(src, dst);
        (code == LZMA_STREAM_END && written > 0 && written < consumed && dst[0] != 0)
            .then_some(Filled { consumed, written })
    }
}

pub(super) struct Decoder {
    stream: Stream,
}

impl Default for Decoder {
    fn default() -> Self {
        Self { stream: Stream::new() }
    }
}

impl Decoder {
    pub(super) fn decode(
        &mut self,
        src: &[u8],
        dst: &mut [u8],
        extent: Portion,
        dict_bytes: u32,
    ) -> Result<(), Corrupt> {
        const MALFORMED: Corrupt = Corrupt { what: "malformed lzma cluster" };
        if dst.is_empty() {
            return Ok(());
        }
        let exact = u8::from(extent == Portion::Whole);
        // SAFETY: the stream is live and exclusive; the other arguments are plain numbers.
        let ready = unsafe {
            lzma_microlzma_decoder(&mut *self.stream.0, src.len() as u64, dst.len() as u64, exact, dict_bytes)
        };
        if ready != LZMA_OK {
            return Err(MALFORMED);
        }
        let (code, _, written) = self.stream.run(src, dst);
        match code {
            LZMA_STREAM_END | LZMA_OK if written == dst.len() => Ok(()),
            _ => Err(MALFORMED),
        }
    }
}

#![allow(unsafe_code)]
//! liblzo2's LZO1X-1. Unsafe because a C library is opened by name and called through its published
//! interface (`lzo/lzo1x.h`). This module upholds the buffer rules of every call, so that callers
//! need no unsafe code.

use std::ffi::{CStr, c_int, c_void};

type Compress = unsafe extern "C" fn(*const u8, usize, *mut u8, *mut usize, *mut c_void) -> c_int;
type Decompress = Compress;

/// Working memory of `lzo1x_1_compress`, in pointers (`LZO1X_1_MEM_COMPRESS`: 16384 pointers).
const WORK_POINTERS: usize = 16384;

/// liblzo2, opened. It stays loaded until the process exits.
#[derive(Clone, Copy, Debug)]
pub struct Liblzo2 {
    compress: Compress,
    decompress_safe: Decompress,
}

/// The working memory of one compressing thread.
#[derive(Debug)]
pub struct Liblzo2Work(Box<[usize; WORK_POINTERS]>);

impl Default for Liblzo2Work {
    fn default() -> Self {
        Self(Box::new([0; WORK_POINTERS]))
    }
}

fn symbol(handle: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: `handle` came from a `dlopen` that succeeded and is never closed; `name` ends with a
    // zero byte.
    let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

impl Liblzo2 {
    /// Opens the library, if the machine has `liblzo2.so.2`.
    pub fn open() -> Option<Self> {
        // SAFETY: the name ends with a zero byte, and liblzo2's initialisers access nothing but the
        // library itself.
        let handle = unsafe { libc::dlopen(c"liblzo2.so.2".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return None;
        }
        let compress = symbol(handle, c"lzo1x_1_compress")?;
        let decompress = symbol(handle, c"lzo1x_decompress_safe")?;
        // SAFETY: both symbols are functions of exactly this type in every liblzo2.so.2 (lzo1x.h,
        // where `lzo_uint` is a pointer-sized integer on 64-bit machines), and a function pointer
        // has the size of a data pointer here.
        let (compress, decompress_safe) = unsafe {
            (
                std::mem::transmute::<*mut c_void, Compress>(compress),
                std::mem::transmute::<*mut c_void, Decompress>(decompress),
            )
        };
        Some(Self { compress, decompress_safe })
    }

    /// Returns the maximum output of LZO1X-1 for `len` bytes, from the library's documentation.
    pub const fn bound(len: usize) -> usize {
        len + len / 16 + 64 + 3
    }

    /// Compresses `input` into `out` and returns the length of the stream.
    ///
    /// # Panics
    /// If `out` is shorter than [`bound`](Self::bound): the library does not check it.
    pub fn compress(&self, work: &mut Liblzo2Work, input: &[u8], out: &mut [u8]) -> usize {
        assert!(out.len() >= Self::bound(input.len()), "liblzo2 does not check the size of its output");
        let mut len = out.len();
        // SAFETY: `input` is readable for its length; `out` has room for the worst case (asserted
        // above); the working memory has the required size and pointer alignment.
        let status = unsafe {
            (self.compress)(input.as_ptr(), input.len(), out.as_mut_ptr(), &raw mut len, work.0.as_mut_ptr().cast())
        };
        assert_eq!(status, 0, "lzo1x_1_compress always returns LZO_E_OK");
        len
    }

    /// Decodes `input` into `out` and returns the bytes written, or the library's status on an
    /// error.
    pub fn decompress_safe(&self, input: &[u8], out: &mut [u8]) -> Result<usize, i32> {
        let mut len = out.len();
        // SAFETY: the safe decoder reads only `input` and writes at most `len` bytes of `out`; it
        // uses no working memory.
        let status = unsafe {
            (self.decompress_safe)(input.as_ptr(), input.len(), out.as_mut_ptr(), &raw mut len, std::ptr::null_mut())
        };
        if status == 0 { Ok(len) } else { Err(status) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        let Some(lzo) = Liblzo2::open() else {
            return pagefold_testing::skip("liblzo2 round trip", "liblzo2.so.2 is not installed");
        };
        let input: Vec<u8> = (0..4096u32).map(|at| ((at * at) >> 7) as u8).collect();
        let mut object = vec![0; Liblzo2::bound(input.len())];
        let len = lzo.compress(&mut Liblzo2Work::default(), &input, &mut object);
        let mut back = vec![0; input.len()];
        assert_eq!(lzo.decompress_safe(&object[..len], &mut back), Ok(input.len()));
        assert_eq!(back, input);
        assert!(lzo.decompress_safe(&object[..len - 1], &mut back).is_err());
    }
}

//! A minimal device: a vector, served on a Unix socket until the process is killed.
//!
//! ```text
//! cargo run --release --example ram -- ram.sock 1073741824
//! nbdinfo 'nbd+unix:///?socket=ram.sock'
//! ```
//!
//! With a third argument, `may-block`, the device reports that it may block. Its requests then take
//! the path of slow devices.

use std::sync::{Arc, PoisonError, RwLock};

use pagefold_disk::{BlockDevice, Error, Extent, Zeroes};
use pagefold_serve::{Export, Server};

/// Has one lock per stretch of 64 KiB, so that each part of a request is applied atomically.
struct Ram {
    stretches: Vec<RwLock<Box<[u8]>>>,
    may_block: bool,
}

const STRETCH_BYTES: usize = 64 << 10;

impl Ram {
    fn new(size_bytes: usize, may_block: bool) -> Self {
        let stretch = || RwLock::new(vec![0; STRETCH_BYTES].into_boxed_slice());
        Self { stretches: (0..size_bytes.div_ceil(STRETCH_BYTES)).map(|_| stretch()).collect(), may_block }
    }

    /// Returns the stretches of a range as (index, offset within it, length).
    fn stretches(offset: u64, len_bytes: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        let (mut at, end) = (offset as usize, offset as usize + len_bytes);
        std::iter::from_fn(move || {
            let within = at % STRETCH_BYTES;
            let part = (at / STRETCH_BYTES, within, (end - at).min(STRETCH_BYTES - within));
            at += part.2;
            (part.2 != 0).then_some(part)
        })
    }
}

impl BlockDevice for Ram {
    fn size_bytes(&self) -> u64 {
        (self.stretches.len() * STRETCH_BYTES) as u64
    }

    fn may_block(&self) -> bool {
        self.may_block
    }

    fn read(&self, offset: u64, mut buf: &mut [u8]) -> Result<(), Error> {
        for (index, within, len_bytes) in Self::stretches(offset, buf.len()) {
            let stretch = self.stretches[index].read().unwrap_or_else(PoisonError::into_inner);
            let (head, tail) = buf.split_at_mut(len_bytes);
            head.copy_from_slice(&stretch[within..within + len_bytes]);
            buf = tail;
        }
        Ok(())
    }

    fn write(&self, offset: u64, mut buf: &[u8]) -> Result<(), Error> {
        for (index, within, len_bytes) in Self::stretches(offset, buf.len()) {
            let mut stretch = self.stretches[index].write().unwrap_or_else(PoisonError::into_inner);
            let (head, tail) = buf.split_at(len_bytes);
            stretch[within..within + len_bytes].copy_from_slice(head);
            buf = tail;
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), Error> {
        Ok(())
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<(), Error> {
        self.write_zeroes(offset, len_bytes, Zeroes::MayUnmap)
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64, _zeroes: Zeroes) -> Result<(), Error> {
        for (index, within, len_bytes) in Self::stretches(offset, len_bytes as usize) {
            let mut stretch = self.stretches[index].write().unwrap_or_else(PoisonError::into_inner);
            stretch[within..within + len_bytes].fill(0);
        }
        Ok(())
    }

    fn extents(&self, _offset: u64, len_bytes: u64, each: &mut dyn FnMut(Extent) -> bool) -> Result<(), Error> {
        each(Extent { len_bytes, hole: false, zero: false });
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(path), Some(size_bytes)) = (args.next(), args.next()) else {
        return Err("usage: ram SOCKET BYTES [may-block]".into());
    };
    let may_block = args.next().is_some_and(|word| word == "may-block");
    let device = Arc::new(Ram::new(size_bytes.parse()?, may_block));
    Server::builder().export(Export::new("ram", device)).unix(path).bind()?.run()?;
    Ok(())
}

//! The buffers of a thread of the executor.

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
};

use memmap2::MmapMut;

use crate::memory::{Memory, Taken};

/// Bytes of the buffer that each thread has for the work that it runs.
pub const SCRATCH_BYTES: usize = 224 << 10;

/// A longer buffer is unmapped after this much work that did not use it. Until then it is kept,
/// because the first use of a page costs more than filling it.
const MOST_UNUSED: u32 = 16;

/// Granularity of mappings.
const PAGE_BYTES: usize = 4096;

/// A thread's buffer of [`SCRATCH_BYTES`], with any content, and a longer one for as long as work needs
/// one. The default has neither.
#[derive(Debug, Default)]
pub struct Scratch {
    own: Option<Own>,
    long: Option<Long>,
    /// Work since the long buffer was used.
    unused: u32,
}

#[derive(Debug)]
struct Own {
    map: MmapMut,
    memory: Arc<Memory>,
}

/// A mapping. It is unmapped before its bytes are released.
#[derive(Debug)]
struct Long {
    map: MmapMut,
    _taken: Taken,
}

impl Scratch {
    /// Creates the buffer of a thread, which the caller has counted. Longer ones are lent by `memory`.
    pub(crate) fn new(map: MmapMut, memory: Arc<Memory>) -> Self {
        Self { own: Some(Own { map, memory }), ..Self::default() }
    }

    /// Returns a buffer of `len_bytes`, with any content; `None` if there is no memory for it now.
    pub fn of(&mut self, len_bytes: usize) -> Option<&mut [u8]> {
        let Own { map, memory } = self.own.as_mut()?;
        if len_bytes <= map.len() {
            return map.get_mut(..len_bytes);
        }
        self.unused = 0;
        if self.long.as_ref().is_none_or(|long| long.map.len() < len_bytes) {
            self.long = None;
            let mapped_bytes = len_bytes.checked_next_multiple_of(PAGE_BYTES)?;
            let taken = memory.lend(mapped_bytes as u64)?;
            self.long = Some(Long { map: MmapMut::map_anon(mapped_bytes).ok()?, _taken: taken });
        }
        self.long.as_mut()?.map.get_mut(..len_bytes)
    }

    /// To be called after each piece of work.
    pub(crate) fn done(&mut self) {
        self.unused += 1;
        if self.unused > MOST_UNUSED {
            self.long = None;
            self.unused = 0;
        }
    }
}

impl Deref for Scratch {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.own.as_ref().map_or(&[], |own| &own.map)
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.own.as_mut().map_or(&mut [], |own| &mut own.map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: usize = 1 << 20;

    fn scratch(limit_bytes: u64) -> Scratch {
        Scratch::new(MmapMut::map_anon(SCRATCH_BYTES).unwrap(), Memory::new(limit_bytes, None))
    }

    #[test]
    fn a_long_buffer_is_kept_as_long_as_work_needs_it() {
        let mut scratch = scratch(LONG as u64);
        let memory = Arc::clone(&scratch.own.as_ref().unwrap().memory);
        let is_lent = || memory.lend(LONG as u64).is_none();
        let start = scratch.of(LONG).expect("memory").as_ptr();
        for _ in 0..3 * MOST_UNUSED {
            scratch.done();
            assert_eq!(scratch.of(LONG - 1).expect("kept").as_ptr(), start);
        }
        assert!(is_lent());
        assert_eq!(
            (scratch.of(SCRATCH_BYTES).map(|own| own.len()), scratch.len()),
            (Some(SCRATCH_BYTES), SCRATCH_BYTES)
        );
        for _ in 0..=MOST_UNUSED {
            assert!(is_lent());
            scratch.done();
        }
        assert!(!is_lent(), "it is unmapped");
    }

    #[test]
    fn without_memory_there_is_no_long_buffer() {
        let mut scratch = scratch(LONG as u64);
        assert!(scratch.of(LONG + 1).is_none());
        assert!(scratch.of(LONG).is_some());
        assert!(scratch.of(usize::MAX).is_none() && scratch.of(SCRATCH_BYTES).is_some());
        assert!(Scratch::default().of(1).is_none() && Scratch::default().is_empty());
    }
}

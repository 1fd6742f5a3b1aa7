//! Small values, one for each part of a base, whose memory is taken when they are first needed.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use pagefold_store::{PAGE_SIZE, Pool};

const CHUNK_BYTES: u64 = PAGE_SIZE as u64;

/// Maximum number of chunks; values beyond them do not exist.
const CHUNKS_MAX: u64 = 1 << 16;

/// Values by number, in chunks of a page that count against the pool's limit.
pub(crate) struct Chunks<T> {
    pool: Pool,
    chunks: Box<[OnceLock<Box<[T]>>]>,
    counted_bytes: AtomicU64,
}

impl<T: Default> Chunks<T> {
    /// Values in a chunk.
    const IN_CHUNK: usize = PAGE_SIZE / size_of::<T>();

    /// Creates `count` values, or fewer if there is no memory for them.
    pub(crate) fn new(pool: &Pool, count: u64) -> Self {
        let chunks = count.div_ceil(Self::IN_CHUNK as u64).min(CHUNKS_MAX);
        let bytes = chunks * size_of::<OnceLock<Box<[T]>>>() as u64;
        let counted_bytes = if pool.take_outside(bytes) { bytes } else { 0 };
        let chunks = (0..if counted_bytes == 0 { 0 } else { chunks }).map(|_| OnceLock::new()).collect();
        Self { pool: pool.clone(), chunks, counted_bytes: AtomicU64::new(counted_bytes) }
    }

    /// Returns a value, unless its chunk was never needed.
    #[inline]
    pub(crate) fn get(&self, number: u64) -> Option<&T> {
        Some(&self.chunks.get(number as usize / Self::IN_CHUNK)?.get()?[number as usize % Self::IN_CHUNK])
    }

    /// Returns a value, if there is memory for its chunk.
    pub(crate) fn make(&self, number: u64) -> Option<&T> {
        let place = self.chunks.get(number as usize / Self::IN_CHUNK)?;
        let chunk = match place.get() {
            Some(chunk) => chunk,
            None if self.pool.take_outside(CHUNK_BYTES) => {
                let mut made = false;
                let chunk = place.get_or_init(|| {
                    made = true;
                    std::iter::repeat_with(T::default).take(Self::IN_CHUNK).collect()
                });
                if made {
                    self.counted_bytes.fetch_add(CHUNK_BYTES, Relaxed);
                } else {
                    self.pool.give_outside(CHUNK_BYTES);
                }
                chunk
            }
            None => return None,
        };
        Some(&chunk[number as usize % Self::IN_CHUNK])
    }
}

impl<T> Chunks<T> {
    /// Returns the first number of the chunk after that of `number`.
    pub(crate) fn next(number: u64) -> u64 {
        let in_chunk = (PAGE_SIZE / size_of::<T>()) as u64;
        (number / in_chunk + 1) * in_chunk
    }
}

impl<T> std::fmt::Debug for Chunks<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chunks").field("chunks", &self.chunks.len()).finish_non_exhaustive()
    }
}

impl<T> Drop for Chunks<T> {
    fn drop(&mut self) {
        self.pool.give_outside(*self.counted_bytes.get_mut());
    }
}

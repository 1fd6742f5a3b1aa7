//! A file whose format is looked for.

use std::io;

use pagefold_storage::ReadAt;

use crate::headers::FRONT_BYTES;

/// A source, read from a start offset on.
pub(crate) struct Source<'a> {
    source: &'a dyn ReadAt,
    start: u64,
    pub(crate) len_bytes: u64,
    /// At most [`FRONT_BYTES`].
    pub(crate) front: Vec<u8>,
}

impl<'a> Source<'a> {
    pub(crate) fn new(source: &'a dyn ReadAt, start: u64) -> io::Result<Self> {
        let len_bytes = source.len_bytes()?.saturating_sub(start);
        let mut front = vec![0; len_bytes.min(FRONT_BYTES as u64) as usize];
        source.read_exact_at(&mut front, start)?;
        Ok(Self { source, start, len_bytes, front })
    }

    /// Returns `len` bytes at `at`; none if the source ends before.
    pub(crate) fn bytes(&self, at: u64, len: usize) -> io::Result<Vec<u8>> {
        let Some(end) = at.checked_add(len as u64).filter(|end| *end <= self.len_bytes) else { return Ok(Vec::new()) };
        if let Some(bytes) = self.front.get(at as usize..end as usize) {
            return Ok(bytes.to_vec());
        }
        let mut bytes = vec![0; len];
        self.source.read_exact_at(&mut bytes, self.start + at)?;
        Ok(bytes)
    }
}

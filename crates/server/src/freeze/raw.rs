//! Writes a disk as a sparse raw file.

use std::{fs::File, os::unix::fs::FileExt};

use pagefold_erofs::ReadAt;

use super::{
    error::{Result, Within},
    frozen::{Frozen, Wanted},
};

/// Bytes per read.
const PART_BYTES: u64 = 4 << 20;

/// Aligned blocks of this size that contain only zeros are not written. Most file systems have this
/// block size.
const BLOCK_BYTES: usize = 4096;

/// Writes the disk to `out`, an empty file, and reports progress to `watch`.
pub(super) fn write(frozen: &Frozen, out: &File, watch: &mut dyn FnMut(u64, u64)) -> Result<()> {
    let writing = || "writing the disk's bytes".to_owned();
    let changes = frozen.changes(Wanted::Bytes)?;
    out.set_len(frozen.size_bytes()).within(writing)?;
    let total_bytes = changes.iter().map(|change| change.len).sum();
    let reader = frozen.reader();
    let (mut done_bytes, mut bytes) = (0, Vec::new());
    for change in changes {
        let (mut at, end) = (change.at, change.at + change.len);
        while at < end {
            // Each part ends at a multiple of the part size, so blocks of zeros are found wherever
            // a change begins.
            let len = (PART_BYTES - at % PART_BYTES).min(end - at);
            bytes.resize(len as usize, 0);
            reader.read_exact_at(&mut bytes, at).within(|| "reading the disk".to_owned())?;
            for (start, len) in stretches(at, &bytes) {
                out.write_all_at(&bytes[start..start + len], at + start as u64).within(writing)?;
            }
            at += len;
            done_bytes += len;
            watch(done_bytes, total_bytes);
        }
    }
    Ok(())
}

/// Returns the ranges of `bytes`, which start at `offset` on the disk, without blocks of zeros.
fn stretches(offset: u64, bytes: &[u8]) -> Vec<(usize, usize)> {
    let mut found: Vec<(usize, usize)> = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let in_block = ((offset + at as u64) % BLOCK_BYTES as u64) as usize;
        let len = (BLOCK_BYTES - in_block).min(bytes.len() - at);
        if bytes[at..at + len].iter().any(|byte| *byte != 0) {
            match found.last_mut() {
                Some((start, before)) if *start + *before == at => *before += len,
                _ => found.push((at, len)),
            }
        }
        at += len;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_zeros_are_left_out() {
        let mut bytes = vec![0; 3 * BLOCK_BYTES];
        assert_eq!(stretches(0, &bytes), []);
        bytes[5000] = 1;
        assert_eq!(stretches(0, &bytes), [(4096, 4096)]);
        assert_eq!(stretches(512, &bytes), [(3584, 4096)]);
        bytes[3000] = 1;
        assert_eq!(stretches(0, &bytes), [(0, 8192)]);
        assert_eq!(stretches(512, &bytes[..5100]), [(0, 5100)]);
    }
}

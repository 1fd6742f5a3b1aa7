//! The extents of all files of an image under construction: the last ones in memory, those before
//! them in a temporary file, so that memory does not grow with the files.

use std::env::temp_dir;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use crate::error::{Error, Result};

/// An extent of a file being built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BuiltExtent {
    pub(crate) len: u32,
    pub(crate) compressed: bool,
    pub(crate) place: BuiltPlace,
}

/// The location of an extent's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BuiltPlace {
    Blocks {
        blkaddr: u32,
        blocks: u32,
    },
    /// After the indexes: this many bytes.
    Inline(u32),
    /// In the packed inode: the offset.
    Fragment(u64),
    /// A hole of this many zeros; the extent's own length is 0. Only encoded extents can express
    /// it.
    Hole(u64),
}

/// The length of an extent's record.
const RECORD_BYTES: usize = 16;

/// Records in memory before they are written: a million extents, or some 10 GiB of content in
/// clusters of a block.
const KEPT_BYTES: usize = 16 << 20;

impl BuiltExtent {
    /// Length, kind and whether it is compressed, number of blocks; then the address, the offset, or
    /// a hole's length.
    fn encode(self) -> [u8; RECORD_BYTES] {
        let (kind, blocks, value) = match self.place {
            BuiltPlace::Blocks { blkaddr, blocks } => (0, blocks, blkaddr.into()),
            BuiltPlace::Inline(bytes) => (1, 0, bytes.into()),
            BuiltPlace::Fragment(offset) => (2, 0, offset),
            BuiltPlace::Hole(len) => (3, 0, len),
        };
        let word = kind | u32::from(self.compressed) << 2 | blocks << 3;
        let record = u128::from(self.len) | u128::from(word) << 32 | u128::from(value) << 64;
        record.to_le_bytes()
    }

    fn decode(record: [u8; RECORD_BYTES]) -> Self {
        let record = u128::from_le_bytes(record);
        let (word, value) = ((record >> 32) as u32, (record >> 64) as u64);
        let place = match word & 3 {
            0 => BuiltPlace::Blocks { blkaddr: value as u32, blocks: word >> 3 },
            1 => BuiltPlace::Inline(value as u32),
            2 => BuiltPlace::Fragment(value),
            _ => BuiltPlace::Hole(value),
        };
        Self { len: record as u32, compressed: word & 4 != 0, place }
    }
}

fn failed(error: io::Error) -> Error {
    Error::io(format!("keeping extents in {} (TMPDIR)", temp_dir().display()))(error)
}

/// Extents in the order in which they were added, by number.
#[derive(Default)]
pub(crate) struct ExtentLog {
    file: Option<File>,
    /// The number of records in `file`.
    written: u64,
    /// The records after them.
    kept: Vec<u8>,
}

impl ExtentLog {
    /// Returns the number of the next extent.
    pub(crate) fn next(&self) -> u64 {
        self.written + (self.kept.len() / RECORD_BYTES) as u64
    }

    /// Adds an extent of at most 2^29 blocks.
    pub(crate) fn push(&mut self, extent: BuiltExtent) -> Result<()> {
        if self.kept.len() >= KEPT_BYTES {
            self.spill()?;
        }
        self.kept.extend_from_slice(&extent.encode());
        Ok(())
    }

    fn spill(&mut self) -> Result<()> {
        let file = match &self.file {
            Some(file) => file,
            None => self.file.insert(tempfile::tempfile().map_err(failed)?),
        };
        file.write_all_at(&self.kept, self.written * RECORD_BYTES as u64).map_err(failed)?;
        self.written = self.next();
        self.kept.clear();
        Ok(())
    }

    /// Removes the extents from number `next` on.
    pub(crate) fn truncate(&mut self, next: u64) {
        let kept = next.saturating_sub(self.written) as usize * RECORD_BYTES;
        self.kept.truncate(kept);
        self.written = self.written.min(next);
    }

    /// Calls `each` with the extents in `range`, in order.
    pub(crate) fn each(&self, range: Range<u64>, mut each: impl FnMut(BuiltExtent) -> Result<()>) -> Result<()> {
        let mut decode = |records: &[u8]| {
            let (records, _) = records.as_chunks();
            records.iter().try_for_each(|record| each(BuiltExtent::decode(*record)))
        };
        let mut buffer = Vec::new();
        let mut at = range.start;
        while let Some(file) = &self.file
            && at < range.end.min(self.written)
        {
            let end = range.end.min(self.written).min(at + 4096);
            buffer.resize((end - at) as usize * RECORD_BYTES, 0);
            file.read_exact_at(&mut buffer, at * RECORD_BYTES as u64).map_err(failed)?;
            decode(&buffer)?;
            at = end;
        }
        let in_kept = |number: u64| (number - self.written) as usize * RECORD_BYTES;
        if at < range.end { decode(&self.kept[in_kept(at)..in_kept(range.end)]) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn extents() -> impl Strategy<Value = BuiltExtent> {
        let place = prop_oneof![
            (any::<u32>(), 0u32..1 << 29).prop_map(|(blkaddr, blocks)| BuiltPlace::Blocks { blkaddr, blocks }),
            any::<u32>().prop_map(BuiltPlace::Inline),
            any::<u64>().prop_map(BuiltPlace::Fragment),
            any::<u64>().prop_map(BuiltPlace::Hole),
        ];
        (any::<u32>(), any::<bool>(), place).prop_map(|(len, compressed, place)| BuiltExtent { len, compressed, place })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Extents come back, wherever the log was written to the file or cut off.
        #[test]
        fn extents_come_back(
            all in proptest::collection::vec((extents(), 0u8..20, any::<proptest::sample::Index>()), 1..200),
            from in any::<proptest::sample::Index>(),
        ) {
            let (mut log, mut model) = (ExtentLog::default(), Vec::new());
            for (extent, then, cut) in all {
                log.push(extent).unwrap();
                model.push(extent);
                match then {
                    0 => log.spill().unwrap(),
                    1 => {
                        let next = cut.index(model.len() + 1);
                        log.truncate(next as u64);
                        model.truncate(next);
                    }
                    _ => {}
                }
                prop_assert_eq!(log.next(), model.len() as u64);
            }
            let from = from.index(model.len() + 1);
            let mut read = Vec::new();
            log.each(from as u64..model.len() as u64, |extent| {
                read.push(extent);
                Ok(())
            }).unwrap();
            prop_assert_eq!(&read, &model[from..]);
        }
    }
}

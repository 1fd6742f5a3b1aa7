//! Long runs of zeros across segments: clusters of one length, and one for the rest.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::options::{BuildOptions, Compression};
use super::segment::{Compressor, MAX_ZEROS, Segment, SegmentOptions};
use crate::error::Result;

/// Clusters of zeros, each compressed once.
#[derive(Default)]
pub(crate) struct Zeros {
    /// By compression choice.
    compressors: HashMap<usize, Compressor>,
    /// By compression choice and number of zeros; [`MAX_ZEROS`] for any number from there on.
    known: HashMap<(usize, usize), Segment>,
    zeros: Vec<u8>,
}

impl Zeros {
    /// Returns a segment with one cluster for the front of `len` zeros, stored with choice `way`.
    pub(crate) fn cluster(
        &mut self,
        way: usize,
        compression: Compression,
        len: u64,
        options: &BuildOptions,
    ) -> Result<&Segment> {
        let longest = self.compress(way, compression, MAX_ZEROS, options)?.content_bytes();
        if len >= longest as u64 {
            return self.compress(way, compression, MAX_ZEROS, options);
        }
        self.compress(way, compression, len as usize, options)
    }

    fn compress(
        &mut self,
        way: usize,
        compression: Compression,
        len: usize,
        options: &BuildOptions,
    ) -> Result<&Segment> {
        let known = match self.known.entry((way, len)) {
            Entry::Occupied(known) => return Ok(known.into_mut()),
            Entry::Vacant(known) => known,
        };
        let compressor = match self.compressors.entry(way) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Compressor::new(compression.codec)?),
        };
        if self.zeros.is_empty() {
            self.zeros = vec![0; MAX_ZEROS];
        }
        let options = SegmentOptions::new(options, compression, false);
        Ok(known.insert(compressor.compress_zeros(&self.zeros[..len], len == MAX_ZEROS, &options)))
    }
}

#[cfg(test)]
mod tests {
    use pagefold_codec::cluster::ClusterCodec;

    use super::*;

    /// Each LZ4 extent of a run must end in a block in which the next one begins, so that Linux
    /// knows its length.
    #[test]
    fn lz4_extents_of_zeros_end_within_a_block() {
        for pcluster_bytes in [4096, 65_536, 1 << 20] {
            let compression = Compression { codec: ClusterCodec::Lz4, pcluster_bytes };
            let options = BuildOptions { pcluster_bytes, ..BuildOptions::default() };
            let mut zeros = Zeros::default();
            let len = zeros.cluster(0, compression, 1 << 30, &options).unwrap().content_bytes();
            assert!(len > 900_000 && !len.is_multiple_of(4096), "{len}");
        }
    }
}

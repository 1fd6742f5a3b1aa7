//! Checks of options against each other and the format.

use super::chunks::Chunking;
use super::options::{BuildOptions, Compression, Fragments, Hint};
use super::prefixes;
use crate::error::{Error, Result};
use crate::format::MAX_PCLUSTER_BYTES;

impl BuildOptions {
    /// Checks whether images can be built with these options; [`build()`](crate::build()) does so first.
    ///
    /// # Errors
    /// [`Error::Options`] with the reason.
    pub fn check(&self) -> Result<()> {
        let refuse = |what: &str| Err(Error::Options(what.to_owned()));
        let pattern = |hint: &Hint| format!("the hint for '{}': ", String::from_utf8_lossy(&hint.pattern));
        if !self.block_bytes.is_power_of_two() || !(512..=65536).contains(&self.block_bytes) {
            return refuse("the block size must be a power of two from 512 to 65536");
        }
        prefixes::check(&self.xattr_prefixes)?;
        if let Some(chunking) = Chunking::of(self) {
            chunking.check()?;
            if self.codec.is_some() && self.hints.iter().all(|hint| hint.compression.is_some()) {
                return refuse("chunks need uncompressed files: set no codec, or a hint without compression");
            }
        }
        // Checked before the work starts, and even if no file matches the hint.
        let hinted = self.hints.iter().filter_map(|hint| Some((pattern(hint), hint.compression?)));
        let hinted = hinted.map(|(who, Compression { codec, pcluster_bytes })| (who, Some(codec), pcluster_bytes));
        for (who, codec, pcluster_bytes) in hinted.chain([(String::new(), self.codec, self.pcluster_bytes)]) {
            let blocks = pcluster_bytes / self.block_bytes;
            if !pcluster_bytes.is_multiple_of(self.block_bytes) || blocks == 0 {
                return refuse(&format!("{who}the cluster size must be a multiple of the block size"));
            }
            if u64::from(pcluster_bytes) > MAX_PCLUSTER_BYTES || blocks > 2047 {
                return refuse(&format!("{who}the cluster size must be at most 1 MiB and 2047 blocks"));
            }
            if let Some(Err(error)) = codec.map(|codec| codec.encoder()) {
                return refuse(&format!("{who}{error}"));
            }
        }
        if self.codec.is_none() && (self.ztailpacking || self.dedupe || self.fragments != Fragments::Off) {
            return refuse("packing tails, fragments and sharing clusters need a codec");
        }
        Ok(())
    }
}

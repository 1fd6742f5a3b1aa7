//! All results of the measurements.

use super::{codecs, estimate::Estimate, forks, images, input::Input, pages::Pages, stratum::Stratum};

/// All results.
pub(super) struct Report {
    pub(super) input: Input,
    pub(super) pages: Pages,
    pub(super) codecs: Vec<codecs::Figures>,
    pub(super) images: Vec<images::Figures>,
    pub(super) forks: Option<forks::Figures>,
    /// Memory available for forks.
    pub(super) memory_bytes: u64,
}

impl Report {
    /// Returns how many forks of this size fit into the memory.
    pub(super) fn forks_that_fit(&self, bytes: f64) -> u64 {
        (self.memory_bytes as f64 / bytes.max(1.0)) as u64
    }

    /// Returns the bytes that are neither holes nor zeros that were found by scanning.
    pub(super) fn data_bytes(&self) -> Estimate {
        let in_pages: Estimate = self.input.strata.iter().map(Stratum::data_bytes).sum();
        // The last page of a file is only partly data.
        in_pages.bounded([0.0, self.input.sampled_bytes() as f64])
    }

    /// Returns the number of pages that were read, zeros that were found by scanning included.
    pub(super) fn read_pages(&self) -> u64 {
        self.pages.sampled + self.input.strata.iter().map(Stratum::scanned_zero_pages).sum::<u64>()
    }

    /// Returns whether there is more than was found, so that all figures of the whole may be larger.
    pub(super) fn has_more(&self) -> bool {
        self.input.skipped.more
    }

    /// Returns whether every byte that was found was read, and packed for every image.
    pub(super) fn is_complete(&self) -> bool {
        let data = self.data_bytes();
        let packed = |image: &images::Figures| image.sampled_bytes as f64 >= data.value;
        data.is_exact() && self.pages.is_complete() && self.images.iter().all(packed)
    }
}

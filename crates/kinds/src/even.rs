//! Keeps a bounded number of pages, spread evenly over a longer stream.

use pagefold_codec::{PAGE_SIZE, Page, same_filled};

/// Neighbouring pages that stay together: the size of a block that trains or is measured.
const BLOCK_PAGES: usize = 64;

/// Keeps evenly spaced blocks of the pages pushed to it. Uses memory for twice the limit.
pub(super) struct Even {
    limit_pages: usize,
    /// Blocks `0`, `stride`, `2 * stride`, … of those seen so far.
    kept: Vec<Vec<u8>>,
    stride: usize,
    seen_blocks: usize,
    block: Vec<u8>,
}

impl Even {
    pub(super) fn new(limit_pages: usize) -> Self {
        Self { limit_pages, kept: Vec::new(), stride: 1, seen_blocks: 0, block: Vec::new() }
    }

    /// Adds `page` unless it is same-filled.
    pub(super) fn push(&mut self, page: &Page) {
        if same_filled(page).is_some() {
            return;
        }
        self.block.extend_from_slice(page);
        if self.block.len() == BLOCK_PAGES * PAGE_SIZE {
            self.end_block();
        }
    }

    fn end_block(&mut self) {
        let block = std::mem::take(&mut self.block);
        if self.seen_blocks.is_multiple_of(self.stride) {
            self.kept.push(block);
        }
        self.seen_blocks += 1;
        if self.kept.len() > 2 * self.limit_pages.div_ceil(BLOCK_PAGES) {
            let mut number = 0;
            self.kept.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.stride *= 2;
        }
    }

    /// Returns the kept pages, at most the limit.
    pub(super) fn finish(mut self) -> Vec<u8> {
        if !self.block.is_empty() {
            self.end_block();
        }
        let take = self.kept.len().min(self.limit_pages.div_ceil(BLOCK_PAGES));
        let mut pages: Vec<u8> = (0..take).flat_map(|at| &self.kept[at * self.kept.len() / take]).copied().collect();
        pages.truncate(self.limit_pages * PAGE_SIZE);
        pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(number: u32) -> Page {
        let mut page = [0; PAGE_SIZE];
        page[..4].copy_from_slice(&(number + 1).to_le_bytes());
        page
    }

    fn kept_of(count: u32, limit_pages: usize) -> Vec<u32> {
        let mut even = Even::new(limit_pages);
        for number in 0..count {
            even.push(&[7; PAGE_SIZE]);
            even.push(&numbered(number));
        }
        let pages = even.finish();
        pages
            .as_chunks::<PAGE_SIZE>()
            .0
            .iter()
            .map(|page| u32::from_le_bytes([page[0], page[1], page[2], page[3]]) - 1)
            .collect()
    }

    #[test]
    fn all_pages_but_same_filled_ones_are_kept_under_the_limit() {
        assert_eq!(kept_of(1000, 2048), (0..1000).collect::<Vec<_>>());
        assert!(kept_of(0, 2048).is_empty());
    }

    #[test]
    fn beyond_it_blocks_of_neighbours_are_spread_over_all() {
        for count in [4096, 5000, 100_000] {
            let kept = kept_of(count, 1024);
            assert_eq!(kept.len(), 1024, "of {count}");
            for block in kept.chunks(64) {
                assert!(block.windows(2).all(|two| two[1] == two[0] + 1), "of {count}");
            }
            let gaps: Vec<u32> = kept
                .chunks(64)
                .map(|block| block[0])
                .collect::<Vec<_>>()
                .windows(2)
                .map(|two| two[1] - two[0])
                .collect();
            let (least, most) = (gaps.iter().min().unwrap(), gaps.iter().max().unwrap());
            assert!(
                most <= &(2 * least) && u64::from(kept[kept.len() - 1]) > u64::from(count) * 8 / 10,
                "of {count}: {gaps:?}"
            );
        }
    }
}

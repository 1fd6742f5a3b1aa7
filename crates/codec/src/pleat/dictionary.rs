//! Chooses the bytes that the pages of a store most share.

use crate::{PAGE_SIZE, Page};

/// Bytes of one piece of a dictionary.
const PIECE: usize = 64;
/// Bytes that are hashed at each position.
const GRAM: usize = 8;
const HASH_BITS: u32 = 20;

fn hash(page: &Page, at: usize) -> usize {
    let word = page[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    (word.wrapping_mul(0x9e37_79b1_85eb_ca87) >> (64 - HASH_BITS)) as usize
}

/// At most `len` bytes: the pieces of `samples` whose 8-byte strings occur in the most pages, the
/// best last.
///
/// As in the COVER algorithm (Liao, Petri, Moffat, Wirth: "Effective Construction of Relative
/// Lempel-Ziv Dictionaries", 2016), the samples are cut into as many epochs as there are pieces;
/// each epoch gives its best piece, and what a piece holds counts for nothing in later ones.
pub(super) fn select(samples: &[&Page], len: usize) -> Vec<u8> {
    let mut pages_with = vec![0u16; 1 << HASH_BITS];
    let mut last_page = vec![usize::MAX; 1 << HASH_BITS];
    for (number, page) in samples.iter().enumerate() {
        for at in 0..=PAGE_SIZE - GRAM {
            let slot = hash(page, at);
            if last_page[slot] != number {
                last_page[slot] = number;
                pages_with[slot] = pages_with[slot].saturating_add(1);
            }
        }
    }
    let pieces = len / PIECE;
    let epoch = samples.len().div_ceil(pieces.max(1)).max(1);
    let mut chosen: Vec<(u32, &[u8])> = Vec::with_capacity(pieces);
    let mut scores = [0u32; PAGE_SIZE - GRAM + 1];
    for pages in samples.chunks(epoch).take(pieces) {
        let mut best = (0, pages[0], 0);
        for page in pages {
            for (at, score) in scores.iter_mut().enumerate() {
                let pages = u32::from(pages_with[hash(page, at)]);
                *score = if pages > 1 { pages } else { 0 };
            }
            let mut sum: u32 = scores[..=PIECE - GRAM].iter().sum();
            for at in 0..=PAGE_SIZE - PIECE {
                if sum > best.0 {
                    best = (sum, page, at);
                }
                if at < PAGE_SIZE - PIECE {
                    sum = sum + scores[at + PIECE - GRAM + 1] - scores[at];
                }
            }
        }
        let (score, page, from) = best;
        if score > 0 {
            (from..=from + PIECE - GRAM).for_each(|at| pages_with[hash(page, at)] = 0);
            chosen.push((score, &page[from..from + PIECE]));
        }
    }
    chosen.sort_by_key(|&(score, _)| score);
    chosen.iter().flat_map(|(_, piece)| *piece).copied().collect()
}

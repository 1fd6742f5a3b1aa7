//! Selects the bytes that a store's pages share most.

use std::ops::Range;

use crate::{PAGE_SIZE, Page};

/// Bytes of one piece of a dictionary.
const PIECE: usize = 64;
/// Bytes hashed at each position.
const GRAM: usize = 8;
const HASH_BITS: u32 = 20;
/// Positions in a page at which a piece can begin.
const STARTS: usize = PAGE_SIZE - PIECE + 1;

fn hash(page: &Page, at: usize) -> usize {
    let word = page[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    (word.wrapping_mul(0x9e37_79b1_85eb_ca87) >> (64 - HASH_BITS)) as usize
}

/// Returns at most `len` bytes: the pieces of `samples` whose 8-byte strings occur in the most
/// pages, best last.
///
/// As in the COVER algorithm (Liao, Petri, Moffat, Wirth: "Effective Construction of Relative
/// Lempel-Ziv Dictionaries", 2016), the samples are divided into one epoch per piece. Each epoch
/// gives its best piece, and strings in a selected piece no longer count in later epochs.
pub(crate) fn select(samples: &[&Page], len: usize) -> Vec<u8> {
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
    // Divides pages so that there are at least as many parts as pieces.
    let parts = pieces.div_ceil(samples.len().max(1)).clamp(1, STARTS);
    let part = |part: usize| STARTS * part / parts..STARTS * (part + 1) / parts;
    let parts: Vec<(&Page, Range<usize>)> =
        samples.iter().flat_map(|page| (0..parts).map(move |number| (*page, part(number)))).collect();
    let epoch = parts.len().div_ceil(pieces.max(1)).max(1);
    let mut chosen: Vec<(u32, &[u8])> = Vec::with_capacity(pieces);
    let mut scores = [0u32; PAGE_SIZE - GRAM + 1];
    for parts in parts.chunks(epoch).take(pieces) {
        let mut best = (0, parts[0].0, 0);
        for (page, starts) in parts {
            let grams = starts.start..starts.end + PIECE - GRAM;
            for (at, score) in grams.clone().zip(&mut scores[grams]) {
                let pages = u32::from(pages_with[hash(page, at)]);
                *score = if pages > 1 { pages } else { 0 };
            }
            let mut sum: u32 = scores[starts.start..][..PIECE - GRAM].iter().sum();
            for at in starts.clone() {
                sum += scores[at + PIECE - GRAM];
                if sum > best.0 {
                    best = (sum, page, at);
                }
                sum -= scores[at];
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

//! Trains tables on sample pages.

use std::iter;

use super::{
    PleatTables,
    format::{COARSE, Classes, Sequence, TRIPLES, coarse_symbol, meaning, of_any_alignment},
    huffman,
    parse::{HASHES, MAX_SEQUENCES, parse},
    places::{Nothing, Places},
    tables::{CONTEXTS, ESCAPE, LITERAL_MAX, LiteralCode, Model, SETS, TOKEN_MAX},
    window::{MAX_DICTIONARY, Window},
};
use crate::{
    Candidates, Page,
    dictionary::candidates,
    pieces,
    reuse::{best_places, product, slot},
};

/// Maximum number of sample pages that training examines; from more, it takes this many, evenly
/// spread.
pub(super) const MAX_SAMPLES: usize = 4096;
/// Maximum number of triples with separate symbols: with more, codes of [`TOKEN_MAX`] bits spend
/// too much on rare ones.
const OWN: usize = 800;
/// Rounds of the k-means search for sets and for contexts.
const ROUNDS: usize = 8;

/// The counts of one page.
struct Parsed {
    /// Triples of each sequence: first with its offset in a class of any alignment, then in a class
    /// of words if it is a multiple of 8.
    triples: Vec<(u16, u16)>,
    literals: Vec<u8>,
}

/// Fits a model to pages like `samples`, with `dictionary`.
fn model(samples: &[&Page], dictionary: Vec<u8>) -> Model {
    let starts = starts(samples, &dictionary);
    let parsed = parse_all(samples, &dictionary, &starts);
    let (triples, symbols) = alphabet(&parsed);
    let token_lengths = token_codes(&symbols, &triples);
    let literals = literal_codes(&parsed);
    Model { triples, token_lengths, literals, dictionary, starts }
}

/// Returns one place of `dictionary` for each slot of an index: the place whose matches save most
/// in `samples` or, if no place has matches, the last one, which has the smallest offset.
fn starts(samples: &[&Page], dictionary: &[u8]) -> Vec<u16> {
    let mut places = best_places(dictionary, samples, 0);
    for (place, word) in dictionary.array_windows().enumerate().rev() {
        places[slot(product(u64::from_le_bytes(*word)))].get_or_insert(place as u16);
    }
    let mut starts: Vec<u16> = places.into_iter().flatten().collect();
    starts.sort_unstable();
    starts
}

fn parse_all(samples: &[&Page], dictionary: &[u8], starts: &[u16]) -> Vec<Parsed> {
    let classes = Classes::NEW;
    let mut window = Window::new(dictionary);
    let places = (!dictionary.is_empty()).then(|| Places::new(&window, dictionary.len(), starts));
    let mut seen = Box::new([0; HASHES]);
    let mut sequences = Box::new([Sequence::default(); MAX_SEQUENCES]);
    let mut parsed = Vec::with_capacity(samples.len());
    for page in samples {
        window.set_page(page);
        let count = match &places {
            Some(places) => parse(&window, &**places, &mut seen, &mut sequences),
            None => parse(&window, &Nothing, &mut seen, &mut sequences),
        };
        let mut triples = Vec::with_capacity(count);
        let mut literals = Vec::new();
        let mut rest = page.as_slice();
        for &sequence in &sequences[..count] {
            let triple = classes.triple(sequence);
            triples.push((of_any_alignment(triple), triple));
            let (run, after) = rest.split_at(sequence.run());
            literals.extend_from_slice(run);
            rest = &after[sequence.length()..];
        }
        literals.extend_from_slice(rest);
        parsed.push(Parsed { triples, literals });
    }
    parsed
}

/// Returns the triples that become symbols, in ascending order, and each page's symbols.
fn alphabet(parsed: &[Parsed]) -> (Vec<u16>, Vec<Vec<u16>>) {
    let mut counts = vec![0u32; TRIPLES];
    let all = || parsed.iter().flat_map(|page| &page.triples);
    all().for_each(|&(_, word)| counts[usize::from(word)] += 1);
    let total: u32 = counts.iter().sum();
    // Rarer ones are coded with a class of any alignment, or by coarse symbols.
    let enough = (total / 16384).max(3);
    let by_word = counts.clone();
    let rare = |word: u16| by_word[usize::from(word)] < enough;
    all().filter(|&&(any, word)| any != word && rare(word)).for_each(|&(any, _)| counts[usize::from(any)] += 1);
    let mut triples: Vec<u16> =
        (0..counts.len()).filter(|&triple| counts[triple] >= enough).map(|triple| triple as u16).collect();
    triples.sort_by_key(|&triple| std::cmp::Reverse(counts[usize::from(triple)]));
    triples.truncate(OWN);
    triples.sort_unstable();
    let mut symbol_of: Vec<usize> = (0..counts.len()).map(|triple| coarse_symbol(triple as u16)).collect();
    for (&triple, symbol) in triples.iter().zip(COARSE..) {
        symbol_of[usize::from(triple)] = symbol;
    }
    let symbol = |&(any, word): &(u16, u16)| match symbol_of[usize::from(word)] {
        0..COARSE => symbol_of[usize::from(any)] as u16,
        symbol => symbol as u16,
    };
    let symbols = parsed.iter().map(|page| page.triples.iter().map(symbol).collect()).collect();
    (triples, symbols)
}

/// Returns the bits of each symbol under the distribution given by `counts`.
fn ideal_bits(counts: &[u32], prior: f32) -> Vec<f32> {
    let total: f32 = counts.iter().map(|&count| count as f32 + prior).sum();
    counts.iter().map(|&count| (total / (count as f32 + prior)).log2()).collect()
}

/// k-means over pages: each page belongs to the set that codes its symbols in the fewest bits.
/// Returns each set's counts.
fn cluster(pages: &[Vec<(u16, u32)>], symbols: usize) -> Vec<Vec<u32>> {
    let cost = |page: &[(u16, u32)], bits: &[f32]| -> f32 {
        page.iter().map(|&(symbol, count)| bits[usize::from(symbol)] * count as f32).sum()
    };
    let add = |counts: &mut [u32], page: &[(u16, u32)]| {
        page.iter().for_each(|&(symbol, count)| counts[usize::from(symbol)] += count);
    };
    let mut all = vec![0; symbols];
    pages.iter().for_each(|page| add(&mut all, page));
    if all.iter().all(|&count| count == 0) {
        return vec![all];
    }
    // Seeds: all pages, then repeatedly the page of a sample that loses most with the seeds so far.
    let mut bits = vec![ideal_bits(&all, 0.5)];
    let alone = |page: &Vec<(u16, u32)>| {
        let mut counts = vec![0; symbols];
        add(&mut counts, page);
        ideal_bits(&counts, 0.3)
    };
    let step = (pages.len() / 256).max(1);
    let sample: Vec<_> = pages.iter().step_by(step).collect();
    let most: Vec<f32> = sample.iter().map(|page| cost(page, &alone(page))).collect();
    let mut now: Vec<f32> = sample.iter().map(|page| cost(page, &bits[0])).collect();
    while bits.len() < SETS {
        let gains = now.iter().zip(&most).map(|(now, most)| now - most).enumerate();
        let Some((worst, _)) = gains.max_by(|a, b| a.1.total_cmp(&b.1)) else { break };
        let seed = alone(sample[worst]);
        for (now, page) in now.iter_mut().zip(&sample) {
            *now = now.min(cost(page, &seed));
        }
        bits.push(seed);
    }
    let mut counts = Vec::new();
    for _ in 0..ROUNDS {
        counts = vec![vec![0; symbols]; bits.len()];
        for page in pages {
            let costs = bits.iter().map(|bits| cost(page, bits));
            let nearest = costs.enumerate().min_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(set, _)| set);
            add(&mut counts[nearest], page);
        }
        counts.retain(|counts| counts.iter().any(|&count| count > 0));
        bits = counts.iter().map(|counts| ideal_bits(counts, 0.3)).collect();
    }
    counts
}

fn histogram(symbols: impl Iterator<Item = u16>, kinds: usize) -> Vec<(u16, u32)> {
    let mut counts = vec![0; kinds];
    symbols.for_each(|symbol| counts[usize::from(symbol)] += 1);
    counts.iter().enumerate().filter(|&(_, &count)| count > 0).map(|(symbol, &count)| (symbol as u16, count)).collect()
}

/// Returns code lengths of at most `max` for `counts`. A symbol that is too rare for a code is
/// replaced by the symbol that `instead` names, unless that is the symbol itself.
fn lengths_without_rare(counts: &[u32], instead: impl Fn(usize) -> usize, max: u8) -> Vec<u8> {
    let mut counts = counts.to_vec();
    let rare = counts.iter().sum::<u32>() >> (max + 3);
    for symbol in 0..counts.len() {
        let other = instead(symbol);
        if other == symbol {
            counts[symbol] = counts[symbol].max(1);
        } else if counts[symbol] <= rare {
            counts[other] += std::mem::take(&mut counts[symbol]);
        }
    }
    if counts.iter().filter(|&&count| count > 0).count() < 2 {
        let unused = counts.iter().position(|&count| count == 0).unwrap_or(0);
        counts[unused] = 1;
    }
    huffman::lengths(&counts, max)
}

fn token_codes(pages: &[Vec<u16>], triples: &[u16]) -> Vec<Vec<u8>> {
    let symbols = COARSE + triples.len();
    let pages: Vec<_> = pages.iter().map(|page| histogram(page.iter().copied(), symbols)).collect();
    let instead = |symbol: usize| symbol.checked_sub(COARSE).map_or(symbol, |own| coarse_symbol(triples[own]));
    cluster(&pages, symbols).iter().map(|counts| lengths_without_rare(counts, instead, TOKEN_MAX)).collect()
}

fn literal_codes(parsed: &[Parsed]) -> Vec<LiteralCode> {
    let pages: Vec<_> =
        parsed.iter().map(|page| histogram(page.literals.iter().map(|&literal| u16::from(literal)), 256)).collect();
    let sets = cluster(&pages, 256);
    let costs: Vec<[u8; 256]> = sets
        .iter()
        .map(|counts| {
            let mut costs = [0; 256];
            for (cost, bits) in costs.iter_mut().zip(ideal_bits(counts, 0.3)) {
                *cost = (bits * 8.0).min(144.0) as u8;
            }
            costs
        })
        .collect();
    let mut pairs = vec![vec![0u32; 1 << 16]; sets.len()];
    for page in parsed {
        let cost = |costs: &[u8; 256]| -> u32 {
            page.literals.iter().map(|&literal| u32::from(costs[usize::from(literal)])).sum()
        };
        let set = (0..sets.len()).min_by_key(|&set| cost(&costs[set])).unwrap_or(0);
        let mut before = 0;
        for &literal in &page.literals {
            pairs[set][before << 8 | usize::from(literal)] += 1;
            before = usize::from(literal);
        }
    }
    pairs.iter().zip(costs).map(|(pairs, costs)| literal_code(pairs, costs)).collect()
}

/// Fits contexts and codes to literals with the counts `pairs`, indexed by the previous literal
/// times 256 plus the literal.
fn literal_code(pairs: &[u32], costs: [u8; 256]) -> LiteralCode {
    let rows: Vec<&[u32]> = pairs.chunks(256).collect();
    let mut by_count: Vec<usize> = (0..256).collect();
    by_count.sort_by_key(|&before| std::cmp::Reverse(rows[before].iter().sum::<u32>()));
    let mut context_after = [0; 256];
    for (rank, &before) in by_count.iter().enumerate() {
        context_after[before] = rank.min(CONTEXTS - 1) as u8;
    }
    let counts_of = |context_after: &[u8; 256]| {
        let mut counts = vec![vec![0u32; 257]; CONTEXTS];
        for (row, &context) in rows.iter().zip(context_after) {
            for (count, more) in counts[usize::from(context)].iter_mut().zip(*row) {
                *count += more;
            }
        }
        counts
    };
    for _ in 0..ROUNDS {
        let bits: Vec<Vec<f32>> =
            counts_of(&context_after).iter().map(|counts| ideal_bits(&counts[..256], 0.2)).collect();
        for (row, context) in rows.iter().zip(&mut context_after) {
            let used: Vec<(usize, f32)> = row
                .iter()
                .enumerate()
                .filter(|&(_, &count)| count > 0)
                .map(|(at, &count)| (at, count as f32))
                .collect();
            let cost = |bits: &Vec<f32>| -> f32 { used.iter().map(|&(at, count)| bits[at] * count).sum() };
            let costs = bits.iter().map(cost).enumerate();
            *context = costs.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(context, _)| context as u8);
        }
    }
    let mut lengths = [[0; 257]; CONTEXTS];
    for (lengths, counts) in lengths.iter_mut().zip(counts_of(&context_after)) {
        lengths.copy_from_slice(&lengths_without_rare(&counts, |_| ESCAPE, LITERAL_MAX));
    }
    LiteralCode { context_after, lengths, costs }
}

/// Dictionary lengths that training tries in addition to none, in this order.
const DICTIONARIES: [usize; 2] = [16 << 10, MAX_DICTIONARY];
/// A search takes up to a sixth longer with a dictionary, so a dictionary must save one byte in this
/// many.
const FIRST_SAVES: u64 = 25;
/// A longer dictionary uses more of the caches, so it must save one byte in this many over a
/// shorter one.
const LONGER_SAVES: u64 = 100;
/// Maximum number of pages by which training selects among dictionaries of one length.
const TRIED: usize = 256;

/// Returns the dictionary of at most `len` bytes, of the [`candidates`], that makes `judged`
/// smallest.
fn dictionary(samples: &[&Page], judged: &[&Page], len: usize) -> Vec<u8> {
    let step = judged.len().div_ceil(TRIED).max(1);
    let judged: Vec<&Page> = judged.iter().step_by(step).copied().collect();
    candidates(samples, &[len])
        .into_iter()
        .min_by_key(|candidate| estimate(&judged, candidate, &starts(samples, candidate)))
        .unwrap_or_default()
}

/// Estimates the bits of `pages` after `dictionary`, with one code for all triples and one for all
/// literals.
fn estimate(pages: &[&Page], dictionary: &[u8], starts: &[u16]) -> u64 {
    let mut triples = vec![0u32; TRIPLES];
    let mut literals = vec![0u32; 256];
    for page in parse_all(pages, dictionary, starts) {
        page.triples.iter().for_each(|&(_, triple)| triples[usize::from(triple)] += 1);
        page.literals.iter().for_each(|&literal| literals[usize::from(literal)] += 1);
    }
    let bits = |counts: &[u32]| -> f32 {
        let counts: Vec<u32> = counts.iter().copied().filter(|&count| count > 0).collect();
        ideal_bits(&counts, 0.0).iter().zip(&counts).map(|(bits, &count)| bits * count as f32).sum()
    };
    let extra = |triple: usize| meaning(triple as u16).map_or(0, |meaning| u64::from(meaning.mask.count_ones()));
    let extras: u64 = triples.iter().enumerate().map(|(triple, &count)| extra(triple) * u64::from(count)).sum();
    extras + bits(&triples) as u64 + bits(&literals) as u64
}

impl PleatTables {
    /// Trains tables without and with a dictionary on `samples`, of which it examines at most 4096,
    /// evenly spread. Takes two or three seconds for 16 MiB; the same samples give the same tables.
    pub(crate) fn train(samples: &[&Page], judged: &[&Page]) -> Option<Candidates<Self>> {
        let step = samples.len().div_ceil(MAX_SAMPLES).max(1);
        let samples: Vec<&Page> = samples.iter().step_by(step).copied().collect();
        let tables_of = |dictionary| Self::new(model(&samples, dictionary)).ok();
        let none = tables_of(Vec::new())?;
        let with = DICTIONARIES.into_iter().filter_map(|len| tables_of(dictionary(&samples, judged, len)));
        Some(Candidates::new(iter::once(none).chain(with).collect(), [FIRST_SAVES, LONGER_SAVES]))
    }

    /// Trains tables on `samples` with a dictionary of at most this length: for the built-in tables,
    /// and for measurements.
    pub fn train_unjudged(samples: &[&Page], dictionary_len: usize) -> Result<Self, crate::BadTables> {
        let step = samples.len().div_ceil(MAX_SAMPLES).max(1);
        let samples: Vec<&Page> = samples.iter().step_by(step).copied().collect();
        let dictionary = pieces::select(&samples, dictionary_len.min(MAX_DICTIONARY));
        Self::new(model(&samples, dictionary))
    }
}

//! Trains [`FoldTables`] on sample pages.
//!
//! ```text
//! for each dictionary that may help, and for none:
//!     parse some sample pages after it
//!     tokens := those with the fewest extra bits for the sequences found
//!     palettes := those that contain most of the literals
//!     judge all three by the size of held-out pages
//! ```

use std::{array, collections::HashMap, iter, sync::Arc};

use super::{
    Isa,
    dict::FoldDictStream,
    literals::{PALETTE_OF_TOKENS, PALETTES, PALETTES_COUNT, PALETTES_OF_OTHERS, PALETTES_OF_WORDS, Palette, Values},
    shared::{FoldTables, REACH, Starts},
    tables::{
        BEFORE, CLASSES, CLASSES_COUNT, Class, Classes, DICT, END, FAR, KINDS, Kind, LAST, LENGTH_CODES, LENGTH_MIN,
        RUN_BASES, RUN_CODES, RUN_MAX, SLOTS_MAX, Slot, Slots, codes, length_min_new,
    },
};
use crate::{Candidates, Dictionary, PAGE_SIZE, Page, Stream, dictionary::candidates};

/// Dictionary sizes to try, in bytes. The last is the maximum that a page can reach.
const SIZES: [usize; 4] = [4 << 10, 16 << 10, 32 << 10, REACH];

/// Number of pages to which tokens and palettes are fitted.
const FITTED_PAGES: usize = 1024;

/// A search takes a sixth longer with a dictionary, on average, so the first one must save one byte
/// in this many.
const FIRST_SAVES: u64 = 14;

/// A longer dictionary uses more of the caches, so it must save one byte in this many over a
/// shorter one.
const LONGER_SAVES: u64 = 200;

impl FoldTables {
    /// Trains tables without and with a dictionary; of those with one length, those that make
    /// `held_out` smallest.
    pub(crate) fn train(training: &[&Page], held_out: &[&Page]) -> Candidates<Arc<Self>> {
        let step = training.len().div_ceil(FITTED_PAGES).max(1);
        let fitted: Vec<&Page> = training.iter().copied().step_by(step).collect();
        let fitted = |dictionary: &[u8]| Arc::new(fit(dictionary, &fitted));
        let of_size = |size| {
            let all = candidates(training, &[size]).into_iter().map(|candidate| fitted(&candidate));
            all.min_by_key(|tables| bytes_of(tables, held_out))
        };
        let all = iter::once(fitted(&[])).chain(SIZES.into_iter().filter_map(of_size));
        Candidates::new(all.collect(), [FIRST_SAVES, LONGER_SAVES])
    }

    /// Returns tables with the last 60 KiB of `dictionary`, which may be empty, and with tokens and
    /// palettes for `sample` after it, whether they make its pages smaller or not.
    pub fn train_unjudged(sample: &[&Page], dictionary: &[u8]) -> Self {
        fit(&dictionary[dictionary.len().saturating_sub(REACH)..], sample)
    }

    /// Returns the source text of the constants for [`Fold`](crate::Fold)'s tokens and palettes,
    /// fitted to `sample`: pages with their weights. The palette of tokens is for the present
    /// tokens.
    pub fn source_of_fixed(sample: &[(&Page, u64)]) -> String {
        let (found, _) = Usage::in_pages(None, sample.iter().copied());
        let classes = array::from_fn(|kind| fit_classes(kind, &found.tokens[kind][..DICT]));
        source(&classes, &found.palettes(&CLASSES))
    }
}

fn bytes_of(tables: &Arc<FoldTables>, pages: &[&Page]) -> usize {
    let mut stream = FoldDictStream::new(Isa::of_this_cpu(), Arc::clone(tables));
    let mut out = [0; PAGE_SIZE];
    pages.iter().map(|page| stream.compress(page, &mut out).unwrap_or(PAGE_SIZE)).sum()
}

/// Pages of fields keep the fixed tokens, in which no match is longer than LZ4's.
const FIELDS: usize = Kind::Fields as usize;

/// Fits tokens and palettes to `pages` after `dictionary`, which may be empty.
pub(super) fn fit(dictionary: &[u8], pages: &[&Page]) -> FoldTables {
    let dictionary =
        (!dictionary.is_empty()).then(|| (Dictionary::new(dictionary.to_vec()), Starts::new(dictionary, pages)));
    let (found, dictionary) = Usage::in_pages(dictionary, pages.iter().map(|page| (*page, 1)));
    let classes = array::from_fn(|kind| match kind {
        FIELDS => CLASSES[FIELDS],
        _ => fit_classes(kind, &found.tokens[kind]),
    });
    FoldTables::new(&classes, found.palettes(&classes), dictionary)
}

/// Weighted counts of the sequences and literals that the encoder finds in pages.
struct Usage {
    /// By [`Kind`], by class.
    tokens: [Vec<RunsAndLengths>; KINDS],
    /// How often pages of words have each class with each run and length.
    of_words: HashMap<(usize, usize, usize), u64>,
    literals: Vec<Literals>,
}

/// The literals of a page.
struct Literals {
    histogram: Histogram,
    weight: u64,
    /// Number of palettes that the page may use.
    palettes: usize,
}

impl Usage {
    /// Encodes `pages` after the bytes of `dictionary`, if there is one, and returns the
    /// dictionary.
    fn in_pages<'a>(
        dictionary: Option<(Dictionary, Box<Starts>)>,
        pages: impl Iterator<Item = (&'a Page, u64)>,
    ) -> (Self, Option<(Dictionary, Box<Starts>)>) {
        let tables = Arc::new(FoldTables::new(&CLASSES, PALETTES, dictionary));
        let mut stream = FoldDictStream::new(Isa::of_this_cpu(), Arc::clone(&tables));
        let none = || vec![RunsAndLengths { runs: [0; _], lengths: [0; _] }; CLASSES_COUNT];
        let mut found = Self { tokens: array::from_fn(|_| none()), of_words: HashMap::new(), literals: Vec::new() };
        for (page, weight) in pages {
            let _: Option<usize> = stream.compress(page, &mut [0; PAGE_SIZE]);
            let (kind, sequences, literals) = stream.encoder.found();
            let counts = &mut found.tokens[kind as usize];
            for sequence in sequences {
                counts[sequence.class].runs[sequence.run] += weight;
                counts[sequence.class].lengths[sequence.length] += weight;
                if kind == Kind::Words {
                    let all = (sequence.class, sequence.run, sequence.length);
                    *found.of_words.entry(all).or_default() += weight;
                }
            }
            let palettes = match kind {
                Kind::Others | Kind::Fields => PALETTES_OF_OTHERS,
                Kind::Words => PALETTES_OF_WORDS,
                Kind::Records => continue,
            };
            let mut histogram = [0; 256];
            for &literal in literals {
                histogram[usize::from(literal)] += 1;
            }
            found.literals.push(Literals { histogram, weight, palettes });
        }
        drop(stream);
        (found, Arc::into_inner(tables).and_then(FoldTables::into_dictionary))
    }

    /// Fits palettes to the literals, and one to the tokens of pages of words, which `classes`
    /// gives.
    fn palettes(&self, classes: &[Classes; KINDS]) -> Values {
        let codes = codes(&classes[Kind::Words as usize]);
        let mut tokens = [0; 256];
        for (&(class, run, length), count) in &self.of_words {
            let token = codes.runs[class][run.min(RUN_CODES - 1)] + codes.lengths[class][length.min(LENGTH_CODES - 1)];
            tokens[usize::from(token as u8)] += count;
        }
        let mut palettes = fit_palettes(&self.literals);
        palettes[PALETTE_OF_TOKENS - 1] = commonest(&tokens);
        palettes
    }
}

/// How often a class has each run and each length.
#[derive(Clone)]
struct RunsAndLengths {
    runs: [u64; PAGE_SIZE + 1],
    lengths: [u64; PAGE_SIZE + 1],
}

/// Returns the classes for a [`Kind`] of pages, of at most 255 tokens in total, whose tokens have
/// the fewest extra bits. Classes beyond the end of `counts` have no tokens.
fn fit_classes(kind: usize, counts: &[RunsAndLengths]) -> Classes {
    const TOKENS: usize = END as usize;
    // For each class and number of tokens: the bits, and the numbers of run slots and of length
    // slots.
    let fitted: Vec<_> = counts
        .iter()
        .enumerate()
        .map(|(class, counts)| {
            let runs_reach = if class == FAR || class == DICT { PAGE_SIZE } else { RUN_MAX };
            let least = if class == LAST || class == BEFORE { LENGTH_MIN } else { length_min_new(kind) };
            let runs = fit_slots(&counts.runs, usize::from(class == LAST), runs_reach, RUN_BASES);
            let lengths = fit_slots(&counts.lengths, least, PAGE_SIZE, LENGTH_CODES);
            let mut by_tokens = vec![(u64::MAX, 0, 0); TOKENS + 1];
            for (r, run) in runs.iter().enumerate() {
                for (l, length) in lengths.iter().enumerate() {
                    let tokens = (r + 1) * (l + 1);
                    let (Some(run), Some(length)) = (run, length) else { continue };
                    if let Some(least) = by_tokens.get_mut(tokens) {
                        *least = (*least).min((run.0 + length.0, r, l));
                    }
                }
            }
            (runs, lengths, by_tokens)
        })
        .collect();
    // By the number of tokens used: the bits of the classes so far, and the tokens that the last
    // class uses.
    let mut bits = vec![u64::MAX; TOKENS + 1];
    bits[0] = 0;
    let mut taken = Vec::new();
    for (_, _, by_tokens) in &fitted {
        let mut next = vec![(u64::MAX, 0); TOKENS + 1];
        for (before, &bits) in bits.iter().enumerate().filter(|(_, bits)| **bits < u64::MAX) {
            for (tokens, &(more, ..)) in by_tokens.iter().enumerate().take(TOKENS + 1 - before) {
                if more < u64::MAX {
                    let at = &mut next[before + tokens];
                    *at = (*at).min((bits + more, tokens));
                }
            }
        }
        bits = next.iter().map(|next| next.0).collect();
        taken.push(next);
    }
    let mut tokens = (0..=TOKENS).min_by_key(|&tokens| bits[tokens]).expect("some number");
    let mut classes = [Class { runs: Slots::NONE, lengths: Slots::NONE }; CLASSES_COUNT];
    for class in (0..counts.len()).rev() {
        let here = taken[class][tokens].1;
        let (runs, lengths, by_tokens) = &fitted[class];
        let (_, r, l) = by_tokens[here];
        let slots = |of: &[Option<(u64, Slots)>], at: usize| of[at].map_or(Slots::NONE, |(_, slots)| slots);
        classes[class] = Class { runs: slots(runs, r), lengths: slots(lengths, l) };
        tokens -= here;
    }
    classes
}

/// Returns, for each number of slots, the minimum of extra bits for slots from `first` to at least
/// `reach`, and these slots. Bases are below `bases`.
fn fit_slots(counts: &[u64; PAGE_SIZE + 1], first: usize, reach: usize, bases: usize) -> Vec<Option<(u64, Slots)>> {
    /// Values that are not in the sample may still occur: each has a weight of 1.
    const WEIGHT: u64 = 256;
    /// Maximum extra bits of a slot.
    const BITS_MAX: usize = 12;
    let mut before = vec![0; counts.len() + 1];
    for (at, &count) in counts.iter().enumerate() {
        before[at + 1] = before[at] + WEIGHT * count + 1;
    }
    let between = |from: usize, to: usize| before[to.min(counts.len())] - before[from];
    // By base: the bits from there on, and the extra bits of the first slot.
    let mut rows: Vec<Vec<Option<(u64, usize)>>> = Vec::new();
    for slots in 0..SLOTS_MAX {
        let row = (0..bases)
            .map(|base| {
                (0..=BITS_MAX)
                    .filter_map(|bits| {
                        let next = base + (1 << bits);
                        let rest = if slots == 0 {
                            (next > reach).then_some(0)
                        } else if next < bases {
                            rows[slots - 1][next].map(|(bits, _)| bits)
                        } else {
                            None
                        }?;
                        Some((bits as u64 * between(base, next) + rest, bits))
                    })
                    .min()
            })
            .collect();
        rows.push(row);
    }
    (0..SLOTS_MAX)
        .map(|slots| {
            let (all, _) = rows[slots][first]?;
            let (mut out, mut base) = (Slots::NONE, first);
            for row in rows[..=slots].iter().rev() {
                let (_, bits) = row[base]?;
                out = out.and(Slot { base: base as u8, bits: bits as u8 });
                base += 1 << bits;
            }
            Some((all, out))
        })
        .collect()
}

/// How often each value occurs among a page's literals.
type Histogram = [u32; 256];

/// Fits palettes to pages with these literals: each palette has the commonest values of the pages
/// that it makes smallest. Pages that no palette makes smaller do not count.
fn fit_palettes(pages: &[Literals]) -> Values {
    const ROUNDS: usize = 10;
    let mut palettes = PALETTES;
    for _ in 0..ROUNDS {
        let mut counts = [[0_u64; 256]; PALETTES_COUNT];
        let mut worst = (0, None);
        for Literals { histogram: page, weight, palettes: usable } in pages {
            let (palette, bits) = (0..*usable)
                .map(|palette| (palette, bits_of(&palettes[palette], page)))
                .min_by_key(|&(_, bits)| bits)
                .expect("a palette");
            if bits > worst.0 {
                worst = (bits, Some(page));
            }
            if bits < 8 * page.iter().sum::<u32>() {
                for (count, &here) in counts[palette].iter_mut().zip(page) {
                    *count += weight * u64::from(here);
                }
            }
        }
        for (palette, counts) in palettes.iter_mut().zip(&counts).take(PALETTES_OF_OTHERS) {
            if counts.iter().any(|&count| count > 0) {
                *palette = commonest(counts);
            } else if let Some(page) = worst.1.take() {
                // No page uses this palette: give it to the page that is coded worst.
                *palette = commonest(&page.map(u64::from));
            }
        }
    }
    palettes
}

/// Returns the bits of the literals with `palette`, or uncoded if that is less.
fn bits_of(palette: &Palette, page: &Histogram) -> u32 {
    let count = |values: &[u8]| -> u32 { values.iter().map(|&value| page[usize::from(value)]).sum() };
    let (all, first, second) = (page.iter().sum::<u32>(), count(&palette.first), count(&palette.second));
    (10 * all - 5 * first - 3 * second).min(8 * all)
}

/// Returns a palette of the commonest values.
fn commonest(counts: &[u64; 256]) -> Palette {
    let mut values: [u8; 256] = array::from_fn(|value| value as u8);
    values.sort_by_key(|&value| (u64::MAX - counts[usize::from(value)], value));
    let (first, rest) = values.split_first_chunk().expect("sixteen");
    let second = rest.first_chunk().expect("32");
    let mut palette = Palette { first: *first, second: *second };
    palette.first.sort_unstable();
    palette.second.sort_unstable();
    palette
}

/// Formats `classes` and `palettes` as in [`tables`](super::tables) and
/// [`literals`](super::literals), except for rustfmt's line breaks.
fn source(classes: &[Classes; KINDS], palettes: &Values) -> String {
    let slots = |slots: &Slots| match slots.as_slice() {
        [] => "Slots::NONE".to_owned(),
        slots => {
            let slots: Vec<String> = slots.iter().map(|slot| format!("({}, {})", slot.base, slot.bits)).collect();
            format!("Slots::new(&[{}])", slots.join(", "))
        }
    };
    let text = |values: &[u8]| -> String {
        let byte = |&value: &u8| match value {
            b'"' | b'\\' => format!("\\x{value:02x}"),
            b' '..=b'~' => char::from(value).to_string(),
            _ => format!("\\x{value:02x}"),
        };
        values.iter().map(byte).collect()
    };
    let mut out = String::new();
    for (name, classes) in ["OTHERS", "OF_WORDS", "OF_RECORDS", "OF_FIELDS"].into_iter().zip(classes) {
        out += &format!("const {name}: Classes = [\n");
        for class in classes {
            out += &format!("    Class {{ runs: {}, lengths: {} }},\n", slots(&class.runs), slots(&class.lengths));
        }
        out += "];\n\n";
    }
    out += "pub(super) const PALETTES: Values = [\n";
    for palette in palettes {
        out += &format!("    Palette::new(b\"{}\", b\"{}\"),\n", text(&palette.first), text(&palette.second));
    }
    out + "];\n"
}

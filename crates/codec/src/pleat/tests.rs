use std::sync::OnceLock;

use proptest::prelude::*;

use super::{
    builds::Shims,
    encode::{CODING, OWN, PLAIN, RAW, SHARED},
    tables::{Model, id_of},
    *,
};
use crate::{PAGE_SIZE, Tables};

/// A small generator, the same on every machine (xorshift64*, Vigna 2016).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

const KINDS: u64 = 8;

/// Returns a page of one of several kinds: heap-like, text, records, samples, sparse, noise, one
/// byte, bytes that need a separate code.
fn page(kind: u64, seed: u64) -> Page {
    let mut random = Random(seed.wrapping_mul(2).wrapping_add(1));
    let mut page = [0; PAGE_SIZE];
    match kind % KINDS {
        0 => {
            for word in page.chunks_exact_mut(8) {
                let value = match random.below(4) {
                    0 => 0,
                    1 => 0x7f3a_1240_0000 + random.below(64) * 48,
                    2 => random.below(1000),
                    _ => 0x5581_0000_1000 + random.below(4) * 0x120,
                };
                word.copy_from_slice(&value.to_le_bytes());
            }
        }
        1 => {
            const WORDS: [&[u8]; 12] = [
                b"page ",
                b"store ",
                b"of ",
                b"the ",
                b"entry ",
                b"object ",
                b"and ",
                b"is ",
                b"a ",
                b"pool, ",
                b"compressed ",
                b"memory. ",
            ];
            let mut at = 0;
            while at < PAGE_SIZE {
                let word = WORDS[random.below(12) as usize];
                let len = word.len().min(PAGE_SIZE - at);
                page[at..at + len].copy_from_slice(&word[..len]);
                at += len;
            }
        }
        2 => {
            for (number, record) in page.chunks_mut(40).enumerate() {
                let text = format!("{number:08};user{:04};{};\n---------------", random.below(99), random.below(7));
                let len = record.len().min(text.len());
                record[..len].copy_from_slice(&text.as_bytes()[..len]);
            }
        }
        3 => {
            let mut level = 1000i64;
            for sample in page.chunks_exact_mut(2) {
                level += random.below(21) as i64 - 10;
                sample.copy_from_slice(&(level as u16).to_le_bytes());
            }
        }
        4 => {
            for _ in 0..random.below(60) {
                page[random.below(PAGE_SIZE as u64) as usize] = random.next() as u8;
            }
        }
        5 => page.fill_with(|| random.next() as u8),
        6 => page = [random.next() as u8; PAGE_SIZE],
        _ => page.fill_with(|| (random.below(9) * random.below(9)) as u8 + 0x90),
    }
    page
}

fn pages(kinds: std::ops::Range<u64>, count: u64) -> Vec<Page> {
    (0..count).flat_map(|seed| kinds.clone().map(move |kind| page(kind, seed))).collect()
}

/// Returns tables trained on these kinds of pages, with a dictionary of 8 KiB.
fn trained() -> Arc<PleatTables> {
    static TABLES: OnceLock<Arc<PleatTables>> = OnceLock::new();
    let train = || {
        let pages = pages(0..5, 64);
        PleatTables::train_unjudged(&pages.iter().collect::<Vec<_>>(), 8192).expect("valid tables")
    };
    Arc::clone(TABLES.get_or_init(|| Arc::new(train())))
}

/// Returns the same codes with the longest possible dictionary: noise that begins and ends with a
/// page of records.
fn longest() -> Arc<PleatTables> {
    static TABLES: OnceLock<Arc<PleatTables>> = OnceLock::new();
    let make = || {
        let mut random = Random(99);
        let mut dictionary: Vec<u8> = (0..window::MAX_DICTIONARY).map(|_| random.next() as u8).collect();
        dictionary[..PAGE_SIZE].copy_from_slice(&page(2, 900));
        dictionary[window::MAX_DICTIONARY - PAGE_SIZE..].copy_from_slice(&page(2, 901));
        PleatTables::new(Model {
            starts: (0..dictionary.len() as u16).collect(),
            dictionary,
            ..trained().model().clone()
        })
        .expect("valid tables")
    };
    Arc::clone(TABLES.get_or_init(|| Arc::new(make())))
}

fn all_tables() -> [Arc<PleatTables>; 3] {
    [PleatTables::builtin(), trained(), longest()]
}

/// Matches are found and decoded at both ends of the longest dictionary, with separate tokens and
/// with coarse ones, which the trained tables have for such far offsets.
#[test]
fn the_longest_dictionary_is_in_reach() {
    let tables = longest();
    for (seed, front) in [(900, true), (901, false)] {
        let whole = page(2, seed);
        assert!(round_trip(&tables, &whole).len() < 120, "front {front}");
        let mut part = page(5, 7);
        part[50..550].copy_from_slice(&whole[100..600]);
        let object = round_trip(&tables, &part);
        assert!(object.len() < PAGE_SIZE - 400, "front {front}: {} bytes", object.len());
    }
}

/// Encodes `page` with every build, which must agree, and decodes it with each.
fn round_trip(tables: &Arc<PleatTables>, page: &Page) -> Vec<u8> {
    let mut streams: Vec<_> = Shims::every().map(|shims| PleatStream::new(Arc::clone(tables), shims)).collect();
    let mut object = [0; PAGE_SIZE + 1];
    let len = streams[0].compress(page, &mut object).expect("a raw page fits");
    for stream in &mut streams {
        let mut same = [0; PAGE_SIZE + 1];
        assert_eq!(stream.compress(page, &mut same), Some(len));
        assert!(object == same, "the builds give different bytes");
        let mut back = [0xee; PAGE_SIZE];
        assert_eq!(stream.decompress(&object[..len], &mut back), Ok(()));
        assert!(back == *page);
    }
    object[..len].to_vec()
}

#[test]
fn pages_come_back() {
    for tables in all_tables() {
        for kind in 0..KINDS {
            for seed in 100..110 {
                round_trip(&tables, &page(kind, seed));
            }
        }
    }
}

#[test]
fn sizes_of_kinds() {
    let size = |kind| round_trip(&PleatTables::builtin(), &page(kind, 1)).len();
    assert!(size(0) < 1600 && size(1) < 1400 && size(2) < 1000 && size(4) < 300 && size(6) < 40);
    assert_eq!(size(5), PAGE_SIZE + 1);
}

/// Literals that no shared set fits, many or few, are shorter with a code in the object than with 8
/// bits each.
#[test]
fn a_page_may_have_a_code_of_its_own() {
    for tables in all_tables() {
        let object = round_trip(&tables, &page(7, 1));
        assert!(object[0] & CODING == OWN && object.len() < PAGE_SIZE * 3 / 4, "{} bytes", object.len());
        let mut short = page(7, 2);
        short[400..].fill(0);
        let object = round_trip(&tables, &short);
        assert!(object[0] & CODING == OWN && object.len() < 330, "{} bytes", object.len());
    }
}

/// Decodes the literals of an object with a code for this page, one bit at a time.
fn literals_of_own_code(object: &[u8]) -> Vec<u8> {
    let number = |at: usize| match object[at] {
        low @ 0..128 => (usize::from(low), at + 1),
        low => (usize::from(low & 127) | usize::from(object[at + 1]) << 7, at + 2),
    };
    let bit = |bits: &[u8], at: usize| usize::from(bits[at / 8] >> (at % 8) & 1);
    // Decodes a prefix code from its lengths, as in RFC 1951: the symbol at the bit `at`.
    let symbol = |lengths: &[u8], bits: &[u8], at: &mut usize| {
        let (mut code, mut first, mut length) = (0, 0, 0);
        loop {
            length += 1;
            code = code << 1 | bit(bits, *at);
            *at += 1;
            let of_length = || lengths.iter().enumerate().filter(|&(_, &other)| other == length);
            if code - first < of_length().count() {
                return of_length().nth(code - first).map(|(symbol, _)| symbol).unwrap();
            }
            first = (first + of_length().count()) << 1;
        }
    };
    let (count, at) = number(1);
    let pairs = if count < 320 { 1 } else { 8 };
    let (mut len, mut at) = number(at);
    let mut pair_lens = vec![len];
    while pair_lens.len() < pairs {
        let (more, next) = number(at);
        len = if more % 2 == 0 { len + more / 2 } else { len - more.div_ceil(2) };
        pair_lens.push(len);
        at = next;
    }
    let (_, at) = number(at);
    let description = &object[at..];
    let (mut lengths, mut before, mut at_bit) = (Vec::new(), 0, 0);
    while lengths.len() < 256 {
        match symbol(&own::WORD_LENGTHS[before], description, &mut at_bit) {
            word @ 0..10 => {
                lengths.push(word as u8 + 1);
                before = word + 1;
            }
            run => {
                let bits = run - 10;
                let more: usize = (0..bits).map(|place| bit(description, at_bit + place) << place).sum();
                at_bit += bits;
                lengths.resize(lengths.len() + (1 << bits) + more, 0);
                before = 0;
            }
        }
    }
    let lanes = &description[at_bit.div_ceil(8)..];
    let reversed = |pair: &[u8]| pair.iter().rev().copied().collect::<Vec<_>>();
    let mut at = 0;
    let streams = pair_lens.iter().flat_map(|len| {
        at += len;
        let pair = &lanes[at - len..at];
        [pair.to_vec(), reversed(pair)]
    });
    let streams: Vec<_> = streams.collect();
    let mut literals = Vec::new();
    for (lane, bits) in streams.iter().enumerate() {
        let (groups, more) = (count / 5 / streams.len(), count / 5 % streams.len());
        let last = lane + 1 == streams.len();
        let len = 5 * (groups + usize::from(lane < more)) + if last { count % 5 } else { 0 };
        let mut at = 0;
        literals.extend((0..len).map(|_| symbol(&lengths, bits, &mut at) as u8));
    }
    literals
}

#[test]
fn own_codes_are_read_as_the_page_on_the_format_says() {
    for seed in 0..4 {
        let mut page = page(7, seed);
        page[1000 * seed as usize + 500..].fill(0);
        let object = round_trip(&PleatTables::builtin(), &page);
        assert_eq!(object[0] & CODING, OWN);
        let literals = literals_of_own_code(&object);
        // The literals are the page's bytes in order, apart from a few matches.
        let mut page = page.iter();
        assert!(literals.len() >= 400 && literals.iter().all(|literal| page.any(|byte| byte == literal)));
    }
}

#[test]
fn any_bound_is_kept() {
    for tables in all_tables() {
        let mut stream = PleatStream::new(Arc::clone(&tables), Shims::best());
        for kind in 0..KINDS {
            let page = page(kind, 7);
            let object = round_trip(&tables, &page);
            for bound in 0..=PAGE_SIZE + 8 {
                let mut out = vec![0; bound];
                let len = stream.compress(&page, &mut out);
                assert_eq!(len, (bound >= object.len()).then_some(object.len()), "kind {kind} bound {bound}");
                assert!(len.is_none_or(|len| out[..len] == object));
            }
        }
    }
}

#[test]
fn damaged_objects_do_no_harm() {
    for tables in all_tables() {
        let mut stream = PleatStream::new(Arc::clone(&tables), Shims::best());
        let mut back = [0; PAGE_SIZE];
        for kind in 0..KINDS {
            let page = page(kind, 3);
            let object = round_trip(&tables, &page);
            for len in 0..object.len() {
                assert!(stream.decompress(&object[..len], &mut back).is_err(), "kind {kind} cut to {len}");
            }
            let mut longer = object.clone();
            longer.push(0);
            assert!(stream.decompress(&longer, &mut back).is_err());
            let mut damaged = object.clone();
            for bit in (0..object.len() * 8).step_by(if cfg!(miri) { 97 } else { 1 }) {
                damaged[bit / 8] ^= 1 << (bit % 8);
                let _ = stream.decompress(&damaged, &mut back);
                damaged[bit / 8] ^= 1 << (bit % 8);
            }
            // The dictionary and the tables are unchanged.
            assert_eq!(stream.decompress(&object, &mut back), Ok(()));
            assert!(back == page);
        }
    }
}

/// Each object has exactly one encoding: the decoder rejects what no encoder writes, even if it
/// could be read.
#[test]
fn numbers_too_long_and_bits_without_meaning_are_refused() {
    let tables = PleatTables::builtin();
    let mut stream = PleatStream::new(Arc::clone(&tables), Shims::best());
    let mut back = [0; PAGE_SIZE];
    let plain = round_trip(&tables, &page(6, 42));
    assert!(plain[0] & CODING == SHARED && plain[1] < 128);
    let longer = [&plain[..1], &[plain[1] | 128, 0], &plain[2..]].concat();
    assert!(stream.decompress(&longer, &mut back).is_err());
    // Noise, with a match to make it smaller.
    let mut half = page(5, 8);
    half.copy_within(..PAGE_SIZE / 2, PAGE_SIZE / 2);
    let mut object = round_trip(&tables, &half);
    assert!(object[0] & CODING == PLAIN);
    for bit in [1, 2, 4, OWN] {
        object[0] ^= bit;
        assert!(stream.decompress(&object, &mut back).is_err(), "bit {bit}");
        object[0] ^= bit;
    }
    stream.decompress(&object, &mut back).unwrap();
    // Adds a byte between the two streams of tokens, or anywhere else in their section.
    let object = GOLDEN_WORDS;
    assert!(object[0] & CODING == SHARED);
    let tokens_at = 4 + usize::from(object[2]);
    for at in tokens_at..=tokens_at + usize::from(object[3]) {
        let mut longer = object.to_vec();
        longer[3] += 1;
        longer.insert(at, 0);
        assert!(stream.decompress(&longer, &mut back).is_err(), "a byte at {at}");
    }
}

/// One stream switches from a long dictionary to none and back.
#[test]
fn a_stream_forgets_the_dictionary_before() {
    let samples = pages(0..5, 8);
    let none = PleatTables::train_unjudged(&samples.iter().collect::<Vec<_>>(), 0).expect("valid tables");
    let (none, long) = (Arc::new(none), trained());
    assert!(long.dictionary_bytes() > none.dictionary_bytes());
    let mut stream = PleatStream::new(Arc::clone(&none), Shims::best());
    for tables in [&long, &none, &long, &none] {
        stream.set_tables(&Tables::Pleat(Arc::clone(tables)));
        let before = |window: &Window| (0..window::PAGE_AT / 8).map(|at| window.word(8 * at)).collect::<Vec<_>>();
        assert!(before(&stream.window) == before(&tables.window));
        for kind in 0..5 {
            let page = page(kind, 12);
            let mut out = [0; PAGE_SIZE + 1];
            let len = stream.compress(&page, &mut out).unwrap();
            assert!(out[..len] == round_trip(tables, &page));
        }
    }
}

#[test]
fn all_builds_judge_damage_alike() {
    for tables in all_tables() {
        let mut streams: Vec<_> = Shims::every().map(|shims| PleatStream::new(Arc::clone(&tables), shims)).collect();
        let mut random = Random(99);
        for kind in (0..5).chain([7]) {
            let object = round_trip(&tables, &page(kind, 11));
            for _ in 0..400 {
                let mut damaged = object.clone();
                for _ in 0..=random.below(3) {
                    let at = random.below(damaged.len() as u64) as usize;
                    damaged[at] = random.next() as u8;
                }
                let mut found = streams.iter_mut().map(|stream| {
                    let mut back = [0; PAGE_SIZE];
                    stream.decompress(&damaged, &mut back).map(|()| back)
                });
                let first = found.next().expect("one build at least");
                assert!(found.all(|other| other == first));
            }
        }
    }
}

#[test]
fn tables_come_back_from_their_bytes() {
    for tables in all_tables() {
        let bytes = tables.to_bytes();
        let back = PleatTables::from_bytes(&bytes).expect("what to_bytes gave");
        assert_eq!((back.id(), back.to_bytes()), (tables.id(), bytes.clone()));
        let page = page(0, 5);
        assert_eq!(round_trip(&Arc::new(back), &page), round_trip(&tables, &page));
    }
}

#[test]
fn cut_or_flipped_tables_are_refused() {
    let bytes = trained().to_bytes();
    for len in 0..bytes.len() {
        assert!(PleatTables::from_bytes(&bytes[..len]).is_err());
    }
    let mut longer = bytes.clone();
    longer.push(0);
    assert!(PleatTables::from_bytes(&longer).is_err());
    let mut damaged = bytes.clone();
    for bit in (0..bytes.len() * 8).step_by(7) {
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(PleatTables::from_bytes(&damaged).is_err(), "bit {bit}");
        damaged[bit / 8] ^= 1 << (bit % 8);
    }
}

/// Every page has an object, since every rare symbol has a fallback. Tables without one are
/// rejected.
#[test]
fn tables_that_cannot_say_everything_are_refused() {
    let bytes = trained().to_bytes();
    let symbols = usize::from(u16::from_le_bytes([bytes[10], bytes[11]]));
    // Exchanges the code lengths of two symbols, half a byte each: the code stays complete.
    let exchanged = |section: usize, a: usize, b: usize| {
        let mut bytes = bytes.clone();
        let nibble = |bytes: &[u8], at: usize| bytes[section + at / 2] >> (4 * (at % 2)) & 15;
        let (x, y) = (nibble(&bytes, a), nibble(&bytes, b));
        for (at, is, becomes) in [(a, x, y), (b, y, x)] {
            bytes[section + at / 2] ^= (is ^ becomes) << (4 * (at % 2));
        }
        let id = id_of(&bytes);
        bytes[4..8].copy_from_slice(&id.to_le_bytes());
        ((x, y), PleatTables::from_bytes(&bytes))
    };
    let tokens = 14 + 2 * symbols;
    let literals = tokens + usize::from(bytes[12]) * (format::COARSE + symbols).div_ceil(2) + 128;
    for (section, needed, others) in
        [(tokens, 0, format::COARSE..format::COARSE + symbols), (literals, tables::ESCAPE, 0..tables::ESCAPE)]
    {
        let mut tried = [0; 2];
        for other in others {
            let ((had, gets), found) = exchanged(section, needed, other);
            assert!(had > 0);
            assert_eq!(found.is_ok(), gets > 0);
            tried[usize::from(gets > 0)] += 1;
        }
        assert!(tried.into_iter().all(|count| count > 0), "{tried:?}");
    }
}

#[test]
fn damaged_tables_with_a_right_id_are_refused_or_work() {
    let bytes = trained().to_bytes();
    let mut random = Random(5);
    let mut accepted = 0;
    for round in 0..600 {
        let mut damaged = bytes.clone();
        // Every second round damages only the dictionary and the costs at the end, which may have
        // any content.
        let from = if round % 2 == 0 { 0 } else { bytes.len() - 8192 };
        for _ in 0..=random.below(3) {
            let at = from + random.below((bytes.len() - from) as u64) as usize;
            damaged[at] ^= 1 << random.below(8);
        }
        let id = id_of(&damaged);
        damaged[4..8].copy_from_slice(&id.to_le_bytes());
        if let Ok(tables) = PleatTables::from_bytes(&damaged) {
            accepted += 1;
            assert_eq!(tables.to_bytes(), damaged);
            round_trip(&Arc::new(tables), &page(round, round));
        }
    }
    assert!(accepted > 200, "{accepted}");
}

#[test]
fn places_beyond_the_dictionary_are_refused() {
    let model = Model { dictionary: vec![1; 9], starts: vec![0, 8], ..trained().model().clone() };
    let mut bytes = PleatTables::new(model).expect("valid tables").to_bytes();
    for (starts, is_valid) in [(1, true), (0, true), (2, false), (0x80, false)] {
        *bytes.last_mut().expect("some bytes") = starts;
        let id = id_of(&bytes);
        bytes[4..8].copy_from_slice(&id.to_le_bytes());
        assert_eq!(PleatTables::from_bytes(&bytes).is_ok(), is_valid, "{starts}");
    }
}

/// Returns the bytes of the objects of `pages` under `tables`.
fn total(tables: &PleatTables, pages: &[&Page]) -> usize {
    let mut window = tables.window.clone();
    let mut scratch = Box::new(encode::Scratch::new());
    let mut out = [0; PAGE_SIZE];
    let mut bytes = |page: &&Page| {
        window.set_page(page);
        encode::encode::<isa::Generic>(tables, &window, &mut scratch, &mut out).unwrap_or(out.len())
    };
    pages.iter().map(&mut bytes).sum()
}

fn train(sample: &[&Page]) -> Option<Arc<PleatTables>> {
    match Tables::Pleat(PleatTables::builtin()).train_further(sample)? {
        Tables::Pleat(tables) => Some(tables),
        _ => unreachable!("tables of another codec"),
    }
}

#[test]
fn training_on_little_or_nothing() {
    let nothing: [&Page; 0] = [];
    assert!(train(&nothing).is_none());
    let noise: Vec<Page> = (0..64).map(|seed| page(5, seed)).collect();
    assert!(train(&noise.iter().collect::<Vec<_>>()).is_none(), "noise has nothing to learn");
    let one = page(0, 1);
    let same = page(6, 1);
    let text = page(1, 1);
    let samples: [&[&Page]; 5] = [&nothing, &[&one], &[&same; 100], &[&noise[0], &noise[1], &noise[2]], &[&text; 9]];
    for sample in samples {
        for dictionary_len in [0, 1, 64, 28_671, 28_672, 1 << 20] {
            let tables = Arc::new(PleatTables::train_unjudged(sample, dictionary_len).expect("valid tables"));
            for kind in 0..KINDS {
                round_trip(&tables, &page(kind, 2));
            }
            let back = PleatTables::from_bytes(&tables.to_bytes()).expect("what to_bytes gave");
            assert_eq!(back.id(), tables.id());
        }
    }
}

#[test]
fn training_helps_on_pages_not_seen_and_is_repeatable() {
    let samples = pages(0..5, 40);
    let samples: Vec<&Page> = samples.iter().collect();
    let tables = train(&samples).expect("these pages have much in common");
    assert_eq!(train(&samples).map(|tables| tables.id()), Some(tables.id()));
    let others: Vec<Page> = (500..520).flat_map(|seed| (0..5).map(move |kind| page(kind, seed))).collect();
    let others: Vec<&Page> = others.iter().collect();
    assert!(total(&tables, &others) * 100 < total(&PleatTables::builtin(), &others) * 95);
}

/// Objects of format version 6 with the built-in tables: this test detects a change of either.
#[test]
fn golden_objects() {
    let tables = PleatTables::builtin();
    let hash = |bytes: &[u8]| id_of(&[&[0; 8], bytes].concat());
    let found: Vec<(usize, u32)> = (0..KINDS)
        .map(|kind| round_trip(&tables, &page(kind, 42)))
        .map(|object| (object.len(), hash(&object)))
        .collect();
    assert_eq!((tables.id(), found.as_slice()), (GOLDEN_ID, GOLDEN.as_slice()));
    let words = std::array::from_fn(|at| if at % 8 == 0 { (at / 1024) as u8 } else { 0 });
    assert_eq!(round_trip(&tables, &words), GOLDEN_WORDS);
    assert_eq!(round_trip(&tables, &page(5, 42))[0], RAW);
}

const GOLDEN_ID: u32 = 1_035_149_629;
/// Length and FNV-1a of the object of each kind of page.
const GOLDEN: [(usize, u32); KINDS as usize] = [
    (930, 2_132_672_067),
    (1036, 3_318_232_076),
    (637, 3_314_074_949),
    (3023, 2_136_971_096),
    (46, 2_176_219_932),
    (4097, 1_277_126_270),
    (12, 1_358_558_704),
    (2404, 1_229_431_482),
];
/// A page of words 0, 1, 2 and 3, one quarter each.
const GOLDEN_WORDS: [u8; 24] =
    [45, 3, 3, 5, 1, 84, 129, 11, 11, 45, 45, 203, 0, 208, 63, 0, 80, 63, 1, 192, 63, 1, 192, 63];

proptest! {
    #[test]
    fn any_page_comes_back(
        kind in 0..KINDS, seed: u64, edits in proptest::collection::vec((0..PAGE_SIZE, 0..PAGE_SIZE, 0..300usize), 0..12),
    ) {
        let mut page = page(kind, seed);
        for (from, to, len) in edits {
            let len = len.min(PAGE_SIZE - from.max(to));
            page.copy_within(from..from + len, to);
        }
        for tables in all_tables() {
            round_trip(&tables, &page);
        }
    }

    #[test]
    fn any_bytes_give_a_page_or_an_error(mut object in proptest::collection::vec(any::<u8>(), 0..600), head in any::<u8>()) {
        // Most random first bytes would be rejected immediately.
        if let Some(first) = object.first_mut() {
            *first = if head & CODING == SHARED { head } else { head & 0b11_1000 | OWN };
        }
        for tables in all_tables() {
            let mut stream = PleatStream::new(tables, Shims::best());
            let mut page = [0; PAGE_SIZE];
            let _ = stream.decompress(&object, &mut page);
        }
    }
}

//! Compares all builds of the codec with each other, with a straightforward decoder, and with fixed
//! objects; with tables and without.

use std::sync::{Arc, LazyLock};

use proptest::{collection::vec, prelude::*, sample::Index};

use super::{
    FIXED, FoldStream, FoldTables, Format, Isa,
    dict::FoldDictStream,
    encode::FRONT,
    kind::kind_of,
    literals::{EMPTY, PALETTES, PALETTES_COUNT, PALETTES_OF_OTHERS, Palette, SLACK, room_to_pack},
    pages::{
        DICTIONARY, Lcg, float_page, heap_page, page_of, page_of_any_kind, pages, palette_page, random_page,
        record_page, row_page, table_page, text_page,
    },
    plain::plain_decode,
    shared::REACH,
    tables::{BEFORE, DICT, END, FAR, KINDS, Kind, LAST, LENGTH_CODES, NEAR, RUN_CODES, RUN_MAX, length_min_new},
    train::fit,
};
use crate::{PAGE_SIZE, Page, Stream, reuse::pages_with_starts};

const ALL_KINDS: [Kind; KINDS] = [Kind::Others, Kind::Words, Kind::Records, Kind::Fields];

/// The shortest match at a new offset in pages of [`Kind::Others`].
const SHORTEST: usize = length_min_new(Kind::Others as usize);

/// No tables; tables without a dictionary; with a short one; with one that fills the window.
static TABLES: LazyLock<[Option<Arc<FoldTables>>; 4]> = LazyLock::new(|| {
    let pages: Vec<Page> = (0..40).map(page_of_any_kind).collect();
    let fitted = |dictionary: &[u8]| {
        let starts = pages_with_starts(dictionary);
        Some(Arc::new(fit(dictionary, &pages.iter().chain(&starts).collect::<Vec<_>>())))
    };
    [None, fitted(&[]), fitted(&DICTIONARY[5000..5777]), fitted(&DICTIONARY)]
});

/// Streams of every build with the same tables.
struct Builds {
    tables: Option<Arc<FoldTables>>,
    /// The bytes in which matches may begin.
    front: Vec<u8>,
    streams: Vec<(Isa, Box<dyn Stream>)>,
}

impl Builds {
    fn new(tables: Option<&Arc<FoldTables>>) -> Self {
        let dictionary = tables.and_then(|tables| tables.dictionary());
        let front = dictionary.map_or(Vec::new(), |dictionary| {
            let mut front = vec![0; REACH - dictionary.bytes().len()];
            front.extend(dictionary.bytes());
            front
        });
        let streams = Isa::all_of_this_cpu().into_iter().map(|isa| {
            let stream: Box<dyn Stream> = match tables {
                Some(tables) => Box::new(FoldDictStream::new(isa, Arc::clone(tables))),
                None => Box::new(FoldStream::new(isa)),
            };
            (isa, stream)
        });
        Self { tables: tables.cloned(), front, streams: streams.collect() }
    }

    /// Returns builds for each of [`TABLES`].
    fn all() -> impl Iterator<Item = Self> {
        TABLES.iter().map(|tables| Self::new(tables.as_ref()))
    }

    fn format(&self) -> &Format {
        self.tables.as_ref().map_or(&FIXED, |tables| &tables.trained().expect("fitted").format)
    }

    /// Decodes with every build and with the straightforward decoder; all must agree.
    fn decode(&mut self, object: &[u8]) -> Option<Vec<u8>> {
        let plain = plain_decode(self.format(), &self.front, object);
        for (isa, stream) in &mut self.streams {
            // Guards around the page must not change.
            let mut buffer = [0xA5; 64 + PAGE_SIZE + 64];
            let page = buffer[64..].first_chunk_mut().expect("a page");
            let found = stream.decompress(object, page).ok().map(|()| page.to_vec());
            let (front, rest) = buffer.split_at(64);
            assert!(
                [front, &rest[PAGE_SIZE..]].concat().iter().all(|&byte| byte == 0xA5),
                "{isa:?} wrote outside the page"
            );
            assert!(found == plain, "{isa:?} and the plain decoder differ on {object:02x?}");
        }
        plain
    }

    /// Compresses with every build, which must agree, and decodes the result.
    fn round_trip(&mut self, page: &Page) -> Option<Vec<u8>> {
        let mut objects = self.streams.iter_mut().map(|(_, stream)| {
            let mut out = [0; PAGE_SIZE];
            let len = stream.compress(page, &mut out)?;
            Some(out[..len].to_vec())
        });
        let object = objects.next()?;
        for other in objects {
            assert!(other == object, "the builds' objects differ");
        }
        if let Some(object) = &object {
            assert!(object.len() < PAGE_SIZE);
            assert_eq!(self.decode(object).as_deref(), Some(&page[..]));
        }
        object
    }
}

/// Decodes without tables.
fn decode_everywhere(object: &[u8]) -> Option<Vec<u8>> {
    Builds::new(None).decode(object)
}

/// Compresses with all tables and decodes the results. Returns the object made without tables.
fn round_trip(page: &Page) -> Option<Vec<u8>> {
    let mut objects = Builds::all().map(|mut builds| builds.round_trip(page));
    let object = objects.next()?;
    objects.for_each(drop);
    object
}

/// An object of tokens, built the straightforward way.
struct PlainObject<'a> {
    format: &'a Format,
    kind: Kind,
    literals: usize,
    at: usize,
    bits: Vec<bool>,
    tokens: Vec<u8>,
}

impl<'a> PlainObject<'a> {
    fn new(format: &'a Format, kind: Kind) -> Self {
        Self { format, kind, literals: 0, at: 0, bits: Vec::new(), tokens: Vec::new() }
    }

    fn put_bits(&mut self, value: usize, count: u8) {
        self.bits.extend((0..count).map(|bit| value >> bit & 1 == 1));
    }

    /// Adds a token of a class, with offset bits `offset`.
    fn put(&mut self, class: usize, run: usize, length: usize, offset: usize) {
        let codes = &self.format.tokens[self.kind as usize].codes;
        let [run_token, run_bits, run_base, offset_bits] = codes.runs[class][run.min(RUN_CODES - 1)].to_le_bytes();
        let [length_token, length_bits, length_base, _] =
            codes.lengths[class][length.min(LENGTH_CODES - 1)].to_le_bytes();
        self.tokens.push(run_token + length_token);
        self.put_bits(length - usize::from(length_base), length_bits);
        self.put_bits(run - usize::from(run_base), run_bits);
        self.put_bits(offset, offset_bits);
        self.literals += run;
        self.at += run + length;
    }

    /// Returns the object, with uncoded literals.
    fn object(mut self) -> Vec<u8> {
        let is_of_words = self.kind == Kind::Words;
        if self.at < PAGE_SIZE && !is_of_words {
            self.tokens.push(END);
        }
        self.literals += PAGE_SIZE - self.at;
        let (upper, second): (_, &[u8]) = match self.kind {
            Kind::Others => (0, &[]),
            Kind::Words => (1, &[]),
            Kind::Records => (15, &[8]),
            Kind::Fields => (15, &[0]),
        };
        let header = [&(self.literals as u16 | upper << 12).to_le_bytes(), second].concat();
        let literals: Vec<u8> = (0..self.literals).map(|literal| (literal * 7 % 251) as u8).collect();
        let bits: Vec<u8> = self
            .bits
            .chunks(8)
            .map(|bits| bits.iter().enumerate().map(|(at, &bit)| u8::from(bit) << at).sum())
            .collect();
        let tokens: Vec<u8> = self.tokens.into_iter().rev().collect();
        if is_of_words {
            [&header[..], &(tokens.len() as u16).to_le_bytes(), &tokens, &literals, &bits].concat()
        } else {
            [&header[..], &literals, &bits, &tokens].concat()
        }
    }
}

/// Returns an object of sequences whose offsets are new, *last* or *before*, according to
/// `choices`.
fn object_of_offsets(kind: Kind, choices: &[(u8, u8)]) -> Vec<u8> {
    let mut made = PlainObject::new(&FIXED, kind);
    let shortest = length_min_new(kind as usize);
    made.put(NEAR, 40, shortest, usize::from(choices[0].1));
    for &(choice, offset) in choices {
        let (class, run, length) = match choice {
            0 | 1 => (BEFORE, 0, 7),
            2 | 3 => (LAST, 1, 3),
            _ => (NEAR, 0, shortest),
        };
        if made.at + run + length > PAGE_SIZE {
            break;
        }
        made.put(class, run, length, usize::from(offset));
    }
    made.object()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn pages_come_back(page in pages()) {
        round_trip(&page);
    }

    #[test]
    fn pages_of_words_come_back(seed: u64, uppers in 1..40_u64, lows in 1..300_u64, bytes in 1..9_u64) {
        let mut random = Lcg(seed);
        let words = (0..PAGE_SIZE / 8).map(|_| {
            let low = random.below(lows) << (8 * random.below(bytes));
            low ^ (random.below(uppers) * 0x0101_0001_0000 * random.below(2))
        });
        round_trip(&page_of(words.flat_map(u64::to_le_bytes).collect::<Vec<_>>()));
    }

    #[test]
    fn pages_of_records_come_back(seed: u64, size in 1..40_usize, values in vec(1..300_u64, 40)) {
        let mut random = Lcg(seed);
        // The number of values in each byte of a record; 256 and more mean all.
        let byte = |at: usize| random.below(values[at % size].min(256)) as u8;
        round_trip(&page_of((0..PAGE_SIZE).map(byte).collect::<Vec<_>>()));
    }

    #[test]
    fn pages_of_fields_come_back(seed: u64, fields in 1..6_u64, values in 1..300_u64, gaps in 0..20_u64, varies: bool) {
        round_trip(&table_page(seed, fields, values, gaps, varies));
    }

    #[test]
    fn pages_of_few_values_come_back(seed: u64, values in 1..6_u64) {
        let mut random = Lcg(seed);
        round_trip(&page_of((0..PAGE_SIZE).map(|_| random.below(values) as u8).collect::<Vec<_>>()));
    }

    #[test]
    fn offsets_are_found_again_in_any_order(kind in 0..KINDS, choices in vec((0..5_u8, 1..=40_u8), 20..900)) {
        assert!(decode_everywhere(&object_of_offsets(ALL_KINDS[kind], &choices)).is_some());
    }

    #[test]
    fn literals_of_every_palette_come_back(palette in 0..PALETTES_OF_OTHERS, seed: u64, share_percent in 20..=100_u64) {
        round_trip(&palette_page(palette, seed, share_percent));
    }

    #[test]
    fn any_bytes_decode_alike_or_not_at_all(
        object in vec(any::<u8>(), 0..600),
        literals in 0..60_u16,
        upper in prop_oneof![0..15_u16, Just(15)],
        second in 0..20_u8,
        tail in vec(any::<u8>(), 0..5),
        tables in 0..TABLES.len(),
    ) {
        let mut builds = Builds::new(TABLES[tables].as_ref());
        builds.decode(&object);
        // Few literals, so that the decoder reaches the tokens.
        let mut object = [&(literals | upper << 12).to_le_bytes()[..], &object, &tail].concat();
        builds.decode(&object);
        object.insert(2, second);
        builds.decode(&object);
    }

    #[test]
    fn any_tokens_of_words_decode_alike_or_not_at_all(
        literals in vec(any::<u8>(), 0..60),
        tokens in vec(any::<u8>(), 0..300),
        count in prop_oneof![0..300_u16, Just(1366), Just(1367), any::<u16>()],
        is_coded: bool,
        bits in vec(any::<u8>(), 0..200),
        tables in 0..TABLES.len(),
    ) {
        let header = (literals.len() as u16 | 1 << 12).to_le_bytes();
        let tokens_header = ((count % 0x8000) | (u16::from(is_coded) << 15)).to_le_bytes();
        Builds::new(TABLES[tables].as_ref()).decode(&[&header, &tokens_header, &tokens[..], &literals, &bits].concat());
    }

    #[test]
    fn damaged_objects_decode_alike_or_not_at_all(
        page in pages(),
        damage in vec((any::<Index>(), any::<u8>()), 1..4),
        cut in any::<Index>(),
        tables in 0..TABLES.len(),
    ) {
        let mut builds = Builds::new(TABLES[tables].as_ref());
        let Some(mut object) = builds.round_trip(&page) else { return Ok(()) };
        builds.decode(&object[..cut.index(object.len())]);
        builds.decode(&object[cut.index(object.len())..]);
        for (at, byte) in damage {
            let at = at.index(object.len());
            object[at] ^= byte;
            builds.decode(&object);
        }
    }
}

#[test]
fn every_flipped_bit_and_every_cut_is_survived() {
    for mut builds in [Builds::new(None), Builds::new(TABLES[3].as_ref())] {
        for page in [heap_page(1), text_page(1), table_page(1, 3, 9, 4, true), [7; PAGE_SIZE]] {
            let object = builds.round_trip(&page).unwrap();
            for len in 0..object.len() {
                assert_eq!(builds.decode(&object[..len]), None, "cut to {len}");
            }
            let mut damaged = object;
            for bit in 0..damaged.len() * 8 {
                damaged[bit / 8] ^= 1 << (bit % 8);
                builds.decode(&damaged);
                damaged[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }
}

#[test]
fn runs_and_matches_of_every_length_come_back() {
    for run in 0..300 {
        for length in [3, 4, 5, 16, 17, 32, 33, 64, 65, 300] {
            let mut random = Lcg(run);
            let mut bytes: Vec<u8> = (0..200 + run).map(|_| random.below(256) as u8).collect();
            for repeat in 0..4 {
                let from = 40 * repeat;
                let copy: Vec<u8> = bytes[from..].iter().copied().cycle().take(length).collect();
                bytes.extend((0..run).map(|_| random.below(256) as u8));
                bytes.extend(copy);
            }
            let filled = bytes.len().min(PAGE_SIZE);
            // At the page's start and at its end, where the careful paths are.
            round_trip(&page_of(bytes.iter().copied()));
            let zeros = std::iter::repeat_n(0, PAGE_SIZE - filled);
            round_trip(&page_of(zeros.chain(bytes.into_iter().take(filled)).collect::<Vec<_>>()));
        }
    }
}

/// Sixteen tokens are resolved together: the last of them uses *last*, and all others
/// *before*, up to the end of the group.
#[test]
fn the_longest_chain_of_repeated_offsets_is_followed() {
    for shift in 0..32 {
        for befores in 12..20 {
            let mut choices = vec![(4, 7); shift];
            choices.extend([(4, 3), (4, 31)]);
            for _ in 0..6 {
                choices.extend(vec![(0, 1); befores]);
                choices.push((2, 1));
            }
            assert!(decode_everywhere(&object_of_offsets(Kind::Others, &choices)).is_some());
        }
    }
}

/// Returns an object of one sequence followed by END or the page's end: a run of `run` numbers, and
/// the shortest match at a new offset.
fn object_of_one_match(run: usize, offset: usize) -> Vec<u8> {
    let mut made = PlainObject::new(&FIXED, Kind::Others);
    made.put(FAR, run, SHORTEST, offset);
    made.object()
}

/// Returns the same object with its literals coded in half of their bytes, so that it stays under a
/// page.
fn packed(object: &[u8]) -> Vec<u8> {
    let count = usize::from(u16::from_le_bytes([object[0], object[1]]));
    let bits = vec![0; count.div_ceil(8)];
    let halves = vec![0x21; count.div_ceil(2)];
    [&(count as u16 | 1 << 13).to_le_bytes(), &bits[..], &halves, &object[2 + count..]].concat()
}

#[test]
fn a_match_begins_in_the_page_wherever_it_is() {
    for run in (1..200).chain(3900..=PAGE_SIZE - SHORTEST) {
        for (offset, is_sound) in [(run, true), (run + 1, false), (0, false)] {
            let object = packed(&object_of_one_match(run, offset));
            assert_eq!(decode_everywhere(&object).is_some(), is_sound, "offset {offset} after {run}");
        }
    }
}

#[test]
fn an_object_longer_than_a_page_is_refused() {
    let object = object_of_one_match(PAGE_SIZE - SHORTEST - 1, 9);
    assert_eq!(object.len(), PAGE_SIZE + 1);
    assert_eq!(decode_everywhere(&object), None);
    assert!(decode_everywhere(&packed(&object)).is_some());
}

/// Matches at the last distance after the longest run of their class, and after longer ones, which
/// use the class of a new distance.
#[test]
fn the_last_distance_comes_back_after_runs_around_the_limit() {
    for run in RUN_MAX - 3..RUN_MAX + 4 {
        for length in 3..12 {
            let mut random = Lcg(run as u64);
            let mut bytes: Vec<u8> = (0..300).map(|_| random.below(256) as u8).collect();
            let copy = |bytes: &mut Vec<u8>, distance: usize, length: usize| {
                (0..length).for_each(|_| bytes.push(bytes[bytes.len() - distance]));
            };
            for _ in 0..4 {
                copy(&mut bytes, 90, 9);
                bytes.push(random.below(256) as u8);
                copy(&mut bytes, 200, 9);
                bytes.extend((0..run).map(|_| random.below(256) as u8));
                copy(&mut bytes, 200, length);
                copy(&mut bytes, 90, 9);
            }
            assert!(round_trip(&page_of(bytes)).is_some());
        }
    }
}

#[test]
fn short_distances_repeat_to_the_last_byte() {
    for offset in 1..70_usize {
        for end in (PAGE_SIZE - 80..=PAGE_SIZE).chain([200, 1000]) {
            let mut random = Lcg(offset as u64);
            let pattern: Vec<u8> = (0..offset).map(|_| random.below(256) as u8).collect();
            let repeated = pattern.iter().copied().cycle().take(end);
            let rest = (end..PAGE_SIZE).map(|at| (at * 37 % 251) as u8);
            let object = round_trip(&page_of(repeated.chain(rest).collect::<Vec<_>>()));
            assert!(object.is_some());
        }
    }
}

#[test]
fn an_object_fits_its_bound_or_there_is_none() {
    for page in [heap_page(2), text_page(2), table_page(2, 3, 9, 4, true), random_page(2), [0; PAGE_SIZE]] {
        let mut stream = FoldStream::new(Isa::of_this_cpu());
        let mut whole = [0; PAGE_SIZE];
        let len = stream.compress(&page, &mut whole);
        for bound in 0..=PAGE_SIZE {
            let mut out = vec![0; bound];
            let found = stream.compress(&page, &mut out);
            assert_eq!(found, len.filter(|&len| len <= bound));
            if let Some(len) = found {
                assert_eq!(out[..len], whole[..len]);
            }
        }
        // More room than a page does not make longer objects.
        assert_eq!(stream.compress(&page, &mut [0; 2 * PAGE_SIZE]), len);
    }
}

#[test]
fn earlier_pages_do_not_affect_an_object() {
    let mut used = FoldStream::new(Isa::of_this_cpu());
    for seed in 0..50 {
        let page = if seed % 2 == 0 { heap_page(seed) } else { text_page(seed) };
        let mut out = [0; PAGE_SIZE];
        let len = used.compress(&page, &mut out).unwrap();
        assert_eq!(round_trip(&page).as_deref(), Some(&out[..len]));
        // A truncated object must not be completed from the previous one.
        let mut back = [0; PAGE_SIZE];
        used.decompress(&out[..len], &mut back).unwrap();
        assert!(used.decompress(&out[..len - 1], &mut back).is_err());
        assert!(used.decompress(&out[..len / 2], &mut back).is_err());
    }
}

#[test]
fn a_palette_is_used_where_it_fits() {
    for palette in 0..PALETTES_OF_OTHERS {
        let object = round_trip(&palette_page(palette, 5, 90)).unwrap();
        let used = if object[1] >> 4 == 15 { object[2] & 7 } else { object[1] >> 5 };
        assert_eq!(usize::from(used), palette + 1);
        assert_eq!(decode_everywhere(&object[..object.len() - 1]), None);
    }
}

#[test]
fn coded_literals_stay_in_their_room_and_come_back() {
    let mut random = Lcg(7);
    for count in (0..330).chain([1000, 4095, PAGE_SIZE]) {
        for share in [0, 3, 50, 97, 100] {
            let Palette { first, second } = &PALETTES[count % PALETTES_COUNT];
            let literals: Vec<u8> = (0..count + SLACK)
                .map(|_| match random.below(100) {
                    low if low >= share => random.below(256) as u8,
                    low if low % 2 == 0 => first[random.below(16) as usize],
                    _ => second[random.below(32) as usize],
                })
                .collect();
            let mut objects = Isa::all_of_this_cpu().into_iter().map(|isa| {
                let room = room_to_pack(count);
                let mut out = vec![0xA5; room + 64];
                let len = FIXED.palettes.pack(isa, count % PALETTES_COUNT + 1, &literals, count, &mut out[..room]);
                assert!(out[room..].iter().all(|&byte| byte == 0xA5), "{isa:?} left its room");
                out.truncate(len);
                let mut back = EMPTY;
                let read = FIXED.palettes.unpack(isa, count % PALETTES_COUNT + 1, &out, count, &mut back);
                assert_eq!((read, &back[..count]), (Some(len), &literals[..count]), "{isa:?}");
                out
            });
            let first = objects.next();
            assert!(objects.all(|object| Some(object) == first), "the builds' objects differ");
        }
    }
}

/// In a page of words, no token is END, and there must be neither too few nor too many tokens.
#[test]
fn tokens_of_a_page_of_words_are_as_many_as_it_says() {
    let filled = |literals: usize| {
        let mut made = PlainObject::new(&FIXED, Kind::Words);
        made.put(LAST, 1, 3, 0);
        while made.at + 22 + literals <= PAGE_SIZE {
            made.put(BEFORE, 1, 10, 0);
        }
        made.put(LAST, 1, PAGE_SIZE - made.at - 1 - literals, 0);
        made.object()
    };
    for literals in [0, 1, 9] {
        let object = filled(literals);
        assert!(decode_everywhere(&object).is_some());
        let count = u16::from_le_bytes([object[2], object[3]]);
        let with_count =
            |count: u16, tokens: &[u8], rest: &[u8]| [&object[..2], &count.to_le_bytes(), tokens, rest].concat();
        let (tokens, rest) = object[4..].split_at(usize::from(count));
        assert_eq!(decode_everywhere(&with_count(count - 1, &tokens[1..], rest)), None);
        assert_eq!(decode_everywhere(&with_count(count - 1, tokens, rest)), None);
        for more in [END, tokens[0]] {
            assert_eq!(decode_everywhere(&with_count(count + 1, &[&[more], tokens].concat(), rest)), None);
        }
        assert_eq!(decode_everywhere(&with_count(count, tokens, &[rest, &[0]].concat())), None);
    }
}

#[test]
fn tokens_are_coded_if_that_makes_them_shorter() {
    // Words of this many values alternate; the fewer there are, the fewer the sequences.
    for (values, is_coded) in [(2, false), (509, true)] {
        let words = (0..PAGE_SIZE / 8).map(|at| 0x7f00_0000 + 16 * (at * at % values) as u64);
        let object = round_trip(&page_of(words.flat_map(u64::to_le_bytes).collect::<Vec<_>>())).unwrap();
        assert_eq!((object[1] >> 4 & 1, object[3] >> 7), (1, u8::from(is_coded)), "{values} values");
    }
}

#[test]
fn random_bytes_do_not_compress() {
    assert_eq!(round_trip(&random_page(3)), None);
}

/// FNV-1a.
fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[test]
fn the_format_is_unchanged() {
    // Different objects here mean a different format, which needs a new codec id, unless only the
    // search for matches changed.
    let pages = [
        heap_page(9),
        text_page(9),
        page_of((0..PAGE_SIZE).map(|at| (at / 300) as u8)),
        page_of((0..PAGE_SIZE).map(|at| ((at * at) >> 7) as u8)),
        float_page(9),
        table_page(9, 3, 9, 4, true),
        record_page(9),
        row_page(9),
    ];
    let sums = pages.map(|page| {
        let object = round_trip(&page).unwrap();
        (object.len(), sum(&object))
    });
    let golden = [
        (982, 0xc58b_2b79_b1e8_b17e),
        (1312, 0x4a9a_c5db_70fb_4bcd),
        (51, 0x0382_5afc_9a43_cfcc),
        (4072, 0xa45b_73aa_4e1f_a3d7),
        (2638, 0x4376_e3df_c10c_f865),
        (3251, 0x18ce_6d5e_e574_504f),
        (2176, 0xdde2_f17b_2166_6fc9),
        (2468, 0x6d0e_8423_dfaa_1736),
    ];
    assert_eq!(sums, golden);
    // The example of docs/fold.md.
    let mut page = [0; PAGE_SIZE];
    page[0] = 5;
    page[4092..].copy_from_slice(b"fold");
    let object = [0x06, 0x00, 0x05, 0x00, b'f', b'o', b'l', b'd', 0xca, 0x0f, 0xff, 0x13];
    assert_eq!(round_trip(&page).unwrap(), object);
}

#[test]
fn a_match_reaches_the_first_byte_of_the_dictionary_and_none_before() {
    for tables in &TABLES[2..] {
        let mut builds = Builds::new(tables.as_ref());
        for run in [0, 1, 7, 40, 41, 700] {
            for length in [8, 64, 65, 100, 300, 2000] {
                for (offset, is_sound) in [
                    (PAGE_SIZE, true),
                    (run + length / 2 + 1, true),
                    (REACH / 2 + run, true),
                    (REACH + run - 1, true),
                    (REACH + run, true),
                    (REACH + run + 1, false),
                    (0, false),
                ] {
                    let mut made = PlainObject::new(builds.format(), Kind::Others);
                    made.put(DICT, run, length, offset);
                    // At the same distance from later places, which may reach into the page or
                    // before it.
                    made.put(LAST, 3, 20, 0);
                    made.put(DICT, 0, 9, REACH + 1);
                    made.put(BEFORE, 0, 300, 0);
                    let object = packed(&made.object());
                    assert_eq!(builds.decode(&object).is_some(), is_sound, "offset {offset} after {run}");
                }
            }
        }
    }
}

#[test]
fn pages_of_a_dictionary_become_short() {
    let mut builds = Builds::new(TABLES[3].as_ref());
    let without = Builds::new(None).round_trip(&heap_page(8)).unwrap();
    let with = builds.round_trip(&heap_page(8)).unwrap();
    assert!(with.len() * 20 < without.len(), "{} and {} bytes", with.len(), without.len());
    assert_eq!(Builds::new(None).decode(&with), None);
}

/// A stream switches between tables, and encodes and decodes like a new stream of each.
#[test]
fn a_stream_takes_other_tables() {
    let none = Arc::new(FoldTables::default());
    let tables = |at: usize| TABLES[at].as_ref().unwrap_or(&none);
    for isa in Isa::all_of_this_cpu() {
        let mut stream = FoldDictStream::new(isa, Arc::clone(&none));
        let before = stream.memory_bytes();
        for round in 0..40 {
            let tables = tables(round * 7 / 3 % 4);
            stream.set_tables(&crate::Tables::Fold(Arc::clone(tables)));
            let page = if round % 2 == 0 { heap_page(round as u64) } else { text_page(round as u64) };
            let (mut out, mut expected) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
            let len = stream.compress(&page, &mut out).unwrap();
            let new = FoldDictStream::new(isa, Arc::clone(tables)).compress(&page, &mut expected).unwrap();
            assert_eq!(out[..len], expected[..new], "round {round}");
            if tables.id() == 0 {
                assert_eq!(FoldStream::new(isa).compress(&page, &mut expected), Some(len));
                assert_eq!(out, expected);
            }
            let mut back = [0; PAGE_SIZE];
            stream.decompress(&out[..len], &mut back).unwrap();
            assert_eq!(back, page);
            assert_eq!(stream.memory_bytes(), before);
        }
    }
}

#[test]
fn all_sets_of_tokens_are_tested() {
    for seed in 0..10 {
        let kinds = [text_page(seed), heap_page(seed), float_page(seed)].map(|page| kind_of(&page));
        assert_eq!(kinds, ALL_KINDS[..3]);
    }
    for (page, second) in [(record_page(9), 8), (table_page(9, 3, 9, 4, true), 0), (row_page(9), 0)] {
        let object = round_trip(&page).unwrap();
        assert_eq!((object[1] >> 4, object[2]), (15, second));
    }
}

/// Returns the bytes of a page with `fold` and with liblz4, at most those of a page.
fn bytes_of(stream: &mut FoldStream, page: &Page) -> (usize, usize) {
    let fold = stream.compress(page, &mut [0; PAGE_SIZE]).unwrap_or(PAGE_SIZE);
    (fold, bytes_with_liblz4(page))
}

fn bytes_with_liblz4(page: &Page) -> usize {
    lzzzz::lz4::compress(page, &mut [0; 2 * PAGE_SIZE], 1).unwrap().min(PAGE_SIZE)
}

/// Compresses a page as one of fields, with every build. This is never longer than with liblz4.
fn assert_of_fields_is_not_longer(page: &Page) {
    let lens = Isa::all_of_this_cpu().into_iter().map(|isa| {
        let FoldStream { mut encoder, mut window, .. } = FoldStream::new(isa);
        window[FRONT..][..PAGE_SIZE].copy_from_slice(page);
        let mut out = [0; PAGE_SIZE];
        let len = encoder.encode_of_fields(&FIXED, &window, &mut out);
        if let Some(len) = len {
            assert_eq!(decode_everywhere(&out[..len]).as_deref(), Some(&page[..]));
        }
        len.unwrap_or(PAGE_SIZE)
    });
    let lens: Vec<_> = lens.collect();
    assert!(lens.iter().all(|&len| len == lens[0]), "{lens:?}");
    let lz4 = bytes_with_liblz4(page);
    assert!(lens[0] <= lz4, "{} bytes, not {lz4}", lens[0]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn pages_of_fields_are_never_longer_than_with_liblz4(page in pages()) {
        assert_of_fields_is_not_longer(&page);
    }

    /// Repeats of four bytes or more, some way apart.
    #[test]
    fn pages_of_repeats_are_never_longer_than_with_liblz4(
        seed: u64, lengths in 4..60_u64, gaps in 1..400_u64, values in 1..=256_u64,
    ) {
        let mut random = Lcg(seed);
        let mut bytes = vec![0; 4];
        while bytes.len() < PAGE_SIZE {
            bytes.extend((0..random.below(gaps)).map(|_| random.below(values) as u8));
            let offset = 1 + random.below(bytes.len() as u64) as usize;
            (0..4 + random.below(lengths)).for_each(|_| bytes.push(bytes[bytes.len() - offset]));
        }
        assert_of_fields_is_not_longer(&page_of(bytes));
    }
}

#[test]
fn pages_of_every_kind_are_not_longer_as_pages_of_fields_than_with_liblz4() {
    for seed in 0..20 {
        for page in
            [page_of_any_kind(seed), record_page(seed), row_page(seed), random_page(seed), [seed as u8; PAGE_SIZE]]
        {
            assert_of_fields_is_not_longer(&page);
        }
    }
}

/// Pages of tables in which nothing but short fields repeats, by the number of fields and of their
/// values, and the random bytes between them.
#[test]
fn tables_of_short_fields_are_never_larger_than_with_liblz4() {
    let mut stream = FoldStream::new(Isa::of_this_cpu());
    for (fields, values) in [(1, 4), (1, 16), (1, 60), (1, 200), (2, 8), (2, 40), (2, 100), (5, 8), (5, 40), (5, 100)] {
        for gaps in [2, 4, 6, 9, 13] {
            for varies in [false, true] {
                for seed in 0..12 {
                    let (fold, lz4) = bytes_of(&mut stream, &table_page(seed, fields, values, gaps, varies));
                    assert!(fold <= lz4, "{fields} fields of {values} values, {gaps} between: {fold} bytes, not {lz4}");
                }
            }
        }
    }
}

#[test]
fn rows_of_a_table_space_are_smaller_than_with_liblz4() {
    let mut stream = FoldStream::new(Isa::of_this_cpu());
    let (mut all, mut larger) = ((0, 0), 0);
    for (fold, lz4) in (0..400).map(|seed| bytes_of(&mut stream, &row_page(seed))) {
        all = (all.0 + fold, all.1 + lz4);
        larger += usize::from(fold > lz4);
    }
    assert!(8 * all.0 <= 7 * all.1, "{} bytes, not {}", all.0, all.1);
    // The sample misses few.
    assert!(larger <= 4, "{larger} of 400 pages are larger");
}

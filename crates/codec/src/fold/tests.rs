//! Both builds of the codec against each other, against a decoder written the plain way, and against fixed objects.

use proptest::{collection::vec, prelude::*};

use super::{
    FoldStream, Isa,
    decode::Decoder,
    encode::Encoder,
    literals::PALETTES,
    tables::{CODES, END, FAR, RUN_CODES, RUN_MAX, Source, TOKENS},
};
use crate::{PAGE_SIZE, Page, Stream};

/// The literals and what follows them.
fn plain_literals(header: usize, body: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let count = header & 0xFFF;
    let palette = header >> 13;
    if palette == 0 {
        let (literals, rest) = body.split_at_checked(count)?;
        return Some((literals.to_vec(), rest));
    }
    let (bits, mut rest) = body.split_at_checked(count.div_ceil(8))?;
    let bits: Vec<bool> = bits.iter().flat_map(|byte| (0..8).map(move |at| byte >> at & 1 == 1)).collect();
    if bits[count..].contains(&true) {
        return None;
    }
    let mut literals = Vec::new();
    for group in bits[..count].chunks(64) {
        let whole = group.iter().filter(|&&bit| bit).count();
        let (halves, after) = rest.split_at_checked((group.len() - whole).div_ceil(2))?;
        let (whole, after) = after.split_at_checked(whole)?;
        rest = after;
        let mut halves = halves.iter().flat_map(|byte| [byte & 15, byte >> 4]);
        let mut whole = whole.iter();
        for &is_whole in group {
            literals.push(if is_whole { *whole.next()? } else { PALETTES[palette - 1][usize::from(halves.next()?)] });
        }
    }
    Some((literals, rest))
}

/// `docs/fold.md`, read bit by bit.
fn plain_decode(object: &[u8]) -> Option<Vec<u8>> {
    let (header, body) = object.split_first_chunk::<2>()?;
    let header = usize::from(u16::from_le_bytes(*header));
    if object.len() > PAGE_SIZE {
        return None;
    }
    let (literals, rest) = plain_literals(header, body)?;
    let mut literals = literals.iter();
    let mut tokens = rest.iter().rev();
    let mut bit = 0;
    let mut take = |count: usize| -> Option<usize> {
        let mut value = 0;
        for at in 0..count {
            value |= usize::from(rest.get(bit / 8)? >> (bit % 8) & 1) << at;
            bit += 1;
        }
        Some(value)
    };
    let mut page = Vec::new();
    let (mut last, mut before) = (1, 1);
    while page.len() < PAGE_SIZE {
        let &token = tokens.next()?;
        if token == END {
            break;
        }
        let t = TOKENS[usize::from(token)];
        let length = t.length_base as usize + take(t.length_mask.count_ones() as usize)?;
        let run = t.run_base as usize + take(t.run_mask.count_ones() as usize)?;
        let new = take(t.offset_mask.count_ones() as usize)? << t.offset_mask.trailing_zeros().min(3);
        let source = t.source;
        let offset = match source {
            source if source == Source::Last as u8 => last,
            source if source == Source::Before as u8 => before,
            _ => new,
        };
        if source != Source::Last as u8 {
            (last, before) = (offset, last);
        }
        for _ in 0..run {
            page.push(*literals.next()?);
        }
        if offset == 0 || offset > page.len() || page.len() + length > PAGE_SIZE {
            return None;
        }
        for _ in 0..length {
            page.push(page[page.len() - offset]);
        }
    }
    page.extend(literals);
    (page.len() == PAGE_SIZE && bit.div_ceil(8) == tokens.len()).then_some(page)
}

/// Decodes with every build, and with the plain decoder; all must say the same.
fn decode_everywhere(object: &[u8]) -> Option<Vec<u8>> {
    let plain = plain_decode(object);
    for isa in Isa::all_of_this_cpu() {
        // With guards around the page, which must stay.
        let mut buffer = [0xA5; 64 + PAGE_SIZE + 64];
        let page = buffer[64..].first_chunk_mut().expect("a page");
        let found = Decoder::new(isa).decode(object, page).ok().map(|()| page.to_vec());
        let (front, rest) = buffer.split_at(64);
        assert!(
            [front, &rest[PAGE_SIZE..]].concat().iter().all(|&byte| byte == 0xA5),
            "{isa:?} wrote outside the page"
        );
        assert!(found == plain, "{isa:?} and the plain decoder differ on {object:02x?}");
    }
    plain
}

/// Compresses with every build, which must agree, and decodes again.
fn round_trip(page: &Page) -> Option<Vec<u8>> {
    let mut objects = Isa::all_of_this_cpu().into_iter().map(|isa| {
        let mut out = [0; PAGE_SIZE];
        let len = Encoder::new(isa).encode(page, &mut out)?;
        Some(out[..len].to_vec())
    });
    let object = objects.next()?;
    for other in objects {
        assert!(other == object, "the builds' objects differ");
    }
    if let Some(object) = &object {
        assert!(object.len() < PAGE_SIZE);
        assert_eq!(decode_everywhere(object).as_deref(), Some(&page[..]));
    }
    object
}

fn page_of(bytes: impl IntoIterator<Item = u8>) -> Page {
    let mut page = [0; PAGE_SIZE];
    for (to, byte) in page.iter_mut().zip(bytes) {
        *to = byte;
    }
    page
}

/// Numbers that are the same on every machine and in every year.
struct Lcg(u64);

impl Lcg {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Records of a counter, a type, and two pointers, as a heap has them.
fn heap_page(seed: u64) -> Page {
    let mut random = Lcg(seed);
    let words = (0..PAGE_SIZE / 8).map(|at| match at % 6 {
        0 => 1 + random.below(3),
        1 => 0x7f31_a0c2_8000 + 64 * random.below(4),
        2 => random.below(5),
        3 | 4 => 0x7f31_9c00_0000 + 16 * random.below(1 << 16),
        _ => 0,
    });
    page_of(words.flat_map(u64::to_le_bytes).collect::<Vec<_>>())
}

fn text_page(seed: u64) -> Page {
    let mut random = Lcg(seed);
    let words = ["page", "slot", "the", "of", "compressed", "entry", "run", "lock", "and", "object", "class"];
    let mut text = String::new();
    while text.len() < PAGE_SIZE {
        text += words[random.below(words.len() as u64) as usize];
        text += if random.below(9) == 0 { ".\n" } else { " " };
    }
    page_of(text.into_bytes())
}

fn random_page(seed: u64) -> Page {
    let mut random = Lcg(seed);
    page_of((0..PAGE_SIZE).map(|_| random.below(256) as u8).collect::<Vec<_>>())
}

/// Literals of which a palette has some, and their number.
fn palette_page(palette: usize, seed: u64, share_percent: u64) -> Page {
    let mut random = Lcg(seed);
    let mut page = page_of((0..PAGE_SIZE).map(|_| {
        let any = random.below(256) as u8;
        if random.below(100) < share_percent { PALETTES[palette][usize::from(any & 15)] } else { any }
    }));
    // What is left of the literals varies by the length of this.
    page[..random.below(PAGE_SIZE as u64) as usize].fill(7);
    page
}

/// Pages made of literals and of copies of what lies behind, with every length and distance that a token can say.
fn pages() -> impl Strategy<Value = Page> {
    let literals = vec(any::<u8>(), 0..100).prop_map(|bytes| (bytes, 0, 0));
    let lengths = prop_oneof![8 => 1..20_usize, 3 => 20..200_usize, 1 => 200..4096_usize];
    let offsets = prop_oneof![4 => 1..130_usize, 3 => (1..512_usize).prop_map(|n| 8 * n), 2 => 1..4096_usize];
    let few = vec(any::<u8>(), 0..4);
    let copy = (few, offsets, lengths);
    vec(prop_oneof![1 => literals, 8 => copy], 1..500).prop_map(|parts| {
        let mut page = Vec::new();
        for (literals, offset, length) in parts {
            page.extend(literals);
            for _ in 0..length {
                if page.len() < offset || page.len() >= PAGE_SIZE {
                    break;
                }
                page.push(page[page.len() - offset]);
            }
        }
        page_of(page)
    })
}

/// An object of sequences whose offsets are new ones, *last* or *before*, as `choices` say.
fn object_of_offsets(choices: &[(u8, u8)]) -> Vec<u8> {
    // 40 literals and 5 bytes at a new offset, then one of: 7 bytes at *before*; a literal and 3 at *last*; 5 at a new offset.
    let (mut tokens, mut bits, mut literals, mut at) = (vec![110], "11011".to_owned(), 40, 45);
    let offset_bits = |offset: u8| format!("{offset:07b}").chars().rev().collect::<String>();
    bits += &offset_bits(choices[0].1);
    for &(choice, offset) in choices {
        let (token, run, length) = match choice {
            0 | 1 => (57, 0, 7),
            2 | 3 => (0, 1, 3),
            _ => (83, 0, 5),
        };
        if at + run + length > PAGE_SIZE {
            break;
        }
        tokens.push(token);
        if token == 83 {
            bits += &offset_bits(offset);
        }
        literals += run;
        at += run + length;
    }
    if at < PAGE_SIZE {
        tokens.push(END);
    }
    literals += PAGE_SIZE - at;
    let mut object = (literals as u16).to_le_bytes().to_vec();
    object.extend((0..literals).map(|literal| literal as u8));
    for byte in bits.as_bytes().chunks(8) {
        object.push(byte.iter().enumerate().map(|(at, bit)| (bit - b'0') << at).sum());
    }
    object.extend(tokens.iter().rev());
    object
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
    fn pages_of_few_values_come_back(seed: u64, values in 1..6_u64) {
        let mut random = Lcg(seed);
        round_trip(&page_of((0..PAGE_SIZE).map(|_| random.below(values) as u8).collect::<Vec<_>>()));
    }

    #[test]
    fn offsets_are_found_again_in_any_order(choices in vec((0..5_u8, 1..=40_u8), 20..900)) {
        assert!(decode_everywhere(&object_of_offsets(&choices)).is_some());
    }

    #[test]
    fn literals_of_every_palette_come_back(palette in 0..PALETTES.len(), seed: u64, share_percent in 20..=100_u64) {
        round_trip(&palette_page(palette, seed, share_percent));
    }

    #[test]
    fn any_bytes_decode_alike_or_not_at_all(object in vec(any::<u8>(), 0..600), literals in 0..60_u16, palette in 0..8_u16, tail in vec(any::<u8>(), 0..5)) {
        let mut object = object;
        decode_everywhere(&object);
        // A small number of literals, so that the tokens are reached.
        object.splice(..0, (literals | palette << 13).to_le_bytes());
        object.extend(tail);
        decode_everywhere(&object);
    }

    #[test]
    fn damaged_objects_decode_alike_or_not_at_all(
        page in pages(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let Some(mut object) = round_trip(&page) else { return Ok(()) };
        decode_everywhere(&object[..cut.index(object.len())]);
        decode_everywhere(&object[cut.index(object.len())..]);
        for (at, byte) in damage {
            let at = at.index(object.len());
            object[at] ^= byte;
            decode_everywhere(&object);
        }
    }
}

#[test]
fn every_flipped_bit_and_every_cut_is_survived() {
    for page in [heap_page(1), text_page(1), [7; PAGE_SIZE]] {
        let object = round_trip(&page).unwrap();
        for len in 0..object.len() {
            assert_eq!(decode_everywhere(&object[..len]), None, "cut to {len}");
        }
        let mut damaged = object;
        for bit in 0..damaged.len() * 8 {
            damaged[bit / 8] ^= 1 << (bit % 8);
            decode_everywhere(&damaged);
            damaged[bit / 8] ^= 1 << (bit % 8);
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

/// Sixteen tokens are resolved at once: the last of them asks for *last*, and all others for *before*, as far as the group goes.
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
            assert!(decode_everywhere(&object_of_offsets(&choices)).is_some());
        }
    }
}

/// An object of one sequence that END or the page's end follows: a run of `run` numbers, and a match of five bytes at a new offset.
fn object_of_one_match(run: usize, offset: usize) -> Vec<u8> {
    let [run_token, run_bits, run_base, _] = CODES.runs[FAR][run.min(RUN_CODES - 1)].to_le_bytes();
    let [length_token, length_bits, ..] = CODES.lengths[FAR][5].to_le_bytes();
    assert_eq!(length_bits, 0);
    let bits = (run - usize::from(run_base)) | offset << run_bits;
    let literals = PAGE_SIZE - 5;
    let mut object = (literals as u16).to_le_bytes().to_vec();
    object.extend((0..literals).map(|at| (at * 7 % 251) as u8));
    object.extend(&bits.to_le_bytes()[..(usize::from(run_bits) + 12).div_ceil(8)]);
    if run < literals {
        object.push(END);
    }
    object.push(run_token + length_token);
    object
}

/// Of literals that are coded half of all bytes: an object stays under a page.
fn packed(object: &[u8]) -> Vec<u8> {
    let count = PAGE_SIZE - 5;
    let bits = vec![0; count.div_ceil(8)];
    let halves = vec![0x21; count.div_ceil(2)];
    [&(count as u16 | 1 << 13).to_le_bytes(), &bits[..], &halves, &object[2 + count..]].concat()
}

#[test]
fn a_match_begins_in_the_page_wherever_it_is() {
    for run in (1..200).chain(3900..=PAGE_SIZE - 5) {
        for (offset, is_sound) in [(run, true), (run + 1, false), (0, false)] {
            let object = packed(&object_of_one_match(run, offset));
            assert_eq!(decode_everywhere(&object).is_some(), is_sound, "offset {offset} after {run}");
        }
    }
}

#[test]
fn an_object_longer_than_a_page_is_refused() {
    let object = object_of_one_match(PAGE_SIZE - 5, 9);
    assert_eq!(object.len(), PAGE_SIZE + 1);
    assert_eq!(decode_everywhere(&object), None);
    assert!(decode_everywhere(&packed(&object)).is_some());
}

/// Matches at the last distance after the longest run that its class has, and after longer ones, which take a new distance's.
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
    for page in [heap_page(2), text_page(2), random_page(2), [0; PAGE_SIZE]] {
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
        // More room than a page makes no longer objects.
        assert_eq!(stream.compress(&page, &mut [0; 2 * PAGE_SIZE]), len);
    }
}

#[test]
fn what_came_before_leaves_no_trace() {
    let mut used = FoldStream::new(Isa::of_this_cpu());
    for seed in 0..50 {
        let page = if seed % 2 == 0 { heap_page(seed) } else { text_page(seed) };
        let mut out = [0; PAGE_SIZE];
        let len = used.compress(&page, &mut out).unwrap();
        assert_eq!(round_trip(&page).as_deref(), Some(&out[..len]));
        // A cut object must not be completed from the one before.
        let mut back = [0; PAGE_SIZE];
        used.decompress(&out[..len], &mut back).unwrap();
        assert!(used.decompress(&out[..len - 1], &mut back).is_err());
        assert!(used.decompress(&out[..len / 2], &mut back).is_err());
    }
}

#[test]
fn a_palette_is_used_where_it_fits() {
    for palette in 0..PALETTES.len() {
        let object = round_trip(&palette_page(palette, 5, 90)).unwrap();
        let header = u16::from_le_bytes([object[0], object[1]]);
        assert_eq!(usize::from(header >> 13), palette + 1);
        assert_eq!(decode_everywhere(&object[..object.len() - 1]), None);
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
fn the_format_stays_as_it_is() {
    // Changed objects here mean another format, which needs another codec id, unless only the search for matches changed.
    let pages = [
        heap_page(9),
        text_page(9),
        page_of((0..PAGE_SIZE).map(|at| (at / 300) as u8)),
        page_of((0..PAGE_SIZE).map(|at| ((at * at) >> 7) as u8)),
    ];
    let sums = pages.map(|page| {
        let object = round_trip(&page).unwrap();
        (object.len(), sum(&object))
    });
    let golden = [
        (1087, 0xd682_2381_298b_3019),
        (1355, 0xdca1_ba92_e414_2d25),
        (51, 0xeff9_dbb8_0c77_0406),
        (4090, 0x49ff_4625_20a3_eca3),
    ];
    assert_eq!(sums, golden);
    // The example of docs/fold.md.
    let mut page = [0; PAGE_SIZE];
    page[0] = 5;
    page[4092..].copy_from_slice(b"fold");
    let object = [0x06, 0x10, 0x05, 0x00, b'f', b'o', b'l', b'd', 0xaa, 0x0f, 0xff, 0x1b];
    assert_eq!(round_trip(&page).unwrap(), object);
}

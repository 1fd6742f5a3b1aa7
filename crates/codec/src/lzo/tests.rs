//! Round trips, cross-tests with liblzo2 and the `lzo` crate, and handwritten streams.

use pagefold_oracle::{Liblzo2, Liblzo2Work};
use pagefold_testing::skip;
use proptest::prelude::*;

use super::Lzo;
use crate::{Codec, Corrupt, PAGE_SIZE, Page, Stream};

/// Pages like those in memory: runs, words, text, noise, and repeats at all distances.
fn page() -> impl Strategy<Value = Page> {
    let piece = prop_oneof![
        prop::collection::vec(any::<u8>(), 1..300),
        (any::<u8>(), 1usize..2500).prop_map(|(byte, len)| vec![byte; len]),
        (1usize..2500).prop_map(|len| vec![0; len]),
        (prop::collection::vec(any::<u8>(), 1..40), 2usize..60).prop_map(|(unit, count)| unit.repeat(count)),
    ];
    prop::collection::vec((piece, any::<prop::sample::Index>(), 0usize..200), 1..40).prop_map(|pieces| {
        let mut bytes: Vec<u8> = Vec::new();
        for (piece, from, len) in pieces.iter().cycle() {
            bytes.extend(piece);
            let from = from.index(bytes.len());
            let again = bytes[from..].iter().copied().take(*len).collect::<Vec<_>>();
            bytes.extend(again);
            if bytes.len() >= PAGE_SIZE {
                break;
            }
        }
        *bytes.first_chunk().expect("at least a page")
    })
}

fn stream(codec: Lzo) -> Box<dyn Stream> {
    codec.stream().unwrap()
}

fn compressed(codec: Lzo, page: &Page) -> Vec<u8> {
    let mut out = vec![0; 2 * PAGE_SIZE];
    let len = stream(codec).compress(page, &mut out).expect("two pages are room enough");
    out.truncate(len);
    out
}

fn decompressed(codec: Lzo, object: &[u8]) -> Result<Page, Corrupt> {
    let mut page = [0xee; PAGE_SIZE];
    stream(codec).decompress(object, &mut page).map(|()| page)
}

proptest! {
    #[test]
    fn round_trip(page in page()) {
        for codec in [Lzo::PLAIN, Lzo::RUNS] {
            let object = compressed(codec, &page);
            prop_assert_eq!(decompressed(codec, &object), Ok(page));
            // Exactly enough room is enough; one byte less is not.
            let mut stream = stream(codec);
            prop_assert_eq!(stream.compress(&page, &mut vec![0; object.len()]), Some(object.len()));
            prop_assert_eq!(stream.compress(&page, &mut vec![0; object.len() - 1]), None);
        }
    }

    #[test]
    fn version_1_decodes_version_0(page in page()) {
        prop_assert_eq!(decompressed(Lzo::RUNS, &compressed(Lzo::PLAIN, &page)), Ok(page));
    }

    #[test]
    fn the_lzo_crate_decodes_ours(page in page()) {
        let object = compressed(Lzo::PLAIN, &page);
        let mut back = [0; PAGE_SIZE];
        prop_assert_eq!(lzo::decompress_into(&object, &mut back).map_err(|error| error.to_string()), Ok(PAGE_SIZE));
        prop_assert_eq!(back, page);
    }

    #[test]
    fn liblzo2_decodes_ours_and_we_decode_its(page in page()) {
        let Some(library) = Liblzo2::open() else {
            skip("liblzo2 both ways", "this machine has no liblzo2.so.2");
            return Ok(());
        };
        let mut back = [0; PAGE_SIZE];
        prop_assert_eq!(library.decompress_safe(&compressed(Lzo::PLAIN, &page), &mut back), Ok(PAGE_SIZE));
        prop_assert_eq!(back, page);

        let mut object = vec![0; Liblzo2::bound(PAGE_SIZE)];
        let len = library.compress(&mut Liblzo2Work::default(), &page, &mut object);
        for codec in [Lzo::PLAIN, Lzo::RUNS] {
            prop_assert_eq!(decompressed(codec, &object[..len]), Ok(page));
        }
    }

    /// liblzo2 and our decoder accept the same damaged streams and give the same pages.
    #[test]
    fn liblzo2_judges_damage_alike(page in page(), at: prop::sample::Index, byte: u8, cut: prop::sample::Index) {
        let Some(library) = Liblzo2::open() else {
            skip("liblzo2 on damaged streams", "this machine has no liblzo2.so.2");
            return Ok(());
        };
        let mut object = compressed(Lzo::PLAIN, &page);
        let at = at.index(object.len());
        object[at] = byte;
        object.truncate(object.len().min(cut.index(2 * object.len())));
        let mut theirs = [0; PAGE_SIZE];
        let status = library.decompress_safe(&object, &mut theirs);
        prop_assert_eq!(decompressed(Lzo::PLAIN, &object).ok(), (status == Ok(PAGE_SIZE)).then_some(theirs));
    }

    #[test]
    fn any_bytes_give_a_page_or_an_error(object in prop::collection::vec(any::<u8>(), 0..200)) {
        for codec in [Lzo::PLAIN, Lzo::RUNS] {
            let _ = decompressed(codec, &object);
        }
    }
}

/// 4 literals, then `middle`, then the end.
fn by_hand(header: &[u8], middle: &[u8]) -> Vec<u8> {
    [header, &[17 + 4, 1, 2, 3, 4], middle, &[0x11, 0, 0]].concat()
}

/// A match at distance `distance` that fills the page after its first `done` bytes.
fn rest_of_page(done: usize, distance: usize) -> Vec<u8> {
    let mut bytes = vec![0x20];
    let mut left = PAGE_SIZE - done - 33;
    while left > 255 {
        bytes.push(0);
        left -= 255;
    }
    bytes.extend([left as u8, ((distance - 1) << 2) as u8, ((distance - 1) >> 6) as u8]);
    bytes
}

#[test]
fn a_run_of_zeros_is_read_as_the_kernel_describes_it() {
    // 0001 1LLL, all distance bits, S = 2, X = 3: 3·8 + 5 + 4 = 33 zeros, then two literals.
    let run = [&[0x18 | 5, 0xfe, 0xff, 3, 8, 9][..], &rest_of_page(4 + 33 + 2, 1)].concat();
    let page = decompressed(Lzo::RUNS, &by_hand(&[17, 1], &run)).unwrap();
    assert_eq!(page[..4], [1, 2, 3, 4]);
    assert_eq!(page[4..37], [0; 33]);
    assert_eq!(page[37..39], [8, 9]);
    assert!(page[39..].iter().all(|&byte| byte == 9));
    // In version 0 the same bytes are a match that begins before the page.
    assert!(decompressed(Lzo::PLAIN, &by_hand(&[], &run)).is_err());
}

#[test]
fn short_matches_depend_on_the_literals_before_them() {
    // After 4 literals: 3 bytes at distance 2049 or more, here before the start.
    assert!(decompressed(Lzo::PLAIN, &by_hand(&[], &[0b0000_0000, 0])).is_err());
    // After 1 to 3 literals: 2 bytes at distance H·4 + D + 1 = 3, here "23"; one literal follows.
    let stream = [&[0x40 | 3 << 2 | 1, 0, 7][..], &[0b0000_1001, 0, 5], &rest_of_page(4 + 3 + 1 + 2 + 1, 1)].concat();
    let page = decompressed(Lzo::PLAIN, &by_hand(&[], &stream)).unwrap();
    assert_eq!(page[..11], [1, 2, 3, 4, 1, 2, 3, 7, 2, 3, 5]);
    // The same after two literals and after three.
    for literals in 2..=3 {
        let match_and_literals = [&[0x40 | 3 << 2 | literals, 0][..], &[7, 8, 6][..usize::from(literals)]].concat();
        let done = 4 + 3 + usize::from(literals) + 2 + 1;
        let stream = [&match_and_literals[..], &[0b0000_1001, 0, 5], &rest_of_page(done, 1)].concat();
        let page = decompressed(Lzo::PLAIN, &by_hand(&[], &stream)).unwrap();
        let before = 7 + usize::from(literals);
        assert_eq!(page[before..before + 2], page[before - 3..before - 1]);
        assert_eq!(page[before + 2], 5);
    }
}

/// Matches around the distance at which the shorter form ends.
#[test]
fn distances_around_the_limit_of_the_short_form_come_back() {
    let mut state = 3u64;
    let noise: Page = std::array::from_fn(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    });
    for distance in 2040..2056 {
        let mut page = noise;
        for (at, length) in (2100..PAGE_SIZE - 30).step_by(23).zip((4..14).cycle()) {
            page.copy_within(at - distance..at - distance + length, at);
        }
        for codec in [Lzo::PLAIN, Lzo::RUNS] {
            assert_eq!(decompressed(codec, &compressed(codec, &page)), Ok(page), "distance {distance}");
        }
    }
}

#[test]
fn every_page_that_lacks_or_exceeds_something_is_refused() {
    let page: Page = std::array::from_fn(|at| (at / 7) as u8);
    for codec in [Lzo::PLAIN, Lzo::RUNS] {
        let object = compressed(codec, &page);
        for len in 0..object.len() {
            assert!(decompressed(codec, &object[..len]).is_err(), "cut to {len}");
        }
        assert!(decompressed(codec, &[&object[..], &[0]].concat()).is_err(), "a byte too many");
    }
    assert!(decompressed(Lzo::PLAIN, &by_hand(&[], &rest_of_page(4, 1))).is_ok());
    assert!(decompressed(Lzo::PLAIN, &by_hand(&[], &rest_of_page(5, 1))).is_err(), "a byte short of a page");
    assert!(decompressed(Lzo::PLAIN, &by_hand(&[], &rest_of_page(3, 1))).is_err(), "longer than a page");
    assert!(decompressed(Lzo::PLAIN, &by_hand(&[], &rest_of_page(4, 5))).is_err(), "from before the page");
    // The end, except for the bit that would mean 32768 instead of 16384.
    let mut end = by_hand(&[], &rest_of_page(4, 1));
    let at = end.len() - 3;
    end[at] |= 8;
    assert!(decompressed(Lzo::PLAIN, &end).is_err(), "from far before the page");
    assert!(decompressed(Lzo::RUNS, &[17, 2, 18, 1, 0x11, 0, 0]).is_err(), "a version that does not exist");
}

#[test]
fn a_page_of_noise_takes_the_worst_case_and_no_more() {
    let mut state = 1u64;
    let page: Page = std::array::from_fn(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    });
    for codec in [Lzo::PLAIN, Lzo::RUNS] {
        let object = compressed(codec, &page);
        assert!((PAGE_SIZE..PAGE_SIZE + 32).contains(&object.len()));
        assert_eq!(decompressed(codec, &object), Ok(page));
        assert_eq!(stream(codec).compress(&page, &mut [0; PAGE_SIZE]), None);
    }
}

/// The costliest encoding relative to its bytes: 19 literals, whose length takes two bytes, before
/// a match of 4 that takes three.
#[test]
fn the_costliest_page_stays_within_the_bound() {
    let mut state = 7u64;
    let mut page = [0; PAGE_SIZE];
    for at in 0..PAGE_SIZE {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Far enough back for the longer form.
        let repeats = at >= 2300 && at % 23 >= 19;
        page[at] = if repeats { page[at - 2300] } else { (state >> 56) as u8 };
    }
    for codec in [Lzo::PLAIN, Lzo::RUNS] {
        let object = compressed(codec, &page);
        assert!(object.len() < PAGE_SIZE + PAGE_SIZE / 16, "{} bytes", object.len());
        assert_eq!(decompressed(codec, &object), Ok(page));
    }
}

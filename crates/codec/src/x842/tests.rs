//! Round trips, handwritten streams, and damage.

use proptest::prelude::*;

use super::{X842, bits::BitWriter, crc::crc32};
use crate::{Codec, Corrupt, PAGE_SIZE, Page};

fn compressed(page: &Page) -> Vec<u8> {
    let mut out = vec![0; 2 * PAGE_SIZE];
    let len = X842.stream().unwrap().compress(page, &mut out).expect("two pages are room enough");
    out.truncate(len);
    out
}

fn decompressed(object: &[u8]) -> Result<Page, Corrupt> {
    let mut page = [0xee; PAGE_SIZE];
    X842.stream().unwrap().decompress(object, &mut page).map(|()| page)
}

/// Blocks from a small set, and blocks of shared pairs and fours, so that every template is used.
fn page() -> impl Strategy<Value = Page> {
    let block = prop_oneof![
        (0u64..12).prop_map(|block| block.wrapping_mul(0x0101_0203_0508_0d15)),
        prop::collection::vec(0u16..300, 4)
            .prop_map(|pairs| pairs.iter().fold(0, |block, &pair| block << 16 | u64::from(pair))),
        any::<u64>(),
        Just(0),
    ];
    prop::collection::vec((block, 1usize..80), 8..64).prop_map(|blocks| {
        let all = blocks.iter().cycle().flat_map(|&(block, count)| {
            // Occasional long runs, for the repeat template.
            std::iter::repeat_n(block.to_be_bytes(), if count < 72 { 1 } else { count })
        });
        let bytes: Vec<u8> = all.flatten().take(PAGE_SIZE).collect();
        *bytes.first_chunk().expect("a page")
    })
}

proptest! {
    #[test]
    fn round_trip(page in page()) {
        let object = compressed(&page);
        prop_assert_eq!(object.len() % 8, 0);
        prop_assert_eq!(decompressed(&object), Ok(page));
        let mut stream = X842.stream().unwrap();
        prop_assert_eq!(stream.compress(&page, &mut vec![0; object.len()]), Some(object.len()));
        prop_assert_eq!(stream.compress(&page, &mut vec![0; object.len() - 1]), None);
    }

    #[test]
    fn damage_is_found_by_the_sum_or_changes_nothing(page in page(), at: prop::sample::Index, bit in 0u32..8) {
        let mut object = compressed(&page);
        let at = at.index(object.len());
        object[at] ^= 1 << bit;
        // A changed index may still point at equal bytes.
        let back = decompressed(&object);
        prop_assert!(back.is_err() || back == Ok(page));
        // The padding bits may be missing.
        prop_assert!(at + 8 > object.len() || decompressed(&object[..at]).is_err());
    }

    #[test]
    fn any_bytes_give_a_page_or_an_error(object in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = decompressed(&object);
    }
}

/// Returns a stream of `fields`, followed by the end and the sum of `page`.
fn by_hand(fields: &[(u64, u32)], page: &Page) -> Vec<u8> {
    let mut out = vec![0; 2 * PAGE_SIZE];
    let mut writer = BitWriter::new(&mut out);
    for &(value, bits) in fields {
        writer.write(value, bits);
    }
    writer.write(30, 5);
    writer.write(u64::from(crc32(page)), 32);
    let len = writer.finish().unwrap();
    out.truncate(len);
    out
}

#[test]
fn templates_match_the_table() {
    let mut page = [0; PAGE_SIZE];
    page[..8].copy_from_slice(b"abcdefgh");
    // Template 1·5 + 4: "XY", the pair at index 3 ("gh"); the four at index 1 ("efgh").
    page[8..16].copy_from_slice(b"XYghefgh");
    // Template 2·5 + 3: the pair at index 0, "ZZ"; the pairs at indices 1 and 2.
    page[16..24].copy_from_slice(b"abZZcdef");
    // The block at index 1.
    page[24..32].copy_from_slice(b"XYghefgh");
    // Once more.
    page[32..40].copy_from_slice(b"XYghefgh");
    // 507 blocks of zeros remain: one, 7 repeats of 64, one of 58.
    let pair = |bytes: &[u8; 2]| (u64::from(u16::from_be_bytes(*bytes)), 16);
    let mut fields = vec![(0, 5), (0x6162_6364, 32), (0x6566_6768, 32)];
    fields.extend([(9, 5), pair(b"XY"), (3, 8), (1, 9)]);
    fields.extend([(13, 5), (0, 8), pair(b"ZZ"), (1, 8), (2, 8)]);
    fields.extend([(25, 5), (1, 8), (27, 5), (0, 6), (28, 5)]);
    fields.extend([(27, 5), (63, 6)].repeat(7));
    fields.extend([(27, 5), (57, 6)]);
    let object = by_hand(&fields, &page);
    assert_eq!(decompressed(&object), Ok(page));
    assert_eq!(compressed(&page).len(), object.len(), "the encoder finds these templates too");
}

#[test]
fn a_ring_holds_the_last_bytes_only() {
    // 64 different blocks fill the ring of pairs; index 0 is then block 64's first pair, once that
    // is written.
    let page: Page =
        std::array::from_fn(|at| if at % 8 == 7 { (at / 8) as u8 } else { (at / 8 * 31 / 8) as u8 ^ at as u8 });
    let mut fields = Vec::new();
    for block in page[..65 * 8].as_chunks::<4>().0.chunks(2) {
        fields.extend([
            (0, 5),
            (u64::from(u32::from_be_bytes(block[0])), 32),
            (u64::from(u32::from_be_bytes(block[1])), 32),
        ]);
    }
    let mut expected = [0; PAGE_SIZE];
    expected[..520].copy_from_slice(&page[..520]);
    expected[520..522].copy_from_slice(&page[512..514]);
    expected[522..524].copy_from_slice(&page[8..10]);
    fields.extend([(15, 5), (0, 8), (4, 8), (0, 32), (28, 5)]);
    fields.extend([(27, 5), (63, 6)].repeat(6));
    fields.extend([(27, 5), (60, 6)]);
    assert_eq!(decompressed(&by_hand(&fields, &expected)), Ok(expected));
}

#[test]
fn invalid_objects_are_refused() {
    let zeros = [0; PAGE_SIZE];
    let whole: Vec<(u64, u32)> = [&[(28, 5)][..], &[(27, 5), (63, 6)].repeat(7), &[(27, 5), (62, 6)]].concat();
    assert_eq!(decompressed(&by_hand(&whole, &zeros)), Ok(zeros));
    assert!(decompressed(&by_hand(&whole[2..], &zeros)).is_err(), "a repeat of nothing");
    assert!(decompressed(&by_hand(&[&whole[..], &[(28, 5)]].concat(), &zeros)).is_err(), "a block too many");
    assert!(decompressed(&by_hand(&[(28, 5)], &zeros)).is_err(), "a block alone");
    assert!(decompressed(&by_hand(&[(25, 5), (0, 8)], &zeros)).is_err(), "an index of nothing");
    for template in [26, 31] {
        assert!(decompressed(&by_hand(&[(template, 5)], &zeros)).is_err(), "template {template}");
    }
    // 9 repeats and zeros of 11 and 5 bits, the end and the sum: the rest of the 192 bits is zero.
    let object = by_hand(&whole, &zeros);
    assert_eq!(object.len(), 24);
    for bit in 5 + 8 * 11 + 5 + 32..192 {
        let mut object = object.clone();
        object[bit / 8] ^= 0x80 >> (bit % 8);
        assert!(decompressed(&object).is_err(), "bit {bit} behind the end");
    }
    let mut trailing = object;
    trailing.extend([0; 8]);
    assert!(decompressed(&trailing).is_err(), "8 bytes too many");
}

//! The oracle is a decoder written straight from `docs/lz4dyn.md`, without a bound that is not the format's.

use proptest::{collection::vec, prelude::*};

use super::*;
use crate::{PAGE_SIZE, lz4::Lz4};

/// `None`: malformed.
fn reference(block: &[u8], out_len: usize) -> Option<Vec<u8>> {
    let mut bytes = block.iter().copied();
    let mut out = Vec::new();
    while out.len() < out_len {
        let token = usize::from(bytes.next()?);
        let first = usize::from(bytes.next()?);
        let offset = if first & 1 == 0 { first >> 1 } else { first >> 1 | usize::from(bytes.next()?) << 7 };
        let mut length = |nibble: usize| {
            let mut length = nibble;
            if nibble == 15 {
                loop {
                    let byte = bytes.next()?;
                    length += usize::from(byte);
                    if byte != 255 {
                        break;
                    }
                }
            }
            Some(length)
        };
        let matched = 3 + length(token & 15)?;
        let literals = length(token >> 4)?;
        for _ in 0..literals {
            out.push(bytes.next()?);
        }
        if offset == 0 {
            break;
        }
        for _ in 0..matched {
            out.push(*out.get(out.len().checked_sub(offset)?)?);
            if out.len() > out_len {
                return None;
            }
        }
    }
    (out.len() == out_len && bytes.next().is_none()).then_some(out)
}

fn agrees(block: &[u8], out_len: usize) {
    let mut out = vec![0; out_len];
    let decoded = decode::decode(block, &mut out).is_ok().then_some(out);
    assert!(decoded == reference(block, out_len), "{block:x?}");
}

fn compressed(page: &Page) -> Vec<u8> {
    let mut stream = Lz4Dyn.stream().unwrap();
    let mut out = vec![0; 2 * PAGE_SIZE];
    let len = stream.compress(page, &mut out).unwrap();
    out.truncate(len);
    out
}

fn pages() -> impl Strategy<Value = Box<Page>> {
    let random = vec(any::<u8>(), PAGE_SIZE);
    let few_symbols = vec(prop_oneof![9 => Just(0_u8), 1 => any::<u8>()], PAGE_SIZE);
    let units = (vec(vec(any::<u8>(), 1..60), 1..20), vec(any::<prop::sample::Index>(), PAGE_SIZE))
        .prop_map(|(units, picks)| picks.iter().flat_map(|pick| pick.get(&units).clone()).take(PAGE_SIZE).collect());
    let pointers = (any::<u64>(), vec(0_u64..1 << 12, PAGE_SIZE / 8))
        .prop_map(|(base, steps)| steps.iter().flat_map(|step| (base ^ step << 4).to_le_bytes()).collect());
    prop_oneof![random, few_symbols, units, pointers]
        .prop_map(|bytes: Vec<u8>| Box::new(bytes.try_into().expect("a page of bytes")))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn pages_come_back_and_every_bound_is_kept(page in pages(), cap in any::<prop::sample::Index>()) {
        let block = compressed(&page);
        prop_assert!(reference(&block, PAGE_SIZE).is_some_and(|bytes| bytes == page[..]));
        let mut stream = Lz4Dyn.stream().unwrap();
        let mut back = [0xA5; PAGE_SIZE];
        stream.decompress(&block, &mut back).unwrap();
        prop_assert!(back == *page);
        for cap in [cap.index(block.len()), block.len() - 1, block.len(), block.len() + 1, block.len() + 40] {
            let mut out = vec![0; cap];
            match stream.compress(&page, &mut out) {
                Some(len) => prop_assert_eq!(&out[..len], &block),
                None => prop_assert!(cap < block.len()),
            }
        }
    }

    #[test]
    fn damaged_blocks_are_read_as_the_format_says(
        page in pages(),
        flips in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut block = compressed(&page);
        for (at, byte) in flips {
            let at = at.index(block.len());
            block[at] = byte;
        }
        agrees(&block, PAGE_SIZE);
        block.truncate(cut.index(block.len() + 1));
        agrees(&block, PAGE_SIZE);
    }

    #[test]
    fn any_bytes_are_read_as_the_format_says(block in vec(any::<u8>(), 0..300), out_len in 0_usize..900) {
        agrees(&block, out_len);
    }
}

#[test]
fn the_example_of_the_format_description() {
    let block = [0x46, 0x08, b'a', b'b', b'c', b'd', 0x10, 0x91, 0x01, b'!', 0x20, 0x00, b'x', b'y'];
    let mut out = b"abcdabcdabcda".to_vec();
    assert_eq!(out.len(), 13);
    assert_eq!(reference(&block[..6], 13).as_deref(), Some(&out[..]));
    agrees(&block[..6], 13);
    // The second sequence reaches 200 back, which is before the output.
    agrees(&block, 20);
    assert_eq!(reference(&block, 20), None);
    // After 200 bytes it does not.
    let mut long = vec![0xFA, 0x02, 200 - 13 - 15];
    long.extend((0..187).map(|at| at as u8));
    long.extend(&block[6..]);
    out = (0..187).map(|at| at as u8).collect();
    out.extend([186; 13]);
    out.push(b'!');
    out.extend_from_within(1..4);
    out.extend(b"xy");
    let mut got = vec![0; out.len()];
    decode::decode(&long, &mut got).unwrap();
    assert_eq!(got, out);
    agrees(&long, out.len());
}

#[test]
fn offsets_around_127_take_one_byte_or_two() {
    for distance in [1, 2, 7, 8, 126, 127, 128, 129, 255, 256, 1000] {
        let mut page: Page = std::array::from_fn(|at| (at * at / 7 + at / 251 * 31) as u8);
        for at in 2000..2030 {
            page[at] = page[at - distance];
        }
        let block = compressed(&page);
        assert_eq!(reference(&block, PAGE_SIZE).as_deref(), Some(&page[..]));
    }
}

#[test]
fn pages_of_pointers_are_smaller_than_with_lz4() {
    let mut page = [0; PAGE_SIZE];
    for (at, word) in page.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *word = (0x7F12_3456_0000_u64 + (at as u64 * 48) % 4093).to_le_bytes();
    }
    let mut out = [0; PAGE_SIZE];
    let lz4 = Lz4.stream().unwrap().compress(&page, &mut out).unwrap();
    assert!(compressed(&page).len() * 10 < lz4 * 9);
}

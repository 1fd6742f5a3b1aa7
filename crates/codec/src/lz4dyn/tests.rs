//! The oracle is a decoder written directly from `docs/lz4dyn.md`, with no limits but the format's.

use proptest::{collection::vec, prelude::*};

use super::*;
use crate::{PAGE_SIZE, lz4::Lz4};

/// Returns `None` if the block is malformed.
fn reference(block: &[u8], out_len: usize) -> Option<Vec<u8>> {
    let mut bytes = block.iter().copied();
    let mut out = Vec::new();
    let mut long = true;
    while out.len() < out_len {
        let token = usize::from(bytes.next()?);
        let first = usize::from(bytes.next()?);
        let offset = if long { first >> 1 | usize::from(bytes.next()?) << 7 } else { first >> 1 };
        long = first & 1 == 1;
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
        let matched = 4 + length(token & 15)?;
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
    // Guards around the output must not change.
    let mut buffer = vec![0xC3; 64 + out_len + 64];
    let is_sound = decode::decode(block, &mut buffer[64..64 + out_len]).is_ok();
    let (front, rest) = buffer.split_at(64);
    let (out, back) = rest.split_at(out_len);
    assert!([front, back].concat().iter().all(|&byte| byte == 0xC3), "written outside the output");
    assert!(is_sound.then_some(out) == reference(block, out_len).as_deref(), "{block:x?}");
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
    let block = [0x45, 0x08, 0x00, b'a', b'b', b'c', b'd', 0x10, 0x0A, b'!', 0x20, 0x00, b'x', b'y'];
    let want = b"abcdabcdabcda!bcdaxy";
    assert_eq!(reference(&block, want.len()).as_deref(), Some(&want[..]));
    agrees(&block, want.len());
    for out_len in 0..40 {
        agrees(&block, out_len);
    }
}

/// Handwritten blocks with matches of every offset and length near the limits.
#[test]
fn every_offset_and_length() {
    for offset in (1..40).chain([126, 127, 128, 129, 255, 256]) {
        for code in 0..60_u8 {
            let mut block = vec![0xF0 | code.min(15), (offset << 1) as u8, (offset >> 7) as u8];
            if code >= 15 {
                block.push(code - 15);
            }
            block.extend([255, 300_u16.wrapping_sub(15 + 255) as u8]);
            block.extend((0..300_u16).map(|at| (at * 7 % 251) as u8));
            block.extend([0x30, 0, 1, 2, 3]);
            let out_len = 300 + 4 + usize::from(code) + 3;
            assert!(reference(&block, out_len).is_some());
            agrees(&block, out_len);
            // A second sequence with 64 literals puts the first far from the ends.
            block.truncate(block.len() - 5);
            block.extend([0xF0, 0, 64 - 15]);
            block.extend([9; 64]);
            assert!(reference(&block, out_len - 3 + 64).is_some());
            agrees(&block, out_len - 3 + 64);
        }
    }
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

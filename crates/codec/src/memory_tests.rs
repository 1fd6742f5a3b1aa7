//! Exercises all raw-pointer code of our codecs, with few pages and no library to compare with, so
//! that an interpreter that checks every access can run it: `scripts/miri`.

use std::{
    ops::Range,
    sync::{Arc, LazyLock},
};

use crate::{
    Codec, Corrupt, Dictionary, FoldDict, FoldTables, Lz4Dict, Lz4Tables, PAGE_SIZE, Page, by_name,
    lz4::{Lz4Encoder, Matches, compress_bound, decompress, decompress_in_place, decompress_partial, in_place_margin},
};

/// Returns pseudo-random numbers, the same on every run.
fn numbers() -> impl Iterator<Item = u32> {
    std::iter::successors(Some(0x2545_F491_u32), |&state| {
        let state = state ^ state << 13;
        let state = state ^ state >> 17;
        Some(state ^ state << 5)
    })
}

/// Text, code, words, numbers without a pattern, and long runs: one page each. For an interpreter,
/// the first three repeat a shorter content: one long match, which takes it no time.
pub(crate) static PAGES: LazyLock<[Page; 5]> = LazyLock::new(|| {
    const CONTENT: usize = if cfg!(miri) { 700 } else { PAGE_SIZE };
    let page = |bytes: Vec<u8>| std::array::from_fn(|at| bytes[at % bytes.len()]);
    let words = ["the", "store", "keeps", "a page", "of text,", "and", "its", "length"];
    let text = numbers().flat_map(|number| [words[number as usize % 8].as_bytes(), b" "].concat());
    let code = numbers().flat_map(|number| match number % 3 {
        0 => vec![0x48, 0x8b, (number >> 8) as u8 & 0x3f, 0, 0],
        1 => vec![0xe8, (number >> 8) as u8, (number >> 16) as u8, 0xff, 0xff],
        _ => vec![0x0f, 0x1f, 0x40],
    });
    let pointers = numbers().flat_map(|number| (0x7f3a_0000_0000 + u64::from(number % 512) * 16).to_le_bytes());
    let noise = numbers().flat_map(u32::to_le_bytes);
    let runs = numbers().flat_map(|number| vec![(number >> 8) as u8; 1 + number as usize % 300]);
    [
        page(text.take(CONTENT).collect()),
        page(code.take(CONTENT).collect()),
        page(pointers.take(CONTENT).collect()),
        page(noise.take(PAGE_SIZE).collect()),
        page(runs.take(PAGE_SIZE).collect()),
    ]
});

/// Checks that pages round-trip and that damage to an object stays inside the buffers.
fn check(name: &str) {
    check_codec(&*by_name(name).unwrap());
}

fn check_codec(codec: &dyn Codec) {
    check_pages(codec, &*PAGES);
}

fn check_pages(codec: &dyn Codec, pages: &[Page]) {
    let mut stream = codec.stream().unwrap();
    for page in pages {
        // On the heap with its exact size, so that any access past it is detected.
        let mut roomy = vec![0; 2 * PAGE_SIZE].into_boxed_slice();
        // Some codecs return `None` for a page that does not shrink.
        let Some(len) = stream.compress(page, &mut roomy) else { continue };
        let mut exact = vec![0; len].into_boxed_slice();
        stream.compress(page, &mut exact);
        assert_eq!(stream.compress(page, &mut exact[..len / 2]), None);
        let mut back = Box::new([0; PAGE_SIZE]);
        let mut object = roomy[..len].to_vec().into_boxed_slice();
        stream.decompress(&object, &mut back).unwrap();
        assert!(*back == *page, "{}", codec.name());
        for number in numbers().take(2) {
            object[number as usize % len] ^= 1 << (number >> 29);
            let _: Result<(), Corrupt> = stream.decompress(&object, &mut back);
        }
        let cut = object[..len * 2 / 3].to_vec().into_boxed_slice();
        let _: Result<(), Corrupt> = stream.decompress(&cut, &mut back);
    }
}

#[test]
fn lz4() {
    check("lz4");
}

#[test]
fn lz4_with_a_dictionary() {
    // Parts of two pages, one of minimum length, and one of maximum length, which takes an
    // interpreter minutes.
    let long = if cfg!(miri) { PAGES[1].to_vec() } else { PAGES.concat().repeat(3) };
    for dictionary in [[&PAGES[0][900..1500], &PAGES[2][..777]].concat(), vec![7], long] {
        check_codec(&Lz4Dict::with_tables(Arc::new(Lz4Tables::new(Dictionary::new(dictionary)))));
    }
}

#[test]
fn fold_with_a_dictionary() {
    let long: Vec<u8> = PAGES.concat().into_iter().cycle().take(60 << 10).collect();
    for dictionary in
        [[&PAGES[0][900..1500], &PAGES[2][..777]].concat(), vec![7], if cfg!(miri) { PAGES[1].to_vec() } else { long }]
    {
        check_codec(&FoldDict::with_tables(Arc::new(FoldTables::of(dictionary))));
    }
}

#[test]
fn lz4dyn() {
    check("lz4dyn");
}

#[test]
fn fold() {
    check("fold");
}

#[test]
fn pleat() {
    check("pleat");
    // Literals that get a separate code in the object.
    let mut rare = [0; PAGE_SIZE];
    let bytes = numbers().map(|number| 0x90 + (number % 9 * (number >> 8) % 9) as u8);
    rare[..600].iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
    check_pages(&*by_name("pleat").unwrap(), &[rare]);
}

#[test]
fn lzo() {
    check("lzo-rle");
}

#[test]
fn x842() {
    check("842");
}

/// Returns a buffer that ends with `block` and has `margin` bytes more than the output, and the
/// block's range.
fn tail(block: &[u8], out_len: usize, margin: usize) -> (Box<[u8]>, Range<usize>) {
    let len = (out_len + margin).max(block.len());
    let mut buffer = vec![0; len - block.len()];
    buffer.extend_from_slice(block);
    (buffer.into_boxed_slice(), len - block.len()..len)
}

#[test]
fn lz4_blocks_in_place_in_part_and_filled() {
    let mut encoder = Lz4Encoder::new();
    for page in &*PAGES {
        for input in [&page[..], &page[..100]] {
            let mut block = vec![0; compress_bound(input.len())];
            let len = encoder.compress(input, &mut block).unwrap();
            block.truncate(len);
            let (mut buffer, range) = tail(&block, input.len(), in_place_margin(len));
            decompress_in_place(&mut buffer, range, input.len()).unwrap();
            assert_eq!(buffer[..input.len()], *input);
            for margin in [0, 21] {
                let (mut buffer, range) = tail(&block, input.len(), margin);
                if decompress_in_place(&mut buffer, range, input.len()).is_ok() {
                    assert_eq!(buffer[..input.len()], *input);
                }
            }
            let mut front = vec![0; input.len() / 2].into_boxed_slice();
            assert_eq!(decompress_partial(&block, &mut front), Ok(front.len()));
            assert_eq!(*front, input[..input.len() / 2]);

            let mut filled = vec![0; len * 2 / 3].into_boxed_slice();
            let (taken, len) = encoder.compress_fill(input, &mut filled, Matches::Short).unwrap();
            let mut back = vec![0; taken].into_boxed_slice();
            decompress(&filled[..len], &mut back).unwrap();
            assert_eq!(*back, input[..taken]);
        }
    }
}

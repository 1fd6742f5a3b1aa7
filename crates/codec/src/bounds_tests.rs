//! Writes stay inside the output, whatever its length: tests every codec, with guards around the
//! output.

use crate::{NAMES, PAGE_SIZE, Page, by_name};

const GUARD: u8 = 0xC3;
const GUARDS: usize = 256;

/// No object of a page is longer than this (`docs/codecs.md`).
const LONGEST: usize = 4424;

/// Pages that push an encoder to its limits: noise, matches of the shortest length everywhere, one
/// hash for many places, runs of literals and lengths around those that take another byte, and
/// zeros.
fn pages() -> Vec<Page> {
    let mut state = 5_u64;
    let mut noise = || -> Page {
        std::array::from_fn(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
    };
    let mut pages = vec![noise(), [0; PAGE_SIZE], std::array::from_fn(|at| (at % 7) as u8)];
    // Matches of four at offsets of two bytes, with a literal between them.
    let mut short = noise();
    for at in (300..PAGE_SIZE - 4).step_by(5) {
        short.copy_within(at - 300..at - 296, at);
    }
    pages.push(short);
    // The same four bytes repeatedly, followed by different bytes each time.
    let mut crowded = noise();
    for at in (0..PAGE_SIZE).step_by(8) {
        crowded[at..at + 4].copy_from_slice(b"hash");
    }
    pages.push(crowded);
    // Literals and matches of 14, 15, 16 and of 269, 270, 271 bytes.
    let mut lengths = noise();
    let mut at = 600;
    for length in [13, 14, 15, 16, 17, 18, 19, 20, 269, 270, 271, 273, 274, 14, 15, 19] {
        at += length;
        lengths.copy_within(at - 590..at - 590 + length, at);
        at += length;
    }
    pages.push(lengths);
    pages
}

#[test]
fn every_codec_keeps_to_every_output() {
    for &name in NAMES.iter().filter(|name| !name.contains("LEVEL")) {
        let mut stream = by_name(name).unwrap().stream().unwrap();
        // The C libraries check themselves, and take longer.
        let is_ours = !["zstd", "deflate", "lz4hc"].iter().any(|other| name.starts_with(other));
        for (number, page) in pages().iter().enumerate() {
            let mut roomy = [0; 2 * PAGE_SIZE];
            let len = stream.compress(page, &mut roomy);
            assert!(len.is_none_or(|len| len <= LONGEST));
            for bound in (0..=LONGEST).step_by(if is_ours { 1 } else { 61 }) {
                let mut buffer = [GUARD; GUARDS + LONGEST + GUARDS];
                let found = stream.compress(page, &mut buffer[GUARDS..GUARDS + bound]);
                let (front, rest) = buffer.split_at(GUARDS);
                let (out, back) = rest.split_at(bound);
                let guards = front.iter().chain(back);
                assert!(
                    guards.copied().all(|byte| byte == GUARD),
                    "{name} writes outside {bound} bytes, page {number}"
                );
                if is_ours {
                    assert_eq!(found, len.filter(|&len| len <= bound), "{name} in {bound} bytes, page {number}");
                }
                assert!(found.is_none_or(|found| out[..found] == roomy[..found]), "{name} in {bound} bytes");
            }
        }
    }
}

//! A fixed-size output holds as much of the input as reported, and decodes to it. Tests the codecs
//! of LZ4's format.
#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use lzzzz::lz4;
use pagefold_codec::{Lz4Encoder, Lz4Hc, Lz4Matches, PAGE_SIZE};
use pagefold_fuzz::page;

thread_local! {
    static ENCODER: RefCell<Lz4Encoder> = RefCell::new(Lz4Encoder::new());
}

fuzz_target!(|data: &[u8]| {
    let Some((sizes, data)) = data.split_first_chunk::<4>() else { return };
    let room = 16 + usize::from(u16::from_le_bytes([sizes[0], sizes[1]])) % PAGE_SIZE;
    let input = page(data).repeat(1 + usize::from(sizes[2] % 20));
    let mut out = vec![0x5a; room].into_boxed_slice();
    let (taken, len) = match i32::from(sizes[3] % 13) {
        0 => ENCODER.with_borrow_mut(|encoder| {
            use Lz4Matches::{Long, LongMost, Longest, Most, Short};
            let matches = [Most, Short, Long, LongMost, Longest][usize::from(sizes[2] >> 5) % 5];
            let (taken, len) = encoder.compress_fill(&input, &mut out, matches).expect("room for something");
            // The output is full, except for one byte if no block can have its exact length.
            assert!(
                taken == input.len() || len + 1 >= room,
                "{len} of {room} bytes filled by {taken} of {}",
                input.len()
            );
            (taken, len)
        }),
        level => {
            let codec = Lz4Hc::new(level).expect("a level that exists");
            let (taken, len) = codec.compress_fill(&input, &mut out).expect("16 bytes hold something");
            assert!(
                taken == input.len() || len + 16 >= room,
                "{len} of {room} bytes filled by {taken} of {}",
                input.len()
            );
            (taken, len)
        }
    };
    let mut back = vec![0; taken].into_boxed_slice();
    assert_eq!(lz4::decompress(&out[..len], &mut back).expect("a block"), taken);
    assert!(*back == input[..taken], "decoded input differs");
});

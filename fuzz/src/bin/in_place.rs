//! A block at the end of the buffer in which it is decoded gives the same output as in a separate
//! one. Any bytes with any margin give an error or that output; a valid block with the documented
//! margin always gives that output.
#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use pagefold_codec::{
    Lz4Encoder, PAGE_SIZE,
    lz4::{compress_bound, decompress, decompress_in_place, in_place_margin},
};
use pagefold_fuzz::page;

thread_local! {
    static ENCODER: RefCell<Lz4Encoder> = RefCell::new(Lz4Encoder::new());
}

/// Returns the output of `block`, which ends `margin` bytes after the output's end, or `None` after
/// an error. The buffer has exactly the size needed, so that a sanitizer detects any access past
/// it.
fn in_place(block: &[u8], out_len: usize, margin: usize) -> Option<Vec<u8>> {
    let len = (out_len + margin).max(block.len());
    let mut buffer = vec![0x5a; len].into_boxed_slice();
    let start = len - block.len();
    buffer[start..].copy_from_slice(block);
    decompress_in_place(&mut buffer, start..len, out_len).ok()?;
    Some(buffer[..out_len].to_vec())
}

fuzz_target!(|data: &[u8]| {
    let Some((&[mode, margin, low, high], data)) = data.split_first_chunk() else { return };
    let (block, out_len) = if mode % 2 == 0 {
        (data.to_vec(), usize::from(u16::from_le_bytes([low, high])) % (4 * PAGE_SIZE))
    } else {
        let mut input = page(data).repeat(1 + usize::from(high % 4));
        input.truncate(input.len() - usize::from(low));
        let mut block = vec![0; compress_bound(input.len())];
        let len = ENCODER.with_borrow_mut(|encoder| encoder.compress(&input, &mut block)).expect("the bound is room");
        block.truncate(len);
        assert_eq!(in_place(&block, input.len(), in_place_margin(len)).as_deref(), Some(&input[..]));
        (block, input.len())
    };
    let mut elsewhere = vec![0xa5; out_len].into_boxed_slice();
    let sound = decompress(&block, &mut elsewhere).is_ok();
    match in_place(&block, out_len, usize::from(margin)) {
        Some(output) => assert!(sound && output == *elsewhere, "in place a block is read as something else"),
        None => assert!(!sound || usize::from(margin) < in_place_margin(block.len()), "the margin is not enough"),
    }
});

//! Builds an image of a tree, with options from the input, and reads it back: the content must be
//! equal, whatever the number of threads.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagefold_roundtrip::{Case, Size, round_trip};

fuzz_target!(|input: &[u8]| {
    let case = Case::from_bytes(input, Size::Tiny);
    if let Err(why) = round_trip(&case) {
        panic!("{why}\n{case}");
    }
});

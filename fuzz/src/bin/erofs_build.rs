//! A tree and options from the input: what is built of them is read back and holds the same,
//! whatever the threads.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagefold_roundtrip::{Case, Size, round_trip};

fuzz_target!(|input: &[u8]| {
    let case = Case::from_bytes(input, Size::Tiny);
    if let Err(why) = round_trip(&case) {
        panic!("{why}\n{case}");
    }
});

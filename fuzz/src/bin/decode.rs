//! Any bytes into a decoder give a page or an error; which of them, and which page, depends on the bytes alone, and on the tables
//! that the stream is set to.
#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use pagefold_codec::{PAGE_SIZE, Stream, by_name};
use pagefold_fuzz::CODEC;

thread_local! {
    static STREAM: RefCell<Box<dyn Stream>> = RefCell::new(CODEC.stream().expect("memory for a stream"));
}

fuzz_target!(|object: &[u8]| {
    STREAM.with_borrow_mut(|stream| {
        let (mut one, mut other) = (Box::new([0; PAGE_SIZE]), Box::new([0xff; PAGE_SIZE]));
        let first = stream.decompress(object, &mut one);
        if let Some(own) = CODEC.tables() {
            let untrained = by_name(&CODEC.name()).expect("a codec's name");
            stream.set_tables(&untrained.tables().expect("tables"));
            let _ = stream.decompress(object, &mut other);
            stream.set_tables(&own);
            other.fill(0xff);
        }
        let second = stream.decompress(object, &mut other);
        assert_eq!(first, second, "the same bytes, another answer");
        if first.is_ok() {
            assert!(one == other, "bytes of the page that were never written");
        }
    });
});

//! Any bytes give a decoder's page or an error. Which of them, and which page, depends only on the
//! bytes and on the stream's tables, not on the CPU's build of the decoder.
#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use pagefold_codec::{PAGE_SIZE, Stream, by_name, streams_of_every_build};
use pagefold_fuzz::CODEC;

thread_local! {
    static STREAMS: RefCell<Vec<Box<dyn Stream>>> =
        RefCell::new(streams_of_every_build(&**CODEC).expect("memory for streams"));
}

fuzz_target!(|object: &[u8]| {
    STREAMS.with_borrow_mut(|streams| {
        let (mut one, mut other) = (Box::new([0; PAGE_SIZE]), Box::new([0xff; PAGE_SIZE]));
        let first = streams[0].decompress(object, &mut one);
        for stream in streams {
            if let Some(own) = CODEC.tables() {
                let untrained = by_name(&CODEC.name()).expect("a codec's name");
                stream.set_tables(&untrained.tables().expect("tables"));
                let _ = stream.decompress(object, &mut other);
                stream.set_tables(&own);
            }
            other.fill(0xff);
            assert_eq!(stream.decompress(object, &mut other), first, "same bytes, different result");
            if first.is_ok() {
                assert!(one == other, "different page, or bytes never written");
            }
        }
    });
});

//! Every page round-trips, nothing is written past the object, and the object depends only on the
//! page, not on the CPU's build of the encoder.
#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use pagefold_codec::{CodecId, PAGE_SIZE, Stream, streams_of_every_build};
use pagefold_fuzz::{CODEC, page};

thread_local! {
    static STREAMS: RefCell<Vec<Box<dyn Stream>>> =
        RefCell::new(streams_of_every_build(&**CODEC).expect("memory for streams"));
}

fuzz_target!(|data: &[u8]| {
    let Some((room, data)) = data.split_first_chunk() else { return };
    let room = usize::from(u16::from_le_bytes(*room)) % (PAGE_SIZE + PAGE_SIZE / 4);
    let page = page(data);
    STREAMS.with_borrow_mut(|streams| {
        // On the heap with its exact size, so that a sanitizer detects any access past it.
        let mut out = vec![0x5a; room].into_boxed_slice();
        let fitted = streams[0].compress(&page, &mut out);
        let mut back = [0; PAGE_SIZE];
        for stream in streams {
            let mut again = vec![0xa5; room].into_boxed_slice();
            assert_eq!(stream.compress(&page, &mut again), fitted, "same page, different length");
            let mut roomy = vec![0; 2 * PAGE_SIZE];
            let Some(len) = stream.compress(&page, &mut roomy) else {
                // `fold`'s object of a page is shorter than the page, or there is none.
                assert!(fitted.is_none() && CODEC.id() == CodecId::Fold, "two pages are room enough");
                continue;
            };
            stream.decompress(&roomy[..len], &mut back).expect("what was just compressed");
            assert!(back == page, "decoded page differs");
            if let Some(len) = fitted {
                assert_eq!(out[..len], again[..len], "same page, different object");
                back.fill(0);
                stream.decompress(&out[..len], &mut back).expect("what was just compressed");
                assert!(back == page, "decoded page differs with a small output");
            }
        }
    });
});

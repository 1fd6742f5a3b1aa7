//! Cluster codecs. Any bytes give a decoder's output or an error, which depend only on the bytes,
//! and decoding a prefix gives the prefix of the whole. An encoder's cluster holds as much of the
//! input as reported and depends only on the input.
#![no_main]

use std::{cell::RefCell, sync::LazyLock};

use libfuzzer_sys::fuzz_target;
use pagefold_codec::{
    PAGE_SIZE,
    cluster::{ClusterCodec, ClusterDecoder, ClusterEncoder, DecodeLimits, Portion},
};
use pagefold_fuzz::{cluster_codec, page};

static CODEC: LazyLock<ClusterCodec> =
    LazyLock::new(|| cluster_codec(&std::env::var("PAGEFOLD_CODEC").expect("PAGEFOLD_CODEC names the codec to fuzz")));

const LIMITS: DecodeLimits = DecodeLimits { dict_bytes: 1 << 16, max_content_bytes: 1 << 20 };

thread_local! {
    static ENCODER: RefCell<Box<dyn ClusterEncoder>> = RefCell::new(CODEC.encoder().expect("an encoder"));
    static DECODER: RefCell<ClusterDecoder> = RefCell::default();
}

/// Returns the first `len` bytes of the content of `cluster`, decoded in a buffer of exactly this
/// size that was filled with `filler`.
fn decode(cluster: &[u8], len: usize, extent: Portion, filler: u8) -> Option<Box<[u8]>> {
    let mut out = vec![filler; len].into_boxed_slice();
    let done = DECODER.with_borrow_mut(|decoder| decoder.decode(CODEC.format(), cluster, &mut out, extent, LIMITS));
    done.ok().map(|()| out)
}

fuzz_target!(|data: &[u8]| {
    let Some((&[mode, times, low, high], data)) = data.split_first_chunk() else { return };
    let len = usize::from(u16::from_le_bytes([low, high])) % (4 * PAGE_SIZE);
    if mode % 2 == 0 {
        let whole = decode(data, len, Portion::Whole, 0x5a);
        assert!(whole == decode(data, len, Portion::Whole, 0xa5), "same bytes, different result");
        let front = decode(data, len / 2, Portion::Prefix, 0x5a);
        assert!(front == decode(data, len / 2, Portion::Prefix, 0xa5), "same bytes, different prefix");
        if let Some(whole) = whole {
            assert!(front.as_deref() == Some(&whole[..len / 2]), "the prefix differs from the whole");
        }
        return;
    }
    let input = page(data).repeat(1 + usize::from(times % 20));
    let (mut cluster, mut again) = (vec![0x5a; len].into_boxed_slice(), vec![0xa5; len].into_boxed_slice());
    ENCODER.with_borrow_mut(|encoder| {
        encoder.restart();
        let filled = encoder.fill(&input, &mut cluster);
        encoder.restart();
        assert_eq!(encoder.fill(&input, &mut again), filled, "same input, different length");
        let Some(filled) = filled else { return };
        assert!(filled.written < filled.consumed && cluster[0] != 0, "{filled:?}");
        assert!(cluster[..filled.written] == again[..filled.written], "same input, different cluster");
        let back = decode(&cluster[..filled.written], filled.consumed, Portion::Whole, 0);
        assert!(back.as_deref() == Some(&input[..filled.consumed]), "decoded input differs");
    });
});

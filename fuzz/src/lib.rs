//! Helpers that the fuzz targets share: the choice of codec, and pages from bytes.
//!
//! A target runs with one codec, named by `PAGEFOLD_CODEC`. `run` runs it for every name that
//! [`names`] returns, so a new codec is fuzzed as soon as it has a name.

mod images;

use std::sync::{Arc, LazyLock};

use pagefold_codec::{
    Codec, Dictionary, FoldTables, Lz4Tables, NAMES, PAGE_SIZE, Page, Tables, ZstdTables, by_name,
    cluster::ClusterCodec,
};

pub use images::{foreign_images, images};

/// The cluster codecs to fuzz.
pub const CLUSTER_CODECS: [&str; 5] = ["lz4", "lz4hc", "lzma", "deflate", "zstd"];

/// Returns the cluster codec of a name, at a fast level.
pub fn cluster_codec(name: &str) -> ClusterCodec {
    match name {
        "lz4" => ClusterCodec::Lz4,
        "lz4hc" => ClusterCodec::Lz4Hc(9),
        "lzma" => ClusterCodec::MicroLzma { preset: 0, dict_bytes: 1 << 16 },
        "deflate" => ClusterCodec::Deflate(3),
        "zstd" => ClusterCodec::Zstd { level: 3, window_log: 16 },
        _ => panic!("no cluster codec is named {name}"),
    }
}

/// Returns the codecs to fuzz: every codec's name; for those with levels, the lowest and the
/// highest level.
pub fn names() -> Vec<String> {
    let mut names = Vec::new();
    for &name in NAMES {
        match name {
            "zstd-LEVEL" => names.extend(["zstd--7", "zstd-1", "zstd-22"].map(str::to_owned)),
            "zstd-LEVEL-dict" => names.push("zstd-1-dict".to_owned()),
            name => match name.strip_suffix("-LEVEL") {
                Some(family) => names.extend([format!("{family}-1"), format!("{family}-12")]),
                None => names.push(name.to_owned()),
            },
        }
    }
    names
}

/// The codec that `PAGEFOLD_CODEC` names.
pub static CODEC: LazyLock<Arc<dyn Codec>> =
    LazyLock::new(|| codec(&std::env::var("PAGEFOLD_CODEC").expect("PAGEFOLD_CODEC names the codec to fuzz")));

/// A dictionary that libzstd trained on pages of words and hexadecimal numbers. Training one here
/// would take longer than hundreds of runs.
const DICTIONARY: &[u8] = include_bytes!("dictionary");

/// Returns the codec of a name. A codec with dictionaries gets libzstd's, with the entropy tables
/// at its front or without them. `fold-dict` is fitted to pages of pieces of the dictionary.
pub fn codec(name: &str) -> Arc<dyn Codec> {
    let codec = by_name(name).expect("a name of a codec");
    let front = if name == "zstd-dict" { 0 } else { 1024 };
    let dictionary = Dictionary::new(DICTIONARY[front..].to_vec());
    match codec.tables() {
        Some(Tables::Fold(_)) => {
            // Backwards, so that matches begin at all pieces.
            let pieces: Vec<u8> = DICTIONARY.chunks(16).rev().flatten().copied().collect();
            let sample: Vec<&Page> = pieces.as_chunks().0.iter().collect();
            Tables::Fold(Arc::new(FoldTables::train_unjudged(&sample, dictionary.bytes()))).codec()
        }
        Some(Tables::Lz4(_)) => Tables::Lz4(Arc::new(Lz4Tables::new(dictionary))).codec(),
        Some(Tables::Zstd(tables)) => {
            let tables = ZstdTables::new(tables.level(), dictionary).expect("a sound dictionary");
            Tables::Zstd(Arc::new(tables)).codec()
        }
        _ => codec,
    }
}

/// Returns a page that starts with `data`. Its first byte selects what follows: zeros, the data
/// repeated, or the data repeated with a number that changes each time, as in records.
pub fn page(data: &[u8]) -> Page {
    let mut page = [0; PAGE_SIZE];
    let Some((mode, data)) = data.split_first().filter(|(_, data)| !data.is_empty()) else { return page };
    let rounds = if mode % 3 == 0 { 1 } else { PAGE_SIZE };
    for (round, place) in page.chunks_mut(data.len()).take(rounds).enumerate() {
        place.copy_from_slice(&data[..place.len()]);
        if mode % 3 == 2 {
            place[0] = round as u8;
        }
    }
    page
}

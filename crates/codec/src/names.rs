//! From a codec's name to the codec.

use std::sync::Arc;

use crate::{Codec, Deflate, Dictionary, Lz4, Lz4Dict, Lz4Dyn, Lz4Hc, Lzo, Page, X842, Zstd};

/// The names that [`by_name`] takes, one a codec, for help texts.
pub const NAMES: &[&str] = &[
    "lz4",
    "lz4dyn",
    "lz4hc",
    "lz4hc-LEVEL",
    "lzo",
    "lzo-rle",
    "deflate",
    "deflate-LEVEL",
    "842",
    "zstd",
    "zstd-LEVEL",
];

/// No codec has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown codec '{name}'; known are {}", NAMES.join(", "))]
pub struct UnknownCodec {
    /// The name that was asked for.
    pub name: String,
}

/// The codec that `name` stands for.
pub fn by_name(name: &str) -> Result<Arc<dyn Codec>, UnknownCodec> {
    let (family, level) = match name.split_once('-') {
        Some((family, level)) => (family, Some(level)),
        None => (name, None),
    };
    let unknown = || UnknownCodec { name: name.to_owned() };
    match (family, level) {
        ("lz4", None) => Ok(Arc::new(Lz4)),
        ("lz4hc", None) => Ok(Arc::new(Lz4Hc::default())),
        ("lz4hc", Some(level)) => {
            let level = level.parse().ok().and_then(Lz4Hc::new).ok_or_else(unknown)?;
            Ok(Arc::new(level))
        }
        ("lzo", None) => Ok(Arc::new(Lzo::PLAIN)),
        ("lzo", Some("rle")) => Ok(Arc::new(Lzo::RUNS)),
        ("deflate", None) => Ok(Arc::new(Deflate::default())),
        ("deflate", Some(level)) => {
            let level = level.parse().ok().and_then(Deflate::new).ok_or_else(unknown)?;
            Ok(Arc::new(level))
        }
        ("lz4dyn", None) => Ok(Arc::new(Lz4Dyn)),
        ("842", None) => Ok(Arc::new(X842)),
        ("zstd", None) => Ok(Arc::new(Zstd::default())),
        ("zstd", Some(level)) => {
            let level = level.parse().ok().and_then(Zstd::new).ok_or_else(unknown)?;
            Ok(Arc::new(level))
        }
        _ => Err(unknown()),
    }
}

/// The codec that `name` stands for, trained on the pages of `sample` where it has something to train. Beside the names of
/// [`by_name`], which mean what they mean there, it takes `lz4-dict` and `zstd-LEVEL-dict`: with a dictionary of the sample, or
/// without one if none helps.
pub fn trained(name: &str, sample: &[&Page]) -> Result<Arc<dyn Codec>, UnknownCodec> {
    let Some(plain) = name.strip_suffix("-dict") else { return by_name(name) };
    if plain == "lz4" {
        return Ok(match Dictionary::train(sample, &Lz4, Lz4Dict::new) {
            Some(dictionary) => Arc::new(Lz4Dict::new(dictionary)),
            None => Arc::new(Lz4),
        });
    }
    let unknown = || UnknownCodec { name: name.to_owned() };
    let level = plain.strip_prefix("zstd-").and_then(|level| level.parse().ok());
    let plain = level.and_then(Zstd::new).ok_or_else(unknown)?;
    let with = |dictionary| plain.clone().with_dictionary(dictionary);
    let codec = Dictionary::train(sample, &plain, with).map_or_else(|| plain.clone(), with);
    Ok(Arc::new(codec))
}

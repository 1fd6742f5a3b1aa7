//! From a codec's name to the codec.

use std::sync::Arc;

use crate::{Codec, Deflate, Fold, FoldDict, Lz4, Lz4Dict, Lz4Dyn, Lz4Hc, Lzo, Page, Pleat, X842, Zstd};

/// The names that [`by_name`] takes, one a codec, for help texts.
pub const NAMES: &[&str] = &[
    "fold",
    "fold-dict",
    "lz4",
    "lz4-dict",
    "lz4dyn",
    "lz4hc",
    "lz4hc-LEVEL",
    "lzo",
    "lzo-rle",
    "deflate",
    "deflate-LEVEL",
    "842",
    "pleat",
    "zstd",
    "zstd-LEVEL",
    "zstd-dict",
    "zstd-LEVEL-dict",
];

/// No codec has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown codec '{name}'; known are {}; levels are 1 to 12, of zstd -7 to 22", NAMES.join(", "))]
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
        ("fold", None) => Ok(Arc::new(Fold)),
        ("fold", Some("dict")) => Ok(Arc::new(FoldDict::default())),
        ("lz4", None) => Ok(Arc::new(Lz4)),
        ("lz4", Some("dict")) => Ok(Arc::new(Lz4Dict::default())),
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
        ("pleat", None) => Ok(Arc::new(Pleat::default())),
        ("zstd", None) => Ok(Arc::new(Zstd::default())),
        ("zstd", Some("dict")) => Ok(Arc::new(Zstd::default().with_dictionaries())),
        ("zstd", Some(level)) => {
            let plain = level.strip_suffix("-dict");
            let zstd = plain.unwrap_or(level).parse().ok().and_then(Zstd::new).ok_or_else(unknown)?;
            Ok(Arc::new(if plain.is_some() { zstd.with_dictionaries() } else { zstd }))
        }
        _ => Err(unknown()),
    }
}

/// The codec that `name` stands for, trained on the pages of `sample` where it has something to
/// train. Names mean what they mean to [`by_name`], but those with `-dict` at the end get a
/// dictionary of the sample, or none if none helps; and there is `pleat-trained`, with tables
/// trained on the sample, or the built-in ones if those do not help.
pub fn trained(name: &str, sample: &[&Page]) -> Result<Arc<dyn Codec>, UnknownCodec> {
    let codec = match name {
        "pleat-trained" => by_name("pleat")?,
        name if name.ends_with("-dict") => by_name(name)?,
        name => return by_name(name),
    };
    let tables = codec.tables().and_then(|tables| tables.train_beyond(sample));
    Ok(tables.map_or(codec, |tables| tables.codec()))
}

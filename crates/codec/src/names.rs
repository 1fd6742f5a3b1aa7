//! From a codec's name to the codec.

use std::sync::Arc;

use crate::{Codec, Lz4, Lz4Dyn, Zstd};

/// The names that [`by_name`] takes, one a codec, for help texts.
pub const NAMES: &[&str] = &["lz4", "lz4dyn", "zstd", "zstd-LEVEL"];

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
        ("lz4dyn", None) => Ok(Arc::new(Lz4Dyn)),
        ("zstd", None) => Ok(Arc::new(Zstd::default())),
        ("zstd", Some(level)) => {
            let level = level.parse().ok().and_then(Zstd::new).ok_or_else(unknown)?;
            Ok(Arc::new(level))
        }
        _ => Err(unknown()),
    }
}

//! Looks codecs up by name.

use std::sync::Arc;

#[cfg(feature = "deflate")]
use crate::Deflate;
#[cfg(feature = "lz4hc")]
use crate::Lz4Hc;
#[cfg(feature = "zstd")]
use crate::Zstd;
use crate::{Codec, Fold, FoldDict, Lz4, Lz4Dict, Lz4Dyn, Lzo, Page, Pleat, X842};

/// The names that [`by_name`] accepts in this build, one per codec, for help texts.
pub const NAMES: &[&str] = &[
    "fold",
    "fold-dict",
    "lz4",
    "lz4-dict",
    "lz4dyn",
    #[cfg(feature = "lz4hc")]
    "lz4hc",
    #[cfg(feature = "lz4hc")]
    "lz4hc-LEVEL",
    "lzo",
    "lzo-rle",
    #[cfg(feature = "deflate")]
    "deflate",
    #[cfg(feature = "deflate")]
    "deflate-LEVEL",
    "842",
    "pleat",
    #[cfg(feature = "zstd")]
    "zstd",
    #[cfg(feature = "zstd")]
    "zstd-LEVEL",
    #[cfg(feature = "zstd")]
    "zstd-dict",
    #[cfg(feature = "zstd")]
    "zstd-LEVEL-dict",
];

/// Why a name gives no codec.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// No codec has this name.
    #[error("unknown codec '{name}'; known codecs: {}; levels are 1 to 12, those of zstd -7 to 22", NAMES.join(", "))]
    Unknown {
        /// The requested name.
        name: String,
    },
    /// The codec exists, but was not compiled in.
    #[error("codec '{name}' is not in this build: it needs the feature '{feature}' of pagefold-codec")]
    NotBuilt {
        /// The requested name.
        name: String,
        /// The Cargo feature that adds it.
        feature: &'static str,
    },
}

/// Returns the codec called `name`.
///
/// # Errors
/// [`NameError::Unknown`]; [`NameError::NotBuilt`] if the feature that the codec needs is off.
pub fn by_name(name: &str) -> Result<Arc<dyn Codec>, NameError> {
    let (family, level) = match name.split_once('-') {
        Some((family, level)) => (family, Some(level)),
        None => (name, None),
    };
    let unknown = || NameError::Unknown { name: name.to_owned() };
    match (family, level) {
        ("fold", None) => Ok(Arc::new(Fold)),
        ("fold", Some("dict")) => Ok(Arc::new(FoldDict::default())),
        ("lz4", None) => Ok(Arc::new(Lz4)),
        ("lz4", Some("dict")) => Ok(Arc::new(Lz4Dict::default())),
        #[cfg(feature = "lz4hc")]
        ("lz4hc", None) => Ok(Arc::new(Lz4Hc::default())),
        #[cfg(feature = "lz4hc")]
        ("lz4hc", Some(level)) => {
            let level = level.parse().ok().and_then(Lz4Hc::new).ok_or_else(unknown)?;
            Ok(Arc::new(level))
        }
        ("lzo", None) => Ok(Arc::new(Lzo::PLAIN)),
        ("lzo", Some("rle")) => Ok(Arc::new(Lzo::RUNS)),
        #[cfg(feature = "deflate")]
        ("deflate", None) => Ok(Arc::new(Deflate::default())),
        #[cfg(feature = "deflate")]
        ("deflate", Some(level)) => {
            let level = level.parse().ok().and_then(Deflate::new).ok_or_else(unknown)?;
            Ok(Arc::new(level))
        }
        ("lz4dyn", None) => Ok(Arc::new(Lz4Dyn)),
        ("842", None) => Ok(Arc::new(X842)),
        ("pleat", None) => Ok(Arc::new(Pleat::default())),
        #[cfg(feature = "zstd")]
        ("zstd", None) => Ok(Arc::new(Zstd::default())),
        #[cfg(feature = "zstd")]
        ("zstd", Some("dict")) => Ok(Arc::new(Zstd::default().with_dictionaries())),
        #[cfg(feature = "zstd")]
        ("zstd", Some(level)) => {
            let plain = level.strip_suffix("-dict");
            let zstd = plain.unwrap_or(level).parse().ok().and_then(Zstd::new).ok_or_else(unknown)?;
            Ok(Arc::new(if plain.is_some() { zstd.with_dictionaries() } else { zstd }))
        }
        #[cfg(not(feature = "deflate"))]
        ("deflate", _) => Err(NameError::NotBuilt { name: name.to_owned(), feature: "deflate" }),
        #[cfg(not(feature = "lz4hc"))]
        ("lz4hc", _) => Err(NameError::NotBuilt { name: name.to_owned(), feature: "lz4hc" }),
        #[cfg(not(feature = "zstd"))]
        ("zstd", _) => Err(NameError::NotBuilt { name: name.to_owned(), feature: "zstd" }),
        _ => Err(unknown()),
    }
}

/// Returns the codec called `name`, trained on the pages of `sample` if it can be trained. Accepts
/// the names of [`by_name`]. A name ending in `-dict` gets a dictionary from the sample, or none if
/// none helps. `pleat-trained` gets tables trained on the sample, or the built-in ones if training
/// does not help.
pub fn trained(name: &str, sample: &[&Page]) -> Result<Arc<dyn Codec>, NameError> {
    let codec = match name {
        "pleat-trained" => by_name("pleat")?,
        name if name.ends_with("-dict") => by_name(name)?,
        name => return by_name(name),
    };
    let tables = codec.tables().and_then(|tables| tables.train_further(sample));
    Ok(tables.map_or(codec, |tables| tables.codec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_codec_that_is_not_built_names_its_feature() {
        let features = [
            ("deflate", cfg!(feature = "deflate")),
            ("lz4hc", cfg!(feature = "lz4hc")),
            ("zstd", cfg!(feature = "zstd")),
        ];
        for (feature, is_built) in features {
            for name in [feature.to_owned(), format!("{feature}-3")] {
                match by_name(&name) {
                    Ok(codec) => assert!(is_built && codec.name().starts_with(feature)),
                    Err(error) => assert_eq!((error, is_built), (NameError::NotBuilt { name, feature }, false)),
                }
            }
            assert_eq!(NAMES.contains(&feature), is_built);
        }
    }
}

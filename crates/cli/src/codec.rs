//! Codec names of the command line, for pages and for images. `zstd,3` and `zstd-3` are the same.

use std::sync::Arc;

use anyhow::{Context, bail};
use pagefold_codec::{Codec, by_name, cluster::ClusterCodec};

/// Codecs that `pack --codec` accepts.
const CLUSTER_CODECS: &str = "lz4, lz4hc[,1-12], zstd[,-7-22], deflate[,1-12], lzma[,0-9], none";

/// Returns their names without levels.
pub(crate) fn cluster_families() -> impl Iterator<Item = &'static str> {
    CLUSTER_CODECS.split(", ").filter_map(|name| name.split('[').next())
}

/// Splits a codec's name into its family and the level or variant.
fn split(text: &str) -> (&str, Option<&str>) {
    match text.split_once([',', '-']) {
        Some((family, rest)) => (family, Some(rest)),
        None => (text, None),
    }
}

/// Returns the page codec with the name `text`.
pub(crate) fn of_pages(text: &str) -> Result<Arc<dyn Codec>, String> {
    let (family, rest) = split(text);
    let name = rest.map_or(family.to_owned(), |rest| format!("{family}-{rest}"));
    by_name(&name).map_err(|error| error.to_string())
}

/// Returns the cluster codec with the name `text`, with a history suited to clusters of
/// `pcluster_bytes`; `None` for `none`.
pub(crate) fn of_clusters(text: &str, pcluster_bytes: u32) -> anyhow::Result<Option<ClusterCodec>> {
    let (family, level) = split(text);
    let level = level.map(|level| level.parse::<i32>().ok().with_context(|| format!("'{level}' is not a level")));
    let level = level.transpose()?;
    // A cluster rarely decodes to more than 16 times its size.
    let history = u64::from(pcluster_bytes) * 16;
    Ok(Some(match (family, level) {
        ("none", None) => return Ok(None),
        ("lz4", None) => ClusterCodec::Lz4,
        ("lz4hc", level) => ClusterCodec::Lz4Hc(level.unwrap_or(9)),
        ("deflate", level) => ClusterCodec::Deflate(level.unwrap_or(6)),
        ("zstd", level) => ClusterCodec::Zstd {
            level: level.unwrap_or(3),
            window_log: history.next_power_of_two().trailing_zeros().clamp(16, 20),
        },
        ("lzma", level) => ClusterCodec::MicroLzma {
            preset: u32::try_from(level.unwrap_or(6)).ok().context("lzma levels are 0 to 9")?,
            dict_bytes: history.clamp(1 << 16, 8 << 20) as u32,
        },
        ("none" | "lz4", Some(_)) => bail!("{family} has no levels"),
        _ => bail!("unknown codec '{family}'; known codecs: {CLUSTER_CODECS}"),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comma_and_a_hyphen_are_the_same() {
        for (comma, hyphen) in [
            ("zstd,3", "zstd-3"),
            ("zstd,-7", "zstd--7"),
            ("zstd,1-dict", "zstd-1-dict"),
            ("lz4,dict", "lz4-dict"),
            ("fold,dict", "fold-dict"),
            ("lzo,rle", "lzo-rle"),
            ("deflate,12", "deflate-12"),
        ] {
            let name = |text| of_pages(text).expect("a codec").name().to_string();
            assert_eq!(name(comma), name(hyphen));
        }
        for (comma, hyphen) in
            [("zstd,3", "zstd-3"), ("zstd,-7", "zstd--7"), ("lzma,9", "lzma-9"), ("lz4hc,12", "lz4hc-12")]
        {
            let codec = |text| format!("{:?}", of_clusters(text, 4096).expect("a codec"));
            assert_eq!(codec(comma), codec(hyphen));
        }
    }

    #[test]
    fn unknown_codecs_are_refused() {
        for text in ["", "lz5", "zstd,", "zstd-23", "zstd,x", "lz4,1", "lz4-1", "none,1", "fold,3", ",", "-"] {
            assert!(of_pages(text).is_err(), "{text}");
        }
        for text in ["", "lz5", "zstd,", "zstd,x", "lz4,1", "lz4-1", "none,1", "lzma,-1", "fold", ",", "-"] {
            assert!(of_clusters(text, 4096).is_err(), "{text}");
        }
    }
}

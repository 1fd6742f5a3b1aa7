//! How files are compressed, as options of each program.

use std::str::FromStr;

/// A codec, its level, and the maximum cluster size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Case {
    codec: String,
    level: Option<u32>,
    pub(super) cluster_bytes: u64,
}

impl FromStr for Case {
    type Err = String;

    /// Parses a case such as `zstd,3@64K`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is not CODEC[,LEVEL]@CLUSTER, as in lz4@4K or zstd,3@64K");
        let (codec, cluster) = text.split_once('@').ok_or_else(wrong)?;
        let (codec, level) = match codec.split_once(',') {
            Some((codec, level)) => (codec, Some(level.parse().map_err(|_| wrong())?)),
            None => (codec, None),
        };
        if !["lz4", "lz4hc", "zstd", "deflate", "lzma"].contains(&codec) {
            return Err(format!("unknown codec '{codec}'; known codecs: lz4, lz4hc, zstd, deflate, lzma"));
        }
        let kib: u64 = cluster.strip_suffix(['K', 'k']).and_then(|kib| kib.parse().ok()).ok_or_else(wrong)?;
        if !kib.is_power_of_two() || !(4..=1024).contains(&kib) {
            return Err(format!("'{cluster}': clusters are powers of two from 4K to 1024K"));
        }
        Ok(Self { codec: codec.to_owned(), level, cluster_bytes: kib << 10 })
    }
}

impl Case {
    /// Returns the name used in figures, such as `zstd-3/64k`.
    pub(super) fn name(&self) -> String {
        let level = self.level.map(|level| format!("-{level}")).unwrap_or_default();
        format!("{}{level}/{}k", self.codec, self.cluster_bytes >> 10)
    }

    /// Returns the options of `pagefold pack`.
    pub(super) fn pagefold(&self) -> Vec<String> {
        let level = self.level.map(|level| format!(",{level}")).unwrap_or_default();
        vec!["--codec".into(), format!("{}{level}", self.codec), "--cluster".into(), self.cluster_bytes.to_string()]
    }

    /// Returns the options of `mkfs.erofs`. DEFLATE is libdeflate's, like ours. Zstandard and LZMA
    /// get the same history size as ours.
    pub(super) fn mkfs_erofs(&self) -> Vec<String> {
        let level = self.level.map(|level| format!(",{level}")).unwrap_or_default();
        let history = |most| (self.cluster_bytes * 16).next_power_of_two().clamp(1 << 16, most);
        let codec = match self.codec.as_str() {
            "deflate" => format!("libdeflate{level}"),
            "zstd" => format!("zstd{level},dictsize={}", history(1 << 20)),
            "lzma" => format!("lzma{level},dictsize={}", history(8 << 20)),
            codec => format!("{codec}{level}"),
        };
        vec![format!("-z{codec}"), format!("-C{}", self.cluster_bytes)]
    }

    /// Returns the options of `mksquashfs`, whose block size counts input. Its gzip is zlib's
    /// DEFLATE, its xz is LZMA2.
    pub(super) fn mksquashfs(&self) -> Vec<String> {
        let mut options = vec!["-b".into(), self.cluster_bytes.to_string(), "-comp".into()];
        options.push(match self.codec.as_str() {
            "deflate" => "gzip".into(),
            "lzma" => "xz".into(),
            "lz4hc" => "lz4".into(),
            codec => codec.into(),
        });
        match (self.codec.as_str(), self.level) {
            ("lz4hc", _) => options.push("-Xhc".into()),
            ("deflate" | "zstd", Some(level)) => {
                let level = if self.codec == "deflate" { level.min(9) } else { level };
                options.extend(["-Xcompression-level".into(), level.to_string()]);
            }
            _ => {}
        }
        options
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_read_and_named() {
        let case: Case = "zstd,3@64K".parse().expect("a case");
        assert_eq!(case.name(), "zstd-3/64k");
        assert_eq!(case.pagefold(), ["--codec", "zstd,3", "--cluster", "65536"]);
        assert_eq!(case.mkfs_erofs(), ["-zzstd,3,dictsize=1048576", "-C65536"]);
        for wrong in ["lz4", "lz5@4K", "lz4@5K", "lz4@2K", "zstd,x@4K", "lz4@2048K"] {
            assert!(wrong.parse::<Case>().is_err(), "{wrong}");
        }
    }
}

//! Cluster codecs: they fit as much input as possible into an output of fixed size, and decode it.
//!
//! A filesystem with fixed-size physical clusters asks a compressor the opposite question: not "how
//! long is the output" but "how much of the input fits" (Gao et al., *EROFS: A Compression-friendly
//! Readonly File System for Resource-scarce Devices*, USENIX ATC 2019, section 3.1). LZ4 and
//! MicroLZMA answer it in one pass; Zstandard and DEFLATE search for the answer.
//!
//! LZ4 is always available. Each other format needs the crate's feature `lzma`, `deflate` or
//! `zstd`, and LZ4's high-compression search needs `lz4hc`. Without it, encoders and decoders
//! return an error that names the feature.

#[cfg(feature = "deflate")]
mod deflate;
mod encoder;
mod lz4;
#[cfg(feature = "lzma")]
mod microlzma;
#[cfg(any(feature = "deflate", feature = "zstd"))]
mod search;
#[cfg(feature = "zstd")]
mod zstd;

pub use self::encoder::{ClusterEncoder, EncoderError, Filled, Portion};
use crate::Corrupt;

/// The format of a cluster's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClusterFormat {
    /// LZ4 block format.
    Lz4,
    /// LZMA without headers; its first byte is the complement of the properties (liblzma's
    /// MicroLZMA).
    MicroLzma,
    /// Raw DEFLATE (RFC 1951).
    Deflate,
    /// One Zstandard frame with its magic number (RFC 8878).
    Zstd,
}

impl ClusterFormat {
    /// Returns the feature of this crate that the format needs, if it is off.
    pub fn missing_feature(self) -> Option<&'static str> {
        match self {
            Self::Lz4 => None,
            Self::MicroLzma => (!cfg!(feature = "lzma")).then_some("lzma"),
            Self::Deflate => (!cfg!(feature = "deflate")).then_some("deflate"),
            Self::Zstd => (!cfg!(feature = "zstd")).then_some("zstd"),
        }
    }
}

/// The kind of encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterCodec {
    /// LZ4's fast compressor.
    Lz4,
    /// LZ4's high-compression search at level 1 to 12.
    Lz4Hc(i32),
    /// MicroLZMA at preset 0 to 9 with a dictionary of this size in bytes (4 KiB to 8 MiB).
    MicroLzma {
        /// liblzma's preset.
        preset: u32,
        /// Bytes of history that a decoder must keep.
        dict_bytes: u32,
    },
    /// DEFLATE at libdeflate's level 1 to 12.
    Deflate(i32),
    /// Zstandard at level −7 to 22 with a window of at most `1 << window_log` bytes.
    Zstd {
        /// The level.
        level: i32,
        /// Base-2 logarithm of the window, 10 to 20.
        window_log: u32,
    },
}

impl ClusterCodec {
    /// Returns the format that this codec writes.
    pub fn format(self) -> ClusterFormat {
        match self {
            Self::Lz4 | Self::Lz4Hc(_) => ClusterFormat::Lz4,
            Self::MicroLzma { .. } => ClusterFormat::MicroLzma,
            Self::Deflate(_) => ClusterFormat::Deflate,
            Self::Zstd { .. } => ClusterFormat::Zstd,
        }
    }

    /// Creates an encoder. Allocates; one encoder serves any number of clusters.
    pub fn encoder(self) -> Result<Box<dyn ClusterEncoder>, EncoderError> {
        Ok(match self {
            Self::Lz4 => Box::<lz4::Fast>::default(),
            #[cfg(feature = "lz4hc")]
            Self::Lz4Hc(level) => Box::new(lz4::High::new(level)?),
            #[cfg(feature = "lzma")]
            Self::MicroLzma { preset, dict_bytes } => Box::new(microlzma::Encoder::new(preset, dict_bytes)?),
            #[cfg(feature = "deflate")]
            Self::Deflate(level) => Box::new(deflate::Encoder::new(level)?),
            #[cfg(feature = "zstd")]
            Self::Zstd { level, window_log } => Box::new(zstd::Encoder::new(level, window_log)?),
            #[cfg(not(feature = "lz4hc"))]
            Self::Lz4Hc(_) => return Err(EncoderError { codec: "lz4hc", what: NEEDS_LZ4HC }),
            #[cfg(not(feature = "lzma"))]
            Self::MicroLzma { .. } => return Err(EncoderError { codec: "lzma", what: NEEDS_LZMA }),
            #[cfg(not(feature = "deflate"))]
            Self::Deflate(_) => return Err(EncoderError { codec: "deflate", what: NEEDS_DEFLATE }),
            #[cfg(not(feature = "zstd"))]
            Self::Zstd { .. } => return Err(EncoderError { codec: "zstd", what: NEEDS_ZSTD }),
        })
    }
}

#[cfg(not(feature = "lz4hc"))]
const NEEDS_LZ4HC: &str = "lz4hc is not in this build: it needs the feature 'lz4hc' of pagefold-codec";
#[cfg(not(feature = "lzma"))]
const NEEDS_LZMA: &str = "lzma is not in this build: it needs the feature 'lzma' of pagefold-codec";
#[cfg(not(feature = "deflate"))]
const NEEDS_DEFLATE: &str = "deflate is not in this build: it needs the feature 'deflate' of pagefold-codec";
#[cfg(not(feature = "zstd"))]
const NEEDS_ZSTD: &str = "zstd is not in this build: it needs the feature 'zstd' of pagefold-codec";

/// A decoder of clusters in any format, for one thread. Its contexts are created on first use and
/// kept.
#[derive(Default)]
pub struct ClusterDecoder {
    #[cfg(feature = "lzma")]
    microlzma: Option<microlzma::Decoder>,
    #[cfg(feature = "deflate")]
    deflate: Option<deflate::Decoder>,
    #[cfg(feature = "zstd")]
    zstd: Option<zstd::Decoder>,
}

impl ClusterDecoder {
    /// Decodes `src` into all of `dst`. `src` is untrusted: any bytes give a full buffer or
    /// [`Corrupt`], in time linear in the two lengths, and no access goes outside them. After an
    /// error `dst` holds unspecified bytes.
    ///
    /// `dict_bytes` is the history that MicroLZMA may refer to; the other formats encode it. The
    /// caller must bound it, since it is allocated. `max_content_bytes` bounds how much DEFLATE may
    /// decode to find a prefix.
    ///
    /// # Errors
    /// [`Corrupt`], also if the format's feature is off.
    pub fn decode(
        &mut self,
        format: ClusterFormat,
        src: &[u8],
        dst: &mut [u8],
        extent: Portion,
        #[cfg_attr(not(any(feature = "deflate", feature = "lzma")), expect(unused_variables))] limits: DecodeLimits,
    ) -> Result<(), Corrupt> {
        match format {
            ClusterFormat::Lz4 => lz4::decode(src, dst, extent),
            #[cfg(feature = "lzma")]
            ClusterFormat::MicroLzma => {
                self.microlzma.get_or_insert_default().decode(src, dst, extent, limits.dict_bytes)
            }
            #[cfg(feature = "deflate")]
            ClusterFormat::Deflate => {
                self.deflate.get_or_insert_default().decode(src, dst, extent, limits.max_content_bytes)
            }
            #[cfg(feature = "zstd")]
            ClusterFormat::Zstd => match &mut self.zstd {
                Some(decoder) => decoder.decode(src, dst, extent),
                none => none.insert(zstd::Decoder::new()?).decode(src, dst, extent),
            },
            #[cfg(not(feature = "lzma"))]
            ClusterFormat::MicroLzma => Err(Corrupt { what: NEEDS_LZMA }),
            #[cfg(not(feature = "deflate"))]
            ClusterFormat::Deflate => Err(Corrupt { what: NEEDS_DEFLATE }),
            #[cfg(not(feature = "zstd"))]
            ClusterFormat::Zstd => Err(Corrupt { what: NEEDS_ZSTD }),
        }
    }
}

/// Bounds on the memory of one [`ClusterDecoder::decode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeLimits {
    /// MicroLZMA's dictionary, in bytes.
    pub dict_bytes: u32,
    /// The longest content that a cluster may have, in bytes.
    pub max_content_bytes: usize,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn formats_that_are_not_built_name_their_feature() {
        for format in [ClusterFormat::Lz4, ClusterFormat::MicroLzma, ClusterFormat::Deflate, ClusterFormat::Zstd] {
            let limits = DecodeLimits { dict_bytes: 4096, max_content_bytes: 4096 };
            let decoded = ClusterDecoder::default().decode(format, &[], &mut [0; 8], Portion::Whole, limits);
            let what = decoded.expect_err("nothing is no cluster").what;
            match format.missing_feature() {
                Some(feature) => assert!(what.contains(&format!("the feature '{feature}'")), "{what}"),
                None => assert!(!what.contains("the feature"), "{what}"),
            }
        }
    }

    const LIMITS: DecodeLimits = DecodeLimits { dict_bytes: 1 << 16, max_content_bytes: 1 << 20 };

    /// Every codec, and whether this build has it.
    const ALL: [(ClusterCodec, bool); 5] = [
        (ClusterCodec::Lz4, true),
        (ClusterCodec::Lz4Hc(9), cfg!(feature = "lz4hc")),
        (ClusterCodec::MicroLzma { preset: 6, dict_bytes: 1 << 16 }, cfg!(feature = "lzma")),
        (ClusterCodec::Deflate(6), cfg!(feature = "deflate")),
        (ClusterCodec::Zstd { level: 3, window_log: 17 }, cfg!(feature = "zstd")),
    ];

    fn codecs() -> impl Iterator<Item = ClusterCodec> {
        ALL.into_iter().filter(|(_, is_built)| *is_built).map(|(codec, _)| codec)
    }

    #[test]
    fn a_codec_that_is_not_built_names_its_feature() {
        for (codec, _) in ALL.into_iter().filter(|(_, is_built)| !is_built) {
            let refused = codec.encoder().err().expect("not in this build");
            assert!(refused.to_string().contains("the feature '"), "{refused}");
            let mut decoder = ClusterDecoder::default();
            let refused = decoder.decode(codec.format(), &[1, 2], &mut [0; 2], Portion::Whole, LIMITS);
            assert!(refused.is_err(), "{codec:?}");
        }
    }

    fn text(len: usize) -> Vec<u8> {
        (0u32..)
            .flat_map(|n| format!("line {n} of {}\n", n.wrapping_mul(2_654_435_761) % 997).into_bytes())
            .take(len)
            .collect()
    }

    #[test]
    fn every_codec_fills_a_cluster_and_comes_back() {
        let src = text(100_000);
        for codec in codecs() {
            let mut encoder = codec.encoder().unwrap();
            let mut decoder = ClusterDecoder::default();
            let mut at = 0;
            while at < src.len() {
                let mut cluster = vec![0; 4096];
                let filled = encoder.fill(&src[at..], &mut cluster).expect("text is compressible");
                assert!(filled.written <= 4096 && filled.consumed > filled.written, "{codec:?} {filled:?}");
                assert_ne!(cluster[0], 0);
                if at + filled.consumed < src.len() {
                    assert!(filled.written > 3900, "{codec:?} wastes its cluster: {filled:?}");
                }
                let mut back = vec![0; filled.consumed];
                let cluster = &cluster[..filled.written];
                decoder.decode(codec.format(), cluster, &mut back, Portion::Whole, LIMITS).unwrap();
                assert_eq!(back, src[at..at + filled.consumed]);
                let mut prefix = vec![0; filled.consumed / 2];
                decoder.decode(codec.format(), cluster, &mut prefix, Portion::Prefix, LIMITS).unwrap();
                assert_eq!(prefix, src[at..at + prefix.len()]);
                at += filled.consumed;
            }
        }
    }

    #[test]
    fn noise_gains_nothing() {
        let mut state = 1u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .take(20_000)
        .collect();
        for codec in codecs() {
            assert_eq!(codec.encoder().unwrap().fill(&noise, &mut vec![0; 4096]), None, "{codec:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(src in proptest::collection::vec(any::<u8>(), 0..300), len in 0usize..5000) {
            let mut decoder = ClusterDecoder::default();
            let mut dst = vec![0; len];
            for format in [ClusterFormat::Lz4, ClusterFormat::MicroLzma, ClusterFormat::Deflate, ClusterFormat::Zstd] {
                for extent in [Portion::Whole, Portion::Prefix] {
                    let _ = decoder.decode(format, &src, &mut dst, extent, LIMITS);
                }
            }
        }
    }
}

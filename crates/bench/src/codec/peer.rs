//! The peers: other projects' codecs, called as their users call them.

use libdeflater::{CompressionLvl, Compressor, Decompressor};
use lzzzz::lz4;
use pagefold_codec::{Corrupt, PAGE_SIZE, Page, Stream, Tables};
use pagefold_oracle::{Liblzo2, Liblzo2Work};
use zstd_safe::{CCtx, CDict, DCtx, DDict};

/// The peers' names.
pub(super) const NAMES: &[&str] = &[
    "liblz4",
    "liblzo2",
    "libzstd-1",
    "libzstd-1-dict",
    "libzstd-1-dict-16k",
    "libzstd-1-dict-110k",
    "libdeflate-1",
    "snappy",
    "zxc-1",
    "zxc-3",
    "zxc-5",
    "memcpy",
];

/// A peer: a function that compresses a page and one that decompresses an object.
struct Peer<C, D>(C, D);

impl<C, D> Stream for Peer<C, D>
where
    C: FnMut(&Page, &mut [u8]) -> Option<usize> + Send,
    D: FnMut(&[u8], &mut Page) -> Option<usize> + Send,
{
    fn compress(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        (self.0)(page, out)
    }

    fn decompress(&mut self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        match (self.1)(object, page) {
            Some(PAGE_SIZE) => Ok(()),
            Some(_) => Err(Corrupt::new("not a page")),
            None => Err(Corrupt::new("refused by the peer")),
        }
    }

    /// The bench does not use this.
    fn memory_bytes(&self) -> usize {
        0
    }
}

fn peer<C, D>(compress: C, decompress: D) -> Box<dyn Stream>
where
    C: FnMut(&Page, &mut [u8]) -> Option<usize> + Send + 'static,
    D: FnMut(&[u8], &mut Page) -> Option<usize> + Send + 'static,
{
    Box::new(Peer(compress, decompress))
}

/// Returns the peer called `name`, or `None` if this machine does not have it.
pub(super) fn by_name(name: &str, sample: &[&Page]) -> anyhow::Result<Option<Box<dyn Stream>>> {
    Ok(Some(match name {
        "liblz4" => peer(
            |page, out| lz4::compress(page, out, lz4::ACC_LEVEL_DEFAULT).ok(),
            |object, page| lz4::decompress(object, page).ok(),
        ),
        "liblzo2" => {
            let (Some(library), Some(decoder)) = (Liblzo2::open(), Liblzo2::open()) else { return Ok(None) };
            let mut work = Liblzo2Work::default();
            peer(
                move |page, out| Some(library.compress(&mut work, page, out)),
                move |object, page| decoder.decompress_safe(object, page).ok(),
            )
        }
        "libzstd-1" => zstd(None),
        "libzstd-1-dict" => {
            let tables = pagefold_codec::trained("zstd-1-dict", sample)?.tables();
            zstd(tables.as_ref().and_then(Tables::dictionary).map(|dictionary| dictionary.bytes()))
        }
        // 110 KiB is the zstd program's default.
        "libzstd-1-dict-16k" => zstd(trained(16 << 10, sample).as_deref()),
        "libzstd-1-dict-110k" => zstd(trained(110 << 10, sample).as_deref()),
        "libdeflate-1" => {
            let mut compressor = Compressor::new(CompressionLvl::new(1).unwrap_or_default());
            let mut decompressor = Decompressor::new();
            peer(
                move |page, out| compressor.deflate_compress(page, out).ok(),
                move |object, page| decompressor.deflate_decompress(object, page).ok(),
            )
        }
        "snappy" => {
            let (mut encoder, mut decoder) = (snap::raw::Encoder::new(), snap::raw::Decoder::new());
            peer(
                move |page, out| encoder.compress(page, out).ok(),
                move |object, page| decoder.decompress(object, page).ok(),
            )
        }
        "zxc-1" => zxc(zxc::Level::Fastest)?,
        "zxc-3" => zxc(zxc::Level::Default)?,
        "zxc-5" => zxc(zxc::Level::Compact)?,
        // A copy of the page: a lower bound for every time.
        "memcpy" => peer(
            |page, out| {
                out[..PAGE_SIZE].copy_from_slice(page);
                Some(PAGE_SIZE)
            },
            |object, page| {
                page.copy_from_slice(object.get(..PAGE_SIZE)?);
                Some(PAGE_SIZE)
            },
        ),
        _ => anyhow::bail!("no peer is called {name}"),
    }))
}

/// Returns a dictionary of at most `len` bytes made by `ZDICT_trainFromBuffer`, or `None` if
/// training fails, as with a sample that has too little in common.
fn trained(len: usize, sample: &[&Page]) -> Option<Vec<u8>> {
    let pages: Vec<u8> = sample.iter().flat_map(|page| page.iter().copied()).collect();
    let mut dictionary = vec![0; len];
    let len = zstd_safe::train_from_buffer(dictionary.as_mut_slice(), &pages, &vec![PAGE_SIZE; sample.len()]).ok()?;
    dictionary.truncate(len);
    Some(dictionary)
}

/// `ZSTD_compressCCtx` at level 1 with reused contexts, or `ZSTD_compress_usingCDict`.
fn zstd(dictionary: Option<&[u8]>) -> Box<dyn Stream> {
    let (mut compressor, mut decompressor) = (CCtx::create(), DCtx::create());
    let Some(dictionary) = dictionary else {
        return peer(
            move |page, out| compressor.compress(out, page, 1).ok(),
            move |object, page| decompressor.decompress(page.as_mut_slice(), object).ok(),
        );
    };
    let (digest, decoding): (CDict<'static>, DDict<'static>) =
        (CDict::create(dictionary, 1), DDict::create(dictionary));
    peer(
        move |page, out| compressor.compress_using_cdict(out, page, &digest).ok(),
        move |object, page| decompressor.decompress_using_ddict(page.as_mut_slice(), object, &decoding).ok(),
    )
}

/// Single ZXC blocks without file framing. Each block has an 8-byte header.
fn zxc(level: zxc::Level) -> zxc::Result<Box<dyn Stream>> {
    let options = zxc::CompressOptions::with_level(level).without_checksum();
    let (mut compressor, mut decompressor) = (zxc::Cctx::new(Some(&options))?, zxc::Dctx::new()?);
    Ok(peer(
        move |page, out| compressor.compress_block(page, out, &options).ok(),
        move |object, page| {
            decompressor.decompress_block_safe(object, page, &zxc::DecompressOptions::skip_checksum()).ok()
        },
    ))
}

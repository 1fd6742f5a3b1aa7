//! The peers: other projects' codecs, called as their users call them.

#[cfg(feature = "openzl")]
mod openzl;

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
    #[cfg(feature = "openzl")]
    "openzl-1",
    #[cfg(feature = "openzl")]
    "openzl-u64-1",
    "memcpy",
];

/// Dictionary sizes requested from libzstd's trainer. 110 KiB is the zstd program's default.
const DICTIONARIES: &[(&str, usize)] = &[("libzstd-1-dict-16k", 16 << 10), ("libzstd-1-dict-110k", 110 << 10)];

/// Returns the peer called `name`, or `None` if this machine does not have it.
pub(super) fn by_name(name: &str, sample: &[&Page]) -> anyhow::Result<Option<Box<dyn Stream>>> {
    Ok(Some(match name {
        "liblz4" => Box::new(Liblz4),
        "liblzo2" => match Liblzo2::open() {
            Some(library) => Box::new(Lzo { library, work: Liblzo2Work::default() }),
            None => return Ok(None),
        },
        "libzstd-1" => Box::new(Zstd { compressor: CCtx::create(), decompressor: DCtx::create() }),
        "libzstd-1-dict" => {
            let tables = pagefold_codec::trained("zstd-1-dict", sample)?.tables();
            match tables.as_ref().and_then(Tables::dictionary) {
                Some(dictionary) => Box::new(ZstdDict::new(dictionary.bytes())),
                None => return by_name("libzstd-1", sample),
            }
        }
        _ if let Some((_, len)) = DICTIONARIES.iter().find(|(of, _)| *of == name) => match trained(*len, sample) {
            Some(dictionary) => Box::new(ZstdDict::new(&dictionary)),
            None => return by_name("libzstd-1", sample),
        },
        "libdeflate-1" => Box::new(Deflate {
            compressor: Compressor::new(CompressionLvl::new(1).unwrap_or_default()),
            decompressor: Decompressor::new(),
        }),
        "snappy" => Box::new(Snappy { compressor: snap::raw::Encoder::new(), decompressor: snap::raw::Decoder::new() }),
        "zxc-1" => Box::new(Zxc::new(zxc::Level::Fastest)?),
        "zxc-3" => Box::new(Zxc::new(zxc::Level::Default)?),
        "zxc-5" => Box::new(Zxc::new(zxc::Level::Compact)?),
        #[cfg(feature = "openzl")]
        "openzl-1" => Box::new(openzl::OpenZl::new(openzl::As::Bytes)?),
        #[cfg(feature = "openzl")]
        "openzl-u64-1" => Box::new(openzl::OpenZl::new(openzl::As::Numbers)?),
        "memcpy" => Box::new(Memcpy),
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

fn exactly_a_page<E>(decoded: Result<usize, E>) -> Result<(), Corrupt> {
    match decoded {
        Ok(PAGE_SIZE) => Ok(()),
        Ok(_) => Err(Corrupt::new("not a page")),
        Err(_) => Err(Corrupt::new("refused by the peer")),
    }
}

struct Liblz4;

impl Stream for Liblz4 {
    fn compress(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        lz4::compress(page, out, lz4::ACC_LEVEL_DEFAULT).ok()
    }

    fn decompress(&mut self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        exactly_a_page(lz4::decompress(object, page))
    }

    fn memory_bytes(&self) -> usize {
        0
    }
}

struct Lzo {
    library: Liblzo2,
    work: Liblzo2Work,
}

impl Stream for Lzo {
    fn compress(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        Some(self.library.compress(&mut self.work, page, out))
    }

    fn decompress(&mut self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        exactly_a_page(self.library.decompress_safe(object, page))
    }

    fn memory_bytes(&self) -> usize {
        size_of_val(&self.work)
    }
}

/// `ZSTD_compressCCtx` at level 1 with a reused context.
struct Zstd {
    compressor: CCtx<'static>,
    decompressor: DCtx<'static>,
}

impl Stream for Zstd {
    fn compress(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        self.compressor.compress(out, page, 1).ok()
    }

    fn decompress(&mut self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        exactly_a_page(self.decompressor.decompress(page.as_mut_slice(), object))
    }

    fn memory_bytes(&self) -> usize {
        self.compressor.sizeof() + self.decompressor.sizeof()
    }
}

/// `ZSTD_compress_usingCDict` at level 1.
struct ZstdDict {
    contexts: Zstd,
    compressing: CDict<'static>,
    decompressing: DDict<'static>,
}

impl ZstdDict {
    fn new(dictionary: &[u8]) -> Self {
        Self {
            contexts: Zstd { compressor: CCtx::create(), decompressor: DCtx::create() },
            compressing: CDict::create(dictionary, 1),
            decompressing: DDict::create(dictionary),
        }
    }
}

impl Stream for ZstdDict {
    fn compress(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        self.contexts.compressor.compress_using_cdict(out, page, &self.compressing).ok()
    }

    fn decompress(&mut self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        let decoded =
            self.contexts.decompressor.decompress_using_ddict(page.as_mut_slice(), object, &self.decompressing);
        exactly_a_page(decoded)
    }

    fn memory_bytes(&self) -> usize {
        self.contexts.memory_bytes() + self.compressing.sizeof() + self.decompressing.sizeof()
    }
}

struct Deflate {
    compressor: Compressor,
    decompressor: Decompressor,
}

impl Stream for Deflate {
    fn compress(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        self.compressor.deflate_compress(page, out).ok()
    }

    fn decompress(&mut self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        exactly_a_page(self.decompressor.deflate_decompress(object, page))
    }

    fn memory_bytes(&self) -> usize {
        0
    }
}

struct Snappy {
    compressor: snap::raw::Encoder,
    decompressor: snap::raw::Decoder,
}

impl Stream for Snappy {
    fn compress(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        self.compressor.compress(page, out).ok()
    }

    fn decompress(&mut self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        exactly_a_page(self.decompressor.decompress(object, page))
    }

    fn memory_bytes(&self) -> usize {
        0
    }
}

/// Single ZXC blocks without file framing. Each block has an 8-byte header.
struct Zxc {
    compressor: zxc::Cctx,
    decompressor: zxc::Dctx,
    options: zxc::CompressOptions,
}

impl Zxc {
    fn new(level: zxc::Level) -> zxc::Result<Self> {
        let options = zxc::CompressOptions::with_level(level).without_checksum();
        Ok(Self { compressor: zxc::Cctx::new(Some(&options))?, decompressor: zxc::Dctx::new()?, options })
    }
}

impl Stream for Zxc {
    fn compress(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        self.compressor.compress_block(page, out, &self.options).ok()
    }

    fn decompress(&mut self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        let options = zxc::DecompressOptions::skip_checksum();
        exactly_a_page(self.decompressor.decompress_block_safe(object, page, &options))
    }

    /// ZXC does not report it.
    fn memory_bytes(&self) -> usize {
        0
    }
}

/// A copy of the page: a lower bound for every time.
struct Memcpy;

impl Stream for Memcpy {
    fn compress(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        out.get_mut(..PAGE_SIZE)?.copy_from_slice(page);
        Some(PAGE_SIZE)
    }

    fn decompress(&mut self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        page.copy_from_slice(object.get(..PAGE_SIZE).ok_or(Corrupt::new("not a page"))?);
        Ok(())
    }

    fn memory_bytes(&self) -> usize {
        0
    }
}

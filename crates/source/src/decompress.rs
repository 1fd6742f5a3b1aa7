//! Compressed data, read sequentially.

use std::io::{self, BufRead, Read};

use bzip2::bufread::BzDecoder;
use flate2::bufread::GzDecoder;
use liblzma::bufread::XzDecoder;
use liblzma::stream::{CONCATENATED, Stream};
use pagefold_base::{Compression, Kind, Signature, skippable_bytes};

use crate::error::invalid;
use crate::lz4::Frame;
use crate::peek::Peek;
use crate::zstd_frame;

/// Memory limit of the decoders of xz, lzip and LZMA. `xz -9` needs 65 MiB, `zstd --ultra -22` 128
/// MiB.
const MOST_XZ_BYTES: u64 = 1 << 30;

/// Enough bytes to recognize every format of compressed data.
const FRONT_BYTES: usize = 512;

/// Returns the content of `source`, decompressed if it is compressed in a [`Compression`]. Several
/// consecutive compressed streams are read as one. Reading fails if a stream is damaged or
/// truncated, or if other data follow.
///
/// # Errors
/// The source cannot be read, or a decoder cannot be made.
pub fn decompressed<'a>(source: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let mut source = Peek::new(source);
    let mut skipped = false;
    while let Some(len) = skippable_bytes(source.peek(8)?) {
        source.skip(len)?;
        skipped = true;
    }
    let front = source.peek(FRONT_BYTES)?.to_vec();
    let is_end = front.is_empty();
    let compression = match Signature::of(&front, 0)?.map(Signature::kind) {
        Some(Kind::Compressed(compression)) => Some(compression),
        _ => None,
    };
    Ok(match compression {
        None
        | Some(Compression::Gzip | Compression::Xz | Compression::Bzip2 | Compression::Lzip | Compression::Lzma)
            if skipped && !is_end =>
        {
            return Err(invalid("skippable frames of Zstandard or LZ4 are followed by other data"));
        }
        None => Box::new(source),
        Some(Compression::Zstd) => {
            if let Some(why) = zstd_frame::refusal(&front) {
                return Err(invalid(&why));
            }
            let mut decoder = zstd::Decoder::with_buffer(source)?;
            decoder.window_log_max(zstd_frame::MOST_WINDOW_LOG)?;
            Box::new(decoder)
        }
        Some(Compression::Xz) => {
            let stream = Stream::new_stream_decoder(MOST_XZ_BYTES, CONCATENATED)?;
            Box::new(XzDecoder::new_stream(source, stream))
        }
        Some(Compression::Gzip) => Box::new(Members::new(source, |mut source| match source.peek(1)? {
            [0x1f, ..] => Ok(Some(Box::new(GzDecoder::new(source)))),
            // The padding of a tape.
            _ => source.skip_zeros().map(|()| None),
        })),
        Some(Compression::Bzip2) => Box::new(Members::new(source, |source| Ok(Some(Box::new(BzDecoder::new(source)))))),
        Some(Compression::Lz4) => Box::new(Members::new(source, |mut source| {
            while let Some(len) = skippable_bytes(source.peek(8)?) {
                source.skip(len)?;
            }
            if source.peek(1)?.is_empty() {
                return Ok(None);
            }
            Ok(Some(Box::new(Frame::new(source)?)))
        })),
        Some(Compression::Lzip) => Box::new(Members::new(source, |source| {
            let stream = Stream::new_lzip_decoder(MOST_XZ_BYTES, 0)?;
            Ok(Some(Box::new(XzDecoder::new_stream(source, stream))))
        })),
        Some(Compression::Lzma) => {
            let mut first = true;
            Box::new(Members::new(source, move |source| {
                // The format has no magic number, so a second stream cannot be distinguished from other data.
                if !std::mem::take(&mut first) {
                    return Err(invalid("data follow the LZMA stream"));
                }
                let stream = Stream::new_lzma_decoder(MOST_XZ_BYTES)?;
                Ok(Some(Box::new(XzDecoder::new_stream(source, stream))))
            }))
        }
    })
}

/// The decoder of a compressed stream, which reads nothing behind its end.
trait Member<R>: Read {
    fn into_source(self: Box<Self>) -> Peek<R>;
}

impl<R: Read> Member<R> for GzDecoder<Peek<R>> {
    fn into_source(self: Box<Self>) -> Peek<R> {
        self.into_inner()
    }
}

impl<R: Read> Member<R> for XzDecoder<Peek<R>> {
    fn into_source(self: Box<Self>) -> Peek<R> {
        self.into_inner()
    }
}

impl<R: Read> Member<R> for BzDecoder<Peek<R>> {
    fn into_source(self: Box<Self>) -> Peek<R> {
        self.into_inner()
    }
}

impl<R: Read> Member<R> for Frame<R> {
    fn into_source(self: Box<Self>) -> Peek<R> {
        self.into_inner()
    }
}

/// Compressed streams, one after another.
struct Members<'a, R, F> {
    state: State<'a, R>,
    /// Begins the next stream; `None` if there is none.
    next: F,
}

enum State<'a, R> {
    Between(Peek<R>),
    Inside(Box<dyn Member<R> + 'a>),
    Ended,
}

impl<'a, R: Read + 'a, F> Members<'a, R, F>
where
    F: FnMut(Peek<R>) -> io::Result<Option<Box<dyn Member<R> + 'a>>>,
{
    fn new(source: Peek<R>, next: F) -> Self {
        Self { state: State::Between(source), next }
    }
}

impl<'a, R: Read + 'a, F> Read for Members<'a, R, F>
where
    F: FnMut(Peek<R>) -> io::Result<Option<Box<dyn Member<R> + 'a>>>,
{
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            match std::mem::replace(&mut self.state, State::Ended) {
                State::Ended => return Ok(0),
                State::Inside(mut member) => {
                    let len = member.read(buf)?;
                    if len > 0 || buf.is_empty() {
                        self.state = State::Inside(member);
                        return Ok(len);
                    }
                    self.state = State::Between(member.into_source());
                }
                State::Between(mut source) => {
                    if !source.fill_buf()?.is_empty()
                        && let Some(member) = (self.next)(source)?
                    {
                        self.state = State::Inside(member);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use bzip2::write::BzEncoder;
    use flate2::write::GzEncoder;
    use flate2::{Compression, Crc};
    use liblzma::stream::LzmaOptions;
    use liblzma::write::XzEncoder;
    use proptest::prelude::*;
    use xxhash_rust::xxh32::xxh32;

    use super::*;

    fn read(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut read = Vec::new();
        decompressed(bytes)?.read_to_end(&mut read)?;
        Ok(read)
    }

    /// What the decoder refuses for its window or its dictionary is refused with the way to read it,
    /// and nothing else is.
    #[test]
    fn frames_that_need_more_are_refused_by_what_they_need() {
        let text = b"some text ".repeat(50);
        for log in [10, 20, 26, 27, 28, 31] {
            let mut encoder = zstd::Encoder::new(Vec::new(), 1).expect("an encoder");
            encoder.window_log(log).and_then(|()| encoder.write_all(&text)).expect("a window");
            match read(&encoder.finish().expect("memory")) {
                Ok(read) => assert!(log <= 27 && read == text, "{log}"),
                Err(error) => assert!(log > 27 && error.to_string().contains("--long=31"), "{log}: {error}"),
            }
        }
        // The other errors of headers are damage, also with a dictionary.
        for (descriptor, window, fill) in (0..=255).flat_map(|d| (0..=255).flat_map(move |w| [(d, w, 0), (d, w, 1)])) {
            let frame = [&[0x28, 0xb5, 0x2f, 0xfd, descriptor, window][..], &[fill; 14]].concat();
            let said = read(&frame).err().map_or_else(String::new, |error| error.to_string());
            assert!(!said.contains("too much memory") && !said.contains("Dictionary mismatch"), "{frame:?}: {said}");
            let needs_dictionary = descriptor & 3 != 0 && fill != 0 && window != 0;
            assert!(said.contains("'zstd -dc -D DICTIONARY'") || !needs_dictionary, "{frame:?}: {said}");
        }
    }

    const FORMATS: [&str; 9] = ["gzip", "zstd", "xz", "bzip2", "lz4", "lz4 linked", "lz4 legacy", "lzip", "lzma"];

    fn compressed(format: &str, text: &[u8]) -> Vec<u8> {
        match format {
            "gzip" => {
                let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
                gzip.write_all(text).and_then(|()| gzip.finish()).expect("memory")
            }
            "zstd" => {
                let mut zstd = zstd::Encoder::new(Vec::new(), 3).expect("an encoder");
                zstd.include_checksum(true).expect("a checksum");
                zstd.write_all(text).and_then(|()| zstd.finish()).expect("memory")
            }
            "xz" => {
                let mut xz = XzEncoder::new(Vec::new(), 6);
                xz.write_all(text).and_then(|()| xz.finish()).expect("memory")
            }
            "bzip2" => {
                let mut bzip2 = BzEncoder::new(Vec::new(), bzip2::Compression::fast());
                bzip2.write_all(text).and_then(|()| bzip2.finish()).expect("memory")
            }
            "lz4" => lz4(text, false),
            "lz4 linked" => lz4(text, true),
            "lz4 legacy" => {
                let blocks = text.chunks(8 << 20).flat_map(|block| {
                    let block = lz4_flex::block::compress(block);
                    [&(block.len() as u32).to_le_bytes()[..], &block].concat()
                });
                b"\x02\x21\x4c\x18".iter().copied().chain(blocks).collect()
            }
            "lzip" => {
                // The stream of LZMA, with an end mark, between another header and a trailer.
                let stream = &compressed("lzma", text)[13..];
                let mut crc = Crc::new();
                crc.update(text);
                let mut lzip = [b"LZIP\x01\x17", stream, &crc.sum().to_le_bytes()].concat();
                lzip.extend((text.len() as u64).to_le_bytes());
                let len = lzip.len() as u64 + 8;
                lzip.extend(len.to_le_bytes());
                lzip
            }
            _ => {
                let options = LzmaOptions::new_preset(6).expect("options");
                let mut lzma =
                    XzEncoder::new_stream(Vec::new(), Stream::new_lzma_encoder(&options).expect("an encoder"));
                lzma.write_all(text).and_then(|()| lzma.finish()).expect("memory")
            }
        }
    }

    /// A frame with blocks of at most 64 KiB and all checksums.
    fn lz4(text: &[u8], linked: bool) -> Vec<u8> {
        let descriptor = [if linked { 0x5c } else { 0x7c }, 0x40];
        let descriptor = [&descriptor[..], &(text.len() as u64).to_le_bytes()].concat();
        let mut frame = [b"\x04\x22\x4d\x18", &descriptor[..], &[(xxh32(&descriptor, 0) >> 8) as u8]].concat();
        for (number, block) in text.chunks(1 << 16).enumerate() {
            let before = &text[(number << 16).saturating_sub(1 << 16)..number << 16];
            let small = match linked {
                true => lz4_flex::block::compress_with_dict(block, before),
                false => lz4_flex::block::compress(block),
            };
            let (word, stored) = match small.len() < block.len() {
                true => (small.len() as u32, &small[..]),
                false => (block.len() as u32 | 1 << 31, block),
            };
            frame.extend(word.to_le_bytes());
            frame.extend(stored);
            frame.extend(xxh32(stored, 0).to_le_bytes());
        }
        frame.extend([0; 4]);
        frame.extend(xxh32(text, 0).to_le_bytes());
        frame
    }

    fn text() -> Vec<u8> {
        let numbers =
            (0..20_000u32).flat_map(|number| (number.wrapping_mul(2_654_435_761) >> 20).to_string().into_bytes());
        // Some of the content repeats, some is random.
        let noise = (0..30_000u64).map(|number| (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 37) as u8);
        numbers.clone().chain(noise.collect::<Vec<_>>()).chain(numbers.take(60_000)).collect()
    }

    fn skippable(len: u32) -> Vec<u8> {
        [b"\x50\x2a\x4d\x18", &len.to_le_bytes()[..], &vec![7; len as usize]].concat()
    }

    #[test]
    fn streams_that_follow_one_another_are_one() {
        let text = text();
        assert_eq!(read(&text).expect("plain"), text);
        assert_eq!(read(b"").expect("nothing"), b"");
        let (front, back) = text.split_at(30_000);
        for format in FORMATS {
            let whole = compressed(format, &text);
            assert!(read(&whole).expect("a stream") == text, "{format}");
            let both = [compressed(format, front), compressed(format, back)].concat();
            if format == "lzma" {
                assert!(read(&both).is_err());
            } else {
                assert!(read(&both).expect("two streams") == text, "{format}");
            }
            // Data other than another compressed stream cause an error.
            for other in [&b"other"[..], b"\0\0\0other", b"\x01"] {
                assert!(read(&[&whole[..], other].concat()).is_err(), "{format} {other:?}");
            }
        }
        let gzip = compressed("gzip", &text);
        assert!(read(&[&gzip[..], &[0; 100_000]].concat()).expect("a tape") == text);
        assert!(read(&[&gzip[..], &[0; 100], b"other"].concat()).is_err());
    }

    #[test]
    fn skippable_frames_are_skipped() {
        let text = text();
        for format in ["zstd", "lz4", "lz4 legacy"] {
            let whole = compressed(format, &text);
            for parts in [
                [skippable(4), whole.clone(), skippable(0)],
                [skippable(100_000), skippable(1), whole.clone()],
                [skippable(0), whole, skippable(70_000)],
            ] {
                assert!(read(&parts.concat()).expect(format) == text, "{format}");
            }
        }
        let mixed = [compressed("lz4 legacy", &text), skippable(9), compressed("lz4 linked", &text)].concat();
        assert!(read(&mixed).expect("frames") == [&text[..], &text].concat());
        assert_eq!(read(&skippable(10)).expect("nothing"), b"");
        for damaged in [skippable(10)[..17].to_vec(), [skippable(3), b"text".to_vec()].concat()] {
            assert!(read(&damaged).is_err(), "{damaged:?}");
        }
        assert!(read(&[skippable(3), compressed("gzip", &text)].concat()).is_err());
    }

    /// The same with two streams: a complete first one must not hide that the second is truncated.
    #[test]
    fn no_part_of_a_stream_is_taken_for_the_whole() {
        let text = text();
        for format in FORMATS {
            let whole = compressed(format, &text);
            let both = [&whole[..], &whole].concat();
            for front in [0, whole.len()] {
                for len in [1, 3, 7, 14, 100, whole.len() / 2, whole.len() - 9, whole.len() - 4, whole.len() - 1] {
                    let cut = &both[..front + len];
                    match read(cut) {
                        Err(_) => {}
                        // Too short for a magic number.
                        Ok(read) => assert!(front == 0 && read == cut && len <= 7, "{format}: {front} and {len}"),
                    }
                }
            }
            if format == "lz4 legacy" || format == "lzma" {
                continue;
            }
            for at in [whole.len() / 2, whole.len() - 6] {
                let mut damaged = whole.clone();
                damaged[at] ^= 0x55;
                assert!(read(&damaged).is_err(), "{format}: byte {at}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Any bytes are decoded in bounded time and without a panic.
        #[test]
        fn any_bytes_are_read_or_refused(
            format in 0..FORMATS.len(), at in any::<prop::sample::Index>(), bits in 1..=255u8, cut in any::<prop::sample::Index>(),
        ) {
            let text = text();
            let mut bytes = compressed(FORMATS[format], &text[..40_000]);
            let at = at.index(bytes.len());
            bytes[at] ^= bits;
            bytes.truncate(bytes.len() - cut.index(bytes.len()) / 4);
            let _ = read(&bytes);
        }
    }
}

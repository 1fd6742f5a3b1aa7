//! Compressed archives, read sequentially.

use std::io::{self, BufRead, BufReader, ErrorKind, Read};

use flate2::bufread::GzDecoder;
use liblzma::bufread::XzDecoder;
use liblzma::stream::{CONCATENATED, Stream};

use crate::image::{MAGIC_BYTES, compressor_of};

/// Memory limit of the xz decoder. `xz -9` needs 65 MiB, `zstd --ultra -22` 128 MiB.
const MOST_XZ_BYTES: u64 = 1 << 30;

/// Returns the content of `source`, decompressed if it is gzip, zstd or xz. Several consecutive
/// compressed streams are read as one. Reading fails if a stream is damaged or truncated.
///
/// # Errors
/// The data have another compression format; the error says how to read them.
pub(crate) fn decompressed<'a>(source: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let mut source = BufReader::with_capacity(1 << 16, source);
    let mut front = Vec::new();
    // A pipe may return less per read.
    source.by_ref().take(MAGIC_BYTES as u64).read_to_end(&mut front)?;
    let compressor = compressor_of(&front);
    let source = BufReader::with_capacity(1 << 16, io::Cursor::new(front).chain(source));
    Ok(match compressor {
        None => Box::new(source),
        Some("gzip") => Box::new(Gzip { state: GzipState::Between(source), first: true }),
        Some("zstd") => Box::new(zstd::Decoder::with_buffer(source)?),
        Some("xz") => {
            let stream = Stream::new_stream_decoder(MOST_XZ_BYTES, CONCATENATED)?;
            Box::new(XzDecoder::new_stream(source, stream))
        }
        Some(program) => {
            let advice =
                format!("it is compressed; decompress it first: {program} -dc ARCHIVE | pagefold pack - -o IMAGE");
            return Err(io::Error::new(ErrorKind::Unsupported, advice));
        }
    })
}

/// Members of the gzip format, and the zero padding of a tape after them.
struct Gzip<R> {
    state: GzipState<R>,
    first: bool,
}

enum GzipState<R> {
    Between(R),
    Inside(Box<GzDecoder<R>>),
    Ended,
}

impl<R: BufRead> Read for Gzip<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            match std::mem::replace(&mut self.state, GzipState::Ended) {
                GzipState::Ended => return Ok(0),
                GzipState::Inside(mut decoder) => {
                    let len = decoder.read(buf)?;
                    if len > 0 || buf.is_empty() {
                        self.state = GzipState::Inside(decoder);
                        return Ok(len);
                    }
                    self.state = GzipState::Between(decoder.into_inner());
                }
                GzipState::Between(mut source) => {
                    let front = source.fill_buf()?;
                    if self.first || front.first() == Some(&0x1f) {
                        self.first = false;
                        self.state = GzipState::Inside(Box::new(GzDecoder::new(source)));
                    } else if front.iter().all(|byte| *byte == 0) {
                        let len = front.len();
                        if len > 0 {
                            source.consume(len);
                            self.state = GzipState::Between(source);
                        }
                    } else {
                        return Err(io::Error::new(ErrorKind::InvalidData, "unexpected data after the gzip stream"));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use liblzma::write::XzEncoder;

    use super::*;

    fn read(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut read = Vec::new();
        decompressed(bytes)?.read_to_end(&mut read)?;
        Ok(read)
    }

    fn compressed(text: &[u8]) -> [Vec<u8>; 3] {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(text).expect("memory");
        let mut xz = XzEncoder::new(Vec::new(), 6);
        xz.write_all(text).expect("memory");
        [gzip.finish().expect("memory"), zstd::encode_all(text, 3).expect("memory"), xz.finish().expect("memory")]
    }

    fn text() -> Vec<u8> {
        (0..20_000u32).flat_map(|number| (number.wrapping_mul(2_654_435_761) >> 20).to_string().into_bytes()).collect()
    }

    #[test]
    fn streams_that_follow_one_another_are_one() {
        let text = text();
        assert_eq!(read(&text).expect("plain"), text);
        assert_eq!(read(b"").expect("nothing"), b"");
        let (front, back) = text.split_at(30_000);
        for (one, two) in compressed(front).into_iter().zip(compressed(back)) {
            assert_eq!(read(&[one, two].concat()).expect("two streams"), text);
        }
        let [gzip, ..] = compressed(&text);
        assert_eq!(read(&[&gzip[..], &[0; 100_000]].concat()).expect("a tape"), text);
        assert!(read(&[&gzip[..], b"other"].concat()).is_err());
        assert!(read(&[&gzip[..], &[0; 100], b"other"].concat()).is_err());
        assert!(read(b"BZh91AY").unwrap_err().to_string().contains("bzip2 -dc"));
    }

    /// Also for two streams: a complete one in front must not hide that the second is truncated.
    #[test]
    fn no_part_of_a_stream_is_taken_for_the_whole() {
        let text = text();
        for whole in compressed(&text) {
            let both = [&whole[..], &whole].concat();
            for front in [0, whole.len()] {
                for len in [7, 12, 100, whole.len() / 2, whole.len() - 9, whole.len() - 4, whole.len() - 1] {
                    assert!(read(&both[..front + len]).is_err(), "{front} and {len} of {}", whole.len());
                }
                for at in [whole.len() / 2, whole.len() - 6] {
                    let mut damaged = both.clone();
                    damaged[front + at] ^= 0x55;
                    // Zstandard without a checksum, as the library writes it, detects only
                    // violations of the format.
                    if let Ok(read) = read(&damaged) {
                        assert!(whole.starts_with(b"\x28\xb5\x2f\xfd") && read.len() == 2 * text.len());
                    }
                }
            }
        }
    }
}

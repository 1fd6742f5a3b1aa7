//! Frames of LZ4, also legacy ones, with blocks that lz4_flex decodes.
//!
//! ```text
//! frame   04224d18, FLG, BD, [content size: 8], [dictionary: 4], checksum of these: 1,
//!         blocks, 0: 4, [checksum of the content: 4]
//! block   size: 4 (highest bit: stored uncompressed), bytes, [their checksum: 4]
//! legacy  02214c18, blocks of 8 MiB; ends before another magic number, or with the file
//! ```
//!
//! A legacy frame that is cut between two blocks looks complete.

use std::io::{self, BufRead, ErrorKind, Read};

use xxhash_rust::xxh32::{Xxh32, xxh32};

use crate::error::invalid;
use crate::peek::Peek;

const MAGIC: [u8; 4] = [0x04, 0x22, 0x4d, 0x18];
const LEGACY_MAGIC: [u8; 4] = [0x02, 0x21, 0x4c, 0x18];
const LEGACY_BLOCK_BYTES: usize = 8 << 20;

/// Content before a block that the block may refer to.
const WINDOW_BYTES: usize = 64 << 10;

/// A frame being decoded.
pub(crate) struct Frame<R> {
    source: Peek<R>,
    /// `None`: a legacy frame.
    header: Option<Header>,
    ended: bool,
    /// The block as stored.
    stored: Vec<u8>,
    /// The decoded block, and how much of it was read.
    block: Vec<u8>,
    read: usize,
    /// Content before the block, at most [`WINDOW_BYTES`]; empty if blocks are independent.
    window: Vec<u8>,
    content: Xxh32,
    content_bytes: u64,
}

struct Header {
    independent: bool,
    block_checksums: bool,
    content_checksum: bool,
    content_bytes: Option<u64>,
    most_block_bytes: usize,
}

impl<R: Read> Frame<R> {
    /// Begins to decode a frame.
    pub(crate) fn new(mut source: Peek<R>) -> io::Result<Self> {
        let header = match take(&mut source)? {
            MAGIC => Some(Header::read(&mut source)?),
            LEGACY_MAGIC => None,
            _ => return Err(invalid("other data follow the LZ4 frame")),
        };
        Ok(Self {
            source,
            header,
            ended: false,
            stored: Vec::new(),
            block: Vec::new(),
            read: 0,
            window: Vec::new(),
            content: Xxh32::new(0),
            content_bytes: 0,
        })
    }

    pub(crate) fn into_inner(self) -> Peek<R> {
        self.source
    }

    /// Decodes the next block, or ends.
    fn next(&mut self) -> io::Result<()> {
        self.keep_window();
        self.read = 0;
        self.block.clear();
        let Some(header) = &self.header else { return self.next_legacy() };
        let word = u32::from_le_bytes(take(&mut self.source)?);
        if word == 0 {
            self.ended = true;
            if header.content_bytes.is_some_and(|bytes| bytes != self.content_bytes) {
                return Err(invalid("the LZ4 frame has another size than its header says"));
            }
            if header.content_checksum && u32::from_le_bytes(take(&mut self.source)?) != self.content.digest() {
                return Err(invalid("the checksum of the LZ4 frame is wrong"));
            }
            return Ok(());
        }
        let (is_plain, len) = (word >> 31 == 1, (word & 0x7fff_ffff) as usize);
        if len > header.most_block_bytes {
            return Err(invalid("an LZ4 block is larger than its frame allows"));
        }
        fill(&mut self.source, &mut self.stored, len)?;
        if header.block_checksums && u32::from_le_bytes(take(&mut self.source)?) != xxh32(&self.stored, 0) {
            return Err(invalid("the checksum of an LZ4 block is wrong"));
        }
        if is_plain {
            self.block.extend_from_slice(&self.stored);
        } else {
            decode(&self.stored, &self.window, header.most_block_bytes, &mut self.block)?;
        }
        if header.content_checksum {
            self.content.update(&self.block);
        }
        self.content_bytes += self.block.len() as u64;
        Ok(())
    }

    fn next_legacy(&mut self) -> io::Result<()> {
        let most_stored = lz4_flex::block::get_maximum_output_size(LEGACY_BLOCK_BYTES);
        let len = match self.source.peek(4)? {
            [] => None,
            [a, b, c, d, ..] => Some(u32::from_le_bytes([*a, *b, *c, *d]) as usize),
            _ => return Err(ErrorKind::UnexpectedEof.into()),
        };
        // Every magic number is larger.
        let Some(len) = len.filter(|len| *len <= most_stored) else {
            self.ended = true;
            return Ok(());
        };
        self.source.consume(4);
        fill(&mut self.source, &mut self.stored, len)?;
        decode(&self.stored, &[], LEGACY_BLOCK_BYTES, &mut self.block)
    }

    fn keep_window(&mut self) {
        if self.header.as_ref().is_some_and(|header| !header.independent) {
            let new = &self.block[self.block.len().saturating_sub(WINDOW_BYTES)..];
            let old = (self.window.len() + new.len()).saturating_sub(WINDOW_BYTES);
            self.window.drain(..old);
            self.window.extend_from_slice(new);
        }
    }
}

impl Header {
    fn read(source: &mut Peek<impl Read>) -> io::Result<Self> {
        let mut bytes = take::<2>(source)?.to_vec();
        let (flags, sizes) = (bytes[0], bytes[1]);
        if flags & 0b1100_0010 != 0b0100_0000 || sizes & 0b1000_1111 != 0 {
            return Err(invalid("the LZ4 frame is of an unknown version"));
        }
        let most_block_bytes = match sizes >> 4 {
            size @ 4..=7 => 1 << (8 + 2 * size),
            _ => return Err(invalid("the LZ4 frame has an unknown block size")),
        };
        let mut content_bytes = None;
        if flags & 1 << 3 != 0 {
            let size = take(source)?;
            bytes.extend(size);
            content_bytes = Some(u64::from_le_bytes(size));
        }
        if flags & 1 != 0 {
            return Err(io::Error::new(ErrorKind::Unsupported, "the LZ4 frame needs a dictionary"));
        }
        if take(source)? != [(xxh32(&bytes, 0) >> 8) as u8] {
            return Err(invalid("the checksum of an LZ4 frame's header is wrong"));
        }
        Ok(Self {
            independent: flags & 1 << 5 != 0,
            block_checksums: flags & 1 << 4 != 0,
            content_checksum: flags & 1 << 2 != 0,
            content_bytes,
            most_block_bytes,
        })
    }
}

impl<R: Read> Read for Frame<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.read == self.block.len() && !self.ended {
            self.next()?;
        }
        let rest = &self.block[self.read..];
        let len = rest.len().min(buf.len());
        buf[..len].copy_from_slice(&rest[..len]);
        self.read += len;
        Ok(len)
    }
}

fn take<const LEN: usize>(source: &mut impl Read) -> io::Result<[u8; LEN]> {
    let mut bytes = [0; LEN];
    source.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Replaces the content of `bytes` with the next `len` bytes.
fn fill(source: &mut impl Read, bytes: &mut Vec<u8>, len: usize) -> io::Result<()> {
    bytes.clear();
    match source.take(len as u64).read_to_end(bytes)? {
        read if read == len => Ok(()),
        _ => Err(ErrorKind::UnexpectedEof.into()),
    }
}

fn decode(stored: &[u8], window: &[u8], most_bytes: usize, block: &mut Vec<u8>) -> io::Result<()> {
    block.resize(most_bytes, 0);
    let decoded = lz4_flex::block::decompress_into_with_dict(stored, block, window);
    block.truncate(decoded.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?);
    Ok(())
}

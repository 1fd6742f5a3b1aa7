//! The blocks of a stream: writing, reading, and the fields in them.

use std::io::{Read, Write};

use super::{ExportError, HEADER, HINTS, ImportError, MAGIC, MAY_SKIP};

/// Bytes of a block's header.
const HEADER_BYTES: usize = 12;

/// A block is written once it has this many bytes.
const ENOUGH_BYTES: usize = 512 << 10;

/// The maximum size of a block in bytes: a disk's record may name all layers of a pool.
const BLOCK_MAX: usize = 8 << 20;

/// Writes blocks. Added bytes go to the current block.
pub(super) struct BlockWriter<'a> {
    out: &'a mut dyn Write,
    /// The block's header, which is filled in last, and its bytes.
    block: Vec<u8>,
    kind: u16,
    check: u32,
    written_bytes: u64,
}

impl<'a> BlockWriter<'a> {
    /// Begins a stream, or continues with one whose last part [ended](Self::end) with this check.
    pub(super) fn begin(out: &'a mut dyn Write, before: Option<u32>) -> Result<Self, ExportError> {
        let check = before.unwrap_or_else(|| crc32c::crc32c(&MAGIC));
        let mut writer = Self { out, block: vec![0; HEADER_BYTES], kind: HEADER, check, written_bytes: 0 };
        if before.is_none() {
            writer.write(&MAGIC)?;
        }
        Ok(writer)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), ExportError> {
        self.written_bytes += bytes.len() as u64;
        self.out.write_all(bytes).map_err(ExportError::Write)
    }

    /// Returns the bytes of a block of `kind`, to append a record. Begins a new block if the current
    /// one is of another kind or long enough.
    pub(super) fn record(&mut self, kind: u16) -> Result<&mut Vec<u8>, ExportError> {
        if kind != self.kind || self.block.len() >= ENOUGH_BYTES {
            self.end_block()?;
            self.kind = kind;
        }
        Ok(&mut self.block)
    }

    /// Returns the bytes of the current block, to append more of the same record.
    pub(super) fn same_record(&mut self) -> &mut Vec<u8> {
        &mut self.block
    }

    /// Writes the current block.
    pub(super) fn end_block(&mut self) -> Result<(), ExportError> {
        let len = self.block.len() - HEADER_BYTES;
        if len == 0 {
            return Ok(());
        }
        self.block[..2].copy_from_slice(&self.kind.to_le_bytes());
        self.block[2..4].copy_from_slice(&if self.kind == HINTS { MAY_SKIP } else { 0 }.to_le_bytes());
        self.block[4..8].copy_from_slice(&(len as u32).to_le_bytes());
        self.check = check(self.check, &self.block[..8], &self.block[HEADER_BYTES..]);
        self.block[8..HEADER_BYTES].copy_from_slice(&self.check.to_le_bytes());
        let mut block = std::mem::take(&mut self.block);
        let written = self.write(&block);
        block.truncate(HEADER_BYTES);
        block.fill(0);
        self.block = block;
        written
    }

    /// Writes the last block of the stream or of a part of it. Returns the check so far, and the bytes
    /// of the part.
    pub(super) fn end(mut self) -> Result<(u32, u64), ExportError> {
        self.end_block()?;
        self.out.flush().map_err(ExportError::Write)?;
        Ok((self.check, self.written_bytes))
    }
}

fn check(before: u32, head: &[u8], bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(before, head), bytes)
}

/// Reads blocks.
pub(super) struct BlockReader<'a> {
    input: &'a mut dyn Read,
    block: Vec<u8>,
    check: u32,
}

impl<'a> BlockReader<'a> {
    /// Begins to read a stream.
    pub(super) fn begin(input: &'a mut dyn Read) -> Result<Self, ImportError> {
        let mut reader = Self { input, block: Vec::new(), check: crc32c::crc32c(&MAGIC) };
        reader.fill(MAGIC.len())?;
        if reader.block != MAGIC {
            return Err(ImportError::invalid("it does not begin like one"));
        }
        Ok(reader)
    }

    /// Reads the next `len` bytes. Memory is taken as they arrive.
    fn fill(&mut self, len: usize) -> Result<(), ImportError> {
        self.block.clear();
        let read = (&mut *self.input).take(len as u64).read_to_end(&mut self.block).map_err(ImportError::Read)?;
        if read < len { Err(ImportError::invalid("it ends early")) } else { Ok(()) }
    }

    /// Returns the kind and the bytes of the next block of one of the `known` kinds.
    pub(super) fn next(&mut self, known: &[u16]) -> Result<(u16, Fields<'_>), ImportError> {
        loop {
            let (kind, flags) = self.read_block()?;
            if known.contains(&kind) {
                return Ok((kind, Fields(&self.block)));
            }
            if flags & MAY_SKIP == 0 {
                return Err(ImportError::invalid("a block of an unknown kind, or out of order"));
            }
        }
    }

    /// Reads a block, and returns its kind and its flags.
    fn read_block(&mut self) -> Result<(u16, u16), ImportError> {
        self.fill(HEADER_BYTES)?;
        let mut fields = Fields(&self.block);
        let head: [u8; 8] = *self.block.first_chunk().ok_or(ImportError::invalid("it ends early"))?;
        let (kind, flags, len, expected) = (fields.u16()?, fields.u16()?, fields.u32()? as usize, fields.u32()?);
        if len > BLOCK_MAX {
            return Err(ImportError::invalid("too long a block"));
        }
        self.fill(len)?;
        self.check = check(self.check, &head, &self.block);
        // A fuzzer does not find checksums.
        if self.check != expected && !cfg!(fuzzing) {
            return Err(ImportError::invalid("the bytes do not match their checksum"));
        }
        Ok((kind, flags))
    }
}

/// Bytes of which the fields are read one after another.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn bytes(&mut self, len: usize) -> Result<&'a [u8], ImportError> {
        self.0.split_off(..len).ok_or(ImportError::invalid("a record ends early"))
    }

    /// Returns the next `len` bytes as fields.
    pub(super) fn part(&mut self, len: usize) -> Result<Self, ImportError> {
        self.bytes(len).map(Self)
    }

    /// Returns all bytes that are left.
    pub(super) fn rest(self) -> &'a [u8] {
        self.0
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ImportError> {
        let (first, rest) = self.0.split_first_chunk().ok_or(ImportError::invalid("a record ends early"))?;
        self.0 = rest;
        Ok(*first)
    }

    pub(super) fn u8(&mut self) -> Result<u8, ImportError> {
        self.array().map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self) -> Result<u16, ImportError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, ImportError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, ImportError> {
        self.array().map(u64::from_le_bytes)
    }
}

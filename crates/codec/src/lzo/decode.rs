//! The decoder.
//!
//! ```text
//! copy the literals of the first byte
//! loop: read an instruction
//!       a run of literals: copy it
//!       otherwise: copy the match, then its 0 to 3 literals
//!       the end: the page must be full and the object used up
//! ```
//!
//! Deviations for speed, all in safe code: where both buffers have room, literals and matches are
//! copied in whole words that may pass their end, over bytes that are written again later. Only
//! near an end is the length exact.

use super::format::{FIRST_LITERALS, RUNS_HEADER, Version, ZEROS_LEAST};
use crate::{Corrupt, PAGE_SIZE, Page};

const CUT: Corrupt = Corrupt { what: "lzo stream is truncated" };
const TOO_LONG: Corrupt = Corrupt { what: "lzo stream is longer than a page" };
const TOO_FAR: Corrupt = Corrupt { what: "lzo match begins before the page" };

/// Bytes copied together.
const WORD: usize = 16;

/// Decodes `object` to exactly one page. After an error `page` holds the bytes decoded so far
/// followed by up to 15 bytes of other data.
pub(super) fn decode(object: &[u8], page: &mut Page, version: Version) -> Result<(), Corrupt> {
    let mut reader = Reader { object, at: 0 };
    let mut runs = false;
    if version == Version::Runs && object.starts_with(&RUNS_HEADER[..1]) {
        if !object.starts_with(&RUNS_HEADER) {
            return Err(Corrupt { what: "unknown lzo stream version" });
        }
        reader.at = RUNS_HEADER.len();
        runs = true;
    }
    let mut writer = Writer { page, at: 0 };
    // Number of literals directly before the instruction; 4 means 4 or more.
    let mut literals = 0;
    let first = usize::from(*object.get(reader.at).ok_or(CUT)?);
    if first > FIRST_LITERALS {
        reader.at += 1;
        writer.literals(&mut reader, first - FIRST_LITERALS)?;
        literals = (first - FIRST_LITERALS).min(4);
    }
    loop {
        let opcode = usize::from(reader.byte()?);
        let (len, distance, trailing);
        if opcode >= 64 {
            len = (opcode >> 5) + 1;
            distance = (usize::from(reader.byte()?) << 3) + (opcode >> 2 & 7) + 1;
            trailing = opcode & 3;
        } else if opcode >= 32 {
            len = reader.length(opcode & 31, 31)? + 2;
            let operand = reader.u16()?;
            distance = (operand >> 2) + 1;
            trailing = operand & 3;
        } else if opcode >= 16 {
            if runs && opcode & 8 != 0 && reader.peek_u16().is_some_and(|operand| operand >> 2 == 0x3fff) {
                trailing = reader.u16()? & 3;
                writer.zeros((usize::from(reader.byte()?) << 3 | opcode & 7) + ZEROS_LEAST)?;
                writer.literals(&mut reader, trailing)?;
                literals = trailing;
                continue;
            }
            reader.length(opcode & 7, 7)?;
            let operand = reader.u16()?;
            if opcode & 8 != 0 || operand >> 2 != 0 {
                return Err(TOO_FAR);
            }
            return if reader.at != object.len() {
                Err(Corrupt { what: "bytes after the end of an lzo stream" })
            } else if writer.at != PAGE_SIZE {
                Err(Corrupt { what: "lzo stream is shorter than a page" })
            } else {
                Ok(())
            };
        } else if literals == 0 {
            let run = reader.length(opcode, 15)? + 3;
            writer.literals(&mut reader, run)?;
            literals = 4;
            continue;
        } else {
            let near = (usize::from(reader.byte()?) << 2) + (opcode >> 2) + 1;
            (len, distance) = if literals < 4 { (2, near) } else { (3, near + 2048) };
            trailing = opcode & 3;
        }
        writer.repeat(len, distance)?;
        if trailing != 0 {
            writer.trailing(&mut reader, trailing)?;
        }
        literals = trailing;
    }
}

/// The rest of the object.
struct Reader<'a> {
    object: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    #[inline(always)]
    fn byte(&mut self) -> Result<u8, Corrupt> {
        let byte = *self.object.get(self.at).ok_or(CUT)?;
        self.at += 1;
        Ok(byte)
    }

    #[inline(always)]
    fn peek_u16(&self) -> Option<usize> {
        let bytes = self.object.get(self.at..)?.first_chunk()?;
        Some(usize::from(u16::from_le_bytes(*bytes)))
    }

    #[inline(always)]
    fn u16(&mut self) -> Result<usize, Corrupt> {
        let operand = self.peek_u16().ok_or(CUT)?;
        self.at += 2;
        Ok(operand)
    }

    /// Returns the length whose field is `field`, extended by further bytes if that is 0. It is at
    /// most 255 per byte of the object, so it cannot overflow.
    #[inline(always)]
    fn length(&mut self, field: usize, most: usize) -> Result<usize, Corrupt> {
        if field != 0 {
            return Ok(field);
        }
        let mut len = most;
        loop {
            match self.byte()? {
                0 => len += 255,
                last => return Ok(len + usize::from(last)),
            }
        }
    }
}

/// The page and the number of bytes done.
struct Writer<'a> {
    page: &'a mut Page,
    at: usize,
}

impl Writer<'_> {
    /// Copies `len` bytes of the object.
    #[inline(always)]
    fn literals(&mut self, reader: &mut Reader, len: usize) -> Result<(), Corrupt> {
        if len <= WORD
            && let Some(from) = reader.object.get(reader.at..).and_then(|rest| rest.first_chunk::<WORD>())
            && let Some(to) = self.page.get_mut(self.at..).and_then(|rest| rest.first_chunk_mut::<WORD>())
        {
            *to = *from;
        } else {
            let from = reader.object.get(reader.at..).and_then(|rest| rest.get(..len)).ok_or(CUT)?;
            let to = self.page.get_mut(self.at..).and_then(|rest| rest.get_mut(..len)).ok_or(TOO_LONG)?;
            to.copy_from_slice(from);
        }
        reader.at += len;
        self.at += len;
        Ok(())
    }

    /// Copies the 1 to 3 literals that follow a match.
    #[inline(always)]
    fn trailing(&mut self, reader: &mut Reader, len: usize) -> Result<(), Corrupt> {
        if let Some(from) = reader.object.get(reader.at..).and_then(|rest| rest.first_chunk::<4>())
            && let Some(to) = self.page.get_mut(self.at..).and_then(|rest| rest.first_chunk_mut::<4>())
        {
            *to = *from;
            reader.at += len;
            self.at += len;
            Ok(())
        } else {
            self.literals(reader, len)
        }
    }

    fn zeros(&mut self, len: usize) -> Result<(), Corrupt> {
        self.page.get_mut(self.at..).and_then(|rest| rest.get_mut(..len)).ok_or(TOO_LONG)?.fill(0);
        self.at += len;
        Ok(())
    }

    /// Copies `len` bytes from `distance` bytes back; they may overlap the destination.
    #[inline(always)]
    fn repeat(&mut self, len: usize, distance: usize) -> Result<(), Corrupt> {
        if distance > self.at {
            return Err(TOO_FAR);
        }
        let from = self.at - distance;
        let end = self.at + len;
        if end > PAGE_SIZE - WORD {
            return self.repeat_near_end(len, distance);
        }
        if distance >= WORD {
            self.words::<WORD>(from, end);
        } else if distance >= 8 {
            self.words::<8>(from, end);
        } else {
            self.pattern(from, end, distance);
        }
        self.at = end;
        Ok(())
    }

    /// Copies up to `end` in steps of `N` ≤ the distance; writes up to `N` − 1 bytes more.
    #[inline(always)]
    fn words<const N: usize>(&mut self, mut from: usize, end: usize) {
        let mut to = self.at;
        loop {
            self.copy_word::<N>(from, to);
            from += N;
            to += N;
            if to >= end {
                return;
            }
        }
    }

    #[inline(always)]
    fn copy_word<const N: usize>(&mut self, from: usize, to: usize) {
        if let Some(word) = self.page.get(from..).and_then(|rest| rest.first_chunk::<N>()).copied()
            && let Some(place) = self.page.get_mut(to..).and_then(|rest| rest.first_chunk_mut::<N>())
        {
            *place = word;
        }
    }

    /// Repeats the preceding `distance` < 8 bytes up to `end`.
    #[inline(always)]
    fn pattern(&mut self, from: usize, end: usize, distance: usize) {
        let Some(word) = self.page.get(from..).and_then(|rest| rest.first_chunk::<8>()).copied() else { return };
        // The low `distance` bytes of the word, repeated to fill it: x·(1 + 2^8d + 2^16d + …).
        let kept = u64::from_le_bytes(word) & (u64::MAX >> (64 - 8 * distance as u32));
        let filled = kept.wrapping_mul(REPEATS[distance]).to_le_bytes();
        let step = STEPS[distance];
        let mut to = self.at;
        while to < end {
            if let Some(place) = self.page.get_mut(to..).and_then(|rest| rest.first_chunk_mut::<8>()) {
                *place = filled;
            }
            to += step;
        }
    }

    #[cold]
    fn repeat_near_end(&mut self, len: usize, distance: usize) -> Result<(), Corrupt> {
        if len > PAGE_SIZE - self.at {
            return Err(TOO_LONG);
        }
        for to in self.at..self.at + len {
            self.page[to] = self.page[to - distance];
        }
        self.at += len;
        Ok(())
    }
}

/// By distance, the factor that repeats that many low bytes over a word.
const REPEATS: [u64; 8] = {
    let mut repeats = [0; 8];
    let mut distance = 1;
    while distance < 8 {
        let mut at = 0;
        while at < 8 {
            repeats[distance] |= 1 << (8 * at);
            at += distance;
        }
        distance += 1;
    }
    repeats
};

/// By distance, its largest multiple that fits in a word.
const STEPS: [usize; 8] = [8, 8, 8, 6, 8, 5, 6, 7];

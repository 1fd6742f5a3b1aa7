//! What is behind something else: archives behind programs, and descriptions at the end of disks.

use std::io;

use crate::{
    headers::{NEW_CPIO_BYTES, cpio_lengths, crc32},
    source::Source,
};

/// How far from the end the description of a disk may be.
pub(crate) const TAIL_BYTES: u64 = 64 << 10;

/// The end record of a zip archive without its comment, and the longest comment.
const ZIP_END_BYTES: usize = 22;
const ZIP_COMMENT_BYTES: u64 = u16::MAX as u64;

/// A 7z or RAR archive begins within this many bytes of a program. Programs that unpack it have a
/// few hundred kilobytes.
const PROGRAM_BYTES: u64 = 1 << 20;

/// The first archive of an initramfs has fewer members, and at most this many zeros follow it.
const MOST_MEMBERS: usize = 1 << 8;
const MOST_PADDING_BYTES: u64 = 4 << 10;

fn be64(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map(|bytes| u64::from_be_bytes(*bytes))
}

fn le32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map(|bytes| u32::from_le_bytes(*bytes))
}

/// The last bytes, and where they begin.
fn tail(source: &Source<'_>, most_bytes: u64) -> io::Result<(Vec<u8>, u64)> {
    let len = source.len_bytes.min(most_bytes);
    let start = source.len_bytes - len;
    Ok((source.bytes(start, len as usize)?, start))
}

/// Looks for the footer of a VHD disk: the last 511 or 512 bytes, or, of a disk of a fixed size, with
/// other bytes behind it.
pub(crate) fn is_vhd(source: &Source<'_>) -> io::Result<bool> {
    const SECTOR_BYTES: usize = 512;
    const FIXED: &[u8] = b"\0\0\0\x02";
    let is_footer = |footer: &[u8]| {
        let rest = || footer[..64].iter().chain(&footer[68..]).map(|byte| u32::from(*byte));
        footer.len() >= SECTOR_BYTES - 1
            && footer.starts_with(b"conectix")
            && footer[12..16] == *b"\0\x01\0\0"
            && footer[64..68] == (!rest().sum::<u32>()).to_be_bytes()
    };
    // A disk that grows begins with a copy.
    if source.front.get(..SECTOR_BYTES).is_some_and(is_footer) {
        return Ok(true);
    }
    let (tail, start) = tail(source, TAIL_BYTES)?;
    let last = |bytes: usize| tail.len().checked_sub(bytes).and_then(|at| tail.get(at..)).is_some_and(is_footer);
    // Where the disk ends is known only if it ends in whole sectors.
    let aligned = (SECTOR_BYTES as u64 - start % SECTOR_BYTES as u64) % SECTOR_BYTES as u64;
    let mut behind = tail
        .get(aligned as usize..)
        .unwrap_or_default()
        .chunks_exact(SECTOR_BYTES)
        .zip((start + aligned..).step_by(SECTOR_BYTES));
    Ok(last(SECTOR_BYTES)
        || last(SECTOR_BYTES - 1)
        || behind.any(|(footer, at)| is_footer(footer) && footer[60..64] == *FIXED && be64(footer, 48) == Some(at)))
}

/// Looks for more data behind the first archive of an initramfs, which is often one with microcode.
/// Programs that read cpio archives stop there.
pub(crate) fn is_initramfs(source: &Source<'_>) -> io::Result<bool> {
    const TRAILER: &[u8] = b"TRAILER!!!\0";
    let mut at = 0;
    for _ in 0..MOST_MEMBERS {
        let header = source.bytes(at, NEW_CPIO_BYTES)?;
        let Some((content_bytes, name_bytes)) = cpio_lengths(&header) else { return Ok(false) };
        let name = at + NEW_CPIO_BYTES as u64;
        let end = (name + name_bytes).next_multiple_of(4);
        if source.bytes(name, TRAILER.len())? == TRAILER {
            // Archives are padded with zeros.
            let len = source.len_bytes.saturating_sub(end).min(MOST_PADDING_BYTES);
            return Ok(source.bytes(end, len as usize)?.iter().any(|byte| *byte != 0));
        }
        at = (end + content_bytes).next_multiple_of(4);
    }
    Ok(false)
}

/// Looks for where the description of a Nero disc image begins, which is before its own end.
pub(crate) fn is_nrg(source: &Source<'_>) -> io::Result<bool> {
    let (tail, start) = tail(source, 12)?;
    let begin = match tail.as_slice() {
        [b'N', b'E', b'R', b'5', ..] => be64(&tail, 4),
        [.., b'N', b'E', b'R', b'O', a, b, c, d] => Some(u64::from(u32::from_be_bytes([*a, *b, *c, *d]))),
        _ => None,
    };
    Ok(begin.is_some_and(|at| at < start))
}

/// Returns whether this is a program or a script, which may unpack what is behind it.
fn is_program(front: &[u8]) -> bool {
    [&b"MZ"[..], b"\x7fELF", b"#!"].iter().any(|magic| front.starts_with(magic))
}

/// Looks for a zip archive behind a program, by its end record, which leads to its directory.
pub(crate) fn is_program_with_zip(source: &Source<'_>) -> io::Result<bool> {
    if !is_program(&source.front) {
        return Ok(false);
    }
    let (tail, start) = tail(source, ZIP_END_BYTES as u64 + ZIP_COMMENT_BYTES)?;
    for (at, record) in tail.windows(ZIP_END_BYTES).enumerate().rev() {
        if !record.starts_with(b"PK\x05\x06") {
            continue;
        }
        let directory_bytes = le32(record, 12).map_or(0, u64::from);
        let directory = (start + at as u64).checked_sub(directory_bytes).filter(|_| directory_bytes > 0);
        let is_long = at >= 20 && tail[at - 20..].starts_with(b"PK\x06\x07");
        if is_long || directory.map(|at| source.bytes(at, 4)).transpose()?.is_some_and(|bytes| bytes == *b"PK\x01\x02")
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Looks behind a program for an archive that begins with `magic` and for which `is_header` holds.
fn is_behind_program(source: &Source<'_>, magic: &[u8], is_header: fn(&[u8]) -> bool) -> io::Result<bool> {
    if !is_program(&source.front) {
        return Ok(false);
    }
    let bytes = source.bytes(0, source.len_bytes.min(PROGRAM_BYTES) as usize)?;
    // Such programs contain the magic number itself.
    let mut places = bytes.windows(magic.len()).enumerate().filter(|(_, found)| *found == magic);
    Ok(places.any(|(at, _)| is_header(&bytes[at..])))
}

/// Looks for a 7z archive behind a program, by the checksum of its header.
pub(crate) fn is_program_with_7z(source: &Source<'_>) -> io::Result<bool> {
    is_behind_program(source, b"7z\xbc\xaf\x27\x1c\0", |found| {
        found.get(12..32).is_some_and(|header| le32(found, 8) == Some(crc32(header)))
    })
}

/// Looks for a RAR archive behind a program, by the checksum of its main header, in either version.
pub(crate) fn is_program_with_rar(source: &Source<'_>) -> io::Result<bool> {
    is_behind_program(source, b"Rar!\x1a\x07", |found| match found {
        [_, _, _, _, _, _, 0, low, high, rest @ ..] => {
            let main = rest.get(..11).filter(|main| main[0] == 0x73);
            main.is_some_and(|main| crc32(main) as u16 == u16::from_le_bytes([*low, *high]))
        }
        // The header is shorter than 128 bytes, so its length takes one.
        [_, _, _, _, _, _, 1, 0, _, _, _, _, len @ 1..=127, ..] => {
            let header = found.get(12..13 + usize::from(*len));
            header.is_some_and(|header| le32(found, 8) == Some(crc32(header)))
        }
        _ => false,
    })
}

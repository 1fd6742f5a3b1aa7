//! Tests of the first bytes of files whose magic number says too little: text may begin with it.

use flate2::{Crc, Decompress, FlushDecompress, Status};

/// The length of a header of a cpio archive in hexadecimal digits.
pub(crate) const NEW_CPIO_BYTES: usize = 110;

/// Bytes that a test is given, unless the file is shorter.
pub(crate) const FRONT_BYTES: usize = 4 << 10;

fn be16(front: &[u8], at: usize) -> Option<u16> {
    front.get(at..).and_then(<[u8]>::first_chunk).map(|bytes| u16::from_be_bytes(*bytes))
}

fn le16(front: &[u8], at: usize) -> Option<u16> {
    front.get(at..).and_then(<[u8]>::first_chunk).map(|bytes| u16::from_le_bytes(*bytes))
}

fn be32(front: &[u8], at: usize) -> Option<u32> {
    front.get(at..).and_then(<[u8]>::first_chunk).map(|bytes| u32::from_be_bytes(*bytes))
}

fn le32(front: &[u8], at: usize) -> Option<u32> {
    front.get(at..).and_then(<[u8]>::first_chunk).map(|bytes| u32::from_le_bytes(*bytes))
}

/// Returns the checksum of zip, 7z and ARJ (CRC-32).
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    let mut sum = Crc::new();
    sum.update(bytes);
    sum.sum()
}

/// Returns whether the byte at `at` is zero, or behind the end.
fn is_end_of_name(front: &[u8], at: usize) -> bool {
    front.get(at).is_none_or(|byte| *byte == 0)
}

/// A magic number, then versions 1 to 3, of either kind of sparse VMDK file.
pub(crate) fn is_sparse_vmdk(front: &[u8]) -> bool {
    (front.starts_with(b"KDMV") || front.starts_with(b"COWD")) && matches!(le32(front, 4), Some(1..=3))
}

/// Text. As for QEMU, the version is the first line that is neither empty nor a comment.
pub(crate) fn is_vmdk_descriptor(front: &[u8]) -> bool {
    let mut lines = front.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let has_title = lines.next() == Some(b"# Disk DescriptorFile");
    let version = lines.find(|line| !line.is_empty() && !line.starts_with(b"#"));
    has_title && matches!(version, Some(b"version=1" | b"version=2" | b"version=3"))
}

/// The name of the program that made it follows in UTF-16.
pub(crate) fn is_vhdx(front: &[u8]) -> bool {
    front.starts_with(b"vhdxfile") && front.get(9) == Some(&0)
}

/// A name, then a version at the same place in both versions.
pub(crate) fn is_partclone(front: &[u8]) -> bool {
    front.starts_with(b"partclone-image") && matches!(front.get(30..34), Some(b"0001" | b"0002"))
}

/// A version in the byte order of the machine follows.
pub(crate) fn is_libvirt_state(front: &[u8]) -> bool {
    let has_name = front.starts_with(b"LibvirtQemudSave") || front.starts_with(b"LibvirtQemudPart");
    has_name && front.get(16..20).is_some_and(|version| version.contains(&0))
}

/// Capabilities, or digests of objects follow.
pub(crate) fn is_git_bundle(front: &[u8]) -> bool {
    const DIGITS: usize = 40;
    let rest = front.strip_prefix(b"# v2 git bundle\n").or_else(|| front.strip_prefix(b"# v3 git bundle\n"));
    let Some(rest) = rest else { return false };
    let digest = rest.strip_prefix(b"-").unwrap_or(rest).get(..DIGITS);
    rest.starts_with(b"@") || digest.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
}

/// A magic number in either byte order, and the major version, 1 to 4.
pub(crate) fn is_squashfs(front: &[u8]) -> bool {
    let major = match front.get(..4) {
        Some(b"hsqs") => le16(front, 28),
        Some(b"sqsh") => be16(front, 28),
        _ => None,
    };
    matches!(major, Some(1..=4))
}

/// A magic number in either byte order, and a checksum of the node's header.
pub(crate) fn is_jffs2(front: &[u8]) -> bool {
    const MAGIC: u16 = 0x1985;
    let Some(header) = front.get(..8) else { return false };
    // CRC-32 that starts from 0 and is not inverted.
    let sum = crc32(header) ^ crc32(&[0; 8]);
    le16(front, 0) == Some(MAGIC) && le32(front, 8) == Some(sum)
        || be16(front, 0) == Some(MAGIC) && be32(front, 8) == Some(sum)
}

/// A magic number in either byte order, and a name.
pub(crate) fn is_cramfs(front: &[u8]) -> bool {
    const MAGIC: u32 = 0x28cd_3d45;
    front.get(16..32) == Some(b"Compressed ROMFS") && (le32(front, 0) == Some(MAGIC) || be32(front, 0) == Some(MAGIC))
}

/// A name, the size, and a checksum, with which the words of the first 512 bytes add up to 0.
pub(crate) fn is_romfs(front: &[u8]) -> bool {
    let Some(size) = be32(front, 8).filter(|_| front.starts_with(b"-rom1fs-")) else { return false };
    let summed = front.get(..(size as usize).min(512)).unwrap_or_default();
    let words = summed.chunks_exact(4).filter_map(|word| word.first_chunk().copied());
    !summed.is_empty() && words.map(u32::from_be_bytes).fold(0, u32::wrapping_add) == 0
}

/// The method and the flags of RFC 1950, a sum of both, and data that can be decompressed.
pub(crate) fn is_zlib(front: &[u8]) -> bool {
    let has_header = matches!(front, [0x08 | 0x18 | 0x28 | 0x38 | 0x48 | 0x58 | 0x68 | 0x78, flags, ..] if flags & 0x20 == 0)
        && be16(front, 0).is_some_and(|header| header % 31 == 0);
    if !has_header {
        return false;
    }
    let mut decoder = Decompress::new(true);
    let mut out = vec![0; 8 * FRONT_BYTES];
    match decoder.decompress(front, &mut out, FlushDecompress::None) {
        Ok(Status::StreamEnd) => true,
        // A part of a short file proves nothing.
        Ok(_) => front.len() == FRONT_BYTES || decoder.total_out() == out.len() as u64,
        Err(_) => false,
    }
}

/// Fields in octal digits, and the end of a name.
pub(crate) fn is_portable_cpio(front: &[u8]) -> bool {
    let Some(header) = front.first_chunk::<76>().filter(|header| header.starts_with(b"070707")) else { return false };
    let is_octal = header.iter().all(|byte| (b'0'..=b'7').contains(byte));
    let name_bytes = str::from_utf8(&header[59..65]).ok().and_then(|digits| usize::from_str_radix(digits, 8).ok());
    is_octal && name_bytes.is_some_and(|bytes| bytes > 0 && is_end_of_name(front, header.len() + bytes - 1))
}

/// The same in hexadecimal digits, with or without sums of the content.
pub(crate) fn is_new_cpio(front: &[u8]) -> bool {
    let lengths = cpio_lengths(front);
    lengths.is_some_and(|(_, name_bytes)| is_end_of_name(front, NEW_CPIO_BYTES + name_bytes as usize - 1))
}

/// Returns the lengths of the content and of the name, which is not empty, in such a header.
pub(crate) fn cpio_lengths(front: &[u8]) -> Option<(u64, u64)> {
    let header = front.first_chunk::<NEW_CPIO_BYTES>()?;
    let is_hex = header.iter().all(u8::is_ascii_hexdigit);
    let has_magic = header.starts_with(b"070701") || header.starts_with(b"070702");
    let number = |at: usize| {
        let digits = str::from_utf8(&header[at..at + 8]).ok();
        digits.and_then(|digits| u64::from_str_radix(digits, 16).ok())
    };
    let lengths = number(54).zip(number(94));
    lengths.filter(|(_, name_bytes)| has_magic && is_hex && *name_bytes > 0)
}

/// A line, and nothing or the header of a member.
pub(crate) fn is_ar(front: &[u8]) -> bool {
    let has_line = front.starts_with(b"!<arch>\n") || front.starts_with(b"!<thin>\n");
    has_line && (front.len() == 8 || front.get(66..68) == Some(b"`\n"))
}

/// The length of the header, and version 0 or 1.
pub(crate) fn is_xar(front: &[u8]) -> bool {
    front.starts_with(b"xar!") && matches!(be16(front, 4), Some(28..=512)) && matches!(be16(front, 6), Some(0 | 1))
}

/// A version, and fields of its own.
pub(crate) fn is_warc(front: &[u8]) -> bool {
    let version = front.strip_prefix(b"WARC/").and_then(|rest| rest.split(|byte| *byte == b'\n').next());
    let is_version = version.is_some_and(|line| {
        line.contains(&b'.') && line.trim_ascii_end().iter().all(|byte| byte.is_ascii_digit() || *byte == b'.')
    });
    is_version && front.windows(6).any(|bytes| bytes == b"\nWARC-")
}

/// The length of the first header, and its checksum.
pub(crate) fn is_arj(front: &[u8]) -> bool {
    const COMMENT: u8 = 2;
    let Some(len) = le16(front, 2).map(usize::from).filter(|_| front.starts_with(b"\x60\xea")) else { return false };
    let Some(header) = front.get(4..4 + len).filter(|_| (30..=2600).contains(&len)) else { return false };
    let has_first_part = (30..=len).contains(&usize::from(header[0])) && header[6] == COMMENT;
    has_first_part && le32(front, 4 + len) == Some(crc32(header))
}

/// A method of LHA, a level of the header, and what each level has: a sum, or the header's length.
pub(crate) fn is_lha(front: &[u8]) -> bool {
    let Some(header) = front.first_chunk::<24>() else { return false };
    let is_method = matches!(&header[2..7], [b'-', b'l', b'h' | b'z', kind, b'-'] if kind.is_ascii_alphanumeric())
        || matches!(&header[2..7], [b'-', b'p', b'm', b'0'..=b'2' | b's', b'-']);
    let has_sum = || {
        let summed = front.get(2..2 + usize::from(header[0]));
        summed.is_some_and(|bytes| bytes.iter().fold(0, |sum: u8, byte| sum.wrapping_add(*byte)) == header[1])
    };
    is_method
        && match header[20] {
            0 | 1 => has_sum(),
            2 => le16(header, 0).is_some_and(|len| len >= 26),
            3 => le16(header, 0) == Some(4),
            _ => false,
        }
}

/// A line in the first script of each archive.
pub(crate) fn is_makeself(front: &[u8]) -> bool {
    front.starts_with(b"#!/bin/sh\n# This script was generated using Makeself ")
}

/// The level of the format, and the kind of a block.
pub(crate) fn is_zpaq(front: &[u8]) -> bool {
    const LOCATOR: &[u8] = b"\x37\x6b\x53\x74\xa0\x31\x83\xd3\x8c\xb2\x28\xb0\xd3";
    let block = front.strip_prefix(LOCATOR).unwrap_or(front);
    matches!(block, [b'z', b'P', b'Q', 1 | 2, 1, ..])
}

/// A name that versions follow, with a zero: text has none.
pub(crate) fn is_ustar(front: &[u8]) -> bool {
    front.get(257..262) == Some(b"ustar") && front[..front.len().min(512)].contains(&0)
}

/// The block size, then the magic number of a block or of the end.
pub(crate) fn is_bzip2(front: &[u8]) -> bool {
    matches!(front, [b'B', b'Z', b'h', b'1'..=b'9', magic @ ..]
        if magic.starts_with(b"\x31\x41\x59\x26\x53\x59") || magic.starts_with(b"\x17\x72\x45\x38\x50\x90"))
}

/// There is no magic number: the usual properties, a size of the dictionary that encoders choose
/// (2ⁿ or 2ⁿ + 2ⁿ⁻¹), a plausible length, and the first byte of the range coder, which is 0.
pub(crate) fn is_lzma(front: &[u8]) -> bool {
    let Some(header) = front.first_chunk::<14>() else { return false };
    let dictionary = u32::from_le_bytes([header[1], header[2], header[3], header[4]]);
    let lowest = dictionary & dictionary.wrapping_neg();
    let usual = dictionary >= 4096 && [lowest, lowest.saturating_mul(3)].contains(&dictionary);
    let len = u64::from_le_bytes([5, 6, 7, 8, 9, 10, 11, 12].map(|at| header[at]));
    // With three or four bits of context for literals.
    matches!(header[0], 0x5d | 0x5e)
        && (usual || dictionary == u32::MAX)
        && (len == u64::MAX || len < 1 << 48)
        && header[13] == 0
}

/// Two bytes of magic number, then flags of which two bits are unused, and 9 to 16 bits a code. The
/// first code is a literal, so its ninth bit is 0.
pub(crate) fn is_compress(front: &[u8]) -> bool {
    matches!(front, [0x1f, 0x9d, flags, _, second, ..] if flags & 0x60 == 0 && (9..=16).contains(&(flags & 0x1f)) && second & 1 == 0)
}

/// Words of 32 bits in either order: the type of the first record, and a magic number of two versions.
pub(crate) fn is_dump(front: &[u8]) -> bool {
    let word = |at: usize| front.get(at..at + 4).and_then(<[u8]>::first_chunk);
    let (Some(first), Some(magic)) = (word(0), word(24)) else { return false };
    [u32::from_le_bytes, u32::from_be_bytes]
        .iter()
        .any(|of| of(*first) == 1 && matches!(of(*magic), 60011 | 60012 | 0x1954_0119))
}

/// A short magic number, the header's length, which some programs leave out, and the length of a block.
pub(crate) fn is_cso(front: &[u8]) -> bool {
    let Some(header) = front.first_chunk::<24>() else { return false };
    let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let has_block = word(16).is_power_of_two() && (512..=1 << 20).contains(&word(16));
    matches!(&header[..4], b"CISO" | b"ZISO") && matches!(word(4), 0 | 24) && has_block
}

/// Words of 16 bits in either order. The name's length includes its end, which is zero.
pub(crate) fn is_old_cpio(front: &[u8]) -> bool {
    let Some(header) = front.first_chunk::<26>() else { return false };
    let word: fn([u8; 2]) -> u16 = match (header[0], header[1]) {
        (0xc7, 0x71) => u16::from_le_bytes,
        (0x71, 0xc7) => u16::from_be_bytes,
        _ => return false,
    };
    let word = |at: usize| word([header[at], header[at + 1]]);
    let (mode, name_bytes) = (word(6), usize::from(word(20)));
    let kind = matches!(mode >> 12, 1 | 2 | 4 | 6 | 8 | 10 | 12) || mode == 0;
    kind && (1..=4000).contains(&name_bytes) && front.get(26 + name_bytes - 1) == Some(&0)
}

/// An archive from before POSIX has no magic number, but a sum of its first header, over signed or
/// unsigned bytes.
pub(crate) fn is_tar(front: &[u8]) -> bool {
    let Some(header) = front.first_chunk::<512>() else { return false };
    let (sum_at, spaces) = (148..156, 8 * u32::from(b' '));
    let digits = header[sum_at.clone()].trim_ascii_start();
    let digits = &digits[..digits.iter().take_while(|digit| (b'0'..=b'7').contains(digit)).count()];
    let Some(sum) = str::from_utf8(digits).ok().and_then(|digits| u32::from_str_radix(digits, 8).ok()) else {
        return false;
    };
    let rest = || header.iter().enumerate().filter(|(at, _)| !sum_at.contains(at)).map(|(_, byte)| *byte);
    let unsigned = rest().map(u32::from).sum::<u32>() + spaces;
    let signed = rest().map(|byte| i32::from(byte as i8)).sum::<i32>() + spaces as i32;
    header[0] != 0 && (sum == unsigned || i64::from(sum) == i64::from(signed))
}

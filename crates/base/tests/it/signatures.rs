//! What shows a format, and what only looks like it. Headers are built from the formats'
//! descriptions.

use flate2::{Compression, Crc, write::ZlibEncoder};
use pagefold_base::Signature;
use proptest::prelude::*;
use std::io::Write;

fn name_of(bytes: &[u8]) -> Option<&'static str> {
    Signature::of(&bytes.to_vec(), 0).expect("memory").map(Signature::name)
}

fn crc32(bytes: &[u8]) -> u32 {
    let mut sum = Crc::new();
    sum.update(bytes);
    sum.sum()
}

/// Returns these parts in a row of `len` zeros.
fn laid_out(len: usize, parts: &[(usize, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for (at, part) in parts {
        bytes[*at..at + part.len()].copy_from_slice(part);
    }
    bytes
}

/// Text that documents, or is named after, a format often begins with its magic number.
const STARTS: &[&str] = &[
    "070701",
    "070702",
    "070707",
    "-rom1fs-",
    "7kSt",
    "Bochs Virtual HD Image",
    "CISO",
    "COWD",
    "GRZipII",
    "KDMV",
    "LRZI",
    "LZIP",
    "LibvirtQemudPart",
    "LibvirtQemudSave",
    "MSCF",
    "MSWIM",
    "PK",
    "QEVM",
    "QFI",
    "Rar!",
    "UBI#",
    "VMA",
    "WARC/1.0",
    "WithouFreSpacExt",
    "WithoutFreeSpace",
    "ZISO",
    "conectix",
    "hsqs",
    "partclone-image",
    "sqsh",
    "vhdxfile",
    "x^",
    "xar!",
    "zPQ",
    "!<arch>\n",
    "# Disk DescriptorFile\n",
    "# v2 git bundle\n",
    "#!/bin/sh\n",
    "MZ",
    "age-encryption.org/v1\n",
];

/// Also at the end, or at an offset.
const WITHIN: &[(i64, &str)] = &[
    (2, "-lh5-"),
    (16, "Compressed ROMFS"),
    (257, "ustar"),
    (-512, "koly"),
    (-512, "conectix"),
    (-12, "NER5"),
    (-8, "NERO"),
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// A text is of no format, however it begins.
    #[test]
    fn a_text_is_a_text(
        start in prop::sample::select(STARTS),
        text in prop_oneof!["[ g-zG-Z.,:;\n]{0,700}", "[a-z]{1,9}( [a-z]{1,9}){100,900}\n"],
        (at, within) in prop::sample::select(WITHIN),
    ) {
        let begun = format!("{start}{text}");
        prop_assert_eq!(name_of(begun.as_bytes()), None);
        let mut text = text.into_bytes();
        let place = if at < 0 { text.len().checked_sub(at.unsigned_abs() as usize) } else { Some(at as usize) };
        if let Some(place) = place.filter(|place| place + within.len() <= text.len()) {
            text[place..place + within.len()].copy_from_slice(within.as_bytes());
            prop_assert_eq!(name_of(&text), None);
        }
    }
}

#[test]
fn headers_are_recognized() {
    let newc = format!("070701{}{:08x}{:08x}a\0", "0".repeat(11 * 8), 2, 0);
    let odc = format!("070707{}{:06o}{:011o}a\0", "0".repeat(53), 2, 0);
    let romfs = {
        let mut bytes = laid_out(512, &[(0, b"-rom1fs-"), (8, &512u32.to_be_bytes()), (16, b"volume")]);
        let words = bytes.chunks_exact(4).map(|word| u32::from_be_bytes(word.try_into().expect("a word")));
        let sum = words.fold(0, u32::wrapping_add).wrapping_neg();
        bytes[12..16].copy_from_slice(&sum.to_be_bytes());
        bytes
    };
    let arj = {
        let header = laid_out(43, &[(0, &[30, 11, 1]), (6, &[2]), (30, b"a.arj")]);
        let len = u16::try_from(header.len()).expect("short").to_le_bytes();
        [b"\x60\xea", &len[..], &header, &crc32(&header).to_le_bytes()].concat()
    };
    let lha = |level: u8| {
        let mut bytes = laid_out(40, &[(2, b"-lh5-"), (20, &[level])]);
        let (first, second) = match level {
            0 | 1 => (30, bytes[2..32].iter().fold(0, |sum: u8, byte| sum.wrapping_add(*byte))),
            2 => (40, 0),
            _ => (4, 0),
        };
        bytes[..2].copy_from_slice(&[first, second]);
        bytes
    };
    let zlib = |content: &[u8]| {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::new(6));
        encoder.write_all(content).and_then(|()| encoder.finish()).expect("memory")
    };
    let noise: Vec<u8> = (0..90_000u32).map(|n| (n.wrapping_mul(n).wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
    let squashfs = |magic: &[u8], major: [u8; 2]| laid_out(96, &[(0, magic), (28, &major)]);
    let ar = |line: &str| [line, &format!("{:<58}`\n", "a/")].concat().into_bytes();
    for (bytes, name) in [
        (newc.into_bytes(), "a cpio archive"),
        (odc.into_bytes(), "a cpio archive"),
        (romfs, "a romfs image"),
        (laid_out(76, &[(0, &0x28cd_3d45_u32.to_le_bytes()), (16, b"Compressed ROMFS")]), "a cramfs image"),
        (laid_out(76, &[(0, &0x28cd_3d45_u32.to_be_bytes()), (16, b"Compressed ROMFS")]), "a cramfs image"),
        (squashfs(b"hsqs", [4, 0]), "a squashfs image"),
        (squashfs(b"sqsh", [0, 3]), "a squashfs image"),
        // Markers of empty blocks, as mkfs.jffs2 writes them, and the header of a directory entry.
        (b"\x85\x19\x03\x20\x0c\0\0\0\xb1\xb0\x1e\xe4".to_vec(), "a JFFS2 file system"),
        (b"\x19\x85\x20\x03\0\0\0\x0c\xf0\x60\xdc\x98".to_vec(), "a JFFS2 file system"),
        (b"\x85\x19\x01\xe0\x30\0\0\0\x78\xbe\x3e\xfa".to_vec(), "a JFFS2 file system"),
        (arj, "an ARJ archive"),
        (lha(0), "an LHA archive"),
        (lha(1), "an LHA archive"),
        (lha(2), "an LHA archive"),
        (lha(3), "an LHA archive"),
        (zlib(b"a few words"), "zlib data"),
        (zlib(&noise), "zlib data"),
        (zlib(&[7; 90_000]), "zlib data"),
        (ar("!<arch>\n"), "an ar archive"),
        (b"!<thin>\n".to_vec(), "an ar archive"),
        (b"xar!\0\x1c\0\x01\0\0\0\0\0\0\0\0".to_vec(), "a xar archive"),
        (b"WARC/1.1\r\nContent-Length: 0\r\nWARC-Type: warcinfo\r\n".to_vec(), "a web archive (WARC)"),
        (b"LRZI\0\x06".to_vec(), "data compressed by lrzip"),
        (b"KDMV\x03\0\0\0".to_vec(), "a VMDK disk"),
        (b"COWD\x01\0\0\0".to_vec(), "a VMDK disk"),
        (b"# Disk DescriptorFile\r\n\r\n# by hand\r\nversion=1\r\n".to_vec(), "a VMDK disk"),
        (b"vhdxfileQ\0E\0M\0U\0".to_vec(), "a VHDX disk"),
        (laid_out(36, &[(0, b"partclone-imageEXTFS"), (30, b"0001")]), "a partclone image"),
        (laid_out(36, &[(0, b"partclone-image"), (30, b"0002")]), "a partclone image"),
        (b"LibvirtQemudSave\x02\0\0\0".to_vec(), "a saved state of a virtual machine (libvirt)"),
        (b"LibvirtQemudPart\0\0\0\x02".to_vec(), "a saved state of a virtual machine (libvirt)"),
        (b"# v3 git bundle\n@object-format=sha1\n".to_vec(), "a git bundle"),
        (format!("# v2 git bundle\n-{:040} a commit\n", 7).into_bytes(), "a git bundle"),
        (b"\x37\x6b\x53\x74\xa0\x31\x83\xd3\x8c\xb2\x28\xb0\xd3zPQ\x02\x01".to_vec(), "a ZPAQ archive"),
        (b"zPQ\x01\x01".to_vec(), "a ZPAQ archive"),
        (b"PK00PK\x03\x04".to_vec(), "a zip archive"),
        (
            b"#!/bin/sh\n# This script was generated using Makeself 2.5.0\n".to_vec(),
            "a self-extracting archive (Makeself)",
        ),
    ] {
        assert_eq!(name_of(&bytes), Some(name));
    }
}

/// A footer of a VHD disk that ends at `size`.
fn vhd_footer(size: u64, kind: u8) -> Vec<u8> {
    let parts: &[(usize, &[u8])] =
        &[(0, b"conectix\0\0\0\x02\0\x01\0\0"), (40, &size.to_be_bytes()), (48, &size.to_be_bytes()), (63, &[kind])];
    let mut footer = laid_out(512, parts);
    let sum = !footer.iter().map(|byte| u32::from(*byte)).sum::<u32>();
    footer[64..68].copy_from_slice(&sum.to_be_bytes());
    footer
}

#[test]
fn descriptions_at_the_end_of_disks_are_found() {
    let disk = vec![7; 8192];
    let footer = vhd_footer(disk.len() as u64, 2);
    let growing = vhd_footer(1 << 30, 3);
    for bytes in [
        [&disk[..], &footer].concat(),
        [&disk[..], &footer[..511]].concat(),
        [&disk[..], &footer, b"behind"].concat(),
        [&disk[..], &footer, &[0; 60_000]].concat(),
        [&disk[..], &growing].concat(),
        [&growing[..], &disk].concat(),
    ] {
        assert_eq!(name_of(&bytes), Some("a VHD disk"));
    }
    let mut damaged = footer.clone();
    damaged[70] ^= 1;
    // Of another disk, it is content.
    let other = vhd_footer(512, 2);
    for bytes in [[&disk[..], &damaged].concat(), [&disk[..], &other, &[0; 512]].concat(), vec![0; 511]] {
        assert_eq!(name_of(&bytes), None);
    }
    for (end, is_disc) in [
        ([&b"NER5"[..], &4096u64.to_be_bytes()].concat(), true),
        ([&b"NERO"[..], &4096u32.to_be_bytes()].concat(), true),
        ([&b"NER5"[..], &8192u64.to_be_bytes()].concat(), false),
    ] {
        assert_eq!(name_of(&[&disk[..], &end].concat()).is_some(), is_disc, "{end:?}");
    }
}

#[test]
fn archives_behind_programs_are_found() {
    let zip = {
        let directory = laid_out(47, &[(0, b"PK\x01\x02")]);
        let len = u32::try_from(directory.len()).expect("short").to_le_bytes();
        [b"PK\x03\x04", &directory[..], &laid_out(22, &[(0, b"PK\x05\x06"), (12, &len)])].concat()
    };
    let seven = {
        let header = [5; 20];
        [&b"7z\xbc\xaf\x27\x1c\0\x04"[..], &crc32(&header).to_le_bytes(), &header].concat()
    };
    let rar = {
        let header = laid_out(11, &[(0, &[0x73, 0, 0, 13, 0])]);
        [&b"Rar!\x1a\x07\0"[..], &crc32(&header).to_le_bytes()[..2], &header].concat()
    };
    let rar5 = {
        let header = [3, 1, 0, 0];
        [&b"Rar!\x1a\x07\x01\0"[..], &crc32(&header).to_le_bytes(), &header].concat()
    };
    for (archive, name) in
        [(zip, "a zip archive"), (seven, "a 7z archive"), (rar, "a RAR archive"), (rar5, "a RAR archive")]
    {
        for program in [&b"MZ"[..], b"\x7fELF", b"#!/bin/sh\ntail -c +99 \"$0\" >x\n"] {
            // The program knows the magic number, too.
            let program = [program, &archive[..8], &[9; 5000]].concat();
            assert_eq!(name_of(&program), None, "{name}");
            let whole = [&program[..], &archive].concat();
            assert_eq!(name_of(&whole), Some(name));
            // Signed, or with bytes that were appended.
            assert_eq!(name_of(&[&whole[..], b"behind"].concat()), Some(name));
            let mut damaged = whole;
            let last = damaged.len() - archive.len();
            damaged[last + 4..].fill(0x11);
            assert_eq!(name_of(&damaged), None, "{name}");
        }
        // A disk may contain anything.
        let disk = [&[7; 5000][..], &archive].concat();
        assert_eq!(name_of(&disk), None, "{name}");
    }
}

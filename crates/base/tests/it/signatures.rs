//! What shows a format, and what only looks like it. Headers are built from the formats'
//! descriptions.

use flate2::{Compression, Crc, write::ZlibEncoder};
use pagefold_base::Signature;
use pagefold_testing::programs;
use proptest::prelude::*;
use std::{fs, io::Write, path::Path, process::Command};

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
    "AFF10",
    "BZ3v1",
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
    "pbzx",
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
    "Salted__",
    "-----BEGIN PGP MESSAGE-----\n",
    "-----BEGIN PGP MESSAGE-----\n\n",
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
    let bitlocker_to_go = laid_out(
        512,
        &[(0, b"\xeb\x58\x90MSWIN4.1"), (424, b";\xd6gI).\xd8J\x83\x99\xf6\xa3\x39\xe3\xd0\x01"), (510, b"\x55\xaa")],
    );
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
        (b"BZ3v1\0\0\x10\0".to_vec(), "data compressed by bzip3"),
        (b"pbzx\0\0\0\0\x01\0\0\0".to_vec(), "data in blocks of xz (pbzx)"),
        (b"AFF10\r\n\0AFF\0".to_vec(), "a forensic image (AFF)"),
        (b"#!/bin/sh\n#V2.0 Format\nmodprobe cloop file=$0".to_vec(), "a compressed disk (cloop)"),
        (b"\xeb\x58\x90-FVE-FS-\0\x02".to_vec(), "a BitLocker volume, which is encrypted"),
        (bitlocker_to_go, "a BitLocker volume, which is encrypted"),
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

#[test]
fn encrypted_files_are_recognized() {
    let (message, openssl) = (Some("an OpenPGP message"), Some("data encrypted by 'openssl enc'"));
    let by_passphrase = b"\x8c\x0d\x04\x09\x03\x02saltsalt\xff";
    let for_rsa = [&b"\x85\x01\x0c\x03keyidkey\x01\x07\xfe"[..], &[0x81; 256]].concat();
    let for_curve = [&b"\x84\x5e\x03keyidkey\x12\x01\x07\x40"[..], &[0x81; 81]].concat();
    // The length of the data takes 1, 2 or 5 bytes, or they come in parts.
    for data in
        [&b"\xd2\x3c\x01"[..], b"\xd2\xc0\x10\x01", b"\xd2\xff\0\x04\x94\x19\x01", b"\xd2\xed\x01", b"\xd4\x3c\x01"]
    {
        for keys in
            [by_passphrase.to_vec(), [&for_rsa[..], &for_curve].concat(), [&for_curve[..], by_passphrase].concat()]
        {
            assert_eq!(name_of(&[&keys[..], data].concat()), message);
            // Without a key, of an unknown version, or cut.
            assert_eq!(name_of(data), None);
            for at in [0, 1, 2] {
                let mut other = [&keys[..], data].concat();
                other[at] ^= 0x10;
                assert_eq!(name_of(&other), None, "{at} of {keys:?}");
            }
            assert_eq!(name_of(&[&keys[..], &data[..1]].concat()), None);
        }
    }
    let line = "jA0ECQMCDC/8vmNn8dnb".repeat(4);
    for text in [
        format!("-----BEGIN PGP MESSAGE-----\n\n{}\n", &line[..64]),
        format!("-----BEGIN PGP MESSAGE-----\r\nVersion: 1\r\n\r\n{}\r\n", &line[..64]),
        "-----BEGIN PGP MESSAGE-----\n\njA0ECQMCDC8=\n=abcd\n-----END PGP MESSAGE-----\n".to_owned(),
    ] {
        assert_eq!(name_of(text.as_bytes()), message, "{text}");
    }
    for text in ["-----BEGIN PGP MESSAGE-----\n\njA0ECQMCDC8=\n", "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmDMEaS"] {
        assert_eq!(name_of(text.as_bytes()), None, "{text}");
    }
    assert_eq!(name_of(b"Salted__\x86\xad\x3d\x51\xc1\xb4\x61\x2d\xa5\x0d\x08\x0c"), openssl);
    let words = "Salted__ ist der Anfang von größeren Dateien.\n".repeat(200);
    for len in 4000..4120 {
        assert_eq!(name_of(&words.as_bytes()[..len]), None);
    }
}

/// Files as the programs write them, whatever they encrypt.
#[test]
fn files_that_programs_encrypted_are_recognized() {
    let Some([gpg, openssl]) = programs("files_that_programs_encrypted_are_recognized", ["gpg", "openssl"]) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let encrypted = |program: &Path, args: &str, content: &[u8]| {
        fs::write(folder.path().join("disk.img"), content).expect("a file");
        let out = folder.path().join("out");
        let mut command = Command::new(program);
        command.args(args.split(' ')).current_dir(folder.path()).env("GNUPGHOME", folder.path());
        let output = command.output().expect("a start");
        assert!(output.status.success(), "{args}: {}", String::from_utf8_lossy(&output.stderr));
        fs::read(out).expect("a file")
    };
    let noise: Vec<u8> = (0..30_000u32).map(|n| (n.wrapping_mul(n).wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
    for content in [&b"a few words"[..], &[0; 100_000], &noise, b""] {
        for options in ["-c", "-c -z 0", "-c --cipher-algo 3DES", "-c --armor", "-c --s2k-digest-algo SHA512"] {
            let args = format!("--batch --yes --pinentry-mode loopback --passphrase x {options} -o out disk.img");
            assert_eq!(name_of(&encrypted(&gpg, &args, content)), Some("an OpenPGP message"), "{args}");
        }
        for cipher in ["aes-256-cbc", "aes-128-ctr", "camellia-192-cbc"] {
            // Of nothing, a stream cipher makes nothing: there is only the salt, which may be text.
            if content.is_empty() && cipher.ends_with("ctr") {
                continue;
            }
            let args = format!("enc -{cipher} -pbkdf2 -pass pass:x -in disk.img -out out");
            assert_eq!(
                name_of(&encrypted(&openssl, &args, content)),
                Some("data encrypted by 'openssl enc'"),
                "{args}"
            );
        }
    }
    // gpg has started an agent.
    let mut end = Command::new(gpg.with_file_name("gpgconf"));
    let _ = end.args(["--kill", "gpg-agent"]).env("GNUPGHOME", folder.path()).status();
}

/// The first archive of an initramfs has microcode, and programs that read cpio archives stop at its
/// end.
#[test]
fn an_initramfs_of_several_archives_is_recognized() {
    let member = |name: &str, content: &[u8]| {
        let lens = (content.len(), name.len() + 1);
        let header = format!("070701{}{:08x}{}{:08x}{:08x}", "0".repeat(6 * 8), lens.0, "0".repeat(4 * 8), lens.1, 0);
        let mut bytes = [header.as_bytes(), name.as_bytes(), b"\0"].concat();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes.extend(content);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    };
    let first =
        [member("kernel", b""), member("kernel/microcode.bin", &[7; 70_001]), member("TRAILER!!!", b"")].concat();
    let padded = [&first[..], &vec![0; 512 - first.len() % 512]].concat();
    for archive in [&first, &padded] {
        assert_eq!(name_of(archive), Some("a cpio archive"));
        for second in [&b"\x1f\x8b\x08"[..], b"\x28\xb5\x2f\xfd", &first] {
            let both = [archive, second].concat();
            assert_eq!(name_of(&both), Some("an initramfs of several cpio archives"));
        }
    }
    for len in (1..first.len()).step_by(997).chain([first.len() - 1]) {
        assert!(matches!(name_of(&first[..len]), None | Some("a cpio archive")), "{len}");
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

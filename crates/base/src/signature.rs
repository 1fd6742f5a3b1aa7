//! The one table of magic numbers: which format a file's content shows, and which its name claims.
//!
//! A raw disk has no magic number, and its guest chooses its first and last bytes. The content of a
//! file is therefore believed only if its name does not contradict it.

use std::{ffi::OsStr, fs, io, path::Path};

use pagefold_storage::{Location, ReadAt};

use crate::{Format, advice, behind, encrypted, headers, source::Source};

/// The kinds of formats, by what this program can do with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The bytes of a raw disk: a partition table or a file system.
    Disk,
    /// A file that contains a disk that can be read.
    Base(Format),
    /// A tar archive.
    Tar,
    /// Compressed data that can be decompressed.
    Compressed(Compression),
    /// A disk that cannot be read here, in the format of this name in `qemu-img convert -O`.
    OtherDisk(&'static str),
    /// Another format that cannot be read here.
    Foreign,
}

/// The formats of compressed data that can be decompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// RFC 1952.
    Gzip,
    /// RFC 8878, also after skippable frames.
    Zstd,
    /// The container of LZMA2.
    Xz,
    /// Burrows and Wheeler's transform.
    Bzip2,
    /// Frames of LZ4, also legacy ones and after skippable frames.
    Lz4,
    /// LZMA with the header of lzma-utils.
    Lzma,
    /// The other container of LZMA.
    Lzip,
}

/// A format: how it is recognized, and what to do with it. Formats with the same name are equal.
#[derive(Debug)]
pub struct Signature {
    name: &'static str,
    kind: Kind,
    /// Any of these marks shows the format. Without marks, only a name can claim it.
    marks: &'static [Mark],
    /// The extensions of such files' names.
    extensions: &'static [&'static str],
    /// A command that makes the content accessible, with the words of [`advice`].
    advice: &'static str,
}

impl PartialEq for Signature {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Signature {}

/// A sign of a format.
#[derive(Debug)]
enum Mark {
    /// These bytes at this offset.
    At(u64, &'static [u8]),
    /// These bytes at the start of the last sector.
    InLastSector(&'static [u8]),
    /// A test of the first bytes.
    Front(fn(&[u8]) -> bool),
    /// A test that reads what it needs.
    Whole(fn(&Source<'_>) -> io::Result<bool>),
}

use Mark::{At, Front, InLastSector, Whole};

const SECTOR_BYTES: u64 = 512;

/// All marks at fixed offsets are in this many bytes of a file. That of btrfs is the last one.
pub(crate) const HEAD_BYTES: u64 = 0x1_0048;

/// The maximum number of skippable frames that are skipped in front of compressed data to find its
/// format.
const MOST_SKIPPED: usize = 1 << 10;

const CONVERT: &str = "'qemu-img convert -O raw FILE STEM.img' makes a raw disk of it";
const CONVERT_ENCRYPTED: &str = "with its passphrase in the file PASSPHRASE, 'qemu-img convert --object \
    secret,id=key,file=PASSPHRASE --image-opts driver=qcow2,encrypt.key-secret=key,file.filename=FILE -O raw STEM.img' \
    makes a raw disk of it";
const REPAIR: &str = "'qemu-img check -r all FILE' may repair it";
const DECOMPRESS: &str = "decompress it first";
const REPACK: &str = "'bsdtar -cf - @FILE | pagefold pack - -o STEM.erofs' packs its members";
const EXTRACT_UBI: &str = "'ubireader_extract_files -o DIRECTORY FILE' extracts it";
const LIST_UBOOT: &str = "'dumpimage -l FILE' lists its parts";
/// The identifier of BitLocker on removable drives, whose other bytes are those of FAT.
const BITLOCKER_TO_GO: [u8; 16] = *b"\x3b\xd6\x67\x49\x29\x2e\xd8\x4a\x83\x99\xf6\xa3\x39\xe3\xd0\x01";
const PACK: &str = "'pagefold pack FILE -o STEM.erofs' makes an EROFS image of it";
/// An archive with the name of a disk is packed if it has no name.
const PACK_UNNAMED: &str = "'pagefold pack - -o STEM.erofs < FILE' makes an EROFS image of it";

/// All formats, those with more specific marks first.
#[rustfmt::skip]
static SIGNATURES: &[Signature] = &[
    // Files that contain a disk.
    Signature { name: "an EROFS image", kind: Kind::Base(Format::Erofs), extensions: &["erofs"],
        marks: &[At(1024, &0xe0f5_e1e2_u32.to_le_bytes())],
        advice: "'pagefold ls FILE' lists its files, and 'pagefold serve' serves a disk in it" },
    Signature { name: "a qcow image of version 1", kind: Kind::OtherDisk("qcow"), extensions: &["qcow"],
        marks: &[At(0, b"QFI\xfb\0\0\0\x01")], advice: CONVERT },
    Signature { name: "a qcow2 image", kind: Kind::Base(Format::Qcow2), extensions: &["qcow2"],
        marks: &[At(0, b"QFI\xfb")], advice: CONVERT },
    Signature { name: "a VMDK disk", kind: Kind::OtherDisk("vmdk"), extensions: &["vmdk"],
        marks: &[Front(headers::is_sparse_vmdk), At(0, &0xcafe_babe_u64.to_le_bytes()), Front(headers::is_vmdk_descriptor)],
        advice: CONVERT },
    Signature { name: "a VirtualBox disk (VDI)", kind: Kind::OtherDisk("vdi"), extensions: &["vdi"],
        marks: &[At(64, &0xbeda_107f_u32.to_le_bytes())], advice: CONVERT },
    Signature { name: "a VHDX disk", kind: Kind::OtherDisk("vhdx"), extensions: &["vhdx"],
        marks: &[Front(headers::is_vhdx)], advice: CONVERT },
    Signature { name: "a VHD disk", kind: Kind::OtherDisk("vpc"), extensions: &["vhd", "vpc"],
        marks: &[Whole(behind::is_vhd)],
        advice: "'qemu-img convert -f vpc -O raw FILE STEM.img' makes a raw disk of it" },
    Signature { name: "a QED image", kind: Kind::OtherDisk("qed"), extensions: &["qed"],
        marks: &[At(0, b"QED\0")], advice: CONVERT },
    Signature { name: "a Parallels disk", kind: Kind::OtherDisk("parallels"), extensions: &["parallels", "hdd", "hds"],
        marks: &[At(0, b"WithoutFreeSpace\x02\0\0\0"), At(0, b"WithouFreSpacExt\x02\0\0\0")], advice: CONVERT },
    Signature { name: "a Bochs disk", kind: Kind::Foreign, extensions: &[],
        marks: &[At(0, b"Bochs Virtual HD Image\0")], advice: CONVERT },
    Signature { name: "an Apple disk image", kind: Kind::Foreign, extensions: &["dmg"],
        marks: &[InLastSector(b"koly\0\0\0\x04\0\0\x02\0")], advice: CONVERT },
    Signature { name: "an Android sparse image", kind: Kind::Foreign, extensions: &["simg"],
        marks: &[At(0, &0xed26_ff3a_u32.to_le_bytes())],
        advice: "'simg2img FILE STEM.raw' makes a raw image of it" },
    Signature { name: "a LUKS volume, which is encrypted", kind: Kind::Foreign, extensions: &["luks"],
        marks: &[At(0, b"LUKS\xba\xbe\0\x01"), At(0, b"LUKS\xba\xbe\0\x02")],
        advice: "'cryptsetup open FILE NAME' decrypts it as /dev/mapper/NAME" },
    Signature { name: "a BitLocker volume, which is encrypted", kind: Kind::Foreign, extensions: &[],
        marks: &[At(3, b"-FVE-FS-"), At(424, &BITLOCKER_TO_GO)],
        advice: "'cryptsetup open --type bitlk FILE NAME' decrypts it as /dev/mapper/NAME" },
    Signature { name: "a Proxmox backup (VMA)", kind: Kind::Foreign, extensions: &["vma"],
        marks: &[At(0, b"VMA\0")], advice: "'vma extract FILE DIRECTORY' extracts its disks" },
    Signature { name: "a Windows image (WIM)", kind: Kind::Foreign, extensions: &["wim", "esd"],
        marks: &[At(0, b"MSWIM\0\0\0")], advice: "'wimapply FILE DIRECTORY' extracts it" },

    // Copies and backups of disks.
    Signature { name: "a partclone image", kind: Kind::Foreign, extensions: &[],
        marks: &[Front(headers::is_partclone)], advice: "'partclone.restore -W -s FILE -O STEM.img' makes a raw disk of it" },
    Signature { name: "an ntfsclone image", kind: Kind::Foreign, extensions: &[],
        marks: &[At(0, b"\0ntfsclone-image")], advice: "'ntfsclone --restore-image --output STEM.img FILE' makes a raw disk of it" },
    Signature { name: "a forensic image (EWF)", kind: Kind::Foreign, extensions: &["e01", "ex01"],
        marks: &[At(0, b"EVF\t\r\n\xff\0"), At(0, b"EVF2\r\n\x81\0")],
        advice: "'ewfmount FILE DIRECTORY' shows its disk as DIRECTORY/ewf1" },
    Signature { name: "a forensic image (AFF)", kind: Kind::Foreign, extensions: &["aff"],
        marks: &[At(0, b"AFF10\r\n\0")], advice: "'affconvert -r FILE' makes a raw disk of it" },
    Signature { name: "a btrfs send stream", kind: Kind::Foreign, extensions: &[],
        marks: &[At(0, b"btrfs-stream\0")], advice: "'btrfs receive -f FILE DIRECTORY' makes a subvolume of it" },
    Signature { name: "a ZFS send stream", kind: Kind::Foreign, extensions: &[],
        marks: &[At(8, &0x2_f5ba_cbac_u64.to_le_bytes()), At(8, &0x2_f5ba_cbac_u64.to_be_bytes())],
        advice: "'zfs receive POOL/NAME < FILE' makes a file system of it" },
    Signature { name: "a dump archive", kind: Kind::Foreign, extensions: &[],
        marks: &[Front(headers::is_dump)], advice: "'restore -rf FILE' extracts it to the current directory" },
    Signature { name: "a saved state of a virtual machine (libvirt)", kind: Kind::Foreign, extensions: &[],
        marks: &[Front(headers::is_libvirt_state)],
        advice: "it has memory but no disk; 'virsh save-image-dumpxml FILE' names the disks" },
    Signature { name: "a saved state of a virtual machine (QEMU)", kind: Kind::Foreign, extensions: &[],
        marks: &[At(0, b"QEVM\0\0\0\x03")], advice: "it has memory but no disk: pack the machine's disk" },

    // Optical disks.
    Signature { name: "a Nero disc image (NRG)", kind: Kind::Foreign, extensions: &["nrg"],
        marks: &[Whole(behind::is_nrg)], advice: "'nrg2iso FILE STEM.iso' makes an ISO image of it" },
    Signature { name: "a compressed disc image (CSO)", kind: Kind::Foreign, extensions: &["cso", "zso"],
        marks: &[Front(headers::is_cso)], advice: "'maxcso --decompress FILE -o STEM.iso' makes an ISO image of it" },
    Signature { name: "a compressed disk (cloop)", kind: Kind::Foreign, extensions: &["cloop"],
        marks: &[At(0, b"#!/bin/sh\n#V2.0 Format\n"), At(0, b"#!/bin/sh\n#V3.0 Format\n"),
            At(0, b"#!/bin/sh\n#V4.0 Format\n")],
        advice: "'extract_compressed_fs FILE > STEM.iso' decompresses it" },

    // Firmware.
    Signature { name: "a UBI image", kind: Kind::Foreign, extensions: &["ubi"],
        marks: &[At(0, b"UBI#\x01\0\0\0")], advice: EXTRACT_UBI },
    Signature { name: "a UBIFS file system", kind: Kind::Foreign, extensions: &["ubifs"],
        marks: &[At(0, &0x0610_1831_u32.to_le_bytes())], advice: EXTRACT_UBI },
    Signature { name: "a JFFS2 file system", kind: Kind::Foreign, extensions: &["jffs2"],
        marks: &[Front(headers::is_jffs2)],
        advice: "'jefferson -d DIRECTORY FILE' extracts it" },
    Signature { name: "a U-Boot image", kind: Kind::Foreign, extensions: &["uimage"],
        marks: &[At(0, b"\x27\x05\x19\x56")], advice: LIST_UBOOT },
    Signature { name: "a U-Boot image (FIT) or a device tree", kind: Kind::Foreign, extensions: &["itb", "dtb"],
        marks: &[At(0, b"\xd0\x0d\xfe\xed")], advice: LIST_UBOOT },

    // What stands for other files.
    Signature { name: "a git bundle", kind: Kind::Foreign, extensions: &["bundle"],
        marks: &[Front(headers::is_git_bundle)],
        advice: "'git clone FILE DIRECTORY' checks its files out" },
    Signature { name: "a pointer of Git LFS instead of the file", kind: Kind::Foreign, extensions: &[],
        marks: &[At(0, b"version https://git-lfs.github.com/spec/v1\n")], advice: "'git lfs pull' fetches the file" },
    Signature { name: "data encrypted by age", kind: Kind::Foreign, extensions: &["age"],
        marks: &[At(0, b"age-encryption.org/v1\n-> "), At(0, b"-----BEGIN AGE ENCRYPTED FILE-----")],
        advice: "'age --decrypt --output STEM FILE' decrypts it" },
    Signature { name: "an OpenPGP message", kind: Kind::Foreign, extensions: &[],
        marks: &[Front(encrypted::is_openpgp), Front(encrypted::is_armored_openpgp)],
        advice: "'gpg --decrypt --output STEM FILE' decrypts it" },
    Signature { name: "data encrypted by 'openssl enc'", kind: Kind::Foreign, extensions: &[],
        marks: &[Front(encrypted::is_openssl)],
        advice: "with the cipher and the options that encrypted it, 'openssl enc -d -CIPHER -in FILE -out STEM' decrypts it" },
    Signature { name: "a chunk index", kind: Kind::Foreign, extensions: &["chunk-index"],
        marks: &[At(0, b"\xcd\xe4\xec\x67")], advice: "name the image for which it was made" },

    // File systems that are read as archives are.
    Signature { name: "a squashfs image", kind: Kind::Foreign, extensions: &["squashfs", "sqfs", "sqsh", "snap"],
        marks: &[Front(headers::is_squashfs)], advice: "'unsquashfs -d DIRECTORY FILE' extracts it" },
    Signature { name: "a cramfs image", kind: Kind::Foreign, extensions: &["cramfs"],
        marks: &[Front(headers::is_cramfs)], advice: "'fsck.cramfs --extract=DIRECTORY FILE' extracts it" },
    Signature { name: "a romfs image", kind: Kind::Foreign, extensions: &["romfs"],
        marks: &[Front(headers::is_romfs)], advice: "'mount -t romfs -o loop FILE DIRECTORY' mounts it" },

    // Compressed data.
    Signature { name: "gzip data", kind: Kind::Compressed(Compression::Gzip), extensions: &["gz", "tgz"],
        marks: &[At(0, b"\x1f\x8b\x08")], advice: "'gzip -dc FILE > STEM' decompresses it" },
    Signature { name: "Zstandard data", kind: Kind::Compressed(Compression::Zstd), extensions: &["zst", "zstd", "tzst"],
        marks: &[At(0, b"\x28\xb5\x2f\xfd")], advice: "'zstd -dc FILE > STEM' decompresses it" },
    Signature { name: "xz data", kind: Kind::Compressed(Compression::Xz), extensions: &["xz", "txz"],
        marks: &[At(0, b"\xfd7zXZ\0")], advice: "'xz -dc FILE > STEM' decompresses it" },
    Signature { name: "bzip2 data", kind: Kind::Compressed(Compression::Bzip2), extensions: &["bz2", "tbz", "tbz2"],
        marks: &[Front(headers::is_bzip2)], advice: "'bzip2 -dc FILE > STEM' decompresses it" },
    Signature { name: "LZ4 data", kind: Kind::Compressed(Compression::Lz4), extensions: &["lz4", "tlz4"],
        marks: &[At(0, b"\x04\x22\x4d\x18"), At(0, b"\x02\x21\x4c\x18")],
        advice: "'lz4 -dc FILE > STEM' decompresses it" },
    Signature { name: "lzip data", kind: Kind::Compressed(Compression::Lzip), extensions: &["lz", "tlz"],
        marks: &[At(0, b"LZIP\x01"), At(0, b"LZIP\0")], advice: "'lzip -dc FILE > STEM' decompresses it" },
    Signature { name: "LZMA data", kind: Kind::Compressed(Compression::Lzma), extensions: &["lzma"],
        marks: &[Front(headers::is_lzma)], advice: "'xz --format=lzma -dc FILE > STEM' decompresses it" },
    Signature { name: "data compressed by lzop", kind: Kind::Foreign, extensions: &["lzo", "tzo"],
        marks: &[At(0, b"\x89LZO\0\r\n\x1a\n")], advice: "'lzop -dc FILE > STEM' decompresses it" },
    Signature { name: "data compressed by lrzip", kind: Kind::Foreign, extensions: &["lrz"],
        marks: &[At(0, b"LRZI\0")], advice: "'lrzip -d FILE' decompresses it" },
    Signature { name: "data compressed by compress", kind: Kind::Foreign, extensions: &["Z", "taz"],
        marks: &[Front(headers::is_compress)], advice: "'gzip -dc FILE > STEM' decompresses it" },
    Signature { name: "data compressed by an old version of zstd", kind: Kind::Foreign, extensions: &[],
        marks: &[Front(|front| matches!(front, [0x1e | 0x22..=0x27, 0xb5, 0x2f, 0xfd, ..]))],
        advice: DECOMPRESS },
    Signature { name: "data compressed by GRZip", kind: Kind::Foreign, extensions: &["grz"],
        marks: &[At(0, b"GRZipII\0")], advice: DECOMPRESS },
    Signature { name: "data compressed by bzip3", kind: Kind::Foreign, extensions: &["bz3", "tbz3"],
        marks: &[At(0, b"BZ3v1\0\0")], advice: "'bzip3 -dc FILE > STEM' decompresses it" },
    Signature { name: "data in blocks of xz (pbzx)", kind: Kind::Foreign, extensions: &["pbzx"],
        marks: &[At(0, b"pbzx\0\0\0\0")], advice: DECOMPRESS },
    Signature { name: "zlib data", kind: Kind::Foreign, extensions: &["zz"],
        marks: &[Front(headers::is_zlib)], advice: "'pigz -dc < FILE > STEM' decompresses it" },
    Signature { name: "Brotli data", kind: Kind::Foreign, extensions: &["br"],
        marks: &[], advice: "'brotli -dc FILE > STEM' decompresses it" },
    Signature { name: "framed Snappy data", kind: Kind::Foreign, extensions: &["sz"],
        marks: &[At(0, b"\xff\x06\0\0sNaPpY")], advice: DECOMPRESS },

    // Archives.
    Signature { name: "a tar archive", kind: Kind::Tar, extensions: &["tar", "ova"],
        marks: &[Front(headers::is_ustar), Front(headers::is_tar)], advice: PACK },
    Signature { name: "a zip archive", kind: Kind::Foreign, extensions: &["zip", "jar", "apk"],
        marks: &[At(0, b"PK\x03\x04"), At(0, b"PK\x05\x06"), At(0, b"PK\x07\x08PK"),
            At(0, b"PK00PK\x03\x04"), Whole(behind::is_program_with_zip)], advice: REPACK },
    Signature { name: "an initramfs of several cpio archives", kind: Kind::Foreign, extensions: &[],
        marks: &[Whole(behind::is_initramfs)], advice: "'unmkinitramfs FILE DIRECTORY' extracts it" },
    Signature { name: "a cpio archive", kind: Kind::Foreign, extensions: &["cpio"],
        marks: &[Front(headers::is_new_cpio), Front(headers::is_portable_cpio), Front(headers::is_old_cpio)], advice: REPACK },
    Signature { name: "a Debian package", kind: Kind::Foreign, extensions: &["deb", "udeb"],
        marks: &[At(0, b"!<arch>\ndebian-binary")],
        advice: "'dpkg-deb --fsys-tarfile FILE | pagefold pack - -o STEM.erofs' packs its files" },
    Signature { name: "an ar archive", kind: Kind::Foreign, extensions: &["a", "ar"],
        marks: &[Front(headers::is_ar)], advice: REPACK },
    Signature { name: "an RPM package", kind: Kind::Foreign, extensions: &["rpm"],
        marks: &[At(0, b"\xed\xab\xee\xdb")],
        advice: "'rpm2cpio FILE | bsdtar -cf - @- | pagefold pack - -o STEM.erofs' packs its files" },
    Signature { name: "a 7z archive", kind: Kind::Foreign, extensions: &["7z"],
        marks: &[At(0, b"7z\xbc\xaf\x27\x1c"), Whole(behind::is_program_with_7z)], advice: REPACK },
    Signature { name: "a RAR archive", kind: Kind::Foreign, extensions: &["rar"],
        marks: &[At(0, b"Rar!\x1a\x07"), Whole(behind::is_program_with_rar)], advice: REPACK },
    Signature { name: "a xar archive", kind: Kind::Foreign, extensions: &["xar"],
        marks: &[Front(headers::is_xar)], advice: REPACK },
    Signature { name: "a cabinet (CAB)", kind: Kind::Foreign, extensions: &["cab"],
        marks: &[At(0, b"MSCF\0\0\0\0")], advice: REPACK },
    Signature { name: "a web archive (WARC)", kind: Kind::Foreign, extensions: &["warc"],
        marks: &[Front(headers::is_warc)], advice: REPACK },
    Signature { name: "an LHA archive", kind: Kind::Foreign, extensions: &["lha", "lzh"],
        marks: &[Front(headers::is_lha)], advice: REPACK },
    Signature { name: "an ARJ archive", kind: Kind::Foreign, extensions: &["arj"],
        marks: &[Front(headers::is_arj)], advice: "'arj x FILE DIRECTORY' extracts it" },
    Signature { name: "a ZPAQ archive", kind: Kind::Foreign, extensions: &["zpaq"],
        marks: &[Front(headers::is_zpaq)], advice: "'zpaq x FILE -to DIRECTORY' extracts it" },
    Signature { name: "a self-extracting archive (Makeself)", kind: Kind::Foreign, extensions: &[],
        marks: &[Front(headers::is_makeself)], advice: "'sh FILE --noexec --target DIRECTORY' extracts it" },

    // Signatures at the start of raw disks. Other raw disks may begin with any bytes.
    Signature { name: "an ext2, ext3 or ext4 file system", kind: Kind::Disk, extensions: &[],
        marks: &[At(1080, b"\x53\xef")], advice: "" },
    Signature { name: "an XFS file system", kind: Kind::Disk, extensions: &[],
        marks: &[At(0, b"XFSB")], advice: "" },
    Signature { name: "a btrfs file system", kind: Kind::Disk, extensions: &[],
        marks: &[At(0x1_0040, b"_BHRfS_M")], advice: "" },
    Signature { name: "an ISO 9660 image", kind: Kind::Disk, extensions: &[],
        marks: &[At(0x8001, b"CD001")], advice: "" },
    Signature { name: "a disk with a GPT partition table", kind: Kind::Disk, extensions: &[],
        marks: &[At(512, b"EFI PART"), At(4096, b"EFI PART")], advice: "" },
    Signature { name: "a disk with a boot sector", kind: Kind::Disk, extensions: &[],
        marks: &[At(510, b"\x55\xaa")], advice: "" },
    // Other disks may have these bytes so far from the start.
    Signature { name: "a LUKS volume without its first header", kind: Kind::Foreign, extensions: &[],
        marks: &[At(0x4000, b"SKUL\xba\xbe\0\x02")], advice: "'cryptsetup repair FILE' makes the header from the second one" },
];

/// The extensions of raw disks' names.
const RAW_EXTENSIONS: [&str; 4] = ["raw", "img", "dd", "iso"];

impl Signature {
    /// Returns the format that the content of `source` shows from byte `start` on. The writer of
    /// the content chooses it.
    ///
    /// # Errors
    /// The source cannot be read.
    pub fn of(source: &dyn ReadAt, start: u64) -> io::Result<Option<&'static Self>> {
        let source = Source::new(source, start)?;
        // Its first name may begin like another format. A correct sum says more.
        if headers::is_tar(&source.front) {
            return Ok(Self::of_kind(Kind::Tar));
        }
        if let Some(mut at) = skippable_bytes(&source.front) {
            for _ in 0..MOST_SKIPPED {
                let Some(len) = skippable_bytes(&source.bytes(at, 8)?) else { break };
                at = at.saturating_add(len);
            }
            let magic = source.bytes(at, 4)?;
            let found = SIGNATURES.iter().find(|signature| {
                matches!(signature.kind, Kind::Compressed(Compression::Lz4 | Compression::Zstd))
                    && signature.marks.iter().any(|mark| matches!(mark, At(0, bytes) if magic == *bytes))
            });
            // The decoder refuses data that are neither.
            return Ok(found.or_else(|| Self::of_kind(Kind::Compressed(Compression::Zstd))));
        }
        for signature in SIGNATURES {
            if has_any(&source, signature.marks)? {
                return Ok(Some(signature));
            }
        }
        Ok(None)
    }

    /// Returns whether the content of `source` shows this format from byte `start` on.
    pub(crate) fn is_in(&self, source: &dyn ReadAt, start: u64) -> io::Result<bool> {
        has_any(&Source::new(source, start)?, self.marks)
    }

    /// Returns the format that a file's name claims; `None` for raw disks and unknown names.
    pub fn of_name(path: &Path) -> Option<&'static Self> {
        Self::of_extension(extension(path)?)
    }

    /// Returns the format that a file name extension stands for.
    pub fn of_extension(extension: impl AsRef<OsStr>) -> Option<&'static Self> {
        let extension = extension.as_ref();
        // Lower-case `z` is not an extension of compressed data.
        let is = |known: &str| if known == "Z" { extension == "Z" } else { extension.eq_ignore_ascii_case(known) };
        SIGNATURES.iter().find(|signature| signature.extensions.iter().any(|known| is(known)))
    }

    /// Returns the first format of this kind.
    pub(crate) fn of_kind(kind: Kind) -> Option<&'static Self> {
        SIGNATURES.iter().find(|signature| signature.kind == kind)
    }

    /// Returns the name of a file of this format, with an article.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the kind of the format.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns advice with the command that makes the content of the file at `path` accessible.
    pub fn advice(&self, path: &Path) -> String {
        let advice = if self.kind == Kind::Tar { self.packing(path) } else { self.advice };
        advice::filled(advice, path)
    }

    /// Returns the command that packs the content of the file at `path`, as a template. Under a name
    /// of another format, `pack` refuses the file, but not its bytes.
    fn packing(&self, path: &Path) -> &'static str {
        let is_contradicted = is_named_raw(path) || Self::of_name(path).is_some_and(|named| named != self);
        if is_contradicted { PACK_UNNAMED } else { PACK }
    }

    /// Returns the name of the file that the advised command creates, if it creates one.
    pub fn created(&self, path: &Path) -> Option<String> {
        advice::created(self.advice, path)
    }

    /// Returns why the file at `path`, which has the name of such files but shows no format, is not
    /// a raw disk.
    pub fn misnomer(&self, path: &Path) -> String {
        let raw = Format::Raw;
        if self.marks.is_empty() {
            // Its content cannot be recognized.
            return format!("{}; --format {raw} takes its bytes as they are", self.described(path));
        }
        let name = self.name;
        if fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() == 0) {
            return format!("its name is that of {name}, but it is empty; --format {raw} takes it as it is");
        }
        format!("its name is that of {name}, but its content is not: --format {raw} takes its bytes as they are")
    }

    /// Returns a description of the file at `path`, and the command that makes its content
    /// accessible: if `pack` reads it, that one.
    pub fn described(&self, path: &Path) -> String {
        match self.kind {
            Kind::Compressed(_) => format!("{}: {}", self.name, advice::filled(self.packing(path), path)),
            _ if self.advice.is_empty() => self.name.to_owned(),
            _ => format!("{}: {}", self.name, self.advice(path)),
        }
    }
}

/// Returns the command that makes a raw disk of a file in any format that QEMU reads.
pub(crate) fn conversion(path: &Path) -> String {
    advice::filled(CONVERT, path)
}

/// Returns the command that makes a raw disk of an encrypted qcow2 image.
pub(crate) fn conversion_of_encrypted(path: &Path) -> String {
    // QEMU takes a comma for the end of the name.
    let path = if path.as_os_str().as_encoded_bytes().contains(&b',') { Path::new("FILE") } else { path };
    advice::filled(CONVERT_ENCRYPTED, path)
}

/// Returns the command that repairs a qcow2 image.
pub(crate) fn repair(path: &Path) -> String {
    advice::filled(REPAIR, path)
}

/// Returns whether a file's name says that it is a raw disk.
pub fn is_named_raw(path: &Path) -> bool {
    let is = |extension: &OsStr| RAW_EXTENSIONS.iter().any(|raw| extension.eq_ignore_ascii_case(raw));
    extension(path).is_some_and(is)
}

/// Returns the extension of a file's name: the part after the last dot. A URL's query is not in the
/// name.
fn extension(path: &Path) -> Option<&OsStr> {
    match Location::of(path) {
        Location::File(path) => path.extension(),
        Location::Url { url, .. } => Path::new(url.split(['?', '#']).next()?).extension(),
    }
}

fn has_any(source: &Source<'_>, marks: &[Mark]) -> io::Result<bool> {
    for mark in marks {
        let has = match mark {
            At(at, bytes) => source.bytes(*at, bytes.len())? == *bytes,
            InLastSector(bytes) => match source.len_bytes.checked_sub(SECTOR_BYTES) {
                Some(at) => source.bytes(at, bytes.len())? == *bytes,
                None => false,
            },
            Front(test) => test(&source.front),
            Whole(test) => test(source)?,
        };
        if has {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the length of the skippable frame that begins with these 8 bytes, of Zstandard or LZ4.
pub fn skippable_bytes(header: &[u8]) -> Option<u64> {
    match *header {
        [0x50..=0x5f, 0x2a, 0x4d, 0x18, a, b, c, d, ..] => Some(8 + u64::from(u32::from_le_bytes([a, b, c, d]))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name_of(bytes: &[u8]) -> Option<&'static str> {
        Signature::of(&bytes.to_vec(), 0).expect("memory").map(Signature::name)
    }

    #[test]
    fn each_magic_number_is_recognized_at_any_offset() {
        for signature in SIGNATURES {
            for mark in signature.marks {
                let mut bytes = vec![0; 1 << 17];
                let len = bytes.len();
                let (at, magic) = match mark {
                    At(at, magic) => (*at as usize, *magic),
                    InLastSector(magic) => (len - 512, *magic),
                    Front(_) | Whole(_) => continue,
                };
                bytes[at..at + magic.len()].copy_from_slice(magic);
                let found = Signature::of(&bytes, 0).expect("memory").expect("a format");
                assert_eq!(found.name, signature.name);
                let shifted = [vec![7; 1000], bytes.clone()].concat();
                assert_eq!(Signature::of(&shifted, 1000).expect("memory"), Some(signature));
                // Without its last byte, the magic number is not found.
                assert_ne!(name_of(&bytes[..at + magic.len() - 1]), Some(signature.name), "{mark:?}");
            }
        }
        let ends = SIGNATURES.iter().flat_map(|signature| signature.marks).filter_map(|mark| match mark {
            At(at, magic) => Some(at + magic.len() as u64),
            _ => None,
        });
        assert_eq!(ends.max(), Some(HEAD_BYTES));
        assert_eq!((name_of(b""), name_of(&[0; 70_000]), name_of(b"text")), (None, None, None));
    }

    #[test]
    fn formats_without_a_magic_number_are_recognized_by_their_headers() {
        let lzma = b"\x5d\0\0\x80\0\xff\xff\xff\xff\xff\xff\xff\xff\0";
        let compress = b"\x1f\x9d\x90ab\x02";
        let mut cpio = *b"\xc7\x71\0\0\0\0\xa4\x81\0\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0a\0";
        for (bytes, name) in [
            (&lzma[..], "LZMA data"),
            (compress, "data compressed by compress"),
            (&cpio, "a cpio archive"),
            (b"QFI\xfb\0\0\0\x03", "a qcow2 image"),
            (b"QFI\xfb\0\0\0\x01", "a qcow image of version 1"),
            (b"BZh91AY&SY", "bzip2 data"),
            (b"CISO\x18\0\0\0\0\0\0\x40\0\0\0\0\0\x08\0\0\x01\0\0\0", "a compressed disc image (CSO)"),
            (b"\x01\0\0\0abcdabcdabcdabcdabcd\x6c\xea\0\0", "a dump archive"),
            (b"\0\0\0\x01abcdabcdabcdabcdabcd\0\0\xea\x6b", "a dump archive"),
            (b"# Disk DescriptorFile\nversion=1\n", "a VMDK disk"),
            (b"MSCF\0\0\0\0", "a cabinet (CAB)"),
            (b"\x25\xb5\x2f\xfd", "data compressed by an old version of zstd"),
        ] {
            assert_eq!(name_of(bytes), Some(name));
        }
        cpio[20] = 1;
        // A catalog of messages has the magic number of a dump as an offset.
        let catalog = b"\xde\x12\x04\x95abcdabcdabcdabcdabcd\x6c\xea\0\0";
        for bytes in [
            &cpio[..],
            catalog,
            b"CISO is a title",
            b"BZh91AY&SX",
            b"\x1f\x9d\x68ab",
            b"\x5d\x01\0\0\x01\xff\xff\xff\0\0\0\0\0\0",
        ] {
            assert_eq!(name_of(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn an_archive_is_recognized_whatever_its_first_name_and_content() {
        for signature in SIGNATURES {
            for mark in signature.marks {
                let (at, magic) = match mark {
                    At(at, magic) => (*at as usize, *magic),
                    InLastSector(magic) => ((1 << 17) - 512, *magic),
                    Front(_) | Whole(_) => continue,
                };
                let mut bytes = vec![0; 1 << 17];
                bytes[0] = b'n';
                bytes[at..at + magic.len()].copy_from_slice(magic);
                let is_sum = (at..at + magic.len()).any(|byte| (148..156).contains(&byte));
                bytes[148..156].fill(b' ');
                let sum: u32 = bytes[..512].iter().map(|byte| u32::from(*byte)).sum();
                bytes[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
                assert!(is_sum || bytes[0] == 0 || name_of(&bytes) == Some("a tar archive"), "{}", signature.name);
            }
        }
    }

    #[test]
    fn compressed_data_are_recognized_after_skippable_frames() {
        let skip = |len: u32| [&b"\x5c\x2a\x4d\x18"[..], &len.to_le_bytes(), &vec![1; len as usize]].concat();
        for (magic, name) in [
            (&b"\x28\xb5\x2f\xfd"[..], "Zstandard data"),
            (b"\x04\x22\x4d\x18", "LZ4 data"),
            (b"\x02\x21\x4c\x18", "LZ4 data"),
            // The decoder refuses data that are neither.
            (b"plain", "Zstandard data"),
            (b"", "Zstandard data"),
        ] {
            assert_eq!(name_of(&[skip(4), skip(100_000), skip(0), magic.to_vec()].concat()), Some(name));
        }
        assert_eq!(name_of(&skip(u32::MAX / 1000)[..1000]), Some("Zstandard data"));
    }

    proptest! {
        /// No command writes to the file that it reads, or to another one that exists.
        #[test]
        fn advice_names_a_new_file(
            stem in "[a-z]{1,2}|NEW(-2)?",
            ends in proptest::collection::vec(prop::sample::select(known_extensions()), 0..4),
            exist in any::<u64>(),
        ) {
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join([&[&*stem][..], &ends].concat().join("."));
            std::fs::write(&path, "").expect("a file");
            for signature in SIGNATURES {
                let Some(created) = signature.created(&path) else { continue };
                prop_assert!(!Path::new(&created).exists(), "{path:?}: {created}");
                let advice = signature.advice(&path);
                let words = |name: &str| advice.split([' ', '\'', '@']).filter(|word| *word == name).count();
                prop_assert_eq!((words(&created), words(path.to_str().expect("a plain path"))), (1, 1));
                // Then the second command has another name to choose.
                let is_there = exist >> (created.len() % 64) & 1 == 1;
                if is_there && Path::new(&created).is_absolute() {
                    std::fs::write(&created, "").expect("a file");
                    prop_assert!(!Path::new(&signature.created(&path).expect("a name")).exists());
                }
            }
        }
    }

    fn known_extensions() -> Vec<&'static str> {
        SIGNATURES.iter().flat_map(|signature| signature.extensions).chain(&RAW_EXTENSIONS).copied().collect()
    }

    #[test]
    fn a_name_can_be_copied_from_the_advice_if_a_shell_takes_it() {
        let vmdk = Signature::of_name("a.VMDK".as_ref()).expect("a name");
        assert_eq!(
            vmdk.advice("d/a.vmdk".as_ref()),
            "'qemu-img convert -O raw d/a.vmdk d/a.img' makes a raw disk of it"
        );
        for path in ["a b.vmdk", "-a.vmdk", "a'$(b).vmdk"] {
            let advice = "'qemu-img convert -O raw FILE NEW.img' makes a raw disk of it";
            assert_eq!(vmdk.advice(path.as_ref()), advice);
        }
        // The file itself is never written to, and neither is another one that exists.
        for (path, new) in [
            ("a", "NEW.img"),
            ("a.img", "NEW.img"),
            ("d/a.raw", "d/a.img"),
            ("a.b.c", "a.b.img"),
            ("NEW.img", "NEW-2.img"),
        ] {
            let advice = vmdk.advice(path.as_ref());
            assert_eq!(advice, format!("'qemu-img convert -O raw {path} {new}' makes a raw disk of it"));
        }
        // A name that is a disk's would be refused.
        let tar = Signature::of_name("a.tar".as_ref()).expect("a name");
        let packed = |source: &str| format!("'pagefold pack {source}' makes an EROFS image of it");
        for (path, source) in [("a.tar", "a.tar -o a.erofs"), ("d/a.img", "- -o d/a.erofs < d/a.img")] {
            assert_eq!(tar.advice(path.as_ref()), packed(source));
        }
        let gzip = Signature::of_name("a.gz".as_ref()).expect("a name");
        for (path, source) in [
            ("a.img.gz", "a.img.gz -o a.img.erofs"),
            ("a.tar.gz", "a.tar.gz -o a.erofs"),
            ("a.tgz", "a.tgz -o a.erofs"),
            ("a.img", "- -o a.erofs < a.img"),
            ("a.apk", "- -o a.erofs < a.apk"),
        ] {
            assert_eq!(gzip.described(path.as_ref()), format!("gzip data: {}", packed(source)));
        }
        assert_eq!(Signature::of_name("a.tar.Z".as_ref()).map(Signature::name), Some("data compressed by compress"));
        for name in ["a", "a.z", "a.img", "a.iso", ".gz", "gz"] {
            assert_eq!(Signature::of_name(name.as_ref()), None, "{name}");
        }
        assert!(is_named_raw("a.IMG".as_ref()) && !is_named_raw("img".as_ref()));
    }
}

//! Trees with awkward files.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};

/// Returns bytes that compress like text.
pub(crate) fn text(len: usize, seed: u32) -> Vec<u8> {
    let words = ["page", "fold", "cluster", "of", "the", "inode", "extent", "a", "block", "and", "index", "compressed"];
    let mut state = seed.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
    let mut bytes = Vec::with_capacity(len + 16);
    while bytes.len() < len {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        bytes.extend_from_slice(words[(state >> 16) as usize % words.len()].as_bytes());
        bytes.push(if state >> 28 == 0 { b'\n' } else { b' ' });
        if state >> 24 == 7 {
            bytes.extend_from_slice(state.to_string().as_bytes());
        }
    }
    bytes.truncate(len);
    bytes
}

/// Returns incompressible bytes.
pub(crate) fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    })
    .take(len)
    .collect()
}

/// Fills `root` with files of every kind and of sizes around block boundaries.
pub(crate) fn awkward(root: &Path) {
    let write = |name: &str, bytes: &[u8]| fs::write(root.join(name), bytes).unwrap();
    for len in [0, 1, 31, 511, 512, 513, 4000, 4095, 4096, 4097, 8191, 8192, 8193, 65_535, 65_537] {
        write(&format!("text-{len}"), &text(len, len as u32));
        write(&format!("noise-{len}"), &noise(len, len as u64));
        write(&format!("zeros-{len}"), &vec![0; len]);
    }
    let mut mixed = Vec::new();
    for part in 0..16 {
        let len = 3000 + part as usize * 331;
        mixed.extend(if part % 3 == 0 { noise(len, part) } else { text(len, part as u32) });
    }
    write("mixed", &mixed);
    write("mixed-again", &mixed);
    write("mixed-longer", &[&mixed[..], &text(10_000, 77)].concat());
    write("long-zeros", &vec![0; 1 << 20]);
    write("long-text", &text(300_000, 5));
    write("long-noise", &noise(300_000, 5));
    write("moved", &[&text(777, 6)[..], &text(300_000, 5), &noise(2000, 6), &noise(300_000, 5)[40_000..]].concat());
    write("-before-dot", b"sorts before dot");
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    sparse.set_len(1 << 20).unwrap();
    sparse.write_all_at(&text(5000, 9), 300_000).unwrap();
    let long = "n".repeat(255);
    write(&long, b"a name of 255 bytes");
    write("not-utf8", b"");
    fs::rename(root.join("not-utf8"), root.join(OsStr::from_bytes(b"\xff\xfe\x80"))).unwrap();
    fs::hard_link(root.join("mixed"), root.join("mixed-link")).unwrap();
    let mut deep = root.to_owned();
    for level in 0..40 {
        deep.push(format!("level-{level}"));
    }
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("bottom"), text(700, 3)).unwrap();
    fs::hard_link(root.join("mixed"), deep.join("mixed-link")).unwrap();
    let many = root.join("many");
    fs::create_dir(&many).unwrap();
    for n in 0..400 {
        fs::write(many.join(format!("file-{n}")), format!("{n}")).unwrap();
    }
    fs::create_dir(root.join("empty")).unwrap();
    symlink("text-1", root.join("link")).unwrap();
    symlink(format!("/{}", "very/".repeat(700)), root.join("long-link")).unwrap();
    symlink("../dangling", root.join("dangling")).unwrap();
    for (name, kind, device) in [
        ("char", FileType::CharacterDevice, rustix::fs::makedev(300, 70_000)),
        ("block", FileType::BlockDevice, rustix::fs::makedev(8, 1)),
        ("fifo", FileType::Fifo, 0),
        ("socket", FileType::Socket, 0),
    ] {
        // Device files need a privilege that a test may lack.
        let _ = rustix::fs::mknodat(CWD, root.join(name), kind, Mode::from_raw_mode(0o640), device);
    }
    fs::set_permissions(root.join("text-31"), fs::Permissions::from_mode(0o6751)).unwrap();
    fs::set_permissions(root.join("empty"), fs::Permissions::from_mode(0o1777)).unwrap();
    let _ = rustix::fs::chownat(
        CWD,
        root.join("text-512"),
        Some(rustix::fs::Uid::from_raw(70_000)),
        None,
        AtFlags::empty(),
    );
    let stamp = |name: &str, tv_sec, tv_nsec| {
        let time = Timespec { tv_sec, tv_nsec };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, root.join(name), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    };
    stamp("text-0", 1, 999_999_999);
    stamp("text-1", -5, 3);
    stamp("link", 1 << 33, 7);
    // Not every file system supports xattrs, and not every user may set all of them.
    let set = |name: &str, key: &str, value: &[u8]| {
        let _ = rustix::fs::lsetxattr(root.join(name), key, value, XattrFlags::empty());
    };
    for len in [0, 1, 2, 3, 4, 200] {
        set("text-4096", &format!("user.len{len}"), &noise(len, 2));
        set(&format!("text-{}", 4095), &format!("user.len{len}"), &noise(len, 2));
    }
    set("text-8192", "user.big", &noise(3000, 8));
    set("many", "user.on-directory", b"yes");
    set("link", "trusted.on-link", b"yes");
    set("text-8193", "trusted.overlay.opaque", b"y");
    set("text-1", "security.capability", &[1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let acl = [
        2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 5, 0, 232, 3, 0, 0, 4, 0, 5, 0, 255, 255, 255, 255, 16, 0, 5,
        0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255,
    ];
    set("text-513", "system.posix_acl_access", &acl);
    set("empty", "system.posix_acl_default", &acl);
}

/// Fills `root` with about thirty files, less than a MiB in all: edges of blocks and clusters,
/// repeated and moved content, holes.
pub(crate) fn small(root: &Path) {
    let write = |name: &str, bytes: &[u8]| fs::write(root.join(name), bytes).unwrap();
    for len in [0, 1, 100, 4095, 4096, 4097, 65_535, 65_536, 65_537] {
        write(&format!("text-{len}"), &text(len, len as u32));
    }
    for len in [1, 4095, 4097, 70_000] {
        write(&format!("noise-{len}"), &noise(len, len as u64));
    }
    write("zeros", &vec![0; 70_000]);
    write("long", &text(200_000, 7));
    let mixed = text_and_noise(100_000);
    write("mixed", &mixed);
    write("mixed-again", &mixed);
    write("mixed-moved", &[&text(777, 2)[..], &mixed[5000..], &text(3000, 3)].concat());
    write("mixed-longer", &[&mixed[..], b"and more"].concat());
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    sparse.set_len(300_000).unwrap();
    sparse.write_all_at(&text(5000, 9), 150_000).unwrap();
    fs::create_dir_all(root.join("below/deeper")).unwrap();
    for number in 0..8 {
        write(&format!("below/tiny-{number}"), &text(number * 50, 4));
    }
    fs::hard_link(root.join("mixed"), root.join("below/deeper/mixed-link")).unwrap();
    symlink("../text-1", root.join("below/link")).unwrap();
}

/// Creates two files of more than a 1 MiB cluster with common content.
pub(crate) fn over_a_mebibyte(root: &Path) {
    let bytes = text_and_noise(1_300_000);
    fs::write(root.join("over-a-mebibyte"), &bytes).unwrap();
    fs::write(root.join("over-a-mebibyte-moved"), [b"moved", &bytes[..]].concat()).unwrap();
}

/// Returns slightly compressible bytes.
fn text_and_noise(len: usize) -> Vec<u8> {
    (0..).flat_map(|part| [noise(800, part), text(200, part as u32)]).flatten().take(len).collect()
}

/// Fills `root` with files that are split into segments.
pub(crate) fn large(root: &Path) {
    let segment = 8 << 20;
    let mut bytes = vec![0; segment - 3000];
    bytes.extend(text(200_000, 1));
    bytes.resize(2 * segment + 5, 0);
    fs::write(root.join("over-two-segments"), &bytes).unwrap();
    fs::write(root.join("one-segment"), &bytes[..segment]).unwrap();
    fs::write(root.join("incompressible"), noise(segment + 5000, 3)).unwrap();
}

//! Invalid images: each is rejected or read, and none causes a hang, a panic or memory use out of
//! proportion to its size.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};

use pagefold_codec::cluster::ClusterCodec;
use pagefold_erofs::{BuildOptions, Error, ExtractOptions, Fragments, Image, Indexes, ScanOptions, Tree, build};

use crate::{modern, trees};

/// Returns a small image with every kind of file.
fn image(options: &BuildOptions) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("tree");
    fs::create_dir_all(source.join("directory/deeper")).unwrap();
    for len in [0, 100, 5000, 40_000] {
        fs::write(source.join(format!("text-{len}")), trees::text(len, 1)).unwrap();
    }
    fs::write(source.join("directory/noise"), trees::noise(9000, 1)).unwrap();
    fs::write(source.join("directory/deeper/zeros"), vec![0; 50_000]).unwrap();
    std::os::unix::fs::symlink("text-100", source.join("link")).unwrap();
    fs::hard_link(source.join("text-5000"), source.join("directory/again")).unwrap();
    for name in ["text-100", "directory"] {
        let _ = rustix::fs::lsetxattr(source.join(name), "user.note", b"value", rustix::fs::XattrFlags::empty());
    }
    let scan = ScanOptions { mtime_s: Some(1_600_000_000), ..ScanOptions::default() };
    let tree = Tree::scan(&source, &scan).unwrap();
    let path = directory.path().join("image");
    let out = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    build(&tree, options, &out).unwrap();
    fs::read(path).unwrap()
}

fn kinds() -> Vec<BuildOptions> {
    let base = BuildOptions::default();
    let zstd = Some(ClusterCodec::Zstd { level: 1, window_log: 17 });
    let lzma = Some(ClusterCodec::MicroLzma { preset: 1, dict_bytes: 1 << 16 });
    vec![
        BuildOptions { codec: None, ..base.clone() },
        BuildOptions { ztailpacking: true, ..base.clone() },
        BuildOptions { pcluster_bytes: 16384, fragments: Fragments::Tails, dedupe: true, ..base.clone() },
        BuildOptions { indexes: Indexes::Full, codec: zstd, ..base.clone() },
        BuildOptions { codec: Some(ClusterCodec::Deflate(3)), pcluster_bytes: 8192, ..base.clone() },
        BuildOptions { codec: lzma, ..base },
    ]
}

/// Clears the superblock's checksum feature, so that covered bytes can be changed.
fn without_checksum(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes[1024 + 8] &= !1;
    bytes
}

/// The time after which an image of a few blocks counts as one that never ends. Each takes milliseconds.
pub(crate) const ENDLESS: Duration = Duration::from_secs(60);

/// Opens and checks an image.
fn survives(bytes: Vec<u8>) -> bool {
    let start = Instant::now();
    let sound = Image::open(bytes).is_ok_and(|image| {
        let report = image.check(1);
        report.problems.is_empty()
    });
    assert!(start.elapsed() < ENDLESS, "a small image took {:?}", start.elapsed());
    sound
}

const BOXED_NAMES: &[&[&str]] = &[&[".", "..", "directory", "link", "text"], &[".", "..", "short"]];

/// Returns an image whose inodes and names are all in its uncompressed metadata box: a small image
/// without data blocks, as a file.
fn boxed() -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let build = |name: &str| {
        let options = BuildOptions { codec: None, threads: 1, ..BuildOptions::default() };
        let scan = ScanOptions { mtime_s: Some(1_600_000_000), ..ScanOptions::default() };
        let path = directory.path().join(name).with_extension("erofs");
        let out = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        build(&Tree::scan(&directory.path().join(name), &scan).unwrap(), &options, &out).unwrap();
        fs::read(path).unwrap()
    };
    let inner = directory.path().join("inner");
    fs::create_dir_all(inner.join("directory")).unwrap();
    fs::write(inner.join("directory/short"), trees::text(300, 1)).unwrap();
    fs::write(inner.join("text"), trees::text(200, 2)).unwrap();
    let _ = rustix::fs::lsetxattr(inner.join("text"), "user.note", b"value", rustix::fs::XattrFlags::empty());
    std::os::unix::fs::symlink("text", inner.join("link")).unwrap();
    let mut content = build("inner");
    for names in BOXED_NAMES {
        for name in *names {
            let at = dirent(&content, names, name);
            content[at + 7] |= 0x80;
        }
    }
    let root = 1 << 63 | u64::from(u16::from_le_bytes([content[1024 + 14], content[1024 + 15]]));
    fs::create_dir(directory.path().join("outer")).unwrap();
    fs::write(directory.path().join("outer/box"), &content).unwrap();
    let mut bytes = without_checksum(build("outer"));
    let nid = nid(&bytes, dirent(&bytes, &[".", "..", "box"], "box"));
    // This replaces the outer root, which is no longer referenced.
    bytes[1024 + 13] = 1;
    bytes[1024 + 80] |= 0x80;
    bytes[1024 + 81] |= 1;
    bytes[1024 + 14..1024 + 16].fill(0);
    bytes[1024 + 112..1024 + 120].copy_from_slice(&root.to_le_bytes());
    bytes[1024 + 128..1024 + 136].copy_from_slice(&nid.to_le_bytes());
    bytes
}

/// Returns an image's problems as text.
fn problems(bytes: Vec<u8>) -> Vec<String> {
    match Image::open(bytes) {
        Err(error) => vec![error.to_string()],
        Ok(image) => image.check(2).problems.iter().map(|problem| problem.error.to_string()).collect(),
    }
}

#[test]
fn a_metadata_box_that_is_wrong_is_refused() {
    let good = boxed();
    assert_eq!(problems(good.clone()), [""; 0]);
    let image = Image::open(good.clone()).unwrap();
    let short = image.resolve(b"directory/short").unwrap();
    let mut content = vec![0; 300];
    image.read_exact_at(&short, &mut content, 0).unwrap();
    assert!(content == trees::text(300, 1));
    let inode = nid(&good, 1024 + 128) as usize * 32;
    let edit = |at: usize, new: &[u8], what: &str| {
        let mut bad = good.clone();
        bad[at..at + new.len()].copy_from_slice(new);
        let found = problems(bad);
        assert!(found.iter().any(|found| found.contains(what)), "{what}: {found:?}");
    };
    edit(1024 + 13, &[0], "superblock is too short for its metadata box");
    edit(1024 + 128, &(1u64 << 63).to_le_bytes(), "metadata box is inside itself");
    edit(1024 + 128, &(u64::MAX >> 1).to_le_bytes(), "inode lies outside the image");
    edit(1024 + 128, &u64::from(u16::MAX).to_le_bytes(), "the image ends at byte");
    edit(inode + 4, &0o040_755u16.to_le_bytes(), "metadata box is not a regular file");
    edit(inode + 8, &(1u32 << 30).to_le_bytes(), "metadata box of 1073741824 bytes");
    edit(inode + 8, &1024u32.to_le_bytes(), "inode lies outside the image");
    // Without the box, its inodes do not exist.
    edit(1024 + 81, &[good[1024 + 81] & !1], "inode lies outside the image");
    let text = dirent(&good, BOXED_NAMES[0], "text");
    edit(text, &(1u64 << 63 | 1 << 57).to_le_bytes(), "inode lies outside the image");
    edit(text, &(1u64 << 58 | 1).to_le_bytes(), "inode lies outside the image");
    edit(text + 6, &[0xff], "inode lies outside the image");
    let root = nid(&good, 1024 + 112);
    let directory = dirent(&good, BOXED_NAMES[0], "directory");
    edit(directory, &root.to_le_bytes(), "directory is reached twice");
    edit(text, &(1u64 << 63).to_le_bytes(), "at byte 0 of its metadata box: inode has no known file type");
}

#[test]
fn any_changed_byte_is_survived() {
    let built = kinds().into_iter().map(|options| image(&options));
    let committed = modern::COMMITTED.iter().map(|(name, ..)| fs::read(modern::committed(name)).unwrap());
    for good in built.chain(committed).chain([boxed()]) {
        let good = without_checksum(good);
        assert!(survives(good.clone()));
        let mut state = 12345u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize
        };
        // Favor metadata over data: it is short and critical.
        let interesting: Vec<usize> = (1024..4096).chain(good.len() - 4096..good.len()).collect();
        for round in 0..400 {
            let mut bad = good.clone();
            for _ in 0..1 + random() % 3 {
                let at = if round % 4 == 0 { random() % bad.len() } else { interesting[random() % interesting.len()] };
                bad[at] = match random() % 4 {
                    0 => 0,
                    1 => 0xff,
                    2 => bad[at] ^ (1 << (random() % 8)),
                    _ => random() as u8,
                };
            }
            survives(bad);
        }
        for _ in 0..20 {
            survives(good[..random() % good.len()].to_vec());
        }
    }
}

#[test]
fn a_flipped_bit_in_the_superblock_is_found() {
    let good = image(&BuildOptions::default());
    for at in 1024..4096 {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        // The flag for the checksum is itself in a covered byte.
        if at != 1024 + 8 {
            assert!(Image::open(bad).is_err(), "byte {at}");
        }
    }
}

/// Returns the offset of the entry of `name` in a directory block of the image with these names in
/// this order.
fn dirent(bytes: &[u8], names: &[&str], name: &str) -> usize {
    let joined = names.concat();
    let at =
        bytes.windows(joined.len()).position(|window| window == joined.as_bytes()).expect("names are in the image");
    at - names.len() * 12 + names.iter().position(|known| *known == name).unwrap() * 12
}

const ROOT_NAMES: &[&str] = &[".", "..", "directory", "link", "text-0", "text-100", "text-40000", "text-5000"];
const DIRECTORY_NAMES: &[&str] = &[".", "..", "again", "deeper", "noise"];

fn nid(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Crafted images, each with the expected result of `check`.
fn crafted() -> Vec<(&'static str, Vec<u8>)> {
    let good = without_checksum(image(&BuildOptions::default()));
    let mut images = Vec::new();
    let mut craft = |what: &'static str, edit: &dyn Fn(&mut Vec<u8>)| {
        let mut bad = good.clone();
        edit(&mut bad);
        images.push((what, bad));
    };
    let root = u64::from(u16::from_le_bytes([good[1024 + 14], good[1024 + 15]]));
    let inode_of = |name| nid(&good, dirent(&good, ROOT_NAMES, name)) as usize * 32;
    craft("directory is reached twice", &|bytes| {
        let at = dirent(bytes, DIRECTORY_NAMES, "deeper");
        bytes[at..at + 8].copy_from_slice(&root.to_le_bytes());
    });
    craft(". or .. names another directory", &|bytes| {
        let at = dirent(bytes, DIRECTORY_NAMES, "..");
        bytes[at] ^= 1;
    });
    craft("inode overlaps another", &|bytes| {
        // Puts the inode of an empty file over another file's indexes, after the map header and the
        // first six indexes.
        let empty: [u8; 32] = bytes[inode_of("text-0")..][..32].try_into().unwrap();
        let inside = inode_of("text-40000") + 64;
        bytes[inside..inside + 32].copy_from_slice(&empty);
        let at = dirent(bytes, ROOT_NAMES, "text-0");
        bytes[at..at + 8].copy_from_slice(&(inside as u64 / 32).to_le_bytes());
    });
    craft("file name is empty, too long, or holds a slash or NUL", &|bytes| {
        let joined = ROOT_NAMES.concat();
        let at = bytes.windows(joined.len()).position(|window| window == joined.as_bytes()).unwrap();
        bytes[at + 5] = b'/';
    });
    craft("directory entries are not in order", &|bytes| {
        let joined = ROOT_NAMES.concat();
        let at = bytes.windows(joined.len()).position(|window| window == joined.as_bytes()).unwrap();
        bytes[at + 3] = b'z';
    });
    craft("inode has no known file type", &|bytes| bytes[inode_of("text-100") + 5] = 0);
    craft("the image ends at byte", &|bytes| {
        let at = dirent(bytes, ROOT_NAMES, "text-100");
        bytes[at + 5] = 0xff;
    });
    craft("file's indexes end after the image", &|bytes| bytes[inode_of("text-40000") + 11] = 0x7f);
    craft("file has a wrong number of links", &|bytes| bytes[inode_of("text-0") + 6] = 9);
    craft("directory has a wrong number of links", &|bytes| bytes[inode_of("directory") + 6] = 9);
    craft("cluster starts with a block of zeros", &|bytes| bytes[4096..8192].fill(0));
    craft("lz4 block", &|bytes| bytes[4096..8192].fill(0xff));
    craft("no EROFS magic number", &|bytes| bytes[1024] = 0);
    craft("block size is not 512 bytes to 64 KiB", &|bytes| bytes[1024 + 12] = 40);
    images
}

#[test]
fn crafted_images_are_refused_with_the_reason() {
    for (what, bytes) in crafted() {
        let found = problems(bytes);
        assert!(found.iter().any(|found| found.contains(what)), "{what}: {found:?}");
    }
}

#[test]
fn unknown_features_are_refused_by_name() {
    let good = without_checksum(image(&BuildOptions::default()));
    for (byte, bit, name) in [(81, 2, "0x200 (unknown)"), (83, 0x80, "unknown")] {
        let mut bad = good.clone();
        bad[1024 + byte] |= bit;
        match Image::open(bad) {
            Err(Error::Unsupported(what)) => assert!(what.contains(name), "{what}"),
            Err(error) => panic!("{name}: {error}"),
            Ok(_) => panic!("{name} was taken"),
        }
    }
}

#[test]
fn extraction_does_not_leave_its_target() {
    let outside = tempfile::tempdir().unwrap();
    let source = tempfile::tempdir().unwrap();
    // A link out of the tree, and a file that is then renamed to the link's name.
    std::os::unix::fs::symlink(outside.path(), source.path().join("aaaa")).unwrap();
    fs::create_dir(source.path().join("aaab")).unwrap();
    fs::write(source.path().join("aaab/file"), b"content").unwrap();
    let tree = Tree::scan(source.path(), &ScanOptions::default()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    let out = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    build(&tree, &BuildOptions::default(), &out).unwrap();
    let good = without_checksum(fs::read(path).unwrap());
    let at = good.windows(8).position(|window| window == b"aaaaaaab").unwrap();
    for name in [&b"aaaa"[..], b"..aa", b"./aa", b"../x"] {
        let mut bad = good.clone();
        bad[at + 4..at + 8].copy_from_slice(name);
        let target = directory.path().join(format!("out-{}", name.escape_ascii()).replace('/', "_"));
        let _ = Image::open(bad).unwrap().extract(&target, &ExtractOptions::default());
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0, "written outside");
        assert!(!directory.path().join("x").exists());
    }
    // A link that already exists in the place of a directory.
    let target = directory.path().join("prepared");
    fs::create_dir(&target).unwrap();
    std::os::unix::fs::symlink(outside.path(), target.join("aaab")).unwrap();
    let report = Image::open(good).unwrap().extract(Path::new(&target), &ExtractOptions::default()).unwrap();
    assert!(!report.problems.is_empty());
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0, "written outside");
}

/// Two directories share their files' clusters. A bad cluster is reported for both, in the same
/// order for any number of threads.
#[test]
fn findings_do_not_depend_on_threads() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("tree");
    for folder in ["a", "b"] {
        fs::create_dir_all(source.join(folder)).unwrap();
        fs::write(source.join(folder).join("same"), trees::text(400_000, 1)).unwrap();
        for number in 0..40 {
            fs::write(source.join(folder).join(format!("own-{number}")), trees::text(9000, number)).unwrap();
        }
    }
    let options = BuildOptions { dedupe: true, ..BuildOptions::default() };
    let path = directory.path().join("image");
    let out = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    build(&Tree::scan(&source, &ScanOptions::default()).unwrap(), &options, &out).unwrap();
    let good = fs::read(path).unwrap();
    for damaged in [8192, 20_480, 40_960] {
        let mut bad = good.clone();
        bad[damaged..damaged + 4096].fill(0xff);
        let image = Image::open(bad).unwrap();
        let problems_with = |threads| -> Vec<String> {
            let problems = image.check(threads).problems;
            problems.iter().map(|found| format!("{}: {}", found.path.escape_ascii(), found.error)).collect()
        };
        let alone = problems_with(1);
        let below = |folder| alone.iter().filter_map(|found| found.strip_prefix(folder)).collect::<Vec<_>>();
        assert!(!alone.is_empty() && below("/a/") == below("/b/"), "{alone:?}");
        for threads in [2, 8, 8, 8] {
            assert_eq!(problems_with(threads), alone);
        }
    }
}

/// A subtree is checked as in a check of the whole; damage and links elsewhere are ignored.
#[test]
fn a_part_of_the_tree_is_checked_alone() {
    for options in kinds() {
        let good = without_checksum(image(&options));
        let problems = |bytes: &[u8], path: &str| {
            let image = Image::open(bytes.to_vec()).unwrap();
            let report = image.check_below(&image.resolve(path.as_bytes()).unwrap(), 2);
            (report.inodes, report.problems.len())
        };
        for (path, inodes) in
            [("directory", 5), ("directory/again", 1), ("text-5000", 1), ("link", 1), ("directory/deeper", 2)]
        {
            assert_eq!(problems(&good, path), (inodes, 0), "{path}");
        }
        let mut bad = good.clone();
        let at = dirent(&bad, DIRECTORY_NAMES, "noise");
        bad[at + 10] = 2;
        assert_eq!((problems(&bad, "directory").1, problems(&bad, "directory/deeper").1), (1, 0));
    }
}

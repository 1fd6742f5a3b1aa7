//! Image features of `mkfs.erofs` 1.9: 48-bit addresses, encoded extents, directories without `.`,
//! the metadata box.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use pagefold_erofs::{ExtractOptions, FileKind, Image, Run};

use crate::tools::{Facts, Mount, Refused, Tree, assert_same, run, skip, tree_of_directory, tree_of_image};
use crate::trees;

const BIT_48: u32 = 0x80;
const METABOX: u32 = 0x100;

/// Options, and the incompatible features that the image must then have.
const VARIANTS: &[(&[&str], u32)] = &[
    (&["-E48bit"], BIT_48),
    (&["-Edot-omitted"], BIT_48),
    (&["-E48bit", "--chunksize=4096"], BIT_48),
    (&["-E48bit,dot-omitted", "--chunksize=16384", "-Eforce-chunk-indexes"], BIT_48),
    // Encoders that fill clusters completely store them in blocks.
    (&["-zlz4", "-E48bit"], BIT_48),
    (&["-zlz4hc", "-C65536", "-E48bit,dedupe"], BIT_48),
    (&["-zlz4", "-C65536", "-E48bit", "--max-extent-bytes=65536"], BIT_48),
    (&["-zlz4", "-E48bit,ztailpacking"], BIT_48),
    (&["-zlzma", "-C65536", "-E48bit,fragments"], BIT_48),
    // Others produce contiguous clusters of any length: records of 4 bytes if there is nothing in
    // between.
    (&["-zzstd", "-E48bit"], BIT_48),
    (&["-zzstd", "-C65536", "-E48bit"], BIT_48),
    (&["-zzstd", "-C65536", "-E48bit,dedupe"], BIT_48),
    (&["-zzstd", "-C65536", "-E48bit,fragments"], BIT_48),
    (&["-zzstd", "-E48bit,all-fragments"], BIT_48),
    (&["-zzstd", "-C65536", "-E48bit", "--max-extent-bytes=4096"], BIT_48),
    (&["-zzstd", "-C65536", "-E48bit,fragments,dedupe", "--max-extent-bytes=8192"], BIT_48),
    (&["-zlibdeflate", "-C1048576", "-E48bit,dot-omitted"], BIT_48),
    (&["-b512", "-zzstd", "-E48bit"], BIT_48),
    (&["-b1024", "-zlibdeflate", "-C8192", "-E48bit,fragments"], BIT_48),
    // The metadata zone moves inodes, and with them the base address of nids.
    (&["-zlz4", "--MZ"], 0),
    (&["-zlz4", "--MZ=id", "-Edot-omitted"], BIT_48),
    (&["-zlz4", "-C65536", "-m4096"], METABOX),
    (&["-zlz4", "-m4096", "-Eztailpacking"], METABOX),
    (&["-zlz4", "-m4096", "-Elegacy-compress"], METABOX),
    (&["-zzstd", "-C65536", "-m65536", "-E48bit,dot-omitted"], BIT_48 | METABOX),
    (&["-zlz4", "-m4096", "-Eall-fragments"], METABOX),
    (&["-zlz4:zstd", "-C65536", "-m16384:1", "-E48bit,fragments,dedupe"], BIT_48 | METABOX),
    (&["-zlzma", "-C65536", "-m65536", "--MZ=i"], METABOX),
    (&["-zdeflate", "-m4096", "--chunksize=4096"], METABOX),
    (&["-zlz4", "-m4096", "-x1"], METABOX),
    (&["-zlz4", "-m4096", "--xattr-prefix=user.len"], METABOX),
    (&["-b1024", "-zlz4", "-m1024"], METABOX),
];

/// Returns the version of `mkfs.erofs`, if it is installed.
fn version() -> Option<(u32, u32)> {
    let output = Command::new("mkfs.erofs").arg("-V").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut numbers = text.split(|other: char| !other.is_ascii_digit()).filter_map(|number| number.parse().ok());
    Some((numbers.next()?, numbers.next()?))
}

/// Returns why such images cannot be made here, if they cannot.
fn lacking() -> Option<String> {
    match version() {
        None => Some("mkfs.erofs is not installed".to_owned()),
        Some(version) if version < (1, 9) => {
            Some(format!("mkfs.erofs is {}.{}, and 1.9 is needed", version.0, version.1))
        }
        Some(_) => None,
    }
}

fn mkfs(path: &Path, source: &Path, options: &[&str]) -> Image {
    let paths = [path.to_str().unwrap(), source.to_str().unwrap()];
    run("mkfs.erofs", ["--quiet"].iter().chain(options).chain(&paths)).unwrap();
    Image::open_path(path).unwrap_or_else(|error| panic!("{options:?}: {error}"))
}

#[test]
fn reads_images_of_new_mkfs() {
    if let Some(why) = lacking() {
        return skip("reads_images_of_new_mkfs", &why);
    }
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("tree");
    fs::create_dir(&source).unwrap();
    trees::awkward(&source);
    trees::over_a_mebibyte(&source);
    let hole = fs::File::create(source.join("hole")).unwrap();
    hole.set_len(3 << 20).unwrap();
    // With 48-bit addresses, inodes stay compact and have times in whole seconds. A mount confirms
    // this.
    let without_times = |mut tree: Tree| {
        tree.values_mut().for_each(Facts::forget_time);
        tree
    };
    let expected = without_times(tree_of_directory(&source));
    let mut unmounted = Vec::new();
    for (number, (options, features)) in VARIANTS.iter().enumerate() {
        let path = directory.path().join("image");
        let image = mkfs(&path, &source, options);
        let found = image.superblock().feature_incompat & (BIT_48 | METABOX);
        assert_eq!(found & features, *features, "{options:?}");
        let found = tree_of_image(&image);
        assert_same(&expected, &without_times(found.clone()), &format!("mkfs.erofs {options:?}"));
        let report = image.check(2);
        assert!(report.problems.is_empty(), "{options:?}: {:?}", report.problems);
        if number == 0 {
            let run = image.file(&image.resolve(b"hole").unwrap()).unwrap().run_at(1).unwrap();
            assert_eq!(run, Run { len: (3 << 20) - 1, hole: true }, "a file without data has no blocks");
        }
        match Mount::attempt(&path) {
            Ok(Ok(mount)) => {
                assert_same(&tree_of_directory(mount.path()), &found, &format!("mounted: {options:?}"));
            }
            Ok(Err(Refused { message, .. })) => unmounted.push(format!("{options:?}: {message}")),
            Err(why) => unmounted.push(why),
        }
    }
    if !unmounted.is_empty() {
        unmounted.dedup();
        let what = format!("{} images were not mounted: {}", unmounted.len(), unmounted.join("; "));
        skip("reads_images_of_new_mkfs", &what);
    }
}

/// Committed images, so that these formats are read wherever the tests run. `PAGEFOLD_BLESS=1`
/// creates them again.
pub(crate) const COMMITTED: &[(&str, &[&str], u32)] = &[
    // Records of 4 bytes, and of 8 if content is shared.
    ("zstd-extents", &["-b512", "-zzstd", "-C4096", "-E48bit,dedupe,dot-omitted", "--max-extent-bytes=4096"], BIT_48),
    // Records of 16 bytes.
    ("lz4-extents", &["-b512", "-zlz4", "-C4096", "-E48bit,fragments", "--max-extent-bytes=16384"], BIT_48),
    ("metabox", &["-b512", "-zlz4", "-C4096", "-m4096", "-x1", "--xattr-prefix=user.n"], BIT_48 | METABOX),
];

pub(crate) fn committed(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/images").join(name).with_extension("erofs")
}

/// The contents of the committed images. All files in the directory share an xattr.
fn committed_files() -> Vec<(&'static str, Vec<u8>)> {
    let text = trees::text(9000, 2);
    vec![
        ("directory/again", text[..8192].to_vec()),
        ("directory/empty", Vec::new()),
        ("directory/short", trees::text(100, 3)),
        ("directory/zeros", vec![0; 50_000]),
        ("mixed", [&trees::noise(1000, 1)[..], &vec![0; 30_000], &trees::noise(700, 2), &text[..2000]].concat()),
        ("text", text),
    ]
}

fn bless(name: &str, options: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("tree");
    fs::create_dir_all(source.join("directory")).unwrap();
    for (file, content) in committed_files() {
        fs::write(source.join(file), content).unwrap();
        if file.contains('/') {
            rustix::fs::lsetxattr(source.join(file), "user.note", b"value", rustix::fs::XattrFlags::empty()).unwrap();
        }
    }
    std::os::unix::fs::symlink("directory/short", source.join("link")).unwrap();
    let fixed = ["-T1600000000", "--all-time", "--all-root", "-U00000000-0000-0000-0000-000000000000"];
    mkfs(&committed(name), &source, &[options, &fixed].concat());
}

#[test]
fn committed_images_are_read() {
    for (name, options, features) in COMMITTED {
        if std::env::var_os("PAGEFOLD_BLESS").is_some() {
            bless(name, options);
        }
        let bytes = fs::read(committed(name)).unwrap();
        assert!(bytes.len() <= 16 << 10, "{name}");
        let image = Image::open(bytes).unwrap();
        assert_eq!(image.superblock().feature_incompat & (BIT_48 | METABOX), *features, "{name}");
        assert_eq!(image.superblock().build_time_s, 1_600_000_000, "{name}");
        let report = image.check(2);
        assert!(report.problems.is_empty(), "{name}: {:?}", report.problems);
        for (file, expected) in committed_files() {
            let inode = image.resolve(file.as_bytes()).unwrap();
            assert_eq!((inode.size, inode.nlink, inode.mtime_s), (expected.len() as u64, 1, 1_600_000_000), "{name}");
            let mut content = vec![1; expected.len()];
            image.read_exact_at(&inode, &mut content, 0).unwrap();
            assert!(content == expected, "{name}: {file}");
            // Parts of extents, in any order.
            let opened = image.file(&inode).unwrap();
            for at in (0..expected.len()).step_by(777).rev() {
                let len = opened.read_at(&mut content[..900.min(expected.len() - at)], at as u64).unwrap();
                assert!(content[..len] == expected[at..at + len], "{name}: {file} at {at}");
            }
            let xattrs = image.xattrs(&inode).unwrap();
            let found: Vec<_> = xattrs.iter().map(|xattr| (&xattr.name[..], &xattr.value[..])).collect();
            let expected: &[(&[u8], &[u8])] = if file.contains('/') { &[(b"user.note", b"value")] } else { &[] };
            assert_eq!(found, expected, "{name}: {file}");
        }
        assert_eq!(image.read_link(&image.resolve(b"link").unwrap()).unwrap(), b"directory/short");
        for (path, mut names) in [
            ("", vec!["directory", "link", "mixed", "text", ".", ".."]),
            ("directory", vec!["again", "empty", "short", "zeros", ".", ".."]),
        ] {
            let directory = image.resolve(path.as_bytes()).unwrap();
            assert_eq!(directory.kind, FileKind::Directory);
            assert_eq!(image.lookup(&directory, b".").unwrap(), Some(directory.nid), "{name}");
            assert_eq!(image.lookup(&directory, b"..").unwrap(), Some(image.superblock().root_nid), "{name}");
            let mut found = Vec::new();
            // One entry at a time, each from the position after the previous one.
            let mut position = Some(0);
            while let Some(from) = position.take() {
                image
                    .for_each_entry_from(&directory, from, |entry, next| {
                        found.push(String::from_utf8(entry.name).unwrap());
                        position = Some(next);
                        std::ops::ControlFlow::Break(())
                    })
                    .unwrap();
            }
            found.sort();
            names.sort_unstable();
            assert_eq!(found, names, "{name}: {path}");
        }
        let target = tempfile::tempdir().unwrap();
        let options = ExtractOptions { owners: false, xattrs: false, ..ExtractOptions::default() };
        let report = image.extract(&target.path().join("out"), &options).unwrap();
        assert!(report.problems.is_empty(), "{name}: {:?}", report.problems);
        for (file, expected) in committed_files() {
            assert!(fs::read(target.path().join("out").join(file)).unwrap() == expected, "{name}: {file}");
        }
    }
}

/// Returns the offset of a file's map header in an image without a metadata box.
fn map_header(bytes: &[u8], image: &Image, path: &str) -> usize {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let inode = (word(1024 + 40) << bytes[1024 + 12]) + image.resolve(path.as_bytes()).unwrap().nid as usize * 32;
    assert!(word(inode) >> 16 == 0, "no xattrs");
    inode + if bytes[inode] & 1 == 0 { 32 } else { 64 }
}

/// The file `mixed` has records of 16 bytes, `text` of 4.
#[test]
fn extents_that_are_wrong_are_refused() {
    let mut good = fs::read(committed("zstd-extents")).unwrap();
    good[1024 + 8] &= !1;
    let image = Image::open(good.clone()).unwrap();
    let (mixed, text) = (map_header(&good, &image, "mixed"), map_header(&good, &image, "text"));
    let count = u32::from_le_bytes(good[mixed..mixed + 4].try_into().unwrap()) as usize;
    assert!(good[mixed + 4] == 1 | 2 << 1 && good[text + 4] == 1 && count > 3);
    let edited = |edits: &[(usize, &[u8])]| {
        let mut bad = good.clone();
        for (at, new) in edits {
            bad[*at..at + new.len()].copy_from_slice(new);
        }
        Image::open(bad).unwrap()
    };
    let wrong = |edits: &[(usize, &[u8])], what: &str| {
        let found: Vec<_> = edited(edits).check(1).problems.iter().map(|found| found.error.to_string()).collect();
        assert!(found.iter().any(|found| found.contains(what)), "{what}: {found:?}");
    };
    let record = |number: usize| (mixed + 8).next_multiple_of(16) + 16 * number;
    let word = |value: u32| value.to_le_bytes();
    wrong(&[(mixed, &word(1 << 30))], "more extents than bytes");
    wrong(&[(mixed, &word(20_000))], "extents end after the image");
    wrong(&[(mixed + 4, &[1 | 2 << 1 | 8])], "encoded extents and an inline cluster");
    wrong(&[(mixed + 4, &[1 | 2 << 1 | 0x20])], "fragment");
    wrong(&[(record(1) + 12, &word(0))], "extents are not in order");
    wrong(&[(record(1) + 12, &word(40_000))], "extents are not in order");
    wrong(&[(record(0), &word(1 << 20 | 1 | 4 << 28))], "longer than 1 MiB");
    wrong(&[(record(0), &word(100))], "plain extent is longer than its cluster");
    wrong(&[(record(0), &word(100 | 5 << 28))], "algorithm that the image does not declare");
    wrong(&[(record(0), &word(100 | 3 << 28))], "algorithm that the image does not declare");
    wrong(&[(record(0) + 4, &word(0))], "cluster lies outside the image");
    wrong(&[(record(0) + 8, &word(1 << 31))], "cluster lies outside the image");
    wrong(&[(text + 8, &u64::MAX.to_le_bytes())], "cluster lies outside the image");
    wrong(&[(text + 8, &(1u64 << 63).to_le_bytes())], "cluster lies outside the image");
    // Logical clusters of 16 MiB, and a file of the same size.
    wrong(&[(text + 7, &[15])], "shorter than its extent");
    wrong(&[(text + 7, &[15]), (text - 32 + 8, &word(16 << 20))], "extent is longer than 12 MiB");

    // Content that is not stored is zeros, even before the first extent.
    let content = |image: &Image| {
        let inode = image.resolve(b"mixed").unwrap();
        let mut content = vec![1; inode.size as usize];
        image.read_exact_at(&inode, &mut content, 0).unwrap();
        content
    };
    let second = u32::from_le_bytes(good[record(1) + 12..][..4].try_into().unwrap()) as usize;
    let whole = content(&image);
    assert!(whole[..second].iter().any(|byte| *byte != 0));
    for hole in [edited(&[(record(0), &word(0))]), edited(&[(record(0), &word(7 << 28)), (record(0) + 4, &word(0))])] {
        assert!(content(&hole)[..second].iter().all(|byte| *byte == 0) && content(&hole)[second..] == whole[second..]);
        let file = hole.file(&hole.resolve(b"mixed").unwrap()).unwrap();
        assert_eq!(file.run_at(1).unwrap(), Run { len: second as u64 - 1, hole: true });
        assert!(!file.run_at(second as u64).unwrap().hole);
    }
    let late = edited(&[(record(0) + 12, &word(10))]);
    let mut front = [1; 10];
    late.read_exact_at(&late.resolve(b"mixed").unwrap(), &mut front, 0).unwrap();
    assert_eq!(front, [0; 10]);
    let none = edited(&[(mixed, &word(0))]);
    assert!(content(&none).iter().all(|byte| *byte == 0));
    // A hole of any length takes no memory and no time.
    let size = mixed - 32 + 8;
    let endless = edited(&[(record(count - 1), &word(0)), (size, &word(u32::MAX))]);
    assert_eq!(endless.check(1).problems.len(), 0);
    let file = endless.file(&endless.resolve(b"mixed").unwrap()).unwrap();
    let mut piece = vec![1; 300_000];
    for at in (0..8 << 20).step_by(piece.len()) {
        assert_eq!(file.read_at(&mut piece, at).unwrap(), piece.len());
        assert!(at == 0 || piece.iter().all(|byte| *byte == 0));
    }
    let target = tempfile::tempdir().unwrap();
    let options = ExtractOptions { owners: false, xattrs: false, ..ExtractOptions::default() };
    assert!(endless.extract(&target.path().join("out"), &options).unwrap().problems.is_empty());
    assert_eq!(fs::metadata(target.path().join("out/mixed")).unwrap().len(), u64::from(u32::MAX));
}

//! Regression tests: minimal trees whose images need special care.

use std::path::Path;

use pagefold_codec::cluster::ClusterCodec;
use pagefold_erofs::{BuildOptions, Content, Fragments, Hint, Image, Node, NodeKind, Tree, Xattr};

use crate::built::build_at;
use crate::tools::{Mount, assert_same, skip, tree_of_directory, tree_of_image};
use crate::trees::{noise, text};

const ZSTD: ClusterCodec = ClusterCodec::Zstd { level: 1, window_log: 16 };

struct File {
    name: &'static str,
    bytes: Vec<u8>,
    mtime_s: i64,
    xattrs: Vec<Xattr>,
}

fn file(name: &'static str, bytes: Vec<u8>) -> File {
    File { name, bytes, mtime_s: 1, xattrs: Vec::new() }
}

fn xattr(name: &str, value: &str) -> Xattr {
    Xattr { name: name.into(), value: value.into() }
}

fn tree_of(files: &[File]) -> Tree {
    let node =
        |kind, mtime_s, xattrs| Node { kind, permissions: 0o644, uid: 0, gid: 0, mtime_s, mtime_nsec: 0, xattrs };
    let mut tree = Tree::new(node(NodeKind::Fifo, 1, Vec::new()));
    for File { name, bytes, mtime_s, xattrs } in files {
        let kind = NodeKind::Regular { content: Content::Bytes(bytes.as_slice().into()), size: bytes.len() as u64 };
        tree.add(tree.root(), name.as_bytes(), node(kind, *mtime_s, xattrs.clone())).unwrap();
    }
    tree
}

/// Builds an image of `files` and compares it as read by this crate and as mounted by the kernel.
/// Returns its length.
#[track_caller]
fn round_trip(files: &[File], options: &BuildOptions) -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    let image_bytes = build_at(&path, &tree_of(files), options).image_bytes;
    let image = Image::open_path(&path).unwrap();
    let problems = image.check(1).problems;
    assert!(problems.is_empty(), "{options:?}: {problems:?}");
    let found = tree_of_image(&image);
    for file in files {
        let content = found[Path::new(file.name)].clone().into_content();
        let differs = content.iter().zip(&file.bytes).position(|(found, expected)| found != expected);
        assert!(content == file.bytes, "{options:?}: {} differs at {differs:?}", file.name);
    }
    match Mount::attempt(&path) {
        Ok(Ok(mount)) => assert_same(&found, &tree_of_directory(mount.path()), "kernel"),
        Ok(Err(refused)) => assert!(refused.unsupported || options.block_bytes > 4096, "{}", refused.message),
        Err(why) => skip("regressions", &why),
    }
    image_bytes
}

/// Options that share plain files' blocks: with sharing, or with fragments and a hint.
fn sharing() -> Vec<BuildOptions> {
    let mut all = Vec::new();
    for block_bytes in [512, 4096, 65_536] {
        for codec in [ClusterCodec::Lz4, ZSTD] {
            let base = BuildOptions {
                block_bytes,
                pcluster_bytes: block_bytes,
                codec: Some(codec),
                ..BuildOptions::default()
            };
            let hints = vec![Hint { pattern: b"*.jpg".to_vec(), compression: None }];
            all.push(BuildOptions { dedupe: true, ..base.clone() });
            all.push(BuildOptions { dedupe: true, ztailpacking: true, ..base.clone() });
            all.push(BuildOptions { dedupe: true, hints: hints.clone(), ..base.clone() });
            all.push(BuildOptions { fragments: Fragments::Tails, hints, ..base });
        }
    }
    all
}

/// A file's last block, if too long for inline storage, must follow the blocks that the file
/// shares.
#[test]
fn files_that_differ_in_their_last_block_alone() {
    for options in sharing() {
        let block = options.block_bytes as usize;
        let head = noise(2 * block, 1);
        let with_end = |seed| [head.clone(), noise(block - 1, seed)].concat();
        round_trip(&[file("a.jpg", with_end(2)), file("b", text(9000, 3)), file("c.jpg", with_end(4))], &options);
    }
}

/// The same for equal files, of which only one has its tail inline.
#[test]
fn equal_files_whose_inodes_differ_in_length() {
    for options in sharing() {
        let block = options.block_bytes as usize;
        // Fits after an inode of 32 bytes, but not of 64.
        let bytes = noise(3 * block - 50, 1);
        let later = File { mtime_s: 2, ..file("c.jpg", bytes.clone()) };
        let base = [file("a.jpg", bytes.clone()), file("b", text(9000, 3)), later];
        round_trip(&base, &options);
        let [a, b, c] = base;
        round_trip(&[c, b, File { name: "d.jpg", ..a }], &options);
        let tagged =
            File { xattrs: vec![xattr("user.note", "a value of some length")], ..file("c.jpg", bytes.clone()) };
        round_trip(&[file("a.jpg", bytes), file("b", text(9000, 3)), tagged], &options);
    }
}

/// Equal files are stored once, including their tails, wherever these are.
#[test]
fn equal_plain_files_are_stored_once() {
    let options = BuildOptions { dedupe: true, ..BuildOptions::default() };
    for (len, inline) in [(40_960, 0), (45_055, 0), (41_960, 1000)] {
        let bytes = noise(len, 1);
        let one = round_trip(&[file("a", bytes.clone())], &options);
        let later = File { mtime_s: 2, ..file("c", bytes.clone()) };
        let three = round_trip(&[file("a", bytes.clone()), file("b", bytes), later], &options);
        assert!(three <= one + 4096 + 2 * inline, "{len}: {one} {three}");
    }
}

/// Chunk addresses follow the xattrs at the next multiple of 4 bytes, not 8.
#[test]
fn files_with_holes_and_xattrs_of_any_length() {
    for value in ["", "1", "12345", "123456789"] {
        let mut bytes = vec![0; 200_000];
        bytes[70_000..70_005].copy_from_slice(b"hello");
        bytes[199_999] = 1;
        let tagged = File { xattrs: vec![xattr("user.a", value)], ..file("a", bytes.clone()) };
        round_trip(&[tagged, file("b", bytes)], &BuildOptions { codec: None, ..BuildOptions::default() });
    }
}

/// A partial fragment is an extent, so it is at most 12 MiB long, even if files share 14 MiB.
#[test]
fn long_ends_that_files_share() {
    let first = noise(15_000_000, 1);
    let second = [noise(100_000, 2), first[100_000..].to_vec()].concat();
    let options = BuildOptions { fragments: Fragments::All, ..BuildOptions::default() };
    let image_bytes = round_trip(&[file("a", first), file("b", second)], &options);
    assert!(image_bytes < 18_000_000, "{image_bytes}");
}

//! Images are no larger than necessary.

use std::path::Path;

use pagefold_codec::cluster::ClusterCodec;
use pagefold_erofs::{BuildOptions, Content, Fragments, Image, Node, NodeKind, Tree};

use crate::built::build_at;
use crate::tools::{Mount, assert_same, skip, tree_of_directory, tree_of_image};
use crate::trees::{noise, text};

fn node(kind: NodeKind) -> Node {
    Node { kind, permissions: 0o755, uid: 0, gid: 0, mtime_s: 0, mtime_nsec: 0, xattrs: Vec::new() }
}

fn tree(contents: &[Vec<u8>]) -> Tree {
    let mut tree = Tree::new(node(NodeKind::Fifo));
    for (number, bytes) in contents.iter().enumerate() {
        let kind = NodeKind::Regular { content: Content::Bytes(bytes.as_slice().into()), size: bytes.len() as u64 };
        tree.add(tree.root(), format!("{number:03}").as_bytes(), node(kind)).unwrap();
    }
    tree
}

/// Builds an image of these files, checks their contents, and returns its length.
fn image_bytes(folder: &Path, contents: &[Vec<u8>], options: &BuildOptions) -> u64 {
    let path = folder.join("image");
    let report = build_at(&path, &tree(contents), options);
    let image = Image::open_path(&path).unwrap();
    let problems = image.check(0).problems;
    assert!(problems.is_empty(), "{options:?}: {problems:?}");
    let found = tree_of_image(&image);
    for (number, bytes) in contents.iter().enumerate() {
        let content = found[Path::new(&format!("{number:03}"))].clone().into_content();
        assert!(content == *bytes, "{options:?}: file {number}");
    }
    match Mount::attempt(&path) {
        Ok(Ok(mount)) => assert_same(&found, &tree_of_directory(mount.path()), "kernel"),
        Ok(Err(refused)) => assert!(refused.unsupported, "{options:?}: {}", refused.message),
        Err(why) => skip("sizes", &why),
    }
    report.image_bytes
}

/// Including inodes, two short files leave a third of a block free, and a short and a long one fill
/// it.
#[test]
fn long_and_short_inodes_share_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let contents: Vec<_> = (0..200).map(|number| noise(if number < 100 { 1350 } else { 2650 }, number)).collect();
    let options = BuildOptions { codec: None, ..BuildOptions::default() };
    assert!(image_bytes(folder.path(), &contents, &options) <= 103 * 4096);
}

/// Compressed or not, in whole clusters and at file ends.
#[test]
fn copies_are_stored_once_with_fragments_too() {
    let folder = tempfile::tempdir().unwrap();
    let (noise, text) = (noise(300_001, 1), text(300_001, 2));
    let once = [noise.clone(), text.clone()];
    let thrice = [&once[..], &once, &once].concat();
    for (fragments, dedupe) in [(Fragments::Tails, false), (Fragments::Off, true), (Fragments::Tails, true)] {
        for pcluster_bytes in [4096, 65_536] {
            let options = BuildOptions { pcluster_bytes, fragments, dedupe, ..BuildOptions::default() };
            let [alone, copied] = [&once[..], &thrice].map(|files| image_bytes(folder.path(), files, &options));
            assert!(copied <= alone + 5 * 4096, "{options:?}: {alone} {copied}");
        }
    }
}

#[test]
fn files_that_end_alike_share_that() {
    let folder = tempfile::tempdir().unwrap();
    let end = noise(150_000, 1);
    for front in [1, 4096, 5000, 60_000] {
        let contents = [text(10_000, 1), text(front, 2), noise(front, 3), Vec::new()];
        let contents = contents.map(|front| [&front[..], &end].concat());
        for codec in [ClusterCodec::Lz4, ClusterCodec::Zstd { level: 3, window_log: 17 }] {
            for block_bytes in [512, 4096] {
                let options = BuildOptions {
                    codec: Some(codec),
                    block_bytes,
                    pcluster_bytes: 16_384,
                    fragments: Fragments::All,
                    ..BuildOptions::default()
                };
                let bytes = image_bytes(folder.path(), &contents, &options);
                assert!(bytes < 200_000 + 2 * front as u64, "{options:?} {front}: {bytes}");
            }
        }
    }
}

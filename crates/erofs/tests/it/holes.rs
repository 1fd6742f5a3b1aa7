//! Files with holes produce the same image as files with zeros.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use pagefold_codec::cluster::ClusterCodec;
use pagefold_erofs::{BuildOptions, ExtractOptions, Fragments, Image, ScanOptions, Tree, build};

use crate::trees;

/// Offsets and lengths of the data in a file of 37 MiB and 5 bytes.
const DATA: [(u64, usize); 5] =
    [(0, 3), (5 << 20, 200_000), ((9 << 20) + 77, 1), (20 << 20, 4 << 20), (33 << 20, 4096)];
const LEN: u64 = (37 << 20) + 5;

fn fill(len: usize) -> Vec<u8> {
    b"some text, again and again. ".iter().copied().cycle().take(len).collect()
}

fn sparse(path: &Path) {
    let file = File::create(path).unwrap();
    file.set_len(LEN).unwrap();
    for (at, len) in DATA {
        file.write_all_at(&fill(len), at).unwrap();
    }
}

fn image(folder: &Path, name: &str, options: &BuildOptions) -> Vec<u8> {
    let scan = ScanOptions { mtime_s: Some(1), ..ScanOptions::default() };
    let tree = Tree::scan(&folder.join(name), &scan).unwrap();
    let path = folder.join("image");
    let out = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    build(&tree, options, &out).unwrap();
    assert!(Image::open_path(&path).unwrap().check(2).problems.is_empty());
    fs::read(path).unwrap()
}

#[test]
fn holes_are_the_zeros_that_they_read_as() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("holes")).unwrap();
    fs::create_dir(at("zeros")).unwrap();
    sparse(&at("holes/disk"));
    File::create(at("holes/empty")).unwrap().set_len(LEN).unwrap();
    for name in ["disk", "empty"] {
        let bytes = fs::read(at("holes").join(name)).unwrap();
        File::create(at("zeros").join(name)).unwrap().write_all(&bytes).unwrap();
    }
    let blocks = |name: &str| fs::metadata(at(name)).unwrap().blocks();
    assert!(blocks("holes/empty") < blocks("zeros/empty"), "no holes in this file system");
    let base = BuildOptions::default();
    let zstd = Some(ClusterCodec::Zstd { level: 3, window_log: 20 });
    for (name, options) in [
        ("lz4", base.clone()),
        ("plain", BuildOptions { codec: None, ..base.clone() }),
        ("ztailpacking", BuildOptions { ztailpacking: true, pcluster_bytes: 65536, ..base.clone() }),
        ("zstd", BuildOptions { codec: zstd, pcluster_bytes: 65536, dedupe: true, ..base.clone() }),
        ("fragments", BuildOptions { fragments: Fragments::Tails, dedupe: true, threads: 1, ..base.clone() }),
        ("all", BuildOptions { fragments: Fragments::All, ..base }),
    ] {
        assert!(image(folder.path(), "holes", &options) == image(folder.path(), "zeros", &options), "{name}");
    }
}

#[test]
fn zeros_take_as_few_blocks_as_their_codec_can() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("zeros")).unwrap();
    // Zeros from the middle of one segment to the middle of another, on both sides of a little
    // data.
    let file = File::create(at("zeros/disk")).unwrap();
    file.set_len(256 << 20).unwrap();
    for (seed, offset) in [(1, 0), (2, 70 << 20), (3, 255 << 20)] {
        file.write_all_at(&trees::text(50_000, seed), offset + 5000).unwrap();
    }
    let base = BuildOptions::default();
    let zstd = Some(ClusterCodec::Zstd { level: 3, window_log: 16 });
    let (deflate, lzma) =
        (Some(ClusterCodec::Deflate(1)), Some(ClusterCodec::MicroLzma { preset: 0, dict_bytes: 1 << 16 }));
    // LZ4 reduces 255 bytes to one, DEFLATE 985; the others are limited by the content of a
    // cluster. In addition: two blocks of metadata, indexes of two bytes per block, and a few
    // blocks for each of the three pieces of data.
    let around = 256 * 512 / 4096 + 2 + 18;
    for (name, codec, pcluster_bytes, blocks) in [
        ("lz4", base.codec, 4096, 258),
        ("lz4 64K", base.codec, 65536, 258),
        ("lz4hc", Some(ClusterCodec::Lz4Hc(9)), 65536, 258),
        ("zstd", zstd, 65536, 32),
        ("deflate", deflate, 4096, 69),
        ("lzma", lzma, 65536, 32),
    ] {
        let options = BuildOptions { codec, pcluster_bytes, ..base.clone() };
        let built = (image(folder.path(), "zeros", &options).len() / 4096) as u64;
        assert!(built <= blocks + around, "{name}: {built} blocks, not {}", blocks + around);
    }
    let options = BuildOptions { dedupe: true, ..base };
    let built = image(folder.path(), "zeros", &options).len() / 4096;
    assert!(built <= 60, "shared: {built} blocks");
}

#[test]
fn long_extents_of_zeros_come_out_as_holes_and_others_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("disk")).unwrap();
    let file = File::create(at("disk/disk")).unwrap();
    file.set_len(80 << 20).unwrap();
    // Clusters as long as those of zeros, between clusters of zeros.
    for (offset, byte) in [(20 << 20, 1), (60 << 20, 2)] {
        file.write_all_at(&vec![byte; 12 << 20], offset).unwrap();
    }
    file.write_all_at(&trees::text(50_000, 1), 50 << 20).unwrap();
    let content = fs::read(at("disk/disk")).unwrap();
    let zstd = Some(ClusterCodec::Zstd { level: 3, window_log: 16 });
    let base = BuildOptions::default();
    for (codec, pcluster_bytes) in [(base.codec, 4096), (base.codec, 65536), (zstd, 65536)] {
        image(folder.path(), "disk", &BuildOptions { codec, pcluster_bytes, ..base.clone() });
        for threads in [1, 3] {
            let options = ExtractOptions { threads, ..ExtractOptions::default() };
            let report = Image::open_path(&at("image")).unwrap().extract(&at("out"), &options).unwrap();
            assert!(report.problems.is_empty(), "{:?}", report.problems);
            assert!(fs::read(at("out/disk")).unwrap() == content, "{codec:?}, {threads} threads");
            let blocks = fs::metadata(at("out/disk")).unwrap().blocks();
            assert!(blocks * 512 <= 25 << 20, "{codec:?}, {threads} threads: {blocks} blocks of 512");
            fs::remove_dir_all(at("out")).unwrap();
        }
    }
}

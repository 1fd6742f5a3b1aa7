//! What we build: mounted by the kernel, checked by `fsck.erofs`, read by us, and the same whatever the threads.

use std::fs::{self, File};
use std::path::Path;

use pagefold_codec::cluster::ClusterCodec;
use pagefold_erofs::{BuildOptions, Fragments, Image, Indexes, ScanOptions, Tree, build};

use crate::tools::{Mount, assert_same, run, skip, tree_of_directory, tree_of_image};
use crate::trees;

const LZMA: ClusterCodec = ClusterCodec::MicroLzma { preset: 6, dict_bytes: 1 << 17 };
const ZSTD: ClusterCodec = ClusterCodec::Zstd { level: 3, window_log: 17 };

/// Every codec, index size, cluster size and packing, not each with each but each pair somewhere.
fn variants() -> Vec<(String, BuildOptions)> {
    let mut variants = Vec::new();
    let mut add = |options: BuildOptions| {
        let BuildOptions { codec, block_bytes, pcluster_bytes, indexes, ztailpacking, fragments, dedupe, .. } = options;
        let name = format!(
            "{codec:?} block {block_bytes} cluster {pcluster_bytes} {indexes:?} ztailpacking {ztailpacking} \
             fragments {fragments:?} dedupe {dedupe}"
        );
        variants.push((name, options));
    };
    let base = BuildOptions::default();
    add(BuildOptions { codec: None, ..base.clone() });
    for codec in [ClusterCodec::Lz4, ClusterCodec::Lz4Hc(9), LZMA, ClusterCodec::Deflate(6), ZSTD] {
        for (number, pcluster_bytes) in [4096, 16384, 65536, 1 << 20].into_iter().enumerate() {
            let base = BuildOptions { codec: Some(codec), pcluster_bytes, ..base.clone() };
            if codec == ClusterCodec::Lz4 || number % 2 == 0 {
                add(base.clone());
                add(BuildOptions { ztailpacking: true, ..base.clone() });
                add(BuildOptions { fragments: Fragments::Tails, dedupe: true, ..base.clone() });
            }
            if codec == ClusterCodec::Lz4 || number % 2 == 1 {
                add(BuildOptions { indexes: Indexes::Full, ..base.clone() });
                add(BuildOptions { indexes: Indexes::Full, ztailpacking: true, dedupe: true, ..base.clone() });
                add(BuildOptions { indexes: Indexes::Full, fragments: Fragments::All, ..base.clone() });
            }
        }
    }
    for block_bytes in [512, 1024, 2048] {
        let base = BuildOptions { block_bytes, pcluster_bytes: block_bytes, ..base.clone() };
        add(base.clone());
        add(BuildOptions { codec: None, ..base.clone() });
        add(BuildOptions { pcluster_bytes: 16384, ztailpacking: true, ..base.clone() });
        add(BuildOptions { pcluster_bytes: 8192, fragments: Fragments::Tails, ..base.clone() });
    }
    variants
}

fn build_at(path: &Path, tree: &Tree, options: &BuildOptions) -> pagefold_erofs::BuildReport {
    let out = File::options().read(true).write(true).create(true).truncate(true).open(path).unwrap();
    let report = build(tree, options, &out).unwrap();
    assert_eq!(report.image_bytes, fs::metadata(path).unwrap().len());
    report
}

#[test]
fn every_variant_is_read_back_and_mounts() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("tree");
    fs::create_dir(&source).unwrap();
    trees::awkward(&source);
    let expected = tree_of_directory(&source);
    let tree = Tree::scan(&source, &ScanOptions::default()).unwrap();
    let mut unmountable = None;
    for (name, options) in variants() {
        let path = directory.path().join("image.erofs");
        build_at(&path, &tree, &BuildOptions { threads: 1, ..options.clone() });
        assert_same(&expected, &tree_of_image(&Image::open_path(&path).unwrap()), &format!("read back: {name}"));
        let again = directory.path().join("again.erofs");
        build_at(&again, &tree, &BuildOptions { threads: 3, ..options });
        assert!(fs::read(&path).unwrap() == fs::read(&again).unwrap(), "threads change the image: {name}");
        match Mount::new(&path) {
            Ok(mount) => assert_same(&expected, &tree_of_directory(mount.path()), &format!("mounted: {name}")),
            Err(why) => unmountable = Some(why),
        }
    }
    if let Some(why) = unmountable {
        skip("every_variant_is_read_back_and_mounts", &why);
    }
}

#[test]
fn fsck_accepts_lz4_images() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("tree");
    fs::create_dir(&source).unwrap();
    trees::awkward(&source);
    let tree = Tree::scan(&source, &ScanOptions::default()).unwrap();
    let path = directory.path().join("image.erofs");
    for (codec, pcluster_bytes, ztailpacking) in
        [(None, 4096, false), (Some(ClusterCodec::Lz4), 4096, false), (Some(ClusterCodec::Lz4Hc(9)), 65536, true)]
    {
        build_at(&path, &tree, &BuildOptions { codec, pcluster_bytes, ztailpacking, ..BuildOptions::default() });
        if run("fsck.erofs", [Path::new("--extract"), &path]).is_none() {
            return skip("fsck_accepts_lz4_images", "fsck.erofs is not installed");
        }
    }
}

#[test]
fn the_order_of_a_directory_does_not_matter() {
    let directory = tempfile::tempdir().unwrap();
    let names: Vec<_> = (0..300).map(|n| format!("name-{}", n * 7919 % 1000)).collect();
    let mut images = Vec::new();
    for (number, reversed) in [false, true].into_iter().enumerate() {
        let source = directory.path().join(format!("tree-{number}"));
        fs::create_dir(&source).unwrap();
        let mut names = names.clone();
        if reversed {
            names.reverse();
        }
        for name in &names {
            fs::write(source.join(name), trees::text(name.len() * 300, 4)).unwrap();
        }
        let options = ScanOptions { mtime_s: Some(1_700_000_000), ..ScanOptions::default() };
        let path = directory.path().join(format!("{number}.erofs"));
        build_at(&path, &Tree::scan(&source, &options).unwrap(), &BuildOptions::default());
        images.push(fs::read(path).unwrap());
    }
    assert!(images[0] == images[1]);
}

//! Images that this crate builds: mounted by the kernel, checked by `fsck.erofs`, read back, and
//! equal for any number of threads.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Mutex;
use std::thread;

use pagefold_codec::cluster::ClusterCodec;
use pagefold_erofs::{BuildOptions, ExtractOptions, Fragments, Image, Indexes, ScanOptions, Tree, build};

use crate::tools::{self, Mount, assert_same, run, skip, tree_of_directory, tree_of_image};
use crate::trees;

// Fast levels: an image's layout does not depend on them, and the usual ones would take nine tenths of the
// time.
const LZMA: ClusterCodec = ClusterCodec::MicroLzma { preset: 1, dict_bytes: 1 << 17 };
const ZSTD: ClusterCodec = ClusterCodec::Zstd { level: 3, window_log: 17 };
const LZ4HC: ClusterCodec = ClusterCodec::Lz4Hc(3);

/// Every codec, index size, cluster size and packing: not all combinations, but every pair.
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
    for codec in [ClusterCodec::Lz4, LZ4HC, LZMA, ClusterCodec::Deflate(6), ZSTD] {
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
                add(BuildOptions { indexes: Indexes::Extents, ..base.clone() });
                add(BuildOptions {
                    indexes: Indexes::Extents,
                    fragments: Fragments::Tails,
                    dedupe: true,
                    ..base.clone()
                });
            }
        }
    }
    for block_bytes in [512, 1024, 2048, 8192, 16_384, 65_536] {
        let base = BuildOptions { block_bytes, pcluster_bytes: block_bytes, ..base.clone() };
        add(base.clone());
        add(BuildOptions { codec: None, ..base.clone() });
        let pcluster_bytes = block_bytes.max(16_384);
        add(BuildOptions { pcluster_bytes, ztailpacking: true, dedupe: true, ..base.clone() });
        add(BuildOptions { indexes: Indexes::Extents, ..base.clone() });
        let pcluster_bytes = block_bytes.max(8192);
        add(BuildOptions { pcluster_bytes, indexes: Indexes::Full, fragments: Fragments::Tails, ..base.clone() });
    }
    variants
}

/// Builds an image in a new file. The previous file may still be mounted in another mount
/// namespace, and a new mount of the same file would reuse its loop device.
pub(crate) fn build_at(path: &Path, tree: &Tree, options: &BuildOptions) -> pagefold_erofs::BuildReport {
    let _ = fs::remove_file(path);
    let out = File::options().read(true).write(true).create_new(true).open(path).unwrap();
    let report = build(tree, options, &out).unwrap();
    assert_eq!(report.image_bytes, fs::metadata(path).unwrap().len());
    report
}

pub(crate) fn source(fill: fn(&Path)) -> (tempfile::TempDir, Tree, tools::Tree) {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("tree");
    fs::create_dir(&source).unwrap();
    fill(&source);
    let tree = Tree::scan(&source, &ScanOptions::default()).unwrap();
    (directory, tree, tree_of_directory(&source))
}

/// Builds an image twice with different numbers of threads, reads it, checks it, and mounts it if
/// the machine can. Linux mounts no block size above its page size.
fn round_trip(
    directory: &Path,
    tree: &Tree,
    expected: &tools::Tree,
    name: &str,
    options: BuildOptions,
) -> Result<(), String> {
    let path = directory.join("image.erofs");
    build_at(&path, tree, &BuildOptions { threads: 1, ..options.clone() });
    let again = directory.join("again.erofs");
    build_at(&again, tree, &BuildOptions { threads: 3, ..options.clone() });
    assert!(fs::read(&path).unwrap() == fs::read(&again).unwrap(), "threads change the image: {name}");
    let image = Image::open_path(&path).unwrap();
    assert_same(expected, &tree_of_image(&image), &format!("read back: {name}"));
    let report = image.check(2);
    assert!(report.problems.is_empty(), "check: {name}: {:?}", report.problems);
    if options.block_bytes as usize <= rustix::param::page_size() {
        let mount = Mount::new(&path)?;
        assert_same(expected, &tree_of_directory(mount.path()), &format!("mounted: {name}"));
    }
    Ok(())
}

/// Threads of [`round_trips`]. Most of their time they wait for the kernel to mount and unmount.
const THREADS: usize = 6;

/// Does [`round_trip`]s of one tree with different options, several at a time.
pub(crate) fn round_trips(test: &str, fill: fn(&Path), cases: Vec<(String, BuildOptions)>) {
    let (directory, tree, expected) = source(fill);
    let (cases, unmountable) = (Mutex::new(cases.into_iter()), Mutex::new(None));
    let work = &|| {
        let folder = tempfile::tempdir_in(directory.path()).unwrap();
        loop {
            // A statement of its own: the lock is not held during the case.
            let next = cases.lock().unwrap().next();
            let Some((name, options)) = next else { break };
            if let Err(why) = round_trip(folder.path(), &tree, &expected, &name, options) {
                *unmountable.lock().unwrap() = Some(why);
            }
        }
    };
    thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(work))));
    if let Some(why) = unmountable.into_inner().unwrap() {
        skip(test, &why);
    }
}

#[test]
fn every_variant_is_read_back_and_mounts() {
    round_trips("every_variant_is_read_back_and_mounts", trees::awkward, variants());
}

#[test]
fn large_files_are_cut_into_segments() {
    let cases = [
        ("lz4", Some(ClusterCodec::Lz4), 4096),
        ("lz4 64K", Some(ClusterCodec::Lz4), 65536),
        ("zstd 1M", Some(ZSTD), 1 << 20),
        ("plain", None, 4096),
    ];
    let case = |(name, codec, pcluster_bytes): (&str, Option<ClusterCodec>, u32)| {
        let options = BuildOptions { codec, pcluster_bytes, dedupe: codec.is_some(), ..BuildOptions::default() };
        (name.to_owned(), options)
    };
    round_trips("large_files_are_cut_into_segments", trees::large, cases.map(case).to_vec());
}

#[test]
fn extracted_files_equal_packed_files() {
    let (directory, tree, expected) = source(trees::awkward);
    for (number, (codec, pcluster_bytes, fragments)) in [
        (None, 4096, Fragments::Off),
        (Some(ClusterCodec::Lz4), 65536, Fragments::Off),
        (Some(ZSTD), 4096, Fragments::Tails),
    ]
    .into_iter()
    .enumerate()
    {
        let path = directory.path().join("image.erofs");
        build_at(&path, &tree, &BuildOptions { codec, pcluster_bytes, fragments, ..BuildOptions::default() });
        let target = directory.path().join(format!("out-{number}"));
        let image = Image::open_path(&path).unwrap();
        let report = image.extract(&target, &ExtractOptions { threads: 2, ..ExtractOptions::default() }).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        assert_same(&expected, &tree_of_directory(&target), &format!("extracted {number}"));
        let again = image.extract(&target, &ExtractOptions::default()).unwrap();
        assert!(again.names == 0 && !again.problems.is_empty(), "what exists is overwritten");
    }
}

#[test]
fn lz4_is_decoded_in_place() {
    let (directory, tree, _) = source(|root| fs::write(root.join("text"), trees::text(4 << 20, 2)).unwrap());
    let path = directory.path().join("image.erofs");
    build_at(&path, &tree, &BuildOptions::default());
    let image = Image::open_path(&path).unwrap();
    let inode = image.resolve(b"text").unwrap();
    image.read_exact_at(&inode, &mut vec![0; inode.size as usize], 0).unwrap();
    let counts = image.counts();
    let all = counts.decoded_in_place + counts.decoded_by_copy;
    assert!(all > 300 && counts.decoded_in_place * 100 >= all * 98, "{counts:?}");
}

#[test]
fn content_that_moved_is_shared() {
    let (directory, tree, _) = source(|root| {
        let (same, noise) = (trees::text(400_000, 5), trees::noise(200_000, 5));
        fs::write(root.join("first"), [&same[..], &noise].concat()).unwrap();
        fs::write(root.join("second"), [b"insertion", &same[..], b"another", &noise].concat()).unwrap();
    });
    let path = directory.path().join("image.erofs");
    let bytes = |dedupe| {
        build_at(&path, &tree, &BuildOptions { dedupe, ..BuildOptions::default() });
        fs::metadata(&path).unwrap().len()
    };
    let (apart, shared) = (bytes(false), bytes(true));
    assert!(shared * 10 < apart * 6, "{shared} of {apart} bytes");
}

#[test]
fn fsck_accepts_lz4_images() {
    let (directory, tree, _) = source(trees::awkward);
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

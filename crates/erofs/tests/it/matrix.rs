//! All combinations of options for a compressed image of a small tree, mounted by the kernel and
//! compared.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use pagefold_codec::cluster::ClusterCodec;
use pagefold_erofs::{BuildOptions, Fragments, Image, Indexes, ScanOptions, Tree};

use crate::built::build_at;
use crate::tools::{self, Mount, Refused, assert_same, skip, tree_of_directory, tree_of_image};
use crate::trees;

/// Names of codecs. Levels are low: they do not affect the layout.
const CODECS: [(&str, ClusterCodec); 5] = [
    ("lz4", ClusterCodec::Lz4),
    ("lz4hc", ClusterCodec::Lz4Hc(3)),
    ("lzma", ClusterCodec::MicroLzma { preset: 0, dict_bytes: 1 << 16 }),
    ("deflate", ClusterCodec::Deflate(1)),
    ("zstd", ClusterCodec::Zstd { level: 1, window_log: 16 }),
];
const CLUSTERS: [u32; 3] = [4096, 65_536, 1 << 20];
/// Whether tails are inline, and what becomes a fragment.
const PACKINGS: [(bool, Fragments); 6] = [
    (false, Fragments::Off),
    (true, Fragments::Off),
    (false, Fragments::Tails),
    (false, Fragments::All),
    (true, Fragments::Tails),
    (true, Fragments::All),
];

/// Returns the features that options need, as the kernel calls them.
fn features(options: &BuildOptions) -> impl Iterator<Item = &'static str> {
    let needed = [
        (options.pcluster_bytes > options.block_bytes, "big_pcluster"),
        (options.ztailpacking, "ztailpacking"),
        (options.fragments != Fragments::Off, "fragments"),
        (options.dedupe, "dedupe"),
    ];
    needed.into_iter().filter_map(|(needed, name)| needed.then_some(name))
}

/// Returns all options with one codec.
fn cases(codec: ClusterCodec) -> Vec<BuildOptions> {
    let mut cases = Vec::new();
    for pcluster_bytes in CLUSTERS {
        for indexes in [Indexes::Full, Indexes::Compact] {
            for (ztailpacking, fragments) in PACKINGS {
                for dedupe in [false, true] {
                    cases.push(BuildOptions {
                        codec: Some(codec),
                        pcluster_bytes,
                        indexes,
                        ztailpacking,
                        fragments,
                        dedupe,
                        threads: 1,
                        ..BuildOptions::default()
                    });
                }
            }
        }
    }
    cases
}

/// Returns whether each option changes the image. With fragments, repeated content is shared in any
/// case unless it moved.
fn each_matters(options: &BuildOptions) -> bool {
    options.fragments == Fragments::Off || !options.dedupe
}

/// Mounts an image and compares it. An error names what the kernel lacks.
fn mounts(path: &Path, expected: &tools::Tree, name: &str, options: &BuildOptions) -> Result<(), String> {
    let BuildOptions { pcluster_bytes, indexes, ztailpacking, fragments, dedupe, .. } = options;
    let case = format!(
        "{name} cluster {pcluster_bytes} {indexes:?} ztailpacking {ztailpacking} fragments {fragments:?} dedupe {dedupe}"
    );
    assert_same(expected, &tree_of_image(&Image::open_path(path).unwrap()), &format!("read back: {case}"));
    let known = Path::new("/sys/fs/erofs/features");
    if let Some(missing) = features(options).find(|feature| known.is_dir() && !known.join(feature).exists()) {
        return Err(format!("this kernel's EROFS has no {missing}"));
    }
    match Mount::attempt(path)? {
        Ok(mount) => assert_same(expected, &tree_of_directory(mount.path()), &format!("mounted: {case}")),
        Err(Refused { unsupported: true, .. }) => return Err(format!("this kernel's EROFS has no {name}")),
        Err(refused) => panic!("{case}: {}", refused.message),
    }
    Ok(())
}

#[test]
fn every_way_to_build_an_image_mounts() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("tree");
    fs::create_dir(&source).unwrap();
    trees::small(&source);
    let scanned = || (Tree::scan(&source, &ScanOptions::default()).unwrap(), tree_of_directory(&source));
    let small = scanned();
    trees::over_a_mebibyte(&source);
    let large = scanned();
    let cases: Vec<_> =
        CODECS.iter().flat_map(|(name, codec)| cases(*codec).into_iter().map(move |case| (*name, case))).collect();
    assert_eq!(cases.len(), 5 * 3 * 2 * 6 * 2);
    let (next, lacking, images) = (AtomicUsize::new(0), Mutex::new(Vec::new()), Mutex::new(HashSet::new()));
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let path = directory.path().join(format!("{thread}.erofs"));
            let (small, large, cases, next, lacking, images) = (&small, &large, &cases, &next, &lacking, &images);
            scope.spawn(move || {
                while let Some((name, options)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (tree, expected) = if options.pcluster_bytes == 1 << 20 { large } else { small };
                    build_at(&path, tree, options);
                    if each_matters(options) {
                        images.lock().unwrap().insert(xxhash_rust::xxh3::xxh3_128(&fs::read(&path).unwrap()));
                    }
                    if let Err(why) = mounts(&path, expected, name, options) {
                        lacking.lock().unwrap().push(why);
                    }
                }
            });
        }
    });
    let different = cases.iter().filter(|(_, case)| each_matters(case)).count();
    assert_eq!(images.into_inner().unwrap().len(), different, "an option changed nothing");
    let mut lacking = lacking.into_inner().unwrap();
    let all = lacking.len();
    lacking.sort();
    lacking.dedup();
    if !lacking.is_empty() {
        let what = format!("{all} of {} images were not mounted: {}", cases.len(), lacking.join("; "));
        skip("every_way_to_build_an_image_mounts", &what);
    }
}

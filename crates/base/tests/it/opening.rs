//! What opening a base and reading from it asks of the storage.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use pagefold_base::{Base, Cache, Options};
use pagefold_disk::BlockDevice;
use pagefold_erofs::{BuildOptions, ClusterCodec, Content, Fragments, Indexes, NodeKind, Span, Tree, build};
use pagefold_faulty::{Asked, FaultyStorage};
use pagefold_storage::{Storage, StoredFile};
use tempfile::TempDir;

use crate::{Told, node};

const GIB: u64 = 1 << 30;
const PAGE: u64 = 4096;

/// What a local storage and one elsewhere fetch.
const UNITS: [u64; 2] = [4096, 256 << 10];

fn elsewhere(path: &Path, unit_bytes: u64) -> Arc<FaultyStorage> {
    let file = StoredFile::open(path).expect("a file");
    Arc::new(FaultyStorage::new(Arc::new(file), unit_bytes))
}

fn open_on(storage: &Arc<FaultyStorage>, path: &Path) -> (Base, Told) {
    let told = Told::default();
    let lines = told.clone();
    let tell = move |line: &str| lines.0.lock().expect("the lock").push(line.to_owned());
    let storage = Arc::clone(storage) as Arc<dyn Storage>;
    let base = Base::of(storage, path, &Options::default(), &Cache::new(4 << 20), tell);
    (base.expect("a base"), told)
}

/// Builds an image of a disk with a page of noise in each of these distances.
fn vast_image(folder: &TempDir, size: u64, distance: u64, options: &BuildOptions) -> PathBuf {
    let file = tempfile::tempfile().expect("a file");
    let pages = size / distance;
    let mut word = 1u64;
    let mut spans = Vec::new();
    for number in 0..pages {
        let noise = std::iter::repeat_with(|| {
            word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (word >> 56) as u8
        });
        let noise: Vec<u8> = noise.take(PAGE as usize).collect();
        file.write_all_at(&noise, number * PAGE).expect("a page");
        spans.push(Span { at: number * distance, len: PAGE, source: number * PAGE });
    }
    let mut tree = Tree::new(node(NodeKind::Fifo));
    let kind = NodeKind::Regular { content: Content::Spans(Arc::new(file), spans.into()), size };
    tree.add(tree.root(), b"disk.img", node(kind)).expect("a name");
    let path = folder.path().join("disk.erofs");
    let _ = std::fs::remove_file(&path);
    let out = File::options().read(true).write(true).create_new(true).open(&path).expect("an image");
    build(&tree, options, &out).expect("an image");
    path
}

/// However long a base is and however it is packed, opening it reads a bounded number of bytes, in a
/// bounded number of fetches.
#[test]
fn opening_reads_only_what_it_needs() {
    let folder = tempfile::tempdir().expect("a folder");
    let plain = BuildOptions::default();
    let zstd = Some(ClusterCodec::Zstd { level: 1, window_log: 16 });
    for options in [
        BuildOptions { indexes: Indexes::Compact, ..plain.clone() },
        BuildOptions {
            indexes: Indexes::Full,
            codec: zstd,
            pcluster_bytes: 64 << 10,
            fragments: Fragments::Tails,
            ..plain.clone()
        },
        BuildOptions { indexes: Indexes::Extents, ..plain.clone() },
        BuildOptions { codec: None, ..plain },
    ] {
        let path = vast_image(&folder, 8 * GIB, 2 << 20, &options);
        for unit_bytes in UNITS {
            let storage = elsewhere(&path, unit_bytes);
            let (base, _) = open_on(&storage, &path);
            assert!(base.read_unit_bytes() >= PAGE);
            let asked = storage.take_asked();
            let Asked { bytes, waits, units, .. } = asked;
            assert!(bytes <= 1 << 20 && waits <= 100 && units * unit_bytes <= 4 << 20, "{options:?}: {asked:?}");
            // A first read far inside.
            let mut page = [0; PAGE as usize];
            base.read(5 * GIB, &mut page).expect("a read");
            let asked = storage.take_asked();
            assert!(asked.bytes <= 128 << 10 && asked.waits <= 3, "{options:?}: {asked:?}");
        }
    }
}

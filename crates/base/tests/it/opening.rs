//! The requests to storage for opening a base and reading from it.

use std::{
    collections::VecDeque,
    fs::{self, File},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use pagefold_base::{Base, Cache, Format, Options};
use pagefold_disk::{BlockDevice, Error, Read};
use pagefold_erofs::{
    BuildOptions, ClusterCodec, Content, FileKind, Fragments, Image, Indexes, NodeKind, Span, Tree, build,
};
use pagefold_faulty::{Asked, FaultyStorage};
use pagefold_storage::{Storage, StoredFile};
use tempfile::TempDir;

use crate::{Lines, content, image_of, node, reading::sparse_file};

const GIB: u64 = 1 << 30;
const PAGE: u64 = 4096;

/// What a local storage and one elsewhere fetch.
const UNITS: [u64; 2] = [4096, 256 << 10];

fn elsewhere(path: &Path, unit_bytes: u64) -> Arc<FaultyStorage> {
    let file = StoredFile::open(path).expect("a file");
    Arc::new(FaultyStorage::new(Arc::new(file), unit_bytes))
}

fn open_on(storage: &Arc<FaultyStorage>, path: &Path) -> (Base, Lines) {
    open_as(storage, path, None)
}

fn open_as(storage: &Arc<FaultyStorage>, path: &Path, format: Option<Format>) -> (Base, Lines) {
    let logged = Lines::default();
    let storage = Arc::clone(storage) as Arc<dyn Storage>;
    let mut options = Options::default();
    options.format = format;
    let base = Base::of(storage, path, &options, &Cache::new(4 << 20), logged.logger());
    (base.expect("a base"), logged)
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
    let _ = fs::remove_file(&path);
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
    let full = BuildOptions { indexes: Indexes::Full, codec: zstd, pcluster_bytes: 64 << 10, ..plain.clone() };
    for (options, size) in [
        // Their indexes have 2 to 8 bytes for each of 4 KiB.
        (BuildOptions { indexes: Indexes::Compact, ..plain.clone() }, 2 * GIB),
        (BuildOptions { fragments: Fragments::Tails, ..full }, 2 * GIB),
        (BuildOptions { indexes: Indexes::Extents, ..plain.clone() }, 8 * GIB),
        (BuildOptions { codec: None, ..plain }, 8 * GIB),
    ] {
        let path = vast_image(&folder, size, 2 << 20, &options);
        for unit_bytes in UNITS {
            let storage = elsewhere(&path, unit_bytes);
            let (base, _) = open_on(&storage, &path);
            assert!(base.read_unit_bytes() >= PAGE);
            let asked = storage.take_asked();
            let Asked { bytes, waits, units, .. } = asked;
            assert!(bytes <= 512 << 10 && waits <= 40 && units * unit_bytes <= 2 << 20, "{options:?}: {asked:?}");
            // A first read far inside.
            let mut page = [0; PAGE as usize];
            base.read(size / 8 * 5, &mut page).expect("a read");
            let asked = storage.take_asked();
            assert!(asked.bytes <= 128 << 10 && asked.waits <= 3, "{options:?}: {asked:?}");
        }
    }
}

/// The start of a disk, which shows its format: 64 KiB, in units of 32.
#[test]
fn the_format_of_a_disk_takes_one_fetch() {
    let folder = tempfile::tempdir().expect("a folder");
    let raw = sparse_file(&folder, &content(16 << 20));
    for options in packings() {
        let path = image_of(&raw, &options);
        let asked = |format| {
            let storage = elsewhere(&path, 32 << 10);
            let _ = open_as(&storage, &path, format);
            storage.take_asked()
        };
        let (wanted, judged) = (asked(Some(Format::Erofs)), asked(None));
        assert!(judged.waits <= wanted.waits + 1, "{options:?}: {wanted:?}, {judged:?}");
        assert!(judged.units <= wanted.units + 3, "{options:?}: {wanted:?}, {judged:?}");
    }
}

/// Ways to store a disk so that its content lies in several clusters.
fn packings() -> [BuildOptions; 4] {
    let plain = BuildOptions::default();
    let zstd = Some(ClusterCodec::Zstd { level: 1, window_log: 16 });
    [
        BuildOptions { codec: zstd, pcluster_bytes: 64 << 10, ..plain.clone() },
        BuildOptions { indexes: Indexes::Extents, ..plain.clone() },
        BuildOptions { codec: None, chunk_bytes: Some(4096), ..plain.clone() },
        BuildOptions { codec: None, ..plain },
    ]
}

/// Reads that arrive together wait for two fetches: of the metadata that locates the content, and
/// of the content.
#[test]
fn what_is_needed_together_is_fetched_together() {
    let folder = tempfile::tempdir().expect("a folder");
    let content = content(16 << 20);
    let raw = sparse_file(&folder, &content);
    for options in packings().map(Some).into_iter().chain([None]) {
        let path = options.as_ref().map_or_else(|| raw.clone(), |options| image_of(&raw, options));
        let storage = elsewhere(&path, 32 << 10);
        let (base, _) = open_on(&storage, &path);
        storage.take_asked();
        let offsets: Vec<_> = (0..24u64).map(|number| number * 37 % 24 * (650 << 10)).collect();
        let mut bufs = vec![[0; PAGE as usize]; offsets.len()];
        let mut reads: Vec<_> = offsets.iter().zip(&mut bufs).map(|(at, buf)| Read::new(*at, buf)).collect();
        base.read_together(&mut reads);
        assert!(reads.iter().all(|read| read.result.is_ok()));
        for (at, buf) in offsets.iter().zip(&bufs) {
            assert!(buf[..] == content[*at as usize..][..PAGE as usize], "page at {at}");
        }
        let asked = storage.take_asked();
        assert!(asked.waits <= 2, "{options:?}: {asked:?}");
    }
}

/// A sequential reader waits for few of the units that it reads, and a long read for few fetches.
#[test]
fn what_comes_next_is_fetched_ahead() {
    let folder = tempfile::tempdir().expect("a folder");
    let content = content(24 << 20);
    let raw = sparse_file(&folder, &content);
    let [zstd, extents, ..] = packings();
    for options in [zstd, extents] {
        let path = image_of(&raw, &options);
        let file = Arc::new(StoredFile::open(&path).expect("a file"));
        let storage = Arc::new(FaultyStorage::new(file, 32 << 10).slow(Duration::from_millis(1)));
        let (base, _) = open_on(&storage, &path);
        storage.take_asked();
        let mut buf = vec![0; 64 << 10];
        for at in (0..content.len()).step_by(buf.len()) {
            base.read(at as u64, &mut buf).expect("a read");
            assert!(buf == content[at..at + buf.len()], "bytes at {at}");
        }
        let Asked { waits, units, .. } = storage.take_asked();
        assert!(waits * 3 <= units, "{options:?}: {waits} waits for {units} units");

        let storage = elsewhere(&path, 32 << 10);
        let (base, _) = open_on(&storage, &path);
        storage.take_asked();
        let mut buf = vec![0; 4 << 20];
        base.read(8 << 20, &mut buf).expect("a read");
        assert!(buf == content[8 << 20..12 << 20]);
        let asked = storage.take_asked();
        assert!(asked.waits <= 20, "{options:?}: {asked:?}");
    }
}

/// Data that cannot be fetched are an error only of the reads that need them. Later fetches return
/// correct data.
#[test]
fn a_storage_that_fails_spoils_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let content = content(2 << 20);
    let raw = sparse_file(&folder, &content);
    for options in packings().map(Some).into_iter().chain([None]) {
        let path = options.as_ref().map_or_else(|| raw.clone(), |options| image_of(&raw, options));
        let storage = elsewhere(&path, 8 << 10);
        let (base, logged) = open_on(&storage, &path);
        let check = |base: &Base, must: bool| {
            let mut failures = 0;
            for first in (0..content.len() as u64 - 8 * PAGE).step_by(11 * PAGE as usize) {
                let mut bufs = vec![[1; PAGE as usize]; 5];
                let offsets = [0, 3, 1, 7, 4].map(|number| first + number * PAGE);
                let mut reads: Vec<_> = offsets.iter().zip(&mut bufs).map(|(at, buf)| Read::new(*at, buf)).collect();
                base.read_together(&mut reads);
                let results: Vec<_> = reads.into_iter().map(|read| read.result).collect();
                for ((at, buf), result) in offsets.iter().zip(&bufs).zip(results) {
                    match result {
                        Ok(()) => assert!(buf[..] == content[*at as usize..][..PAGE as usize], "page at {at}"),
                        Err(Error::Io(_)) if !must => failures += 1,
                        Err(error) => panic!("{options:?}: {error}"),
                    }
                }
                let _ = base.extents(first, PAGE, &mut |_| true).map_err(|error| assert!(!must, "{error}"));
            }
            failures
        };
        storage.fail_each(2);
        let failures = check(&base, false);
        assert!(failures > 0 || logged.lines().is_empty());
        storage.fail_each(0);
        assert_eq!(check(&base, true), 0);

        // Missing data are an error, and so are data after them.
        let (other, logged) = open_on(&storage, &path);
        storage.cut(fs::metadata(&path).expect("a file").len() / 2);
        assert!(check(&other, false) > 0);
        assert!(logged.lines()[0].contains("cannot read byte"), "{:?}", logged.lines());
        storage.change();
        for _ in 0..2 {
            let _ = other.read(0, &mut [0; 512]);
        }
        assert_eq!(logged.lines().len(), 2, "{:?}", logged.lines());
        assert!(logged.lines()[1].contains("was modified while in use"));
    }
}

/// A scan of a tree of small files waits for a fraction of the units that its metadata are in.
#[test]
fn a_scan_of_metadata_waits_seldom() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut tree = Tree::new(node(NodeKind::Fifo));
    for directory in 0..40 {
        let parent = tree.add(
            tree.root(),
            format!("directory {directory}").as_bytes(),
            node(NodeKind::Directory(Default::default())),
        );
        let parent = parent.expect("a name");
        for number in 0..150 {
            let bytes = format!("{directory} {number}").repeat(20).into_bytes();
            let kind = NodeKind::Regular { size: bytes.len() as u64, content: Content::Bytes(bytes.into()) };
            tree.add(parent, format!("a file with a name, {number}").as_bytes(), node(kind)).expect("a name");
        }
    }
    let path = folder.path().join("tree.erofs");
    let out = File::options().read(true).write(true).create_new(true).open(&path).expect("an image");
    build(&tree, &BuildOptions::default(), &out).expect("an image");
    let storage = elsewhere(&path, 8 << 10);
    let image = Image::open(Arc::clone(&storage)).expect("an image");
    let (mut files, mut directories) = (0, VecDeque::from([image.root().expect("a directory")]));
    while let Some(directory) = directories.pop_front() {
        for entry in image.read_dir(&directory).expect("entries") {
            if !matches!(&*entry.name, b"." | b"..") {
                let inode = image.inode(entry.nid).expect("an inode");
                files += 1;
                directories.extend((inode.kind == FileKind::Directory).then_some(inode));
            }
        }
    }
    let asked = storage.take_asked();
    assert!(files == 40 + 40 * 150 && asked.waits * 4 <= asked.units, "{asked:?}");
}

//! Files that are almost only zeros take bytes for each run of data, in the image and while it is
//! built.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pagefold_codec::cluster::ClusterCodec;
use pagefold_erofs::{
    BuildOptions, BuildReport, Change, Content, Fragments, Image, Indexes, Node, NodeKind, Overlay, ReadAt, Span, Tree,
    build,
};
use proptest::prelude::*;
use rustix::fs::{SeekFrom, seek};

use crate::tools::{Mount, run, skip};
use crate::trees::{noise, text};

const ADDRESSES_48BIT: u32 = 0x80;
const PAGE: u64 = 4096;
const GIB: u64 = 1 << 30;

/// A disk as its runs of data, and its size.
#[derive(Clone, Debug)]
struct Disk {
    runs: Vec<(u64, Vec<u8>)>,
    size: u64,
}

fn node(kind: NodeKind) -> Node {
    Node { kind, permissions: 0o644, uid: 0, gid: 0, mtime_s: 0, mtime_nsec: 0, xattrs: Vec::new() }
}

fn tree_of(content: Content, size: u64) -> Tree {
    let mut tree = Tree::new(node(NodeKind::Fifo));
    tree.add(tree.root(), b"disk", node(NodeKind::Regular { content, size })).unwrap();
    tree
}

impl Disk {
    /// A page of noise at each of these offsets.
    fn of_pages(size: u64, offsets: impl IntoIterator<Item = u64>) -> Self {
        let runs = offsets.into_iter().map(|at| (at, noise(PAGE as usize, at)));
        Self { runs: runs.collect(), size }
    }

    /// All data in sequence, without the zeros.
    fn packed(&self) -> (Arc<File>, Vec<Span>) {
        let file = tempfile::tempfile().unwrap();
        let (mut spans, mut source) = (Vec::new(), 0);
        for (at, bytes) in &self.runs {
            file.write_all_at(bytes, source).unwrap();
            spans.push(Span { at: *at, len: bytes.len() as u64, source });
            source += bytes.len() as u64;
        }
        (Arc::new(file), spans)
    }

    fn tree(&self) -> Tree {
        let (file, spans) = self.packed();
        tree_of(Content::Spans(file, spans.into()), self.size)
    }

    fn build(&self, options: &BuildOptions, path: &Path) -> BuildReport {
        built(&self.tree(), options, path)
    }

    /// Checks that the image holds the disk, and how.
    fn check(&self, path: &Path, name: &str) {
        let image = Image::open_path(path).unwrap();
        let problems = image.check(1).problems;
        assert!(problems.is_empty(), "{name}: {problems:?}");
        let report = image.compare(&self.tree(), 2);
        assert!(report.differences.is_empty(), "{name}: {:?}", report.differences);
        let file = image.file(&image.resolve(b"disk").unwrap()).unwrap();
        for (at, bytes) in &self.runs {
            let mut found = vec![9; bytes.len()];
            assert_eq!(file.read_at(&mut found, *at).unwrap(), bytes.len(), "{name}");
            assert!(found == *bytes, "{name}: {at}");
        }
    }
}

fn read(file: &File, bytes: &mut [u8], at: u64) -> io::Result<()> {
    FileExt::read_exact_at(file, bytes, at)
}

fn built(tree: &Tree, options: &BuildOptions, path: &Path) -> BuildReport {
    let _ = std::fs::remove_file(path);
    let out = File::options().read(true).write(true).create_new(true).open(path).unwrap();
    build(tree, options, &out).unwrap()
}

fn codecs() -> [Option<ClusterCodec>; 5] {
    [
        Some(ClusterCodec::Lz4),
        Some(ClusterCodec::Zstd { level: 1, window_log: 16 }),
        Some(ClusterCodec::Deflate(1)),
        Some(ClusterCodec::MicroLzma { preset: 0, dict_bytes: 1 << 16 }),
        None,
    ]
}

/// All packings with one codec.
fn packings(codec: Option<ClusterCodec>) -> Vec<BuildOptions> {
    let base = BuildOptions { codec, threads: 2, ..BuildOptions::default() };
    if codec.is_none() {
        return vec![base];
    }
    vec![
        base.clone(),
        BuildOptions { pcluster_bytes: 65_536, dedupe: true, ..base.clone() },
        BuildOptions { ztailpacking: true, ..base.clone() },
        BuildOptions { fragments: Fragments::Tails, ztailpacking: true, ..base.clone() },
        BuildOptions { fragments: Fragments::All, dedupe: true, ..base },
    ]
}

#[test]
fn a_disk_of_100_gib_takes_as_much_as_its_data() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    let mut unmountable = None;
    for options in codecs().into_iter().flat_map(packings) {
        for (disk, most) in [
            (Disk::of_pages(100 * GIB, [41 * GIB]), 4 * PAGE),
            (Disk::of_pages(100 * GIB, [100 * GIB - PAGE]), 4 * PAGE),
            (Disk::of_pages(100 * GIB, []), 2 * PAGE),
        ] {
            let name = format!("{options:?}, {} runs", disk.runs.len());
            let report = disk.build(&options, &path);
            assert!(report.image_bytes <= most, "{name}: {}", report.image_bytes);
            disk.check(&path, &name);
            let has_extents = !disk.runs.is_empty();
            assert_eq!(report.files_with_extents, u64::from(has_extents), "{name}");
            match mounted(&disk, &path, &name) {
                Ok(()) => {}
                Err(why) => unmountable = Some(why),
            }
            // fsck.erofs skips holes of this length only where it does not extract.
            if matches!(options.codec, Some(ClusterCodec::Lz4) | None) && has_extents && knows_extents() {
                run("fsck.erofs", [&path]).unwrap();
            }
        }
    }
    if let Some(why) = unmountable {
        skip("a_disk_of_100_gib_takes_as_much_as_its_data", &why);
    }
}

/// Returns whether an `fsck.erofs` is installed that reads encoded extents.
fn knows_extents() -> bool {
    let output = std::process::Command::new("fsck.erofs").arg("-V").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let mut numbers = text.split(|other: char| !other.is_ascii_digit()).filter_map(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(1), Some(9))
}

/// Compares what the kernel reads in the runs and next to them, and where it finds holes.
fn mounted(disk: &Disk, path: &Path, name: &str) -> Result<(), String> {
    let mount = match Mount::attempt(path)? {
        Ok(mount) => mount,
        Err(refused) if refused.unsupported => return Err(refused.message),
        Err(refused) => panic!("{name}: {}", refused.message),
    };
    let file = File::open(mount.path().join("disk")).unwrap();
    assert_eq!(file.metadata().unwrap().len(), disk.size, "{name}");
    for (at, bytes) in &disk.runs {
        let mut found = vec![9; bytes.len()];
        read(&file, &mut found, *at).unwrap_or_else(|error| panic!("{name}: {at}: {error}"));
        assert!(found == *bytes, "{name}: the kernel reads other data at {at}");
    }
    let is_data = |at: u64| disk.runs.iter().any(|(start, bytes)| (*start..start + bytes.len() as u64).contains(&at));
    for at in (0..64).map(|part| disk.size / 64 * part + 7).filter(|at| !is_data(*at)) {
        let mut byte = [9];
        read(&file, &mut byte, at).unwrap_or_else(|error| panic!("{name}: {at}: {error}"));
        assert_eq!(byte, [0], "{name}: the kernel reads something in the hole at {at}");
    }
    let place = |(at, bytes): &(u64, Vec<u8>)| Some(at + bytes.iter().position(|byte| *byte != 0)? as u64);
    if let Some(at) = disk.runs.iter().find_map(place) {
        let first = seek(&file, SeekFrom::Data(0)).ok();
        assert!(first.is_some_and(|first| first <= at), "{name}: the kernel's first data is at {first:?}, not {at}");
    }
    Ok(())
}

#[test]
fn each_run_takes_its_blocks_and_a_record() {
    const RUNS: u64 = 1000;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    let disk = Disk::of_pages(128 * GIB, (0..RUNS).map(|number| number * (128 << 20) + 5 * PAGE));
    for codec in codecs() {
        let report = disk.build(&BuildOptions { codec, ..BuildOptions::default() }, &path);
        // Two records: of the data and of the hole.
        let most = RUNS * (PAGE + 2 * 32) + 4 * PAGE;
        assert!(report.image_bytes <= most, "{codec:?}: {} of {most}", report.image_bytes);
        disk.check(&path, &format!("{codec:?}"));
    }
    // A file longer than 2^32 blocks.
    let disk = Disk::of_pages(64 << 40, (0..100).map(|number| number << 39));
    for codec in [Some(ClusterCodec::Lz4), None] {
        let report = disk.build(&BuildOptions { codec, ..BuildOptions::default() }, &path);
        assert!(report.image_bytes <= 100 * (PAGE + 2 * 32) + 4 * PAGE, "{}", report.image_bytes);
        disk.check(&path, "64 TiB");
    }
    for indexes in [Indexes::Compact, Indexes::Full] {
        let out = tempfile::tempfile().unwrap();
        let error = build(&disk.tree(), &BuildOptions { indexes, ..BuildOptions::default() }, &out).unwrap_err();
        assert!(error.to_string().contains("2^32 blocks"), "{error}");
    }
}

/// Zeros of a long file with more data take a mebibyte, and then only their indexes and two clusters
/// for each run.
#[test]
fn zeros_of_long_files_share_clusters() {
    const RUNS: u64 = 10;
    const RUN_BYTES: u64 = 10 << 20;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    let size = GIB + (500 << 20) + 5;
    let runs =
        (0..RUNS).map(|run| (run * (size / RUNS / PAGE * PAGE) + 9 * PAGE, text(RUN_BYTES as usize, run as u32)));
    let disk = Disk { runs: runs.collect(), size };
    let indexes_bytes = |bytes: u64| bytes / PAGE * 2;
    for pcluster_bytes in [4096, 65_536] {
        let auto = BuildOptions { pcluster_bytes, ..BuildOptions::default() };
        let compact = BuildOptions { indexes: Indexes::Compact, ..auto.clone() };
        let data = Disk {
            runs: vec![(0, disk.runs.iter().flat_map(|(_, bytes)| bytes).copied().collect())],
            size: RUNS * RUN_BYTES,
        };
        let data_bytes = data.build(&auto, &path).image_bytes;
        let [shared, apart] = [&auto, &compact].map(|options| {
            let name = format!("{options:?}");
            let report = disk.build(options, &path);
            assert_eq!(
                (report.shares_zeros, report.files_with_extents),
                (options.indexes == Indexes::Auto, 0),
                "{name}"
            );
            disk.check(&path, &name);
            if let Err(why) = mounted(&disk, &path, &name) {
                skip("zeros_of_long_files_share_clusters", &why);
            }
            run("fsck.erofs", [&path]).unwrap();
            report.image_bytes
        });
        let zeros = size - RUNS * RUN_BYTES;
        // A run ends in up to two blocks more than its data alone.
        let most = data_bytes + (1 << 20) + indexes_bytes(zeros) + RUNS * (2 * u64::from(pcluster_bytes) + 4 * PAGE);
        assert!(shared <= most && apart > most, "{pcluster_bytes}: {shared}, {apart} of {most}");
    }
    // A shorter file takes less anyway.
    let short = Disk { size: GIB - 1, runs: vec![(0, text(RUN_BYTES as usize, 0))] };
    assert!(!short.build(&BuildOptions::default(), &path).shares_zeros);
}

/// Plain files have chunks, which more kernels mount, unless these take many bytes.
#[test]
fn plain_files_have_extents_only_where_chunks_take_much() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    let plain = BuildOptions { codec: None, ..BuildOptions::default() };
    let chunked = BuildOptions { chunk_bytes: Some(16 << 20), ..plain.clone() };
    let compact = BuildOptions { indexes: Indexes::Compact, ..plain.clone() };
    let few = Disk::of_pages(16 * GIB, [5 * GIB]);
    let more = Disk::of_pages(17 * GIB, [5 * GIB]);
    // Groups of a file system, whose addresses would take 1 GiB.
    let many = Disk::of_pages(4 << 40, (0..2000).map(|number| number * 2 * GIB));
    for (disk, options, has_extents, most) in [
        (&few, &plain, false, 532 << 10),
        (&more, &plain, true, 4 * PAGE),
        (&more, &compact, false, 600 << 10),
        (&more, &chunked, false, 20 << 20),
        (&many, &plain, true, 2000 * (PAGE + 2 * 32) + 4 * PAGE),
    ] {
        let name = format!("{} bytes, {options:?}", disk.size);
        let report = disk.build(options, &path);
        assert!(report.image_bytes <= most, "{name}: {}", report.image_bytes);
        assert_eq!(report.files_with_extents, u64::from(has_extents), "{name}");
        disk.check(&path, &name);
        if let Err(why) = mounted(disk, &path, &name) {
            skip("plain_files_have_extents_only_where_chunks_take_much", &why);
        }
        if knows_extents() {
            run("fsck.erofs", [&path]).unwrap();
        }
        // An image over it is like it.
        let image = Image::open_path(&path).unwrap();
        let base = image.file(&image.resolve(b"disk").unwrap()).unwrap();
        assert_eq!(BuildOptions::like(&base).unwrap().codec, None, "{name}");
    }
}

/// A source that counts what is read.
struct Counted {
    file: Arc<File>,
    spans: Vec<Span>,
    size: u64,
    reads: AtomicU64,
    bytes: AtomicU64,
}

impl ReadAt for Counted {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.size)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(buf.len() as u64, Ordering::Relaxed);
        let end = offset + buf.len() as u64;
        let span = self.spans.iter().find(|span| span.at <= offset && end <= span.at + span.len);
        let span = span.expect("a read outside of what changed");
        read(&self.file, buf, span.source + (offset - span.at))
    }
}

#[test]
fn holes_are_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    let disk = Disk::of_pages(100 * GIB, (0..50).map(|number| number * 2 * GIB));
    let data_bytes = 50 * PAGE;
    let overlay = || {
        let (file, spans) = disk.packed();
        let changes = spans.iter().map(|span| Change { at: span.at, len: span.len, zeros: false }).collect();
        let (reads, bytes) = Default::default();
        let source = Arc::new(Counted { file, spans, size: disk.size, reads, bytes });
        (Overlay::new(disk.size, changes, Arc::clone(&source) as _).unwrap(), source)
    };
    for codec in codecs() {
        let (overlay, source) = overlay();
        let tree = tree_of(Content::Overlay(Arc::new(overlay)), disk.size);
        built(&tree, &BuildOptions { codec, threads: 1, ..BuildOptions::default() }, &path);
        disk.check(&path, &format!("{codec:?}"));
        // To find the runs, and to store them.
        let (reads, bytes) = (source.reads.load(Ordering::Relaxed), source.bytes.load(Ordering::Relaxed));
        assert!(reads <= 2 * 50 && bytes <= 2 * data_bytes, "{codec:?}: {reads} reads of {bytes} bytes");
    }
    // Above a base, with and without changes. Equal content above it gives an equal image.
    built(&disk.tree(), &BuildOptions::default(), &path);
    let image = Image::open_path(&path).unwrap();
    let base = image.file(&image.resolve(b"disk").unwrap()).unwrap();
    let above = |content: Overlay, name: &str| {
        let (path, tree) = (folder.path().join(name), tree_of(Content::Overlay(Arc::new(content)), disk.size));
        built(&tree, &BuildOptions::like(&base).unwrap(), &path);
        disk.check(&path, name);
        std::fs::read(path).unwrap()
    };
    let nothing = Overlay::new(disk.size, Vec::new(), Arc::new(Vec::<u8>::new())).unwrap();
    let (rewritten, source) = overlay();
    let zeros = Change { at: 3 * GIB, len: GIB / 2, zeros: true };
    let zeroed = Overlay::new(disk.size, vec![zeros], Arc::new(Vec::<u8>::new())).unwrap();
    let expected = above(nothing.over(base.clone()), "nothing");
    assert!(above(rewritten.over(base.clone()), "rewritten") == expected);
    assert!(above(zeroed.over(base.clone()), "zeroed") == expected);
    assert!(source.reads.load(Ordering::Relaxed) <= 2 * 50);
}

#[test]
fn files_with_more_data_keep_their_indexes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    let compact = BuildOptions { indexes: Indexes::Compact, ..BuildOptions::default() };
    let part = GIB / 16;
    let pattern = text(1 << 20, 1);
    for (size, data, is_sparse) in
        [(GIB, part, true), (GIB, part + PAGE, false), (GIB - PAGE, PAGE, false), (GIB, PAGE, true)]
    {
        let bytes = pattern.iter().copied().cycle().take(data as usize).collect();
        let disk = Disk { runs: vec![(GIB / 2, bytes)], size };
        let report = disk.build(&BuildOptions::default(), &path);
        disk.check(&path, &format!("{data} of {size}"));
        let features = Image::open_path(&path).unwrap().superblock().feature_incompat;
        assert_eq!(features & ADDRESSES_48BIT > 0, is_sparse, "{data} of {size}");
        assert_eq!(report.shares_zeros, !is_sparse && size == GIB, "{data} of {size}");
        if !is_sparse && !report.shares_zeros {
            let chosen = std::fs::read(&path).unwrap();
            assert_eq!(disk.build(&compact, &path).image_bytes, report.image_bytes);
            assert!(std::fs::read(&path).unwrap() == chosen, "{data} of {size}: not what compact indexes give");
        }
    }
}

fn disks() -> impl Strategy<Value = Disk> {
    let run = (0u64..200 << 20, 1usize..100_000, 0u8..3, 0u64..3);
    (proptest::collection::vec(run, 0..8), 0u64..3 * PAGE, any::<u64>()).prop_map(|(parts, end, seed)| {
        let (mut runs, mut at) = (Vec::<(u64, Vec<u8>)>::new(), 0u64);
        for (number, (gap, len, kind, unit)) in parts.into_iter().enumerate() {
            // Short gaps, gaps around the length of a hole, long ones.
            let gap = [gap % 9000, gap % (600 << 10), gap][unit as usize];
            let seed = seed.wrapping_add(number as u64) % 1000;
            at += gap;
            let bytes = match kind {
                0 => noise(len, seed),
                1 => text(len, seed as u32),
                _ => vec![0; len],
            };
            runs.push((at, bytes));
            at += len as u64;
        }
        Disk { runs, size: at.max(GIB) + end }
    })
}

fn options() -> impl Strategy<Value = BuildOptions> {
    let indexes = prop_oneof![3 => Just(Indexes::Auto), 2 => Just(Indexes::Extents), 1 => Just(Indexes::Compact)];
    let block = prop_oneof![3 => Just(4096u32), 1 => Just(512), 1 => Just(16_384)];
    (0..5usize, 0..5usize, indexes, block, 1u32..5).prop_map(|(codec, packing, indexes, block_bytes, blocks)| {
        let packings = packings(codecs()[codec]);
        let options = packings[packing % packings.len()].clone();
        BuildOptions { indexes, block_bytes, pcluster_bytes: block_bytes * blocks, ..options }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// The image holds the disk, whichever of its zeros are known and for any number of threads.
    #[test]
    fn sparse_disks_come_back(disk in disks(), options in options()) {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let report = disk.build(&options, &at("image"));
        disk.check(&at("image"), &format!("{options:?}"));
        if options.indexes == Indexes::Auto {
            let data: u64 = disk.runs.iter().map(|(_, bytes)| bytes.len() as u64).sum();
            let most = data + (disk.runs.len() as u64 + 8) * 8 * u64::from(options.block_bytes) + (1 << 20);
            prop_assert!(report.image_bytes <= most, "{} of {most}", report.image_bytes);
        }
        let source = File::create_new(at("disk")).unwrap();
        source.set_len(disk.size).unwrap();
        for (at, bytes) in &disk.runs {
            source.write_all_at(bytes, *at).unwrap();
        }
        let tree = tree_of(Content::Open(Arc::new(source), at("disk").as_path().into()), disk.size);
        built(&tree, &BuildOptions { threads: 1, ..options.clone() }, &at("again"));
        prop_assert!(std::fs::read(at("image")).unwrap() == std::fs::read(at("again")).unwrap());
        if options.block_bytes as usize <= rustix::param::page_size()
            && let Err(why) = mounted(&disk, &at("image"), &format!("{options:?}"))
        {
            skip("sparse_disks_come_back", &why);
        }
    }
}

#[test]
fn fsck_extracts_sparse_disks() {
    let test = "fsck_extracts_sparse_disks";
    if !knows_extents() {
        return skip(test, "fsck.erofs 1.9 is not installed");
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let runs = vec![(70 << 20, text(3_000_000, 1)), (200 << 20, noise(5000, 2)), (GIB - 3000, text(2000, 3))];
    let disk = Disk { runs, size: GIB };
    let all = codecs().into_iter().filter(Option::is_some).flat_map(packings);
    for options in all.enumerate().filter_map(|(number, options)| number.is_multiple_of(3).then_some(options)) {
        disk.build(&options, &at("image"));
        let _ = std::fs::remove_dir_all(at("out"));
        // 1.9.3 mistakes the packed inode for the root unless a path is given.
        let target = format!("--extract={}", at("out").display());
        run("fsck.erofs", [target.as_ref(), "--path=/".as_ref(), at("image").as_os_str()]).unwrap();
        let file = File::open(at("out").join("disk")).unwrap();
        for (at, bytes) in &disk.runs {
            let mut found = vec![9; bytes.len()];
            read(&file, &mut found, *at).unwrap();
            assert!(found == *bytes, "{options:?}: {at}");
        }
        let mut before = vec![9; 1 << 20];
        read(&file, &mut before, 69 << 20).unwrap();
        assert!(before.iter().all(|byte| *byte == 0), "{options:?}");
    }
}

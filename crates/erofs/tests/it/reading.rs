//! All kinds of reads, compared with the packed bytes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use pagefold_codec::cluster::ClusterCodec;
use pagefold_erofs::{BuildOptions, Error, ExtractOptions, File, Fragments, Image, ReadAt, ScanOptions, Tree};
use proptest::prelude::*;

use crate::built::build_at;
use crate::trees::{noise, text};

/// Text with noise in it, so that clusters of both kinds are adjacent.
fn content() -> Vec<u8> {
    let mut bytes = text(2_000_000, 1);
    bytes.extend(noise(100_000, 1));
    bytes.extend(text(900_000, 2));
    // A single cluster of this contains megabytes.
    bytes.extend(vec![b'x'; 3_000_000]);
    bytes.extend(text(5_432, 3));
    bytes
}

fn options() -> Vec<BuildOptions> {
    let lz4 = BuildOptions::default();
    vec![
        lz4.clone(),
        BuildOptions { pcluster_bytes: 65_536, ztailpacking: true, ..lz4.clone() },
        BuildOptions {
            pcluster_bytes: 16_384,
            codec: Some(ClusterCodec::Zstd { level: 1, window_log: 16 }),
            fragments: Fragments::Tails,
            ..lz4.clone()
        },
        BuildOptions {
            pcluster_bytes: 65_536,
            codec: Some(ClusterCodec::Zstd { level: 3, window_log: 20 }),
            ..lz4.clone()
        },
        BuildOptions { pcluster_bytes: 16_384, codec: Some(ClusterCodec::Deflate(1)), ..lz4.clone() },
        BuildOptions {
            pcluster_bytes: 8_192,
            codec: Some(ClusterCodec::MicroLzma { preset: 0, dict_bytes: 1 << 16 }),
            ..lz4
        },
    ]
}

fn image(directory: &Path, content: &[u8], options: &BuildOptions) -> PathBuf {
    let tree = directory.join("tree");
    fs::create_dir_all(&tree).unwrap();
    fs::write(tree.join("file"), content).unwrap();
    let path = directory.join("image");
    build_at(&path, &Tree::scan(&tree, &ScanOptions::default()).unwrap(), options);
    path
}

/// Pseudorandom numbers.
fn numbers(mut state: u64) -> impl FnMut(usize) -> usize {
    move |below| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    }
}

/// Reads sequentially with occasional jumps, in requests of all lengths.
fn read_about(file: &File, content: &[u8], seed: u64) {
    let mut next = numbers(seed);
    let mut buffer = vec![0; 1_500_000];
    let mut at = 0;
    for _ in 0..150 {
        let most = [100, 5000, 140_000, 1_500_000][next(4)];
        let len = next(most) + 1;
        if next(20) == 0 || at >= content.len() {
            at = next(content.len());
        }
        let got = file.read_at(&mut buffer[..len], at as u64).unwrap();
        assert_eq!(got, len.min(content.len() - at));
        assert!(buffer[..got] == content[at..at + got], "{got} bytes at {at}");
        at += got;
    }
}

#[test]
fn readers_of_one_file_do_not_disturb_each_other() {
    let (directory, content) = (tempfile::tempdir().unwrap(), content());
    for options in options() {
        let path = image(directory.path(), &content, &options);
        let in_memory = Image::open(fs::read(&path).unwrap()).unwrap();
        let small_cache = Image::open_with(fs::File::open(&path).unwrap(), 1 << 20).unwrap();
        for image in [Image::open_path(&path).unwrap(), small_cache, in_memory] {
            let inode = image.resolve(b"file").unwrap();
            let file = image.file(&inode).unwrap();
            read_about(&file, &content, 0);
            std::thread::scope(|scope| {
                for seed in 1..4 {
                    let (file, content) = (&file, &content);
                    scope.spawn(move || read_about(file, content, seed));
                }
            });
        }
    }
}

#[test]
fn reading_in_order_is_the_same_in_any_step() {
    let (directory, content) = (tempfile::tempdir().unwrap(), content());
    let path = image(directory.path(), &content, &BuildOptions { pcluster_bytes: 65_536, ..BuildOptions::default() });
    let image = Image::open_path(&path).unwrap();
    let inode = image.resolve(b"file").unwrap();
    for step in [4096, 100_000, 131_072, 1 << 20, 10 << 20] {
        let file = image.file(&inode).unwrap();
        let (mut read, mut buffer) = (Vec::new(), vec![0; step]);
        while let len @ 1.. = file.read_at(&mut buffer, read.len() as u64).unwrap() {
            read.extend_from_slice(&buffer[..len]);
        }
        assert!(read == content, "steps of {step}");
    }
}

/// An error in readahead must not fail the current read, nor hide the error from a later one.
#[test]
fn damage_is_met_where_it_lies() {
    let (directory, content) = (tempfile::tempdir().unwrap(), content());
    let path = image(directory.path(), &content, &BuildOptions::default());
    let mut bytes = fs::read(&path).unwrap();
    let bad = 4096 * 100;
    bytes[bad..bad + 4096].fill(0xff);
    fs::write(&path, &bytes).unwrap();
    let image = Image::open_path(&path).unwrap();
    let file = image.file(&image.resolve(b"file").unwrap()).unwrap();
    let mut buffer = vec![0; 10_000];
    let mut at = 0;
    let error = loop {
        match file.read_at(&mut buffer, at) {
            Ok(len) => assert!(buffer[..len] == content[at as usize..at as usize + len]),
            Err(error) => break error,
        }
        at += 10_000;
    };
    assert!(matches!(error, Error::Corrupt { offset, .. } if offset == bad as u64), "{error}");
    let behind = at + 200_000;
    assert_eq!(file.read_at(&mut buffer, behind).unwrap(), 10_000);
    assert!(buffer == content[behind as usize..behind as usize + 10_000]);
}

/// A read of the front of a cluster does not report damage at its end. A read of the end, or a read
/// or check of the whole cluster, does.
#[test]
fn damage_at_the_end_of_a_cluster_is_met_there() {
    const CLUSTER: usize = 65_536;
    let (directory, content) = (tempfile::tempdir().unwrap(), text(2_000_000, 1));
    let path =
        image(directory.path(), &content, &BuildOptions { pcluster_bytes: CLUSTER as u32, ..Default::default() });
    let sound = fs::read(&path).unwrap();
    let damaged = |range: std::ops::Range<usize>| {
        let mut bytes = sound.clone();
        bytes[range].fill(0xff);
        let image = Image::open(bytes).unwrap();
        let inode = image.resolve(b"file").unwrap();
        (image, inode)
    };
    let mut all = vec![0; content.len()];
    let (image, inode) = damaged(3 * CLUSTER..3 * CLUSTER + 100);
    let Err(Error::Corrupt { offset, .. }) = image.read_exact_at(&inode, &mut all, 0) else { panic!("no error") };
    let end = offset as usize + CLUSTER;
    let (image, inode) = damaged(end - 2_000..end);
    let mut page = [0; 4096];
    // Every fourth page, so that few clusters are read often enough to be decoded whole.
    let bad: Vec<_> = (0..content.len() - 4096)
        .step_by(16_384)
        .filter(|&at| match image.read_exact_at(&inode, &mut page, at as u64) {
            Ok(()) => {
                assert!(page[..] == content[at..at + 4096]);
                false
            }
            Err(error) => {
                assert!(matches!(error, Error::Corrupt { offset, .. } if offset as usize == end - CLUSTER), "{error}");
                true
            }
        })
        .collect();
    assert!(!bad.is_empty() && bad.len() < content.len() / CLUSTER);
    assert!(image.read_exact_at(&inode, &mut all, 0).is_err());
    assert_eq!(image.check(2).problems.len(), 1);
}

#[test]
fn an_image_that_is_shortened_under_its_reader_is_an_error() {
    let (directory, content) = (tempfile::tempdir().unwrap(), content());
    let path = image(directory.path(), &content, &BuildOptions::default());
    let image = Image::open_path(&path).unwrap();
    let file = image.file(&image.resolve(b"file").unwrap()).unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(500_000).unwrap();
    let mut buffer = vec![0; content.len()];
    assert!(matches!(file.read_at(&mut buffer, 0), Err(Error::Io { .. })));
}

/// A source that counts requests.
struct Counting {
    bytes: Vec<u8>,
    reads: Arc<AtomicU64>,
}

impl ReadAt for Counting {
    fn len_bytes(&self) -> io::Result<u64> {
        self.bytes.len_bytes()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.bytes.read_exact_at(buf, offset)
    }
}

/// An image stored in another image.
struct Nested(File);

impl ReadAt for Nested {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.0.inode().size)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let len = self.0.read_at(buf, offset).map_err(io::Error::other)?;
        if len == buf.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

#[test]
fn an_image_in_an_image_is_read() {
    let content = content();
    for options in options() {
        let (inner, outer) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let bytes = fs::read(image(inner.path(), &content, &options)).unwrap();
        let outer = Image::open_path(&image(outer.path(), &bytes, &options)).unwrap();
        let file = outer.file(&outer.resolve(b"file").unwrap()).unwrap();
        let nested = Image::open(Nested(file)).unwrap();
        let file = nested.file(&nested.resolve(b"file").unwrap()).unwrap();
        let mut next = numbers(7);
        let mut buffer = vec![0; 4096];
        for _ in 0..300 {
            let at = next(content.len() - buffer.len());
            assert_eq!(file.read_at(&mut buffer, at as u64).unwrap(), buffer.len());
            assert!(buffer == content[at..][..buffer.len()], "at {at}");
        }
        let mut all = vec![0; content.len()];
        assert_eq!(file.read_at(&mut all, 0).unwrap(), content.len());
        assert!(all == content);
    }
}

#[test]
fn small_files_take_few_reads_and_one_decode() {
    const FILES: u64 = 100;
    let directory = tempfile::tempdir().unwrap();
    let (tree, path) = (directory.path().join("tree"), directory.path().join("image"));
    fs::create_dir(&tree).unwrap();
    for number in 0..FILES {
        fs::write(tree.join(format!("file{number}")), text(6_000, number as u32)).unwrap();
    }
    build_at(&path, &Tree::scan(&tree, &ScanOptions::default()).unwrap(), &BuildOptions::default());
    let reads = Arc::new(AtomicU64::new(0));
    let image = Image::open(Counting { bytes: fs::read(&path).unwrap(), reads: Arc::clone(&reads) }).unwrap();
    let entries = image.read_dir(&image.root().unwrap()).unwrap();
    for room in [0, File::room_bytes(0)] {
        let before = (reads.load(Ordering::Relaxed), image.counts());
        for (number, entry) in entries.iter().enumerate() {
            let file = image.file(&image.inode(entry.nid).unwrap()).unwrap();
            let len = file.inode().size as usize;
            let mut buf = vec![0; len + room];
            assert_eq!(file.read_into(&mut buf, len, 0).unwrap(), len);
            assert!(number > 0 || buf[..len] == text(6_000, 0));
        }
        let taken = reads.load(Ordering::Relaxed) - before.0;
        assert!(taken < FILES * 2, "{taken} reads with {room} bytes of room");
        let in_place = image.counts().decoded_in_place - before.1.decoded_in_place;
        let copied = image.counts().decoded_by_copy - before.1.decoded_by_copy;
        assert_eq!((in_place, copied), if room == 0 { (0, FILES) } else { (FILES, 0) });
    }
}

#[test]
fn extents_of_any_length_are_extracted() {
    let content = content();
    for (number, options) in options().into_iter().enumerate() {
        let directory = tempfile::tempdir().unwrap();
        let image = Image::open_path(&image(directory.path(), &content, &options)).unwrap();
        for threads in [1, 3] {
            let target = directory.path().join(format!("out-{threads}"));
            let report = image.extract(&target, &ExtractOptions { threads, ..ExtractOptions::default() }).unwrap();
            assert!(report.problems.is_empty(), "{:?}", report.problems);
            assert!(fs::read(target.join("file")).unwrap() == content, "options {number}, {threads} threads");
        }
    }
}

#[test]
fn many_misses_in_a_file_keep_its_clusters() {
    let directory = tempfile::tempdir().unwrap();
    let content = text(8 << 20, 1);
    let image = image(directory.path(), &content, &BuildOptions { pcluster_bytes: 65_536, ..BuildOptions::default() });
    let image = Image::open_path(&image).unwrap();
    let file = image.file(&image.resolve(b"file").unwrap()).unwrap();
    let mut next = numbers(5);
    let mut page = [0; 4096];
    for _ in 0..1000 {
        let at = next(content.len() / 4096) * 4096;
        assert_eq!(file.read_at(&mut page, at as u64).unwrap(), 4096);
        assert!(page[..] == content[at..at + 4096]);
    }
    // Each cluster is decoded whole once, and for one in eight, a prefix is decoded before.
    let (counts, clusters) = (image.counts(), image.len_bytes() / 65_536);
    let decoded = counts.decoded_in_place + counts.decoded_by_copy;
    assert!(clusters > 20 && decoded * 2 < clusters * 3, "{clusters} clusters, {counts:?}");
}

/// Old visit counts do not keep a full cache from admitting what is read now.
#[test]
fn a_full_cache_admits_what_is_read_now() {
    let directory = tempfile::tempdir().unwrap();
    let content = text(16 << 20, 1);
    for (codec, pcluster_bytes) in
        [(ClusterCodec::Lz4, 16_384), (ClusterCodec::Zstd { level: 1, window_log: 20 }, 65_536)]
    {
        let options = BuildOptions { codec: Some(codec), pcluster_bytes, ..BuildOptions::default() };
        let path = image(directory.path(), &content, &options);
        let image = Image::open_with(fs::File::open(&path).unwrap(), 4 << 20).unwrap();
        let file = image.file(&image.resolve(b"file").unwrap()).unwrap();
        let decoded = || image.counts().decoded_in_place + image.counts().decoded_by_copy;
        let mut next = numbers(3);
        let mut page = [0; 4096];
        let mut read = |at: usize| {
            assert_eq!(file.read_at(&mut page, at as u64).unwrap(), 4096);
            assert!(page[..] == content[at..at + 4096]);
        };
        const PLACE: usize = 64 << 10;
        (0..20_000).for_each(|_| read(next((8 << 20) / 4096) * 4096));
        let (before, places) = (decoded(), (8 << 20..16 << 20).step_by(PLACE));
        for place in places.clone() {
            (0..32).for_each(|_| read(place + next(PLACE / 4096) * 4096));
        }
        let (decodes, clusters) = (decoded() - before, image.len_bytes() / 2 / 16_384 + places.len() as u64);
        assert!(decodes * 2 < clusters * 3, "{codec:?}: {decodes} decodes of {clusters} clusters");
    }
}

/// A read of a file, with room after it; if `stateless`, directly through the image.
#[derive(Clone, Debug)]
struct Read {
    at: usize,
    len: usize,
    room: usize,
    stateless: bool,
}

/// Reads at random offsets and repeatedly in a few places: parts of blocks, pages, clusters and
/// runs of clusters.
fn reads() -> impl Strategy<Value = Vec<Read>> {
    let at = prop_oneof![0_usize..7_000_000, (0_usize..12).prop_map(|place| place * 531_441), Just(usize::MAX)];
    let len = prop_oneof![3 => Just(4096), 2 => 1_usize..10_000, 1 => 1_usize..400_000];
    let room = prop_oneof![Just(0), 1_usize..5_000, Just(File::room_bytes(0))];
    let read = (at, len, room, prop::bool::weighted(0.2));
    prop::collection::vec(read.prop_map(|(at, len, room, stateless)| Read { at, len, room, stateless }), 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// With any cache size, even 0. A read at `usize::MAX` continues where the last one ended.
    #[test]
    fn any_reads_give_what_was_packed(
        reads in reads(),
        number in 0_usize..6,
        cache_bytes in prop_oneof![Just(0), 1_usize..100_000, Just(1 << 20), Just(128 << 20)],
        in_memory: bool,
    ) {
        static PACKED: OnceLock<(Vec<u8>, Vec<Vec<u8>>)> = OnceLock::new();
        let (content, images) = PACKED.get_or_init(|| {
            let (directory, content) = (tempfile::tempdir().unwrap(), content());
            let packed = |options| fs::read(image(directory.path(), &content, &options)).unwrap();
            let images = options().into_iter().map(packed).collect();
            (content, images)
        });
        let bytes = images[number].clone();
        let image = if in_memory {
            Image::open_with(bytes, cache_bytes).unwrap()
        } else {
            Image::open_with(Counting { bytes, reads: Arc::default() }, cache_bytes).unwrap()
        };
        let inode = image.resolve(b"file").unwrap();
        let file = image.file(&inode).unwrap();
        let mut end = 0;
        for read in reads {
            let at = if read.at == usize::MAX { end } else { read.at };
            let expected = &content[at.min(content.len())..(at + read.len).min(content.len())];
            let mut room = vec![0; read.len + read.room];
            let len = if read.stateless {
                image.read_exact_at(&inode, &mut room[..expected.len()], at as u64).unwrap();
                expected.len()
            } else {
                file.read_into(&mut room, read.len, at as u64).unwrap()
            };
            prop_assert_eq!(len, expected.len());
            prop_assert!(room[..len] == *expected, "{:?}", read);
            end = at + len;
        }
    }
}

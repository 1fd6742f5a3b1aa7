//! Reads at any offset, of any length, by any number of threads.

use std::{fs::File, io::Write, os::unix::fs::FileExt, path::Path, thread};

use pagefold_base::{Base, Cache, Options};
use pagefold_disk::BlockDevice;
use pagefold_erofs::{BuildOptions, ClusterCodec, Fragments};
use proptest::{prelude::*, test_runner::TestRunner};
use tempfile::TempDir;

use crate::{content, image_of, open};

/// More than the cache holds.
pub(crate) const LEN_BYTES: usize = (3 << 20) + 12_345;

/// Creates a file with this content, with holes where pieces of it are zeros.
pub(crate) fn sparse_file(folder: &TempDir, content: &[u8]) -> std::path::PathBuf {
    let path = folder.path().join("disk.img");
    let mut file = File::create(&path).expect("a file");
    for (number, piece) in content.chunks(4096).enumerate() {
        if piece.iter().any(|byte| *byte != 0) {
            file.write_all_at(piece, number as u64 * 4096).expect("a piece");
        }
    }
    file.set_len(content.len() as u64).expect("a length");
    file.flush().expect("a file");
    path
}

/// Checks that random reads of a base equal the content, with zeros up to the end of the last
/// sector, that extents cover the requested range, and that reported holes are zeros.
pub(crate) fn check(base: &Base, content: &[u8], cases: u32) {
    let size = base.size_bytes();
    assert_eq!(size, content.len().next_multiple_of(512) as u64);
    assert_eq!(base.padding_bytes(), size - content.len() as u64);
    let mut expected = content.to_vec();
    expected.resize(size as usize, 0);
    let len = prop_oneof![4 => 1..9000_usize, 1 => 1..400_000_usize];
    let mut runner = TestRunner::new(ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() });
    let tested = runner.run(&(any::<prop::sample::Index>(), len), |(at, len)| {
        let at = at.index(size as usize);
        let len = len.min(size as usize - at);
        let mut buf = vec![1; len];
        base.read(at as u64, &mut buf).expect("a read");
        prop_assert!(buf == expected[at..at + len], "{len} bytes at {at}");
        let mut tried = vec![1; len];
        let filled = base.try_read(at as u64, &mut tried).expect("a read");
        prop_assert!(tried[..filled] == expected[at..at + filled], "{filled} of {len} bytes at {at}");
        let mut end = at;
        base.extents(at as u64, len as u64, &mut |extent| {
            let here = &expected[end..end + extent.len_bytes as usize];
            assert!(!extent.hole || (extent.zero && here.iter().all(|byte| *byte == 0)), "a hole at {end}");
            assert!(extent.len_bytes > 0);
            end += extent.len_bytes as usize;
            true
        })
        .expect("extents");
        prop_assert_eq!(end, at + len);
        Ok(())
    });
    tested.unwrap_or_else(|error| panic!("{error}"));
}

pub(crate) fn hole_bytes(base: &Base) -> u64 {
    let mut bytes = 0;
    let each = &mut |extent: pagefold_disk::Extent| {
        bytes += if extent.hole { extent.len_bytes } else { 0 };
        true
    };
    base.extents(0, base.size_bytes(), each).expect("extents");
    bytes
}

#[test]
fn a_raw_file_is_read_as_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let content = content(LEN_BYTES);
    let path = sparse_file(&folder, &content);
    let (base, logged) = open(&path, &Options::default());
    check(&base, &content, 300);
    assert!(hole_bytes(&base) > 100_000, "the file system reports holes");
    assert!(logged.lines().is_empty());
}

#[test]
fn a_file_in_any_image_is_read_as_it_was_packed() {
    let folder = tempfile::tempdir().expect("a folder");
    let content = content(LEN_BYTES);
    let path = sparse_file(&folder, &content);
    let codecs = [
        None,
        Some(ClusterCodec::Lz4),
        Some(ClusterCodec::Lz4Hc(9)),
        Some(ClusterCodec::Zstd { level: 1, window_log: 16 }),
        Some(ClusterCodec::Deflate(1)),
    ];
    for codec in codecs {
        for pcluster_bytes in [4 << 10, 64 << 10, 1 << 20] {
            for fragments in [Fragments::Off, Fragments::Tails, Fragments::All] {
                if codec.is_none() && fragments != Fragments::Off {
                    continue;
                }
                let options = BuildOptions { codec, pcluster_bytes, fragments, ..BuildOptions::default() };
                let image = image_of(&path, &options);
                let (base, logged) = open(&image, &Options::default());
                check(&base, &content, 60);
                assert!(logged.lines().is_empty());
            }
        }
    }
}

#[test]
fn threads_read_what_they_ask_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let content = content(LEN_BYTES);
    let path = sparse_file(&folder, &content);
    let image = image_of(&path, &BuildOptions { pcluster_bytes: 16 << 10, ..BuildOptions::default() });
    for path in [&*path, &*image] {
        threads(path, &content);
    }
}

pub(crate) fn threads(path: &Path, content: &[u8]) {
    let (base, _) = open(path, &Options::default());
    thread::scope(|scope| {
        for thread in 0..4_usize {
            let base = &base;
            scope.spawn(move || {
                let mut buf = vec![0; 70_000];
                let mut at = thread * 777_777;
                for round in 0..400 {
                    // Some reads are sequential, most are random.
                    let len = if round % 3 == 0 { 4096 } else { 512 + round * 170 };
                    at = if round % 2 == 0 { at + len } else { at.wrapping_mul(48_271) };
                    at %= content.len() - buf.len();
                    base.read(at as u64, &mut buf[..len]).expect("a read");
                    assert!(buf[..len] == content[at..at + len], "{len} bytes at {at}");
                }
            });
        }
    });
}

/// Images of the same shape, whose clusters are at the same addresses, with different content.
#[test]
fn images_that_share_a_cache_are_distinguished() {
    let (cache, plain) = (Cache::new(1 << 20), content(1 << 20));
    let folders: Vec<TempDir> = (0..3).map(|_| tempfile::tempdir().expect("a folder")).collect();
    let bases: Vec<Base> = folders
        .iter()
        .zip(1..)
        .map(|(folder, byte)| {
            let content: Vec<u8> = plain.iter().map(|plain| plain ^ byte).collect();
            let options = BuildOptions { pcluster_bytes: 16 << 10, ..BuildOptions::default() };
            let image = image_of(&sparse_file(folder, &content), &options);
            Base::open(&image, &Options::default(), &cache, |line| panic!("logged: {line}")).expect("a base")
        })
        .collect();
    for round in 0..2000_u64 {
        let number = round * 48_271 % 255;
        for (base, byte) in bases.iter().zip(1..) {
            let mut page = [0; 4096];
            base.read(number * 4096, &mut page).expect("a read");
            let expected = plain[number as usize * 4096..].iter().map(|plain| plain ^ byte);
            assert!(page.into_iter().eq(expected.take(4096)), "page {number} of image {byte}");
        }
        assert!(cache.kept_bytes() <= cache.limit_bytes());
    }
    assert!(cache.kept_bytes() > 0);
    drop(bases);
    assert_eq!((cache.kept_bytes(), cache.limit_bytes()), (0, 0));
}

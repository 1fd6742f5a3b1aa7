//! Reads that run together.

use std::thread;

use pagefold_base::{Base, Options};
use pagefold_disk::{BlockDevice, Checked, Error, Read};
use pagefold_erofs::{BuildOptions, ClusterCodec, Fragments, Indexes};
use proptest::{prelude::*, test_runner::TestRunner};

use crate::{
    content, image_of, open,
    reading::{LEN_BYTES, sparse_file},
};

fn zstd(pcluster_bytes: u32) -> BuildOptions {
    BuildOptions { codec: Some(ClusterCodec::Zstd { level: 1, window_log: 16 }), pcluster_bytes, ..Default::default() }
}

/// Runs reads of these offsets and lengths together. Returns what each got.
fn together(base: &impl BlockDevice, ranges: &[(usize, usize)]) -> Vec<Result<Vec<u8>, Error>> {
    let mut bufs: Vec<Vec<u8>> = ranges.iter().map(|&(_, len)| vec![1; len]).collect();
    let mut reads: Vec<Read<'_>> =
        ranges.iter().zip(&mut bufs).map(|(&(offset, _), buf)| Read::new(offset as u64, buf)).collect();
    base.read_together(&mut reads);
    let results: Vec<_> = reads.into_iter().map(|read| read.result).collect();
    results.into_iter().zip(bufs).map(|(result, buf)| result.map(|()| buf)).collect()
}

#[test]
fn each_read_gets_its_bytes() {
    let folder = tempfile::tempdir().expect("a folder");
    let content = content(LEN_BYTES);
    let raw = sparse_file(&folder, &content);
    let short = BuildOptions { pcluster_bytes: 4096, ..BuildOptions::default() };
    for options in [
        None,
        Some(BuildOptions { codec: None, ..short.clone() }),
        Some(BuildOptions { fragments: Fragments::Tails, ..short.clone() }),
        Some(BuildOptions { indexes: Indexes::Extents, dedupe: true, ..short }),
        Some(zstd(16 << 10)),
        Some(zstd(64 << 10)),
    ] {
        let path = options.as_ref().map_or_else(|| raw.clone(), |options| image_of(&raw, options));
        let (base, logged) = open(&path, &Options::default());
        let base = Checked::new(base);
        let size = base.size_bytes() as usize;
        let mut expected = content.clone();
        expected.resize(size, 0);
        // Reads that are close to each other, and others.
        let any_read = (0..400_000usize, prop_oneof![8 => Just(4096), 4 => 1..9000usize, 1 => 1..300_000usize]);
        let any = (0..size, prop::collection::vec(any_read, 1..24));
        let config = ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() };
        let tested = TestRunner::new(config).run(&any, |(near, reads)| {
            let range = |(at, len): (usize, usize)| ((near + at) % size, len.min(size - (near + at) % size));
            let ranges: Vec<_> = reads.into_iter().map(range).collect();
            for ((at, len), got) in ranges.iter().zip(together(&base, &ranges)) {
                prop_assert!(got.expect("a read") == expected[*at..at + len], "{len} bytes at {at}");
            }
            Ok(())
        });
        tested.unwrap_or_else(|error| panic!("{options:?}: {error}"));
        assert!(logged.lines().is_empty());
    }
}

/// Returns a base whose clusters have 64 KiB of content that hardly compresses, and pages of one of
/// them in a random order.
fn one_cluster(folder: &tempfile::TempDir) -> (Base, Vec<u8>, Vec<usize>) {
    // Digits, of which two thirds remain.
    let content: Vec<u8> = (0..200_000u64)
        .flat_map(|at| format!("{:016x}", (at + 7).wrapping_mul(0x9e37_79b9_7f4a_7c15)).into_bytes())
        .collect();
    let path = image_of(&sparse_file(folder, &content), &zstd(64 << 10));
    let (base, _) = open(&path, &Options::default());
    let unit = base.read_unit_bytes() as usize;
    assert!((64 << 10..=256 << 10).contains(&unit), "{unit}");
    let pages = (0..16).map(|number| unit * 4 + (number * 7 % 16) * 4096).collect();
    (base, content, pages)
}

/// A cluster is decoded once, however its pages are requested. The pages may be in two clusters.
#[test]
fn a_cluster_is_decoded_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let (base, content, pages) = one_cluster(&folder);
    let ranges: Vec<_> = pages.iter().map(|&at| (at, 4096)).collect();
    for (got, at) in together(&base, &ranges).into_iter().zip(&pages) {
        assert!(got.expect("a read") == content[*at..at + 4096], "page at {at}");
    }
    assert!(base.decoded_clusters() <= 2, "{}", base.decoded_clusters());

    let (base, content, pages) = one_cluster(&folder);
    for at in &pages {
        let mut page = [0; 4096];
        base.read(*at as u64, &mut page).expect("a read");
        assert!(page == content[*at..at + 4096], "page at {at}");
    }
    assert!(base.decoded_clusters() <= 2, "{}", base.decoded_clusters());

    let (base, content, pages) = one_cluster(&folder);
    thread::scope(|scope| {
        for at in pages {
            let (base, content) = (&base, &content);
            scope.spawn(move || {
                let mut page = [0; 4096];
                base.read(at as u64, &mut page).expect("a read");
                assert!(page == content[at..at + 4096], "page at {at}");
            });
        }
    });
    assert!(base.decoded_clusters() <= 2, "{}", base.decoded_clusters());
}

/// A read that fails does not spoil those that run with it.
#[test]
fn a_failed_read_is_the_only_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let content = content(1 << 20);
    let raw = sparse_file(&folder, &content);
    for path in [image_of(&raw, &BuildOptions { pcluster_bytes: 4096, ..BuildOptions::default() }), raw] {
        let (base, logged) = open(&path, &Options::default());
        let len = std::fs::metadata(&path).expect("a file").len();
        let file = std::fs::File::options().write(true).open(&path).expect("a file");
        file.set_len(len / 2).expect("a shorter file");
        let ranges: Vec<_> = (0..content.len() - 4096).step_by(30_000).map(|at| (at, 4096)).collect();
        let mut failures = 0;
        for ((at, len), got) in ranges.iter().zip(together(&base, &ranges)) {
            match got {
                Ok(bytes) => assert!(bytes == content[*at..at + len], "bytes at {at}"),
                Err(Error::Io(error)) => {
                    assert!(error.to_string().contains(&path.display().to_string()), "{error}");
                    failures += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!((5..=30).contains(&failures), "{failures} of {} reads failed", ranges.len());
        assert_eq!(logged.lines().len(), 2);
    }
}

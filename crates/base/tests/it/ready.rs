//! Reads that do not wait for storage.

use std::{fs, path::Path};

use pagefold_base::{Format, Options};
use pagefold_disk::{BlockDevice, Checked};
use pagefold_erofs::{BuildOptions, ClusterCodec, Fragments};
use pagefold_testing::skip_for_good;

use crate::{content, image_of, open, reading::sparse_file};

/// Returns whether the file system of `path` says what is in the page cache, and whether the file is
/// there.
pub(crate) fn is_at_hand(path: &Path) -> bool {
    use rustix::io::{ReadWriteFlags, preadv2};
    let len = fs::read(path).expect("a file").len();
    let file = fs::File::open(path).expect("a file");
    let mut buf = vec![0; len];
    let read = preadv2(&file, &mut [std::io::IoSliceMut::new(&mut buf)], 0, ReadWriteFlags::NOWAIT);
    let is_at_hand = read.is_ok_and(|filled| filled == len);
    if !is_at_hand {
        skip_for_good("base/ready", "the file system does not say what is in the page cache");
    }
    is_at_hand
}

/// Reads all pages without a wait. Returns how many were filled, and checks them.
pub(crate) fn tried(base: &impl BlockDevice, content: &[u8]) -> usize {
    let mut page = [0; 4096];
    let pages = content.chunks_exact(4096).enumerate();
    let filled = pages.filter(|(number, expected)| {
        let filled = base.try_read(*number as u64 * 4096, &mut page).expect("a read");
        assert!(page[..filled] == expected[..filled], "page {number}");
        filled == page.len()
    });
    filled.count()
}

#[test]
fn what_the_page_cache_has_is_read_without_a_wait() {
    let folder = tempfile::tempdir().expect("a folder");
    let content = content(1 << 20);
    let raw = sparse_file(&folder, &content);
    let short = BuildOptions { pcluster_bytes: 4096, ..BuildOptions::default() };
    for (options, least) in [
        (None, 256),
        (Some(BuildOptions { codec: None, ..BuildOptions::default() }), 256),
        (Some(BuildOptions { codec: None, chunk_bytes: Some(4096), ..BuildOptions::default() }), 256),
        // Content far into a long cluster takes longer to decode.
        (Some(short.clone()), 100),
        (Some(BuildOptions { fragments: Fragments::All, ..short }), 100),
    ] {
        let path = options.as_ref().map_or_else(|| raw.clone(), |options| image_of(&raw, options));
        let (base, logged) = open(&path, &Options::default());
        let base = Checked::new(base);
        // The indexes of the file with the fragments are read when they are first needed.
        base.read(0, &mut [0; 512]).expect("a read");
        let filled = tried(&base, &content);
        assert!(filled >= least || !is_at_hand(&path), "{filled} pages with {options:?}");
        assert!(logged.lines().is_empty());
    }
}

/// Clusters that take long to decode are only copied.
#[test]
fn what_is_decoded_is_read_without_a_wait() {
    let folder = tempfile::tempdir().expect("a folder");
    let content = content(512 << 10);
    let codec = Some(ClusterCodec::Zstd { level: 1, window_log: 16 });
    let options = BuildOptions { codec, pcluster_bytes: 64 << 10, ..BuildOptions::default() };
    // Then opening decodes nothing.
    let mut wanted = Options::default();
    wanted.format = Some(Format::Erofs);
    let (base, _) = open(&image_of(&sparse_file(&folder, &content), &options), &wanted);
    assert!(tried(&base, &content) < 64, "only what is not compressed");
    let mut page = [0; 4096];
    // In an order that is not a sequence.
    for number in (0..128_u64).map(|number| number * 37 % 128) {
        base.read(number * 4096, &mut page).expect("a read");
    }
    assert_eq!(tried(&base, &content), 128);
}

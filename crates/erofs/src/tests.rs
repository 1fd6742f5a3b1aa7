//! Tests of building and reading that need crate internals.

use std::fs::File;

use crate::build::{BuildOptions, ScanOptions, Tree, build};
use crate::read::Image;

#[test]
fn open_files_keep_indexes_within_a_bound() {
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    let content: Vec<u8> = (0..700_000u32).flat_map(|number| format!("{number:09x} and\n").into_bytes()).collect();
    std::fs::write(tree.join("file"), &content).unwrap();
    let path = folder.path().join("image");
    let out = File::create_new(&path).unwrap();
    build(&Tree::scan(&tree, &ScanOptions::default()).unwrap(), &BuildOptions::default(), &out).unwrap();

    let image = Image::open_path(&path).unwrap();
    let limit = image.kept_indexes().left();
    let inode = image.resolve(b"/file").unwrap();
    let left = || image.kept_indexes().left();
    let reads = || {
        let file = image.file(&inode).unwrap();
        let mut buf = [0; 5000];
        for at in (0..content.len() - buf.len()).step_by(77_777) {
            assert_eq!(file.read_at(&mut buf, at as u64).unwrap(), buf.len());
            assert!(buf == content[at..at + buf.len()]);
        }
        left()
    };
    let blocks = content.len().div_ceil(4096);
    assert!(blocks > 2048);
    assert_eq!((reads(), left()), (limit - blocks * 8, limit));
    // The budget has room for some of them, or for none.
    assert!(image.kept_indexes().take(limit - 10_000));
    assert_eq!((reads(), left()), (10_000 - 1024 * 8, 10_000));
    assert!(image.kept_indexes().take(10_000) && !image.kept_indexes().take(1));
    assert_eq!((reads(), left()), (0, 0));
}

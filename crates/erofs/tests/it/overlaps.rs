//! Overlapping structures: a check names both, and accepts what files may share.

use std::fs::{self, File};

use pagefold_erofs::{BuildOptions, CheckReport, Image, Indexes, ScanOptions, Tree, build};

use crate::trees;

const BLOCK: usize = 4096;

/// An image of some files, without a superblock checksum.
struct Edited {
    bytes: Vec<u8>,
}

impl Edited {
    fn new(options: &BuildOptions, files: &[(&str, Vec<u8>)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let source = directory.path().join("tree");
        fs::create_dir(&source).unwrap();
        for (name, content) in files {
            fs::write(source.join(name), content).unwrap();
        }
        let path = directory.path().join("image");
        let out = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        build(&Tree::scan(&source, &ScanOptions::default()).unwrap(), options, &out).unwrap();
        let mut bytes = fs::read(path).unwrap();
        bytes[1024 + 8] &= !1;
        Self { bytes }
    }

    fn word(&mut self, at: usize) -> &mut [u8; 4] {
        self.bytes[at..].first_chunk_mut().unwrap()
    }

    fn inode(&mut self, name: &str) -> usize {
        let nid = Image::open(self.bytes.clone()).unwrap().resolve(name.as_bytes()).unwrap().nid as usize;
        u32::from_le_bytes(*self.word(1024 + 40)) as usize * BLOCK + nid * 32
    }

    /// Returns the first block of an uncompressed file.
    fn block(&mut self, name: &str) -> u32 {
        let at = self.inode(name) + 16;
        u32::from_le_bytes(*self.word(at))
    }

    fn set_block(&mut self, name: &str, block: u32) {
        let at = self.inode(name) + 16;
        *self.word(at) = block.to_le_bytes();
    }

    /// Returns the offset of the address of a file's first cluster, for a file with full indexes
    /// and without xattrs.
    fn cluster(&mut self, name: &str) -> usize {
        let inode = self.inode(name);
        let size = if self.bytes[inode] & 1 == 0 { 32 } else { 64 };
        inode + size + 8 + 8 + 4
    }

    fn check(&self) -> CheckReport {
        Image::open(self.bytes.clone()).unwrap().check(2)
    }

    /// Fails unless the check reports this for both files.
    fn finds(&self, what: &str, one: &str, other: &str) {
        let report = self.check();
        let found = report.problems.iter().any(|problem| {
            let mut names = [&problem.path[..], problem.other.as_deref().unwrap_or_default()];
            names.sort_unstable();
            problem.error.to_string().ends_with(what) && names == [one.as_bytes(), other.as_bytes()]
        });
        assert!(found, "{what} of {one} and {other}: {:?}", report.problems);
    }
}

fn plain() -> BuildOptions {
    BuildOptions { codec: None, ..BuildOptions::default() }
}

#[test]
fn blocks_of_a_file_that_run_into_another_are_found() {
    let files =
        [("a", trees::noise(3 * BLOCK, 1)), ("b", trees::noise(3 * BLOCK, 2)), ("c", trees::noise(4 * BLOCK, 3))];
    let mut image = Edited::new(&plain(), &files);
    assert!(image.check().problems.is_empty());
    let first = image.block("a");
    image.set_block("b", first + 1);
    image.finds("files share some of their blocks", "/a", "/b");
    image.set_block("b", 0);
    image.finds("metadata and data overlap", "/b", "superblock");
    let directory = image.block("c") + 4;
    image.set_block("b", directory);
    assert!(!image.check().problems.is_empty());
}

/// A file that shares another's blocks, but whose tail is in unrelated blocks after them.
#[test]
fn tails_that_are_others_blocks_are_found() {
    let head = trees::noise(2 * BLOCK, 1);
    let with = |tail: Vec<u8>| [&head[..], &tail].concat();
    let mut image = Edited::new(
        &BuildOptions { dedupe: false, ..BuildOptions::default() },
        &[("a", head.clone()), ("b", trees::text(3 * BLOCK, 2)), ("c", with(trees::noise(BLOCK - 1, 3)))],
    );
    let first = image.block("a");
    image.set_block("c", first);
    image.finds("a compressed cluster overlaps uncompressed data", "/b", "/c");
    let mut image = Edited::new(
        &plain(),
        &[("a", head.clone()), ("b", trees::noise(3 * BLOCK, 2)), ("c", with(trees::noise(BLOCK - 1, 3)))],
    );
    let first = image.block("a");
    image.set_block("c", first);
    image.finds("files share some of their blocks", "/b", "/c");
    // If the other file is one block, it is inside the first's run, but continues past the first's
    // end.
    let mut image = Edited::new(
        &plain(),
        &[("a", head.clone()), ("b", trees::noise(BLOCK, 2)), ("c", with(trees::noise(BLOCK - 1, 3)))],
    );
    let first = image.block("a");
    image.set_block("c", first);
    image.finds("file ends within a block that another file continues", "/b", "/c");
}

#[test]
fn whole_blocks_may_be_shared() {
    let content = trees::noise(4 * BLOCK, 1);
    let files =
        [("a", content.clone()), ("b", content[..2 * BLOCK].to_vec()), ("c", content[BLOCK..3 * BLOCK].to_vec())];
    let mut image = Edited::new(&plain(), &files);
    let first = image.block("a");
    image.set_block("b", first);
    image.set_block("c", first + 1);
    // Blocks that are now unused still count.
    assert!(image.check().problems.is_empty(), "{:?}", image.check().problems);
    let read = Image::open(image.bytes).unwrap();
    let mut bytes = vec![0; 2 * BLOCK];
    read.read_exact_at(&read.resolve(b"c").unwrap(), &mut bytes, 0).unwrap();
    assert_eq!(bytes, content[BLOCK..3 * BLOCK]);
}

#[test]
fn clusters_that_overlap_are_found() {
    let options = BuildOptions { indexes: Indexes::Full, pcluster_bytes: 16_384, ..BuildOptions::default() };
    let mut image = Edited::new(&options, &[("a", trees::text(100_000, 1)), ("b", trees::text(100_000, 2))]);
    let (from, to) = (image.cluster("a"), image.cluster("b"));
    let block = u32::from_le_bytes(*image.word(from));
    *image.word(to) = (block + 1).to_le_bytes();
    image.finds("different compressed clusters overlap", "/a", "/b");
    // An equal cluster is shared.
    *image.word(to) = block.to_le_bytes();
    assert!(image.check().problems.iter().all(|problem| problem.other.is_none()));
}

#[test]
fn inodes_that_overlap_are_both_named() {
    // Short files are inline.
    let files: Vec<_> = (0..4).map(|number| (["a", "b", "c", "d"][number], trees::text(500, number as u32))).collect();
    let mut image = Edited::new(&plain(), &files);
    let inode = image.inode("a");
    // Long enough to contain the next inode.
    let size = 1500u32.to_le_bytes();
    *image.word(inode + 8) = size;
    let report = image.check();
    let named = report.problems.iter().filter(|problem| problem.error.to_string().ends_with("inode overlaps another"));
    let named: Vec<_> = named.map(|problem| (problem.path.clone(), problem.other.clone())).collect();
    assert!(named.iter().any(|(path, other)| path == b"/a" || other.as_deref() == Some(b"/a")), "{report:?}");
}

#[test]
fn blocks_of_no_file_are_warned_of() {
    let content = trees::noise(3 * BLOCK, 1);
    let mut image = Edited::new(&plain(), &[("a", content), ("b", trees::noise(3 * BLOCK, 2))]);
    let (first, second) = (image.block("a"), image.block("b"));
    assert!(image.check().warnings.is_empty());
    // As if both were equal and the last block of one were unused.
    image.set_block("b", first);
    let report = image.check();
    let expected = format!("3 blocks from byte {} on contain data but belong to no file", second as usize * BLOCK);
    assert!(report.problems.is_empty() && report.warnings[0].what == expected, "{report:?}");
}

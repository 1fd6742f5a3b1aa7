//! Large trees, and an independent reader.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use erofs_rs::EroFS;
use erofs_rs::backend::SliceImage;
use pagefold_codec::cluster::ClusterCodec;
use pagefold_erofs::{BuildOptions, Fragments, Indexes, ScanOptions, Tree};
use rustix::fs::Access;

use crate::built::build_at;
use crate::tools::{Mount, assert_same, run, skip, summary_of_directory, tree_of_directory};
use crate::trees;

/// Counts files below `path`, up to a few more than `enough`.
fn count_files(path: &Path, enough: usize) -> usize {
    let (mut files, mut pending) = (0, vec![path.to_owned()]);
    while let Some(path) = pending.pop()
        && files < enough
    {
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => pending.push(entry.path()),
                Ok(kind) if kind.is_file() => files += 1,
                _ => {}
            }
        }
    }
    files
}

/// Returns patterns for files below `root` that this user may not read. Root may read all.
fn unreadable(root: &Path) -> Vec<Vec<u8>> {
    let (mut found, mut pending) = (Vec::new(), vec![root.to_owned()]);
    while let Some(folder) = pending.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let (path, kind) = entry.map(|entry| (entry.path(), entry.file_type().unwrap())).unwrap();
            let access = Access::READ_OK | if kind.is_dir() { Access::EXEC_OK } else { Access::empty() };
            if (kind.is_dir() || kind.is_file()) && rustix::fs::access(&path, access).is_err() {
                let below = path.strip_prefix(root).unwrap().as_os_str().as_bytes();
                found.push([b"/", below].concat());
            } else if kind.is_dir() {
                pending.push(path);
            }
        }
    }
    found
}

/// Builds `source` with each number of threads, runs `fsck.erofs` on the image, mounts it and
/// compares.
fn large_tree(test: &str, source: &Path, options: &BuildOptions, threads: &[usize]) {
    let directory = tempfile::tempdir().unwrap();
    let excludes = unreadable(source);
    let tree = Tree::scan(source, &ScanOptions { excludes, ..ScanOptions::default() }).unwrap();
    let build = |&threads: &usize| {
        let path = directory.path().join(format!("{threads}.erofs"));
        build_at(&path, &tree, &BuildOptions { threads, ..options.clone() });
        path
    };
    let paths: Vec<_> = threads.iter().map(build).collect();
    let bytes = fs::read(&paths[0]).unwrap();
    assert!(paths[1..].iter().all(|path| fs::read(path).unwrap() == bytes), "threads change the image");
    if run("fsck.erofs", [&paths[0]]).is_none() {
        skip(test, "fsck.erofs is not installed");
    }
    match Mount::new(&paths[0]) {
        Ok(mount) => assert_same(&summary_of_directory(source), &summary_of_directory(mount.path()), test),
        Err(why) => skip(test, &why),
    }
}

#[test]
fn twenty_thousand_files_of_this_machine() {
    let test = "twenty_thousand_files_of_this_machine";
    const ENOUGH: usize = 20_000;
    let roots = ["/usr/share/doc", "/usr/include", "/usr/share", "/usr/lib", "/usr"].map(Path::new);
    match roots.into_iter().find(|root| count_files(root, ENOUGH) >= ENOUGH) {
        Some(root) => large_tree(test, root, &BuildOptions::default(), &[1, 3]),
        None => skip(test, "this machine has fewer files below /usr"),
    }
}

#[test]
fn a_hundred_thousand_names_and_all_lengths_around_blocks() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("tree");
    fs::create_dir(&source).unwrap();
    trees::awkward(&source);
    let many = source.join("a-hundred-thousand");
    fs::create_dir(&many).unwrap();
    for number in 0..100_000u32 {
        let name = format!("{:x}-{number}", number.wrapping_mul(2_654_435_761));
        if number % 100 == 0 {
            fs::write(many.join(name), trees::text(number as usize % 700, number)).unwrap();
        } else {
            fs::File::create(many.join(name)).unwrap();
        }
    }
    let lengths = source.join("lengths");
    fs::create_dir(&lengths).unwrap();
    for block in [4096, 8192, 16_384, 65_536] {
        for len in block - 3..block + 4 {
            fs::write(lengths.join(format!("text-{len}")), trees::text(len, len as u32)).unwrap();
            fs::write(lengths.join(format!("noise-{len}")), trees::noise(len, len as u64)).unwrap();
        }
    }
    let options = BuildOptions { pcluster_bytes: 16_384, ztailpacking: true, ..BuildOptions::default() };
    large_tree("a_hundred_thousand_names_and_all_lengths_around_blocks", &source, &options, &[1, 2, 5]);
}

/// Returns the paths and contents of regular files, as erofs-rs reads them.
fn read_by_erofs_rs(bytes: &[u8]) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let image = EroFS::new(SliceImage::new(bytes)).unwrap();
    let mut files = BTreeMap::new();
    for entry in image.walk_dir("/").unwrap() {
        let entry = entry.unwrap();
        if entry.inode.is_file() {
            let path = entry.dir_entry.path();
            let mut content = Vec::new();
            let mut file = image.open_inode_file(entry.inode).unwrap();
            file.read_to_end(&mut content).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let path: &[u8] = path.as_bytes();
            files.insert(path.strip_prefix(b"/").unwrap_or(path).to_vec(), content);
        }
    }
    files
}

#[test]
fn erofs_rs_reads_every_codec() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("tree");
    fs::create_dir(&source).unwrap();
    trees::awkward(&source);
    let expected: BTreeMap<Vec<u8>, Vec<u8>> = tree_of_directory(&source)
        .into_iter()
        .filter(|(_, facts)| facts.is_regular())
        .map(|(path, facts)| (path.as_os_str().as_bytes().to_vec(), facts.into_content()))
        .collect();
    let tree = Tree::scan(&source, &ScanOptions::default()).unwrap();
    let path = directory.path().join("image");
    let lzma = ClusterCodec::MicroLzma { preset: 6, dict_bytes: 1 << 17 };
    for (codec, pcluster_bytes, indexes, ztailpacking, fragments, dedupe) in [
        (None, 4096, Indexes::Compact, false, Fragments::Off, false),
        (Some(ClusterCodec::Lz4), 4096, Indexes::Compact, false, Fragments::Off, true),
        (Some(ClusterCodec::Lz4Hc(9)), 65_536, Indexes::Full, true, Fragments::Off, false),
        (Some(ClusterCodec::Deflate(6)), 16_384, Indexes::Compact, false, Fragments::Tails, false),
        (Some(ClusterCodec::Zstd { level: 3, window_log: 17 }), 65_536, Indexes::Compact, true, Fragments::Off, true),
        (Some(lzma), 65_536, Indexes::Compact, false, Fragments::All, false),
    ] {
        let options =
            BuildOptions { codec, pcluster_bytes, indexes, ztailpacking, fragments, dedupe, ..BuildOptions::default() };
        build_at(&path, &tree, &options);
        let found = read_by_erofs_rs(&fs::read(&path).unwrap());
        assert!(found.keys().eq(expected.keys()), "{codec:?}: names");
        for (path, content) in &expected {
            assert!(found[path] == *content, "{codec:?}: {}", String::from_utf8_lossy(path));
        }
    }
}

//! Per-file options and owners, mounted by the kernel.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use pagefold_codec::cluster::ClusterCodec;
use pagefold_erofs::{
    BuildOptions, Compression, DataLayout, Fragments, Hint, IdMap, IdRange, Image, Progress, ScanOptions, Tree,
    build_watched,
};

use crate::tools::{Mount, assert_same, skip, tree_of_directory, tree_of_image};
use crate::trees;

fn hint(pattern: &str, compression: Option<(ClusterCodec, u32)>) -> Hint {
    let compression = compression.map(|(codec, pcluster_bytes)| Compression { codec, pcluster_bytes });
    Hint { pattern: pattern.as_bytes().to_vec(), compression }
}

fn built(directory: &Path, tree: &Tree, options: &BuildOptions) -> (std::path::PathBuf, Vec<Progress>) {
    let path = directory.join("image");
    let out = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    let mut seen = Vec::new();
    build_watched(tree, options, &out, &mut |progress| seen.push(progress)).unwrap();
    (path, seen)
}

#[test]
fn files_have_the_codecs_that_hints_say() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("tree");
    fs::create_dir(&source).unwrap();
    trees::awkward(&source);
    let expected = tree_of_directory(&source);
    let tree = Tree::scan(&source, &ScanOptions::default()).unwrap();
    let lzma = ClusterCodec::MicroLzma { preset: 3, dict_bytes: 1 << 16 };
    let zstd = ClusterCodec::Zstd { level: 3, window_log: 18 };
    let hints = vec![
        hint("long-text", Some((zstd, 65_536))),
        hint("zeros-*", None),
        hint("level-0/*", Some((lzma, 4096))),
        hint("text-6*", Some((ClusterCodec::Deflate(6), 8192))),
        hint("text-*", Some((ClusterCodec::Lz4Hc(9), 16_384))),
        hint("mixed*", Some((lzma, 32_768))),
    ];
    let mut unmountable = None;
    for (codec, fragments, ztailpacking) in [
        (Some(ClusterCodec::Lz4), Fragments::Off, false),
        (Some(ClusterCodec::Lz4), Fragments::Tails, false),
        (Some(zstd), Fragments::Off, true),
        (None, Fragments::Off, false),
    ] {
        let options = BuildOptions { codec, fragments, ztailpacking, hints: hints.clone(), ..BuildOptions::default() };
        let (path, progress) = built(directory.path(), &tree, &options);
        let (first, last) = (progress.first().unwrap(), progress.last().unwrap());
        assert!(first.done_bytes <= last.done_bytes && last.done_bytes == last.total_bytes, "{first:?} {last:?}");
        let image = Image::open_path(&path).unwrap();
        assert_same(&expected, &tree_of_image(&image), "read back");
        let report = image.check(2);
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        let layout = |name: &str| image.resolve(name.as_bytes()).unwrap().layout;
        assert!(layout("long-text") != DataLayout::FlatPlain && layout("long-text") != DataLayout::FlatInline);
        assert!(
            !matches!(layout("zeros-65535"), DataLayout::CompressedCompact | DataLayout::CompressedFull),
            "a file that is not to be compressed is"
        );
        match Mount::new(&path) {
            Ok(mount) => assert_same(&expected, &tree_of_directory(mount.path()), "mounted"),
            Err(why) => unmountable = Some(why),
        }
    }
    if let Some(why) = unmountable {
        skip("files_have_the_codecs_that_hints_say", &why);
    }
}

#[test]
fn owners_and_groups_are_mapped() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("tree");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("file"), b"content").unwrap();
    let me = fs::metadata(source.join("file")).unwrap();
    let map = |from, to| IdMap::new(vec![IdRange { from, to, count: 1 }]).unwrap();
    let options = ScanOptions { uid_map: map(me.uid(), 100_007), gid_map: map(me.gid(), 12), ..ScanOptions::default() };
    let tree = Tree::scan(&source, &options).unwrap();
    let (path, _) = built(directory.path(), &tree, &BuildOptions::default());
    let image = Image::open_path(&path).unwrap();
    let inode = image.resolve(b"file").unwrap();
    assert_eq!((inode.uid, inode.gid), (100_007, 12));
    match Mount::new(&path) {
        Ok(mount) => {
            let owners: BTreeSet<_> = ["", "file"]
                .map(|name| fs::metadata(mount.path().join(name)).unwrap())
                .map(|metadata| (metadata.uid(), metadata.gid()))
                .into();
            assert_eq!(owners, BTreeSet::from([(100_007, 12)]));
        }
        Err(why) => skip("owners_and_groups_are_mapped", &why),
    }
}

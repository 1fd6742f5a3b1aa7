//! Reading what `mkfs.erofs` builds.

use pagefold_erofs::Image;

use crate::tools::{assert_same, run, skip, tree_of_directory, tree_of_image};
use crate::trees;

#[test]
fn reads_what_mkfs_builds() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("tree");
    std::fs::create_dir(&source).unwrap();
    trees::awkward(&source);
    // mkfs.erofs 1.5 fails on the longest name there is.
    std::fs::rename(source.join("n".repeat(255)), source.join("n".repeat(254))).unwrap();
    let expected = tree_of_directory(&source);
    let variants: &[&[&str]] = &[
        &[],
        &["--chunksize=4096"],
        &["--chunksize=16384", "-Eforce-chunk-indexes"],
        &["-zlz4"],
        &["-zlz4", "-C65536"],
        &["-zlz4", "-Elegacy-compress"],
        &["-zlz4", "-Elegacy-compress", "-C65536"],
        &["-zlz4hc,9", "-C1048576"],
        &["-zlz4", "-Eztailpacking"],
        &["-zlz4hc", "-Eztailpacking", "-C16384"],
        &["-zlz4", "-Efragments"],
        &["-zlz4", "-Efragments", "-C131072"],
        &["-zlz4", "-Eall-fragments"],
        &["-zlz4", "-Efragments,dedupe"],
        &["-zlz4", "-Ededupe", "-C65536"],
        &["-x1"],
    ];
    for (number, options) in variants.iter().enumerate() {
        let path = directory.path().join(format!("{number}.erofs"));
        let paths = [path.to_str().unwrap(), source.to_str().unwrap()];
        if run("mkfs.erofs", ["--quiet"].iter().chain(*options).chain(&paths)).is_none() {
            return skip("reads_what_mkfs_builds", "mkfs.erofs is not installed");
        }
        let image = Image::open_path(&path).unwrap();
        assert_same(&expected, &tree_of_image(&image), &format!("mkfs.erofs {options:?}"));
    }
}

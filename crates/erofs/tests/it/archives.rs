//! Images of tar archives.

use std::ffi::OsStr;
use std::fs::{self, File};

use pagefold_erofs::{BuildOptions, Image, ScanOptions, Tree, build};

use crate::tools::{assert_same, run, skip, tree_of_directory, tree_of_image};
use crate::trees;

#[test]
fn an_archive_gives_the_tree_that_it_was_made_of() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("tree");
    fs::create_dir(&source).unwrap();
    trees::awkward(&source);
    // tar leaves sockets out.
    let _ = fs::remove_file(source.join("socket"));
    let archive = directory.path().join("tree.tar");
    let options = ["--format=pax", "--xattrs", "--xattrs-include=*", "--sort=name", "-C"].map(OsStr::new);
    let paths = [source.as_os_str(), "-cf".as_ref(), archive.as_os_str(), ".".as_ref()];
    if run("tar", options.into_iter().chain(paths)).is_none() {
        return skip("an_archive_gives_the_tree_that_it_was_made_of", "tar is not installed");
    }
    let mut expected = tree_of_directory(&source);
    let tree = Tree::from_tar(File::open(&archive).unwrap(), &ScanOptions::default()).unwrap();
    let path = directory.path().join("image");
    let out = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    build(&tree, &BuildOptions { ztailpacking: true, ..BuildOptions::default() }, &out).unwrap();
    let mut found = tree_of_image(&Image::open_path(&path).unwrap());
    // tar has a form of its own for ACLs.
    for facts in expected.values_mut().chain(found.values_mut()) {
        facts.forget_acls();
    }
    assert_same(&expected, &found, "archive");
}

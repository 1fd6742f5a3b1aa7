//! Xattrs with undefined name prefixes are skipped, and nothing else.

use std::fs::{self, File};

use pagefold_erofs::{BuildOptions, Content, ExtractOptions, Image, Node, NodeKind, Tree, Xattr, build};

use crate::tools::{Mount, skip, tree_of_directory, tree_of_image};

/// Returns an image of a file with two xattrs, one of which has a name with the prefix `index`.
fn image(index: u8) -> Vec<u8> {
    let node = |kind, xattrs| Node { kind, permissions: 0o755, uid: 0, gid: 0, mtime_s: 1, mtime_nsec: 0, xattrs };
    let mut tree = Tree::new(node(NodeKind::Fifo, Vec::new()));
    let content = NodeKind::Regular { size: 7, content: Content::Bytes(b"content".to_vec().into()) };
    let xattr = |name: &[u8]| Xattr { name: name.to_vec(), value: b"value".to_vec() };
    let root = tree.root();
    tree.add(root, b"file", node(content, vec![xattr(b"user.known"), xattr(b"user.strange")])).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    let out = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    build(&tree, &BuildOptions::default(), &out).unwrap();
    let mut bytes = fs::read(path).unwrap();
    bytes[1024 + 8] &= !1;
    let at = bytes.windows(7).position(|window| window == b"strange").unwrap();
    assert_eq!(bytes[at - 3], 1);
    bytes[at - 3] = index;
    bytes
}

#[test]
fn unknown_xattrs_are_left_out() {
    // The format defines 1 to 6 and reserves 0; this image has no custom prefixes.
    for (index, warnings) in [(0, 0), (7, 1), (100, 1), (0x80, 1), (0xff, 1)] {
        let bytes = image(index);
        let opened = Image::open(bytes.clone()).unwrap();
        let file = opened.resolve(b"file").unwrap();
        let names: Vec<_> = opened.xattrs(&file).unwrap().into_iter().map(|xattr| xattr.name).collect();
        assert_eq!(names, [b"user.known"], "{index}");
        let report = opened.check(2);
        assert!(report.problems.is_empty(), "{index}: {report:?}");
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("out");
        for threads in [1, 2] {
            let _ = fs::remove_dir_all(&out);
            let extracted = opened.extract(&out, &ExtractOptions { threads, ..ExtractOptions::default() }).unwrap();
            assert!(extracted.problems.is_empty() && extracted.names == 1, "{index}: {extracted:?}");
            assert_eq!(extracted.warnings, report.warnings);
        }
        assert_eq!(report.warnings.len(), warnings, "{index}");
        if let Some(warning) = report.warnings.first() {
            assert_eq!(warning.path, b"/file");
            assert!(warning.what.contains(&format!("prefix {index},")), "{}", warning.what);
        }
    }
}

#[test]
fn linux_leaves_the_same_out() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    fs::write(&path, image(7)).unwrap();
    match Mount::new(&path) {
        Ok(mount) => {
            let shown = tree_of_image(&Image::open_path(&path).unwrap());
            assert!(tree_of_directory(mount.path()) == shown, "the kernel shows another tree");
        }
        Err(why) => skip("linux_leaves_the_same_out", &why),
    }
}

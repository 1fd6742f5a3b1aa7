//! Xattrs with undefined name prefixes are skipped, and nothing else.

use std::fs::{self, File};

use pagefold_erofs::{BuildOptions, Content, ExtractOptions, Image, Node, NodeKind, Tree, Xattr, build};

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::tools::{Mount, assert_same, skip, tree_of_directory, tree_of_image};

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

/// Names and values around every limit, below each prefix.
fn any_xattr() -> impl Strategy<Value = Xattr> {
    let prefix = prop::sample::select(vec![
        "user.",
        "user.long-prefix.",
        "trusted.",
        "security.",
        "lustre.",
        "system.posix_acl_access",
        "system.",
        "other.",
    ]);
    let suffix = prop_oneof![
        8 => "[a-z=% é]{1,12}",
        1 => Just(String::new()),
        1 => (220usize..260).prop_map(|len| "n".repeat(len)),
        1 => Just("a\0b".to_owned()),
    ];
    let len = prop_oneof![8 => 0usize..100, 1 => 65_530usize..65_540];
    (prefix, suffix, len).prop_map(|(prefix, suffix, len)| Xattr {
        name: [prefix.as_bytes(), suffix.as_bytes()].concat(),
        value: vec![b'v'; len],
    })
}

/// What `pack` accepts, the check, `extract` and Linux accept, too.
#[test]
fn built_xattrs_can_be_listed() {
    const TEST: &str = "built_xattrs_can_be_listed";
    let directory = tempfile::tempdir().unwrap();
    let mut runner = TestRunner::deterministic();
    let few = prop::collection::vec(any_xattr(), 0..4);
    let many = (200usize..320, 100usize..256).prop_map(|(count, len)| {
        let named = |number| Xattr { name: format!("user.{number:0len$}").into_bytes()[..len].to_vec(), value: vec![] };
        (0..count).map(named).collect()
    });
    let strategy = prop::collection::vec(prop_oneof![12 => few, 1 => many], 1..4);
    let (mut built, mut refused, mut mounts) = (0, 0, true);
    for case in 0..200 {
        let files = strategy.new_tree(&mut runner).unwrap().current();
        let node = |kind, xattrs| Node { kind, permissions: 0o755, uid: 0, gid: 0, mtime_s: 1, mtime_nsec: 0, xattrs };
        let mut tree = Tree::new(node(NodeKind::Fifo, Vec::new()));
        for (number, xattrs) in files.iter().enumerate() {
            let content = NodeKind::Regular { size: 1, content: Content::Bytes(b"x".to_vec().into()) };
            tree.add(tree.root(), format!("file-{number}").as_bytes(), node(content, xattrs.clone())).unwrap();
        }
        let path = directory.path().join("image");
        let out = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        let options =
            BuildOptions { threads: 1, xattr_prefixes: vec![b"user.long-prefix.".to_vec()], ..BuildOptions::default() };
        if let Err(error) = build(&tree, &options, &out) {
            let error = error.to_string();
            assert!(error.starts_with("file-") && error.contains("xattr"), "{error}");
            refused += 1;
            continue;
        }
        built += 1;
        let image = Image::open_path(&path).unwrap();
        let report = image.check(1);
        assert!(report.problems.is_empty() && report.warnings.is_empty(), "case {case}: {report:?}");
        let shown = tree_of_image(&image);
        for (number, xattrs) in files.iter().enumerate() {
            let inode = image.resolve(format!("file-{number}").as_bytes()).unwrap();
            let mut found = image.xattrs(&inode).unwrap();
            let mut expected = xattrs.clone();
            found.sort();
            expected.sort();
            assert_eq!(found, expected, "case {case}");
        }
        // Linux shows ACLs only if they are valid, and none of lustre's.
        let is_plain = |xattr: &Xattr| ![&b"system."[..], b"lustre."].iter().any(|not| xattr.name.starts_with(not));
        if mounts && files.iter().flatten().all(is_plain) {
            match Mount::new(&path) {
                Ok(mount) => assert_same(&shown, &tree_of_directory(mount.path()), &format!("case {case}")),
                Err(why) => {
                    skip(TEST, &why);
                    mounts = false;
                }
            }
        }
    }
    assert!(built > 20 && refused > 20, "{built} {refused}");
}

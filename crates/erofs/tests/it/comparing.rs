//! Comparing an image with a tree finds every difference and nothing else.

use std::path::Path;

use pagefold_codec::cluster::ClusterCodec;
use pagefold_erofs::{BuildOptions, Content, Image, Node, NodeId, NodeKind, Tree, Xattr};

use crate::built::build_at;
use crate::trees::{noise, text};

fn node(kind: NodeKind) -> Node {
    let xattrs = vec![Xattr { name: b"user.a".to_vec(), value: b"1".to_vec() }];
    Node { kind, permissions: 0o755, uid: 1, gid: 2, mtime_s: 3, mtime_nsec: 4, xattrs }
}

fn regular(bytes: &[u8]) -> NodeKind {
    NodeKind::Regular { content: Content::Bytes(bytes.into()), size: bytes.len() as u64 }
}

/// Content of all kinds, longer than the parts in which it is compared.
fn contents() -> Vec<(&'static str, Vec<u8>)> {
    let mut sparse = vec![0; 9 << 20];
    sparse[5_000_000..5_000_100].copy_from_slice(&noise(100, 3));
    vec![("noise", noise(5_000_001, 1)), ("short", noise(100, 2)), ("sparse", sparse), ("text", text(4_500_000, 4))]
}

struct Sample {
    tree: Tree,
    directory: NodeId,
    link: NodeId,
}

fn sample() -> Sample {
    let mut tree = Tree::new(node(NodeKind::Fifo));
    let directory = tree.add(tree.root(), b"directory", node(NodeKind::Directory(Default::default()))).unwrap();
    for (name, bytes) in contents() {
        tree.add(directory, name.as_bytes(), node(regular(&bytes))).unwrap();
    }
    let link = tree.add(tree.root(), b"link", node(NodeKind::Symlink(b"target".to_vec()))).unwrap();
    tree.add(tree.root(), b"device", node(NodeKind::CharDevice(5, 300))).unwrap();
    let short = tree.child(directory, b"short").unwrap();
    tree.link(tree.root(), b"again", short).unwrap();
    Sample { tree, directory, link }
}

fn image_of(tree: &Tree, folder: &Path, options: &BuildOptions) -> Image {
    let path = folder.join("image");
    build_at(&path, tree, options);
    Image::open_path(&path).unwrap()
}

fn differences(image: &Image, tree: &Tree) -> Vec<String> {
    let reports: Vec<_> = [1, 3].iter().map(|threads| image.compare(tree, *threads).differences).collect();
    assert_eq!(reports[0], reports[1]);
    let show = |path: &[u8], what: &str| format!("{}: {what}", String::from_utf8_lossy(path));
    reports[0].iter().map(|difference| show(&difference.path, &difference.what)).collect()
}

#[test]
fn an_image_equals_its_source() {
    let folder = tempfile::tempdir().unwrap();
    let Sample { tree, .. } = sample();
    for codec in [None, Some(ClusterCodec::Lz4), Some(ClusterCodec::Zstd { level: 1, window_log: 17 })] {
        let options = BuildOptions { codec, pcluster_bytes: 65_536, ..BuildOptions::default() };
        let image = image_of(&tree, folder.path(), &options);
        assert_eq!(differences(&image, &tree), Vec::<String>::new());
        let report = image.compare(&tree, 2);
        let bytes: usize = contents().iter().map(|(_, bytes)| bytes.len()).sum();
        assert_eq!((report.names, report.file_bytes), (9, bytes as u64));
    }
}

#[test]
fn each_byte_counts() {
    let folder = tempfile::tempdir().unwrap();
    let image = image_of(&sample().tree, folder.path(), &BuildOptions::default());
    for (name, bytes) in contents() {
        for at in [0, bytes.len() / 2, (4 << 20) - 1, 4 << 20, bytes.len() - 1] {
            let Some(byte) = bytes.get(at) else { continue };
            let Sample { mut tree, directory, .. } = sample();
            let mut other = bytes.clone();
            other[at] = byte ^ 1;
            let id = tree.child(directory, name.as_bytes()).unwrap();
            tree.node_mut(id).kind = regular(&other);
            let path = format!("/directory/{name}");
            let found = differences(&image, &tree);
            let path = if name == "short" { found[0].split(':').next().unwrap().to_owned() } else { path };
            assert_eq!(found, [format!("{path}: content differs from byte {at} on")]);
        }
    }
}

#[test]
fn each_fact_counts() {
    let folder = tempfile::tempdir().unwrap();
    let image = image_of(&sample().tree, folder.path(), &BuildOptions::default());
    type Change = fn(&mut Sample);
    let changes: [(&str, Change); 15] = [
        ("/link: mode is 0755 in the image, not 0700", |sample| sample.tree.node_mut(sample.link).permissions = 0o700),
        ("/link: owner is 1 in the image, not 9", |sample| sample.tree.node_mut(sample.link).uid = 9),
        ("/directory: group is 2 in the image, not 9", |sample| sample.tree.node_mut(sample.directory).gid = 9),
        ("/directory: time is 3.000000004 in the image, not 3.000000005", |sample| {
            sample.tree.node_mut(sample.directory).mtime_nsec = 5;
        }),
        ("/link: time is 3.000000004 in the image, not -3.000000004", |sample| {
            sample.tree.node_mut(sample.link).mtime_s = -3;
        }),
        ("/link: the link has a different target", |sample| {
            sample.tree.node_mut(sample.link).kind = NodeKind::Symlink(b"Target".to_vec());
        }),
        ("/link: is Symlink in the image, not Fifo", |sample| {
            sample.tree.node_mut(sample.link).kind = NodeKind::Fifo;
        }),
        ("/device: device number is 5,300 in the image, not 5,301", |sample| {
            let device = sample.tree.child(sample.tree.root(), b"device").unwrap();
            sample.tree.node_mut(device).kind = NodeKind::CharDevice(5, 301);
        }),
        ("/link: the xattr user.a has a different value", |sample| {
            sample.tree.node_mut(sample.link).xattrs[0].value = b"2".to_vec();
        }),
        ("/link: the xattr user.a is only in the image", |sample| {
            sample.tree.node_mut(sample.link).xattrs.clear();
        }),
        ("/link: the xattr user.b is missing in the image", |sample| {
            let more = Xattr { name: b"user.b".to_vec(), value: Vec::new() };
            sample.tree.node_mut(sample.link).xattrs.push(more);
        }),
        ("/directory/new: is missing in the image", |sample| {
            let new = node(NodeKind::Fifo);
            sample.tree.add(sample.directory, b"new", new).unwrap();
        }),
        ("/: mode is 0755 in the image, not 0700", |sample| {
            let root = sample.tree.root();
            sample.tree.node_mut(root).permissions = 0o700;
        }),
        ("/directory/text: size is 4500000 in the image, not 4500001", |sample| {
            let id = sample.tree.child(sample.directory, b"text").unwrap();
            sample.tree.node_mut(id).kind = regular(&text(4_500_001, 4));
        }),
        ("/directory/sparse: size is 9437184 in the image, not 0", |sample| {
            let id = sample.tree.child(sample.directory, b"sparse").unwrap();
            sample.tree.node_mut(id).kind = regular(&[]);
        }),
    ];
    for (expected, change) in changes {
        let mut changed = sample();
        change(&mut changed);
        assert_eq!(differences(&image, &changed.tree), [expected]);
    }
}

#[test]
fn names_of_one_file_count() {
    let folder = tempfile::tempdir().unwrap();
    let one = |linked: bool| {
        let mut tree = Tree::new(node(NodeKind::Fifo));
        let first = tree.add(tree.root(), b"a", node(regular(b"same"))).unwrap();
        if linked {
            tree.link(tree.root(), b"b", first).unwrap();
        } else {
            tree.add(tree.root(), b"b", node(regular(b"same"))).unwrap();
        }
        tree
    };
    let (linked, apart) = (one(true), one(false));
    let image = image_of(&linked, folder.path(), &BuildOptions::default());
    assert_eq!(
        differences(&image, &apart),
        [
            "/a: number of links is 2 in the image, not 1",
            "/b: is a hard link to another file in the image, but should be a separate file",
            "/b: number of links is 2 in the image, not 1",
        ]
    );
    let image = image_of(&apart, folder.path(), &BuildOptions::default());
    assert_eq!(
        differences(&image, &linked),
        ["/a: number of links is 1 in the image, not 2", "/b: is not the same file as its other names in the image",]
    );
    let mut empty = Tree::new(node(NodeKind::Fifo));
    empty.add(empty.root(), b"b", node(regular(b"same"))).unwrap();
    assert_eq!(differences(&image, &empty), ["/a: is only in the image"]);
}

/// A file that was truncated or removed after the build is a difference and does not stop the
/// comparison.
#[test]
fn a_missing_source_is_a_difference() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("tree");
    std::fs::create_dir(&source).unwrap();
    for name in ["gone", "kept", "shorter"] {
        std::fs::write(source.join(name), text(10_000, 1)).unwrap();
    }
    let tree = Tree::scan(&source, &Default::default()).unwrap();
    let image = image_of(&tree, folder.path(), &BuildOptions::default());
    assert_eq!(differences(&image, &tree), Vec::<String>::new());
    std::fs::remove_file(source.join("gone")).unwrap();
    std::fs::write(source.join("shorter"), text(9_999, 1)).unwrap();
    let found = differences(&image, &tree);
    assert!(found[0].starts_with("/gone: cannot be read again: "), "{found:?}");
    assert_eq!(found[1..], ["/shorter: has become shorter"]);
}

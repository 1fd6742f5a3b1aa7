//! Extraction into targets that affect their files' metadata.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, io};

use pagefold_erofs::{BuildOptions, Content, ExtractOptions, Image, Node, NodeKind, ReadAt, ScanOptions, Tree, Xattr};
use rustix::fs::{XattrFlags, getxattr, setxattr};

use crate::built::build_at;
use crate::tools::{Small, assert_same, skip, tree_of_directory};
use crate::trees;

fn fill(root: &Path) {
    fs::create_dir_all(root.join("a/b")).unwrap();
    // Only root can read files without permissions.
    let none = if rustix::process::geteuid().is_root() { 0 } else { 0o400 };
    for (name, mode) in
        [("a/plain", 0o644), ("a/b/all", 0o777), ("secret", 0o600), ("a/set-id", 0o6755), ("none", none)]
    {
        fs::write(root.join(name), name).unwrap();
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    for (name, mode) in
        [("a/open", 0o777), ("a/closed", 0o500), ("a/b/sticky", 0o1777), ("a/b/group", 0o2750), ("a/owned", 0o755)]
    {
        fs::create_dir(root.join(name)).unwrap();
        fs::write(root.join(name).join("file"), name).unwrap();
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    std::os::unix::fs::symlink("plain", root.join("a/link")).unwrap();
    if rustix::process::geteuid().is_root() {
        for name in ["a/plain", "a/owned"] {
            std::os::unix::fs::lchown(root.join(name), Some(4711), Some(815)).unwrap();
        }
    }
}

/// Prepares an empty target, or returns why that is not possible.
type Prepare = fn(&Path) -> std::io::Result<()>;

fn nothing(_: &Path) -> std::io::Result<()> {
    Ok(())
}

/// New files inherit the target's group.
fn set_group_id(target: &Path) -> std::io::Result<()> {
    fs::create_dir(target)?;
    std::os::unix::fs::chown(target, None, Some(1))?;
    fs::set_permissions(target, fs::Permissions::from_mode(0o2777))
}

/// New files inherit an ACL, which determines their mode instead of the umask: owner rwx, group r,
/// others none.
fn default_acl(target: &Path) -> std::io::Result<()> {
    fs::create_dir(target)?;
    let entries: [(u16, u16); 3] = [(1, 7), (4, 4), (32, 0)];
    let mut acl = 2u32.to_le_bytes().to_vec();
    for (tag, permissions) in entries {
        acl.extend([&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &u32::MAX.to_le_bytes()].concat());
    }
    Ok(setxattr(target, "system.posix_acl_default", &acl, XattrFlags::empty())?)
}

#[test]
fn the_target_does_not_affect_extracted_files() {
    let directory = tempfile::tempdir().unwrap();
    let (source, path) = (directory.path().join("tree"), directory.path().join("image"));
    fs::create_dir(&source).unwrap();
    fill(&source);
    build_at(&path, &Tree::scan(&source, &ScanOptions::default()).unwrap(), &BuildOptions::default());
    let image = Image::open_path(&path).unwrap();
    let root = rustix::process::geteuid().is_root();
    let cases: [(&str, Prepare); 3] = [("new", nothing), ("set-group-id", set_group_id), ("acl", default_acl)];
    for (name, prepare) in cases {
        for threads in [1, 3] {
            let target = directory.path().join(format!("{name}-{threads}"));
            if let Err(why) = prepare(&target) {
                crate::tools::skip("the_target_does_not_affect_extracted_files", &format!("{name}: {why}"));
                continue;
            }
            let report = image
                .extract(&target, &ExtractOptions { threads, xattrs: false, ..ExtractOptions::default() })
                .unwrap();
            assert!(report.problems.is_empty(), "{name}: {:?}", report.problems);
            let (mut expected, mut found) = (tree_of_directory(&source), tree_of_directory(&target));
            for tree in [&mut expected, &mut found] {
                tree.values_mut().for_each(crate::tools::Facts::forget_acls);
            }
            if root {
                assert_same(&expected, &found, name);
            } else {
                assert_eq!(fs::metadata(target.join("a/b/all")).unwrap().mode() & 0o777, 0o777, "{name}");
            }
        }
    }
}

/// An image that checks during its extraction what other users could access.
struct Watched {
    image: Vec<u8>,
    target: PathBuf,
    /// The number of reads while an inaccessible directory contained an accessible one.
    open_within: Arc<AtomicUsize>,
}

impl ReadAt for Watched {
    fn len_bytes(&self) -> io::Result<u64> {
        self.image.len_bytes()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        for outer in fs::read_dir(&self.target).into_iter().flatten() {
            let outer = outer?;
            assert_eq!(outer.metadata()?.mode() & 0o077, 0, "{}", outer.path().display());
            let open = |inner: fs::DirEntry| inner.metadata().is_ok_and(|inner| inner.mode() & 0o055 == 0o055);
            if fs::read_dir(outer.path())?.flatten().any(open) {
                self.open_within.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.image.read_exact_at(buf, offset)
    }
}

#[test]
fn directories_are_closed_to_others_until_all_is_extracted() {
    let directory = tempfile::tempdir().unwrap();
    let (source, path) = (directory.path().join("tree"), directory.path().join("image"));
    for name in ["a/b/c", "d/e", "d/f"] {
        fs::create_dir_all(source.join(name)).unwrap();
        let content: Vec<u8> = (0..20_000u32).flat_map(|number| (number * 7919).to_le_bytes()).collect();
        fs::write(source.join(name).join("file"), content).unwrap();
    }
    for name in ["a", "a/b", "a/b/c", "d", "d/e", "d/f"] {
        fs::set_permissions(source.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    build_at(&path, &Tree::scan(&source, &ScanOptions::default()).unwrap(), &BuildOptions::default());
    for threads in [1, 3] {
        let target = directory.path().join(format!("target-{threads}"));
        let open_within = Arc::new(AtomicUsize::new(0));
        let watched =
            Watched { image: fs::read(&path).unwrap(), target: target.clone(), open_within: Arc::clone(&open_within) };
        let image = Image::open(watched).unwrap();
        let report = image.extract(&target, &ExtractOptions { threads, ..ExtractOptions::default() }).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        assert_same(&tree_of_directory(&source), &tree_of_directory(&target), "what no other user saw");
        // Another umask may change this.
        if fs::metadata(directory.path().join("tree")).unwrap().mode() & 0o777 == 0o755 {
            assert!(open_within.load(Ordering::Relaxed) > 0, "most directories have their modes from the start");
        }
    }
}

#[test]
fn device_files_are_left_out_where_owners_are() {
    let directory = tempfile::tempdir().unwrap();
    let (path, target) = (directory.path().join("image"), directory.path().join("out"));
    let node = |kind| Node { kind, permissions: 0o755, uid: 0, gid: 0, mtime_s: 1, mtime_nsec: 0, xattrs: Vec::new() };
    let mut tree = Tree::new(node(NodeKind::Fifo));
    let root = tree.root();
    tree.add(root, b"pipe", node(NodeKind::Fifo)).unwrap();
    tree.add(root, b"block", node(NodeKind::BlockDevice(8, 1))).unwrap();
    let null = tree.add(root, b"null", node(NodeKind::CharDevice(1, 3))).unwrap();
    tree.link(root, b"second", null).unwrap();
    build_at(&path, &tree, &BuildOptions::default());
    let options = ExtractOptions { owners: false, ..ExtractOptions::default() };
    let report = Image::open_path(&path).unwrap().extract(&target, &options).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    let names: Vec<_> = fs::read_dir(&target).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["pipe"]);
}

/// Text, zeros and noise, longer than several pieces.
fn long_content() -> Vec<u8> {
    let mut content = Vec::new();
    let mut state = 1u64;
    while content.len() < 9 << 20 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        match state >> 54 {
            0 => content.resize(content.len() + (state >> 34 & 0xf_ffff) as usize, 0),
            1 => content.extend(
                std::iter::successors(Some(state), |word| {
                    Some(word.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23) ^ 7)
                })
                .take(4096)
                .flat_map(u64::to_le_bytes),
            ),
            _ => content.extend(format!("line {} of a text that goes on, ", state >> 44).bytes()),
        }
    }
    content
}

#[test]
fn long_files_are_filled_by_several_threads() {
    let directory = tempfile::tempdir().unwrap();
    let (source, path) = (directory.path().join("tree"), directory.path().join("image"));
    fs::create_dir(&source).unwrap();
    let content = long_content();
    for (name, len) in [("all", content.len()), ("less", content.len() / 2 - 77), ("short", 5000)] {
        fs::write(source.join(name), &content[..len]).unwrap();
    }
    build_at(&path, &Tree::scan(&source, &ScanOptions::default()).unwrap(), &BuildOptions::default());
    let image = Image::open_path(&path).unwrap();
    for threads in [1, 2, 5] {
        let target = directory.path().join(format!("out-{threads}"));
        let report = image.extract(&target, &ExtractOptions { threads, ..ExtractOptions::default() }).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        assert_eq!((report.names, report.file_bytes), (3, (content.len() + content.len() / 2 - 77 + 5000) as u64));
        assert_same(&tree_of_directory(&source), &tree_of_directory(&target), "several threads");
    }
}

#[test]
fn a_damaged_file_is_extracted_up_to_the_damage() {
    let directory = tempfile::tempdir().unwrap();
    let (source, path) = (directory.path().join("tree"), directory.path().join("image"));
    fs::create_dir(&source).unwrap();
    let content = long_content();
    fs::write(source.join("file"), &content).unwrap();
    build_at(&path, &Tree::scan(&source, &ScanOptions::default()).unwrap(), &BuildOptions::default());
    let mut bytes = fs::read(&path).unwrap();
    for part in [3, 4, 5] {
        let block = bytes.len() / 8 * part / 4096 * 4096;
        bytes[block..block + 4096].fill(0xff);
    }
    let image = Image::open(bytes).unwrap();
    let mut expected = None;
    for (number, threads) in [1, 2, 2, 5, 5, 5].into_iter().enumerate() {
        let target = directory.path().join(format!("out-{number}"));
        let report = image.extract(&target, &ExtractOptions { threads, ..ExtractOptions::default() }).unwrap();
        let [problem] = &report.problems[..] else { panic!("{:?}", report.problems) };
        let found = fs::read(target.join("file")).unwrap();
        assert!(found.len() > 1 << 20 && content.starts_with(&found), "{} bytes", found.len());
        let found = (found.len(), problem.error.to_string());
        assert_eq!(*expected.get_or_insert_with(|| found.clone()), found, "{threads} threads");
    }
}

/// A full target is reported once, and the remaining files are not tried.
#[test]
fn extraction_stops_where_no_file_would_fare_better() {
    const TEST: &str = "extraction_stops_where_no_file_would_fare_better";
    const NAMES: u64 = 20 * 41 + 2;
    let directory = tempfile::tempdir().unwrap();
    let (source, path) = (directory.path().join("tree"), directory.path().join("image"));
    for number in 0..20 {
        let below = source.join(format!("directory-{number}"));
        fs::create_dir_all(&below).unwrap();
        for number in 0..40 {
            fs::write(below.join(format!("file-{number}")), trees::noise(4000, number)).unwrap();
        }
    }
    fs::write(source.join("directory-0/long"), trees::noise(3 << 20, 1)).unwrap();
    fs::hard_link(source.join("directory-0/file-1"), source.join("link")).unwrap();
    build_at(&path, &Tree::scan(&source, &ScanOptions::default()).unwrap(), &BuildOptions::default());
    let image = Image::open_path(&path).unwrap();
    for threads in [1, 2, 5] {
        let options = ExtractOptions { threads, ..ExtractOptions::default() };
        let small = match Small::new(1024) {
            Ok(small) => small,
            Err(why) => return skip(TEST, &why),
        };
        let full = image.extract(&small.path().join("out"), &options).unwrap();
        assert!(full.stopped && (1..NAMES).contains(&full.names), "{full:?}");
        let [problem] = &full.problems[..] else { panic!("{full:?}") };
        assert!(problem.error.to_string().contains("No space left"), "{full:?}");

        let read_only = Small::new(64).unwrap();
        read_only.make_read_only();
        let report = image.extract(read_only.path(), &options).unwrap();
        assert!(report.stopped && report.names == 0, "{report:?}");
        assert!(matches!(&report.problems[..], [problem] if problem.error.to_string().contains("Read-only")));

        // An existing file affects only the file with the same name.
        let target = directory.path().join(format!("out-{threads}"));
        fs::create_dir_all(target.join("directory-1")).unwrap();
        let report = image.extract(&target, &options).unwrap();
        assert_eq!((report.stopped, report.problems.len(), report.names), (false, 1, NAMES - 41));
    }
}

/// No file system but Lustre accepts `lustre.` xattrs.
#[test]
fn an_xattr_that_cannot_be_set_is_named_and_others_are_set() {
    let directory = tempfile::tempdir().unwrap();
    let (path, target) = (directory.path().join("image"), directory.path().join("target"));
    let xattr = |name: &str| Xattr { name: name.into(), value: b"value".to_vec() };
    let node = |kind| Node {
        kind,
        permissions: 0o755,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        mtime_s: 1_000_000_000,
        mtime_nsec: 0,
        xattrs: vec![xattr("lustre.lov"), xattr("user.name")],
    };
    let mut tree = Tree::new(node(NodeKind::Fifo));
    let content = Content::Bytes(b"content".as_slice().into());
    tree.add(tree.root(), b"file", node(NodeKind::Regular { content, size: 7 })).unwrap();
    build_at(&path, &tree, &BuildOptions::default());
    let report = Image::open_path(&path).unwrap().extract(&target, &ExtractOptions::default()).unwrap();
    let [problem] = &report.problems[..] else { panic!("{report:?}") };
    assert!(problem.extracted && problem.count == 2 && report.names == 1, "{report:?}");
    assert!(problem.error.to_string().starts_with("setting the xattr lustre.lov: "), "{problem:?}");
    let file = target.join("file");
    let mut value = [0; 8];
    let takes_xattrs = setxattr(&file, "user.test", b"value", XattrFlags::empty()).is_ok();
    for path in [&target, &file] {
        assert_eq!(fs::metadata(path).unwrap().mtime(), 1_000_000_000);
        assert!(!takes_xattrs || getxattr(path, "user.name", &mut value) == Ok(5));
    }
}

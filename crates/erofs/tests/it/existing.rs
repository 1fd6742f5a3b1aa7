//! Extraction over files that exist, compared with a plain model.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use pagefold_erofs::{
    BuildOptions, Content, Error, Existing, ExtractOptions, ExtractReport, Image, Node, NodeId, NodeKind, Tree,
};
use proptest::prelude::*;

use crate::built::build_at;

const TIME: i64 = 1_000_000_000;

fn node(kind: NodeKind) -> Node {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    Node { kind, permissions: 0o755, uid, gid, mtime_s: TIME, mtime_nsec: 0, xattrs: Vec::new() }
}

fn directory() -> Node {
    node(NodeKind::Directory(BTreeMap::new()))
}

fn file(content: &str) -> Node {
    node(NodeKind::Regular { content: Content::Bytes(content.as_bytes().into()), size: content.len() as u64 })
}

fn image_of(folder: &Path, tree: &Tree) -> Image {
    let path = folder.join("image");
    build_at(&path, tree, &BuildOptions::default());
    Image::open_path(&path).unwrap()
}

fn extract(image: &Image, target: &Path, existing: Existing, threads: usize) -> ExtractReport {
    image.extract(target, &ExtractOptions { existing, threads, ..ExtractOptions::default() }).unwrap()
}

/// What the image has, parents first.
const PATHS: [(&str, Kind); 6] = [
    ("d", Kind::Directory),
    ("d/e", Kind::Directory),
    ("d/e/g", Kind::File),
    ("d/f", Kind::File),
    ("f", Kind::File),
    ("l", Kind::Link),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    File,
    Directory,
    /// A symbolic link: in the image to nothing, in the target to what lies outside.
    Link,
    /// A further name of a file outside.
    HardLink,
}

fn small_image(folder: &Path) -> Image {
    let mut tree = Tree::new(directory());
    let mut ids: BTreeMap<&str, NodeId> = BTreeMap::from([("", tree.root())]);
    for (path, kind) in PATHS {
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        let node = match kind {
            Kind::File => file(&format!("new {path}")),
            Kind::Directory => directory(),
            Kind::Link | Kind::HardLink => node(NodeKind::Symlink(b"nowhere".to_vec())),
        };
        ids.insert(path, tree.add(ids[above], name.as_bytes(), node).unwrap());
    }
    image_of(folder, &tree)
}

/// A file as it is found: kind, content or target, and inode.
fn found(path: &Path) -> Option<(Kind, String, u64)> {
    let metadata = fs::symlink_metadata(path).ok()?;
    let (kind, text) = if metadata.is_symlink() {
        (Kind::Link, fs::read_link(path).unwrap().display().to_string())
    } else if metadata.is_dir() {
        (Kind::Directory, String::new())
    } else {
        (Kind::File, fs::read_to_string(path).unwrap())
    };
    Some((kind, text, metadata.ino()))
}

/// The result for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    New,
    /// An existing directory that is entered.
    Merged,
    /// Whatever was there before, even nothing.
    Old,
}

fn fate(above: Fate, old: Option<Kind>, new: Kind, existing: Existing) -> Fate {
    match (above, old, existing) {
        (Fate::Old, ..) => Fate::Old,
        (_, None, _) => Fate::New,
        (_, Some(_), Existing::Refuse) => Fate::Old,
        (_, Some(Kind::Directory), _) if new == Kind::Directory => Fate::Merged,
        (_, Some(_), Existing::Keep) | (_, Some(Kind::Directory), Existing::Overwrite) => Fate::Old,
        (_, Some(_), Existing::Overwrite) => Fate::New,
    }
}

/// Plants files, extracts over them, and compares each name with the model.
fn check(planted: &[Option<Kind>], existing: Existing, threads: usize) {
    let folder = tempfile::tempdir().unwrap();
    let (target, outside) = (folder.path().join("target"), folder.path().join("outside"));
    fs::create_dir(&target).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "outside").unwrap();
    let image = small_image(folder.path());
    for ((path, new), kind) in PATHS.iter().zip(planted) {
        let at = target.join(path);
        if !at.parent().unwrap().symlink_metadata().is_ok_and(|above| above.is_dir()) {
            continue;
        }
        match kind {
            None => {}
            Some(Kind::File) => fs::write(at, format!("old {path}")).unwrap(),
            Some(Kind::Directory) => fs::create_dir(at).unwrap(),
            Some(Kind::Link) if *new == Kind::Directory => symlink(&outside, at).unwrap(),
            Some(Kind::Link) => symlink(outside.join("file"), at).unwrap(),
            Some(Kind::HardLink) => fs::hard_link(outside.join("file"), at).unwrap(),
        }
    }
    let before: Vec<_> = PATHS.iter().map(|(path, _)| found(&target.join(path))).collect();
    let report = extract(&image, &target, existing, threads);
    let mut fates: BTreeMap<&str, Fate> = BTreeMap::from([("", Fate::Merged)]);
    let mut new = 0;
    for ((path, kind), before) in PATHS.iter().zip(&before) {
        let above = path.rsplit_once('/').map_or("", |(above, _)| above);
        let fate = fate(fates[above], before.as_ref().map(|(kind, ..)| *kind), *kind, existing);
        fates.insert(path, fate);
        let after = found(&target.join(path));
        let what = format!("{path}: {fate:?}, {before:?} became {after:?} with {existing:?}: {report:?}");
        match (fate, kind) {
            (Fate::Old, _) => assert_eq!(after, *before, "{what}"),
            (Fate::Merged, _) => assert_eq!((&after, fs::metadata(target.join(path)).unwrap().mtime()), (before, TIME)),
            (Fate::New, _) => {
                new += 1;
                let (found, text, _) = after.clone().expect(&what);
                let expected = match kind {
                    Kind::File => format!("new {path}"),
                    Kind::Directory => String::new(),
                    Kind::Link | Kind::HardLink => "nowhere".to_owned(),
                };
                assert_eq!((found, text), (*kind, expected), "{what}");
            }
        }
    }
    assert_eq!(report.names, new, "{report:?}");
    assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "outside");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1, "nothing is written outside");
    let left = Command::new("find").arg(&target).args(["-name", ".pagefold*"]).output().unwrap().stdout;
    assert!(left.is_empty(), "{}", String::from_utf8_lossy(&left));
}

fn kinds() -> impl Strategy<Value = Vec<Option<Kind>>> {
    let kind = prop_oneof![
        3 => Just(None),
        2 => Just(Some(Kind::Directory)),
        1 => Just(Some(Kind::File)),
        1 => Just(Some(Kind::Link)),
        1 => Just(Some(Kind::HardLink)),
    ];
    proptest::collection::vec(kind, PATHS.len())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn what_exists_is_refused_kept_or_replaced(
        planted in kinds(),
        existing in prop_oneof![Just(Existing::Refuse), Just(Existing::Keep), Just(Existing::Overwrite)],
        threads in 1..3usize,
    ) {
        check(&planted, existing, threads);
    }
}

#[test]
fn equal_errors_are_one_problem() {
    let folder = tempfile::tempdir().unwrap();
    let mut tree = Tree::new(directory());
    for number in 0..300 {
        tree.add(tree.root(), format!("{number:04}").as_bytes(), file("x")).unwrap();
    }
    let image = image_of(folder.path(), &tree);
    let target = folder.path().join("target");
    for threads in [1, 3] {
        let first = extract(&image, &target, Existing::Overwrite, threads);
        assert!(first.names == 300 && first.problems.is_empty(), "{first:?}");
        let again = extract(&image, &target, Existing::Refuse, threads);
        let [problem] = &again.problems[..] else { panic!("{again:?}") };
        assert!(matches!(problem.error, Error::Exists) && problem.count == 300 && problem.path == b"/0000");
        let kept = extract(&image, &target, Existing::Keep, threads);
        assert!(kept.problems.is_empty() && kept.kept == 300 && kept.different.is_none(), "{kept:?}");
    }
    fs::write(target.join("0200"), "half").unwrap();
    let kept = extract(&image, &target, Existing::Keep, 2);
    assert_eq!(kept.different, Some((1, b"/0200".to_vec())));
}

/// A file that cannot be read leaves the old one in place.
#[test]
fn a_damaged_file_replaces_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut tree = Tree::new(directory());
    let content = crate::trees::text(3 << 20, 1);
    let size = content.len() as u64;
    let whole = node(NodeKind::Regular { content: Content::Bytes(content.into()), size });
    tree.add(tree.root(), b"file", whole).unwrap();
    image_of(folder.path(), &tree);
    let mut bytes = fs::read(folder.path().join("image")).unwrap();
    let at = bytes.len() / 2 / 4096 * 4096;
    bytes[at..at + 4096].fill(0xff);
    let image = Image::open(bytes).unwrap();
    for threads in [1, 3] {
        let target = folder.path().join(format!("target-{threads}"));
        fs::create_dir(&target).unwrap();
        fs::write(target.join("file"), "old").unwrap();
        let report = extract(&image, &target, Existing::Overwrite, threads);
        assert_eq!((report.problems.len(), report.names), (1, 0), "{report:?}");
        assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "old");
        assert_eq!(fs::read_dir(&target).unwrap().count(), 1);
    }
}

#[test]
fn hard_links_lead_to_the_files_of_the_image_alone() {
    let folder = tempfile::tempdir().unwrap();
    let mut tree = Tree::new(directory());
    let first = tree.add(tree.root(), b"first", file("of the image")).unwrap();
    tree.link(tree.root(), b"second", first).unwrap();
    let image = image_of(folder.path(), &tree);
    let target = folder.path().join("target");
    let inodes = || ["first", "second"].map(|name| fs::metadata(target.join(name)).map(|metadata| metadata.ino()).ok());
    let is_one_file = || inodes()[0].is_some() && inodes()[0] == inodes()[1];
    extract(&image, &target, Existing::Refuse, 1);
    // Again, over its own result.
    for existing in [Existing::Keep, Existing::Overwrite, Existing::Overwrite] {
        let report = extract(&image, &target, existing, 1);
        assert!(report.problems.is_empty() && is_one_file(), "{report:?}");
        assert_eq!(fs::read_dir(&target).unwrap().count(), 2);
    }
    fs::remove_file(target.join("second")).unwrap();
    let report = extract(&image, &target, Existing::Keep, 1);
    assert!(report.names == 1 && report.problems.is_empty() && is_one_file(), "{report:?}");
    // Someone's own file is kept at the second name, too.
    fs::remove_file(target.join("second")).unwrap();
    fs::write(target.join("second"), "someone's own").unwrap();
    let report = extract(&image, &target, Existing::Keep, 1);
    assert!(report.problems.is_empty(), "{report:?}");
    assert_eq!((report.kept, report.different), (2, Some((1, b"/second".to_vec()))));
    assert_eq!(fs::read_to_string(target.join("second")).unwrap(), "someone's own");
    // The second name must not lead to someone's own file.
    fs::remove_file(target.join("second")).unwrap();
    fs::write(target.join("first"), "someone's own").unwrap();
    let report = extract(&image, &target, Existing::Keep, 1);
    assert!(matches!(&report.problems[..], [problem] if matches!(problem.error, Error::OtherFile(_))), "{report:?}");
    assert!(!target.join("second").exists());
    let report = extract(&image, &target, Existing::Overwrite, 1);
    assert!(report.problems.is_empty() && is_one_file(), "{report:?}");
    assert_eq!(fs::read_to_string(target.join("second")).unwrap(), "of the image");
}

#[test]
fn the_number_of_files_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let mut tree = Tree::new(directory());
    for number in 0..30 {
        let below = tree.add(tree.root(), format!("d{number:02}").as_bytes(), directory()).unwrap();
        let one = tree.add(below, b"file", file("x")).unwrap();
        tree.link(below, b"link", one).unwrap();
    }
    let image = image_of(folder.path(), &tree);
    for (threads, max_files, stopped) in [(1, 90, false), (3, 90, false), (1, 89, true), (3, 45, true), (2, 0, true)] {
        let target = folder.path().join(format!("target-{threads}-{max_files}"));
        let options = ExtractOptions { threads, max_files: Some(max_files), ..ExtractOptions::default() };
        let report = image.extract(&target, &options).unwrap();
        assert_eq!(report.stopped, stopped, "{report:?}");
        assert_eq!(report.names, max_files.min(90), "{report:?}");
        if stopped {
            assert!(matches!(&report.problems[..], [problem] if matches!(problem.error, Error::TooManyFiles { .. })));
        } else {
            assert!(report.problems.is_empty(), "{report:?}");
        }
    }
}

/// Far deeper than any path that a system call takes: with files and hard links at all depths.
#[test]
fn deep_trees_are_extracted_with_their_links() {
    const DEPTH: usize = 900;
    let folder = tempfile::tempdir().unwrap();
    let mut tree = Tree::new(directory());
    let one = tree.add(tree.root(), b"one", file("one")).unwrap();
    let mut firsts = vec![one];
    let mut here = tree.root();
    for depth in 0..DEPTH {
        here = tree.add(here, b"ddddd", directory()).unwrap();
        tree.link(here, b"one", one).unwrap();
        firsts.push(tree.add(here, b"own", file(&depth.to_string())).unwrap());
        // A file of the other end.
        tree.link(here, b"other", firsts[depth / 2]).unwrap();
    }
    let image = image_of(folder.path(), &tree);
    for threads in [1, 2] {
        let target = folder.path().join(format!("target-{threads}"));
        let report = extract(&image, &target, Existing::Refuse, threads);
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        assert_eq!(report.names, 1 + 4 * DEPTH as u64);
        let again = extract(&image, &target, Existing::Overwrite, threads);
        assert!(again.problems.is_empty() && again.names == 1 + 3 * DEPTH as u64, "{:?}", again.problems);
        let kept = extract(&image, &target, Existing::Keep, threads);
        assert!(kept.problems.is_empty() && kept.different.is_none(), "{:?}", kept.problems);
        assert!(Command::new("rm").arg("-rf").arg(&target).status().unwrap().success());
    }
}

#[test]
fn an_existing_directory_gets_the_metadata_of_the_image() {
    let folder = tempfile::tempdir().unwrap();
    let mut tree = Tree::new(directory());
    let below = tree.add(tree.root(), b"d", Node { permissions: 0o500, ..directory() }).unwrap();
    tree.add(below, b"file", Node { permissions: 0o640, ..file("x") }).unwrap();
    let image = image_of(folder.path(), &tree);
    for existing in [Existing::Keep, Existing::Overwrite] {
        let target = folder.path().join(format!("{existing:?}"));
        fs::create_dir_all(target.join("d/own")).unwrap();
        let report = extract(&image, &target, existing, 1);
        assert!(report.problems.is_empty(), "{report:?}");
        let of =
            |path: PathBuf| fs::metadata(path).map(|metadata| (metadata.mode() & 0o7777, metadata.mtime())).unwrap();
        assert_eq!(of(target.join("d")), (0o500, TIME));
        assert_eq!(of(target.join("d/file")), (0o640, TIME));
        assert!(target.join("d/own").exists());
        fs::set_permissions(target.join("d"), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    }
}

/// A file from which the image is read keeps its names, and gets none of the image's.
#[test]
fn inputs_are_neither_replaced_nor_linked() {
    for (threads, name, missing) in [(1, "first", "further"), (3, "first", "further"), (3, "further", "")] {
        let folder = tempfile::tempdir().unwrap();
        let mut tree = Tree::new(directory());
        let first = tree.add(tree.root(), b"first", file("of the image")).unwrap();
        tree.link(tree.root(), b"further", first).unwrap();
        tree.add(tree.root(), b"other", file("of the image")).unwrap();
        let image = image_of(folder.path(), &tree);
        let target = folder.path().join("out");
        fs::create_dir(&target).unwrap();
        fs::write(target.join(name), "input").unwrap();
        let input = fs::metadata(target.join(name)).unwrap();
        let options = ExtractOptions {
            existing: Existing::Overwrite,
            inputs: [(input.dev(), input.ino())].into(),
            threads,
            ..ExtractOptions::default()
        };
        let report = image.extract(&target, &options).unwrap();
        let problem = report.problems.iter().find(|problem| matches!(problem.error, Error::IsInput)).unwrap();
        assert_eq!(problem.path, format!("/{name}").as_bytes());
        assert_eq!(fs::metadata(target.join(name)).unwrap().nlink(), 1);
        for other in ["first", "further", "other"].into_iter().filter(|other| *other != missing) {
            let expected = if other == name { "input" } else { "of the image" };
            assert_eq!(fs::read_to_string(target.join(other)).unwrap(), expected);
        }
        assert!(missing.is_empty() || !target.join(missing).exists());
    }
}

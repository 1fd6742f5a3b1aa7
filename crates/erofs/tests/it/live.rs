//! Directories that change while they are packed, and the result of scanning them.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use pagefold_codec::cluster::ClusterCodec;
use pagefold_erofs::{BuildOptions, Error, Fragments, Image, ScanOptions, Tree, WarningKind, build};

use crate::built::build_at;
use crate::tools::{self, skip, tree_of_directory, tree_of_image};
use crate::trees;

const LIVE: fn() -> ScanOptions = || ScanOptions { skip_unreadable: true, ..ScanOptions::default() };

/// Longer than a segment.
const LONG_BYTES: usize = (4 << 20) + 100_000;

fn fill(root: &Path) {
    for folder in ["a", "gone", "z/deep"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    for (number, name) in
        ["a/first", "a/vanishes", "gone/one", "gone/two", "shrinks", "to-nothing", "z/last"].into_iter().enumerate()
    {
        fs::write(root.join(name), trees::text(70_000 + number, number as u32)).unwrap();
    }
    for name in ["a/long", "long-vanishes", "long-shrinks", "z/deep/long"] {
        fs::write(root.join(name), trees::text(LONG_BYTES, name.len() as u32)).unwrap();
    }
    fs::write(root.join("grows"), "at first").unwrap();
    fs::write(root.join("empty"), "").unwrap();
    fs::hard_link(root.join("a/vanishes"), root.join("z/second-name")).unwrap();
    symlink("first", root.join("a/link")).unwrap();
}

/// Changes the directory after its scan.
fn change(root: &Path) {
    for name in ["a/vanishes", "z/second-name", "long-vanishes"] {
        fs::remove_file(root.join(name)).unwrap();
    }
    fs::remove_dir_all(root.join("gone")).unwrap();
    for (name, len) in [("shrinks", 33_333), ("to-nothing", 0), ("long-shrinks", LONG_BYTES as u64 - 4_100_000)] {
        File::options().write(true).open(root.join(name)).unwrap().set_len(len).unwrap();
    }
    fs::write(root.join("grows"), "at first, and then more").unwrap();
}

fn variants() -> Vec<BuildOptions> {
    let base = BuildOptions::default();
    let zstd = ClusterCodec::Zstd { level: 3, window_log: 17 };
    vec![
        base.clone(),
        BuildOptions { codec: None, ..base.clone() },
        BuildOptions { codec: None, chunk_bytes: Some(8192), ..base.clone() },
        BuildOptions { codec: Some(zstd), pcluster_bytes: 65_536, ztailpacking: true, ..base.clone() },
        BuildOptions { fragments: Fragments::Tails, dedupe: true, ..base.clone() },
        BuildOptions { fragments: Fragments::All, ..base },
    ]
}

#[test]
fn a_tree_is_packed_while_files_vanish_and_shrink() {
    for (number, options) in variants().into_iter().enumerate() {
        for threads in [1, 3] {
            let folder = tempfile::tempdir().unwrap();
            let (source, path) = (folder.path().join("tree"), folder.path().join("image"));
            fs::create_dir(&source).unwrap();
            fill(&source);
            let tree = Tree::scan(&source, &LIVE()).unwrap();
            let mut expected = tree_of_directory(&source);
            change(&source);
            let left = tree_of_directory(&source);
            build_at(&path, &tree, &BuildOptions { threads, ..options.clone() });
            let what = format!("variant {number}, {threads} threads");

            let image = Image::open_path(&path).unwrap();
            let report = image.check(1);
            assert!(report.problems.is_empty(), "{what}: {report:?}");
            let compared = image.compare(&tree, 2);
            assert!(compared.differences.is_empty(), "{what}: {compared:?}");
            tools::run("fsck.erofs", [&path]);

            expected.retain(|path, _| left.contains_key(path) || path == Path::new("gone"));
            let found = tree_of_image(&image);
            assert_eq!(
                found.keys().collect::<Vec<_>>(),
                expected.keys().collect::<Vec<_>>(),
                "{what}: what vanished is left out"
            );
            for (path, facts) in found.into_iter().filter(|(_, facts)| facts.is_regular()) {
                let mut content = expected[&path].clone().into_content();
                if ["shrinks", "to-nothing", "long-shrinks"].iter().any(|name| path == Path::new(name)) {
                    let len = left[&path].clone().into_content().len();
                    content[len..].fill(0);
                }
                assert!(facts.into_content() == content, "{what}: {}", path.display());
            }

            let changes: Vec<_> = tree.changes().into_iter().map(|change| (change.kind, change.count)).collect();
            assert_eq!(changes, [(WarningKind::Vanished, 4), (WarningKind::Shorter, 3)], "{what}");
            let named = &tree.changes()[1].examples;
            assert!(named.contains(&source.join("to-nothing").display().to_string()), "{named:?}");
        }
    }
}

#[test]
fn without_the_option_a_change_ends_the_build() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["vanishes", "shrinks"] {
        let source = folder.path().join(name);
        fs::create_dir(&source).unwrap();
        fs::write(source.join("file"), trees::text(70_000, 1)).unwrap();
        let tree = Tree::scan(&source, &ScanOptions::default()).unwrap();
        if name == "vanishes" {
            fs::remove_file(source.join("file")).unwrap();
        } else {
            fs::write(source.join("file"), "short").unwrap();
        }
        let error = build(&tree, &BuildOptions::default(), &tempfile::tempfile().unwrap()).unwrap_err();
        assert!(matches!(&error, Error::Source { path, .. } if *path == source.join("file")), "{error}");
        assert!(tree.changes().is_empty());
    }
}

/// Replaces `name` in a directory by something else, which `secret` is.
type Replace = fn(&Path, &str, &Path);

const REPLACEMENTS: [(&str, Replace); 7] = [
    ("a link", |folder, name, secret| {
        fs::remove_file(folder.join(name)).unwrap();
        symlink(secret.join(name), folder.join(name)).unwrap();
    }),
    ("a link above", |folder, _, secret| {
        fs::rename(folder, folder.with_extension("moved")).unwrap();
        symlink(secret, folder).unwrap();
    }),
    ("another file", |folder, name, secret| fs::rename(secret.join(name), folder.join(name)).unwrap()),
    ("a new file", |folder, name, secret| {
        let content = fs::read(secret.join(name)).unwrap();
        fs::remove_file(folder.join(name)).unwrap();
        fs::write(folder.join(name), content).unwrap();
    }),
    ("a pipe", |folder, name, _| {
        fs::remove_file(folder.join(name)).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, folder.join(name), rustix::fs::FileType::Fifo, 0o644.into(), 0).unwrap();
    }),
    ("a directory", |folder, name, _| {
        fs::remove_file(folder.join(name)).unwrap();
        fs::create_dir(folder.join(name)).unwrap();
    }),
    ("a device", |folder, name, _| {
        fs::remove_file(folder.join(name)).unwrap();
        symlink("/dev/zero", folder.join(name)).unwrap();
    }),
];

#[test]
fn what_replaces_a_file_is_never_packed() {
    for (what, replace) in REPLACEMENTS {
        for (len, skip_unreadable) in [(70_000, true), (LONG_BYTES, true), (70_000, false), (LONG_BYTES, false)] {
            let place = tempfile::tempdir().unwrap();
            let (source, secret) = (place.path().join("tree"), place.path().join("secret"));
            for (folder, number) in [(&source.join("folder"), 1), (&secret, 2)] {
                fs::create_dir_all(folder).unwrap();
                fs::write(folder.join("file"), trees::text(len, number)).unwrap();
            }
            fs::write(source.join("stays"), "stays").unwrap();
            let tree = Tree::scan(&source, &ScanOptions { skip_unreadable, ..ScanOptions::default() }).unwrap();
            let changed = source.join("folder/file");
            replace(&source.join("folder"), "file", &secret);
            let image = place.path().join("image");
            let out = File::options().read(true).write(true).create_new(true).open(&image).unwrap();
            let built = build(&tree, &BuildOptions::default(), &out);
            if !skip_unreadable {
                let error = built.unwrap_err().to_string();
                assert_eq!(error, format!("{}: was replaced while it was packed", changed.display()), "{what}");
                continue;
            }
            built.unwrap();
            let [change] = &tree.changes()[..] else { panic!("{what}: {:?}", tree.changes()) };
            assert_eq!(
                (change.kind, &change.examples[..]),
                (WarningKind::Replaced, &[changed.display().to_string()][..])
            );
            let image = Image::open_path(&image).unwrap();
            let found = tree_of_image(&image);
            let paths: Vec<_> = found.keys().filter(|path| !path.as_os_str().is_empty()).collect();
            assert_eq!(paths, [Path::new("folder"), Path::new("stays")], "{what}");
            assert!(image.compare(&tree, 1).differences.is_empty(), "{what}");
        }
    }
}

#[test]
fn what_replaces_a_file_is_not_verified() {
    for (what, replace) in REPLACEMENTS {
        let place = tempfile::tempdir().unwrap();
        let (source, secret) = (place.path().join("tree"), place.path().join("secret"));
        for folder in [&source.join("folder"), &secret] {
            fs::create_dir_all(folder).unwrap();
            fs::write(folder.join("file"), trees::text(70_000, 1)).unwrap();
        }
        let tree = Tree::scan(&source, &ScanOptions::default()).unwrap();
        let out = tempfile::tempfile().unwrap();
        build(&tree, &BuildOptions::default(), &out).unwrap();
        replace(&source.join("folder"), "file", &secret);
        let report = Image::open(out).unwrap().compare(&tree, 1);
        let [difference] = &report.differences[..] else { panic!("{what}: {report:?}") };
        assert!(difference.what.contains("was replaced while it was packed"), "{what}: {}", difference.what);
    }
}

/// A file that changes between the build and its verification is named; damage is not excused.
#[test]
fn verification_distinguishes_changes_from_damage() {
    let folder = tempfile::tempdir().unwrap();
    let (source, path) = (folder.path().join("tree"), folder.path().join("image"));
    fs::create_dir(&source).unwrap();
    fill(&source);
    let tree = Tree::scan(&source, &LIVE()).unwrap();
    build_at(&path, &tree, &BuildOptions::default());
    let mut bytes = fs::read(&path).unwrap();
    let image = Image::open(bytes.clone()).unwrap();
    assert!(image.compare(&tree, 1).differences.is_empty() && tree.changes().is_empty());
    // The root and the directories have other times now.
    change(&source);
    let compared = image.compare(&tree, 2);
    assert!(compared.differences.is_empty(), "{compared:?}");
    let changes: Vec<_> = tree.changes().into_iter().map(|change| (change.kind, change.count)).collect();
    assert_eq!(changes, [(WarningKind::Changed, 7)]);

    let tree = Tree::scan(&source, &LIVE()).unwrap();
    build_at(&path, &tree, &BuildOptions { codec: None, ..BuildOptions::default() });
    bytes.clone_from(&fs::read(&path).unwrap());
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    let compared = Image::open(bytes).unwrap().compare(&tree, 2);
    assert!(compared.differences.len() == 1 && tree.changes().is_empty(), "{compared:?}");
}

fn image_bytes(tree: &Tree) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    build_at(&path, tree, &BuildOptions::default());
    fs::read(path).unwrap()
}

#[test]
fn an_image_without_hard_links_does_not_depend_on_them() {
    let folder = tempfile::tempdir().unwrap();
    let (linked, copied) = (folder.path().join("linked"), folder.path().join("copied"));
    for root in [&linked, &copied] {
        fs::create_dir_all(root.join("below")).unwrap();
        fs::write(root.join("file"), trees::text(10_000, 1)).unwrap();
        symlink("file", root.join("link")).unwrap();
    }
    for (name, old) in [("again", "file"), ("below/again", "file"), ("below/link", "link")] {
        fs::hard_link(linked.join(old), linked.join(name)).unwrap();
    }
    for name in ["again", "below/again"] {
        fs::copy(copied.join("file"), copied.join(name)).unwrap();
    }
    symlink("file", copied.join("below/link")).unwrap();
    let options = ScanOptions { mtime_s: Some(1), ..ScanOptions::default() };
    let mut tree = Tree::scan(&linked, &options).unwrap();
    let with_links = image_bytes(&tree);
    tree.separate_links();
    let separate = image_bytes(&tree);
    assert!(with_links != separate);
    assert!(separate == image_bytes(&Tree::scan(&copied, &options).unwrap()));
    // Separated files stay separate.
    tree.separate_links();
    assert!(separate == image_bytes(&tree));
    let image = Image::open(separate).unwrap();
    assert_eq!(image.resolve(b"below/again").unwrap().nlink, 1);
    assert!(image.compare(&tree, 1).differences.is_empty());
}

/// A tmpfs, unmounted when dropped.
struct Tmpfs<'a>(&'a Path);

impl Drop for Tmpfs<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[test]
fn other_file_systems_stay_outside_if_asked() {
    const TEST: &str = "other_file_systems_stay_outside_if_asked";
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("tree");
    let point = source.join("a/point");
    fs::create_dir_all(&point).unwrap();
    fs::write(source.join("a/file"), "of the root").unwrap();
    match Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&point).output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => return skip(TEST, &String::from_utf8_lossy(&output.stderr)),
        Err(error) => return skip(TEST, &format!("mount: {error}")),
    }
    let _mounted = Tmpfs(&point);
    fs::create_dir(point.join("below")).unwrap();
    fs::write(point.join("below/file"), "of the other one").unwrap();
    fs::set_permissions(&point, fs::Permissions::from_mode(0o711)).unwrap();
    let names = |root: &Path, options: &ScanOptions| {
        let image = Image::open(image_bytes(&Tree::scan(root, options).unwrap())).unwrap();
        (tree_of_image(&image).into_keys().map(|path| path.display().to_string()).collect::<Vec<_>>(), image)
    };
    let alone = ScanOptions { one_file_system: true, ..ScanOptions::default() };
    let (found, image) = names(&source, &alone);
    assert_eq!(found, ["", "a", "a/file", "a/point"]);
    let inode = image.resolve(b"a/point").unwrap();
    let metadata = fs::metadata(&point).unwrap();
    assert_eq!((inode.permissions(), inode.mtime_s), (0o711, metadata.mtime()));
    assert_eq!(names(&source, &ScanOptions::default()).0.len(), 6);
    // The root of the scan may itself be a mount.
    assert_eq!(names(&point, &alone).0, ["", "below", "below/file"]);
}

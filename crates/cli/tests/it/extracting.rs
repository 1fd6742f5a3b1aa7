//! `pagefold extract` into existing directories, as a user, within limits; and other commands on
//! deep and truncated images.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    os::unix::{
        fs::{MetadataExt, PermissionsExt},
        process::CommandExt,
    },
    path::Path,
    process::{Command, Output},
};

use pagefold_erofs::{BuildOptions, Content, Node, NodeKind, Tree, Xattr, build};
use pagefold_testing::copy_program;
use tempfile::TempDir;

use crate::{images::output, server::pagefold};

struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(TempDir::new().expect("a folder"))
    }

    fn at(&self, name: &str) -> String {
        self.0.path().join(name).to_str().expect("a plain path").to_owned()
    }

    fn build(&self, tree: &Tree) {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(self.at("image"));
        build(tree, &BuildOptions::default(), &file.expect("a file")).expect("an image");
    }

    fn extract(&self, to: &str, options: &[&str]) -> (Option<i32>, String) {
        said(pagefold().args(["extract", &self.at("image"), "-C", &self.at(to)]).args(options))
    }
}

fn said(command: &mut Command) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = command.output().expect("the program starts");
    (status.code(), String::from_utf8(stderr).expect("text"))
}

fn node(kind: NodeKind) -> Node {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    Node { kind, permissions: 0o755, uid, gid, mtime_s: 1_000_000_000, mtime_nsec: 0, xattrs: Vec::new() }
}

fn directory() -> Node {
    node(NodeKind::Directory(BTreeMap::new()))
}

fn file(content: &str) -> Node {
    node(NodeKind::Regular { content: Content::Bytes(content.as_bytes().into()), size: content.len() as u64 })
}

#[test]
fn a_filled_target_is_refused_in_a_line_kept_or_replaced() {
    let place = Place::new();
    let mut tree = Tree::new(directory());
    for number in 0..800 {
        tree.add(tree.root(), format!("file-{number:03}").as_bytes(), file("of the image")).expect("a file");
    }
    place.build(&tree);
    assert_eq!(place.extract("out", &[]), (Some(0), String::new()));
    let (code, message) = place.extract("out", &[]);
    let first = format!("pagefold: {}: exists already (and 799 more files)\n", place.at("out/file-000"));
    let last = "pagefold: failed to extract 800 files; --keep leaves existing files as they are, --overwrite replaces \
                them\n";
    assert_eq!((code, message), (Some(1), first + last));
    assert_eq!(place.extract("out", &["--keep"]), (Some(0), String::new()));
    fs::write(place.at("out/file-300"), "half").expect("a file");
    fs::remove_file(place.at("out/file-301")).expect("a file");
    let (code, message) = place.extract("out", &["--keep"]);
    let file_300 = place.at("out/file-300");
    let expected = format!(
        "pagefold: kept 1 file that differs in kind, size or time from the image, such as {file_300}; --overwrite \
         replaces it, but no directory\n"
    );
    assert_eq!((code, message), (Some(1), expected));
    assert_eq!(fs::read_to_string(&file_300).expect("the file"), "half");
    assert_eq!(fs::read_to_string(place.at("out/file-301")).expect("the file"), "of the image");
    assert_eq!(place.extract("out", &["--overwrite"]), (Some(0), String::new()));
    assert_eq!(fs::read_to_string(&file_300).expect("the file"), "of the image");
    fs::remove_file(&file_300).expect("a file");
    fs::create_dir(&file_300).expect("a folder");
    let (code, message) = place.extract("out", &["--overwrite"]);
    assert!(code == Some(1) && message.contains("a directory has this name: move it away first"), "{message}");
    fs::remove_dir(&file_300).expect("the folder is empty");
    let (code, message) = place.extract("out", &["--keep", "--overwrite"]);
    assert!(code == Some(2) && message.contains("cannot be used with"), "{message}");
    let (code, message) = place.extract("few", &["--max-files", "100"]);
    assert!(code == Some(1) && message.contains("the limit of 100 files is reached; stopped, with 100 "), "{message}");
    assert_eq!(fs::read_dir(place.at("few")).expect("a folder").count(), 100);
}

#[test]
fn a_directory_that_exists_is_left_out_with_its_files() {
    let place = Place::new();
    let mut tree = Tree::new(directory());
    for name in [&b"a"[..], b"b"] {
        let below = tree.add(tree.root(), name, directory()).expect("a name");
        tree.add(below, b"one", file("of the image")).expect("a name");
    }
    tree.add(tree.root(), b"c", file("of the image")).expect("a name");
    place.build(&tree);
    let way = "--keep leaves existing files as they are, --overwrite replaces them";
    for (existing, lacking) in [
        (&["a"][..], "1 directory with all that is in it"),
        (&["a", "b"], "2 directories with all that is in them"),
        (&["a", "b", "c"], "1 file and 2 directories with all that is in them"),
    ] {
        let target = format!("out-{}", existing.len());
        for name in existing {
            fs::create_dir_all(place.at(&format!("{target}/{name}"))).expect("a folder");
        }
        let (code, message) = place.extract(&target, &[]);
        let first = format!("{target}/a: exists already, so nothing in the directory was extracted");
        assert!(code == Some(1) && message.contains(&first), "{message}");
        assert!(message.ends_with(&format!("failed to extract {lacking}; {way}\n")), "{message}");
    }
}

/// Neither option enters a link to a directory.
#[test]
fn a_link_in_the_place_of_a_directory_is_kept_or_replaced() {
    let place = Place::new();
    let mut tree = Tree::new(directory());
    let below = tree.add(tree.root(), b"below", directory()).expect("a name");
    tree.add(below, b"one", file("of the image")).expect("a name");
    place.build(&tree);
    for target in ["elsewhere", "file", "nothing"] {
        fs::create_dir_all(place.at("out")).expect("a folder");
        fs::create_dir_all(place.at("elsewhere")).expect("a folder");
        fs::write(place.at("file"), "precious").expect("a file");
        std::os::unix::fs::symlink(place.at(target), place.at("out/below")).expect("a link");
        let (code, message) = place.extract("out", &["--keep"]);
        let named = format!("{}: a link or a file with this name was kept, so nothing in", place.at("out/below"));
        assert!(code == Some(1) && message.contains(&named), "{message}");
        assert!(fs::symlink_metadata(place.at("out/below")).expect("a link").is_symlink());
        assert_eq!(place.extract("out", &["--overwrite"]), (Some(0), String::new()));
        assert_eq!(fs::read_to_string(place.at("out/below/one")).expect("a file"), "of the image");
        assert_eq!(fs::read_dir(place.at("elsewhere")).expect("a folder").count(), 0);
        fs::remove_dir_all(place.at("out")).expect("a folder");
    }
}

/// Directories that only their owner could write to, but may not.
#[test]
fn a_user_extracts_again_over_directories_that_are_read_only() {
    let place = Place::new();
    let mut tree = Tree::new(Node { permissions: 0o555, ..directory() });
    let below = tree.add(tree.root(), b"below", Node { permissions: 0o555, ..directory() }).expect("a name");
    for name in [&b"one"[..], b"two"] {
        tree.add(below, name, file("of the image")).expect("a name");
    }
    place.build(&tree);
    fs::create_dir(place.at("target")).expect("a folder");
    let user = if rustix::process::geteuid().is_root() { 65534 } else { rustix::process::geteuid().as_raw() };
    // The build directory may be inaccessible to others.
    copy_program(env!("CARGO_BIN_EXE_pagefold"), place.at("pagefold"));
    for (path, mode) in [(".", 0o755), ("image", 0o644), ("target", 0o755)] {
        fs::set_permissions(place.at(path), fs::Permissions::from_mode(mode)).expect("a mode");
    }
    std::os::unix::fs::chown(place.at("target"), Some(user), None).expect("an owner");
    let out = place.at("target/out");
    let mode = |path: &str| fs::metadata(path).expect("a file").permissions().mode() & 0o777;
    for option in ["", "--overwrite", "--keep"] {
        if option == "--keep" {
            let two = format!("{out}/below/two");
            fs::set_permissions(format!("{out}/below"), fs::Permissions::from_mode(0o755)).expect("a mode");
            fs::remove_file(two).expect("a file");
            fs::set_permissions(format!("{out}/below"), fs::Permissions::from_mode(0o555)).expect("a mode");
        }
        let mut command = Command::new(place.at("pagefold"));
        command
            .args(["extract", &place.at("image"), "-C", &out])
            .args(Some(option).filter(|option| !option.is_empty()));
        let (code, message) = said(command.current_dir("/").uid(user));
        assert!(code == Some(0) && !message.contains("failed"), "{option}: {message}");
        assert_eq!([mode(&out), mode(&format!("{out}/below"))], [0o555; 2], "{option}");
        assert_eq!(fs::read_to_string(format!("{out}/below/two")).expect("a file"), "of the image", "{option}");
    }
    for path in [&out, &format!("{out}/below")] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("a mode");
    }
}

/// Other files are extracted. A file from which the image is read keeps its names, but a symbolic link
/// to it, which is not followed, is replaced.
#[test]
fn an_image_in_the_target_is_not_replaced() {
    let place = Place::new();
    let mut tree = Tree::new(directory());
    let root = tree.root();
    let names = [&b"image"[..], b"hard", b"soft", b"other"];
    for name in names {
        tree.add(root, name, file("of the image")).expect("a file");
    }
    tree.add(root, b"node", node(NodeKind::Symlink(b"elsewhere".to_vec()))).expect("a link");
    let folder = tree.add(root, b"folder", directory()).expect("a directory");
    tree.add(folder, b"below", file("of the image")).expect("a file");
    place.build(&tree);
    fs::create_dir(place.at("out")).expect("a folder");
    fs::rename(place.at("image"), place.at("out/image")).expect("a rename");
    std::os::unix::fs::symlink("out/image", place.at("image")).expect("a link");
    for name in ["hard", "node", "folder"] {
        fs::hard_link(place.at("out/image"), place.at(&format!("out/{name}"))).expect("a link");
    }
    std::os::unix::fs::symlink("image", place.at("out/soft")).expect("a link");
    fs::write(place.at("out/other"), "old").expect("a file");
    let before = fs::read(place.at("image")).expect("the image");
    let (code, message) = place.extract("out", &["--overwrite"]);
    let what = "the image is read from this file, so it is not replaced (and 3 more files)";
    assert!(code == Some(1) && message.contains(what), "{message}");
    assert!(message.ends_with("failed to extract 4 files\n"), "{message}");
    for name in ["image", "out/image", "out/hard", "out/node", "out/folder"] {
        assert!(fs::read(place.at(name)).expect("the image") == before, "{name}");
    }
    for name in ["out/soft", "out/other"] {
        assert_eq!(fs::read_to_string(place.at(name)).expect("a file"), "of the image", "{name}");
    }
}

/// An ACL that lets user 12 read.
const ACL: &[u8] = b"\x02\0\0\0\x01\0\x07\0\xff\xff\xff\xff\x02\0\x04\0\x0c\0\0\0\x04\0\x05\0\xff\xff\xff\xff\
    \x10\0\x05\0\xff\xff\xff\xff\x20\0\0\0\xff\xff\xff\xff";

/// Attributes that need root are left out and counted in a line; the others are set.
#[test]
fn a_user_who_is_not_root_gets_permitted_attributes() {
    const TEST: &str = "a_user_who_is_not_root_gets_permitted_attributes";
    if !rustix::process::geteuid().is_root() {
        return pagefold_testing::skip_for_good(TEST, "it takes root to become a user");
    }
    let Some([setpriv]) = pagefold_testing::programs(TEST, ["setpriv"]) else { return };
    let place = Place::new();
    let xattr = |name: &str, value: &[u8]| Xattr { name: name.into(), value: value.to_vec() };
    let capability = b"\x01\0\0\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    let mut tree = Tree::new(directory());
    let root = tree.root();
    let xattrs =
        vec![xattr("security.capability", capability), xattr("system.posix_acl_access", ACL), xattr("user.a", b"1")];
    tree.add(root, b"program", Node { xattrs, permissions: 0o750, ..file("x") }).expect("a file");
    for name in [&b"lower"[..], b"upper"] {
        let xattrs = vec![xattr("trusted.overlay.opaque", b"y"), xattr("user.a", b"2")];
        tree.add(root, name, Node { xattrs, ..directory() }).expect("a directory");
    }
    for (name, kind) in [(&b"null"[..], NodeKind::CharDevice(1, 3)), (b"disk", NodeKind::BlockDevice(8, 0))] {
        tree.add(root, name, node(kind)).expect("a device");
    }
    place.build(&tree);
    pagefold_testing::copy_program(env!("CARGO_BIN_EXE_pagefold"), place.at("pagefold"));
    fs::set_permissions(place.0.path(), fs::Permissions::from_mode(0o755)).expect("a mode");
    fs::create_dir(place.at("theirs")).expect("a folder");
    std::os::unix::fs::chown(place.at("theirs"), Some(65_534), Some(65_534)).expect("an owner");
    let as_user = |to: &str, options: &[&str]| {
        let mut command = Command::new(&setpriv);
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", &place.at("pagefold"), "extract"]);
        said(command.args([&place.at("image"), "-C", &place.at(to)]).args(options))
    };
    let (code, message) = as_user("theirs/all", &[]);
    let expected = "pagefold: left out: 3 xattrs (security.capability, trusted.overlay.opaque), 2 device files, owners \
                    of 6 files\n";
    assert_eq!((code, message.as_str()), (Some(0), expected));
    let mut value = [0; 64];
    let mut get = |name: &str, xattr: &str| {
        let len = rustix::fs::getxattr(place.at(name), xattr, &mut value).expect("an xattr");
        value[..len].to_vec()
    };
    assert_eq!(get("theirs/all/program", "user.a"), b"1");
    assert_eq!(get("theirs/all/program", "system.posix_acl_access"), ACL);
    assert_eq!(get("theirs/all/lower", "user.a"), b"2");
    let (code, message) = as_user("theirs/none", &["--no-xattrs", "--no-owners"]);
    assert_eq!((code, message.as_str()), (Some(0), "pagefold: left out: 2 device files\n"));
    // As root, nothing is left out unless asked.
    assert_eq!(place.extract("ours", &["--no-owners"]).1, "pagefold: left out: 2 device files\n");
}

/// Linux changes times that a file system cannot hold, without an error.
#[test]
fn times_that_the_file_system_cannot_hold_are_counted_in_a_line() {
    let place = Place::new();
    let times = [0, 1, -1, 1_000_000_000, 1 << 31, 1 << 34, 1 << 40, -1 << 32, -1 << 40];
    let mut tree = Tree::new(directory());
    let mut names = vec![];
    for (number, mtime_s) in times.into_iter().enumerate() {
        let kinds = [
            ("file", file("text")),
            ("folder", directory()),
            ("link", node(NodeKind::Symlink(b"file".to_vec()))),
            ("pipe", node(NodeKind::Fifo)),
        ];
        for (kind, node) in kinds {
            let name = format!("{kind}-{number}");
            tree.add(tree.root(), name.as_bytes(), Node { mtime_s, ..node }).expect("a new name");
            names.push((format!("out/{name}"), mtime_s));
        }
    }
    place.build(&tree);
    let (status, text) = place.extract("out", &["--no-xattrs"]);
    let is_other = |(name, mtime_s): &&(String, i64)| {
        fs::symlink_metadata(place.at(name)).expect("an extracted file").mtime() != *mtime_s
    };
    let expected = match names.iter().filter(is_other).count() {
        0 => String::new(),
        count => format!("pagefold: left out: times of {count} files, which the file system cannot hold\n"),
    };
    assert_eq!((status, text), (Some(0), expected));
    let (status, text) = place.extract("out", &["--no-xattrs", "--keep"]);
    assert!(status == Some(0) && !text.contains("differ"), "{text}");
}

/// A file with an xattr that no file system here accepts still counts as extracted.
#[test]
fn attributes_that_fail_are_not_files_that_fail() {
    let place = Place::new();
    let mut tree = Tree::new(directory());
    let xattrs = vec![Xattr { name: b"lustre.lov".to_vec(), value: b"value".to_vec() }];
    for name in [b"a", b"b", b"c"] {
        tree.add(tree.root(), name, Node { xattrs: xattrs.clone(), ..file("x") }).expect("a file");
    }
    place.build(&tree);
    let (code, message) = place.extract("out", &[]);
    let lines: Vec<_> = message.lines().collect();
    let [first, last] = lines[..] else { panic!("{message}") };
    assert!(first.contains(&place.at("out/a")) && first.ends_with("(and 2 more files)"), "{message}");
    assert_eq!((code, last), (Some(1), "pagefold: failed to set 3 attributes"));
    assert_eq!(place.extract("without", &["--no-xattrs"]), (Some(0), String::new()));
}

/// A listing of a chain of directories is bounded, although a path of each would grow with the
/// square of their number.
#[test]
fn deep_trees_are_listed_and_checked_within_bounds() {
    const DEPTH: usize = 20_000;
    let place = Place::new();
    let mut tree = Tree::new(directory());
    let mut here = tree.root();
    for _ in 0..DEPTH {
        here = tree.add(here, b"d", directory()).expect("a directory");
    }
    place.build(&tree);
    let listed = pagefold().args(["ls", "-lR", &place.at("image")]).output().expect("the program starts");
    assert_eq!(listed.status.code(), Some(1));
    assert!(listed.stdout.len() < 8 << 20, "{} bytes", listed.stdout.len());
    assert_eq!(listed.stdout.iter().filter(|byte| **byte == b'\n').count(), 2048 + 1);
    let message = String::from_utf8(listed.stderr).expect("text");
    assert!(message.contains("1 directory with a path longer than 4095 bytes not entered"), "{message}");
    let below = format!("{}:{}", place.at("image"), "d/".repeat(DEPTH - 10));
    assert_eq!(output(pagefold().args(["ls", "-R", &below])).lines().count(), 10);
    assert!(output(pagefold().args(["check", &place.at("image")])).starts_with("sound: 20001 inodes"));
}

#[test]
fn a_truncated_image_says_where_it_ends() {
    let place = Place::new();
    let mut tree = Tree::new(directory());
    for number in 0..300 {
        tree.add(tree.root(), format!("file-{number}").as_bytes(), file(&"text ".repeat(number))).expect("a file");
    }
    place.build(&tree);
    let len = fs::metadata(place.at("image")).expect("an image").len();
    let shorter = File::options().write(true).open(place.at("image")).expect("the image");
    for (kept, what) in [
        (len - 5000, format!("the image ends before byte {len}; it has {} bytes", len - 5000)),
        (1200, "the image ends at byte 1200".to_owned()),
        (1100, "the image ends at byte 1100".to_owned()),
        (600, "it ends at byte 600".to_owned()),
        (0, "it ends at byte 0".to_owned()),
    ] {
        shorter.set_len(kept).expect("a shorter image");
        for command in [&["ls", "-l"][..], &["check"], &["info"], &["extract", "-C", "unused"]] {
            let mut pagefold = pagefold();
            pagefold.args(command).arg(place.at("image")).current_dir(place.0.path());
            let (_, message) = said(&mut pagefold);
            assert_eq!(message.matches(&what).count(), 1, "{command:?}: {message}");
        }
    }
}

#[test]
fn a_path_below_an_image_says_how_to_write_it() {
    let place = Place::new();
    place.build(&Tree::new(directory()));
    for (path, advice) in [("image/bin/sh", "image:/bin/sh"), ("image/", "image:/")] {
        for command in ["ls", "cat", "info", "check"] {
            let (code, message) = said(pagefold().args([command, &place.at(path)]));
            assert_eq!(code, Some(1));
            assert!(message.contains(&format!("write {}", place.at(advice))), "{command} {path}: {message}");
        }
    }
}

#[test]
fn rights_are_shown_as_by_ls() {
    let place = Place::new();
    let mut tree = Tree::new(directory());
    for (name, permissions) in [(&b"a"[..], 0o4755), (b"b", 0o640), (b"c", 0o2700)] {
        tree.add(tree.root(), name, Node { permissions, ..file("x") }).expect("a file");
    }
    tree.add(tree.root(), b"tmp", Node { permissions: 0o1777, ..directory() }).expect("a directory");
    place.build(&tree);
    let listed = output(pagefold().args(["ls", "-l", &place.at("image")]));
    let found: Vec<_> = listed.lines().map(|line| &line[..10]).collect();
    assert_eq!(found, ["-rwsr-xr-x", "-rw-r-----", "-rwx--S---", "drwxrwxrwt"]);
}

/// A named pipe as second source delays the build between the scan of the first source and the
/// reading of its files.
#[test]
fn a_live_tree_is_packed_with_status_1_and_the_names_of_what_changed() {
    let place = Place::new();
    fs::create_dir_all(place.at("tree/gone")).expect("a folder");
    for name in ["stays", "vanishes", "shrinks", "gone/file"] {
        fs::write(place.at(&format!("tree/{name}")), "some text\n".repeat(1000)).expect("a file");
    }
    let pipe = place.at("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .expect("a pipe");
    let mut command = pagefold();
    command.args(["pack", &place.at("tree"), &pipe, "-o", &place.at("image"), "--skip-unreadable", "--verify"]);
    let child = command.stderr(std::process::Stdio::piped()).spawn().expect("the program starts");
    // This waits until the program opens the pipe.
    let mut end = File::options().write(true).open(&pipe).expect("the pipe");
    fs::remove_file(place.at("tree/vanishes")).expect("a file");
    fs::remove_dir_all(place.at("tree/gone")).expect("a folder");
    fs::write(place.at("tree/shrinks"), "some").expect("a file");
    // An empty archive.
    std::io::Write::write_all(&mut end, &[0; 10_240]).expect("the pipe");
    drop(end);
    let output_ = child.wait_with_output().expect("the program ends");
    let message = String::from_utf8(output_.stderr).expect("text");
    assert_eq!(output_.status.code(), Some(1), "{message}");
    for (name, what) in [
        ("vanishes", "vanished, and was left out"),
        ("gone/file", "vanished, and was left out"),
        ("shrinks", "became shorter; the rest is zeros"),
    ] {
        let line = format!("warning: {}: {what}\n", place.at(&format!("tree/{name}")));
        assert!(message.contains(&line), "{message}");
    }
    assert!(message.contains("image: written, but 3 files of the source changed while packing\n"), "{message}");
    assert!(Path::new(&place.at("image")).exists());
    assert_eq!(output(pagefold().args(["ls", "-R", &place.at("image")])), "gone\nshrinks\nstays\n");
    let content = output(pagefold().args(["cat", &format!("{}:shrinks", place.at("image"))]));
    assert!(content.len() == 10_000 && content.starts_with("some\0") && content.ends_with('\0'));
}

//! Layers that overlayfs wrote, and layers that it reads.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use pagefold_erofs::{Image, Layer, NodeId, NodeKind, ScanOptions, Tree, Whiteouts, Xattr};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use rustix::fs::XattrFlags;

use crate::layers::{Model, Op, Overlay, apply, built, directory, file, is_directory, layer, member, ops};
use crate::tools::{Mount, Small, assert_same, skip, tree_of_directory, tree_of_image};

/// Returns the paths of whiteouts, and those of them that are in an opaque directory or below one.
fn whiteouts(tree: &Tree) -> (Vec<String>, Vec<String>) {
    fn walk(tree: &Tree, id: NodeId, path: &str, hidden: bool, all: &mut (Vec<String>, Vec<String>)) {
        let node = tree.node(id);
        if matches!(node.kind, NodeKind::CharDevice(0, 0)) {
            all.0.push(path.to_owned());
            if hidden {
                all.1.push(path.to_owned());
            }
        }
        let is_opaque = |xattr: &Xattr| xattr.name == b"trusted.overlay.opaque" && xattr.value == b"y";
        let hidden = hidden || node.xattrs.iter().any(is_opaque);
        if let NodeKind::Directory(names) = &node.kind {
            for (name, child) in names {
                walk(tree, *child, &format!("{path}/{}", String::from_utf8_lossy(name)), hidden, all);
            }
        }
    }
    let mut all = Default::default();
    walk(tree, tree.root(), "", false, &mut all);
    all
}

#[test]
fn whiteouts_that_hide_nothing_are_left_out() {
    let keep = |members: &[Vec<u8>]| whiteouts(&Layer::stack([layer(members)], Whiteouts::Keep).unwrap()).0;
    let opaque = [directory("c", 0o755), file("c/.wh..wh..opq", 0), file("c/.wh.a", 0), file("c/new", 0o644)];
    assert!(keep(&opaque).is_empty());
    let again = [file(".wh.t", 0), directory("t", 0o755), directory("t/sub", 0o755), file("t/sub/.wh.keep", 0)];
    assert!(keep(&again).is_empty());
    assert_eq!(keep(&[directory("d", 0o755), file("d/.wh.a", 0), member(b'3', "d/b", "", 0)]), ["/d/a", "/d/b"]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn each_whiteout_can_hide_something(layers in prop::collection::vec(ops(), 1..4)) {
        let (mut model, mut next) = (Model::new(), 0);
        let layers: Vec<_> = layers.iter().map(|ops| layer(&apply(&mut model, ops, &mut next, false))).collect();
        for first in 0..layers.len() {
            let Ok(tree) = Layer::stack(layers[first..].to_vec(), Whiteouts::Keep) else { continue };
            prop_assert_eq!(whiteouts(&tree).1, Vec::<String>::new());
        }
    }
}

/// Mounts images as an overlay, the first at the bottom, and compares what it shows.
fn assert_mounted(expected: &crate::tools::Tree, images: &[PathBuf], what: &str) -> Result<(), String> {
    let mounts = images.iter().map(|image| Mount::new(image)).collect::<Result<Vec<_>, _>>()?;
    let paths: Vec<_> = mounts.iter().map(Mount::path).collect();
    let overlay = Overlay::new(&paths)?;
    // A hard link whose other names are replaced counts them in the mount, but not in the tree.
    let (mut expected, mut found) = (expected.clone(), tree_of_directory(overlay.path()));
    for tree in [&mut expected, &mut found] {
        tree.iter_mut().for_each(|(path, facts)| facts.forget_links(path));
    }
    assert_same(&expected, &found, what);
    Ok(())
}

/// Names that `ls` shows and `stat` does not find would fail here.
#[test]
fn images_of_generated_layers_equal_the_overlayfs_mount() {
    const TEST: &str = "images_of_generated_layers_equal_the_overlayfs_mount";
    let mut runner = TestRunner::deterministic();
    let strategy = prop::collection::vec(ops(), 2..4);
    for case in 0..15 {
        let folder = tempfile::tempdir().unwrap();
        let (mut model, mut next) = (Model::new(), 0);
        let layers: Vec<_> = strategy.new_tree(&mut runner).unwrap().current();
        let mut made = Vec::new();
        for (number, ops) in layers.iter().enumerate() {
            // overlayfs cannot link to a file of another layer. It lists a whiteout in a directory
            // that no layer below has.
            let is_possible = |path: &str, op: &Op| match op {
                Op::Link(_) => false,
                Op::Whiteout => path.rsplit_once('/').is_none_or(|(folder, _)| is_directory(&model, folder)),
                _ => true,
            };
            let ops: Vec<_> = ops.iter().filter(|(path, op)| is_possible(path, op)).cloned().collect();
            let root = [directory("./", 0o755)];
            let mut members = apply(&mut model, &ops, &mut next, true);
            if number == 0 {
                // Nothing is below the lowest, so its whiteouts hide nothing.
                members.retain(|member| !member[..100].windows(4).any(|part| part == b".wh."));
            }
            made.push(layer(&[&root[..], &members].concat()));
        }
        let tree = Layer::stack(made.clone(), Whiteouts::Apply).unwrap();
        let expected = tree_of_image(&Image::open_path(&built(folder.path(), "root", &tree)).unwrap());
        let images: Vec<_> = (made.into_iter().enumerate())
            .map(|(number, layer)| {
                let tree = Layer::stack([layer], Whiteouts::Keep).unwrap();
                built(folder.path(), &number.to_string(), &tree)
            })
            .collect();
        if let Err(why) = assert_mounted(&expected, &images, &format!("case {case}: {layers:?}")) {
            return skip(TEST, &why);
        }
    }
}

/// An overlayfs mount of directories that can be written to, until dropped.
struct Writable {
    at: tempfile::TempDir,
}

impl Writable {
    /// The first of `lower` is the lowest.
    fn new(lower: &[PathBuf], upper: &Path, options: &str) -> Result<Self, String> {
        let at = tempfile::tempdir().unwrap();
        let work = upper.with_extension("work");
        for folder in [upper, &work] {
            fs::create_dir_all(folder).unwrap();
        }
        let lower: Vec<_> = lower.iter().rev().map(|layer| layer.display().to_string()).collect();
        let options = format!(
            "xino=on,index=off,lowerdir={},upperdir={},workdir={},{options}",
            lower.join(":"),
            upper.display(),
            work.display()
        );
        let mount = Command::new("mount").args(["-t", "overlay", "overlay", "-o", &options]).arg(at.path()).output();
        match mount {
            Ok(output) if output.status.success() => Ok(Self { at }),
            Ok(output) => Err(format!("no overlayfs: {}", String::from_utf8_lossy(&output.stderr))),
            Err(error) => Err(format!("mount: {error}")),
        }
    }
}

impl Drop for Writable {
    fn drop(&mut self) {
        // The directories are used for another mount.
        let unmounted = Command::new("umount").arg(self.at.path()).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            let _ = Command::new("umount").arg("-l").arg(self.at.path()).status();
        }
    }
}

/// Makes changes below `root` that depend on `seed`. Xattrs are in a namespace.
fn change(root: &Path, namespace: &str, seed: u64, count: usize) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for number in 0..count {
        let mut path = || {
            let names: Vec<_> = (0..=next(3)).map(|_| ["a", "b", "c", "d"][next(4) as usize]).collect();
            root.join(names.join("/"))
        };
        let (one, two) = (path(), path());
        // Changes that are impossible in the present tree are left out.
        match next(9) {
            0 | 1 => drop(fs::create_dir_all(&one)),
            2 => drop(fs::write(&one, format!("{number} of {seed}"))),
            3 | 4 => drop(fs::rename(&one, &two)),
            5 if one.is_dir() && !one.is_symlink() => drop(fs::remove_dir_all(&one)),
            5 => drop(fs::remove_file(&one)),
            6 if !one.is_symlink() => {
                let mode = 0o600 | next(0o1000) as u32 | if one.is_dir() { 0o700 } else { 0 };
                drop(fs::set_permissions(&one, fs::Permissions::from_mode(mode)));
            }
            6 => drop(symlink(format!("to-{number}"), &one)),
            7 => drop(fs::hard_link(&one, &two)),
            _ if !one.is_symlink() => {
                // The name of another overlayfs is escaped in the directories.
                for name in ["overlay.opaque", "note", "overlay.overlay.origin"] {
                    let _ = rustix::fs::setxattr(&one, format!("{namespace}.{name}"), b"y", XattrFlags::empty());
                }
            }
            _ => {}
        }
    }
}

/// Returns whether a file below `folder` has the xattr.
fn holds_xattr(folder: &Path, name: &str) -> bool {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).any(|path| {
        rustix::fs::lgetxattr(&path, name, &mut [0; 300][..]).is_ok()
            || path.is_dir() && !path.is_symlink() && holds_xattr(&path, name)
    })
}

/// Returns a layer of each directory.
fn scanned(folders: &[PathBuf], options: &ScanOptions) -> Vec<Layer> {
    folders.iter().map(|folder| Layer::scan(folder, options).unwrap()).collect()
}

/// Directories that overlayfs wrote hold what the mount showed, with directories that it moved and
/// files whose content it left below.
#[test]
fn directories_that_overlayfs_changed_are_as_it_shows_them() {
    const TEST: &str = "directories_that_overlayfs_changed_are_as_it_shows_them";
    let small = match Small::new(65_536) {
        Ok(small) => small,
        Err(why) => return skip(TEST, &why),
    };
    let (mut moved, mut left) = (0, 0);
    for seed in 0..40 {
        let (namespace, options) = match seed % 4 {
            3 => ("user", "userxattr"),
            _ => ("trusted", "redirect_dir=on,metacopy=on"),
        };
        let folder = small.path().join(seed.to_string());
        let lower = folder.join("lower");
        fs::create_dir_all(&lower).unwrap();
        change(&lower, namespace, 1000 + seed, 40);
        let mut layers = vec![lower];
        for number in 0..2u64 {
            let upper = folder.join(format!("upper-{number}"));
            let mount = match Writable::new(&layers, &upper, options) {
                Ok(mount) => mount,
                Err(why) => return skip(TEST, &why),
            };
            change(mount.at.path(), namespace, seed * 2 + number, 25);
            let mut expected = tree_of_directory(mount.at.path());
            drop(mount);
            layers.push(upper);
            let tree = Layer::stack(scanned(&layers, &ScanOptions::default()), Whiteouts::Apply);
            let tree = tree.unwrap_or_else(|error| panic!("{seed}: {error}"));
            let image = built(&folder, &format!("image-{number}"), &tree);
            let mut found = tree_of_image(&Image::open_path(&image).unwrap());
            // Copying a file up separates it from the other names that it has below.
            for tree in [&mut expected, &mut found] {
                tree.iter_mut().for_each(|(path, facts)| facts.forget_links(path));
            }
            assert_same(&expected, &found, &format!("seed {seed}, layer {number}"));
            let holds = |name: &str| holds_xattr(layers.last().unwrap(), name);
            moved += usize::from(holds("trusted.overlay.redirect"));
            left += usize::from(holds("trusted.overlay.metacopy"));
        }
    }
    assert!(moved > 0 && left > 0, "{moved} layers with moved directories, {left} with content below");
}

/// The image of a layer depends on the changes, and not on the mount.
#[test]
fn equal_changes_give_equal_layers() {
    const TEST: &str = "equal_changes_give_equal_layers";
    let small = match Small::new(65_536) {
        Ok(small) => small,
        Err(why) => return skip(TEST, &why),
    };
    let options = ScanOptions { mtime_s: Some(1), ..ScanOptions::default() };
    for seed in 0..15 {
        let folder = small.path().join(seed.to_string());
        let mut images = Vec::new();
        let mut whole = Vec::new();
        for name in ["one", "two"] {
            let here = folder.join(name);
            let lower = here.join("lower");
            fs::create_dir_all(&lower).unwrap();
            change(&lower, "trusted", 1000 + seed, 40);
            let upper = here.join("upper");
            let mount = match Writable::new(std::slice::from_ref(&lower), &upper, "redirect_dir=off,metacopy=off") {
                Ok(mount) => mount,
                Err(why) => return skip(TEST, &why),
            };
            change(mount.at.path(), "trusted", seed, 25);
            let mut expected = tree_of_directory(mount.at.path());
            drop(mount);
            expected.values_mut().for_each(|facts| facts.set_mtime(1));
            let layered = Layer::stack(scanned(std::slice::from_ref(&upper), &options), Whiteouts::Keep).unwrap();
            let layered = built(&here, "layer", &layered);
            let base = built(&here, "base", &Tree::scan(&lower, &options).unwrap());
            if name == "one"
                && let Err(why) = assert_mounted(&expected, &[base, layered.clone()], &format!("seed {seed}"))
            {
                return skip(TEST, &why);
            }
            let merged = Layer::stack(scanned(&[lower, upper.clone()], &options), Whiteouts::Apply).unwrap();
            let alone = Tree::scan(&upper, &options).unwrap();
            let merged = [built(&here, "merged", &merged), built(&here, "alone", &alone)];
            images.push(fs::read(layered).unwrap());
            whole.push(merged.map(|path| fs::read(path).unwrap()));
        }
        assert!(images[0] == images[1], "seed {seed}: the layers differ");
        assert!(whole[0] == whole[1], "seed {seed}: the merged images differ");
        for name in [&b"overlay.origin"[..], b"overlay.impure"] {
            let escaped = [b"overlay.", name].concat();
            let count = |name: &[u8]| images[0].windows(name.len()).filter(|part| *part == name).count();
            assert_eq!(count(name), count(&escaped), "seed {seed}");
        }
    }
}

/// Sets an xattr of a file in a layer.
fn marked(mut tree: Tree, path: &[&str], name: &str, value: &str) -> Layer {
    let node = path.iter().try_fold(tree.root(), |node, name| tree.child(node, name.as_bytes())).unwrap();
    tree.node_mut(node).xattrs.push(Xattr { name: name.into(), value: value.into() });
    tree.into()
}

#[test]
fn unknown_parts_that_overlayfs_left_elsewhere_are_refused() {
    let base = || layer(&[directory("a", 0o755), file("a/f", 0o644), directory("a/s", 0o700), file("g", 0o600)]);
    let upper = |members: &[Vec<u8>]| layer(members).into_tree().unwrap();
    let stacked = |layers: Vec<Layer>, whiteouts| Layer::stack(layers, whiteouts).map_err(|error| error.to_string());
    let moved = |redirect: &str| {
        let tree = upper(&[member(b'3', "a", "", 0), directory("n", 0o711), file("n/new", 0o644)]);
        marked(tree, &["n"], "trusted.overlay.redirect", redirect)
    };
    for redirect in ["a", "/a"] {
        let tree = stacked(vec![base(), moved(redirect)], Whiteouts::Apply).unwrap();
        let n = tree.child(tree.root(), b"n").unwrap();
        assert!([&b"f"[..], b"s", b"new"].iter().all(|name| tree.child(n, name).is_some()));
        assert!(tree.child(tree.root(), b"a").is_none() && tree.node(n).xattrs.is_empty());
        assert_eq!(tree.node(n).permissions, 0o711);
        // The base may have more of it.
        let error = stacked(vec![base(), moved(redirect)], Whiteouts::Keep).unwrap_err();
        assert!(error.starts_with("the.tar: n: overlayfs keeps a part of it in a layer below"), "{error}");
        assert!(error.ends_with("mount the layers and pack the mounted tree"), "{error}");
        let error = moved(redirect).into_tree().unwrap_err().to_string();
        assert!(error.starts_with("the.tar: n: overlayfs keeps a part of it"), "{error}");
    }
    for wrong in ["none", "/none", "/a/f", "g", "/", "", "a/s", "/a/..", "/a/"] {
        let error = stacked(vec![base(), moved(wrong)], Whiteouts::Apply).unwrap_err();
        assert!(error.contains(&format!("at '{wrong}', but no source before this one has that")), "{wrong}: {error}");
    }
    // Two directories cannot be the same one, nor can one be below itself.
    let mut first = upper(&[member(b'3', "a", "", 0), directory("m", 0o755), directory("n", 0o755)]);
    for name in [b"m", b"n"] {
        let id = first.child(first.root(), name).unwrap();
        first.node_mut(id).xattrs.push(Xattr { name: b"trusted.overlay.redirect".to_vec(), value: b"/a".to_vec() });
    }
    let error = stacked(vec![base(), first.into()], Whiteouts::Apply).unwrap_err();
    assert!(error.contains("was moved twice"), "{error}");
    let tree = upper(&[directory("a", 0o755), directory("a/s", 0o755), directory("a/s/x", 0o755)]);
    let error =
        stacked(vec![base(), marked(tree, &["a", "s", "x"], "trusted.overlay.redirect", "/a")], Whiteouts::Apply);
    assert!(error.unwrap_err().contains("still in place"));
    // A file whose content is below.
    let tree = upper(&[file("g", 0o640)]);
    let copied = marked(tree, &["g"], "trusted.overlay.metacopy", "");
    let tree = stacked(vec![base(), copied.clone()], Whiteouts::Apply).unwrap();
    assert_eq!(tree.node(tree.child(tree.root(), b"g").unwrap()).permissions, 0o640);

    for layers in [vec![copied.clone()], vec![layer(&[directory("g", 0o755)]), copied]] {
        let error = stacked(layers, Whiteouts::Apply).unwrap_err();
        assert!(error.contains("(xattr overlay.metacopy), at 'g', but no source before this one has that"), "{error}");
    }
}

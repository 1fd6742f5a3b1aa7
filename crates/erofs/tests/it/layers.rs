//! Container layers: stacked as in a simple model, and as by overlayfs.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Command;

use pagefold_erofs::{BuildOptions, Image, Layer, NodeId, NodeKind, ScanOptions, Tree, WarningKind, Whiteouts, build};
use proptest::prelude::*;
use rustix::fs::{CWD, FileType, Mode, XattrFlags};

use crate::tools::{Mount, assert_same, run, skip, tree_of_directory, tree_of_image};

/// Returns a member of an archive.
pub(crate) fn member(kind: u8, path: &str, link: &str, mode: u32) -> Vec<u8> {
    let mut header = tar::Header::new_ustar();
    header.as_mut_bytes()[..path.len()].copy_from_slice(path.as_bytes());
    header.as_mut_bytes()[157..157 + link.len()].copy_from_slice(link.as_bytes());
    header.as_mut_bytes()[156] = kind;
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1);
    header.set_size(0);
    header.set_device_major(0).unwrap();
    header.set_device_minor(0).unwrap();
    header.set_cksum();
    header.as_bytes().to_vec()
}

pub(crate) fn directory(path: &str, mode: u32) -> Vec<u8> {
    member(b'5', path, "", mode)
}

pub(crate) fn file(path: &str, mode: u32) -> Vec<u8> {
    member(b'0', path, "", mode)
}

pub(crate) fn layer(members: &[Vec<u8>]) -> Layer {
    let mut archive = tempfile::tempfile().unwrap();
    archive.write_all(&[&members.concat()[..], &[0; 1024]].concat()).unwrap();
    Layer::from_tar(archive, Path::new("the.tar"), &ScanOptions::default()).unwrap()
}

/// The properties that these tests compare: the kind, the mode, the first path of the same file,
/// and whether it is opaque.
type Facts = BTreeMap<String, (char, u16, String, bool)>;

fn facts(tree: &Tree) -> Facts {
    fn walk(tree: &Tree, id: NodeId, path: &str, first: &mut BTreeMap<NodeId, String>, facts: &mut Facts) {
        let node = tree.node(id);
        let kind = match &node.kind {
            NodeKind::Directory(_) => 'd',
            NodeKind::Regular { .. } => 'f',
            NodeKind::Symlink(_) => 'l',
            NodeKind::CharDevice(0, 0) => 'w',
            _ => '?',
        };
        let same_as = first.entry(id).or_insert_with(|| path.to_owned()).clone();
        let opaque = node.xattrs.iter().any(|xattr| xattr.name == b"trusted.overlay.opaque");
        facts.insert(path.to_owned(), (kind, node.permissions, same_as, opaque));
        if let NodeKind::Directory(names) = &node.kind {
            for (name, child) in names {
                walk(tree, *child, &format!("{path}/{}", String::from_utf8_lossy(name)), first, facts);
            }
        }
    }
    let mut found = Facts::new();
    walk(tree, tree.root(), "", &mut BTreeMap::new(), &mut found);
    found
}

fn stack<const N: usize>(layers: [Layer; N], whiteouts: Whiteouts) -> Facts {
    facts(&Layer::stack(layers, whiteouts).unwrap())
}

/// Returns the paths of layers stacked into a container's root. Directories end with a slash.
fn paths<const N: usize>(layers: [Layer; N]) -> Vec<String> {
    let found = stack(layers, Whiteouts::Apply);
    let path = |(path, (kind, ..)): (&String, &(char, u16, String, bool))| match kind {
        'd' => format!("{path}/"),
        _ => path.clone(),
    };
    found.iter().skip(1).map(path).collect()
}

fn base() -> Layer {
    layer(&[
        directory("etc", 0o755),
        file("etc/one", 0o644),
        file("etc/two", 0o644),
        directory("usr", 0o755),
        directory("usr/lib", 0o711),
        file("usr/lib/a", 0o644),
        member(b'1', "usr/lib/b", "usr/lib/a", 0o644),
        member(b'2', "lib", "usr/lib", 0o777),
    ])
}

#[test]
fn whiteouts_delete_below_their_layer_and_nowhere_else() {
    // In either order, the layer's own file stays.
    for members in [[file("etc/.wh.one", 0), file("etc/one", 0o600)], [file("etc/one", 0o600), file("etc/.wh.one", 0)]]
    {
        let found = stack([base(), layer(&members)], Whiteouts::Apply);
        assert_eq!(found["/etc/one"].1, 0o600);
        // A directory that the layer does not describe is unchanged.
        assert_eq!(found["/etc"].1, 0o755);
    }
    let gone = ["/etc/", "/etc/two", "/lib", "/usr/"];
    assert_eq!(paths([base(), layer(&[file("etc/.wh.one", 0), file("usr/.wh.lib", 0), file(".wh.none", 0)])]), gone);
    // A directory that is deleted and created again contains only the layer's files.
    let again = [directory("etc", 0o700), file("etc/new", 0o600), file(".wh.etc", 0)];
    assert_eq!(paths([base(), layer(&again), layer(&[file(".wh.usr", 0), file(".wh.lib", 0)])]), ["/etc/", "/etc/new"]);
    let opaque = [file("etc/new", 0o600), file("etc/.wh..wh..opq", 0), file(".wh..wh.plnk", 0)];
    let found = stack([base(), layer(&opaque)], Whiteouts::Apply);
    assert!(found.contains_key("/etc/new") && !found.contains_key("/etc/one") && found.contains_key("/usr/lib/a"));
    assert!(!found.contains_key("/.wh..wh.plnk"));
    assert_eq!(paths([base(), layer(&[file(".wh..wh..opq", 0), file("alone", 0)])]), ["/alone"]);
    // There is nothing to delete below a file.
    for members in [vec![file("a/.wh.b", 0)], vec![file("a/b/.wh.c", 0), file("a/.wh..wh.plnk", 0)]] {
        assert_eq!(paths([layer(&[file("a", 0o600)]), layer(&members)]), ["/a"]);
    }
    for members in [vec![directory("a", 0o700), file("a/.wh.b", 0)], vec![file("a/.wh..wh..opq", 0)]] {
        assert_eq!(paths([layer(&[file("a", 0o600)]), layer(&members)]), ["/a/"]);
    }
    // The lowest layer has nothing to delete.
    assert_eq!(paths([layer(&[file(".wh.a", 0), file("b/.wh..wh..opq", 0)])]), ["/b/"]);
}

#[test]
fn files_that_overlayfs_deletes_are_deleted() {
    let mut upper = Layer::stack([layer(&[directory("etc", 0o700)])], Whiteouts::Apply).unwrap();
    let etc = upper.child(upper.root(), b"etc").unwrap();
    let mark = |name: &str, value: &[u8]| pagefold_erofs::Xattr { name: name.into(), value: value.into() };
    for (name, value, left) in [
        ("trusted.overlay.opaque", b"y", false),
        ("user.overlay.opaque", b"y", false),
        ("trusted.overlay.opaque", b"x", true),
        ("user.other.opaque", b"y", true),
    ] {
        upper.node_mut(etc).xattrs = vec![mark(name, value)];
        let found = Layer::stack([base(), upper.clone().into()], Whiteouts::Apply).unwrap();
        let found_etc = found.child(found.root(), b"etc").unwrap();
        assert_eq!(found.child(found_etc, b"one").is_some(), left, "{name}");
        assert_eq!(found.node(found_etc).xattrs.is_empty(), name.contains("overlay"), "{name}");
        assert_eq!(found.node(found_etc).permissions, 0o700);
    }
    upper.node_mut(etc).xattrs = vec![mark("trusted.overlay.redirect", b"/usr")];
    let error = Layer::stack([base(), upper.clone().into()], Whiteouts::Apply).unwrap_err().to_string();
    assert!(
        error.starts_with("the.tar: etc: its xattr overlay.redirect names 'usr', which is still in place"),
        "{error}"
    );
    let whiteouts = layer(&[member(b'3', "etc/one", "", 0), member(b'3', "usr", "", 0)]);
    assert_eq!(paths([base(), whiteouts]), ["/etc/", "/etc/two", "/lib"]);
}

#[test]
fn later_sources_replace_and_directories_merge() {
    let upper = [directory("etc", 0o700), file("usr", 0o600), directory("etc/one", 0o701), file("lib", 0o640)];
    let found = stack([base(), layer(&upper)], Whiteouts::Apply);
    let kinds: Vec<_> = found.iter().skip(1).map(|(path, facts)| (&path[..], facts.0, facts.1)).collect();
    let expected = [
        ("/etc", 'd', 0o700),
        ("/etc/one", 'd', 0o701),
        ("/etc/two", 'f', 0o644),
        ("/lib", 'f', 0o640),
        ("/usr", 'f', 0o600),
    ];
    assert_eq!(kinds, expected);
    // One name of a hard link is replaced.
    let found = stack([base(), layer(&[file("usr/lib/a", 0o600)])], Whiteouts::Apply);
    assert_eq!((found["/usr/lib/a"].1, found["/usr/lib/b"].1), (0o600, 0o644));
    // A hard link may refer to a file of a layer below, through a path with symbolic links, even if
    // this layer deletes that file.
    let links = [member(b'1', "c", "lib/a", 0), file("usr/lib/.wh.a", 0)];
    let found = stack([base(), layer(&links)], Whiteouts::Apply);
    assert_eq!((&found["/c"].2[..], &found["/usr/lib/b"].2[..]), ("/c", "/c"));
    assert!(!found.contains_key("/usr/lib/a"));
    for (target, what) in
        [("none", "a file that is neither"), ("usr/lib", "a directory"), ("usr/none/a", "a file that")]
    {
        let error = Layer::stack([base(), layer(&[member(b'1', "c", target, 0)])], Whiteouts::Apply).unwrap_err();
        assert!(error.to_string().starts_with(&format!("the.tar: c: it is a hard link to {what}")), "{error}");
    }
}

/// As in containerd; nothing leads out of the tree.
#[test]
fn links_of_layers_below_are_followed_where_a_layer_only_goes_through() {
    let through = [file("lib/new", 0o600), file("lib/.wh.a", 0)];
    assert_eq!(
        paths([base(), layer(&through)]),
        ["/etc/", "/etc/one", "/etc/two", "/lib", "/usr/", "/usr/lib/", "/usr/lib/b", "/usr/lib/new"]
    );
    // A directory that the layer describes replaces the link.
    let found = stack([base(), layer(&[directory("lib", 0o700), file("lib/new", 0o600)])], Whiteouts::Apply);
    assert!(found.contains_key("/lib/new") && !found.contains_key("/usr/lib/new"));
    for (link, expected) in [
        ("../../../usr", "/usr/new"),
        ("/etc/../usr/", "/usr/new"),
        ("/not/yet", "/not/yet/new"),
        ("../../up", "/up/new"),
        (".", "/new"),
        ("etc", "/etc/new"),
    ] {
        let links = layer(&[member(b'2', "link", link, 0o777), directory("etc", 0o755)]);
        let found = stack([links, layer(&[directory("usr", 0o755), file("link/new", 0o600)])], Whiteouts::Apply);
        assert!(found.contains_key(expected) && found["/link"].0 == 'l', "{link}: {found:?}");
    }
    for (link, why) in [("link", "a loop"), ("usr/lib/a", "a file"), ("usr/lib/a/x", "below a file")] {
        let links = layer(&[member(b'2', "link", link, 0o777)]);
        let result = Layer::stack([base(), links, layer(&[file("link/new", 0o600)])], Whiteouts::Apply);
        let error = result.expect_err(why).to_string();
        assert!(error.starts_with("the.tar: link: a layer below has a symbolic link there"), "{error}");
    }
}

#[test]
fn whiteouts_that_name_nothing_are_refused() {
    for name in [".wh.", "etc/.wh..", "etc/.wh..."] {
        let error = Layer::stack([layer(&[file(name, 0)])], Whiteouts::Apply).unwrap_err().to_string();
        assert_eq!(error, format!("the.tar: {name}: it is a whiteout of an invalid name"));
    }
}

#[test]
fn whiteouts_of_a_single_archive_stay_files_and_are_counted() {
    let members = [file("etc/.wh.one", 0o644), file("etc/.wh..wh..opq", 0o644), file("etc/.whatever", 0o644)];
    let tree = layer(&members).into_tree().unwrap();
    assert_eq!(facts(&tree).len(), 5);
    let [warning] = &tree.warnings()[..] else { panic!("{:?}", tree.warnings()) };
    assert_eq!((warning.kind, warning.count), (WarningKind::WhiteoutFile, 2));
    assert_eq!(warning.examples.len(), 2);
    // An undescribed directory hides the mode of those below it.
    let tree = Layer::stack([layer(&members)], Whiteouts::Keep).unwrap();
    let found: Vec<_> = tree.warnings().iter().map(|warning| (warning.kind, warning.count)).collect();
    assert_eq!(found, [(WarningKind::UndescribedDirectory, 2)]);
    assert_eq!(tree.warnings()[0].examples, ["the.tar: etc", "the.tar: /"]);
    let tree = Layer::stack([layer(&[directory("./", 0o755), file(".wh..wh..opq", 0)])], Whiteouts::Keep).unwrap();
    let found: Vec<_> = tree.warnings().iter().map(|warning| (warning.kind, warning.count)).collect();
    assert_eq!(found, [(WarningKind::OpaqueRoot, 1)]);
}

#[derive(Clone, Debug)]
pub(crate) enum Op {
    Directory,
    File,
    Link(String),
    Whiteout,
    Opaque,
}

/// Members of a layer: paths of up to three names, and their operations.
pub(crate) fn ops() -> impl Strategy<Value = Vec<(String, Op)>> {
    let path = || prop::collection::vec("[abc]", 1..4).prop_map(|names| names.join("/"));
    let op = prop_oneof![
        3 => Just(Op::Directory),
        3 => Just(Op::File),
        2 => path().prop_map(Op::Link),
        2 => Just(Op::Whiteout),
        1 => Just(Op::Opaque),
    ];
    prop::collection::vec((path(), op), 0..12)
}

/// A path in the model: a directory or a file, its mode, and the file's identity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Entry {
    directory: bool,
    mode: u32,
    file: u32,
}

pub(crate) type Model = BTreeMap<String, Entry>;

pub(crate) fn is_directory(model: &Model, path: &str) -> bool {
    model.get(path).is_some_and(|entry| entry.directory)
}

fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(at, _)| &path[..at])
}

fn remove(model: &mut Model, path: &str) {
    let below = format!("{path}/");
    model.retain(|other, _| other != path && !other.starts_with(&below));
}

/// Removes a layer's file at a path, including whiteouts below it.
fn replace(own: &mut Model, deleted: &mut Vec<String>, opaque: &mut Vec<String>, path: &str) {
    let below = format!("{path}/");
    remove(own, path);
    deleted.retain(|other| !other.starts_with(&below));
    opaque.retain(|other| other != path && !other.starts_with(&below));
}

/// Builds an archive of the valid members and applies it to the model by the rules of OCI layers.
pub(crate) fn apply(model: &mut Model, ops: &[(String, Op)], next: &mut u32, describes_all: bool) -> Vec<Vec<u8>> {
    let (mut members, mut own) = (Vec::new(), Model::new());
    let mut described: BTreeMap<String, bool> = BTreeMap::new();
    let (mut deleted, mut opaque) = (Vec::new(), Vec::new());
    let mut new = || {
        *next += 1;
        (*next, *next & 0o777)
    };
    for (path, op) in ops {
        let in_file =
            |own: &Model, path: &str| ancestors(path).any(|above| own.get(above).is_some_and(|e| !e.directory));
        let is_directory = own.get(path).is_some_and(|entry| entry.directory);
        if in_file(&own, path) || matches!(op, Op::Opaque) && own.contains_key(path) && !is_directory {
            continue;
        }
        let linked = match op {
            Op::Link(target) => match own.get(target).or_else(|| model.get(target)) {
                Some(entry) if !entry.directory && target != path => Some(*entry),
                _ => continue,
            },
            _ => None,
        };
        let above: Vec<&str> = match op {
            Op::Opaque => ancestors(path).chain([&path[..]]).collect(),
            _ => ancestors(path).collect(),
        };
        for above in above {
            if !own.contains_key(above) {
                let mode = if describes_all { new().1 } else { 0o755 };
                own.insert(above.to_owned(), Entry { directory: true, mode, file: 0 });
                described.insert(above.to_owned(), describes_all);
                if describes_all {
                    members.push(directory(above, mode));
                }
            }
        }
        let (folder, name) = path.rsplit_once('/').map_or(("", &path[..]), |(folder, name)| (folder, name));
        let in_folder = |name: &str| if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") };
        match op {
            Op::Directory => {
                let (_, mode) = new();
                own.insert(path.clone(), Entry { directory: true, mode, file: 0 });
                described.insert(path.clone(), true);
                members.push(directory(path, mode));
            }
            Op::File => {
                let (id, mode) = new();
                replace(&mut own, &mut deleted, &mut opaque, path);
                own.insert(path.clone(), Entry { directory: false, mode, file: id });
                members.push(file(path, mode));
            }
            Op::Link(target) => {
                let Some(entry) = linked else { continue };
                replace(&mut own, &mut deleted, &mut opaque, path);
                own.insert(path.clone(), entry);
                members.push(member(b'1', path, target, 0));
            }
            Op::Whiteout => {
                deleted.push(path.clone());
                members.push(file(&in_folder(&format!(".wh.{name}")), 0));
            }
            Op::Opaque => {
                opaque.push(path.clone());
                members.push(file(&format!("{path}/.wh..wh..opq"), 0));
            }
        }
    }
    for path in &deleted {
        remove(model, path);
    }
    for path in &opaque {
        let below = format!("{path}/");
        model.retain(|other, _| !other.starts_with(&below));
    }
    // A directory with deletions alone is none where the layers below have a file.
    let only_deletes = |path: &str| {
        let is_within = |other: &str| other == path || other.starts_with(&format!("{path}/"));
        let deletes = |(other, entry): (&String, &Entry)| !is_within(other) || entry.directory && !described[other];
        own.iter().all(deletes) && !opaque.iter().any(|other| is_within(other))
    };
    let is_file = |path: &str| model.get(path).is_some_and(|lower| !lower.directory);
    let without_effect = |path: &str| ancestors(path).chain([path]).any(|above| is_file(above) && only_deletes(above));
    let without_effect: Vec<_> = own.keys().filter(|path| without_effect(path)).cloned().collect();
    for (path, entry) in own.iter().filter(|(path, _)| !without_effect.contains(path)) {
        match model.get(path) {
            Some(lower) if lower.directory && entry.directory => {
                if described[path] {
                    model.insert(path.clone(), *entry);
                }
            }
            _ => {
                remove(model, path);
                model.insert(path.clone(), *entry);
            }
        }
    }
    members
}

/// Returns the model's facts in the form of a tree's.
fn facts_of(model: &Model) -> Vec<(String, char, u16, String)> {
    let mut first: BTreeMap<u32, String> = BTreeMap::new();
    let mut found = Vec::new();
    let mut entries: Vec<_> = model.iter().map(|(path, entry)| (format!("/{path}"), entry)).collect();
    // In the order of a walk: a name comes before everything below the next.
    entries.sort_by(|(left, _), (right, _)| left.split('/').cmp(right.split('/')));
    for (path, entry) in entries {
        let same_as = match entry.directory {
            true => path.clone(),
            false => first.entry(entry.file).or_insert_with(|| path.clone()).clone(),
        };
        found.push((path.clone(), if entry.directory { 'd' } else { 'f' }, entry.mode as u16, same_as));
    }
    found.sort();
    found
}

fn plain(facts: Facts) -> Vec<(String, char, u16, String)> {
    let mut found: Vec<_> =
        facts.into_iter().skip(1).map(|(path, (kind, mode, same_as, _))| (path, kind, mode, same_as)).collect();
    found.sort();
    found
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn layers_are_put_together_as_the_model_does(layers in prop::collection::vec(ops(), 1..5)) {
        let (mut model, mut next) = (Model::new(), 0);
        let made: Vec<_> = layers.iter().map(|ops| layer(&apply(&mut model, ops, &mut next, false))).collect();
        let found = facts(&Layer::stack(made, Whiteouts::Apply).unwrap());
        prop_assert_eq!(plain(found), facts_of(&model));
    }

    /// Merging the upper layers first and then stacking the result gives the same tree as stacking
    /// them one by one.
    #[test]
    fn layers_that_are_made_one_delete_the_same(layers in prop::collection::vec(ops(), 2..5)) {
        let without_links = |ops: &Vec<(String, Op)>| -> Vec<(String, Op)> {
            ops.iter().filter(|(_, op)| !matches!(op, Op::Link(_))).cloned().collect()
        };
        let (mut model, mut next) = (Model::new(), 0);
        let mut made: Vec<_> =
            layers.iter().map(|ops| layer(&apply(&mut model, &without_links(ops), &mut next, true))).collect();
        let upper = Layer::stack(made.split_off(1), Whiteouts::Keep).unwrap();
        made.push(upper.into());
        let found = facts(&Layer::stack(made, Whiteouts::Apply).unwrap());
        prop_assert_eq!(plain(found), facts_of(&model));
    }
}

/// An overlayfs mount of directories, until dropped.
pub(crate) struct Overlay {
    at: tempfile::TempDir,
}

impl Overlay {
    /// The first layer is the lowest.
    pub(crate) fn new(layers: &[&Path]) -> Result<Self, String> {
        let at = tempfile::tempdir().unwrap();
        let lower: Vec<_> = layers.iter().rev().map(|layer| layer.display().to_string()).collect();
        let options = format!("xino=on,lowerdir={}", lower.join(":"));
        let mount = Command::new("mount").args(["-t", "overlay", "overlay", "-o", &options]).arg(at.path()).output();
        match mount {
            Ok(output) if output.status.success() => Ok(Self { at }),
            Ok(output) => Err(format!("no overlayfs: {}", String::from_utf8_lossy(&output.stderr))),
            Err(error) => Err(format!("mount: {error}")),
        }
    }
}

impl Overlay {
    pub(crate) fn path(&self) -> &Path {
        self.at.path()
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.at.path()).status();
    }
}

pub(crate) fn built(folder: &Path, name: &str, tree: &Tree) -> std::path::PathBuf {
    let path = folder.join(name);
    let out = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    build(tree, &BuildOptions::default(), &out).unwrap();
    path
}

/// Three layers made by tar, as images that the kernel mounts as an overlay, and as a stacked tree.
#[test]
fn images_of_layers_equal_the_overlayfs_mount() {
    const TEST: &str = "images_of_layers_equal_the_overlayfs_mount";
    let folder = tempfile::tempdir().unwrap();
    let at = |path: &str| folder.path().join(path);
    let write = |path: &str, text: &str| {
        fs::create_dir_all(at(path).parent().unwrap()).unwrap();
        fs::write(at(path), text).unwrap();
    };
    for name in ["etc/a", "etc/b", "etc/sub/c", "usr/one", "usr/two", "var/log/x", "var/log/y", "opt/z", "srv/file"] {
        write(&format!("1/{name}"), &format!("{name} of the first layer"));
    }
    fs::hard_link(at("1/usr/one"), at("1/usr/one-again")).unwrap();
    std::os::unix::fs::symlink("usr", at("1/link")).unwrap();
    write("2/etc/.wh.a", "");
    write("2/etc/b", "b of the second layer");
    write("2/var/log/.wh..wh..opq", "");
    write("2/var/log/new", "new");
    write("2/.wh.opt", "");
    write("2/link/instead", "a directory where a link was");
    write("2/srv/file/below", "a directory where a file was");
    // Deleted and created again in the same layer.
    write("2/usr/.wh.two", "");
    write("2/usr/two/below", "below");
    write("2/etc/.wh.sub", "");
    write("2/etc/sub/new", "new");
    write("3/opt/again", "made again");
    write("3/etc/.wh.sub", "");
    write("3/.wh.usr", "");
    write("3/var/log/newest", "newest");
    for number in ["1", "2", "3"] {
        let (source, archive) = (at(number), at(&format!("{number}.tar")));
        let options = ["--format=pax", "--sort=name", "-C"].map(OsStr::new);
        let paths = [source.as_os_str(), "-cf".as_ref(), archive.as_os_str(), ".".as_ref()];
        if run("tar", options.into_iter().chain(paths)).is_none() {
            return skip(TEST, "tar is not installed");
        }
    }
    let layer = |number: &str| {
        let archive = File::open(at(&format!("{number}.tar"))).unwrap();
        Layer::from_tar(archive, Path::new(number), &ScanOptions::default()).unwrap()
    };
    let root = built(folder.path(), "root", &Layer::stack(["1", "2", "3"].map(layer), Whiteouts::Apply).unwrap());
    let expected = tree_of_image(&Image::open_path(&root).unwrap());
    assert!(expected.keys().all(|path| !path.display().to_string().contains(".wh.")));
    let kept = |layers: &[&str], name: &str| {
        let layers = layers.iter().map(|number| layer(number));
        built(folder.path(), name, &Layer::stack(layers, Whiteouts::Keep).unwrap())
    };
    let single = [kept(&["1"], "one"), kept(&["2"], "two"), kept(&["3"], "three")];
    let pairs = [single[0].clone(), kept(&["2", "3"], "two-and-three")];
    for images in [&single[..], &pairs] {
        let mounts: Result<Vec<_>, _> = images.iter().map(|image| Mount::new(image)).collect();
        let overlay = mounts.and_then(|mounts| {
            let paths: Vec<_> = mounts.iter().map(Mount::path).collect();
            Ok((Overlay::new(&paths)?, mounts))
        });
        match overlay {
            Ok((overlay, _mounts)) => {
                let found = tree_of_directory(overlay.path());
                assert_same(&expected, &found, &format!("{} images", images.len()));
            }
            Err(why) => skip(TEST, &why),
        }
    }
}

/// A directory that overlayfs has written to is a layer too.
#[test]
fn directories_that_overlayfs_wrote_are_layers() {
    const TEST: &str = "directories_that_overlayfs_wrote_are_layers";
    let folder = tempfile::tempdir().unwrap();
    let at = |path: &str| folder.path().join(path);
    for path in ["lower/d", "lower/e", "upper/d"] {
        fs::create_dir_all(at(path)).unwrap();
    }
    for path in ["lower/a", "lower/d/b", "lower/e/c", "upper/d/new"] {
        fs::write(at(path), path).unwrap();
    }
    let made = rustix::fs::mknodat(CWD, at("upper/a"), FileType::CharacterDevice, Mode::empty(), 0);
    let opaque = rustix::fs::setxattr(at("upper/d"), "trusted.overlay.opaque", b"y", XattrFlags::empty());
    if made.is_err() || opaque.is_err() {
        return skip(TEST, "only root makes such files");
    }
    for options in [ScanOptions::default(), ScanOptions { no_xattrs: true, ..ScanOptions::default() }] {
        let layers = ["lower", "upper"].map(|name| Layer::scan(&at(name), &options).unwrap());
        assert_eq!(paths(layers), ["/d/", "/d/new", "/e/", "/e/c"]);
    }
}

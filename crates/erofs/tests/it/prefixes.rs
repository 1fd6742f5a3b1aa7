//! Long prefixes of xattr names: the names are unchanged for this crate's reader and the kernel,
//! wherever the table is.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use pagefold_erofs::{BuildOptions, Content, Fragments, Image, Node, NodeKind, Tree, Xattr};
use proptest::prelude::*;

use crate::built::build_at;
use crate::tools::{Mount, assert_same, skip, tree_of_directory, tree_of_image};
use crate::trees::{noise, text};

fn xattr(name: &str, value: &[u8]) -> Xattr {
    Xattr { name: name.into(), value: value.into() }
}

/// Returns a tree whose root and files have these xattrs.
fn tree_of(xattrs: &[Vec<Xattr>]) -> Tree {
    let node = |kind, xattrs| Node { kind, permissions: 0o755, uid: 0, gid: 0, mtime_s: 1, mtime_nsec: 0, xattrs };
    let root = xattrs.first().cloned().unwrap_or_default();
    let mut tree = Tree::new(node(NodeKind::Directory(BTreeMap::new()), root));
    for (number, xattrs) in xattrs.iter().enumerate() {
        let bytes = text(number * 300, 1);
        let kind = NodeKind::Regular { size: bytes.len() as u64, content: Content::Bytes(bytes.into()) };
        tree.add(tree.root(), format!("file-{number}").as_bytes(), node(kind, xattrs.clone())).unwrap();
    }
    tree
}

/// Options that put the table into different places: before the root, or into the packed inode,
/// with and without other content there.
fn variants(prefixes: &[&str], block_bytes: u32) -> [BuildOptions; 5] {
    let xattr_prefixes = prefixes.iter().map(|prefix| prefix.as_bytes().to_vec()).collect();
    let base = BuildOptions {
        xattr_prefixes,
        block_bytes,
        pcluster_bytes: block_bytes,
        threads: 1,
        ..BuildOptions::default()
    };
    [
        BuildOptions { codec: None, ..base.clone() },
        BuildOptions { dedupe: true, ztailpacking: true, ..base.clone() },
        BuildOptions { pcluster_bytes: 65_536, ..base.clone() },
        BuildOptions { fragments: Fragments::Tails, ..base.clone() },
        BuildOptions { fragments: Fragments::All, ..base },
    ]
}

/// Compares the image at `path` with `xattrs` and, if `mount`, with what the kernel shows. An error
/// names what the machine lacks.
fn compare(path: &Path, xattrs: &[Vec<Xattr>], mount: bool) -> Result<(), String> {
    let image = Image::open_path(path).unwrap();
    let problems = image.check(1).problems;
    assert!(problems.is_empty(), "{problems:?}");
    for (number, expected) in xattrs.iter().enumerate() {
        let inode = image.resolve(format!("file-{number}").as_bytes()).unwrap();
        let found: BTreeSet<_> = image.xattrs(&inode).unwrap().into_iter().collect();
        assert_eq!(found, expected.iter().cloned().collect(), "file-{number}");
    }
    if mount {
        let mount = Mount::new(path)?;
        assert_same(&tree_of_image(&image), &tree_of_directory(mount.path()), "mounted");
    }
    Ok(())
}

#[test]
fn the_kernel_reads_long_prefixes() {
    let test = "the_kernel_reads_long_prefixes";
    let (directory, mut unmountable) = (tempfile::tempdir().unwrap(), None);
    let path = directory.path().join("image.erofs");
    let xattrs: Vec<_> = (0..40)
        .map(|number| {
            vec![
                xattr("trusted.overlay.opaque", b"y"),
                xattr("trusted.overlay.redirect", format!("/{number}").as_bytes()),
                xattr("trusted.overlay.", &noise(20, number)),
                xattr("trusted.overla", &noise(3, number)),
                xattr("user.mime_type", b"text/plain"),
                xattr("user.mime_encoding", &noise(number as usize, 7)),
                xattr("security.label", &noise(20, number % 3)),
            ]
        })
        .collect();
    let tree = tree_of(&xattrs);
    let wanted = ["user.mime_", "trusted.overlay.", "trusted.overlay.redirect", "trusted.overlay.re", "lustre.unused"];
    // 128 prefixes that make the longest possible table, which moves the root away from the
    // superblock.
    let long: Vec<_> = (0..128).map(|number| format!("user.{number:03}{}", "x".repeat(247))).collect();
    let long: Vec<_> = long.iter().map(String::as_str).collect();
    let of_long: Vec<_> = long.iter().map(|name| vec![xattr(name, name.as_bytes())]).collect();
    let tree_of_long = tree_of(&of_long);
    for block_bytes in [512, 4096] {
        for options in variants(&wanted, block_bytes) {
            build_at(&path, &tree, &options);
            unmountable = compare(&path, &xattrs, true).err().or(unmountable);
        }
        for options in variants(&long, block_bytes) {
            build_at(&path, &tree_of_long, &options);
            unmountable = compare(&path, &of_long, true).err().or(unmountable);
        }
    }
    if let Some(why) = unmountable {
        skip(test, &why);
    }
}

#[test]
fn prefixes_save_bytes_and_those_without_names_change_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image.erofs");
    let xattrs: Vec<_> = (0..2000)
        .map(|number| {
            vec![
                xattr("trusted.overlay.metacopy", &noise(36, number)),
                xattr("trusted.overlay.redirect", format!("/{number:08}").as_bytes()),
            ]
        })
        .collect();
    let tree = tree_of(&xattrs);
    let bytes = |prefixes: &[&str]| {
        let [_, _, options, ..] = variants(prefixes, 4096);
        build_at(&path, &tree, &options);
        fs::read(&path).unwrap()
    };
    let (none, unused) = (bytes(&[]), bytes(&["user.mime_", "trusted.overlay.origin"]));
    assert!(none == unused, "a prefix that no name has changes the image");
    let (short, long) =
        (bytes(&["trusted.overlay."]), bytes(&["trusted.overlay.metacopy", "trusted.overlay.redirect"]));
    assert!(short.len() + 2000 * 8 <= none.len(), "{} of {} bytes", short.len(), none.len());
    assert!(long.len() + 2000 * 8 <= short.len(), "{} of {} bytes", long.len(), short.len());
}

/// Names and prefixes of few parts, so that one is often a prefix of another.
fn name() -> impl Strategy<Value = String> {
    let base = prop::sample::select(vec!["user.", "trusted.", "security.", "lustre."]);
    let parts = prop::collection::vec(prop::sample::select(vec!["a", "b", "overlay.", "mime_"]), 1..5);
    (base, parts).prop_map(|(base, parts)| format!("{base}{}", parts.concat()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn names_with_common_fronts_are_what_they_were(
        names in prop::collection::vec(prop::collection::btree_map(name(), 0usize..6, 0..6), 1..12),
        prefixes in prop::collection::vec(name(), 0..8),
        block_log in 9u32..13,
        variant in 0usize..5,
        mount in prop::bool::weighted(0.1),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image.erofs");
        let xattrs: Vec<Vec<_>> = names
            .iter()
            .map(|names| names.iter().map(|(name, &len)| xattr(name, &noise(len, 1))).collect())
            .collect();
        let prefixes: Vec<_> = prefixes.iter().map(String::as_str).collect();
        build_at(&path, &tree_of(&xattrs), &variants(&prefixes, 1 << block_log)[variant]);
        // Linux does not show `lustre.` names.
        let lustre = names.iter().any(|names| names.keys().any(|name| name.starts_with("lustre.")));
        let _ = compare(&path, &xattrs, mount && !lustre);
    }
}

//! Images with one field changed, each of which must fail, and the messages of each part of the
//! reader.
//!
//! The images are generated deterministically, and their errors are committed in
//! `tests/corpus.txt`, so that a changed error shows in a diff. `PAGEFOLD_BLESS=1` rewrites the
//! file.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use pagefold_codec::cluster::ClusterCodec;
use pagefold_erofs::{
    BuildOptions, Content, Error, ExtractOptions, FileKind, Fragments, Image, Indexes, Node, NodeKind, Tree, Xattr,
    build,
};

use crate::tools::skip;
use crate::trees;

/// Returns a tree that is the same on every machine.
fn tree() -> Tree {
    let node = |kind| Node {
        kind,
        permissions: 0o755,
        uid: 0,
        gid: 0,
        mtime_s: 1_600_000_000,
        mtime_nsec: 0,
        xattrs: Vec::new(),
    };
    let file = |bytes: Vec<u8>| NodeKind::Regular { size: bytes.len() as u64, content: Content::Bytes(bytes.into()) };
    let mut tree = Tree::new(node(NodeKind::Fifo));
    let root = tree.root();
    let mut tagged = node(file(trees::text(100, 1)));
    tagged.xattrs = vec![Xattr { name: b"user.note".to_vec(), value: b"value".to_vec() }];
    tagged.mtime_s += 5;
    let mut other = node(file(Vec::new()));
    other.xattrs = vec![
        Xattr { name: b"user.note".to_vec(), value: b"value".to_vec() },
        Xattr { name: b"user.own".to_vec(), value: b"1".to_vec() },
    ];
    for (name, node) in [
        ("tagged", tagged),
        ("empty", other),
        ("link", node(NodeKind::Symlink(b"text".to_vec()))),
        ("noise", node(file(trees::noise(5000, 3)))),
        ("text", node(file(trees::text(40_000, 2)))),
        ("device", node(NodeKind::CharDevice(1, 3))),
    ] {
        tree.add(root, name.as_bytes(), node).unwrap();
    }
    let directory = tree.add(root, b"directory", node(NodeKind::Directory(BTreeMap::new()))).unwrap();
    tree.add(directory, b"below", node(file(trees::text(9000, 5)))).unwrap();
    let deeper = tree.add(directory, b"deeper", node(NodeKind::Directory(BTreeMap::new()))).unwrap();
    tree.add(deeper, b"bottom", node(file(b"content".to_vec()))).unwrap();
    tree
}

/// Returns a valid image without a superblock checksum.
fn image(options: &BuildOptions) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    let out = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    build(&tree(), &BuildOptions { uuid: Some([7; 16]), threads: 1, ..options.clone() }, &out).unwrap();
    let mut bytes = fs::read(path).unwrap();
    bytes[1024 + 8] &= !1;
    bytes
}

fn kinds() -> Vec<(&'static str, BuildOptions)> {
    let base = BuildOptions::default();
    let codec = |codec| BuildOptions { codec: Some(codec), ..base.clone() };
    vec![
        ("plain", BuildOptions { codec: None, ..base.clone() }),
        ("lz4", base.clone()),
        ("lz4-full", BuildOptions { indexes: Indexes::Full, pcluster_bytes: 16_384, ..base.clone() }),
        ("lz4-inline", BuildOptions { ztailpacking: true, ..base.clone() }),
        ("lz4-fragments", BuildOptions { fragments: Fragments::Tails, ..base.clone() }),
        ("lzma", codec(ClusterCodec::MicroLzma { preset: 1, dict_bytes: 1 << 16 })),
        ("deflate", codec(ClusterCodec::Deflate(3))),
        ("zstd", codec(ClusterCodec::Zstd { level: 1, window_log: 17 })),
    ]
}

/// A field: its name, its offset in its structure, and its size.
type Field = (&'static str, usize, usize);

const SUPERBLOCK: &[(Field, &[u64])] = &[
    (("magic", 0, 4), &[0]),
    (("blkszbits", 12, 1), &[0, 8, 17, 255]),
    (("sb_extslots", 13, 1), &[255]),
    (("root_nid", 14, 2), &[0, 1, 0xffff]),
    (("blocks", 36, 4), &[0, 1, u32::MAX as u64]),
    (("meta_blkaddr", 40, 4), &[1, u32::MAX as u64]),
    (("xattr_blkaddr", 44, 4), &[u32::MAX as u64]),
    (("feature_incompat", 80, 4), &[1 << 8, 1 << 31]),
    (("dirblkbits", 90, 1), &[1, 255]),
    (("extra_devices", 86, 2), &[1]),
];

/// Fields of both kinds of inode.
const INODE: &[(Field, &[u64])] = &[
    (("i_format", 0, 2), &[0xffff, 5 << 1]),
    (("i_xattr_icount", 2, 2), &[0xffff]),
    (("i_mode", 4, 2), &[0, 0xffff]),
    (("i_size", 8, 4), &[u32::MAX as u64]),
];

/// The map header of a compressed file, and the first words after it.
const MAP: &[(Field, &[u64])] = &[
    (("h_algorithmtype", 6, 1), &[0x0f, 0x44]),
    (("h_clusterbits", 7, 1), &[0x0f, 0xff]),
    (("index 0", 8, 8), &[u64::MAX]),
    (("index 1", 16, 8), &[u64::MAX]),
];

struct Case {
    name: String,
    bytes: Vec<u8>,
}

fn put(bytes: &mut [u8], at: usize, len: usize, value: u64) {
    bytes[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (kind, options) in kinds() {
        let good = image(&options);
        assert!(Image::open(good.clone()).unwrap().check(1).problems.is_empty(), "{kind} is bad as it is");
        let mut change = |name: String, at: usize, len: usize, value: u64| {
            let mut bytes = good.clone();
            put(&mut bytes, at, len, value);
            // A change without effect is not a case.
            if bytes != good {
                cases.push(Case { name: format!("{kind}: {name} = {value:#x}"), bytes });
            }
        };
        if kind == "lz4" {
            for ((field, at, len), values) in SUPERBLOCK {
                values.iter().for_each(|value| change(format!("superblock.{field}"), 1024 + at, *len, *value));
            }
        }
        let opened = Image::open(good.clone()).unwrap();
        let inode_at = |path: &str| opened.resolve(path.as_bytes()).unwrap().nid as usize * 32;
        if kind == "lz4" || kind == "plain" {
            for path in ["", "directory", "text", "link", "tagged"] {
                for ((field, at, len), values) in INODE {
                    values
                        .iter()
                        .for_each(|value| change(format!("/{path}.{field}"), inode_at(path) + at, *len, *value));
                }
            }
            // Entries follow the inode: 8 bytes of nid, 2 of the name's offset, and the type.
            for (entry, name) in [".", "..", "below"].into_iter().enumerate() {
                let at = inode_at("directory") + 32 + 12 * entry + 10;
                for value in [3, 0xff] {
                    change(format!("/directory.{name}.file_type"), at, 1, value);
                }
            }
            change("/noise.i_u".to_owned(), inode_at("noise") + 16, 4, u64::from(u32::MAX) - 1);
            // More shared xattrs than there is room for, and one outside the image.
            change("/tagged.h_shared_count".to_owned(), inode_at("tagged") + 64 + 4, 1, 255);
            change("/tagged.shared xattr 0".to_owned(), inode_at("tagged") + 64 + 12, 4, u64::from(u32::MAX));
        }
        if kind != "plain" {
            for ((field, at, len), values) in MAP {
                // Full indexes begin 8 bytes later.
                let gap = if kind == "lz4-full" && field.starts_with("index") { 8 } else { 0 };
                let map = inode_at("text") + 32 + gap;
                values.iter().for_each(|value| change(format!("/text.{field}"), map + at, *len, *value));
            }
            if kind == "lz4-inline" || kind == "lz4-fragments" {
                change("/text.h_fragmentoff".to_owned(), inode_at("text") + 32, 4, u64::from(u32::MAX));
            }
            // The block after the file of noise.
            change("/text's first cluster".to_owned(), 2 * 4096, 8, u64::MAX);
        }
        for blocks in [0, 1, good.len() / 4096 - 1] {
            cases.push(Case { name: format!("{kind}: cut to {blocks} blocks"), bytes: good[..blocks * 4096].to_vec() });
        }
    }
    cases
}

/// Reads every file and link and lists every directory. Returns the first error.
fn read_all(image: &Image) -> Result<(), String> {
    let mut pending = vec![(image.root().map_err(|error| error.to_string())?, 0)];
    let (mut first, mut files) = (None, 0);
    while let Some((inode, depth)) = pending.pop() {
        files += 1;
        // A directory that contains itself is endless, so every reader must bound its walk.
        if files > 200 || depth > 10 {
            first.get_or_insert_with(|| "directories do not end".to_owned());
            break;
        }
        let result = match inode.kind {
            FileKind::Directory => image.read_dir(&inode).map(|entries| {
                for entry in entries {
                    match image.inode(entry.nid) {
                        Ok(child) => pending.push((child, depth + 1)),
                        Err(error) => drop(first.get_or_insert_with(|| error.to_string())),
                    }
                }
            }),
            FileKind::Symlink => image.read_link(&inode).map(drop),
            FileKind::Regular => {
                let mut buf = vec![0; 1 << 16];
                let end = inode.size.min(1 << 20);
                (0..end).step_by(buf.len()).try_for_each(|at| {
                    let len = (end - at).min(buf.len() as u64) as usize;
                    image.read_exact_at(&inode, &mut buf[..len], at)
                })
            }
            _ => Ok(()),
        };
        if let Err(error) = result.and_then(|()| image.xattrs(&inode).map(drop)) {
            first.get_or_insert_with(|| error.to_string());
        }
    }
    first.map_or(Ok(()), Err)
}

/// Returns the errors of opening, checking, reading and extracting.
fn errors(case: &Case) -> String {
    let start = Instant::now();
    let mut text = format!("{}\n", case.name);
    let mut say = |who: &str, what: Option<String>| {
        let _ = writeln!(text, "    {who:8} {}", what.unwrap_or_else(|| "-".to_owned()));
    };
    match Image::open(case.bytes.clone()) {
        Err(error) => say("open", Some(error.to_string())),
        Ok(image) => {
            let show = |problems: &mut dyn Iterator<Item = (&[u8], &Error)>| {
                let mut shown: Vec<_> = problems
                    .map(|(path, error)| {
                        let path = String::from_utf8_lossy(path);
                        format!("/{}: {error}", path.trim_start_matches('/'))
                    })
                    .collect();
                shown.sort();
                shown.truncate(3);
                (!shown.is_empty()).then(|| shown.join("; "))
            };
            let checked = image.check(1).problems;
            let check = show(&mut checked.iter().map(|problem| (&problem.path[..], &problem.error)));
            assert!(check.is_some(), "{}: the check finds nothing", case.name);
            say("check", check);
            say("read", read_all(&image).err());
            let target = tempfile::tempdir().unwrap();
            let options = ExtractOptions {
                threads: 1,
                owners: false,
                xattrs: false,
                max_bytes: Some(1 << 20),
                ..ExtractOptions::default()
            };
            let extracted = image
                .extract(&target.path().join("out"), &options)
                .map(|report| show(&mut report.problems.iter().map(|problem| (&problem.path[..], &problem.error))));
            say("extract", extracted.unwrap_or_else(|error| Some(error.to_string())));
        }
    }
    assert!(start.elapsed() < crate::hostile::ENDLESS, "{}: took {:?}", case.name, start.elapsed());
    text
}

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus.txt")
}

#[test]
fn every_bad_image_fails_with_its_own_error() {
    let found: String = cases().iter().map(errors).collect();
    if std::env::var_os("PAGEFOLD_BLESS").is_some() {
        fs::write(golden(), &found).unwrap();
    }
    let expected = fs::read_to_string(golden()).unwrap_or_default();
    let differ = expected.lines().zip(found.lines()).find(|(expected, found)| expected != found);
    assert!(expected == found, "tests/corpus.txt says otherwise, first at {differ:?}; PAGEFOLD_BLESS=1 rewrites it");
}

/// Repeats the test above in a process limited to half a GiB of address space.
#[test]
fn bad_images_take_little_memory() {
    let test = "corpus::every_bad_image_fails_with_its_own_error";
    let output = Command::new("prlimit")
        .args(["--as=536870912"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--test-threads=1"])
        .env("MALLOC_ARENA_MAX", "1")
        .output();
    match output {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout)),
        Err(error) => skip("bad_images_take_little_memory", &format!("prlimit: {error}")),
    }
}

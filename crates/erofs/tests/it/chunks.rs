//! Plain files in chunks: equal to their sources regardless of shared chunks, aligned, and stored
//! once.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use pagefold_codec::cluster::ClusterCodec;
use pagefold_erofs::{BuildOptions, Content, Fragments, Hint, Image, Node, NodeKind, Tree};
use proptest::prelude::*;

use crate::built::{build_at, round_trips, source};
use crate::tools::{Mount, assert_same, run, skip, tree_of_directory, tree_of_image};
use crate::trees::{noise, text};

const MIB: usize = 1 << 20;

/// Creates files that differ only in an end, a byte or a shift, around chunks of 4, 16 and 256 KiB.
fn alike(root: &Path) {
    let write = |name: String, bytes: &[u8]| fs::write(root.join(name), bytes).unwrap();
    for chunk in [4096, 16_384, 262_144] {
        let twice = noise(chunk, chunk as u64).repeat(2);
        for len in [chunk - 4096, chunk - 1, chunk, chunk + 1, chunk + 4096, 2 * chunk] {
            write(format!("{chunk}-front-{len}"), &twice[..len]);
        }
        for len in [1, 100, 4095] {
            let end = &twice[..len];
            write(format!("{chunk}-end-{len}"), &[&twice[..chunk], end].concat());
            write(format!("{chunk}-alone-{len}"), end);
            write(format!("{chunk}-zeros-behind-{len}"), &[end, &[0; 50][..]].concat());
            write(format!("{chunk}-full-of-zeros-behind-{len}"), &[end, &vec![0; 4096 - len]].concat());
            write(format!("{chunk}-a-byte-behind-{len}"), &[end, &vec![0; 4095 - len], &[1]].concat());
        }
        write(format!("{chunk}-holes"), &[&vec![0; chunk][..], &twice[..chunk], &vec![0; chunk + 10]].concat());
    }
    write("empty".into(), &[]);
    write("zeros".into(), &vec![0; 70_000]);
    write("segments".into(), &noise(17 * MIB + 5, 9));
    for number in 0..4 {
        write(format!("long-{number}"), &noise(3 * MIB + 777 * number as usize, 20 + number));
        write(format!("text-{number}"), &text(30_000 * number as usize, 1));
        let name = root.join(format!("text-{number}"));
        let _ =
            rustix::fs::lsetxattr(name, "user.name", &noise(number as usize + 1, 1), rustix::fs::XattrFlags::empty());
    }
}

/// Options with chunks for all files, and with chunks for hinted files next to compressed and
/// packed ones.
fn variants(block_bytes: u32, chunk_bytes: u32) -> [BuildOptions; 2] {
    let chunks = BuildOptions {
        block_bytes,
        pcluster_bytes: block_bytes,
        chunk_bytes: Some(chunk_bytes),
        ..BuildOptions::default()
    };
    let hints = ["1*", "4*", "2*", "l*"].map(|pattern| Hint { pattern: pattern.into(), compression: None }).to_vec();
    [
        BuildOptions { codec: None, ..chunks.clone() },
        BuildOptions { hints, dedupe: true, fragments: Fragments::Tails, ..chunks },
    ]
}

#[test]
fn chunks_of_every_length_are_read_back_and_mount() {
    let lengths = [(4096, 4096), (4096, 16_384), (4096, 262_144), (4096, 2 << 20), (4096, 16 << 20), (512, 512)];
    let cases = lengths.into_iter().flat_map(|(block_bytes, chunk_bytes)| variants(block_bytes, chunk_bytes));
    let cases = cases.map(|options| (format!("{options:?}"), options)).collect();
    round_trips("chunks_of_every_length_are_read_back_and_mount", alike, cases);
}

#[test]
fn fsck_extracts_chunks() {
    let (directory, tree, expected) = source(alike);
    let path = directory.path().join("image.erofs");
    for chunk_bytes in [4096, 262_144] {
        let [options, _] = variants(4096, chunk_bytes);
        build_at(&path, &tree, &options);
        let out = directory.path().join(format!("out-{chunk_bytes}"));
        let mut extract = std::ffi::OsString::from("--extract=");
        extract.push(&out);
        if run("fsck.erofs", [extract.as_os_str(), path.as_os_str()]).is_none() {
            return skip("fsck_extracts_chunks", "fsck.erofs is not installed");
        }
        // fsck.erofs 1.5 fills holes with its last read, in images of mkfs.erofs too.
        let holes = |name: &Path| ["holes", "zeros"].iter().any(|part| name.to_string_lossy().contains(part));
        for (name, facts) in expected.iter().filter(|(name, facts)| facts.is_regular() && !holes(name)) {
            let same = fs::read(out.join(name)).unwrap() == facts.clone().into_content();
            assert!(same, "chunks of {chunk_bytes}: {}", name.display());
        }
    }
}

fn tree_of(files: &[(String, Vec<u8>)]) -> Tree {
    let node = |kind| Node { kind, permissions: 0o755, uid: 0, gid: 0, mtime_s: 1, mtime_nsec: 0, xattrs: Vec::new() };
    let mut tree = Tree::new(node(NodeKind::Directory(BTreeMap::new())));
    for (name, bytes) in files {
        let kind = NodeKind::Regular { content: Content::Bytes(bytes.as_slice().into()), size: bytes.len() as u64 };
        tree.add(tree.root(), name.as_bytes(), node(kind)).unwrap();
    }
    tree
}

/// Returns the offsets of a file's `chunks` chunks in the image.
fn addresses(image: &Image, bytes: &[u8], name: &str, chunks: usize) -> Vec<u64> {
    let at = image.resolve(name.as_bytes()).unwrap().nid as usize * 32;
    let header = if bytes[at] & 1 == 0 { 32 } else { 64 };
    let addresses = bytes[at + header..][..chunks * 4].as_chunks().0;
    addresses.iter().map(|address| u64::from(u32::from_le_bytes(*address)) * 4096).collect()
}

#[test]
fn chunks_of_a_huge_page_lie_at_one_and_the_gaps_are_used() {
    const HUGE: u64 = 2 << 20;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image.erofs");
    let files: Vec<_> = (0..20).map(|number| (format!("file-{number}"), noise(5 * MIB / 2, number))).collect();
    let tree = tree_of(&files);
    for chunk_bytes in [2 << 20, 4 << 20] {
        let [options, _] = variants(4096, chunk_bytes);
        let built = build_at(&path, &tree, &options).image_bytes;
        let (image, bytes) = (Image::open_path(&path).unwrap(), fs::read(&path).unwrap());
        for (name, _) in &files {
            let chunks = addresses(&image, &bytes, name, 1);
            assert!(chunks[0].is_multiple_of(HUGE), "{name}: {chunks:?}");
        }
        // Half-MiB ends that are separate chunks fill gaps before other files; otherwise, half a
        // chunk stays free.
        let most = if chunk_bytes == 2 << 20 { 54 } else { 81 };
        assert!(built <= most << 20, "{built} bytes");
    }
}

#[test]
fn equal_chunks_are_stored_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image.erofs");
    let (same, other) = (noise(1 << 20, 1), noise(1 << 20, 2));
    let files = [
        ("first".to_owned(), [&same[..], &other].concat()),
        ("second".to_owned(), [&other[..], &same, &other[..16_384]].concat()),
        ("longer".to_owned(), [&same[..], b"and a bit"].concat()),
    ];
    let [options, _] = variants(4096, 16_384);
    let report = build_at(&path, &tree_of(&files), &options);
    assert_eq!(report.data_bytes, (2 << 20) + 4096);
    assert_eq!(report.shared_blocks, 256 * 3 + 4);
}

#[test]
fn invalid_chunks_are_refused() {
    let refused = |options: &BuildOptions| {
        let out = tempfile::tempfile().unwrap();
        let error = pagefold_erofs::build(&tree_of(&[]), options, &out).unwrap_err();
        assert!(matches!(error, pagefold_erofs::Error::Options(_)), "{error}");
    };
    for chunk_bytes in [0, 1, 2048, 12_288, 32 << 20, u32::MAX] {
        refused(&BuildOptions { codec: None, chunk_bytes: Some(chunk_bytes), ..BuildOptions::default() });
    }
    // Everything is compressed.
    let compression = pagefold_erofs::Compression { codec: ClusterCodec::Lz4, pcluster_bytes: 4096 };
    let hint = Hint { pattern: b"*".to_vec(), compression: Some(compression) };
    refused(&BuildOptions { hints: vec![hint], chunk_bytes: Some(4096), ..BuildOptions::default() });
}

/// Few kinds of pieces, so that files have much in common: noise or zeros, perhaps with a different
/// last byte.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    let lens = prop_oneof![Just(512), Just(1024), Just(2048), Just(511), Just(513), 1usize..2000];
    (0u64..4, lens, prop::bool::weighted(0.2)).prop_map(|(kind, len, changed)| {
        let mut bytes = if kind == 0 { vec![0; len] } else { noise(len, kind) };
        if changed {
            bytes[len - 1] ^= 1;
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn files_that_are_alike_are_what_they_were(
        files in prop::collection::vec(prop::collection::vec(piece(), 0..8).prop_map(|pieces| pieces.concat()), 1..12),
        chunk_log in 9u32..14,
        block_log in 9u32..13,
        variant in 0usize..2,
        mount in prop::bool::weighted(0.1),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image.erofs");
        let names = ["1", "4", "l", "c"].into_iter().cycle();
        let named = files.into_iter().zip(names).enumerate();
        let files: Vec<_> = named.map(|(number, (bytes, name))| (format!("{name}-{number}"), bytes)).collect();
        let options = &variants(1 << block_log, 1 << chunk_log.max(block_log))[variant];
        build_at(&path, &tree_of(&files), options);
        let image = Image::open_path(&path).unwrap();
        let problems = image.check(1).problems;
        prop_assert!(problems.is_empty(), "{problems:?}");
        let found = tree_of_image(&image);
        for (name, bytes) in &files {
            prop_assert!(found[Path::new(name)].clone().into_content() == *bytes, "{name}");
        }
        if mount && let Ok(Ok(mount)) = Mount::attempt(&path) {
            assert_same(&found, &tree_of_directory(mount.path()), "mounted");
        }
    }
}

//! A disk on top of a file of an image, built as a new image.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::Arc;

use pagefold_codec::cluster::ClusterCodec;
use pagefold_erofs::{BuildOptions, Change, Content, Fragments, Image, Indexes, Node, NodeKind, Overlay, Tree, build};
use proptest::prelude::*;

use crate::tools::{run, skip};

/// Returns an image of one file, in memory.
pub(crate) fn image_of(content: Content, size: u64, options: &BuildOptions) -> Vec<u8> {
    let node = |kind| Node { kind, permissions: 0o644, uid: 0, gid: 0, mtime_s: 0, mtime_nsec: 0, xattrs: Vec::new() };
    let mut tree = Tree::new(node(NodeKind::Fifo));
    tree.add(tree.root(), b"disk", node(NodeKind::Regular { content, size })).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    build(&tree, options, &File::options().read(true).write(true).open(file.path()).unwrap()).unwrap();
    fs::read(file.path()).unwrap()
}

pub(crate) fn plain(bytes: &[u8]) -> Content {
    Content::Bytes(bytes.into())
}

fn open(image: &[u8]) -> pagefold_erofs::File {
    disk_of(&Image::open(image.to_vec()).unwrap())
}

pub(crate) fn disk_of(image: &Image) -> pagefold_erofs::File {
    image.file(&image.resolve(b"/disk").unwrap()).unwrap()
}

/// As [`open`], for an image in a file, whose blocks the system can copy.
fn open_stored(image: &[u8]) -> pagefold_erofs::File {
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(image, 0).unwrap();
    disk_of(&Image::open(file).unwrap())
}

fn content(image: &[u8]) -> Vec<u8> {
    let file = open(image);
    let mut bytes = vec![0; file.inode().size as usize];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    bytes
}

/// Returns the image of `disk`, which differs from the file in the image `base` by `changes`.
fn frozen(base: &[u8], disk: &[u8], changes: &[Change], options: &BuildOptions) -> Vec<u8> {
    frozen_above(open(base), disk, changes, options)
}

fn frozen_above(base: pagefold_erofs::File, disk: &[u8], changes: &[Change], options: &BuildOptions) -> Vec<u8> {
    let overlay = Overlay::new(disk.len() as u64, changes.to_vec(), Arc::new(disk.to_vec())).unwrap();
    image_of(Content::Overlay(Arc::new(overlay.over(base))), disk.len() as u64, options)
}

/// Returns text, noise and zeros in turn.
pub(crate) fn bytes_of(runs: &[(usize, u8)], seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut bytes = Vec::new();
    for &(len, kind) in runs {
        for at in 0..len {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let noise = (state >> 56) as u8;
            bytes.push(match kind {
                0 => 0,
                1 => noise,
                2 => b"words of some length, "[at % 22],
                // Slightly compressible.
                _ => noise & 31,
            });
        }
    }
    bytes
}

/// Writes stretches of `pages` to `disk`. Returns the changes.
pub(crate) fn change(disk: &mut [u8], stretches: &[(u64, u64, u8)], seed: u64) -> Vec<Change> {
    let pages = disk.len().div_ceil(4096) as u64;
    let mut kinds = vec![None; pages as usize];
    for (number, &(first, count, kind)) in stretches.iter().enumerate() {
        let first = first % pages;
        for page in first..(first + count).min(pages) {
            let range = page as usize * 4096..disk.len().min((page as usize + 1) * 4096);
            kinds[page as usize] = Some(kind == 0);
            if kind < 4 {
                let new = bytes_of(&[(range.len(), kind)], seed + number as u64 + page);
                disk[range].copy_from_slice(&new);
            } else {
                // Rewritten with the same content.
                kinds[page as usize] = Some(false);
            }
        }
    }
    let len = disk.len() as u64;
    let changed = kinds.iter().zip(0u64..).filter_map(|(kind, page)| Some(((*kind)?, page * 4096)));
    changed.map(|(zeros, at)| Change { at, len: 4096.min(len - at), zeros }).collect()
}

fn codecs() -> [Option<ClusterCodec>; 6] {
    [
        Some(ClusterCodec::Lz4),
        Some(ClusterCodec::Lz4Hc(9)),
        Some(ClusterCodec::Zstd { level: 1, window_log: 16 }),
        Some(ClusterCodec::Deflate(1)),
        Some(ClusterCodec::MicroLzma { preset: 0, dict_bytes: 1 << 16 }),
        None,
    ]
}

pub(crate) fn options() -> impl Strategy<Value = BuildOptions> {
    (
        0..6usize,
        prop_oneof![Just(4096u32), Just(512), Just(16384)],
        prop_oneof![Just(1u32), Just(4), Just(16)],
        prop_oneof![Just(Indexes::Compact), Just(Indexes::Full), Just(Indexes::Extents)],
        0..3u8,
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(|(codec, block_bytes, blocks, indexes, fragments, dedupe, ztailpacking)| {
            let codec = codecs()[codec];
            let fragments = [Fragments::Off, Fragments::Tails, Fragments::All][usize::from(fragments)];
            BuildOptions {
                block_bytes,
                codec,
                pcluster_bytes: block_bytes * blocks,
                indexes,
                fragments: if codec.is_some() { fragments } else { Fragments::Off },
                dedupe: dedupe && codec.is_some(),
                ztailpacking: ztailpacking && codec.is_some(),
                threads: 2,
                ..BuildOptions::default()
            }
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_new_image_holds_the_disk(
        runs in proptest::collection::vec((1usize..60_000, 0u8..4), 1..12),
        grown in -20_000isize..20_000,
        stretches in proptest::collection::vec((0u64..100_000, 1u64..5, 0u8..5), 0..12),
        options in options(),
        with_extents in any::<bool>(),
        seed in 0u64..1 << 40,
    ) {
        let before = bytes_of(&runs, seed);
        let base = image_of(plain(&before), before.len() as u64, &options);
        let mut disk = before;
        disk.resize(disk.len().saturating_add_signed(grown).max(1), 0);
        let changes = change(&mut disk, &stretches, seed + 1);
        let indexes = if with_extents { Indexes::Extents } else { Indexes::Auto };
        let like = BuildOptions { threads: 2, indexes, ..BuildOptions::like(&open(&base)).unwrap() };
        let new = frozen(&base, &disk, &changes, &like);
        prop_assert!(content(&new) == disk, "content of {options:?}");
        let report = Image::open(new.clone()).unwrap().check(1);
        prop_assert!(report.problems.is_empty(), "{:?}", report.problems);
        let one = BuildOptions { threads: 1, ..like };
        prop_assert!(new == frozen(&base, &disk, &changes, &one), "other threads, another image");
        let stored = frozen_above(open_stored(&base), &disk, &changes, &one);
        prop_assert!(new == stored, "copied by the system, another image");
        // Rewriting the same content makes no difference.
        let mut fewer = disk.clone();
        let all = change(&mut fewer, &[(0, disk.len().div_ceil(4096) as u64, 4)], 0);
        prop_assert!(new == frozen(&base, &disk, &all, &one), "equal content, another image");
    }
}

/// Several segments with few changes.
#[test]
fn unchanged_clusters_are_copied() {
    for (name, codec, pcluster_bytes) in [
        ("lz4", ClusterCodec::Lz4, 4096),
        ("lz4 64K", ClusterCodec::Lz4, 65536),
        ("zstd", ClusterCodec::Zstd { level: 9, window_log: 20 }, 65536),
    ] {
        let options = BuildOptions { codec: Some(codec), pcluster_bytes, ..BuildOptions::default() };
        let runs = [(9 << 20, 3), (3 << 20, 0), (20 << 20, 2), (11 << 20, 3), (5_000_001, 1)];
        let before = bytes_of(&runs, 1);
        let base = image_of(plain(&before), before.len() as u64, &options);
        let like = BuildOptions::like(&open(&base)).unwrap();
        assert!(like.pcluster_bytes <= pcluster_bytes, "{name}");
        let same = frozen(&base, &before, &[], &like);
        assert!(content(&same) == before, "{name}");
        let windows = |image: &[u8]| image.chunks(4096).map(<[u8]>::to_vec).collect::<std::collections::HashSet<_>>();
        let known = windows(&base);
        let new_blocks = |image: &[u8]| windows(image).difference(&known).count();
        let unchanged = new_blocks(&same);
        let mut disk = before.clone();
        let stretches: Vec<_> = (0..20).map(|number| (number * 557, 1, 3)).collect();
        let changes = change(&mut disk, &stretches, 7);
        let new = frozen(&base, &disk, &changes, &like);
        assert!(content(&new) == disk, "{name}");
        // Each change affects the clusters around it and the indexes.
        let most = 20 * (3 * pcluster_bytes as usize / 4096 + 2) + unchanged;
        assert!(unchanged * 20 < known.len() && new_blocks(&new) <= most, "{name}: {unchanged}, {}", new_blocks(&new));
    }
}

#[test]
fn an_image_of_others_is_copied_from() {
    const TEST: &str = "an_image_of_others_is_copied_from";
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let before = bytes_of(&[(3 << 20, 3), (1 << 20, 2), (100_000, 1), (18 << 20, 3)], 5);
    fs::write(tree.join("disk"), &before).unwrap();
    let variants: [&[&str]; 6] = [
        &["-zlz4"],
        &["-zlz4hc", "-C65536"],
        &["-zdeflate", "-C16384"],
        &["-zlzma", "-C65536"],
        &["-zlz4", "-Elegacy-compress"],
        &["-zlz4", "-Eztailpacking,fragments,dedupe"],
    ];
    for arguments in variants {
        let path = folder.path().join("image");
        let _ = fs::remove_file(&path);
        let made = Command::new("mkfs.erofs").args(arguments).arg("--quiet").arg(&path).arg(&tree).output();
        let Ok(made) = made else { return skip(TEST, "mkfs.erofs is not installed") };
        let said = String::from_utf8_lossy(&made.stderr);
        if said.contains("Cannot find a valid compressor") {
            skip(TEST, &format!("this mkfs.erofs has no {arguments:?}"));
            continue;
        }
        assert!(made.status.success(), "{arguments:?}: {said}");
        let base = fs::read(&path).unwrap();
        let mut disk = before.clone();
        let stretches: Vec<_> = (0..40).map(|number| (number * 131, 1 + number % 3, (number % 5) as u8)).collect();
        let changes = change(&mut disk, &stretches, 9);
        let like = BuildOptions::like(&open(&base)).unwrap();
        let new = frozen(&base, &disk, &changes, &like);
        assert!(content(&new) == disk, "{arguments:?}");
        assert!(Image::open(new.clone()).unwrap().check(2).problems.is_empty(), "{arguments:?}");
        fs::write(&path, &new).unwrap();
        let out = folder.path().join("out");
        let _ = fs::remove_dir_all(&out);
        run("fsck.erofs", [&format!("--extract={}", out.display()), path.to_str().unwrap()]);
        assert!(fs::read(out.join("disk")).unwrap() == disk, "{arguments:?}: fsck.erofs extracts something else");
    }
}

/// For any bytes in the base, the new image equals what the disk reads as, or the build fails.
#[test]
fn a_damaged_base_gives_no_other_content() {
    let (mut failed, mut equal) = (0, 0);
    for seed in 0..300u64 {
        let codec = codecs()[(seed % 6) as usize];
        let options = BuildOptions { codec, pcluster_bytes: 4096 << (seed % 3), ..BuildOptions::default() };
        let before = bytes_of(&[(30_000, 3), (50_000, 2), (20_000, 1), (60_000, 3)], seed);
        let mut base = image_of(plain(&before), before.len() as u64, &options);
        let mut state = seed + 77;
        for _ in 0..1 + seed % 4 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // After the superblock and its checksum.
            let at = 4096 + (state >> 33) as usize % (base.len() - 4096);
            base[at] ^= 1 << (seed % 8);
        }
        let opened = Image::open(base.clone());
        let file = opened.and_then(|image| image.file(&image.resolve(b"/disk")?));
        let Ok(file) = file else { continue };
        let Ok(like) = BuildOptions::like(&file) else { continue };
        let size = file.inode().size;
        if size > 1 << 20 {
            continue;
        }
        let changes = [Change { at: 8192, len: 4096.min(size.saturating_sub(8192).max(1)), zeros: true }];
        let Ok(overlay) = Overlay::new(size, changes.to_vec(), Arc::new(Vec::new())) else { continue };
        let overlay = overlay.over(file);
        let node =
            |kind| Node { kind, permissions: 0o644, uid: 0, gid: 0, mtime_s: 0, mtime_nsec: 0, xattrs: Vec::new() };
        let mut tree = Tree::new(node(NodeKind::Fifo));
        let kind = NodeKind::Regular { content: Content::Overlay(Arc::new(overlay)), size };
        tree.add(tree.root(), b"disk", node(kind)).unwrap();
        let out = tempfile::tempfile().unwrap();
        if build(&tree, &like, &out).is_err() {
            failed += 1;
            continue;
        }
        let base = Image::open(base).unwrap();
        let below = base.file(&base.resolve(b"/disk").unwrap()).unwrap();
        let new = Image::open(out).unwrap();
        let new = new.file(&new.resolve(b"/disk").unwrap()).unwrap();
        for at in (0..size).step_by(512) {
            let (mut expected, mut found) = ([0; 512], [0; 512]);
            let is_changed = (8192..12288).contains(&at);
            let known = if is_changed { Ok(0) } else { below.read_at(&mut expected, at) };
            match (known, new.read_at(&mut found, at)) {
                (Ok(_), Ok(_)) => assert!(expected == found, "seed {seed}, byte {at}"),
                (Ok(_), Err(error)) if !is_changed => panic!("seed {seed}, byte {at}: {error}"),
                (_, Err(_)) => failed += 1,
                (Err(error), Ok(_)) => panic!("seed {seed}, byte {at}: the disk has {error}"),
            }
        }
        equal += 1;
    }
    assert!(failed > 0 && equal > 20, "{failed} {equal}");
}

//! Sources as programs give them: what each becomes, and how a wrong one is refused.

use std::{
    error::Error as _,
    fs,
    io::{Read, Write},
    path::PathBuf,
    sync::Arc,
};

use flate2::{Compression, write::GzEncoder};
use pagefold_base::Format;
use pagefold_erofs::{NodeKind, Tree};
use pagefold_source::{Error, Options, Platform, Warn, decompressed, read};

fn warn() -> Warn {
    Arc::new(|line: &str| panic!("{line}"))
}

fn tree(sources: &[PathBuf]) -> Result<Tree, Error> {
    read(sources, &Options::default(), &warn())
}

/// An archive with one file, `name`, which is the end of a path.
fn tar(name: &str, content: &[u8]) -> Vec<u8> {
    let mut header = [0; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[100..108].copy_from_slice(b"0000644\0");
    header[108..124].copy_from_slice(b"0000000\x000000000\0");
    header[124..136].copy_from_slice(format!("{:011o}\0", content.len()).as_bytes());
    header[136..148].copy_from_slice(b"00000000000\0");
    header[148..156].fill(b' ');
    header[156] = b'0';
    header[257..265].copy_from_slice(b"ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut bytes = [&header[..], content].concat();
    bytes.resize(bytes.len().next_multiple_of(512) + 1024, 0);
    bytes
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(bytes).and_then(|()| gzip.finish()).expect("memory")
}

/// Returns the content of a file in the root.
fn content(tree: &Tree, name: &str) -> Option<Vec<u8>> {
    let NodeKind::Regular { content, size } = &tree.node(tree.child(tree.root(), name.as_bytes())?).kind else {
        return None;
    };
    let mut bytes = vec![0; *size as usize];
    content.read_exact_at(&mut bytes, 0).expect("its content");
    Some(bytes)
}

#[test]
fn later_sources_are_above_earlier_ones_however_they_are_compressed() {
    let folder = tempfile::tempdir().expect("a folder");
    let (lower, middle, upper) =
        (folder.path().join("lower"), folder.path().join("middle.tar"), folder.path().join("upper.tgz"));
    fs::create_dir(&lower).expect("a folder");
    for name in ["a", "b", "c"] {
        fs::write(lower.join(name), "lower").expect("a file");
    }
    fs::write(&middle, tar("b", b"middle")).expect("a file");
    fs::write(&upper, gzip(&tar("c", b"upper"))).expect("a file");
    let sources = [lower.clone(), middle, upper];
    let found = tree(&sources).expect("a tree");
    for (name, expected) in [("a", "lower"), ("b", "middle"), ("c", "upper")] {
        assert_eq!(content(&found, name).as_deref(), Some(expected.as_bytes()), "{name}");
    }
    // A whiteout of the upper source removes a file of the lower ones, unless a layer is wanted.
    let whiteout = folder.path().join("whiteout.tar");
    fs::write(&whiteout, tar(".wh.a", b"")).expect("a file");
    let found = tree(&[lower.clone(), whiteout.clone()]).expect("a tree");
    assert!(found.child(found.root(), b"a").is_none() && found.child(found.root(), b"b").is_some());
    let mut options = Options::default();
    options.layer = true;
    let found = read(&[lower, whiteout], &options, &warn()).expect("a layer");
    let kept = found.child(found.root(), b"a").expect("a mark of overlayfs");
    assert!(matches!(found.node(kept).kind, NodeKind::CharDevice { .. }));
}

#[test]
fn a_compressed_disk_is_the_only_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("disk.img.gz");
    let disk = vec![7; 8192];
    fs::write(&path, gzip(&disk)).expect("a file");
    assert_eq!(content(&tree(&[path]).expect("a tree"), "disk.img"), Some(disk.clone()));
    let mut back = Vec::new();
    decompressed(&gzip(&disk)[..]).and_then(|mut source| source.read_to_end(&mut back)).expect("its content");
    assert_eq!(back, disk);
}

#[test]
fn errors_name_the_source_and_the_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let (disk, archive, cut) =
        (folder.path().join("a.img"), folder.path().join("a.tar"), folder.path().join("cut.tar.gz"));
    fs::write(&disk, [7; 8192]).expect("a file");
    fs::write(&archive, tar("a", b"text")).expect("a file");
    let whole = gzip(&tar("a", b"text"));
    fs::write(&cut, &whole[..whole.len() / 2]).expect("a file");
    let with = |change: &dyn Fn(&mut Options)| {
        let mut options = Options::default();
        change(&mut options);
        options
    };
    let platform = Platform::parse("linux/arm64").expect("a platform");
    for (sources, options) in [
        (vec!["-".into(), "-".into()], Options::default()),
        (vec![disk.clone(), archive.clone()], with(&|options| options.format = Some(Format::Raw))),
        (vec![archive.clone()], with(&|options| options.platform = Some(platform.clone()))),
    ] {
        let error = read(&sources, &options, &warn()).expect_err("impossible options");
        assert!(matches!(error, Error::Options(_)), "{error:?}");
    }
    let error = tree(&[archive, disk]).expect_err("a disk is not a layer");
    assert!(matches!(error, Error::Refused(_)), "{error:?}");
    for (path, cause) in [(folder.path().join("none"), "No such file"), (cut, "cut.tar.gz is damaged or truncated")] {
        let error = tree(&[path]).expect_err("no content");
        let text = format!("{error}: {}", error.source().expect("a cause"));
        assert!(matches!(error, Error::In { .. }) && text.contains(cause), "{text}");
    }
}

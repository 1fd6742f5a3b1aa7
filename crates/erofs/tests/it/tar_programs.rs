//! Generated archives: an image is what GNU tar and bsdtar extract, or the member is refused by
//! name.

use std::cell::Cell;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use pagefold_erofs::{BuildOptions, Image, Layer, ScanOptions, build};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::tar_writer::{Holes, Kind, Magic, Member, Numbers, archive};
use crate::tools::{Facts, Tree, assert_same, skip, tree_of_directory, tree_of_image};

const CASES: u32 = 100;

/// Paths with symbolic links among them, and names that make sums of signed bytes differ.
fn path() -> impl Strategy<Value = String> {
    let name = || prop::sample::select(vec!["a", "b", "d", "e", "l", "m", "é", "名"]);
    prop_oneof![
        4 => name().prop_map(str::to_owned),
        6 => (name(), name()).prop_map(|(one, two)| format!("{one}/{two}")),
        2 => (name(), name(), name()).prop_map(|(one, two, three)| format!("{one}/{two}/{three}")),
        1 => name().prop_map(|name| format!("d/{name}-{}", "n".repeat(120))),
    ]
}

fn kind() -> impl Strategy<Value = Kind> {
    let content = || prop::collection::vec(any::<u8>(), 0..1200);
    let span = (0u64..5000, prop::collection::vec(1u8.., 1..1200));
    let sparse = (prop::collection::vec(span, 0..4), 0u64..3000, 0..4usize).prop_map(|(gaps, end, holes)| {
        let mut at = 0;
        let mut spans = Vec::new();
        let last = gaps.len().saturating_sub(1);
        for (number, (gap, mut bytes)) in gaps.into_iter().enumerate() {
            // GNU tar begins each range in a block of its own.
            if number < last {
                bytes.resize(bytes.len().next_multiple_of(512), 1);
            }
            let start = at + gap;
            at = start + bytes.len() as u64;
            spans.push((start, bytes));
        }
        if end > 0 || spans.is_empty() {
            // GNU tar ends a map at the end of the file.
            spans.push((at + end, Vec::new()));
        }
        Kind::Sparse(at + end, spans, [Holes::Gnu, Holes::Pax00, Holes::Pax01, Holes::Pax10][holes])
    });
    let target = prop_oneof![
        path(),
        path().prop_map(|path| format!("../{path}")),
        path().prop_map(|path| format!("/{path}")),
        Just("d".to_owned()),
        Just("e".to_owned()),
        Just(".".to_owned()),
    ];
    prop_oneof![
        4 => content().prop_map(Kind::File),
        2 => sparse,
        2 => Just(Kind::Directory),
        3 => target.prop_map(Kind::Symlink),
        3 => path().prop_map(Kind::HardLink),
        1 => Just(Kind::Fifo),
    ]
}

fn member() -> impl Strategy<Value = Member> {
    let owner = || prop_oneof![0u32..70_000, Just(u32::MAX - 1), Just(3_000_000)];
    let time = prop_oneof![0i64..2_000_000_000, Just(-5), Just(1 << 33)];
    let names = prop::sample::select(vec!["user.a", "user.a=b", "user.p%q", "user.%3D", "user.é"]);
    let xattrs =
        prop::collection::btree_map(names.prop_map(str::to_owned), prop::collection::vec(any::<u8>(), 1..40), 0..3);
    let writer = (0..4usize, 0..4usize, any::<bool>(), any::<bool>(), any::<bool>(), 0u64..2000);
    (path(), kind(), 0u32..0o1000, (owner(), owner()), time, xattrs, writer).prop_map(
        |(path, kind, mode, owner, mtime, xattrs, (magic, numbers, signed, solaris, long, false_size))| {
            let holes = match &kind {
                Kind::Sparse(_, _, holes) => Some(*holes),
                _ => None,
            };
            let magic = match holes {
                Some(Holes::Gnu) => Magic::Gnu,
                Some(_) => Magic::Ustar,
                None => [Magic::Old, Magic::Ustar, Magic::UstarOf([0, b' ']), Magic::Gnu][magic],
            };
            let numbers = [Numbers::Octal, Numbers::Spaced, Numbers::Binary, Numbers::Pax][numbers];
            let readable = if matches!(kind, Kind::Directory) { 0o700 } else { 0o600 };
            let xattrs = if matches!(kind, Kind::File(_)) { xattrs.into_iter().collect() } else { Vec::new() };
            // Linux ignores the mode of a symbolic link.
            let mode = if matches!(kind, Kind::Symlink(_)) { 0o777 } else { mode | readable };
            Member {
                mode,
                owner,
                mtime,
                xattrs,
                magic,
                numbers,
                signed,
                pax_kind: if solaris { b'X' } else { b'x' },
                long,
                false_size: if matches!(kind, Kind::Directory | Kind::Symlink(_)) { false_size } else { 0 },
                ..Member::new(&path, kind)
            }
        },
    )
}

/// Returns what a program extracts; `None` if it fails.
fn extracted(program: &str, options: &[&str], bytes: &Path, out: &Path) -> Option<Tree> {
    fs::create_dir(out).unwrap();
    let run = Command::new(program).args(options).arg("-xpf").arg(bytes).arg("-C").arg(out).output().unwrap();
    let tree = run.status.success().then(|| tree_of_directory(out));
    fs::remove_dir_all(out).unwrap();
    tree
}

/// Leaves out what a program is known to extract wrongly.
fn made(mut members: Vec<Member>, program: &str) -> Vec<Member> {
    for (number, member) in members.iter_mut().enumerate() {
        // bsdtar believes sizes in PAX archives.
        if program == "bsdtar" {
            member.false_size = 0;
        }
        // GNU tar creates links that lead out of a directory last, even if a later member has
        // replaced them.
        if matches!(&member.kind, Kind::Symlink(target) if target.starts_with('/') || target.starts_with("..")) {
            member.path = format!("link-{number}");
        }
    }
    members
}

fn compared(test: &str, program: &str, options: &[&str], adjust: fn(&mut Tree)) {
    if Command::new(program).arg("--version").output().is_err() {
        return skip(test, &format!("{program} is not installed"));
    }
    // Directories that no member describes have the time of their extraction.
    let start = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let is_root = rustix::process::geteuid().is_root();
    let counts = [const { Cell::new(0) }; 3];
    let count = |cell: &Cell<u32>| cell.set(cell.get() + 1);
    let mut runner =
        TestRunner::new(ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() });
    let strategy = prop::collection::vec(member(), 1..6);
    let result = runner.run(&strategy, |members| {
        let front = ["./", "d", "e", "d/e"].map(Member::directory);
        let links = [Member::symlink("l", "d"), Member::symlink("d/m", "e")];
        let members = [&front[..], &links, &made(members, program)].concat();
        fs::write(at("tar"), archive(&members)).unwrap();
        let theirs = extracted(program, options, &at("tar"), &at("out"));
        let layer = Layer::from_tar(File::open(at("tar")).unwrap(), Path::new("the.tar"), &ScanOptions::default());
        let ours = match layer.and_then(Layer::into_tree) {
            Ok(tree) => {
                let out = File::options().read(true).write(true).create(true).truncate(true).open(at("image")).unwrap();
                build(&tree, &BuildOptions { threads: 1, ..BuildOptions::default() }, &out).unwrap();
                Ok(Image::open(out).unwrap())
            }
            Err(error) => Err(error.to_string()),
        };
        match (ours, theirs) {
            (Ok(ours), Some(theirs)) => {
                count(&counts[0]);
                let problems = ours.check(1).problems;
                assert!(problems.is_empty(), "{problems:?}");
                let (mut ours, mut theirs) = (tree_of_image(&ours), theirs);
                let is_new = |facts: &Facts| (start - 2..start + 3600).contains(&facts.mtime().0);
                let undescribed: Vec<_> =
                    theirs.iter().filter(|(_, facts)| is_new(facts)).map(|(path, _)| path.clone()).collect();
                for tree in [&mut ours, &mut theirs] {
                    adjust(tree);
                    for path in &undescribed {
                        tree.get_mut(path).into_iter().for_each(Facts::forget_metadata);
                    }
                    if !is_root {
                        tree.values_mut().for_each(|facts| facts.set_owner(0, 0));
                    }
                }
                assert_same(&theirs, &ours, program);
            }
            (Err(error), theirs) => {
                count(&counts[if theirs.is_some() { 1 } else { 2 }]);
                let named = members.iter().any(|member| error.starts_with(&format!("the.tar: {}: ", member.path)));
                assert!(named, "{error}");
            }
            (Ok(_), None) => {}
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    let [equal, refused, both] = counts.map(Cell::into_inner);
    assert!(equal > CASES / 10 && refused < CASES / 20, "{equal} {refused} {both}");
}

#[test]
fn gnu_tar_extracts_the_same() {
    let options = ["--numeric-owner", "--xattrs", "--xattrs-include=*"];
    compared("gnu_tar_extracts_the_same", "tar", &options, |_| {});
}

#[test]
fn bsdtar_extracts_the_same() {
    // It keeps the names of xattrs encoded, and the first description of a directory.
    let adjust = |tree: &mut Tree| {
        tree.values_mut().for_each(Facts::forget_xattrs);
        tree.values_mut().filter(|facts| facts.is_directory()).for_each(Facts::forget_metadata);
    };
    compared("bsdtar_extracts_the_same", "bsdtar", &["--numeric-owner"], adjust);
}

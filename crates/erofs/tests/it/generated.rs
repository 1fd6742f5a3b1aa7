//! Generated trees, built and read back.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use pagefold_roundtrip::{Case, Expected, Fsck, Keeps, Outcome, attempt, build_into, repack, shrink};

use crate::tools::{Mount, skip};

/// The number of cases that are read back, unless `PAGEFOLD_TREES` names another, as `scripts/soak` does.
const CASES: u64 = 2_500;
/// The number of cases that are mounted, and that `fsck.erofs` extracts.
const OTHERS: u64 = 200;
/// The number of cases to try when shrinking a failing one.
const SHRINK_TRIES: usize = 4000;

/// Shrinks a failing case and panics with it. `check` returns why a case fails.
fn fail<T>(seed: u64, case: &Case, check: impl Fn(&Case) -> Result<T, String>) -> ! {
    let why = check(case).err();
    let small = shrink(case, SHRINK_TRIES, &mut |case| check(case).is_err());
    let small_why = check(&small).err();
    panic!("seed {seed}: {why:?}\nThe smallest case that was found: {small_why:?}\n{small}");
}

#[test]
fn generated_trees_are_read_back() {
    let named = std::env::var("PAGEFOLD_TREES").ok();
    let cases = named.map_or(CASES, |count| count.parse().expect("PAGEFOLD_TREES is a number"));
    let (next, refused, failed) = (AtomicU64::new(0), AtomicU64::new(0), Mutex::new(None));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= cases {
                        break;
                    }
                    match attempt(&Case::from_seed(seed)) {
                        Ok(Outcome::Sound) => {}
                        Ok(Outcome::Refused(_)) => {
                            refused.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(_) => {
                            next.store(cases, Ordering::Relaxed);
                            failed.lock().unwrap().get_or_insert(seed);
                        }
                    }
                }
            });
        }
    });
    if let Some(seed) = failed.into_inner().unwrap() {
        fail(seed, &Case::from_seed(seed), attempt);
    }
    let refused = refused.into_inner();
    assert!(refused == 0, "{refused} of {cases} cases have options that are refused");
}

/// Builds cases until `check` has accepted [`OTHERS`] of them. `check` gets the image's path and
/// returns `None` for a case that it does not support.
fn others(check: impl Fn(&Case, &Expected, &Path) -> Option<Result<(), String>>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    let attempt = |case: &Case| -> Result<Option<()>, String> {
        let expected = Expected::of(case);
        match build_into(case, &expected, &path) {
            Err(pagefold_erofs::Error::Options(_)) => Ok(None),
            Err(error) => Err(error.to_string()),
            Ok(()) => check(case, &expected, &path).transpose(),
        }
    };
    let (mut seed, mut taken) = (CASES, 0);
    while taken < OTHERS {
        let case = Case::from_seed(seed);
        match attempt(&case) {
            Ok(None) => {}
            Ok(Some(())) => taken += 1,
            Err(_) => fail(seed, &case, attempt),
        }
        seed += 1;
        assert!(seed < CASES + 100 * OTHERS, "{taken} of {} cases were taken", seed - CASES);
    }
}

#[test]
fn generated_trees_mount() {
    let impossible = Mutex::new(None);
    others(|_, expected, path| match Mount::attempt(path) {
        Ok(Ok(mount)) => Some(expected.compare_directory(mount.path(), Keeps::ALL)),
        // Blocks longer than a page, or a codec that this kernel was built without.
        Ok(Err(refused)) if refused.unsupported => None,
        Ok(Err(_)) if blocks_are_long(path) => None,
        Ok(Err(refused)) => Some(Err(refused.message)),
        Err(why) => {
            *impossible.lock().unwrap() = Some(why);
            Some(Ok(()))
        }
    });
    if let Some(why) = impossible.into_inner().unwrap() {
        skip("generated_trees_mount", &why);
    }
}

/// Returns whether the image has blocks longer than a page, which Linux does not mount.
fn blocks_are_long(path: &Path) -> bool {
    let image = pagefold_erofs::Image::open_path(path).unwrap();
    image.superblock().block_bytes() > rustix::param::page_size() as u64
}

#[test]
fn fsck_extracts_generated_trees() {
    let test = "fsck_extracts_generated_trees";
    let Ok(fsck) = Fsck::new(&PathBuf::from("fsck.erofs")) else {
        return skip(test, "fsck.erofs is not installed");
    };
    if !rustix::process::geteuid().is_root() {
        return skip(test, "extracting owners and devices needs root");
    }
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("extracted");
    others(|case, expected, path| {
        if !fsck.takes(case) {
            return None;
        }
        let _ = fs::remove_dir_all(&target);
        Some(fsck.extract(path, &target).and_then(|()| expected.compare_directory(&target, fsck.keeps())))
    });
}

#[test]
fn generated_trees_are_extracted_and_packed_again() {
    let test = "generated_trees_are_extracted_and_packed_again";
    if !rustix::process::geteuid().is_root() {
        return skip(test, "extracting owners and devices needs root");
    }
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("extracted");
    others(|case, expected, path| {
        let _ = fs::remove_dir_all(&target);
        // The file system may not support long xattrs.
        repack(case, expected, path, &target).map(|took| took.then_some(())).transpose()
    });
}

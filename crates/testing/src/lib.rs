//! What the project's tests share: finding the real programs to test with, and saying so loudly
//! when one is missing.
#![forbid(unsafe_code)]

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

/// Says that `test` did not run, and why. With `PAGEFOLD_MUST_RUN=1` in the environment (as in CI),
/// it panics instead: there, what the machine can have must not be skipped.
///
/// # Panics
/// See above.
pub fn skip(test: &str, why: &str) {
    if env::var_os("PAGEFOLD_MUST_RUN").is_some_and(|value| value == "1") {
        panic!("{test} must run here, but: {why}");
    }
    skip_for_good(test, why);
}

/// Says that `test` did not run for a reason that no installing mends (a kernel without a feature,
/// no root).
pub fn skip_for_good(test: &str, why: &str) {
    eprintln!("\nSKIPPED: {test}: {why}");
}

/// The programs' paths, or `None` after [`skip`]ping `test`, if one is not on the `PATH`.
pub fn programs<const N: usize>(test: &str, names: [&str; N]) -> Option<[PathBuf; N]> {
    let mut found = names.map(PathBuf::from);
    for path in &mut found {
        match find(path) {
            Some(full) => *path = full,
            None => {
                skip(test, &format!("{} is not installed", path.display()));
                return None;
            }
        }
    }
    Some(found)
}

/// Copies a program that is to be run from `target`. Another process writes it: while this one has
/// a file open for writing, a child that another thread has just forked has it too, and a program
/// that is being written cannot be run (`ETXTBSY`).
///
/// # Panics
/// It cannot be copied.
pub fn copy_program(program: impl AsRef<Path>, target: impl AsRef<Path>) {
    let status = Command::new("cp").arg(program.as_ref()).arg(target.as_ref()).status().expect("cp starts");
    assert!(status.success(), "cp to {}: {status}", target.as_ref().display());
}

fn find(name: &Path) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|folder| folder.join(name))
        .find(|full| full.is_file())
}

//! Helpers that the project's tests share: they find the real programs to test with, and report
//! loudly when one is missing.
#![forbid(unsafe_code)]
#![allow(clippy::print_stderr, reason = "only tests use this crate")]

pub mod certificates;
pub mod registry;
pub mod web;

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

/// Reports that `test` did not run, and why.
///
/// # Panics
/// With `PAGEFOLD_MUST_RUN=1` in the environment (as in CI), where nothing that the machine can
/// provide may be skipped.
pub fn skip(test: &str, why: &str) {
    if env::var_os("PAGEFOLD_MUST_RUN").is_some_and(|value| value == "1") {
        panic!("{test} must run here, but: {why}");
    }
    skip_for_good(test, why);
}

/// Reports that `test` did not run for a reason that no installation can fix (a missing kernel
/// feature, no root).
pub fn skip_for_good(test: &str, why: &str) {
    eprintln!("\nSKIPPED: {test}: {why}");
}

/// Returns the programs' paths. If one is not on the `PATH`, [`skip`]s `test` and returns `None`.
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

/// Returns the path of moto's S3 server, which `make deps` installs. If it is not there, [`skip`]s `test`
/// and returns `None`.
pub fn moto(test: &str) -> Option<PathBuf> {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/moto/bin/moto_server");
    if let Some(found) = Some(installed).filter(|path| path.is_file()).or_else(|| find(Path::new("moto_server"))) {
        return Some(found);
    }
    skip(test, "moto is not installed: 'make deps' does that where Python has venv and pip");
    None
}

/// Copies a program so that it can be run from `target`. A separate process writes it. While this
/// process has a file open for writing, so has a child that another thread has just forked, and a
/// program that is open for writing cannot be run (`ETXTBSY`).
///
/// # Panics
/// If it cannot be copied.
pub fn copy_program(program: impl AsRef<Path>, target: impl AsRef<Path>) {
    let status = Command::new("cp").arg(program.as_ref()).arg(target.as_ref()).status().expect("cp starts");
    assert!(status.success(), "cp to {}: {status}", target.as_ref().display());
}

/// Returns the path of a program, if it is installed.
pub fn find(name: &Path) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|folder| folder.join(name))
        .find(|full| full.is_file())
}

//! Other projects' programs that the bench runs.

use std::{env, path::PathBuf, process::Command};

use anyhow::{Context, ensure};

/// Returns the path of a program, which may be only in root's PATH.
pub fn find(name: &str) -> anyhow::Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut folders = env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders
        .find_map(|folder| Some(folder.join(name)).filter(|full| full.is_file()))
        .with_context(|| format!("{name} is not installed; `make deps` installs it"))
}

/// Runs a program to completion. Shows its error output only if it fails.
pub fn run(command: &mut Command) -> anyhow::Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot start {name}"))?;
    ensure!(output.status.success(), "{name} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

//! Prerequisites of recipes.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde::Deserialize;

/// A prerequisite of a recipe.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Need {
    /// A program, and the Debian package that contains it.
    Program(String, String),
    /// A file or folder, and the Debian package that contains it.
    Path(String, String),
    /// A Python module that `scripts/kinds` installs in the folder of kinds.
    Module(String),
    /// The kernel and the shell for test guests.
    Guest,
}

/// Where `scripts/guest` puts the kernel, relative to the repository's root.
const GUEST: &str = "target/guest";

/// Directories with programs that an ordinary user's `PATH` may lack.
const SYSTEM: &str = "/usr/sbin:/sbin";

impl Need {
    pub(super) fn is_met(&self, dir: Option<&Path>) -> bool {
        match self {
            Need::Program(name, _) => env::split_paths(&search_path(None)).any(|folder| folder.join(name).is_file()),
            Need::Path(path, _) => Path::new(path).exists(),
            Need::Module(name) => dir.is_some_and(|dir| {
                let mut python = Command::new(environment(dir).join("python3"));
                python.args(["-c", &format!("import {name}")]).stderr(Stdio::null());
                python.status().is_ok_and(|status| status.success())
            }),
            Need::Guest => Path::new(GUEST).join("vmlinuz").exists(),
        }
    }

    /// Returns the Debian package to install, if one provides it.
    pub(super) fn package(&self) -> Option<&str> {
        match self {
            Need::Program(_, package) | Need::Path(_, package) => Some(package),
            Need::Module(_) | Need::Guest => None,
        }
    }

    pub(super) fn what_to_do(&self) -> String {
        match self {
            Need::Program(name, package) | Need::Path(name, package) => {
                format!("there is no {name}: install the package {package}, or run scripts/kinds")
            }
            Need::Module(name) => format!("Python's module {name} is not in the folder of kinds: run scripts/kinds"),
            Need::Guest => format!("{GUEST} has no kernel: run scripts/guest"),
        }
    }
}

/// Returns the program directory of the Python environment in the folder of kinds.
fn environment(dir: &Path) -> PathBuf {
    dir.join("python/bin")
}

/// Returns the search path for recipes' programs. If `dir` is given, its Python environment comes
/// first.
pub(super) fn search_path(dir: Option<&Path>) -> String {
    let path = env::var("PATH").unwrap_or_default();
    let first = dir.map(|dir| format!("{}:", environment(dir).display())).unwrap_or_default();
    format!("{first}{path}:{SYSTEM}")
}

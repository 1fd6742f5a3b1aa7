//! How kinds of data are obtained.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::{found::Wanted, script::Script};
use crate::synthetic::Maker;

/// A group of similar kinds. Both sets contain every family except the synthetic one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::codec) enum Family {
    /// Memory of programs in languages that manage it, and of servers.
    Heap,
    /// Files and memory of databases.
    Database,
    /// Characters that people or programs read.
    Text,
    /// Programs, libraries, fonts.
    Binary,
    /// Pictures and sound.
    Media,
    /// Columns and arrays of numbers.
    Number,
    /// Data of file systems and virtual machines.
    System,
    /// Pages generated from a seed.
    Synthetic,
}

/// A kind that a recipe yields.
pub(super) struct Yield {
    pub(super) name: &'static str,
    pub(super) family: Family,
}

/// A way to obtain pages of one kind, or of several kinds with content in common.
pub(crate) struct Recipe {
    pub(super) name: &'static str,
    /// Whether codecs were tuned on it before the sets were split.
    pub(super) first: bool,
    pub(super) needs: &'static [Need],
    pub(super) source: RecipeSource,
    /// At least one. The first one's family is the recipe's family.
    pub(super) kinds: &'static [Yield],
}

pub(super) enum RecipeSource {
    Files(Wanted),
    Script(Script),
    /// Pages that LZ4 compresses to this percentage.
    Synthetic(usize),
    /// Pages that imitate a kind of data.
    Made(Maker),
}

/// A prerequisite of a recipe.
pub(super) enum Need {
    /// A program, and the Debian package that contains it.
    Program(&'static str, &'static str),
    /// A file or folder, and the Debian package that contains it.
    Path(&'static str, &'static str),
    /// A Python module that `scripts/kinds` installs in the folder of kinds.
    Module(&'static str),
    /// The kernel and the shell for test guests.
    Guest,
}

/// Where `scripts/guest` puts the kernel, relative to the repository's root.
pub(super) const GUEST: &str = "target/guest";

/// Directories with programs that an ordinary user's `PATH` may lack.
const SYSTEM: &str = "/usr/sbin:/sbin";

impl Recipe {
    /// Returns the prerequisites that this machine lacks.
    pub(super) fn missing(&self, dir: Option<&Path>) -> impl Iterator<Item = &'static Need> {
        self.needs.iter().filter(move |need| !need.is_met(dir))
    }
}

impl Need {
    fn is_met(&self, dir: Option<&Path>) -> bool {
        match self {
            Need::Program(name, _) => env::split_paths(&search_path(None)).any(|folder| folder.join(name).is_file()),
            Need::Path(path, _) => Path::new(path).exists(),
            Need::Module(name) => dir.is_some_and(|dir| {
                let python = Command::new(environment(dir).join("python3"))
                    .args(["-c", &format!("import {name}")])
                    .stderr(Stdio::null())
                    .status();
                python.is_ok_and(|status| status.success())
            }),
            Need::Guest => Path::new(GUEST).join("vmlinuz").exists(),
        }
    }

    /// Returns the Debian package to install, if one provides it.
    pub(super) fn package(&self) -> Option<&'static str> {
        match self {
            Need::Program(_, package) | Need::Path(_, package) => Some(package),
            Need::Module(_) | Need::Guest => None,
        }
    }

    pub(super) fn what_to_do(&self) -> String {
        match self {
            Need::Program(name, package) => {
                format!("there is no {name}: install the package {package}, or run scripts/kinds")
            }
            Need::Path(path, package) => {
                format!("there is no {path}: install the package {package}, or run scripts/kinds")
            }
            Need::Module(name) => format!("Python's module {name} is not in the folder of kinds: run scripts/kinds"),
            Need::Guest => format!("{GUEST} has no kernel: run scripts/guest"),
        }
    }
}

/// Returns the program directory of the Python environment in the folder of kinds.
pub(super) fn environment(dir: &Path) -> PathBuf {
    dir.join("python/bin")
}

/// Returns the search path for recipes' programs. If `dir` is given, its Python environment comes
/// first.
pub(super) fn search_path(dir: Option<&Path>) -> String {
    let path = env::var("PATH").unwrap_or_default();
    let first = dir.map(|dir| format!("{}:", environment(dir).display())).unwrap_or_default();
    format!("{first}{path}:{SYSTEM}")
}

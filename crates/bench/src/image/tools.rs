//! Finds the programs to measure.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::ensure;
use pagefold_report::tool;

/// Where to look for programs.
pub(super) struct Tools {
    pub(super) pagefold: PathBuf,
    /// Searched before the PATH for the programs of erofs-utils.
    erofs_utils: Option<PathBuf>,
}

impl Tools {
    pub(super) fn new(pagefold: PathBuf, erofs_utils: Option<PathBuf>) -> anyhow::Result<Self> {
        if let Some(folder) = &erofs_utils {
            // Otherwise, the PATH's programs would be measured instead of the requested ones.
            let has_any = ["mkfs.erofs", "fsck.erofs", "erofsfuse"].iter().any(|name| folder.join(name).is_file());
            ensure!(has_any, "{} has none of mkfs.erofs, fsck.erofs and erofsfuse", folder.display());
        }
        Ok(Self { pagefold, erofs_utils })
    }

    /// Returns the path of program `name`, or `None` if it is not found.
    pub(super) fn find(&self, name: &str) -> Option<PathBuf> {
        let own = self.erofs_utils.iter().filter(|_| name.contains("erofs")).map(|folder| folder.join(name));
        own.into_iter().find(|path| path.is_file()).or_else(|| tool::find(name).ok())
    }

    /// Whether a program's help mentions `option`.
    pub(super) fn knows(program: &Path, arguments: &[&str], option: &str) -> bool {
        let output = Command::new(program).args(arguments).arg("--help").output();
        output.is_ok_and(|output| {
            let says = |text: &[u8]| String::from_utf8_lossy(text).contains(option);
            says(&output.stdout) || says(&output.stderr)
        })
    }

    /// Returns the first line of a program's version output.
    pub(super) fn version(program: &Path, argument: &str) -> String {
        let output = Command::new(program).arg(argument).output();
        let first = |text: &[u8]| String::from_utf8_lossy(text).lines().next().unwrap_or_default().trim().to_owned();
        match output {
            Ok(output) if !output.stdout.is_empty() => first(&output.stdout),
            Ok(output) => first(&output.stderr),
            Err(error) => error.to_string(),
        }
    }
}

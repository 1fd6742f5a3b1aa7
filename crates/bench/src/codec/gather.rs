//! Files named on the command line, as kinds of data.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;

/// Returns the content of each of `paths`, named by its file name, or by its whole path if two
/// files have the same name.
pub(crate) fn files(paths: &[PathBuf]) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let short = |path: &Path| path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let mut kinds = Vec::new();
    for path in paths {
        let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let unique = paths.iter().filter(|other| short(other) == short(path)).count() == 1;
        kinds.push((if unique { short(path) } else { path.display().to_string() }, bytes));
    }
    Ok(kinds)
}

//! The file with a server's process ID.

use std::{
    fs,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use anyhow::Context;
use pagefold_output::{Draft, Inputs, NewFile, Written};
use tempfile::NamedTempFile;

/// A file with the process id, removed when this value is dropped.
pub(super) struct PidFile(PathBuf);

impl PidFile {
    /// Checks that the file can be written, and that no other file is replaced than one of a server.
    pub(super) fn check(path: &Path) -> anyhow::Result<NewFile> {
        let checked = NewFile::at(path, Written::ProcessId, false, &Inputs::default());
        checked.with_context(|| format!("cannot write {}", path.display()))
    }

    /// Writes the file. It gets its name once it is complete, so readers never see a part of it.
    pub(super) fn write(file: NewFile) -> anyhow::Result<Self> {
        let failed = || format!("cannot write {}", file.path().display());
        let mut draft = NamedTempFile::new_in(file.folder()).with_context(failed)?;
        writeln!(draft, "{}", std::process::id()).with_context(failed)?;
        draft.as_file().set_permissions(fs::Permissions::from_mode(0o644)).with_context(failed)?;
        file.take(Draft::Named(draft))?;
        Ok(Self(file.path().to_owned()))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // Another server's file is left alone. A missing file needs no removal.
        let own = fs::read_to_string(&self.0).is_ok_and(|text| text.trim() == std::process::id().to_string());
        if own {
            let _ = fs::remove_file(&self.0);
        }
    }
}

//! The file with a server's process ID.

use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process,
};

use tempfile::NamedTempFile;

use crate::{
    draft::Draft,
    error::{During, Result},
    existing::Written,
    inputs::Inputs,
    lock::lock,
    new_file::NewFile,
};

/// A file with the id of this process, removed when this value is dropped.
#[derive(Debug)]
pub struct PidFile(PathBuf);

impl PidFile {
    /// Checks that the file can be written.
    ///
    /// # Errors
    /// It cannot be written, or it would replace an input or a file that is not a server's.
    pub fn check(path: &Path, inputs: &Inputs) -> Result<NewFile> {
        NewFile::at(path, Written::ProcessId, false, inputs)
    }

    /// Writes the file. It gets its name once it is complete, so readers never see a part of it.
    ///
    /// # Errors
    /// It cannot be written, or its name has another file now.
    pub fn write(file: NewFile) -> Result<Self> {
        let failed = || format!("cannot write {}", file.path().display());
        let mut draft = NamedTempFile::new_in(file.folder()).during(failed)?;
        writeln!(draft, "{}", process::id()).during(failed)?;
        draft.as_file().set_permissions(fs::Permissions::from_mode(0o644)).during(failed)?;
        let _lock = locked(file.folder());
        file.take(Draft::Named(draft))?;
        Ok(Self(file.path().to_owned()))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        let _lock = self.0.parent().and_then(locked);
        // Another server's file is left alone. A missing file needs no removal.
        let own = fs::read_to_string(&self.0).is_ok_and(|text| text.trim() == process::id().to_string());
        if own {
            let _ = fs::remove_file(&self.0);
        }
    }
}

/// Locks a directory against other servers that write or remove their files there at this moment, if
/// that is possible in a short time.
fn locked(folder: &Path) -> Option<File> {
    let folder = File::open(folder).ok()?;
    lock(&folder).ok().map(|()| folder)
}

//! What a program hands over with a server in addition to its disks.

use std::os::fd::OwnedFd;

/// Named open files and texts that are handed over with a server to the process that continues it.
#[derive(Debug, Default)]
pub struct Belongings {
    /// Open files, of which a server has at most 64.
    pub files: Vec<(String, OwnedFd)>,
    /// Texts.
    pub texts: Vec<(String, String)>,
}

impl Belongings {
    /// Takes the file with this name.
    pub fn take_file(&mut self, name: &str) -> Option<OwnedFd> {
        let index = self.files.iter().position(|(found, _)| found == name)?;
        Some(self.files.swap_remove(index).1)
    }

    /// Returns the text with this name.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.texts.iter().find(|(found, _)| found == name).map(|(_, text)| &**text)
    }
}

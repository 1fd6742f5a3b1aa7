//! An export as a file.

use std::{
    fs,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{bail, ensure};
use pagefold_report::tool;
use tempfile::TempDir;

/// How long `nbdfuse` may take: the first bytes may come from far away.
const START: Duration = Duration::from_secs(120);

/// An export as a file, through `nbdfuse`, unmounted on drop.
pub(crate) struct DiskFile {
    nbdfuse: Child,
    at: TempDir,
}

impl DiskFile {
    pub(crate) fn new(uri: &str) -> anyhow::Result<Self> {
        let at = TempDir::new()?;
        let nbdfuse = Command::new(tool::find("nbdfuse")?).arg(at.path()).arg(uri).spawn()?;
        let mut disk = Self { nbdfuse, at };
        let deadline = Instant::now() + START;
        while !fs::exists(disk.path())? {
            if let Some(status) = disk.nbdfuse.try_wait()? {
                bail!("nbdfuse ended: {status}");
            }
            ensure!(Instant::now() < deadline, "nbdfuse does not mount {uri}");
            thread::sleep(Duration::from_millis(1));
        }
        Ok(disk)
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.at.path().join("nbd")
    }
}

impl Drop for DiskFile {
    fn drop(&mut self) {
        // A loop device over the file is released shortly after its file system is unmounted.
        for _ in 0..100 {
            if self.nbdfuse.try_wait().is_ok_and(|status| status.is_some()) {
                return;
            }
            // It may have been unmounted already.
            let _ = Command::new("fusermount3").arg("-u").arg(self.at.path()).stderr(Stdio::null()).status();
            thread::sleep(Duration::from_millis(20));
        }
        eprintln!("{} could not be unmounted", self.at.path().display());
        let _ = self.nbdfuse.kill();
        let _ = self.nbdfuse.wait();
    }
}

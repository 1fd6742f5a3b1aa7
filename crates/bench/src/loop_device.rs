//! A loop device of the kernel over a file.

use std::path::{Path, PathBuf};

use anyhow::Context;
use pagefold_attach::loop_device;

/// A writable loop device, detached on drop.
pub(crate) struct LoopDevice(u32);

impl LoopDevice {
    pub(crate) fn new(file: &Path) -> anyhow::Result<Self> {
        Ok(Self(loop_device::attach(file, false, None).context("no loop device")?))
    }

    pub(crate) fn path(&self) -> PathBuf {
        loop_device::path(self.0)
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // A device that cannot be detached stays until the machine restarts.
        let _ = loop_device::detach(self.0);
    }
}

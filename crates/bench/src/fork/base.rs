//! A disk of real files, raw and packed.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use anyhow::Context;
use pagefold_base::{Base, Cache, Options};
use pagefold_disk::{BlockDevice, Checked};
use pagefold_kinds::trees;
use pagefold_report::{Output, tool};
use tempfile::TempDir;

use super::args::Args;
use crate::image::process::{self, Ran};

/// Size of every reader's cache of decoded clusters: the server's default.
pub(super) const CACHE_BYTES: usize = 64 << 20;

/// An ext4 disk and an EROFS image of it, in a folder that is removed on drop.
pub(super) struct BaseFiles {
    scratch: TempDir,
    pub(super) len_bytes: u64,
    packed_in: Ran,
}

impl BaseFiles {
    /// Copies the files, makes a disk from them with room for the files that are copied into forks,
    /// and packs it.
    pub(super) fn make(pagefold: &Path, args: &Args) -> anyhow::Result<Self> {
        let scratch =
            TempDir::new_in(&args.servers.scratch).context("cannot create a temporary directory for the base")?;
        let tree = scratch.path().join("tree");
        trees::copied(args.data.iter().map(PathBuf::as_path), args.mib, &tree)?;
        let (mkfs, raw) = (tool::find("mkfs.ext4")?, scratch.path().join("base.img"));
        process::run(&mut trees::ext4(&mkfs, &tree, &raw, &[&args.install])?, 1)?;
        fs::remove_dir_all(&tree)?;
        let mut base = Self { scratch, len_bytes: 0, packed_in: Ran { seconds: 0.0, peak_rss_bytes: 0.0 } };
        let mut pack = Command::new(pagefold);
        pack.arg("pack").arg(base.raw()).arg("-o").arg(base.packed());
        base.packed_in = process::run(&mut pack, 0)?;
        base.len_bytes = fs::metadata(base.raw())?.len();
        Ok(base)
    }

    /// Returns the path of the raw disk.
    pub(super) fn raw(&self) -> PathBuf {
        self.scratch.path().join("base.img")
    }

    /// Returns the path of the packed disk.
    pub(super) fn packed(&self) -> PathBuf {
        self.scratch.path().join("base.erofs")
    }

    /// Opens the packed disk with its own cache.
    pub(super) fn open(&self) -> anyhow::Result<Arc<dyn BlockDevice>> {
        let base =
            Base::open(&self.packed(), &Options::default(), &Cache::new(CACHE_BYTES), |line| eprintln!("{line}"))?;
        Ok(Arc::new(Checked::new(base)))
    }

    /// Opens the raw disk, to compare with.
    pub(super) fn raw_file(&self) -> anyhow::Result<File> {
        File::open(self.raw()).context("cannot open the base")
    }

    pub(super) fn print(&self, output: &mut Output) {
        let packed_bytes = fs::metadata(self.packed()).map_or(f64::NAN, |metadata| metadata.len() as f64);
        output.put("base", "disk_bytes", self.len_bytes as f64, "bytes");
        output.put("base", "packed_bytes", packed_bytes, "bytes");
        output.put("base", "pack_s", self.packed_in.seconds, "s");
    }
}

//! Programs that build an image from a directory.

use std::{fs, os::unix::fs::MetadataExt, path::Path, process::Command};

use anyhow::{Context, bail};
use pagefold_kinds::trees::needs;

use super::{
    case::Case,
    process::{self, Ran},
    tools::Tools,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Builder {
    Pagefold,
    MkfsErofs,
    MkSquashfs,
    MkfsExt4,
}

impl Builder {
    pub(super) const ALL: [Self; 4] = [Self::Pagefold, Self::MkfsErofs, Self::MkSquashfs, Self::MkfsExt4];

    /// Returns the name used in figures.
    pub(super) fn subject(self) -> &'static str {
        match self {
            Self::Pagefold => "pagefold",
            Self::MkfsErofs => "mkfs.erofs",
            Self::MkSquashfs => "mksquashfs",
            Self::MkfsExt4 => "mkfs.ext4",
        }
    }

    /// Builds `image` from the directory `source` with `threads` threads. ext4 ignores `case`,
    /// since it does not compress.
    pub(super) fn build(
        self,
        tools: &Tools,
        case: &Case,
        threads: usize,
        source: &Path,
        image: &Path,
    ) -> anyhow::Result<Ran> {
        let _ = fs::remove_file(image);
        let program = match self {
            Self::Pagefold => tools.pagefold.clone(),
            _ => tools.find(self.subject()).with_context(|| format!("{} is not installed", self.subject()))?,
        };
        let mut command = Command::new(&program);
        match self {
            Self::Pagefold => {
                command.arg("pack").args(case.pagefold()).arg("--threads").arg(threads.to_string());
                command.arg("-o").arg(image).arg(source);
            }
            Self::MkfsErofs => {
                command.arg("--quiet").args(case.mkfs_erofs());
                if Tools::knows(&program, &[], "--workers") {
                    command.arg(format!("--workers={threads}"));
                } else if threads > 1 {
                    bail!("this mkfs.erofs has no threads");
                }
                command.arg(image).arg(source);
            }
            Self::MkSquashfs => {
                command.arg(source).arg(image).args(["-noappend", "-quiet", "-no-progress"]);
                command.arg("-processors").arg(threads.to_string()).args(case.mksquashfs());
            }
            Self::MkfsExt4 => {
                if threads > 1 {
                    bail!("mkfs.ext4 has no threads");
                }
                let (blocks, inodes) = needs(source)?;
                // Leave room for the tables. Unused blocks remain holes in the image and are not
                // counted.
                let blocks = blocks + blocks / 8 + inodes / 8 + 4096;
                command.args(["-q", "-F", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-b", "4096"]);
                command.arg("-N").arg((inodes + 64).to_string()).arg("-d").arg(source).arg(image);
                command.arg(blocks.to_string());
            }
        }
        process::run(&mut command, threads)
    }
}

/// Returns the size of an image, without the holes that `mkfs.ext4` leaves in it.
pub(super) fn image_bytes(builder: Builder, image: &Path) -> anyhow::Result<f64> {
    let metadata = fs::metadata(image)?;
    Ok(match builder {
        Builder::MkfsExt4 => {
            rustix::fs::fsync(fs::File::open(image)?)?;
            fs::metadata(image)?.blocks() as f64 * 512.0
        }
        _ => metadata.len() as f64,
    })
}

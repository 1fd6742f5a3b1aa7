//! Ways to read an image.

use std::path::Path;

use anyhow::{Context, bail};
use pagefold_erofs::Image;

use super::{builder::Builder, mounted::Mounted, reads::Access, tools::Tools};

/// A way to read an image.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ImageReader {
    Library,
    PagefoldFuse,
    KernelErofs,
    KernelMkfsErofs,
    ErofsFuse,
    KernelSquashfs,
    SquashFuse,
    KernelExt4,
}

impl ImageReader {
    pub(super) const ALL: [Self; 8] = [
        Self::Library,
        Self::PagefoldFuse,
        Self::KernelErofs,
        Self::KernelMkfsErofs,
        Self::ErofsFuse,
        Self::KernelSquashfs,
        Self::SquashFuse,
        Self::KernelExt4,
    ];

    pub(super) fn subject(self) -> &'static str {
        match self {
            Self::Library => "pagefold",
            Self::PagefoldFuse => "pagefold-fuse",
            Self::KernelErofs => "kernel-erofs",
            Self::KernelMkfsErofs => "kernel-mkfs.erofs",
            Self::ErofsFuse => "erofsfuse",
            Self::KernelSquashfs => "kernel-squashfs",
            Self::SquashFuse => "squashfuse",
            Self::KernelExt4 => "kernel-ext4",
        }
    }

    /// Returns the builder of the image that it reads.
    pub(super) fn builder(self) -> Builder {
        match self {
            Self::Library | Self::PagefoldFuse | Self::KernelErofs | Self::ErofsFuse => Builder::Pagefold,
            Self::KernelMkfsErofs => Builder::MkfsErofs,
            Self::KernelSquashfs | Self::SquashFuse => Builder::MkSquashfs,
            Self::KernelExt4 => Builder::MkfsExt4,
        }
    }

    /// Opens the image again and calls `act` with it.
    pub(super) fn with<T>(
        self,
        tools: &Tools,
        image: &Path,
        act: impl FnOnce(&Access<'_>) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let installed = |name: &str| tools.find(name).with_context(|| format!("{name} is not installed"));
        let mounted = match self {
            Self::Library => {
                let image = Image::open_path(image)?;
                return act(&Access::Library(&image));
            }
            Self::PagefoldFuse => {
                if !Tools::knows(&tools.pagefold, &["mount"], "--foreground") {
                    bail!("this pagefold cannot mount");
                }
                Mounted::fuse(&tools.pagefold, &["mount"], image)
            }
            Self::KernelErofs | Self::KernelMkfsErofs => Mounted::kernel(image, "erofs"),
            Self::ErofsFuse => Mounted::fuse(&installed("erofsfuse")?, &[], image),
            Self::KernelSquashfs => Mounted::kernel(image, "squashfs"),
            Self::SquashFuse => Mounted::fuse(&installed("squashfuse")?, &[], image),
            Self::KernelExt4 => Mounted::kernel(image, "ext4"),
        };
        act(&Access::Folder(mounted?.path()))
    }
}

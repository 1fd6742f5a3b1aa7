//! The table of the EROFS paper (Gao et al., USENIX ATC 2019, section 5): one large text file read
//! sequentially from ext4, EROFS and squashfs, with the image sizes.

use std::path::Path;

use pagefold_report::Output;

use super::{
    builder,
    data::Data,
    reader::ImageReader,
    reads::{self, Reads},
    tools::Tools,
};

/// Builds an image of each type and reads them in turn: `cold`, with the image evicted from this
/// machine's page cache before each pass, and `warm`, with the image cached. Uses one thread,
/// 128 KiB requests, and kernel mounts over loop devices.
pub(super) fn run(
    tools: &Tools,
    data: &Data,
    rounds: usize,
    scratch: &Path,
    results: &mut Output,
) -> anyhow::Result<()> {
    let reads = Reads::of(&data.folder, u64::MAX)?;
    let mut images = Vec::new();
    for (subject, reader, cluster) in [
        ("kernel-ext4", ImageReader::KernelExt4, "4K"),
        ("kernel-erofs-4k", ImageReader::KernelErofs, "4K"),
        ("pagefold-4k", ImageReader::Library, "4K"),
        ("kernel-mkfs.erofs-4k", ImageReader::KernelMkfsErofs, "4K"),
        ("kernel-squashfs-4k", ImageReader::KernelSquashfs, "4K"),
        ("kernel-squashfs-8k", ImageReader::KernelSquashfs, "8K"),
        ("kernel-squashfs-16k", ImageReader::KernelSquashfs, "16K"),
        ("kernel-squashfs-128k", ImageReader::KernelSquashfs, "128K"),
    ] {
        let case = format!("lz4@{cluster}").parse().map_err(anyhow::Error::msg)?;
        let image = scratch.join(format!("{subject}.image"));
        let name = format!("{}/source-table", data.name);
        let outcome = reader.builder().build(tools, &case, 1, &data.folder, &image).and_then(|_| {
            let bytes = builder::image_bytes(reader.builder(), &image)?;
            results.put_of(subject, &name, "image_bytes", bytes, "bytes");
            reader.with(tools, &image, |access| reads.verify(access, &data.folder))
        });
        match outcome {
            Ok(()) => images.push((subject, reader, image)),
            Err(error) => results.skip(subject, &error),
        }
    }
    for _ in 0..rounds {
        for (subject, reader, image) in &images {
            for cache in ["cold", "warm"] {
                if cache == "cold" {
                    reads::cool(image)?;
                } else {
                    reads::warm(image)?;
                }
                let name = format!("{}/source-table/{cache}", data.name);
                let speed = reader.with(tools, image, |access| reads.sequential(access, 1))?;
                results.put_of(subject, &name, "seq_read_mb_s", speed, "MB/s");
            }
        }
    }
    Ok(())
}

//! `pagefold info`: what an image is.

use std::{fmt::Write as _, io::Write as _};

use pagefold_erofs::{FileKind, Image, Inode};

use crate::image::{ImageArgs, Place};
use crate::output::output;
use crate::size;

/// Show what an EROFS image is, or a file in it
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold info rootfs.erofs
  pagefold info rootfs.erofs:/usr/bin/env
  pagefold info --read rootfs.erofs")]
pub(crate) struct Args {
    /// The image, and a path in it
    #[arg(value_name = "IMAGE[:PATH]")]
    place: Place,

    #[command(flatten)]
    image: ImageArgs,

    /// Read all files, or those at the path and below, and say how many clusters were decoded in place
    #[arg(long)]
    read: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let image = args.image.open(&args.place.image)?;
    let mut out = output();
    if args.place.path.is_empty() {
        write!(out, "{}", superblock(&image))?;
    } else {
        let inode = crate::image::resolve(&image, &args.place.path)?;
        writeln!(out, "{}", crate::image::long(&inode))?;
        writeln!(out, "nid            {}", inode.nid)?;
        writeln!(out, "layout         {:?}", inode.layout)?;
        for xattr in image.xattrs(&inode)? {
            writeln!(out, "xattr          {} ({} bytes)", crate::image::show(&xattr.name), xattr.value.len())?;
        }
    }
    if args.read {
        read_all(&image, crate::image::resolve(&image, &args.place.path)?)?;
        let counts = image.counts();
        let all = counts.decoded_in_place + counts.decoded_by_copy;
        writeln!(out, "decoded        {all} clusters, {} of them in place", counts.decoded_in_place)?;
    }
    out.flush()?;
    Ok(())
}

fn superblock(image: &Image) -> String {
    let superblock = image.superblock();
    let uuid: String = superblock.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let name = superblock.volume_name.split(|byte| *byte == 0).next().unwrap_or_default();
    let formats: Vec<_> = superblock.formats().iter().map(|format| format!("{format:?}")).collect();
    let mut text = String::new();
    let mut line = |key: &str, value: &str| {
        let _ = writeln!(text, "{key:<14} {value}");
    };
    line("size", &format!("{} ({} bytes)", size::show(image.len_bytes()), image.len_bytes()));
    line("block", &format!("{} bytes", superblock.block_bytes()));
    line("inodes", &superblock.inos.to_string());
    line("time", &crate::image::date(superblock.build_time_s.cast_signed(), superblock.build_time_nsec));
    line("uuid", &uuid);
    line("volume", &crate::image::show(name));
    line("formats", &formats.join(" ").to_lowercase());
    let bits = format!("compatible {:#x}, incompatible {:#x}", superblock.feature_compat, superblock.feature_incompat);
    line("features", &format!("{bits}: {}", superblock.feature_names().join(", ")));
    text
}

/// Reads what is at `start` and below it.
fn read_all(image: &Image, start: Inode) -> anyhow::Result<()> {
    let mut piece = vec![0; 1 << 20];
    let mut seen = std::collections::HashSet::from([start.nid]);
    let mut stack = vec![start];
    while let Some(inode) = stack.pop() {
        if inode.kind == FileKind::Directory {
            for entry in image.read_dir(&inode)? {
                if seen.insert(entry.nid) {
                    stack.push(image.inode(entry.nid)?);
                }
            }
        } else if inode.kind == FileKind::Regular {
            let file = image.file(&inode)?;
            let mut at = 0;
            while let len @ 1.. = file.read_at(&mut piece, at)? {
                at += len as u64;
            }
        }
    }
    Ok(())
}

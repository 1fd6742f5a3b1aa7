//! `pagefold info`: describes an image.

use std::{fmt::Write as _, io::Write as _};

use anyhow::Context;
use pagefold_erofs::{FileKind, Image, Inode, ReadCounts};

use crate::output::output;
use crate::{
    image::{ImageArgs, ImagePath, long, resolve},
    text::{date, show},
};
use crate::{record, size};

/// Describe an EROFS image, or a file in it
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold info rootfs.erofs
  pagefold info rootfs.erofs:/usr/bin/env
  pagefold info --read rootfs.erofs
  pagefold info --json rootfs.erofs
  pagefold info --offset 1M firmware.bin")]
pub(crate) struct Args {
    /// The image, and a path in it
    #[arg(value_name = "IMAGE[:PATH]")]
    place: ImagePath,

    /// Also read all files, or those at and below PATH, and count the clusters decoded in place
    #[arg(long)]
    read: bool,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    image: ImageArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let image = args.image.open(&args.place.image)?;
    let path = &args.place.path;
    let inode = if path.is_empty() { None } else { Some(resolve(&image, &args.place.image, path)?) };
    let mut out = output();
    if args.json {
        let mut record = match &inode {
            Some(inode) => record::file(&image, inode, &record::path(path, b"")).with_context(|| show(path))?,
            None => record::image(&image),
        };
        if args.read {
            let counts = read(&image, inode)?;
            record = record
                .field("decoded", counts.decoded_in_place + counts.decoded_by_copy)
                .field("decoded_in_place", counts.decoded_in_place);
        }
        record.write(&mut out)?;
        out.flush()?;
        return Ok(());
    }
    match &inode {
        None => write!(out, "{}", superblock(&image))?,
        Some(inode) => {
            writeln!(out, "{}", long(inode))?;
            writeln!(out, "nid            {}", inode.nid)?;
            writeln!(out, "layout         {:?}", inode.layout)?;
            for xattr in image.xattrs(inode)? {
                let len = xattr.value.len();
                let plural = if len == 1 { "" } else { "s" };
                writeln!(out, "xattr          {} ({len} byte{plural})", show(&xattr.name))?;
            }
        }
    }
    if args.read {
        let counts = read(&image, inode)?;
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
    line("time", &date(superblock.build_time_s.cast_signed(), superblock.build_time_nsec));
    line("uuid", &uuid);
    line("volume", &show(name));
    if superblock.extra_devices > 0 {
        line("other devices", &superblock.extra_devices.to_string());
    }
    line("formats", &formats.join(" ").to_lowercase());
    let bits = format!("compatible {:#x}, incompatible {:#x}", superblock.feature_compat, superblock.feature_incompat);
    line("features", &format!("{bits}: {}", superblock.feature_names().join(", ")));
    text
}

/// Reads `start`, or the root, and everything below it. Returns the counts of what was read.
fn read(image: &Image, start: Option<Inode>) -> anyhow::Result<ReadCounts> {
    let start = start.map_or_else(|| image.root(), Ok)?;
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
    Ok(image.counts())
}

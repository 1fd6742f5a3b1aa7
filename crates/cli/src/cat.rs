//! `pagefold cat`: prints a file from an image.

use std::io::Write;

use anyhow::{anyhow, bail};
use pagefold_erofs::{FileKind, Image, Inode};

use crate::output::output;
use crate::report::misuse;
use crate::{
    image::{ImageArgs, ImagePath, resolve},
    text::show,
};

/// Bytes per read and write.
const PIECE_BYTES: usize = 1 << 20;

/// Write a file of an EROFS image to standard output
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold cat rootfs.erofs:/etc/os-release
  pagefold cat --offset 1M firmware.bin:/etc/os-release")]
pub(crate) struct Args {
    /// The image and a path in it
    #[arg(value_name = "IMAGE:PATH")]
    place: ImagePath,

    #[command(flatten)]
    image: ImageArgs,
}

/// Maximum length of a chain of symbolic links, as on Linux.
const MAX_LINKS: u32 = 40;

/// Returns the regular file at `path`, or the one that a symbolic link there leads to.
fn follow(image: &Image, place: &ImagePath) -> anyhow::Result<Inode> {
    let mut at = place.path.clone();
    let shown = || format!("{}:{}", pagefold_storage::shown(&place.image), show(&place.path));
    for _ in 0..MAX_LINKS {
        let inode = resolve(image, &place.image, &at)?;
        match inode.kind {
            FileKind::Regular => return Ok(inode),
            FileKind::Symlink => {
                let target = image.read_link(&inode)?;
                while at.pop_if(|byte| *byte == b'/').is_some() {}
                let name = at.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
                at.truncate(if target.starts_with(b"/") { 0 } else { name });
                at.extend(target);
            }
            FileKind::Directory => bail!("{}: is a directory", shown()),
            _ => bail!("{}: not a regular file", shown()),
        }
    }
    bail!("{}: too many symbolic links", shown())
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let image = args.image.open(&args.place.image)?;
    if args.place.path.is_empty() {
        return Err(misuse(anyhow!(
            "no file given: append its path to the image, as in {}:PATH",
            args.place.image.display()
        )));
    }
    args.image.inputs(&args.place.image).check_standard_output()?;
    let file = image.file(&follow(&image, &args.place)?)?;
    let mut out = output();
    let mut piece = vec![0; PIECE_BYTES];
    let mut at = 0;
    loop {
        let len = file.read_at(&mut piece, at)?;
        if len == 0 {
            out.flush()?;
            return Ok(());
        }
        out.write_all(&piece[..len])?;
        at += len as u64;
    }
}

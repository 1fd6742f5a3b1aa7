//! `pagefold cat`: a file's content from an image.

use std::io::{self, Write};

use crate::image::{Place, open};

/// Bytes that are read and written together.
const PIECE_BYTES: usize = 1 << 20;

/// Write a file of an EROFS image to standard output
#[derive(clap::Args)]
#[command(after_help = "Example:
  pagefold cat rootfs.erofs:/etc/os-release")]
pub(crate) struct Args {
    /// The image and a path in it
    #[arg(value_name = "IMAGE:PATH")]
    place: Place,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let image = open(&args.place.image)?;
    let file = image.file(&image.resolve(&args.place.path)?)?;
    let mut out = io::stdout().lock();
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

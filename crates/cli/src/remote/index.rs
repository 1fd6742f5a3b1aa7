//! `pagefold index`: makes the chunk index of an image.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::Context;
use pagefold_output::{Inputs, NewFile, Written};
use pagefold_remote::{INDEX_SUFFIX, Sum};

use super::parts::Opened;
use crate::{output::output, storage::RemoteArgs};

/// Write the chunk index of an EROFS image, which must lie next to it on a web server
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold index debian.erofs
  scp debian.erofs debian.erofs.chunk-index host:/srv/www/
  pagefold serve https://host/debian.erofs

The command prints the index's SHA-256 sum. A URL that ends with '#' and this sum \
always names the same bytes: 'pagefold serve https://host/debian.erofs#sha256:…'.")]
pub(crate) struct Args {
    /// The image
    #[arg(value_name = "IMAGE")]
    image: PathBuf,

    /// A file or URL that holds data of the image ('pagefold freeze --backing'); repeat in the order
    /// of the image's device table
    #[arg(long = "device", value_name = "FILE")]
    devices: Vec<PathBuf>,

    /// The index [default: the image's name with .chunk-index appended]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Replace an existing file of another kind
    #[arg(short, long)]
    force: bool,

    #[command(flatten)]
    remote: RemoteArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let name = || args.image.display().to_string();
    let mut inputs = Inputs::default();
    inputs.add("the image", &args.image);
    args.devices.iter().for_each(|device| inputs.add("the device", device));
    let mut usual = args.image.clone().into_os_string();
    usual.push(INDEX_SUFFIX);
    let path = args.output.as_deref().unwrap_or(Path::new(&usual));
    let new = NewFile::at(path, Written::ChunkIndex, args.force, &inputs)?;
    let Opened { storage, clusters, .. } = Opened::open(&args.image, &args.devices, &args.remote)?;
    let index = pagefold_remote::index(&*storage, &clusters).with_context(name)?.encode();
    let draft = new.make_draft()?;
    draft.file().write_all(&index).with_context(|| path.display().to_string())?;
    new.take(draft)?;
    let mut out = output();
    writeln!(out, "{}", Sum::of(&index))?;
    out.flush()?;
    Ok(())
}

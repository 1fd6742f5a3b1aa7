//! `pagefold fetch`: fetches a whole remote image into the cache.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::Context;
use pagefold_output::{ImageFormat, Inputs, NewFile, Written};
use pagefold_remote::{LayerFile, Options, Remote};

use super::RemoteArgs;
use crate::{output::output, progress::ProgressLine};

/// What the name of the file next to a layer ends with.
const TREE_SUFFIX: &str = ".dmverity";

/// Fetch a remote image into the cache as a whole
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold fetch oci://registry.example/disks/debian:13
  pagefold serve --offline oci://registry.example/disks/debian:13
  pagefold fetch --layer-cache /srv/layers oci://registry.example/apps/a:1

The command prints the location with the SHA-256 sum of what it names now.")]
pub(crate) struct Args {
    /// The image: https://HOST/PATH, s3://BUCKET/KEY or oci://REGISTRY/REPOSITORY:TAG
    #[arg(value_name = "LOCATION")]
    location: String,

    /// Also write the image with a dm-verity tree to this directory, one of the layer_content_caches
    /// of containerd
    #[arg(long, value_name = "DIR")]
    layer_cache: Option<PathBuf>,

    #[command(flatten)]
    remote: RemoteArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let remote = args.remote.open_remote(&args.location)?;
    match &args.layer_cache {
        Some(directory) => write_layer(&remote, &args.remote.options()?, directory)?,
        None => fetch_all(&remote)?,
    }
    let mut out = output();
    match remote.fixed() {
        Some(fixed) => writeln!(out, "{fixed}")?,
        None => writeln!(out, "{}", args.location)?,
    }
    out.flush()?;
    Ok(())
}

fn fetch_all(remote: &Remote) -> anyhow::Result<()> {
    let blobs = remote.blobs();
    let total = blobs.iter().map(|blob| blob.index().size_bytes()).sum();
    let mut line = ProgressLine::new();
    let mut before = 0;
    for blob in blobs {
        blob.fetch_all(&mut |done| line.show(before + done, total))?;
        before += blob.index().size_bytes();
    }
    Ok(())
}

/// Writes an image to a cache of layers, unless it is there and undamaged.
fn write_layer(remote: &Remote, options: &Options, directory: &Path) -> anyhow::Result<()> {
    let layer = LayerFile::of(remote)?;
    let path = directory.join(layer.path());
    let mut beside = path.clone().into_os_string();
    beside.push(TREE_SUFFIX);
    let beside = PathBuf::from(beside);
    let name = || path.display().to_string();
    if beside.exists()
        && let Ok(file) = File::open(&path)
        && layer.is_in(&file).with_context(name)?
    {
        return Ok(());
    }
    fs::create_dir_all(path.parent().unwrap_or(directory)).with_context(name)?;
    // What the names had before is not what they stand for.
    let new = |path| NewFile::at(path, Written::Image(ImageFormat::Erofs), true, &Inputs::default());
    let (new, new_beside) = (new(&path)?, new(&beside)?);
    let draft = new.make_draft()?;
    let mut line = ProgressLine::new();
    let total = layer.size_bytes();
    let text = layer.write(draft.file(), options, &mut |done| line.show(done, total)).with_context(name)?;
    drop(line);
    let draft_beside = new_beside.make_draft()?;
    draft_beside.file().write_all(text.as_bytes()).with_context(|| beside.display().to_string())?;
    // containerd takes a layer once it has its name, and what has both names is not written again.
    for (new, draft) in [(new_beside, draft_beside), (new, draft)] {
        draft.file().sync_all().with_context(|| new.path().display().to_string())?;
        new.take(draft)?;
    }
    Ok(())
}

//! `pagefold fetch`: fetches a whole remote image into the cache.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use pagefold_output::{Draft, ImageFormat, Inputs, NewFile, Written};
use pagefold_remote::{LayerFile, Location, Options, Remote};

use super::RemoteArgs;
use crate::{output::output, progress::ProgressLine, size};

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
    let (location, options) = (Location::parse(&args.location)?, args.remote.options()?);
    let remote = pagefold_remote::open(&location, &options)?;
    let Some(fixed) = remote.fixed() else {
        bail!("{location}: the cache keeps only images with a chunk index: make one with 'pagefold index'")
    };
    match &args.layer_cache {
        Some(directory) => write_layer(&remote, &options, directory)?,
        None => {
            let total: u64 = remote.blobs().iter().map(|blob| blob.index().size_bytes()).sum();
            // Chunks of an image that is too large would only evict those of others.
            if options.cache.as_ref().is_none_or(|cache| total <= cache.limit_bytes()) {
                fetch_all(&remote, total)?;
            }
            check_held(&location, &options, total)?;
        }
    }
    let mut out = output();
    writeln!(out, "{fixed}")?;
    out.flush()?;
    Ok(())
}

/// Checks that the cache holds all of an image, so that it can be read without a request.
fn check_held(location: &Location, options: &Options, total: u64) -> anyhow::Result<()> {
    let mut offline = options.clone();
    offline.is_offline = true;
    let held = pagefold_remote::open(location, &offline).map(|remote| remote.blobs());
    let held_bytes = held.map_or(0, |blobs| blobs.iter().map(|blob| blob.held_bytes()).sum::<u64>());
    let Some(cache) = options.cache.as_ref().filter(|_| held_bytes < total) else { return Ok(()) };
    let (directory, limit) = (cache.directory().display(), size::written(cache.limit_bytes()));
    let (held, total) = (size::show(held_bytes), size::show(total));
    let holds = format!("{location}: the cache in {directory}, with a limit of {limit}, holds {held} of {total}");
    match cache.failure() {
        Some(why) => bail!("{holds}: {why}: make room on its disk, or give another --chunk-cache"),
        None => bail!("{holds}: give a larger --chunk-cache-limit"),
    }
}

fn fetch_all(remote: &Remote, total: u64) -> anyhow::Result<()> {
    let blobs = remote.blobs();
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
    // Another process that fetches the same layer writes the same bytes.
    let is_layer = |file: &File| layer.is_in(file).is_ok_and(|is_in| is_in);
    let is_text = |file: &File| io::read_to_string(file).is_ok_and(|found| found == text);
    // containerd takes a layer once it has its name, and what has both names is not written again.
    take_unless(new_beside, draft_beside, &is_text)?;
    take_unless(new, draft, &is_layer)
}

/// Gives a draft its name, unless another process has given it to a file that `is_same`.
fn take_unless(new: NewFile, draft: Draft, is_same: &dyn Fn(&File) -> bool) -> anyhow::Result<()> {
    draft.file().sync_all().with_context(|| new.path().display().to_string())?;
    match new.take(draft) {
        Err(_) if File::open(new.path()).is_ok_and(|file| is_same(&file)) => Ok(()),
        taken => Ok(taken?),
    }
}

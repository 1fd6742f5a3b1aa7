//! `pagefold push`: stores an image in a registry or a bucket.

use std::{fs::File, io::Write, path::PathBuf};

use anyhow::Context;
use pagefold_remote::{Location, Options};

use super::clusters;
use crate::{log, misuse, output::output, size};

/// Store an EROFS image, with its chunk index, in a registry or a bucket
#[derive(clap::Args)]
#[command(allow_missing_positional = true)]
#[command(after_help = "Examples:
  pagefold push debian.erofs oci://registry.example/disks/debian:13
  pagefold push debian.erofs s3://bucket/debian.erofs
  pagefold push --trace boot.trace oci://registry.example/disks/debian:13

The command sends only what the registry lacks. It prints the location with the SHA-256 sum that \
stands for these bytes alone.

Credentials are those of docker or podman for a registry; for S3, AWS_ACCESS_KEY_ID and \
AWS_SECRET_ACCESS_KEY, or the profile that AWS_PROFILE names.")]
pub(crate) struct Args {
    /// The image; with --trace, one that is there already unless given
    #[arg(value_name = "IMAGE", required_unless_present = "trace")]
    image: Option<PathBuf>,

    /// Where to: oci://REGISTRY/REPOSITORY:TAG or s3://BUCKET/KEY
    #[arg(value_name = "LOCATION")]
    location: String,

    /// Store with the image what 'pagefold serve --record' wrote: the next start on another machine
    /// fetches along it
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let location = Location::parse(&args.location).map_err(misuse)?;
    let mut fixed = None;
    if let Some(image) = &args.image {
        let name = image.display().to_string();
        let clusters = clusters(image)?;
        let file = File::open(image).with_context(|| name.clone())?;
        let pushed = pagefold_remote::push(&file, &name, &clusters, &location, &Options::default())?;
        log::line(&format!("{location}: sent {} of {}", size::show(pushed.sent_bytes), size::show(pushed.bytes)));
        fixed = Some(pushed.fixed);
    }
    if let Some(trace) = &args.trace {
        let name = trace.display().to_string();
        let file = File::open(trace).with_context(|| name.clone())?;
        let pushed = pagefold_remote::push_trace(&file, &name, &location, &Options::default())?;
        log::line(&format!("{location}: sent a trace of {}", size::show(pushed.bytes)));
        fixed.get_or_insert(pushed.fixed);
    }
    let mut out = output();
    fixed.iter().try_for_each(|fixed| writeln!(out, "{fixed}"))?;
    out.flush()?;
    Ok(())
}

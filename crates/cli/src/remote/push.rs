//! `pagefold push`: stores an image in a registry or a bucket.

use std::{fs::File, io::Write, path::PathBuf};

use anyhow::Context;
use pagefold_remote::{Location, Options};

use super::clusters;
use crate::{log, misuse, output::output, size};

/// Store an EROFS image, with its chunk index, in a registry or a bucket
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold push debian.erofs oci://registry.example/disks/debian:13
  pagefold push debian.erofs s3://bucket/debian.erofs

The command sends only what the registry lacks. It prints the location with the SHA-256 sum that \
stands for these bytes alone.

Credentials are those of docker or podman for a registry; for S3, AWS_ACCESS_KEY_ID and \
AWS_SECRET_ACCESS_KEY, or the profile that AWS_PROFILE names.")]
pub(crate) struct Args {
    /// The image
    #[arg(value_name = "IMAGE")]
    image: PathBuf,

    /// Where to: oci://REGISTRY/REPOSITORY:TAG or s3://BUCKET/KEY
    #[arg(value_name = "LOCATION")]
    location: String,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let location = Location::parse(&args.location).map_err(misuse)?;
    let name = args.image.display().to_string();
    let clusters = clusters(&args.image)?;
    let file = File::open(&args.image).with_context(|| name.clone())?;
    let pushed = pagefold_remote::push(&file, &name, &clusters, &location, &Options::default())?;
    log::line(&format!("{location}: sent {} of {}", size::show(pushed.sent_bytes), size::show(pushed.bytes)));
    let mut out = output();
    writeln!(out, "{}", pushed.fixed)?;
    out.flush()?;
    Ok(())
}

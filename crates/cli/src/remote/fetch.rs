//! `pagefold fetch`: fetches a whole remote image into the cache.

use std::io::Write;

use super::RemoteArgs;
use crate::{output::output, progress::ProgressLine};

/// Fetch a remote image into the cache as a whole
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold fetch oci://registry.example/disks/debian:13
  pagefold serve --offline oci://registry.example/disks/debian:13

The command prints the location with the SHA-256 sum that it led to.")]
pub(crate) struct Args {
    /// The image: https://HOST/PATH, s3://BUCKET/KEY or oci://REGISTRY/REPOSITORY:TAG
    #[arg(value_name = "LOCATION")]
    location: String,

    #[command(flatten)]
    remote: RemoteArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let remote = args.remote.open_remote(&args.location)?;
    let blobs = remote.blobs();
    let total = blobs.iter().map(|blob| blob.index().size_bytes()).sum();
    let mut line = ProgressLine::new();
    let mut before = 0;
    for blob in blobs {
        blob.fetch_all(&mut |done| line.show(before + done, total))?;
        before += blob.index().size_bytes();
    }
    drop(line);
    let mut out = output();
    match remote.fixed() {
        Some(fixed) => writeln!(out, "{fixed}")?,
        None => writeln!(out, "{}", args.location)?,
    }
    out.flush()?;
    Ok(())
}

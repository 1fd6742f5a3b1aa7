//! `pagefold push`: stores an image in a registry or a bucket.

use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow};
use clap::ValueEnum;
use pagefold_remote::{Location, MediaTypes, Part, PushOptions};

use super::parts::Opened;
use crate::{log, output::output, report::misuse, size, storage::RemoteArgs};

/// Store an EROFS image, with its chunk index, in a registry or a bucket
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold push debian.erofs oci://registry.example/disks/debian:13
  pagefold push debian.erofs s3://bucket/debian.erofs
  pagefold push job.erofs --device debian.erofs oci://registry.example/disks/job:1
  pagefold push job.erofs --device oci://registry.example/disks/debian:13 oci://registry.example/disks/job:1
  pagefold push --trace boot.trace oci://registry.example/disks/debian:13

The command sends only what the registry lacks. The devices of an image become layers before it, so \
that an image opened there needs no --device. A bucket gets the image alone. The command \
prints the location with the SHA-256 sum that stands for these bytes alone.

Credentials are those of docker or podman for a registry; for S3, AWS_ACCESS_KEY_ID and \
AWS_SECRET_ACCESS_KEY, or the profile that AWS_PROFILE names.")]
pub(crate) struct Args {
    /// The image; with --trace, it may be left out if it is at LOCATION already
    #[arg(value_name = "IMAGE")]
    first: PathBuf,

    /// Destination: oci://REGISTRY/REPOSITORY:TAG or s3://BUCKET/KEY
    #[arg(value_name = "LOCATION", required_unless_present = "trace")]
    second: Option<String>,

    /// Store this trace, written by 'pagefold serve --record', with the image: the next start on
    /// another machine fetches the same chunks ahead
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// A file or URL that holds data of the image ('pagefold freeze --backing'); repeat in the order
    /// of the image's device table
    #[arg(long = "device", value_name = "FILE")]
    devices: Vec<PathBuf>,

    /// Media type of the image in the manifest [default: spec]
    #[arg(long, value_enum)]
    media_type: Option<MediaType>,

    #[command(flatten)]
    remote: RemoteArgs,
}

/// The argument of `--media-type`.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum MediaType {
    /// application/vnd.erofs, of erofs-image-spec
    Spec,
    /// application/vnd.erofs.layer.v1, of containerd and erofs-utils
    Containerd,
}

impl Args {
    /// Returns the image, unless only a trace is pushed, and the location.
    fn image_and_location(&self) -> anyhow::Result<(Option<&Path>, &str)> {
        match &self.second {
            Some(location) => Ok((Some(&self.first), location)),
            None => {
                let location = self.first.to_str().ok_or_else(|| misuse(anyhow!("LOCATION is not text")))?;
                Ok((None, location))
            }
        }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let (image, location) = args.image_and_location()?;
    let location = Location::parse(location).map_err(misuse)?;
    args.remote.must_send("push")?;
    let trace = args.trace.as_ref().map(|path| {
        let name = path.display().to_string();
        File::open(path).with_context(|| name.clone()).map(|file| (file, name))
    });
    let trace = trace.transpose()?;
    if let Some(image) = image {
        pagefold_remote::check(None, &[], &location)?;
        let name = || pagefold_storage::shown(image);
        let opened = Opened::open(image, &args.devices, &args.remote)?;
        let devices = match location {
            Location::Oci(_) => opened.devices().with_context(name)?,
            _ => Vec::new(),
        };
        let part = opened.part().with_context(name)?;
        // A trace that cannot be stored must not leave the image without one.
        if let Some((file, name)) = &trace {
            let parts: Vec<_> = devices.iter().chain([&part]).collect();
            pagefold_remote::check_trace(file, name, &parts, &location)?;
        }
        push(&part, &devices, &location, args.media_type)?;
    }
    if let Some((file, name)) = &trace {
        let pushed = pagefold_remote::push_trace(file, name, &location, &PushOptions::default())?;
        log::line(&format!("{location}: sent a trace of {}", size::show(pushed.bytes)));
        if image.is_none() {
            print(&pushed.fixed)?;
        }
    }
    Ok(())
}

/// Stores an image, and reports it.
pub(crate) fn push(
    image: &Part,
    devices: &[Part],
    location: &Location,
    media_type: Option<MediaType>,
) -> anyhow::Result<()> {
    let mut options = PushOptions::default();
    if let Some(MediaType::Containerd) = media_type {
        options.media_types = MediaTypes::Containerd;
    }
    let pushed = pagefold_remote::push(image, devices, location, &options)?;
    log::line(&format!("{location}: sent {} of {}", size::show(pushed.sent_bytes), size::show(pushed.bytes)));
    print(&pushed.fixed)
}

fn print(fixed: &Location) -> anyhow::Result<()> {
    let mut out = output();
    writeln!(out, "{fixed}")?;
    out.flush()?;
    Ok(())
}

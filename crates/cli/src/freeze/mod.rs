//! `pagefold freeze`: saves a disk of a running server as an image.

#[cfg(feature = "remote")]
mod push;

use std::{
    fs::{self, File},
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow, bail, ensure};
use clap::ArgGroup;
use pagefold_codec::cluster::ClusterCodec;
use pagefold_erofs::BuildOptions;
use pagefold_output::{Destination, ImageFormat};
use pagefold_server::{BaseImage, ErofsImage, FreezeError, Frozen, Progress, Qcow2Options};

#[cfg(feature = "remote")]
use crate::remote::push::MediaType;
use crate::{
    codec,
    destination::{FormatArg, draft, wrong_name},
    image::print_needed_linux,
    log,
    peer::Peer,
    progress::ProgressLine,
    report::{misuse, print},
    size, source,
    storage::{self, RemoteArgs},
    text::message,
};

/// Returns a part of the help, if the program has images in registries.
#[cfg(feature = "remote")]
macro_rules! of_remote {
    ($text:literal) => {
        $text
    };
}

#[cfg(not(feature = "remote"))]
macro_rules! of_remote {
    ($text:literal) => {
        ""
    };
}

/// Destinations of an image other than a file.
#[cfg(feature = "remote")]
#[derive(clap::Args)]
struct PushArgs {
    /// Store the image at oci://REGISTRY/REPOSITORY:TAG. If the disk has an EROFS base, only what
    /// differs from the base is sent, and the parts of the base that the registry lacks
    #[arg(long = "push", value_name = "LOCATION", group = "destination")]
    location: Option<String>,

    /// Media type of the image in the manifest [default: spec]
    #[arg(long, value_enum)]
    media_type: Option<MediaType>,
}

/// Save the contents of a disk as an image
#[derive(clap::Args)]
#[command(
    visible_alias = "commit",
    group = ArgGroup::new("destination").required(true),
    after_help = concat!(
        "Examples:
  pagefold freeze job-2 -o job-2.erofs
  pagefold freeze job-2 --codec zstd,3 --cluster 64K -o job-2.erofs
  pagefold freeze job-2 --backing -o job-2.erofs
  pagefold freeze job-2 -o job-2.qcow2
  pagefold freeze job-2 -o job-2.img
",
        of_remote!("  pagefold freeze job-2 --push oci://registry.example/disks/job-2:1\n"),
        "
The disk stays in use: the image holds its contents at the instant the command started. An EROFS \
image holds the disk as its only file, disk.img, and 'pagefold serve job-2.erofs' serves it. \
Unchanged clusters of the base are copied without recompression, unless --codec or --cluster is \
given. An image is complete by itself, unless --backing is given: 'pagefold serve job-2.erofs \
--device debian.erofs' then needs the base too. ",
        of_remote!(
            "With --push, the base goes to the registry together with the image, and 'pagefold serve \
oci://registry.example/disks/job-2:1' needs nothing else. "
        ),
        "Equal contents and equal options give identical images."
    )
)]
pub(crate) struct Args {
    /// The disk
    name: String,

    /// The image file, which appears once it is complete; or a block device, a pipe, or - for
    /// standard output
    #[arg(short, long, value_name = "FILE", group = "destination")]
    output: Option<PathBuf>,

    #[cfg(feature = "remote")]
    #[command(flatten)]
    push: PushArgs,

    /// Format of the image [default: what FILE ends in: .erofs, .qcow2, .img or .raw; raw for a
    /// block device]
    #[arg(long, value_enum)]
    format: Option<FormatArg>,

    /// Replace FILE even if it is a raw disk or not an image of this format; never a file that the
    /// server uses
    #[arg(long)]
    force: bool,

    /// Codec and level: of an EROFS image as for 'pagefold pack' [default: the base's, otherwise
    /// lz4]; of a qcow2 image deflate[,1-9] or none [default: none]
    #[arg(long, value_name = "CODEC[,LEVEL]")]
    codec: Option<String>,

    /// Maximum size of a compressed cluster [default: the base's, otherwise 4K]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    cluster: Option<u64>,

    /// Write only the changes since the base: a qcow2 or raw file becomes the backing file of the
    /// qcow2 image, an EROFS image becomes a device of the EROFS image
    #[arg(long)]
    backing: bool,

    /// Number of threads; 0 means one per processor
    #[arg(long, default_value_t = 0)]
    threads: usize,

    /// Compare the finished image with the disk; a difference is an error and leaves no image
    #[arg(long)]
    verify: bool,

    #[command(flatten)]
    peer: Peer,

    #[command(flatten)]
    remote: RemoteArgs,
}

/// The format of the image, with its options.
enum How {
    Raw,
    /// With these options, or those of the base.
    Erofs(Option<BuildOptions>),
    Qcow2(Qcow2Options),
}

/// Block size of an image, unless the base has another one.
const BLOCK_BYTES: u32 = 4096;

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    #[cfg(feature = "remote")]
    match &args.push {
        PushArgs { location: Some(location), .. } => return args.push(location),
        PushArgs { media_type: Some(_), .. } => return Err(misuse(anyhow!("--media-type is for --push"))),
        _ => {}
    }
    let output = args.output.as_deref().ok_or_else(|| misuse(anyhow!("give -o FILE")))?;
    let (format, how) = args.how(output).map_err(misuse)?;
    let destination = Destination::of(output, format, args.force, &args.peer.inputs(&args.name)?)?;
    let frozen = Frozen::of_client(args.peer.connect()?, &args.name)?;
    if format == ImageFormat::Raw {
        destination.check_room(frozen.size_bytes())?;
    }
    let draft = draft(&destination)?;
    let described = frozen.described();
    let mut line = ProgressLine::new();
    let mut progress = |done_bytes, total_bytes| line.show(done_bytes, total_bytes);
    let written = match &how {
        How::Raw => frozen.write_raw(draft.file(), &mut progress).map(|()| None),
        How::Erofs(asked) => args.write_erofs(&frozen, asked.as_ref(), draft.file(), &mut progress).map(Some),
        How::Qcow2(options) => frozen.write_qcow2(draft.file(), *options, &mut progress).map(|()| None),
    };
    drop(line);
    let image = written.map_err(|error| with_place(error, &destination.place())).with_context(|| described.clone())?;
    if let Some(image) = image {
        args.check_image(&image, draft.file(), &output.display().to_string()).with_context(|| described)?;
    }
    drop(frozen);
    let metadata = matches!(destination, Destination::File(_)).then(|| draft.file().metadata()).transpose()?;
    destination.take(draft)?;
    if let Some(metadata) = metadata {
        let written = size::show(written_bytes(&metadata));
        log::line(&format!("{}: disk '{}' in {written}", output.display(), args.name));
    }
    Ok(())
}

/// Returns the bytes that a file occupies: less than its length if it has holes.
fn written_bytes(metadata: &std::fs::Metadata) -> u64 {
    use std::os::unix::fs::MetadataExt;
    (metadata.blocks() * 512).min(metadata.len())
}

/// If space has run out, adds where.
fn with_place(error: FreezeError, place: &str) -> anyhow::Error {
    let is_full = error.is_full();
    let error = anyhow::Error::new(error);
    if is_full { error.context(place.to_owned()) } else { error }
}

impl Args {
    /// Returns the format and options that the command line requests.
    fn how(&self, output: &Path) -> anyhow::Result<(ImageFormat, How)> {
        let kind = fs::metadata(output).ok().map(|found| found.file_type());
        ensure!(!kind.is_some_and(|kind| kind.is_dir()), "{} is a directory; name a file in it", output.display());
        let is_device = kind.is_some_and(|kind| kind.is_block_device());
        let given = self.format.map(ImageFormat::from);
        let format = ImageFormat::of_output(output, given, is_device).map_err(wrong_name)?;
        ensure!(!self.backing || format != ImageFormat::Raw, "--backing is for --format erofs and qcow2");
        ensure!(
            !self.backing || format != ImageFormat::Erofs || (self.codec.is_none() && self.cluster.is_none()),
            "--backing keeps the base's codec and cluster size: leave out --codec and --cluster"
        );
        ensure!(!self.verify || format == ImageFormat::Erofs, "--verify is for --format erofs");
        ensure!(self.cluster.is_none() || format == ImageFormat::Erofs, "--cluster is for --format erofs");
        let how = match format {
            ImageFormat::Raw => {
                ensure!(self.codec.is_none(), "--codec is for --format erofs and qcow2");
                How::Raw
            }
            ImageFormat::Erofs => How::Erofs(self.asked()?),
            ImageFormat::Qcow2 => {
                let codec = self.codec.as_ref().map(|codec| codec::of_clusters(codec, BLOCK_BYTES)).transpose()?;
                let level = match codec.flatten() {
                    None => None,
                    Some(ClusterCodec::Deflate(level @ 1..=9)) => Some(level.cast_unsigned()),
                    Some(_) => bail!("a qcow2 image is compressed with deflate, at level 1 to 9, or not at all"),
                };
                let mut options = Qcow2Options::default();
                (options.level, options.threads, options.backing) = (level, self.threads, self.backing);
                How::Qcow2(options)
            }
        };
        Ok((format, how))
    }

    /// Returns the options of an EROFS image that the command line requests; `None` means those of
    /// the base.
    fn asked(&self) -> anyhow::Result<Option<BuildOptions>> {
        if self.codec.is_none() && self.cluster.is_none() {
            return Ok(None);
        }
        let pcluster_bytes = self.cluster.unwrap_or(BLOCK_BYTES.into());
        let pcluster_bytes = u32::try_from(pcluster_bytes).ok().context("the cluster size is too large")?;
        let codec = codec::of_clusters(self.codec.as_deref().unwrap_or("lz4"), pcluster_bytes)?;
        let options = BuildOptions { codec, pcluster_bytes, threads: self.threads, ..BuildOptions::default() };
        options.check()?;
        Ok(Some(options))
    }

    /// Writes an EROFS image with the requested options, or with those of the base, whose clusters
    /// are then copied.
    fn write_erofs(
        &self,
        frozen: &Frozen,
        asked: Option<&BuildOptions>,
        out: &File,
        progress: Progress<'_>,
    ) -> Result<ErofsImage, FreezeError> {
        if let Some(options) = asked {
            return frozen.write_erofs(out, options, None, progress);
        }
        let remote = self.remote.clone();
        let base = frozen.base_image(&move |name| storage::open(name, &remote));
        if self.backing {
            return self.write_delta(frozen, base?, out, progress);
        }
        let base = base.unwrap_or_else(|error| {
            print(&format!("warning: {}; compressing the whole disk", message(&error.into())));
            None
        });
        let like = base.as_ref().map_or_else(|| Ok(BuildOptions::default()), BaseImage::options)?;
        let options = BuildOptions { threads: self.threads, ..like };
        frozen.write_erofs(out, &options, base.as_ref(), progress)
    }

    /// Writes an EROFS image with only the changes since the base.
    fn write_delta(
        &self,
        frozen: &Frozen,
        base: Option<BaseImage>,
        out: &File,
        progress: Progress<'_>,
    ) -> Result<ErofsImage, FreezeError> {
        let Some(base) = base else {
            let what = "--backing: the disk has no EROFS image below it: leave out --backing to write all of it";
            return Err(FreezeError::Refused(what.to_owned()));
        };
        let options = BuildOptions { threads: self.threads, base_is_device: true, ..base.options()? };
        frozen.write_erofs(out, &options, Some(&base), progress)
    }

    /// Reports what is special about a finished image, and compares it with the disk if requested.
    fn check_image(&self, image: &ErofsImage, file: &File, name: &str) -> anyhow::Result<()> {
        print_needed_linux(Path::new(name), &image.report, "");
        if self.verify { self.compare(image, file, name) } else { Ok(()) }
    }

    /// Compares the finished image with the disk; both are read again.
    fn compare(&self, image: &ErofsImage, file: &File, name: &str) -> anyhow::Result<()> {
        let file = file.try_clone().context("opening the image again")?;
        let written = image.open(file).context("cannot read the image")?;
        let report = written.compare(&image.tree, self.threads);
        let count = source::print_differences(&report);
        ensure!(
            count == 0,
            "{name}: not written: the image differs from the disk; this is a fault of pagefold: please report it"
        );
        Ok(())
    }
}

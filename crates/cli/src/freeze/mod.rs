//! `pagefold freeze`: saves a disk of a running server as an image.

mod instant;
mod qcow2;
mod raw;

use std::{
    fs::{self, File},
    io::ErrorKind,
    os::unix::fs::FileTypeExt,
    path::PathBuf,
    sync::Arc,
};

use anyhow::{Context, bail, ensure};
use pagefold_codec::cluster::ClusterCodec;
use pagefold_erofs::{BuildOptions, Content, Error, Image, Node, NodeKind, Overlay, Tree, build_watched};

pub(crate) use self::instant::Instant;
use self::instant::{BackingFile, Wanted};
use crate::{
    codec,
    destination::{Destination, Draft, ImageFormat},
    image::tell_needed_linux,
    log, misuse,
    peer::Peer,
    progress::ProgressLine,
    size, source,
};

/// Save the contents of a disk as an image
#[derive(clap::Args)]
#[command(
    visible_alias = "commit",
    after_help = "Examples:
  pagefold freeze job-2 -o job-2.erofs
  pagefold freeze job-2 --codec zstd,3 --cluster 64K -o job-2.erofs
  pagefold freeze job-2 -o job-2.qcow2
  pagefold freeze job-2 -o job-2.img

The disk stays in use: the image holds its contents at the instant the command started. An EROFS \
image holds the disk as its only file, disk.img, and 'pagefold serve job-2.erofs' serves it. \
Unchanged clusters of the base are copied without recompression, unless --codec or --cluster is \
given. A qcow2 image is complete by itself, unless --backing is given. Equal contents and equal \
options give identical images."
)]
pub(crate) struct Args {
    /// The disk
    name: String,

    /// The image file, which appears once it is complete; or a block device, a pipe, or - for
    /// standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// Format of the image [default: what FILE ends in: .erofs, .qcow2, .img or .raw; raw for a
    /// block device]
    #[arg(long, value_enum)]
    format: Option<ImageFormat>,

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

    /// Write only the changes since the base, a qcow2 or raw file, which becomes the backing file
    /// of the qcow2 image
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
}

/// The format of the image, with its options.
enum How {
    Raw,
    /// With these options, or those of the base.
    Erofs(Option<BuildOptions>),
    /// With this compression level; `None` for no compression.
    Qcow2(Option<u32>),
}

/// Block size of an image, unless the base has another one.
const BLOCK_BYTES: u32 = 4096;

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let (format, how) = args.how().map_err(misuse)?;
    let destination = Destination::of(&args.output, format, args.force, &args.peer.inputs()?)?;
    let instant = Instant::take(&args.peer, &args.name)?;
    if format == ImageFormat::Raw {
        destination.check_room(instant.size_bytes())?;
    }
    let draft = destination.make_draft()?;
    let place = destination.place();
    let described = instant.described();
    let written = match &how {
        How::Raw => args.write_raw(&instant, draft.file()),
        How::Erofs(asked) => args.write_image(instant, asked.as_ref(), &draft),
        How::Qcow2(level) => args.write_qcow2(&instant, *level, draft.file()),
    };
    written.map_err(|error| with_place(error, &place)).with_context(|| described)?;
    let told = matches!(destination, Destination::File(_)).then(|| draft.file().metadata()).transpose()?;
    destination.take(draft)?;
    if let Some(metadata) = told {
        let (output, written) = (args.output.display(), size::show(written_bytes(&metadata)));
        log::line(&format!("{output}: disk '{}' in {written}", args.name));
    }
    Ok(())
}

/// Returns the bytes that a file occupies: less than its length if it has holes.
fn written_bytes(metadata: &std::fs::Metadata) -> u64 {
    use std::os::unix::fs::MetadataExt;
    (metadata.blocks() * 512).min(metadata.len())
}

/// If space has run out, adds where.
fn with_place(error: anyhow::Error, place: &str) -> anyhow::Error {
    let is_full = error.chain().any(|cause| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::StorageFull)
            || matches!(cause.downcast_ref(), Some(Error::Io { source, .. }) if source.kind() == ErrorKind::StorageFull)
    });
    if is_full { error.context(place.to_owned()) } else { error }
}

impl Args {
    /// Returns the format and options that the command line requests.
    fn how(&self) -> anyhow::Result<(ImageFormat, How)> {
        let kind = fs::metadata(&self.output).ok().map(|found| found.file_type());
        ensure!(!kind.is_some_and(|kind| kind.is_dir()), "{} is a directory; name a file in it", self.output.display());
        let is_device = kind.is_some_and(|kind| kind.is_block_device());
        let format = ImageFormat::of_output(&self.output, self.format, is_device)?;
        ensure!(!self.backing || format == ImageFormat::Qcow2, "--backing is for --format qcow2");
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
                match codec.flatten() {
                    None => How::Qcow2(None),
                    Some(ClusterCodec::Deflate(level @ 1..=9)) => How::Qcow2(Some(level.cast_unsigned())),
                    Some(_) => bail!("a qcow2 image is compressed with deflate, at level 1 to 9, or not at all"),
                }
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

    fn write_raw(&self, instant: &Instant, out: &File) -> anyhow::Result<()> {
        let mut line = ProgressLine::new();
        raw::write(instant, out, &mut |done_bytes, total_bytes| line.show(done_bytes, total_bytes))
    }

    fn write_qcow2(&self, instant: &Instant, level: Option<u32>, out: &File) -> anyhow::Result<()> {
        let backing = self.backing.then(|| instant.backing()).transpose()?;
        let wanted = if backing.is_some() { Wanted::AboveBase } else { Wanted::BytesAndZeros };
        let source = qcow2::Qcow2Source {
            size_bytes: instant.size_bytes(),
            changes: instant.changes(wanted)?,
            reader: &*instant.reader(),
            backing: backing.as_ref().map(|BackingFile { path, format, .. }| qcow2::Backing { path, format }),
        };
        let threads = BuildOptions { threads: self.threads, ..BuildOptions::default() }.thread_count();
        let mut line = ProgressLine::new();
        qcow2::write(source, out, level, threads, &mut |done_bytes, total_bytes| line.show(done_bytes, total_bytes))?;
        backing.map_or(Ok(()), |backing| backing.check_unchanged())
    }

    fn write_image(&self, instant: Instant, asked: Option<&BuildOptions>, draft: &Draft) -> anyhow::Result<()> {
        let base = if asked.is_none() { instant.open_base() } else { None };
        let options = match (asked, &base) {
            (Some(options), _) => options.clone(),
            (None, Some(base)) => BuildOptions { threads: self.threads, ..BuildOptions::like(&base.content())? },
            (None, None) => BuildOptions { threads: self.threads, ..BuildOptions::default() },
        };
        let changes = instant.changes(if base.is_some() { Wanted::AboveBase } else { Wanted::Bytes })?;
        let overlay = Overlay::new(instant.size_bytes(), changes, instant.reader())?;
        let overlay = Arc::new(match &base {
            Some(base) => overlay.over(base.content()),
            None => overlay,
        });
        let tree = tree_of(overlay)?;
        let mut line = ProgressLine::new();
        let report = build_watched(&tree, &options, draft.file(), &mut |progress| {
            line.show(progress.done_bytes, progress.total_bytes);
        })?;
        drop(line);
        tell_needed_linux(&self.output, &report, "");
        if let Some(base) = base {
            base.check_unchanged()?;
        }
        if self.verify {
            self.compare(&tree, draft.file())?;
        }
        Ok(())
    }

    /// Compares the finished image with the disk; both are read again.
    fn compare(&self, tree: &Tree, image: &File) -> anyhow::Result<()> {
        let image = image.try_clone().context("opening the image again")?;
        let report = Image::open(image).context("cannot read the image")?.compare(tree, self.threads);
        let count = source::tell_differences(&report);
        ensure!(
            count == 0,
            "{}: not written: the image differs from the disk; this is a fault of pagefold: please report it",
            self.output.display()
        );
        Ok(())
    }
}

/// Returns the tree of an image with a single file. Its metadata are the same for all disks, so
/// equal content gives equal images.
fn tree_of(overlay: Arc<Overlay>) -> anyhow::Result<Tree> {
    let node =
        |kind, permissions| Node { kind, permissions, uid: 0, gid: 0, mtime_s: 0, mtime_nsec: 0, xattrs: Vec::new() };
    let size = overlay.size();
    let mut tree = Tree::new(node(NodeKind::Fifo, 0o755));
    let root = tree.root();
    tree.add(root, b"disk.img", node(NodeKind::Regular { content: Content::Overlay(overlay), size }, 0o644))?;
    Ok(tree)
}

//! `pagefold freeze`: a disk of a running server becomes an image.

mod instant;
mod raw;

use std::{fs::File, io::ErrorKind, path::PathBuf, sync::Arc};

use anyhow::Context;
use clap::ValueEnum;
use pagefold_erofs::{BuildOptions, Content, Error, Image, Node, NodeKind, Overlay, Tree, build_watched};

pub(crate) use self::instant::Instant;
use crate::{
    codec,
    destination::{Destination, Draft},
    misuse,
    peer::Peer,
    progress::ProgressLine,
    size, source,
};

/// Write a disk of a running server, as it is at this instant, as an image
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold freeze job-2 -o job-2.erofs
  pagefold freeze job-2 --codec zstd,3 --cluster 64K -o job-2.erofs
  pagefold freeze job-2 --format raw -o job-2.img

The disk stays in use: what is written to it meanwhile is not in the image. An EROFS image holds the disk as its one file, \
disk.img, and 'pagefold serve job-2.erofs' serves it. Clusters of the base that did not change are copied as they are, unless \
--codec or --cluster is given. Equal content and equal options give the same image.")]
pub(crate) struct Args {
    /// The disk
    name: String,

    /// The image file, which appears when it is complete; or a disk or pipe; - for standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// What is written
    #[arg(long, value_enum, default_value_t = Format::Erofs)]
    format: Format,

    /// The codec that compresses, and its level, as of pack [default: the base's, else lz4]
    #[arg(long, value_name = "CODEC[,LEVEL]")]
    codec: Option<String>,

    /// The maximum size of a compressed cluster [default: the base's, else 4K]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    cluster: Option<u64>,

    /// Threads; 0 for one per processor
    #[arg(long, default_value_t = 0)]
    threads: usize,

    /// Read the finished image and the disk again and compare them; after a difference there is no image
    #[arg(long)]
    verify: bool,

    #[command(flatten)]
    peer: Peer,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A compressed image
    Erofs,
    /// The disk's bytes, with holes for zeros
    Raw,
}

/// What an image's block is where no base has another.
const BLOCK_BYTES: u32 = 4096;

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if args.format == Format::Raw && (args.codec.is_some() || args.cluster.is_some()) {
        return Err(misuse(anyhow::anyhow!("--codec and --cluster are for --format erofs")));
    }
    if let Some(options) = args.asked().map_err(misuse)? {
        options.check().map_err(misuse)?;
    }
    let destination = Destination::of(&args.output)?;
    let instant = Instant::take(&args.peer, &args.name)?;
    let draft = destination.make_draft()?;
    let place = destination.place();
    match args.format {
        Format::Raw => args.write_raw(&instant, draft.file()).map_err(|error| with_place(error, &place))?,
        Format::Erofs => args.write_image(instant, &draft).map_err(|error| with_place(error, &place))?,
    }
    let told = matches!(destination, Destination::File(_)).then(|| draft.file().metadata()).transpose()?;
    destination.take(draft)?;
    if let Some(metadata) = told {
        eprintln!("{}: disk '{}' in {}", args.output.display(), args.name, size::show(written_bytes(&metadata)));
    }
    Ok(())
}

/// Bytes that a file takes: less than its length if it has holes.
fn written_bytes(metadata: &std::fs::Metadata) -> u64 {
    use std::os::unix::fs::MetadataExt;
    (metadata.blocks() * 512).min(metadata.len())
}

/// Says where there is no space.
fn with_place(error: anyhow::Error, place: &str) -> anyhow::Error {
    let is_full = error.chain().any(|cause| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::StorageFull)
            || matches!(cause.downcast_ref(), Some(Error::Io { source, .. }) if source.kind() == ErrorKind::StorageFull)
    });
    if is_full { error.context(place.to_owned()) } else { error }
}

impl Args {
    /// The options that the command line asks for; `None`: those of the base.
    fn asked(&self) -> anyhow::Result<Option<BuildOptions>> {
        if self.codec.is_none() && self.cluster.is_none() {
            return Ok(None);
        }
        let pcluster_bytes = self.cluster.unwrap_or(BLOCK_BYTES.into());
        let pcluster_bytes = u32::try_from(pcluster_bytes).ok().context("the cluster is too large")?;
        let codec = codec::of_clusters(self.codec.as_deref().unwrap_or("lz4"), pcluster_bytes)?;
        Ok(Some(BuildOptions { codec, pcluster_bytes, threads: self.threads, ..BuildOptions::default() }))
    }

    fn write_raw(&self, instant: &Instant, out: &File) -> anyhow::Result<()> {
        let mut line = ProgressLine::new();
        raw::write(instant, out, &mut |done_bytes, total_bytes| line.show(done_bytes, total_bytes))
    }

    fn write_image(&self, instant: Instant, draft: &Draft) -> anyhow::Result<()> {
        let asked = self.asked()?;
        let base = if asked.is_none() { instant.open_base() } else { None };
        let options = match (&asked, &base) {
            (Some(options), _) => options.clone(),
            (None, Some(base)) => BuildOptions { threads: self.threads, ..BuildOptions::like(&base.content())? },
            (None, None) => BuildOptions { threads: self.threads, ..BuildOptions::default() },
        };
        let changes = instant.changes(base.is_some())?;
        let overlay = Overlay::new(instant.size_bytes(), changes, instant.reader())?;
        let overlay = Arc::new(match &base {
            Some(base) => overlay.over(base.content()),
            None => overlay,
        });
        let tree = tree_of(overlay)?;
        let mut line = ProgressLine::new();
        build_watched(&tree, &options, draft.file(), &mut |progress| {
            line.show(progress.done_bytes, progress.total_bytes);
        })?;
        drop(line);
        if let Some(base) = base {
            base.check_unchanged()?;
        }
        if self.verify {
            self.compare(&tree, draft.file())?;
        }
        Ok(())
    }

    /// Compares the finished image with the disk, both read again.
    fn compare(&self, tree: &Tree, image: &File) -> anyhow::Result<()> {
        let image = image.try_clone().context("opening the image again")?;
        let report = Image::open(image).context("the image cannot be read")?.compare(tree, self.threads);
        let count = source::tell_differences(&report);
        anyhow::ensure!(
            count == 0,
            "{}: not written: the image differs from the disk; this is a fault of pagefold: please report it",
            self.output.display()
        );
        Ok(())
    }
}

/// An image of one file. What describes it is the same for all disks, so that equal content gives equal images.
fn tree_of(overlay: Arc<Overlay>) -> anyhow::Result<Tree> {
    let node =
        |kind, permissions| Node { kind, permissions, uid: 0, gid: 0, mtime_s: 0, mtime_nsec: 0, xattrs: Vec::new() };
    let size = overlay.size();
    let mut tree = Tree::new(node(NodeKind::Fifo, 0o755));
    let root = tree.root();
    tree.add(root, b"disk.img", node(NodeKind::Regular { content: Content::Overlay(overlay), size }, 0o644))?;
    Ok(tree)
}

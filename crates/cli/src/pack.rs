//! `pagefold pack`: builds an image from directories, archives or a disk.

use std::ffi::OsStr;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::ValueEnum;
use pagefold_base::{Format, Kind, Signature};
use pagefold_codec::cluster::ClusterCodec;
use pagefold_erofs::{
    BuildOptions, Compression, Error, Fragments, Hint, Image, Indexes, NodeKind, Tree, build_watched,
};
use pagefold_output::{Destination, ImageFormat};

use crate::destination::{draft, wrong_name};
use crate::image::print_needed_linux;
use crate::source::{self, SKIPPING, SourceArgs};
use crate::{codec, log, progress::ProgressLine, report::misuse, size};

/// Build an EROFS image, which Linux can mount
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold pack rootfs/ -o rootfs.erofs
  pagefold pack --codec lz4hc,9 --cluster 64K disk.img -o disk.erofs
  pagefold pack cloud.qcow2 -o cloud.erofs
  pagefold pack disk.raw.xz -o disk.erofs
  tar -c rootfs | pagefold pack - -o rootfs.erofs
  pagefold pack base.tar.gz app.tar.zst config/ -o rootfs.erofs
  pagefold pack --layer app.tar.zst -o app.erofs
  docker save app:1 | pagefold pack - -o app.erofs
  pagefold pack rootfs/ -o rootfs.erofs \\
    --hint '*.so*=lz4hc,12@64K' --hint 'usr/share/doc/*=zstd' --hint '*.gz=none'
  pagefold pack --one-file-system --skip-unreadable / -o system.erofs
  pagefold pack rootfs/ -o rootfs.erofs \\
    --uid-map 0:100000:65536 --gid-map 0:100000:65536

Codecs, with their levels and default level: lz4, lz4hc[,1-12] (9), zstd[,-7-22] (3), \
deflate[,1-12] (6), lzma[,0-9] (6), none.
Needed Linux version: lz4 5.4, clusters above one block 5.13, lzma 5.16, ztailpacking 5.17, \
fragments and dedupe 6.1, deflate 6.6, zstd 6.10, encoded extents 6.15.
Equal input and options give identical images, whatever the number of threads. The environment \
variable SOURCE_DATE_EPOCH has the effect of --timestamp.")]
pub(crate) struct Args {
    /// Directories, tar archives (- for standard input) and container images (OCI layouts, archives
    /// of docker save), merged in order like container layers; or one disk (raw, qcow2 or a block
    /// device) or other file, which becomes the image's only file. Files may be compressed by gzip,
    /// zstd, xz, bzip2, lz4, lzip or lzma
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<PathBuf>,

    /// The image file, which appears once it is complete; or a block device, a pipe, or - for
    /// standard output
    #[arg(short, long, value_name = "IMAGE")]
    output: PathBuf,

    /// Replace IMAGE even if it is not an EROFS image; never a source
    #[arg(long)]
    force: bool,

    /// Codec of the files, and its level
    #[arg(long, default_value = "lz4", value_name = "CODEC[,LEVEL]")]
    codec: String,

    /// Maximum size of a compressed cluster, a multiple of the block size up to 1M [default: the
    /// block size]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    cluster: Option<u64>,

    /// Use another codec for files that match PATTERN (as in --exclude); the first match applies
    #[arg(long = "hint", value_name = "PATTERN=CODEC[,LEVEL][@CLUSTER]")]
    hints: Vec<std::ffi::OsString>,

    /// Block size; Linux mounts images whose block size is at most its page size
    #[arg(long, default_value = "4K", value_name = "SIZE", value_parser = size::parse)]
    block: u64,

    /// How the clusters of compressed files are found
    #[arg(long, value_enum, default_value_t = IndexKind::Auto)]
    indexes: IndexKind,

    /// Store the last cluster of each compressed file next to its inode if it fits; with
    /// --fragments, the other ones become fragments
    #[arg(long)]
    ztailpacking: bool,

    /// Compress the ends of files (tails, the default) or whole files up to 16 MiB (all) together
    #[arg(long, value_name = "WHICH", num_args = 0..=1, default_missing_value = "tails", value_parser = parse_fragments)]
    fragments: Option<Fragments>,

    /// Store repeated content once, at any offset; reads the files twice
    #[arg(long)]
    dedupe: bool,

    /// Compare the finished image with the source; a difference is an error and leaves no image.
    /// This is the default with --dedupe, --fragments and slow codecs (lz4hc, deflate, lzma, and
    /// zstd from level 6)
    #[arg(long, overrides_with = "no_verify")]
    verify: bool,

    /// Do not compare the image with the source
    #[arg(long, overrides_with = "verify")]
    no_verify: bool,

    /// Store uncompressed files in chunks of this size (a power of two from the block size to 16M),
    /// and equal chunks once. A DAX mount can map such files, with huge pages from 2M
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    chunk: Option<u64>,

    /// Number of threads; 0 means one per processor
    #[arg(long, default_value_t = 0)]
    threads: usize,

    /// Store this prefix of xattr names once, for example trusted.overlay.; repeat for up to 128
    /// prefixes (Linux 6.4)
    #[arg(long, value_name = "PREFIX", conflicts_with = "no_xattrs")]
    xattr_prefix: Vec<String>,

    #[command(flatten)]
    source: SourceArgs,

    /// UUID of the volume [default: derived from the contents]
    #[arg(long, value_parser = parse_uuid)]
    uuid: Option<[u8; 16]>,

    /// Name of the volume, up to 16 bytes
    #[arg(long, default_value = "", hide_default_value = true, value_name = "NAME")]
    volume_name: String,
}

#[derive(Clone, Copy, ValueEnum)]
enum IndexKind {
    /// For files of 1G or more with many zeros what takes least; otherwise compact
    Auto,
    /// 2 or 4 bytes per block
    Compact,
    /// 8 bytes per block
    Full,
    /// Encoded extents: 16 or 32 bytes per cluster, none for zeros (Linux 6.15)
    Extents,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let options = args.build_options().map_err(misuse)?;
    options.check().map_err(misuse)?;
    ImageFormat::Erofs.check_name(&args.output, "'pack'").map_err(wrong_name)?;
    let destination =
        Destination::of(&args.output, ImageFormat::Erofs, args.force, &args.source.inputs(&args.sources))?;
    let tree = args.source.tree(&args.sources, destination.replaced()?)?;
    let draft = draft(&destination)?;
    let mut line = ProgressLine::new();
    let report = build_watched(&tree, &options, draft.file(), &mut |progress| {
        line.show(progress.done_bytes, progress.total_bytes);
    })
    .map_err(|error| {
        let is_full = matches!(
            &error,
            Error::Io { source, .. }
                if matches!(source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
        );
        let may_be_skipped = matches!(&error, Error::Source { path, .. } if args.source.may_skip(path, &args.sources));
        let error = anyhow::Error::new(error);
        match (is_full, may_be_skipped) {
            (true, _) => error.context(destination.place()),
            (_, true) => anyhow::anyhow!("{error}; {SKIPPING}"),
            _ => error,
        }
    })?;
    drop(line);
    if args.verifies(&options) {
        args.verify(&tree, draft.file())?;
    }
    let is_file = matches!(destination, Destination::File(_));
    let has_name = is_file || matches!(destination, Destination::Device(_));
    destination.take(draft)?;
    if has_name {
        log::line(&format!(
            "{}: {} inodes, {} of files in {}",
            args.output.display(),
            report.inodes,
            size::show(report.file_bytes),
            size::show(report.image_bytes)
        ));
        if is_file && is_single(&tree) && !is_named_erofs(&args.output) {
            log::line(&format!(
                "{}: 'pagefold serve' takes it with --format erofs, or if its name ends in .erofs",
                args.output.display()
            ));
        }
    }
    if matches!(args.indexes, IndexKind::Auto) {
        print_needed_linux(&args.output, &report, "; --indexes compact avoids that, and makes a larger image");
    }
    let changes = source::print_changes(&tree);
    ensure!(
        changes == 0,
        "{}: written, but {changes} file{} of the source changed while packing",
        args.output.display(),
        if changes == 1 { "" } else { "s" }
    );
    Ok(())
}

impl Args {
    /// Returns whether the image is compared with its source. The default is yes where sharing
    /// makes builder bugs most likely and where it adds less than 15 % to the time (docs/pack.md).
    fn verifies(&self, options: &BuildOptions) -> bool {
        let slow = match options.codec {
            None | Some(ClusterCodec::Lz4) => false,
            Some(ClusterCodec::Zstd { level, .. }) => level >= 6,
            Some(ClusterCodec::Lz4Hc(_) | ClusterCodec::Deflate(_) | ClusterCodec::MicroLzma { .. }) => true,
        };
        let shares = options.dedupe || options.fragments != Fragments::Off;
        self.verify || !self.no_verify && (slow || shares)
    }

    /// Compares the finished image with its source; both are read again. A difference is an error,
    /// and the image gets no name.
    fn verify(&self, tree: &Tree, image: &File) -> anyhow::Result<()> {
        let image = image.try_clone().context("opening the image again")?;
        let report = Image::open(image).context("cannot read the image")?.compare(tree, self.threads);
        let count = source::print_differences(&report);
        ensure!(
            count == 0,
            "{}: not written: {count} difference{} between the image and its source. If the source changed while it was \
             packed, pack it again; otherwise this is a fault of pagefold: please report it",
            self.output.display(),
            if count == 1 { "" } else { "s" }
        );
        Ok(())
    }

    fn build_options(&self) -> anyhow::Result<BuildOptions> {
        let block_bytes = u32::try_from(self.block).ok().context("the block size is too large")?;
        let cluster = self.cluster.unwrap_or(self.block);
        let pcluster_bytes = u32::try_from(cluster).ok().context("the cluster size is too large")?;
        let mut volume_name = [0; 16];
        match volume_name.get_mut(..self.volume_name.len()) {
            Some(front) => front.copy_from_slice(self.volume_name.as_bytes()),
            None => bail!("the volume's name is longer than 16 bytes"),
        }
        Ok(BuildOptions {
            block_bytes,
            codec: codec::of_clusters(&self.codec, pcluster_bytes)?,
            pcluster_bytes,
            hints: self.hints.iter().map(|text| hint(text, pcluster_bytes)).collect::<anyhow::Result<_>>()?,
            indexes: match self.indexes {
                IndexKind::Auto => Indexes::Auto,
                IndexKind::Compact => Indexes::Compact,
                IndexKind::Full => Indexes::Full,
                IndexKind::Extents => Indexes::Extents,
            },
            ztailpacking: self.ztailpacking,
            fragments: self.fragments.unwrap_or(Fragments::Off),
            dedupe: self.dedupe,
            chunk_bytes: self.chunk.map(u32::try_from).transpose().ok().context("the chunk size is too large")?,
            xattr_prefixes: self.xattr_prefix.iter().map(|prefix| prefix.as_bytes().to_vec()).collect(),
            base_is_device: false,
            base_sha256: None,
            threads: self.threads,
            uuid: self.uuid,
            volume_name,
        })
    }
}

/// Returns whether a tree is a single file, which is a disk for `serve`.
fn is_single(tree: &Tree) -> bool {
    let NodeKind::Directory(names) = &tree.node(tree.root()).kind else { return false };
    names.len() == 1 && names.values().all(|id| matches!(tree.node(*id).kind, NodeKind::Regular { .. }))
}

/// Returns whether a file's name alone makes `serve` take it for an EROFS image.
fn is_named_erofs(path: &Path) -> bool {
    Signature::of_name(path).is_some_and(|name| name.kind() == Kind::Base(Format::Erofs))
}

/// Parses a hint. The last `=` ends the pattern. Without a cluster size, the image's applies.
fn hint(text: &OsStr, pcluster_bytes: u32) -> anyhow::Result<Hint> {
    let wrong = || format!("'{}' is not PATTERN=CODEC[,LEVEL][@CLUSTER]", text.display());
    let bytes = text.as_bytes();
    let equals = bytes.iter().rposition(|byte| *byte == b'=').filter(|at| *at > 0).with_context(wrong)?;
    let way = std::str::from_utf8(&bytes[equals + 1..]).ok().with_context(wrong)?;
    let (name, cluster) = match way.split_once('@') {
        Some((name, cluster)) => (name, size::parse(cluster).map_err(anyhow::Error::msg).with_context(wrong)?),
        None => (way, u64::from(pcluster_bytes)),
    };
    let pcluster_bytes = u32::try_from(cluster).with_context(wrong)?;
    let codec = codec::of_clusters(name, pcluster_bytes).with_context(wrong)?;
    let compression = codec.map(|codec| Compression { codec, pcluster_bytes });
    Ok(Hint { pattern: bytes[..equals].to_vec(), compression })
}

fn parse_fragments(text: &str) -> Result<Fragments, String> {
    match text {
        "tails" => Ok(Fragments::Tails),
        "all" => Ok(Fragments::All),
        _ => Err(format!("not tails or all; if {text} is the source, write --fragments=tails {text}")),
    }
}

fn parse_uuid(text: &str) -> Result<[u8; 16], String> {
    let digits: String = text.chars().filter(|letter| *letter != '-').collect();
    let number = u128::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 32 && !digits.starts_with('+'));
    number.map(u128::to_be_bytes).ok_or_else(|| format!("'{text}' is not a UUID"))
}

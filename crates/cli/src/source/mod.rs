//! The sources on the command line from which an image is built, or with which it is compared.

mod container;
mod decompress;
mod disk;
mod lz4;
mod peek;
mod spool;

use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail, ensure};
use pagefold_base::{Format, Kind, Signature, is_named_raw};
use pagefold_erofs::{
    CompareReport, Difference, IdMap, IdRange, ImageFile, Layer, ScanOptions, Tree, WarningKind, Whiteouts,
};

use self::container::Platform;
use self::decompress::decompressed;
use self::disk::{Disk, DiskFile};
use self::spool::spool;
use crate::image::show;
use crate::{log, misuse, tell};

/// Name of an archive read from standard input.
const STANDARD_INPUT: &str = "standard input";

/// What to take from sources, and how.
#[derive(clap::Args)]
pub(crate) struct SourceArgs {
    /// Modification time of all files, in seconds since 1970
    #[arg(short = 'T', long, value_name = "SECONDS", env = "SOURCE_DATE_EPOCH", value_parser = parse_seconds,
        allow_negative_numbers = true)]
    timestamp: Option<Timestamp>,

    /// Make root the owner of all files
    #[arg(long, conflicts_with_all = ["uid", "gid"])]
    all_root: bool,

    /// Owner of all files
    #[arg(long, visible_alias = "force-uid")]
    uid: Option<u32>,

    /// Group of all files
    #[arg(long, visible_alias = "force-gid")]
    gid: Option<u32>,

    /// Map the COUNT (default 1) owner IDs starting at FROM to those starting at TO; keep all
    /// others
    #[arg(long, value_name = "FROM:TO[:COUNT]", value_parser = parse_range, conflicts_with_all = ["uid", "all_root"])]
    uid_map: Vec<IdRange>,

    /// Map group IDs in the same way
    #[arg(long, value_name = "FROM:TO[:COUNT]", value_parser = parse_range, conflicts_with_all = ["gid", "all_root"])]
    gid_map: Vec<IdRange>,

    /// Leave out extended attributes
    #[arg(long)]
    no_xattrs: bool,

    /// Leave out files whose name matches PATTERN, at any depth; with a slash in it or before it,
    /// PATTERN is a path below the source. * and ? match within one name
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<std::ffi::OsString>,

    /// Take the only source for a disk of this format, whatever its content and name: raw (its bytes
    /// as they are; of a directory, its files), erofs, qcow2
    #[arg(long, conflicts_with = "layer")]
    format: Option<Format>,

    /// Platform of the image to take from a container archive or layout that holds several
    /// [default: the platform of this machine]
    #[arg(long, value_name = "OS/ARCHITECTURE[/VARIANT]", value_parser = Platform::parse)]
    platform: Option<Platform>,

    /// Build a layer for overlayfs: keep whiteouts, in the form that overlayfs uses, instead of
    /// applying them to the preceding sources
    #[arg(long)]
    layer: bool,

    /// Leave out unreadable files and directories with a warning, instead of failing. Of files that
    /// vanish or become shorter while they are packed, leave out the former and fill the latter
    /// with zeros; each is named, and the exit status is 1
    #[arg(long)]
    skip_unreadable: bool,

    /// Do not enter other file systems: directories on which they are mounted stay empty
    #[arg(long)]
    one_file_system: bool,

    /// Store each hard link as a file of its own
    #[arg(long)]
    hard_dereference: bool,
}

impl SourceArgs {
    /// Returns the merged tree of all sources. Warns about everything that an image cannot store.
    /// Leaves out `image` if it is inside a source.
    pub(crate) fn tree(&self, sources: &[PathBuf], image: Option<ImageFile>) -> anyhow::Result<Tree> {
        let options = ScanOptions { image, ..self.scan_options().map_err(misuse)? };
        let mut tree = self.read(sources, &options)?;
        if self.hard_dereference {
            tree.separate_links();
        }
        warn_of(&tree);
        Ok(tree)
    }

    fn read(&self, sources: &[PathBuf], options: &ScanOptions) -> anyhow::Result<Tree> {
        let from_input = sources.iter().filter(|source| *source == Path::new("-")).count();
        if from_input > 1 {
            return Err(misuse(anyhow!("standard input (-) can be used for one source only")));
        }
        if let Some(format) = self.format {
            return match sources {
                [source] if from_input == 0 => of_format(source, format, options),
                _ => Err(misuse(anyhow!("--format is for a single disk, which has a name"))),
            };
        }
        let (mut layers, mut of_container) = (Vec::new(), false);
        for source in sources {
            match self.open(source, options)? {
                Source::Layer(layer) => layers.push(layer),
                Source::Container(all) => {
                    of_container = true;
                    layers.extend(all);
                }
                Source::Disk(disk) if sources.len() == 1 && !self.layer => return disk.into_tree(options),
                Source::Disk(_) => bail!("{} is not a directory or a tar archive", source.display()),
            }
        }
        if self.platform.is_some() && !of_container {
            return Err(misuse(anyhow!("--platform is for container images, and no source is one")));
        }
        let whiteouts = if self.layer { Whiteouts::Keep } else { Whiteouts::Apply };
        match layers.len() {
            1 if !self.layer && !of_container => layers.remove(0).into_tree().map_err(Into::into),
            _ => Ok(Layer::stack(layers, whiteouts)?),
        }
    }

    /// Opens a source. Its content decides what it is; its name must not contradict.
    fn open(&self, source: &Path, options: &ScanOptions) -> anyhow::Result<Source> {
        if source == Path::new("-") {
            return self.sequential(io::stdin().lock(), Path::new(STANDARD_INPUT), options);
        }
        let shown = || source.display().to_string();
        let metadata = fs::metadata(source).with_context(shown)?;
        let kind = metadata.file_type();
        if kind.is_dir() {
            return self.directory(source, options);
        }
        if kind.is_char_device() || kind.is_socket() {
            bail!("{}: not a directory, a file, a pipe or a disk", shown());
        }
        let file = File::open(source).with_context(shown)?;
        if kind.is_fifo() {
            return self.sequential(file, source, options);
        }
        ensure!(source.file_name().is_some(), "{} has no name", shown());
        let content = Signature::of(&file, 0).with_context(shown)?;
        match Contents::of(source, content, kind.is_block_device()).with_context(shown)? {
            Contents::Archive => self.archive(file, source, options),
            Contents::Disk => {
                let disk = DiskFile { file, path: source.to_owned(), is_there: true, metadata };
                Ok(Source::Disk(Disk::open(disk, None)?))
            }
            Contents::Compressed(compressed) => self.unpacked(&file, compressed, source, metadata, options),
        }
    }

    fn directory(&self, source: &Path, options: &ScanOptions) -> anyhow::Result<Source> {
        let is_file = |name: &str| source.join(name).is_file();
        if is_file("oci-layout") && is_file("index.json") {
            // The options are for the files of the image.
            let layer = Layer::scan(source, &ScanOptions::default())?;
            if let Some(layers) = container::layers(layer.tree(), source, self.platform.as_ref(), options)? {
                return Ok(Source::Container(layers));
            }
        }
        Ok(Source::Layer(Layer::scan(source, options)?))
    }

    /// Reads the archive in a file.
    fn archive(&self, file: File, name: &Path, options: &ScanOptions) -> anyhow::Result<Source> {
        let shown = || name.display().to_string();
        // Zeros end an archive, and most disks begin with zeros.
        if begins_with_zeros(&file).with_context(shown)? && !is_zeros(&file).with_context(shown)? {
            bail!(
                "{} is not a tar archive: data after leading zeros. Give a disk as a file, not through a pipe",
                shown()
            );
        }
        let again = || file.try_clone().with_context(shown);
        // Exclusions are for the files of the image, if the archive contains one.
        let all = ScanOptions { excludes: Vec::new(), ..options.clone() };
        let layer = Layer::from_tar(again()?, name, &all);
        if let Ok(layer) = &layer
            && let Some(layers) = container::layers(layer.tree(), name, self.platform.as_ref(), options)?
        {
            return Ok(Source::Container(layers));
        }
        let layer = if options.excludes.is_empty() { layer } else { Layer::from_tar(again()?, name, options) };
        Ok(Source::Layer(layer?))
    }

    /// Reads an archive that can only be read sequentially.
    fn sequential(&self, source: impl Read, name: &Path, options: &ScanOptions) -> anyhow::Result<Source> {
        let shown = || name.display().to_string();
        let kept = spool(decompressed(source).with_context(shown)?, name)?;
        let found = Signature::of(&kept, 0).with_context(shown)?;
        match found.filter(|found| found.kind() != Kind::Tar) {
            Some(disk) if disk.kind() == Kind::Disk => {
                bail!(
                    "{} is not a tar archive, but {}. Give a disk as a file, not through a pipe",
                    shown(),
                    disk.name()
                )
            }
            Some(other) => bail!("{} is not a tar archive, but {}", shown(), other.described(Path::new("FILE"))),
            None => self.archive(kept, name, options),
        }
    }

    /// Reads a compressed archive or disk.
    fn unpacked(
        &self,
        file: &File,
        compressed: &Signature,
        source: &Path,
        metadata: Metadata,
        options: &ScanOptions,
    ) -> anyhow::Result<Source> {
        let shown = || source.display().to_string();
        let kept = spool(decompressed(From { file, at: 0 }).with_context(shown)?, source)?;
        let path = without_compression(source);
        let content = Signature::of(&kept, 0).with_context(shown)?;
        if let Some(found) = content.filter(|found| found.kind() == Kind::Foreign) {
            let first = compressed.advice(source);
            bail!("{}: {first}; then it is {}", shown(), found.described(&path));
        }
        let inside = || format!("{}, decompressed", shown());
        match Contents::of(&path, content, false).with_context(inside)? {
            Contents::Archive => self.archive(kept, source, options),
            Contents::Disk => {
                let disk = DiskFile { file: kept, path, is_there: false, metadata };
                Ok(Source::Disk(Disk::open(disk, None).with_context(inside)?))
            }
            Contents::Compressed(_) => bail!("{} is compressed twice: decompress it first", shown()),
        }
    }

    fn scan_options(&self) -> anyhow::Result<ScanOptions> {
        for pattern in &self.exclude {
            let names = pattern.as_bytes().iter().any(|byte| *byte != b'/');
            ensure!(names, "--exclude '{}': the pattern is empty", pattern.display());
        }
        let root = self.all_root.then_some(0);
        Ok(ScanOptions {
            mtime_s: self.timestamp.and_then(|Timestamp(seconds)| seconds),
            uid: self.uid.or(root),
            gid: self.gid.or(root),
            uid_map: id_map(&self.uid_map)?,
            gid_map: id_map(&self.gid_map)?,
            no_xattrs: self.no_xattrs,
            skip_unreadable: self.skip_unreadable,
            one_file_system: self.one_file_system,
            excludes: self.exclude.iter().map(|pattern| pattern.as_bytes().to_vec()).collect(),
            image: None,
        })
    }
}

/// What a source is.
enum Source {
    Layer(Layer),
    /// The layers of a container image, the lowest first.
    Container(Vec<Layer>),
    Disk(Disk),
}

/// How the content of a file is read.
#[derive(Debug, PartialEq, Eq)]
enum Contents {
    Archive,
    /// A disk, or what is refused as one.
    Disk,
    /// Compressed data of this format.
    Compressed(&'static Signature),
}

impl Contents {
    /// Judges a file by its content and its name. A raw disk's content is chosen by its guest, so
    /// what is named like a disk is not taken for something else.
    fn of(path: &Path, content: Option<&'static Signature>, is_device: bool) -> anyhow::Result<Self> {
        let name = Signature::of_name(path);
        let (contents, content) = match content.map(|content| (content.kind(), content)) {
            Some((Kind::Tar, content)) => (Self::Archive, content),
            Some((Kind::Compressed(_), content)) => (Self::Compressed(content), content),
            // The archive may be empty or damaged.
            None if name.is_some_and(|name| name.kind() == Kind::Tar) => return Ok(Self::Archive),
            _ => return Ok(Self::Disk),
        };
        let claim = match name {
            None if is_device => Some("it is a block device"),
            None if is_named_raw(path) => Some("its name is that of a raw disk"),
            Some(name) if matches!(name.kind(), Kind::Base(_) | Kind::Foreign) => {
                Some("its name is that of another format")
            }
            _ => None,
        };
        match claim {
            None => Ok(contents),
            Some(claim) => bail!(
                "it contains {}, but {claim}: to pack its bytes as a disk, give --format raw; otherwise, rename it",
                content.name()
            ),
        }
    }
}

/// Returns the source of which the format was specified.
fn of_format(source: &Path, format: Format, options: &ScanOptions) -> anyhow::Result<Tree> {
    let shown = || source.display().to_string();
    let metadata = fs::metadata(source).with_context(shown)?;
    let kind = metadata.file_type();
    if kind.is_dir() && format == Format::Raw {
        return Ok(Layer::scan(source, options)?.into_tree()?);
    }
    ensure!(kind.is_file() || kind.is_block_device(), "{}: not a file or a block device", shown());
    let file = File::open(source).with_context(shown)?;
    Disk::open(DiskFile { file, path: source.to_owned(), is_there: true, metadata }, Some(format))?.into_tree(options)
}

fn begins_with_zeros(file: &File) -> io::Result<bool> {
    let mut block = [0; 512];
    let len = file.read_at(&mut block, 0)?;
    Ok(block[..len].iter().all(|byte| *byte == 0))
}

/// Returns whether a file has no other bytes than zeros.
fn is_zeros(file: &File) -> io::Result<bool> {
    let mut source = From { file, at: 0 };
    let mut buf = vec![0; 1 << 18];
    loop {
        match source.read(&mut buf)? {
            0 => return Ok(true),
            len if buf[..len].iter().any(|byte| *byte != 0) => return Ok(false),
            _ => {}
        }
    }
}

/// Returns a path without what a compressor added to it.
fn without_compression(path: &Path) -> PathBuf {
    let is_added = Signature::of_name(path).is_some_and(|name| matches!(name.kind(), Kind::Compressed(_)));
    // Such as .tgz.
    let is_tar = path.extension().is_some_and(|end| matches!(end.as_bytes(), [b't' | b'T', ..]));
    match is_added {
        true if is_tar => path.with_extension("tar"),
        true => path.with_extension(""),
        false => path.to_owned(),
    }
}

/// Refuses a file that is not a raw disk, for commands that read nothing else.
pub(crate) fn expect_raw(path: &Path, file: &File) -> anyhow::Result<()> {
    let found = Signature::of(file, 0).with_context(|| path.display().to_string())?;
    match found {
        Some(found) if found.kind() == Kind::Tar => {
            bail!("{} is an archive: extract it and give the directory", path.display())
        }
        Some(found) if found.kind() != Kind::Disk => bail!("{} is {}", path.display(), found.described(path)),
        _ => Ok(()),
    }
}

/// A file read from an offset, independent of its file position.
struct From<'a> {
    file: &'a File,
    at: u64,
}

impl Read for From<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = self.file.read_at(buf, self.at)?;
        self.at += len as u64;
        Ok(len)
    }
}

/// Warns about parts of the sources that the image will not store unchanged: one line per kind, and
/// one per file that is left out.
fn warn_of(tree: &Tree) {
    for warning in tree.warnings() {
        if warning.kind == WarningKind::Unreadable {
            for example in &warning.examples {
                tell(&format!("skipped: {}", show(example.as_bytes())));
            }
        }
        tell(&format!("warning: {}", show(warning.to_string().as_bytes())));
    }
}

/// Names the files that changed while their tree was used, each in a line. Returns their number.
pub(crate) fn tell_changes(tree: &Tree) -> u64 {
    let mut all = 0;
    for warning in tree.changes() {
        let what = match warning.kind {
            WarningKind::Shorter => "became shorter; the rest is zeros",
            WarningKind::Changed => "changed, and was not verified",
            _ => "vanished, and was left out",
        };
        for example in &warning.examples {
            tell(&format!("warning: {}: {what}", show(example.as_bytes())));
        }
        let more = warning.count - warning.examples.len() as u64;
        if more > 0 {
            tell(&format!("warning: {more} more {what}"));
        }
        all += warning.count;
    }
    all
}

/// Reports each difference between an image and its source; returns their number.
pub(crate) fn tell_differences(report: &CompareReport) -> u64 {
    for Difference { path, what, .. } in &report.differences {
        log::line(&format!("{}: {what}", show(path)));
    }
    report.differences.len() as u64 + report.more_differences
}

/// Parses a range of ids: `FROM:TO` or `FROM:TO:COUNT`; the default count is 1.
fn parse_range(text: &str) -> Result<IdRange, String> {
    let wrong = || format!("'{text}' is not FROM:TO or FROM:TO:COUNT, as in 0:100000:65536");
    let numbers: Vec<u32> = text.split(':').map(str::parse).collect::<Result<_, _>>().map_err(|_| wrong())?;
    match numbers[..] {
        [from, to] => Ok(IdRange { from, to, count: 1 }),
        [from, to, count] => Ok(IdRange { from, to, count }),
        _ => Err(wrong()),
    }
}

fn id_map(ranges: &[IdRange]) -> anyhow::Result<IdMap> {
    IdMap::new(ranges.to_vec()).context("the range of IDs is empty or extends beyond 4294967295")
}

/// The argument of `--timestamp`; `None` if it is the value of an empty environment variable.
#[derive(Clone, Copy)]
struct Timestamp(Option<i64>);

fn parse_seconds(text: &str) -> Result<Timestamp, String> {
    if text.is_empty() && std::env::var_os("SOURCE_DATE_EPOCH").is_some_and(|value| value.is_empty()) {
        return Ok(Timestamp(None));
    }
    let seconds =
        text.parse().map_err(|_| format!("'{text}' (from -T or SOURCE_DATE_EPOCH) is not a number of seconds"));
    seconds.map(|seconds| Timestamp(Some(seconds)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_compressor_added_to_a_name_is_left_out() {
        for (name, inner) in [
            ("d/disk.img.gz", "d/disk.img"),
            ("disk.qcow2.XZ", "disk.qcow2"),
            ("a.tgz", "a.tar"),
            ("a.TZST", "a.tar"),
            ("a.tar.bz2", "a.tar"),
            ("blob", "blob"),
            (".gz", ".gz"),
            ("a.txt", "a.txt"),
            ("a.zip", "a.zip"),
        ] {
            assert_eq!(without_compression(Path::new(name)), Path::new(inner), "{name}");
        }
    }
}

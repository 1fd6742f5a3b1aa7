//! The sources on the command line from which an image is built, or with which it is compared.

mod decompress;

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail, ensure};
use pagefold_erofs::{
    CompareReport, Content, Difference, IdMap, IdRange, Layer, Node, NodeKind, ScanOptions, Tree, WarningKind,
    Whiteouts,
};

use self::decompress::decompressed;
use crate::image::{compressor, show};
use crate::{misuse, tell};

/// Name of an archive read from standard input.
const STANDARD_INPUT: &str = "standard input";
/// Offset and magic number of POSIX tar archives.
const USTAR: (u64, &[u8; 5]) = (257, b"ustar");

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

    /// Build a layer for overlayfs: keep whiteouts, in the form that overlayfs uses, instead of
    /// applying them to the preceding sources
    #[arg(long)]
    layer: bool,

    /// Leave out unreadable files and directories with a warning, instead of failing
    #[arg(long)]
    skip_unreadable: bool,
}

impl SourceArgs {
    /// Returns the merged tree of all sources. Warns about everything that an image cannot store.
    /// Leaves out `output` if it is inside a source.
    pub(crate) fn tree(&self, sources: &[PathBuf], output: Option<&Path>) -> anyhow::Result<Tree> {
        let options = self.scan_options().map_err(misuse)?;
        let tree = self.read(sources, output, &options)?;
        warn_of(&tree);
        Ok(tree)
    }

    fn read(&self, sources: &[PathBuf], output: Option<&Path>, options: &ScanOptions) -> anyhow::Result<Tree> {
        let from_input = sources.iter().filter(|source| *source == Path::new("-")).count();
        if from_input > 1 {
            return Err(misuse(anyhow!("standard input (-) can be used for one source only")));
        }
        let mut layers = Vec::new();
        for source in sources {
            match layer(source, output, options)? {
                Some(layer) => layers.push(layer),
                None if sources.len() == 1 && !self.layer => return of_file(source, options),
                None => bail!("{} is not a directory or a tar archive", source.display()),
            }
        }
        let whiteouts = if self.layer { Whiteouts::Keep } else { Whiteouts::Apply };
        match layers.len() {
            1 if !self.layer => layers.remove(0).into_tree().map_err(Into::into),
            _ => Ok(Layer::stack(layers, whiteouts)?),
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
            excludes: self.exclude.iter().map(|pattern| pattern.as_bytes().to_vec()).collect(),
        })
    }
}

/// Returns the layer of a directory or an archive; `None` for any other file.
fn layer(source: &Path, output: Option<&Path>, options: &ScanOptions) -> anyhow::Result<Option<Layer>> {
    if source == Path::new("-") {
        return archive(io::stdin().lock(), Path::new(STANDARD_INPUT), options).map(Some);
    }
    let shown = || source.display().to_string();
    let kind = fs::metadata(source).with_context(shown)?.file_type();
    if kind.is_dir() {
        return Ok(Some(Layer::scan(source, &without_output(source, output, options))?));
    }
    if kind.is_char_device() || kind.is_socket() {
        bail!("{}: not a directory, a file, a pipe or a disk", shown());
    }
    let file = File::open(source).with_context(shown)?;
    if kind.is_fifo() {
        return archive(file, source, options).map(Some);
    }
    Ok(match archive_kind(source, &file)? {
        Some(Packed::Compressed) => Some(archive(file, source, options)?),
        Some(Packed::Plain) => Some(Layer::from_tar(file, source, options)?),
        None => None,
    })
}

/// How a file contains a tar archive.
pub(crate) enum Packed {
    Plain,
    Compressed,
}

/// Returns how a file contains an archive; `None` if it becomes a file of an image.
pub(crate) fn archive_kind(source: &Path, file: &File) -> anyhow::Result<Option<Packed>> {
    let shown = || source.display().to_string();
    let Some(name) = source.file_name() else { bail!("{} has no name", shown()) };
    let suffix = |suffix: &str| name.as_bytes().ends_with(suffix.as_bytes());
    let named = suffix(".tar") || suffix("tgz") || name.as_bytes().windows(5).any(|part| part == b".tar.");
    if compressor(file).with_context(shown)?.is_some() {
        return Ok((named || holds_an_archive(file)).then_some(Packed::Compressed));
    }
    let mut magic = [0; USTAR.1.len()];
    let is_plain = file.read_exact_at(&mut magic, USTAR.0).is_ok_and(|()| &magic == USTAR.1) || suffix(".tar");
    Ok(is_plain.then_some(Packed::Plain))
}

/// Excludes the image if it is being built inside its own source directory.
fn without_output(source: &Path, output: Option<&Path>, options: &ScanOptions) -> ScanOptions {
    let mut options = options.clone();
    if let (Ok(source), Some(Ok(output))) = (fs::canonicalize(source), output.map(fs::canonicalize))
        && let Ok(below) = output.strip_prefix(&source)
        && !below.as_os_str().as_bytes().iter().any(|byte| b"*?".contains(byte))
    {
        options.excludes.push([b"/", below.as_os_str().as_bytes()].concat());
    }
    options
}

/// Returns whether a compressed file is an archive, whatever its name. Layers of containers, for
/// example, are named by their checksums.
fn holds_an_archive(file: &File) -> bool {
    let mut front = vec![0; USTAR.0 as usize + USTAR.1.len()];
    let read = decompressed(From { file, at: 0 }).and_then(|mut source| source.read_exact(&mut front));
    read.is_ok() && front.ends_with(USTAR.1)
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

/// Reads an archive that can only be read sequentially. Keeps its content in a temporary file,
/// decompressed if necessary.
fn archive(source: impl Read, name: &Path, options: &ScanOptions) -> anyhow::Result<Layer> {
    let folder = std::env::temp_dir();
    let keeping = || format!("keeping {} in {} (TMPDIR chooses another place)", name.display(), folder.display());
    let mut kept = tempfile::tempfile_in(&folder).with_context(keeping)?;
    let shown = || name.display().to_string();
    let mut source = decompressed(source).with_context(shown)?;
    let mut buf = vec![0; 1 << 18];
    loop {
        match source.read(&mut buf) {
            Ok(0) => break,
            Ok(len) => kept.write_all(&buf[..len]).with_context(keeping)?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => {
                return Err(error).with_context(|| format!("{} is damaged or truncated", name.display()));
            }
        }
    }
    Ok(Layer::from_tar(kept, name, options)?)
}

/// Returns the tree of a single file or block device.
fn of_file(source: &Path, options: &ScanOptions) -> anyhow::Result<Tree> {
    let shown = || source.display().to_string();
    let mut file = File::open(source).with_context(shown)?;
    let metadata = file.metadata().with_context(shown)?;
    let size = file.seek(SeekFrom::End(0)).with_context(shown)?;
    let name = source.file_name().with_context(|| format!("{} has no name", shown()))?;
    let mut tree = Tree::new(node_of(&metadata, options, NodeKind::Fifo, 0o755));
    let content = Content::Path(source.into());
    let permissions = (metadata.mode() & 0o777) as u16;
    let node = node_of(&metadata, options, NodeKind::Regular { content, size }, permissions);
    tree.add(tree.root(), name.as_bytes(), node)?;
    Ok(tree)
}

fn node_of(metadata: &Metadata, options: &ScanOptions, kind: NodeKind, permissions: u16) -> Node {
    Node {
        kind,
        permissions,
        uid: options.uid.unwrap_or_else(|| options.uid_map.apply(metadata.uid())),
        gid: options.gid.unwrap_or_else(|| options.gid_map.apply(metadata.gid())),
        mtime_s: options.mtime_s.unwrap_or(metadata.mtime()),
        mtime_nsec: if options.mtime_s.is_some() { 0 } else { metadata.mtime_nsec() as u32 },
        xattrs: Vec::new(),
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

/// Reports each difference between an image and its source; returns their number.
pub(crate) fn tell_differences(report: &CompareReport) -> u64 {
    for Difference { path, what, .. } in &report.differences {
        eprintln!("{}: {what}", show(path));
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

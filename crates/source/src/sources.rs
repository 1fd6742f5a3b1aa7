//! The sources from which an image is made.

use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use pagefold_base::{Format, Kind, Signature};
use pagefold_erofs::{Layer, ScanOptions, Tree, Whiteouts};

use crate::container::{self, INDEX, LAYOUT, LayoutParts, Platform};
use crate::contents::{Contents, without_compression};
use crate::decompress::decompressed;
use crate::disk::{Disk, DiskFile};
use crate::error::{Error, Result, Warn, Within, ensure, refuse};
use crate::spool::spool;

/// Name of an archive read from standard input.
const STANDARD_INPUT: &str = "standard input";

/// What to take from sources, and how. Start from [`Options::default`] and change fields.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// Which files of a directory or an archive are taken, with which owners and times.
    pub scan: ScanOptions,
    /// Treats the only source as a disk of this format, whatever its content and name say. With
    /// [`Format::Raw`], a directory is still taken as its files.
    pub format: Option<Format>,
    /// The platform of the image to take from a container archive or layout that holds several; by
    /// default, that of this machine.
    pub platform: Option<Platform>,
    /// Keeps whiteouts, in the form that overlayfs uses, instead of applying them to the preceding
    /// sources.
    pub layer: bool,
    /// Makes each hard link a file of its own.
    pub separate_links: bool,
}

/// Returns the merged tree of all sources, each a path or `-` for standard input. Later sources are
/// stacked on earlier ones like the layers of a container. `warn` receives warnings about disks;
/// [`Tree::warnings`] has those about files.
///
/// # Errors
/// [`Error::Options`]: the options contradict each other or the sources. All others: a source cannot
/// be read, or is not what an image can be made from.
pub fn read(sources: &[PathBuf], options: &Options, warn: &Warn) -> Result<Tree> {
    let mut tree = Sources { options, warn }.read(sources, &options.scan)?;
    if options.separate_links {
        tree.separate_links();
    }
    Ok(tree)
}

/// Reads sources.
struct Sources<'a> {
    options: &'a Options,
    warn: &'a Warn,
}

/// Returns whether a directory is to be an OCI layout, which stands for the layers of its image.
pub fn is_layout(directory: &Path) -> bool {
    [LAYOUT, INDEX].iter().all(|name| directory.join(name).is_file())
}

impl Sources<'_> {
    fn read(&self, sources: &[PathBuf], options: &ScanOptions) -> Result<Tree> {
        let from_input = sources.iter().filter(|source| *source == Path::new("-")).count();
        if from_input > 1 {
            return Err(Error::Options("standard input (-) can be used for one source only".to_owned()));
        }
        if let Some(format) = self.options.format {
            return match sources {
                [source] if from_input == 0 => of_format(source, format, options, self.warn),
                [_] => Err(Error::Options(
                    "--format is for a single disk in a file, not for standard input (-)".to_owned(),
                )),
                _ => Err(Error::Options(format!("--format is for a single disk, not for {} sources", sources.len()))),
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
                Source::Disk(disk) if sources.len() == 1 && !self.options.layer => return disk.into_tree(options),
                Source::Disk(_) => refuse!("{} is not a directory or a tar archive", source.display()),
            }
        }
        if self.options.platform.is_some() && !of_container {
            return Err(Error::Options("--platform is for container images, and no source is one".to_owned()));
        }
        let whiteouts = if self.options.layer { Whiteouts::Keep } else { Whiteouts::Apply };
        match layers.len() {
            1 if !self.options.layer && !of_container => layers.remove(0).into_tree().map_err(Into::into),
            _ => Ok(Layer::stack(layers, whiteouts)?),
        }
    }

    /// Opens a source. Its content decides what it is; its name must not contradict.
    fn open(&self, source: &Path, options: &ScanOptions) -> Result<Source> {
        if source == Path::new("-") {
            return self.sequential(io::stdin().lock(), Path::new(STANDARD_INPUT), options);
        }
        let shown = || source.display().to_string();
        let metadata = fs::metadata(source).within(shown)?;
        let kind = metadata.file_type();
        if kind.is_dir() {
            return self.directory(source, options);
        }
        if kind.is_char_device() || kind.is_socket() {
            refuse!("{}: not a directory, a file, a pipe or a disk", shown());
        }
        let file = File::open(source).within(shown)?;
        if kind.is_fifo() {
            return self.sequential(file, source, options);
        }
        ensure!(source.file_name().is_some(), "{} has no name", shown());
        let content = Signature::of(&file, 0).within(shown)?;
        match Contents::of(source, content, kind.is_block_device()).within(shown)? {
            Contents::Archive => self.archive(file, source, "To pack its bytes as a disk, give --format raw", options),
            Contents::Disk => {
                let disk = DiskFile { file, path: source.to_owned(), is_there: true, metadata };
                Ok(Source::Disk(Disk::open(disk, None, self.warn)?))
            }
            Contents::Compressed(compressed) => self.unpacked(&file, compressed, source, metadata, options),
        }
    }

    fn directory(&self, source: &Path, options: &ScanOptions) -> Result<Source> {
        if is_layout(source) {
            // The options are for the files of the image.
            let layer = Layer::scan(source, &ScanOptions::default())?;
            if let Some(layers) = container::layers(layer.tree(), source, self.options.platform.as_ref(), options)? {
                return Ok(Source::Container(layers));
            }
        }
        LayoutParts::of_directory(source).check().within(|| source.display().to_string())?;
        Ok(Source::Layer(Layer::scan(source, options)?))
    }

    /// Reads the archive in a file. `for_disk` says what to do if it is a disk.
    fn archive(&self, file: File, name: &Path, for_disk: &str, options: &ScanOptions) -> Result<Source> {
        let shown = || name.display().to_string();
        // Zeros end an archive, and most disks begin with zeros.
        if begins_with_zeros(&file).within(shown)? && !is_zeros(&file).within(shown)? {
            refuse!("{} is not a tar archive: data after leading zeros. {for_disk}", shown());
        }
        let again = || file.try_clone().within(shown);
        // Exclusions are for the files of the image, if the archive contains one.
        let all = ScanOptions { excludes: Vec::new(), ..options.clone() };
        let layer = Layer::from_tar(again()?, name, &all);
        if let Ok(layer) = &layer
            && let Some(layers) = container::layers(layer.tree(), name, self.options.platform.as_ref(), options)?
        {
            return Ok(Source::Container(layers));
        }
        let layer = if options.excludes.is_empty() { layer } else { Layer::from_tar(again()?, name, options) };
        Ok(Source::Layer(layer?))
    }

    /// Reads an archive that can only be read sequentially.
    fn sequential(&self, source: impl Read, name: &Path, options: &ScanOptions) -> Result<Source> {
        let shown = || name.display().to_string();
        let kept = spool(decompressed(source).within(shown)?, name)?;
        let found = Signature::of(&kept, 0).within(shown)?;
        match found.filter(|found| found.kind() != Kind::Tar) {
            Some(disk) if disk.kind() == Kind::Disk => {
                refuse!(
                    "{} is not a tar archive, but {}. Give a disk as a file, not through a pipe",
                    shown(),
                    disk.name()
                )
            }
            Some(other) => refuse!("{} is not a tar archive, but {}", shown(), other.described(Path::new("FILE"))),
            None => self.archive(kept, name, "Give a disk as a file, not through a pipe", options),
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
    ) -> Result<Source> {
        let shown = || source.display().to_string();
        let kept = spool(decompressed(From { file, at: 0 }).within(shown)?, source)?;
        let path = without_compression(source);
        let content = Signature::of(&kept, 0).within(shown)?;
        let is_other = |found: &&Signature| match found.kind() {
            Kind::OtherDisk(_) | Kind::Foreign => true,
            Kind::Base(_) => Signature::of_name(&path) != Some(found),
            _ => false,
        };
        if let Some(found) = content.filter(is_other) {
            let first = compressed.advice(source);
            let made = compressed.created(source).map_or_else(|| path.clone(), PathBuf::from);
            refuse!("{}: {first}; its content is {}", shown(), found.described(&made));
        }
        let inside = || format!("{}, decompressed", shown());
        match Contents::of(&path, content, false).within(inside)? {
            Contents::Archive => {
                self.archive(kept, source, "If it is a disk, name it like one, such as disk.img.gz", options)
            }
            Contents::Disk => {
                let disk = DiskFile { file: kept, path, is_there: false, metadata };
                Ok(Source::Disk(Disk::open(disk, None, self.warn).within(inside)?))
            }
            Contents::Compressed(_) => refuse!("{} is compressed twice: decompress it first", shown()),
        }
    }
}

/// The kinds of sources.
enum Source {
    Layer(Layer),
    /// The layers of a container image, the lowest first.
    Container(Vec<Layer>),
    Disk(Disk),
}

/// Returns the source whose format was specified.
fn of_format(source: &Path, format: Format, options: &ScanOptions, warn: &Warn) -> Result<Tree> {
    let shown = || source.display().to_string();
    let metadata = fs::metadata(source).within(shown)?;
    let kind = metadata.file_type();
    if kind.is_dir() && format == Format::Raw {
        return Ok(Layer::scan(source, options)?.into_tree()?);
    }
    ensure!(kind.is_file() || kind.is_block_device(), "{}: not a file or a block device", shown());
    let file = File::open(source).within(shown)?;
    Disk::open(DiskFile { file, path: source.to_owned(), is_there: true, metadata }, Some(format), warn)?
        .into_tree(options)
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

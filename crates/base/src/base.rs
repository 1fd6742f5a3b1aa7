//! A base of any format.

use std::{
    fmt, io, mem,
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use pagefold_disk::{BlockDevice, Error, Extent, Read, Zeroes};
use pagefold_storage::{ReadAt, Storage};

use crate::{Cache, Format, OpenError, content::Content, erofs::ErofsFile, holes::Holes, qcow2::Qcow2, raw::Raw};

/// A base's size is a multiple of this.
const SECTOR_BYTES: u64 = 512;

/// The maximum size of a base in bytes, because positions in files are signed.
const MOST_BYTES: u64 = i64::MAX as u64 - SECTOR_BYTES;

/// Options for opening a base. Change fields of [`Options::default`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// The format of the storage. `None`: content and name determine it, and must agree, and a file
    /// in an EROFS image must be a raw disk.
    pub format: Option<Format>,
    /// The path of a file in an EROFS image. `None`: the image's only file.
    pub inside: Option<Vec<u8>>,
}

/// A read-only disk for any number of threads.
///
/// Its size is that of the content, rounded up to a multiple of 512; bytes after the content read
/// as zeros.
pub struct Base {
    path: PathBuf,
    format: Format,
    content: Box<dyn Content>,
    storage: Arc<dyn Storage>,
    inside: Option<Vec<u8>>,
    /// Whether a change of the storage was reported.
    changed: AtomicBool,
    /// Whether a failed read was reported.
    failed: AtomicBool,
    log: Box<dyn Fn(&str) + Send + Sync>,
}

impl Base {
    /// Opens the file at `path`, and reads only what opening needs. Metadata that locates content
    /// is read and verified when it is needed (EROFS) or when the file is opened (qcow2).
    ///
    /// `log` gets a line when the first read fails, and one when another program has changed the
    /// open file.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(
        path: &Path,
        options: &Options,
        cache: &Cache,
        log: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Self, OpenError> {
        let storage = pagefold_storage::open(path).map_err(|source| OpenError::of_storage(path, source))?;
        Self::of(storage, path, options, cache, log)
    }

    /// Like [`open`](Self::open), for a storage that users call `name`: a path or a URL.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn of(
        storage: Arc<dyn Storage>,
        name: &Path,
        options: &Options,
        cache: &Cache,
        log: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Self, OpenError> {
        let path = name;
        let failed = |source| OpenError::Io { path: path.into(), source };
        let unfit = |what: &str| OpenError::Unfit { path: path.into(), what: what.to_owned() };
        let format = options.format.map_or_else(|| Format::of(path, &*storage), Ok)?;
        if options.inside.is_some() && format != Format::Erofs {
            return Err(match options.format {
                Some(given) => unfit(&format!(
                    "--format {given} is for the file itself: only an EROFS image can be given with a path"
                )),
                None => unfit("not an EROFS image: only an EROFS image can be given with a path"),
            });
        }
        let stored = Arc::clone(&storage);
        let content: Box<dyn Content> = match format {
            Format::Raw => Box::new(Raw::open(stored).map_err(failed)?),
            Format::Erofs => {
                let cache = cache.join().ok_or_else(|| OpenError::NoMemory { path: path.into() })?;
                Box::new(ErofsFile::open(path, stored, options.inside.as_deref(), options.format.is_some(), cache)?)
            }
            Format::Qcow2 => Box::new(Qcow2::open(path, stored)?),
        };
        match content.len_bytes() {
            0 if format == Format::Erofs => {
                Err(unfit("the file in the image that was to be the disk is empty: a disk has at least one sector"))
            }
            0 => Err(unfit("the file is empty: a disk has at least one sector")),
            1..=MOST_BYTES => Ok(Self {
                path: path.into(),
                format,
                content,
                storage,
                inside: options.inside.clone(),
                changed: AtomicBool::new(false),
                failed: AtomicBool::new(false),
                log: Box::new(log),
            }),
            _ => Err(unfit("its contents exceed the maximum file size")),
        }
    }

    /// Returns the path of the file, or the URL, as users call it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the file in an EROFS image, if one was given.
    pub fn inside(&self) -> Option<&[u8]> {
        self.inside.as_deref()
    }

    /// Returns the [identity](Storage::identity) of the storage.
    pub fn identity(&self) -> &str {
        self.storage.identity()
    }

    /// Returns the format of the file.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Returns the most memory that the base uses in addition to the cache, for metadata that
    /// locates content.
    pub fn table_bytes(&self) -> u64 {
        self.content.table_bytes()
    }

    /// Returns the number of bytes after the content, less than 512.
    pub fn padding_bytes(&self) -> u64 {
        self.size_bytes() - self.content.len_bytes()
    }

    /// Returns how many compressed clusters were decoded since the base was opened.
    pub fn decoded_clusters(&self) -> u64 {
        self.content.decoded_clusters()
    }

    /// Returns the ranges of the content that may have bytes other than zero, in order. There are at
    /// most 65,537: the shortest holes count as data if there are more.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn data(&self) -> Result<Vec<Range<u64>>, Error> {
        let len_bytes = self.content.len_bytes();
        let (mut holes, mut at) = (Holes::new(), 0);
        self.content.extents(0, len_bytes, &mut |extent| {
            let end = at + extent.len_bytes;
            if extent.zero {
                holes.add(at..end);
            }
            at = end;
            true
        })?;
        let (mut data, mut at) = (Vec::new(), 0);
        holes.extents(0..len_bytes, &mut |extent| {
            let end = at + extent.len_bytes;
            if !extent.zero {
                data.push(at..end);
            }
            at = end;
            true
        });
        Ok(data)
    }

    /// Returns how many bytes of a range, from its start, are in the content.
    fn stored(&self, offset: u64, len_bytes: u64) -> u64 {
        self.content.len_bytes().saturating_sub(offset).min(len_bytes)
    }

    /// Reports a change of the storage once.
    fn watch(&self, is_changed: bool) {
        if is_changed && !self.changed.swap(true, Relaxed) {
            self.log_change();
        }
    }

    #[cold]
    fn log_change(&self) {
        (self.log)(&format!("{} was modified while in use: disks forked from it may be corrupt", self.path.display()));
    }

    /// Returns the error of a failed read for a client, and reports the first one.
    fn failure(&self, offset: u64, error: Error) -> Error {
        self.watch(self.storage.is_changed_now());
        let error = io::Error::other(format!("{}: cannot read byte {offset}: {error}", self.path.display()));
        if !self.failed.swap(true, Relaxed) {
            (self.log)(&format!("{error}; further errors are not reported"));
        }
        Error::Io(error)
    }
}

impl fmt::Debug for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Base").field("path", &self.path).field("format", &self.format).finish_non_exhaustive()
    }
}

/// The content, without the padding to whole sectors.
impl ReadAt for Base {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.content.len_bytes())
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if self.stored(offset, buf.len() as u64) < buf.len() as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.read(offset, buf).map_err(io::Error::other)
    }
}

impl BlockDevice for Base {
    fn size_bytes(&self) -> u64 {
        self.content.len_bytes().next_multiple_of(SECTOR_BYTES)
    }

    fn read_only(&self) -> bool {
        true
    }

    fn may_block(&self) -> bool {
        true
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        self.watch(self.storage.is_changed());
        let (stored, padding) = buf.split_at_mut(self.stored(offset, buf.len() as u64) as usize);
        padding.fill(0);
        if stored.is_empty() {
            return Ok(());
        }
        self.content.read(offset, stored).map_err(|error| self.failure(offset, error))
    }

    fn try_read(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        self.watch(self.storage.is_changed());
        let stored_bytes = self.stored(offset, buf.len() as u64) as usize;
        let (stored, padding) = buf.split_at_mut(stored_bytes);
        if !stored.is_empty() {
            let filled = self.content.try_read(offset, stored);
            if filled < stored_bytes {
                return Ok(filled);
            }
        }
        padding.fill(0);
        Ok(buf.len())
    }

    fn read_together(&self, reads: &mut [Read<'_>]) {
        self.watch(self.storage.is_changed());
        let mut stored = Vec::with_capacity(reads.len());
        for read in reads {
            let len_bytes = read.buf.len() as u64;
            if len_bytes > 0 && self.stored(read.offset, len_bytes) == len_bytes {
                stored.push(read);
            } else {
                read.result = self.read(read.offset, read.buf);
            }
        }
        stored.sort_unstable_by_key(|read| read.offset);
        self.content.read_together(&mut stored);
        for read in stored {
            if let Err(error) = mem::replace(&mut read.result, Ok(())) {
                read.result = Err(self.failure(read.offset, error));
            }
        }
    }

    fn read_unit_bytes(&self) -> u64 {
        self.content.unit_bytes()
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), Error> {
        Err(Error::ReadOnly)
    }

    fn flush(&self) -> Result<(), Error> {
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> Result<(), Error> {
        Err(Error::ReadOnly)
    }

    fn write_zeroes(&self, _: u64, _: u64, _: Zeroes) -> Result<(), Error> {
        Err(Error::ReadOnly)
    }

    fn extents(&self, offset: u64, len_bytes: u64, each: &mut dyn FnMut(Extent) -> bool) -> Result<(), Error> {
        let stored_bytes = self.stored(offset, len_bytes);
        let padding_bytes = len_bytes - stored_bytes;
        if stored_bytes == 0 {
            each(Extent { len_bytes: padding_bytes, hole: false, zero: true });
            return Ok(());
        }
        // A sector has one status, so the padding has the status of the content's last byte.
        let mut left_bytes = stored_bytes;
        let with_padding = &mut |extent: Extent| {
            left_bytes -= extent.len_bytes;
            let padding_bytes = if left_bytes == 0 { padding_bytes } else { 0 };
            each(Extent { len_bytes: extent.len_bytes + padding_bytes, ..extent })
        };
        self.content.extents(offset, stored_bytes, with_padding).map_err(|error| self.failure(offset, error))
    }
}

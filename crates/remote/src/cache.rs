//! The cache on disk, which all processes of a user share.
//!
//! ```text
//! blobs/DIGITS/index   a chunk index, with its SHA-256 sum as the name, or what is kept of a tree
//! blobs/DIGITS/data    the blob's chunks at their positions, other parts are holes
//! blobs/DIGITS/used    for each chunk, four bytes: 0, or the minute of its last use
//! manifests/DIGITS     a registry's manifest
//! names/DIGITS         the sum that a location led to
//! followed/DIGITS      empty: the trace of the image with this sum need not be followed
//! CACHEDIR.TAG         says that the directory is a cache
//! lock                 held while chunks are evicted; parts of it while traces are followed and images opened
//! ```
//!
//! Each process that uses a blob holds a shared lock on its `data`. A process removes the directory
//! only while it holds an exclusive lock, and renames it first.
//!
//! The content is untrusted: each chunk that is read is compared with its sum. For a reader, a torn
//! write, a changed byte and an evicted chunk are therefore the same, and `used` is only a hint.

use std::{
    fmt::Display,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    ops::Range,
    os::{
        fd::AsFd,
        unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use nix::fcntl::{FcntlArg, fcntl};
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};

use crate::{
    cache_tag::{self, Found},
    error::{Error, Result},
    file,
    index::{Index, MOST_INDEX_BYTES},
    sum::Sum,
    verity::Tree,
};

/// A process checks the limit each time it has stored this many bytes, so the cache may exceed the
/// limit by as many.
const CHECKED_BYTES: u64 = 4 << 20;

/// The prefix of the names of directories that are being removed.
const REMOVED: &str = ".removed-";

/// The most attempts to open a blob's files while another process removes them.
const MOST_TRIES: u32 = 20;

/// A blob with no more than this many unmarked bytes is left alone: these are parts of blocks,
/// which cannot be freed.
const MOST_UNMARKED_BYTES: u64 = 64 << 10;

/// Maximum bytes of marks: four for each chunk of the longest index.
const MOST_MARKS_BYTES: u64 = MOST_INDEX_BYTES / 12;

/// The longest manifest or name that is read.
const MOST_DOCUMENT_BYTES: u64 = 4 << 20;

/// A directory of chunks under one limit.
pub struct Cache {
    directory: PathBuf,
    limit_bytes: u64,
    stored_bytes: AtomicU64,
    /// Why something could not be stored, the first time.
    failure: OnceLock<String>,
}

/// A blob's part of the cache.
#[derive(Clone, Debug)]
pub struct Cached {
    /// The sum of its index.
    pub index: Sum,
    /// The image's size.
    pub size_bytes: u64,
    /// The bytes of the chunks that are held.
    pub held_bytes: u64,
    /// When a chunk was last used.
    pub used: Option<SystemTime>,
}

/// The chunks of one blob.
pub(crate) struct Chunks {
    cache: Arc<Cache>,
    index: Arc<Index>,
    data: File,
    used: File,
    is_writable: bool,
}

/// Chunks that only this process fetches.
pub(crate) struct Lock<'a> {
    chunks: &'a Chunks,
    range: Range<usize>,
}

/// A right that one process at a time can have, until this is dropped: a lock of one byte of the
/// lock file.
pub(crate) struct Right {
    lock: File,
    at: i64,
}

impl Right {
    /// Returns whether this process has the right now.
    pub(crate) fn try_take(&self) -> bool {
        set_lock(&self.lock, self.at, 1, libc::F_WRLCK)
    }
}

impl Cache {
    /// Opens a cache, and creates it if it does not exist. Only its owner may read it.
    ///
    /// # Errors
    /// [`Error::Io`]. The directory has files and is not a cache.
    pub fn open(directory: &Path, limit_bytes: u64) -> Result<Self> {
        let existing = Self::existing(directory, limit_bytes)?;
        let create = |path: &Path| {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
            // On a read-only file system, the cache is only read.
            made.or_else(|error| if directory.is_dir() { Ok(()) } else { Err(failed(path, error)) })
        };
        create(directory)?;
        // Without a tag, a directory with all parts is a cache, too.
        let _ = cache_tag::write(directory);
        cache_tag::PARTS.iter().try_for_each(|part| create(&directory.join(part)))?;
        Ok(existing.unwrap_or_else(|| Self::at(directory, limit_bytes)))
    }

    /// Returns the cache in a directory; `None` if there is no such directory, or an empty one.
    ///
    /// # Errors
    /// [`Error::Io`]. The directory has files and is not a cache.
    pub fn existing(directory: &Path, limit_bytes: u64) -> Result<Option<Self>> {
        match cache_tag::examine(directory).map_err(|error| failed(directory, error))? {
            Found::Cache => Ok(Some(Self::at(directory, limit_bytes))),
            Found::Nothing => Ok(None),
            Found::Other => {
                let why = "it has files and is not a cache of remote images: name an empty or a new directory";
                Err(failed(directory, io::Error::new(io::ErrorKind::AlreadyExists, why)))
            }
        }
    }

    fn at(directory: &Path, limit_bytes: u64) -> Self {
        Self {
            directory: directory.to_owned(),
            limit_bytes,
            stored_bytes: AtomicU64::new(CHECKED_BYTES),
            failure: OnceLock::new(),
        }
    }

    /// Returns the directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the limit of the bytes on disk.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Returns why something could not be stored since the cache was opened, the first time that
    /// this happened.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    fn note_failure(&self, error: &dyn Display) {
        self.failure.get_or_init(|| error.to_string());
    }

    /// Returns the sum that `location` resolved to last time.
    pub(crate) fn name(&self, location: &str) -> Option<Sum> {
        let text = read_some(&self.name_path(location), MOST_DOCUMENT_BYTES)?;
        let (sum, of) = std::str::from_utf8(&text).ok()?.trim_end().split_once(' ')?;
        Sum::parse(sum).filter(|_| of == location)
    }

    /// Records the sum of the image at `location`.
    pub(crate) fn set_name(&self, location: &str, sum: Sum) {
        if self.name(location) != Some(sum) {
            self.write(&self.name_path(location), format!("{sum} {location}\n").as_bytes());
        }
    }

    fn name_path(&self, location: &str) -> PathBuf {
        self.directory.join("names").join(Sum::of(location.as_bytes()).hex())
    }

    /// Returns a manifest, if the cache holds it.
    pub(crate) fn manifest(&self, sum: Sum) -> Option<Vec<u8>> {
        let bytes = read_some(&self.directory.join("manifests").join(sum.hex()), MOST_DOCUMENT_BYTES)?;
        Some(bytes).filter(|bytes| Sum::of(bytes) == sum)
    }

    pub(crate) fn set_manifest(&self, bytes: &[u8]) {
        self.write(&self.directory.join("manifests").join(Sum::of(bytes).hex()), bytes);
    }

    /// Returns the index with this sum, or with the tree of this identity, if the cache holds it.
    pub(crate) fn index(&self, sum: Sum) -> Option<Index> {
        let bytes = read_some(&self.blob_path(sum).join("index"), MOST_INDEX_BYTES)?;
        if let Some(tree) = Tree::decode(&bytes) {
            return (tree.place().identity() == sum).then(|| Index::of_tree(tree));
        }
        Some(bytes).filter(|bytes| Sum::of(bytes) == sum).and_then(|bytes| Index::decode(&bytes, "index").ok())
    }

    fn blob_path(&self, sum: Sum) -> PathBuf {
        self.directory.join("blobs").join(sum.hex())
    }

    /// Replaces a file. A cache that cannot be written is not an error.
    fn write(&self, path: &Path, bytes: &[u8]) {
        let Some(parent) = path.parent() else { return };
        let write = || -> io::Result<()> {
            let mut file = tempfile::NamedTempFile::new_in(parent)?;
            file.write_all(bytes)?;
            file.persist(path)?;
            Ok(())
        };
        if let Err(error) = write() {
            self.note_failure(&error);
        }
    }

    /// Returns the chunks of the blob with this index. The index is from [`Self::index`] unless it
    /// `is_new`.
    pub(crate) fn chunks(self: &Arc<Self>, sum: Sum, index: &Arc<Index>, is_new: bool) -> Result<Chunks> {
        let mut tries = 0;
        loop {
            let chunks = self.try_chunks(sum, index, is_new);
            let is_there = chunks.as_ref().is_ok_and(Chunks::keep);
            // Another process may remove the directory in between.
            if is_there || tries == MOST_TRIES {
                return chunks.inspect_err(|error| self.note_failure(error));
            }
            tries += 1;
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn try_chunks(self: &Arc<Self>, sum: Sum, index: &Arc<Index>, is_new: bool) -> Result<Chunks> {
        let path = self.blob_path(sum);
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&path);
        let mut is_writable = made.is_ok();
        // Another process may have removed the directory since.
        let place = path.join("index");
        if is_writable && (is_new || !place.exists()) {
            self.write(&place, &index.tree().map_or_else(|| index.encode(), Tree::encode));
        }
        let mut open = |name: &str, len: u64| {
            let path = path.join(name);
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).mode(0o600);
            let file = options.open(&path).and_then(|file| file.set_len(len).map(|()| file)).or_else(|_| {
                is_writable = false;
                File::open(&path)
            });
            file.map_err(|error| failed(&path, error))
        };
        let data = open("data", index.stored_end())?;
        let used = open("used", index.len() as u64 * 4)?;
        Ok(Chunks { cache: Arc::clone(self), index: Arc::clone(index), data, used, is_writable })
    }

    /// Returns the blobs in the cache, the most recently used last.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn list(&self) -> Result<Vec<Cached>> {
        let mut list = Vec::new();
        for (sum, path) in self.blobs()? {
            let Some(index) = self.index(sum) else { continue };
            let minutes = minutes(&path, index.len());
            let (mut held_bytes, mut last) = (0, 0);
            for (chunk, minute) in minutes.into_iter().enumerate().filter(|(_, minute)| *minute > 0) {
                let range = index.range(chunk);
                held_bytes += range.end - range.start;
                last = last.max(minute);
            }
            let used = (last > 0).then(|| UNIX_EPOCH + Duration::from_secs(u64::from(last) * 60));
            list.push(Cached { index: sum, size_bytes: index.size_bytes(), held_bytes, used });
        }
        list.sort_by_key(|blob| blob.used);
        Ok(list)
    }

    fn blobs(&self) -> Result<Vec<(Sum, PathBuf)>> {
        let directory = self.directory.join("blobs");
        let entries = match fs::read_dir(&directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|error| failed(&directory, error))?,
        };
        let sum = |entry: &fs::DirEntry| Sum::parse(&format!("sha256:{}", entry.file_name().to_str()?));
        Ok(entries.flatten().filter_map(|entry| Some((sum(&entry)?, entry.path()))).collect())
    }

    /// Returns the bytes that the cache takes on disk.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn disk_bytes(&self) -> Result<u64> {
        let files = ["data", "index", "used"];
        let blobs = self.blobs()?.into_iter();
        Ok(blobs.flat_map(|(_, path)| files.map(|name| blocks_bytes(&path.join(name)))).sum())
    }

    /// Evicts the least recently used chunks until the cache takes at most `limit_bytes`. Removes
    /// blobs without chunks that no process uses.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn prune(&self, limit_bytes: u64) -> Result<()> {
        let _lock = self.lock(FlockOperation::LockExclusive)?;
        self.evict(limit_bytes)
    }

    fn lock(&self, how: FlockOperation) -> Result<File> {
        let path = self.directory.join("lock");
        let lock = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let lock = lock.map_err(|error| failed(&path, error))?;
        flock(&lock, how).map_err(|error| failed(&path, error.into()))?;
        Ok(lock)
    }

    /// Returns whether the trace of an image was followed, and no chunk has been evicted since.
    pub(crate) fn is_followed(&self, of: Sum) -> bool {
        self.followed_path(of).exists()
    }

    pub(crate) fn set_followed(&self, of: Sum) {
        self.write(&self.followed_path(of), &[]);
    }

    fn followed_path(&self, of: Sum) -> PathBuf {
        self.directory.join("followed").join(of.hex())
    }

    fn forget_followed(&self) {
        let Ok(entries) = fs::read_dir(self.directory.join("followed")) else { return };
        for entry in entries.flatten() {
            let _ = fs::remove_file(entry.path());
        }
    }

    /// Takes the right to follow the trace of an image until the result is dropped, unless another
    /// process has it, or the cache cannot be written.
    pub(crate) fn try_following(&self, of: Sum) -> Option<Right> {
        self.right(of).filter(Right::try_take)
    }

    /// Returns the right to request what opening the image with this index reads, or `None` if the
    /// cache cannot be written.
    pub(crate) fn right_to_open(&self, of: Sum) -> Option<Right> {
        self.right(Sum::of(&[b"opening", &of.0[..]].concat()))
    }

    fn right(&self, of: Sum) -> Option<Right> {
        let path = self.directory.join("lock");
        let lock = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path).ok()?;
        Some(Right {
            lock,
            at: of.0.first_chunk::<8>().map_or(0, |bytes| i64::from_le_bytes(*bytes) & (i64::MAX >> 1)),
        })
    }

    fn evict(&self, limit_bytes: u64) -> Result<()> {
        self.remove_rests();
        let excess = || Ok(self.disk_bytes()?.saturating_sub(limit_bytes));
        if limit_bytes > 0 && excess()? == 0 {
            return Ok(());
        }
        // Chunks of followed traces may be evicted.
        self.forget_followed();
        // Data without a mark is freed first.
        let mut coldest = Vec::new();
        let mut blobs = Vec::new();
        for (sum, path) in self.blobs()? {
            let is_marked = read_some(&path.join("used"), MOST_MARKS_BYTES)
                .is_some_and(|marks| marks.iter().any(|byte| *byte != 0));
            let index = if is_marked { self.index(sum) } else { None };
            let Some(index) = index.filter(|_| limit_bytes > 0 || !remove(&path)) else {
                if path.exists() && !remove(&path) {
                    clear(&path);
                }
                continue;
            };
            let mut held_bytes = 0;
            for (chunk, minute) in minutes(&path, index.len()).into_iter().enumerate() {
                let stored = index.stored(chunk);
                if minute > 0 {
                    held_bytes += stored.end - stored.start;
                    coldest.push((minute, blobs.len(), chunk, stored.end - stored.start));
                }
            }
            if blocks_bytes(&path.join("data")) > held_bytes + MOST_UNMARKED_BYTES {
                sweep(&path, &index);
            }
            blobs.push((sum, path));
        }
        coldest.sort_unstable();
        let mut excess = excess()?;
        let mut victims = vec![Vec::new(); blobs.len()];
        for (_, blob, chunk, len) in coldest {
            if excess == 0 {
                break;
            }
            victims[blob].push(chunk);
            excess = excess.saturating_sub(len);
        }
        for ((sum, path), chunks) in blobs.into_iter().zip(victims).filter(|(_, chunks)| !chunks.is_empty()) {
            let Ok(used) = OpenOptions::new().write(true).open(path.join("used")) else { continue };
            for chunk in chunks {
                let _ = used.write_all_at(&[0; 4], chunk as u64 * 4);
            }
            if let Some(index) = self.index(sum) {
                sweep(&path, &index);
            }
        }
        Ok(())
    }

    /// Removes directories whose removal was interrupted.
    fn remove_rests(&self) {
        let Ok(entries) = fs::read_dir(self.directory.join("blobs")) else { return };
        let is_rest = |entry: &fs::DirEntry| entry.file_name().as_encoded_bytes().starts_with(REMOVED.as_bytes());
        for entry in entries.flatten().filter(is_rest) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }

    /// Notes that bytes were stored. From time to time, frees an eighth of the limit if the cache
    /// exceeds it and no other process is about to free it.
    fn stored(&self, bytes: u64) {
        if self.stored_bytes.fetch_add(bytes, Relaxed) + bytes < CHECKED_BYTES {
            return;
        }
        self.stored_bytes.store(0, Relaxed);
        if self.disk_bytes().is_ok_and(|bytes| bytes > self.limit_bytes)
            && let Ok(_lock) = self.lock(FlockOperation::NonBlockingLockExclusive)
        {
            let _ = self.evict((self.limit_bytes - self.limit_bytes / 8).max(1));
        }
    }
}

/// Removes a blob, unless a process uses it. Returns whether it is gone.
fn remove(path: &Path) -> bool {
    let data = OpenOptions::new().read(true).write(true).open(path.join("data"));
    match &data {
        Ok(data) if flock(data, FlockOperation::NonBlockingLockExclusive).is_err() => return false,
        Err(error) if error.kind() != io::ErrorKind::NotFound => return false,
        _ => {}
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let gone = path.with_file_name(format!("{REMOVED}{name}"));
    if fs::rename(path, &gone).is_err() {
        return false;
    }
    let _ = fs::remove_dir_all(&gone);
    true
}

/// Frees all chunks of a blob that a process uses.
fn clear(path: &Path) {
    for name in ["used", "data"] {
        if let Ok(file) = OpenOptions::new().write(true).open(path.join(name))
            && let Ok(metadata) = file.metadata()
        {
            punch(&file, 0..metadata.len());
        }
    }
}

/// Frees the gaps between the marked chunks of a blob, each as a whole, since chunks need not end
/// at block boundaries.
fn sweep(path: &Path, index: &Index) {
    let marked = minutes(path, index.len()).into_iter().enumerate().filter(|(_, minute)| *minute > 0);
    let mut kept: Vec<_> = marked.map(|(chunk, _)| index.stored(chunk)).map(|range| (range.start, range.end)).collect();
    kept.sort_unstable();
    let Ok(data) = OpenOptions::new().write(true).open(path.join("data")) else { return };
    let end = data.metadata().map_or(0, |metadata| metadata.len());
    let mut at = 0;
    for (start, stop) in kept.into_iter().chain([(end, end)]) {
        if start > at {
            punch(&data, at..start);
        }
        at = at.max(stop);
    }
}

/// Frees a range. If the file system cannot do that, the file keeps its blocks.
fn punch(file: &File, range: Range<u64>) {
    if !range.is_empty() {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let _ = fallocate(file, flags, range.start, range.end - range.start);
    }
}

/// Returns the bytes that a file takes on disk.
fn blocks_bytes(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |file| file.blocks() * 512)
}

impl Chunks {
    /// Keeps other processes from removing the blob. Returns whether the blob exists.
    fn keep(&self) -> bool {
        // File systems without locks never remove blobs either.
        let is_busy =
            matches!(flock(&self.data, FlockOperation::NonBlockingLockShared), Err(rustix::io::Errno::WOULDBLOCK));
        !is_busy && self.is_there()
    }

    fn is_there(&self) -> bool {
        self.data.metadata().is_ok_and(|data| data.nlink() > 0)
    }

    /// Returns which of these chunks may be on disk.
    pub(crate) fn marked(&self, chunks: Range<usize>) -> Vec<bool> {
        let mut bytes = vec![0; chunks.len() * 4];
        match self.used.read_exact_at(&mut bytes, chunks.start as u64 * 4) {
            Ok(()) => bytes.as_chunks::<4>().0.iter().map(|word| *word != [0; 4]).collect(),
            Err(_) => vec![false; chunks.len()],
        }
    }

    /// Reads a chunk, if the cache holds it and its sum is right.
    pub(crate) fn read(&self, chunk: usize) -> Option<Vec<u8>> {
        let mut used = [0; 4];
        self.used.read_exact_at(&mut used, chunk as u64 * 4).ok()?;
        if used == [0; 4] {
            return None;
        }
        let stored = self.index.stored(chunk);
        let mut bytes = vec![0; (stored.end - stored.start) as usize];
        let read = self.data.read_exact_at(&mut bytes, stored.start);
        if read.is_err() || !self.index.is_right(chunk, &bytes) {
            self.mark(chunk, 0);
            return None;
        }
        let now = minute();
        if u32::from_le_bytes(used) != now {
            self.mark(chunk, now);
        }
        Some(bytes)
    }

    fn mark(&self, chunk: usize, minute: u32) {
        if self.is_writable {
            // A wrong hint costs a read or a request.
            if let Err(error) = self.used.write_all_at(&minute.to_le_bytes(), chunk as u64 * 4) {
                self.cache.note_failure(&error);
            }
        }
    }

    /// Stores a chunk. A full or read-only disk is not an error.
    pub(crate) fn write(&self, chunk: usize, bytes: &[u8]) {
        // If another process removed the files nevertheless, nothing is written to them.
        let is_writable = self.is_writable && self.is_there();
        if !is_writable {
            return;
        }
        match self.data.write_all_at(bytes, self.index.stored(chunk).start) {
            Ok(()) => {
                self.mark(chunk, minute());
                self.cache.stored(bytes.len() as u64);
            }
            Err(error) => self.cache.note_failure(&error),
        }
    }

    /// Waits until no other process fetches any of these chunks, and locks them. Waits for a
    /// process without progress until `until` at most.
    pub(crate) fn lock(&self, chunks: Range<usize>, until: Instant) -> Option<Lock<'_>> {
        if !self.is_writable {
            return None;
        }
        let mut pause = Duration::from_millis(1);
        while !self.set_lock(&chunks, libc::F_WRLCK) {
            if Instant::now() >= until {
                return None;
            }
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(50));
        }
        Some(Lock { chunks: self, range: chunks })
    }

    /// Returns whether another process fetches a chunk.
    pub(crate) fn is_locked(&self, chunk: usize) -> bool {
        let mut lock = flock_of(chunk as i64 * 4, 4, libc::F_WRLCK);
        let asked = fcntl(self.used.as_fd(), FcntlArg::F_OFD_GETLK(&mut lock));
        self.is_writable && asked.is_ok() && lock.l_type != libc::F_UNLCK as i16
    }

    fn set_lock(&self, chunks: &Range<usize>, kind: i32) -> bool {
        set_lock(&self.used, chunks.start as i64 * 4, chunks.len() as i64 * 4, kind)
    }
}

/// Takes or gives back a lock of a part of a file. Returns false if another process has it.
fn set_lock(file: &File, start: i64, len: i64, kind: i32) -> bool {
    let lock = flock_of(start, len, kind);
    // On file systems without locks, this costs an additional fetch and is not an error.
    !matches!(fcntl(file.as_fd(), FcntlArg::F_OFD_SETLK(&lock)), Err(nix::Error::EAGAIN | nix::Error::EACCES))
}

fn flock_of(start: i64, len: i64, kind: i32) -> libc::flock {
    libc::flock { l_type: kind as i16, l_whence: libc::SEEK_SET as i16, l_start: start, l_len: len, l_pid: 0 }
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        self.chunks.set_lock(&self.range, libc::F_UNLCK);
    }
}

/// Returns the minutes of the last uses of a blob's chunks.
fn minutes(path: &Path, chunks: usize) -> Vec<u32> {
    let bytes = read_some(&path.join("used"), chunks as u64 * 4).unwrap_or_default();
    bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// Returns the current minute, which is never 0.
fn minute() -> u32 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u32::try_from(now.as_secs() / 60).unwrap_or(u32::MAX).max(1)
}

/// Reads a file of at most `most_bytes`, if that is possible.
fn read_some(path: &Path, most_bytes: u64) -> Option<Vec<u8>> {
    file::bytes(path, most_bytes).ok()
}

fn failed(path: &Path, source: io::Error) -> Error {
    Error::Io { path: path.display().to_string(), source }
}

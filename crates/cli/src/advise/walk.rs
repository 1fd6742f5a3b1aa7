//! The files below a directory, and the ranges of a file that contain data.

use std::{
    collections::HashSet,
    ffi::OsString,
    fs::{self, File},
    io::{self, Seek, SeekFrom},
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, MetadataExt},
    },
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use pagefold_erofs::{InodeNumbers, InodeTimes, LONG_FILE_BYTES, LONG_FILE_DATA_PARTS, directory_bytes, stored_bytes};
use pagefold_source::{expect_raw, is_layout};
use rustix::fs::{SeekFrom as Sparse, seek};

use super::{
    clock::Deadline,
    costs::INODE_BYTES,
    gaps::{self, Entry, Listing},
    input::{Files, Input, InputKind, Names, Skipped, open_regular},
    stratum::{LongFiles, PAGE_BYTES, Stratum, UNIT_BYTES, most_data},
};

/// Maximum file size of each stratum. Longer files are cut into units, in a separate stratum.
/// The image writer stores the shortest behind their inodes.
const STRATA: [u64; 5] = [PAGE_BYTES - INODE_BYTES, 16 << 10, 64 << 10, 256 << 10, UNIT_BYTES];

/// Maximum length of files that are packed with their holes. In shorter ones, the cost of zeros
/// depends on how they share blocks with the data. The holes of longer ones are measured apart.
const SPARSE_FILE_BYTES: u64 = 16 << 20;

/// After this many ranges of data, the rest of a file counts as one range.
const MOST_STRETCHES: usize = 1 << 18;

/// Lists the files of `path` and where sparse ones have data, until both ends, with this many
/// threads.
pub(super) fn look_at(
    path: &Path,
    one_file_system: bool,
    [list_end, map_end]: [Deadline<'_>; 2],
    threads: usize,
) -> anyhow::Result<Input> {
    let shown = || path.display().to_string();
    let metadata = fs::metadata(path).with_context(shown)?;
    let kind = metadata.file_type();
    if kind.is_dir() {
        ensure!(!is_layout(path), "{}: a container image: extract its layers and give the directory", shown());
        let device = one_file_system.then_some(metadata.dev());
        return directory(path, device, [list_end, map_end], threads);
    }
    if !kind.is_file() && !kind.is_block_device() {
        let what = if kind.is_fifo() {
            "a pipe"
        } else if kind.is_socket() {
            "a socket"
        } else {
            "a character device"
        };
        bail!("{}: {what}; give a directory, a file or a block device, or --pid for a process", shown());
    }
    let mut file = File::open(path).with_context(shown)?;
    expect_raw(path, &file)?;
    let len = file.seek(SeekFrom::End(0)).with_context(shown)?;
    ensure!(len > 0, "{} is empty", shown());
    let mut stratum = Stratum::of_pieces();
    let mapped = Mapped::of(&file, len, map_end);
    mapped.add_to(&mut stratum, 0, len);
    stratum.long_files = match len {
        _ if mapped.is_nearly_empty(len) => LongFiles::NearlyEmpty,
        LONG_FILE_BYTES.. => LongFiles::One(len),
        _ => LongFiles::None,
    };
    let hole_bytes = stratum.hole_bytes;
    Ok(Input {
        kind: if kind.is_file() { InputKind::File } else { InputKind::Device },
        name: shown(),
        files: Files::One(Arc::new(file)),
        strata: vec![stratum],
        names: Names { files: 1, ..Names::default() },
        skipped: Skipped::default(),
        hole_bytes,
    })
}

/// Where a file has data.
struct Mapped {
    /// Offset and length of ranges that begin and end with units or the file.
    ranges: Vec<(u64, u64)>,
    /// The bytes of data in them, and the number of stretches. Unknown holes count as data.
    data_bytes: u64,
    stretches: u64,
}

impl Mapped {
    /// Maps a file of `len` bytes. A part not examined until `end` counts as data.
    fn of(file: &File, len: u64, end: Deadline<'_>) -> Self {
        let mut mapped = Self { ranges: Vec::new(), data_bytes: 0, stretches: 0 };
        let mut at = 0;
        for stretch in 0.. {
            let is_known = stretch < MOST_STRETCHES && !end.is_over();
            let next = if is_known { seek(file, Sparse::Data(at)) } else { Ok(at) };
            let next = match next {
                Ok(next) => next.max(at).min(len),
                Err(rustix::io::Errno::NXIO) => break,
                // A file system that does not report holes is treated as having none.
                Err(_) => at,
            };
            let from = next / UNIT_BYTES * UNIT_BYTES;
            let hole = match if is_known { seek(file, Sparse::Hole(next)) } else { Ok(len) } {
                Ok(hole) => hole.min(len),
                Err(_) => len,
            };
            let to = hole.next_multiple_of(UNIT_BYTES).min(len);
            let from = from.max(at);
            if from >= to {
                break;
            }
            match mapped.ranges.last_mut() {
                Some((start, len)) if *start + *len == from => *len += to - from,
                _ => mapped.ranges.push((from, to - from)),
            }
            // Data behind the hole in its unit counts as such.
            mapped.data_bytes += to - next;
            mapped.stretches += 1;
            at = to;
            if at >= len {
                break;
            }
        }
        mapped
    }

    /// Adds the ranges of a file of `len` bytes to a stratum.
    fn add_to(&self, stratum: &mut Stratum, number: u32, len: u64) {
        let mut bytes = 0;
        for (from, range_bytes) in &self.ranges {
            stratum.add(number, *from, *range_bytes);
            bytes += range_bytes;
        }
        stratum.hole_bytes = stratum.hole_bytes.saturating_add(len - bytes);
    }

    /// Returns whether the image writer certainly stores the file of `len` bytes without its zeros.
    fn is_nearly_empty(&self, len: u64) -> bool {
        len >= LONG_FILE_BYTES && most_data(self.data_bytes, self.stretches) <= len / LONG_FILE_DATA_PARTS
    }
}

/// Returns offset and length of the data of a file of `len` bytes, with all holes between, or its
/// first page if it has none. `None` if that is longer than a unit or unknown at `end`, or if the
/// file is long.
fn only_piece(file: &File, len: u64, end: Deadline<'_>) -> Option<(u64, u64)> {
    if len > SPARSE_FILE_BYTES || end.is_over() {
        return None;
    }
    let first = match seek(file, Sparse::Data(0)) {
        Ok(first) => first.min(len) / PAGE_BYTES * PAGE_BYTES,
        Err(rustix::io::Errno::NXIO) => return Some((0, PAGE_BYTES.min(len))),
        Err(_) => return None,
    };
    let mut data = first;
    while data < first + UNIT_BYTES && !end.is_over() {
        let hole = seek(file, Sparse::Hole(data)).ok()?.min(len);
        match seek(file, Sparse::Data(hole)) {
            Ok(next) => data = next,
            Err(rustix::io::Errno::NXIO) => {
                return (hole > first && hole <= first + UNIT_BYTES).then_some((first, hole - first));
            }
            Err(_) => return None,
        }
    }
    None
}

/// Opens a file, if it can be opened and the time is not over.
fn open_in_time(path: &Path, end: Deadline<'_>) -> Option<File> {
    if end.is_over() { None } else { open_regular(path, 0).ok() }
}

/// The results of a thread.
#[derive(Default)]
struct Listed {
    directories: Vec<PathBuf>,
    /// Index of the directory in `directories`, name, and length.
    files: Vec<(u32, Box<std::ffi::OsStr>, u64)>,
    /// Indexes of files with fewer blocks than their length requires.
    sparse: HashSet<usize>,
    listings: Vec<Listing>,
    names: Names,
    times: InodeTimes,
    unreadable: u64,
    /// Whether time ran out before everything was listed.
    more: bool,
}

impl Listed {
    fn add_inode(&mut self, metadata: &fs::Metadata) {
        let size = if metadata.is_file() { metadata.len() } else { 0 };
        let nlink = u32::try_from(metadata.nlink()).unwrap_or(u32::MAX);
        let numbers = InodeNumbers { uid: metadata.uid(), gid: metadata.gid(), nlink, size };
        self.times.add((metadata.mtime(), metadata.mtime_nsec() as u32), numbers.are_compact());
    }

    /// Counts a directory with these names. One without an entry is another name of a counted file.
    fn add_directory(&mut self, number: u32, mut names: Vec<(Vec<u8>, Option<Entry>)>) {
        self.names.directories += 1;
        names.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        let content_bytes = directory_bytes(names.iter().map(|(name, _)| name.as_slice()), PAGE_BYTES as usize);
        self.names.metadata_bytes += stored_bytes(INODE_BYTES, content_bytes, PAGE_BYTES);
        let entries = names.into_iter().filter_map(|(_, entry)| entry).collect();
        self.listings.push(Listing::new(number, content_bytes, entries));
    }
}

/// Directories still to be read.
#[derive(Default)]
struct Pending {
    /// With their numbers.
    directories: Vec<(u32, PathBuf)>,
    /// The number of directories that were found.
    found: u32,
    /// Threads that are reading a directory and may find more.
    busy: usize,
}

struct Walk<'a> {
    pending: Mutex<Pending>,
    /// Hard-linked files that have been counted.
    linked: Mutex<HashSet<(u64, u64)>>,
    /// The only file system whose directories are listed.
    device: Option<u64>,
    end: Deadline<'a>,
}

impl Walk<'_> {
    fn pending(&self) -> std::sync::MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) -> Listed {
        let mut found = Listed::default();
        loop {
            let mut pending = self.pending();
            let Some(directory) = pending.directories.pop() else {
                if pending.busy == 0 {
                    return found;
                }
                drop(pending);
                thread::sleep(Duration::from_micros(200));
                continue;
            };
            pending.busy += 1;
            drop(pending);
            let in_time = self.read(directory, &mut found);
            let mut pending = self.pending();
            pending.busy -= 1;
            if !in_time {
                found.more = true;
                return found;
            }
        }
    }

    /// Counts the entries of a directory. Returns `false` if the time is over.
    fn read(&self, (number, path): (u32, PathBuf), found: &mut Listed) -> bool {
        let Ok(entries) = fs::read_dir(&path) else {
            found.unreadable += 1;
            return !self.end.is_over();
        };
        let place = found.directories.len() as u32;
        let (mut below, mut names) = (Vec::new(), Vec::new());
        let mut in_time = true;
        for entry in entries {
            // A directory may have millions of names.
            if self.end.is_over() {
                in_time = false;
                break;
            }
            let Ok(entry) = entry else {
                found.unreadable += 1;
                break;
            };
            let Ok(metadata) = entry.metadata() else {
                found.unreadable += 1;
                continue;
            };
            let name = entry.file_name();
            let name_bytes = name.as_bytes().to_vec();
            let entry = if metadata.is_dir() {
                found.add_inode(&metadata);
                let number = self.next_number();
                if self.device.is_none_or(|device| device == metadata.dev()) {
                    below.push((number, path.join(name)));
                } else {
                    found.add_directory(number, Vec::new());
                }
                Some(Entry::Directory(number))
            } else if metadata.is_file() {
                self.add_file(found, place, name, &metadata)
            } else {
                found.names.others += 1;
                found.add_inode(&metadata);
                let content_bytes = if metadata.is_symlink() { metadata.len() } else { 0 };
                found.names.metadata_bytes += stored_bytes(INODE_BYTES, content_bytes, PAGE_BYTES);
                Some(Entry::of_other(content_bytes))
            };
            names.push((name_bytes, entry));
        }
        found.add_directory(number, names);
        found.directories.push(path);
        self.pending().directories.append(&mut below);
        in_time && !self.end.is_over()
    }

    /// Returns the number of a directory that was found.
    fn next_number(&self) -> u32 {
        let mut pending = self.pending();
        pending.found += 1;
        pending.found
    }

    /// Counts a file. Returns `None` if another of its names has been counted.
    fn add_file(&self, found: &mut Listed, directory: u32, name: OsString, metadata: &fs::Metadata) -> Option<Entry> {
        if metadata.nlink() > 1 {
            let mut linked = self.linked.lock().unwrap_or_else(PoisonError::into_inner);
            if !linked.insert((metadata.dev(), metadata.ino())) {
                return None;
            }
        }
        found.names.files += 1;
        found.add_inode(metadata);
        if metadata.len() > UNIT_BYTES && metadata.blocks().saturating_mul(512) < metadata.len() {
            found.sparse.insert(found.files.len());
        }
        if metadata.len() > 0 {
            found.files.push((directory, name.into_boxed_os_str(), metadata.len()));
        }
        Some(Entry::of_file(metadata.len()))
    }
}

fn directory(
    path: &Path,
    device: Option<u64>,
    [list_end, map_end]: [Deadline<'_>; 2],
    threads: usize,
) -> anyhow::Result<Input> {
    // Unreadable directories below it are tolerated, but not an unreadable `path`.
    drop(fs::read_dir(path).with_context(|| path.display().to_string())?);
    let mut root = Listed::default();
    root.add_inode(&fs::metadata(path).with_context(|| path.display().to_string())?);
    let pending = Pending { directories: vec![(0, path.to_owned())], ..Pending::default() };
    let walk = Walk { pending: Mutex::new(pending), linked: Mutex::default(), device, end: list_end };
    let found: Vec<Listed> = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(|| walk.work())).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    let mut input = Input {
        kind: InputKind::Directory,
        name: path.display().to_string(),
        files: Files::Many { directories: Vec::new(), files: Vec::new() },
        strata: Vec::new(),
        names: Names::default(),
        skipped: Skipped::default(),
        hole_bytes: 0,
    };
    let mut strata: Vec<Stratum> = STRATA.iter().map(|_| Stratum::default()).collect();
    strata[0].is_inline = true;
    strata.push(Stratum::of_pieces());
    let mut nearly_empty = Stratum::of_pieces();
    nearly_empty.long_files = LongFiles::NearlyEmpty;
    let mut sparse = Stratum::of_sparse_files();
    let (mut all_directories, mut all_files, mut times) = (Vec::new(), Vec::new(), InodeTimes::default());
    let mut listings = Vec::new();
    for found in found.into_iter().chain([root]) {
        let first = all_directories.len() as u32;
        for (at, (directory, name, len)) in found.files.into_iter().enumerate() {
            let number = all_files.len() as u32;
            let stratum = &mut strata[STRATA.partition_point(|most| *most < len)];
            let file = found.sparse.contains(&at).then(|| found.directories[directory as usize].join(&*name));
            let file = file.and_then(|path| open_in_time(&path, map_end));
            let piece = file.as_ref().and_then(|file| only_piece(file, len, map_end));
            let mapped = file.filter(|_| piece.is_none()).map(|file| Mapped::of(&file, len, map_end));
            let is_nearly_empty = mapped.as_ref().is_some_and(|mapped| mapped.is_nearly_empty(len));
            let stratum = if is_nearly_empty { &mut nearly_empty } else { stratum };
            if len >= LONG_FILE_BYTES && !is_nearly_empty {
                stratum.long_files = LongFiles::Some;
            }
            match (piece, mapped) {
                (Some((from, data_bytes)), _) => sparse.add_sparse(number, from, data_bytes, len),
                (None, Some(mapped)) => mapped.add_to(stratum, number, len),
                (None, None) => stratum.add(number, 0, len),
            }
            all_files.push((first + directory, name));
        }
        all_directories.extend(found.directories);
        listings.extend(found.listings);
        input.names.add(&found.names);
        times.append(found.times);
        input.skipped.unreadable += found.unreadable;
        input.skipped.more |= found.more;
    }
    input.names.compact = times.compact();
    input.names.gaps = gaps::of(&listings, input.names.compact, !input.skipped.more);
    strata.extend([nearly_empty, sparse]);
    strata.retain(|stratum| stratum.bytes > 0 || stratum.hole_bytes > 0);
    input.hole_bytes = strata.iter().map(|stratum| stratum.hole_bytes).fold(0, u64::saturating_add);
    input.strata = strata;
    input.files = Files::Many { directories: all_directories, files: all_files };
    let named = input.names.files + input.names.others;
    ensure!(named > 0 || !input.skipped.more, "{}: no file in it was found in two seconds", input.name);
    ensure!(named > 0 || input.skipped.unreadable > 0, "{}: no files in it", input.name);
    ensure!(named > 0, "{}: cannot read any file in it: access denied, or paths longer than 4095 bytes", input.name);
    Ok(input)
}

impl Names {
    fn add(&mut self, other: &Self) {
        self.files += other.files;
        self.directories += other.directories;
        self.others += other.others;
        self.metadata_bytes += other.metadata_bytes;
    }
}

/// Returns whether an error says that access is denied.
pub(super) fn is_denied(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

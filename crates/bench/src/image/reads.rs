//! The same reads of the same files, through the library and through mounted images.

use std::{
    collections::hash_map::{Entry, HashMap},
    fs::{self, File},
    os::unix::{ffi::OsStrExt, fs::FileExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
};

use anyhow::{Context, ensure};
use pagefold_erofs::Image;
use rustix::fs::{Advice, fadvise};

use crate::load::{Random, together};

/// Size of a sequential request.
const REQUEST: usize = 128 << 10;
/// Maximum bytes that a thread reads sequentially before it takes the next part, so that several
/// threads share a large file. Less if some threads would otherwise have nothing to read.
const PART: u64 = 8 << 20;
/// Size of a random request.
const PAGE: usize = 4096;
/// Random requests per pass.
const RANDOM_READS: usize = 8192;

/// The files to read: the largest ones of a tree.
pub(super) struct Reads {
    /// Paths relative to the root, with their lengths.
    files: Vec<(PathBuf, u64)>,
    /// Distinct pages that are not all zeros, as file number and offset. A random read in a long
    /// run of zeros decodes up to 4 MiB of zeros, which does not occur when a program looks for
    /// data.
    pages: Vec<(usize, u64)>,
}

/// How a tree is accessed.
pub(super) enum Access<'a> {
    Library(&'a Image),
    Folder(&'a Path),
}

enum Opened {
    Library(pagefold_erofs::File),
    File(File),
}

impl Access<'_> {
    fn open(&self, path: &Path) -> anyhow::Result<Opened> {
        Ok(match self {
            Self::Library(image) => Opened::Library(image.file(&image.resolve(path.as_os_str().as_bytes())?)?),
            Self::Folder(folder) => Opened::File(File::open(folder.join(path))?),
        })
    }
}

impl Opened {
    fn read(&self, buf: &mut [u8], offset: u64) -> anyhow::Result<()> {
        match self {
            Self::Library(file) => ensure!(file.read_at(buf, offset)? == buf.len(), "the file is shorter in the image"),
            Self::File(file) => file.read_exact_at(buf, offset)?,
        }
        Ok(())
    }
}

impl Reads {
    /// Selects the largest files under `root`, up to `limit` bytes in total.
    pub(super) fn of(root: &Path, limit: u64) -> anyhow::Result<Self> {
        let mut files = Vec::new();
        collect(root, Path::new(""), &mut files)?;
        files.sort_by(|(a, a_len), (b, b_len)| b_len.cmp(a_len).then_with(|| a.cmp(b)));
        let mut total = 0;
        files.retain(|(_, len)| {
            let fits = total < limit;
            total += if fits { *len } else { 0 };
            fits
        });
        ensure!(!files.is_empty(), "{} has no files to read", root.display());
        let mut pages = Vec::new();
        for (number, (_, len)) in files.iter().enumerate() {
            pages.extend((0..len / PAGE as u64).map(|page| (number, page * PAGE as u64)));
        }
        let mut random = Random::new(7);
        let shuffled = random.permutation(pages.len() as u64);
        let has_data = |&(file, at): &(usize, u64)| {
            let mut page = [0; PAGE];
            let read = File::open(root.join(&files[file].0)).and_then(|file| file.read_exact_at(&mut page, at));
            read.is_err() || page != [0; PAGE]
        };
        let shuffled = shuffled.into_iter().map(|at| pages[at as usize]);
        let pages = shuffled.filter(has_data).take(RANDOM_READS).collect();
        Ok(Self { files, pages })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|(_, len)| len).sum()
    }

    /// Splits the files into parts for `threads` threads. Each part is a file number, an offset and
    /// a length.
    fn parts(&self, threads: usize) -> Vec<(usize, u64, u64)> {
        let part = self.bytes().div_ceil(threads as u64).next_multiple_of(REQUEST as u64).min(PART);
        let files = self.files.iter().enumerate();
        files
            .flat_map(|(number, (_, len))| {
                (0..*len).step_by(part as usize).map(move |at| (number, at, part.min(len - at)))
            })
            .collect()
    }

    /// Reads everything and compares it with the files under `source`.
    pub(super) fn verify(&self, access: &Access<'_>, source: &Path) -> anyhow::Result<()> {
        let (mut found, mut expected) = (vec![0; REQUEST], vec![0; REQUEST]);
        for (path, len) in &self.files {
            let (opened, original) = (access.open(path)?, File::open(source.join(path))?);
            for at in (0..*len).step_by(REQUEST) {
                let here = (len - at).min(REQUEST as u64) as usize;
                opened.read(&mut found[..here], at).with_context(|| path.display().to_string())?;
                original.read_exact_at(&mut expected[..here], at)?;
                ensure!(found[..here] == expected[..here], "{} is not what was packed", path.display());
            }
        }
        Ok(())
    }

    /// Reads everything in order, 128 KiB at a time. Returns MB/s.
    pub(super) fn sequential(&self, access: &Access<'_>, threads: usize) -> anyhow::Result<f64> {
        let (next, parts) = (AtomicUsize::new(0), self.parts(threads));
        let work = |_, mut buf: Vec<u8>| {
            while let Some(&(file, from, len)) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
                let opened = access.open(&self.files[file].0)?;
                for at in (from..from + len).step_by(REQUEST) {
                    let here = (from + len - at).min(REQUEST as u64) as usize;
                    opened.read(&mut buf[..here], at)?;
                }
            }
            Ok(())
        };
        let (_, time) = together(threads, |_| Ok(vec![0; REQUEST]), work)?;
        Ok(self.bytes() as f64 / time.as_secs_f64() / 1e6)
    }

    /// Reads pages in random order and returns the microseconds per read and thread. For mounted
    /// files it advises the kernel that reads are random, which turns readahead off.
    pub(super) fn random(&self, access: &Access<'_>, threads: usize) -> anyhow::Result<f64> {
        let ready = |thread: usize| {
            // If every thread opened all files, there could be too many open files.
            let (mut opened, mut numbers, mut reads) = (Vec::new(), HashMap::new(), Vec::new());
            for (number, at) in self.pages.iter().skip(thread).step_by(threads) {
                let own = match numbers.entry(number) {
                    Entry::Occupied(own) => *own.get(),
                    Entry::Vacant(place) => {
                        let file = access.open(&self.files[*number].0)?;
                        if let Opened::File(file) = &file {
                            fadvise(file, 0, None, Advice::Random)?;
                        }
                        opened.push(file);
                        *place.insert(opened.len() - 1)
                    }
                };
                reads.push((own, *at));
            }
            anyhow::Ok((opened, reads))
        };
        let work = |_, (opened, reads): (Vec<Opened>, Vec<(usize, u64)>)| {
            let mut buf = [0; PAGE];
            reads.iter().try_for_each(|&(own, at)| opened[own].read(&mut buf, at))
        };
        let (_, time) = together(threads, ready, work)?;
        Ok(time.as_secs_f64() * 1e6 * threads as f64 / self.pages.len() as f64)
    }
}

/// Reads a file into the page cache.
pub(super) fn warm(path: &Path) -> anyhow::Result<()> {
    std::io::copy(&mut File::open(path)?, &mut std::io::sink())?;
    Ok(())
}

/// Evicts a file from the page cache.
pub(super) fn cool(path: &Path) -> anyhow::Result<()> {
    let file = File::open(path)?;
    rustix::fs::fsync(&file)?;
    fadvise(&file, 0, None, Advice::DontNeed)?;
    Ok(())
}

fn collect(root: &Path, below: &Path, files: &mut Vec<(PathBuf, u64)>) -> anyhow::Result<()> {
    for entry in fs::read_dir(root.join(below))? {
        let entry = entry?;
        let (path, metadata) = (below.join(entry.file_name()), entry.metadata()?);
        if metadata.is_dir() {
            collect(root, &path, files)?;
        } else if metadata.is_file() && metadata.len() >= PAGE as u64 {
            files.push((path, metadata.len()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_read_whole_and_at_random() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("below")).expect("a folder");
        fs::write(folder.path().join("below/large"), vec![1; 300_000]).expect("a file");
        fs::write(folder.path().join("small"), vec![2; 5000]).expect("a file");
        fs::write(folder.path().join("tiny"), b"left out").expect("a file");
        let reads = Reads::of(folder.path(), 1 << 20).expect("files");
        assert_eq!((reads.bytes(), reads.pages.len()), (305_000, 74));
        assert_eq!(
            (reads.parts(1).len(), reads.parts(3)),
            (2, vec![(0, 0, 131_072), (0, 131_072, 131_072), (0, 262_144, 37_856), (1, 0, 5000)])
        );
        let access = Access::Folder(folder.path());
        reads.verify(&access, folder.path()).expect("the same");
        for threads in [1, 2] {
            assert!(reads.sequential(&access, threads).expect("a speed") > 0.0);
            assert!(reads.random(&access, threads).expect("a time") > 0.0);
        }
        let missing = tempfile::tempdir().expect("a folder");
        assert!(reads.random(&Access::Folder(missing.path()), 2).is_err());
        fs::write(folder.path().join("small"), vec![3; 5000]).expect("a file");
        let copy = tempfile::tempdir().expect("a folder");
        fs::create_dir(copy.path().join("below")).expect("a folder");
        fs::write(copy.path().join("below/large"), vec![1; 300_000]).expect("a file");
        fs::write(copy.path().join("small"), vec![2; 5000]).expect("a file");
        assert!(reads.verify(&access, copy.path()).is_err());
    }
}

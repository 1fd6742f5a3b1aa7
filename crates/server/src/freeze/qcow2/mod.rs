//! Writes a disk as a qcow2 image.

mod file;

use std::{fs::File, io, ops::Range, thread};

use flate2::{Compress, Compression, FlushCompress, Status};
use pagefold_erofs::{Change, ReadAt};

pub(super) use self::file::Backing;
use self::file::{CLUSTER_BYTES, Cluster, ImageFile, SECTOR_BYTES};
use super::error::{Result, Within, refuse};

/// Clusters per read: 1 MiB, one request.
const JOB_CLUSTERS: u64 = 16;

/// Jobs of each thread between two writes.
const JOBS: usize = 4;

/// Size of the history in QEMU's decoder: 4 KiB.
const WINDOW_BITS: u8 = 12;

/// A disk of which each byte is in `changes`, is zero, or is in the backing file.
pub(super) struct Qcow2Source<'a> {
    pub(super) size_bytes: u64,
    /// In ascending order and disjoint.
    pub(super) changes: Vec<Change>,
    /// Reads the whole disk, including zeros and data of the backing file.
    pub(super) reader: &'a dyn ReadAt,
    pub(super) backing: Option<Backing<'a>>,
}

/// A run of clusters.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stretch {
    clusters: Range<u64>,
    /// Whether all of it is zeros; otherwise it must be read.
    zeros: bool,
}

/// Writes the disk to `out`, an empty file, compressed if there is a level. Reports progress to
/// `watch`.
pub(super) fn write(
    source: Qcow2Source<'_>,
    out: &File,
    level: Option<u32>,
    threads: usize,
    watch: &mut dyn FnMut(u64, u64),
) -> Result<()> {
    let writing = || "writing the image".to_owned();
    let Qcow2Source { size_bytes, changes, reader, backing } = source;
    let stretches = stretches(&changes, size_bytes);
    drop(changes);
    let clusters = |stretch: &Stretch| if stretch.zeros { 0 } else { stretch.clusters.end - stretch.clusters.start };
    let total_bytes = stretches.iter().map(|stretch| clusters(stretch) * CLUSTER_BYTES).sum();
    let mut file = ImageFile::new(out, size_bytes, backing).within(writing)?;
    let mut workers: Vec<_> = (0..threads).map(|_| Worker::new(reader, size_bytes, level)).collect();
    let mut jobs = jobs(stretches).peekable();
    let mut done_bytes = 0;
    while jobs.peek().is_some() {
        let batch: Vec<Stretch> = jobs.by_ref().take(threads * JOBS).collect();
        for (stretch, contents) in batch.iter().zip(work(&mut workers, &batch)?) {
            if stretch.zeros {
                file.put_zeros(stretch.clusters.clone()).within(writing)?;
            }
            for (number, cluster) in stretch.clusters.clone().zip(contents) {
                file.put(number, &cluster).within(writing)?;
            }
            done_bytes += clusters(stretch) * CLUSTER_BYTES;
        }
        watch(done_bytes, total_bytes);
    }
    file.finish().within(writing)
}

/// Returns the clusters to be read, and those that are entirely zeros. All others are not in the
/// image.
fn stretches(changes: &[Change], size_bytes: u64) -> Vec<Stretch> {
    let mut found = Vec::<Stretch>::new();
    let mut add = |clusters: Range<u64>, zeros: bool| match found.last_mut() {
        // Two changes may touch the same cluster, which is then read.
        Some(last) if last.zeros == zeros && last.clusters.end >= clusters.start => {
            last.clusters.end = last.clusters.end.max(clusters.end);
        }
        _ if clusters.is_empty() => {}
        _ => found.push(Stretch { clusters, zeros }),
    };
    for change in changes {
        let end = change.at + change.len;
        let touched = change.at / CLUSTER_BYTES..end.div_ceil(CLUSTER_BYTES);
        if !change.zeros {
            add(touched, false);
            continue;
        }
        // In the disk's last cluster, the part beyond the disk is zeros.
        let whole_end = if end == size_bytes { touched.end } else { end / CLUSTER_BYTES };
        let whole = change.at.div_ceil(CLUSTER_BYTES)..whole_end;
        if whole.is_empty() {
            add(touched, false);
            continue;
        }
        add(touched.start..whole.start, false);
        add(whole.clone(), true);
        add(whole.end..touched.end, false);
    }
    found
}

/// Splits the stretches into jobs.
fn jobs(stretches: Vec<Stretch>) -> impl Iterator<Item = Stretch> {
    stretches.into_iter().flat_map(|Stretch { clusters, zeros }| {
        let step = if zeros { (clusters.end - clusters.start).max(1) } else { JOB_CLUSTERS };
        clusters
            .clone()
            .step_by(step as usize)
            .map(move |at| Stretch { clusters: at..clusters.end.min(at + step), zeros })
    })
}

/// Returns the content of the clusters of these stretches, in order.
fn work(workers: &mut [Worker<'_>], batch: &[Stretch]) -> Result<Vec<Vec<Cluster>>> {
    let share = batch.len().div_ceil(workers.len());
    let all = |worker: &mut Worker<'_>, batch: &[Stretch]| -> io::Result<Vec<Vec<Cluster>>> {
        batch.iter().map(|stretch| worker.read(stretch)).collect()
    };
    if let [worker] = workers {
        return all(worker, batch).within(|| "reading the disk".to_owned());
    }
    thread::scope(|scope| {
        let mut running = Vec::new();
        for (worker, batch) in workers.iter_mut().zip(batch.chunks(share)) {
            let spawned = thread::Builder::new().spawn_scoped(scope, move || all(worker, batch));
            running.push(spawned.within(|| "starting a thread".to_owned())?);
        }
        let mut found = Vec::with_capacity(batch.len());
        for thread in running {
            let Ok(clusters) = thread.join() else { refuse!("a compression thread failed; this is a bug in pagefold") };
            found.append(&mut clusters.within(|| "reading the disk".to_owned())?);
        }
        Ok(found)
    })
}

/// The state of one thread.
struct Worker<'a> {
    reader: &'a dyn ReadAt,
    size_bytes: u64,
    encoder: Option<Encoder>,
    bytes: Vec<u8>,
}

/// Compresses clusters.
struct Encoder {
    compress: Compress,
    level: u32,
}

impl Encoder {
    fn new(level: u32) -> Self {
        Self { compress: Compress::new_with_window_bits(Compression::new(level), false, WINDOW_BITS), level }
    }

    /// Compresses a cluster. Returns `None` if that saves less than a sector, which would not be
    /// worth decoding.
    fn shorten(&mut self, bytes: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let mut shorter = Vec::with_capacity(bytes.len() - SECTOR_BYTES as usize);
        self.compress.reset();
        if self.compress.compress_vec(bytes, &mut shorter, FlushCompress::Finish)? == Status::StreamEnd {
            return Ok(Some(shorter));
        }
        // Otherwise, zlib-rs keeps the unfinished block across the reset and panics in the next
        // one.
        *self = Self::new(self.level);
        Ok(None)
    }
}

impl<'a> Worker<'a> {
    fn new(reader: &'a dyn ReadAt, size_bytes: u64, level: Option<u32>) -> Self {
        Self { reader, size_bytes, encoder: level.map(Encoder::new), bytes: Vec::new() }
    }

    /// Reads the clusters of a stretch. Returns nothing for zeros, which are already known.
    fn read(&mut self, stretch: &Stretch) -> io::Result<Vec<Cluster>> {
        if stretch.zeros {
            return Ok(Vec::new());
        }
        let at = stretch.clusters.start * CLUSTER_BYTES;
        let end = stretch.clusters.end * CLUSTER_BYTES;
        self.bytes.clear();
        self.bytes.resize((end - at) as usize, 0);
        let held = (end.min(self.size_bytes) - at) as usize;
        self.reader.read_exact_at(&mut self.bytes[..held], at)?;
        let clusters = self.bytes.chunks(CLUSTER_BYTES as usize);
        clusters.map(|bytes| cluster(bytes, self.encoder.as_mut())).collect()
    }
}

fn cluster(bytes: &[u8], encoder: Option<&mut Encoder>) -> io::Result<Cluster> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(Cluster::Zeros);
    }
    let shorter = encoder.map(|encoder| encoder.shorten(bytes)).transpose()?.flatten();
    Ok(shorter.map_or_else(|| Cluster::Plain(bytes.to_vec()), Cluster::Compressed))
}

#[cfg(test)]
mod tests;

//! A chain of forks that are pushed: how much of each is sent, and how fast the last one is read,
//! compared with a flat image of the same disk.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
};

use anyhow::{Context, ensure};
use pagefold_base::{Base, Cache as ClusterCache, Options as BaseOptions};
use pagefold_codec::PAGE_SIZE;
use pagefold_disk::BlockDevice;
use pagefold_remote::{Cache, Location, Options, open};
use pagefold_report::Output;
use tempfile::TempDir;

use super::{
    args::Args,
    disk::Disk,
    setting::Setting,
    subjects::{BASE, Served, Subject},
};
use crate::{client::Nbd, load::Random, speeds::Speeds};

/// Bytes that the first fork writes, and bytes that each later one writes.
const FIRST_BYTES: u64 = 47 << 20;
const NEXT_BYTES: u64 = 2 << 20;

/// The longest write.
const WRITE_BYTES: u64 = 64 << 10;

/// Number of forks in the chain.
const DEPTH: u64 = 10;

/// Turns of each image per round, and reads per turn.
const CHUNKS: u64 = 20;
const CHUNK_READS: u64 = 200;

/// The cache of decoded clusters: room for few of those that are read.
const CACHE_BYTES: usize = 16 << 20;

pub(super) fn run(setting: &Setting<'_>, out: &mut Output) -> anyhow::Result<()> {
    let Setting { args, away, disk, pagefold, scratch, .. } = *setting;
    let folder = TempDir::new_in(scratch)?;
    let cache = folder.path().join("cache");
    let served = away.own(Subject::Registry, &cache, &[])?;
    let run = |command: &[&str], in_server: bool| output_of(pagefold, &cache, in_server.then_some(&served), command);
    let raw = File::open(&disk.raw)?;
    let mut random = Random::new(47);
    let (mut below, mut fixed) = (BASE.to_owned(), String::new());
    for step in 1..=DEPTH {
        let (job, location) = (format!("job-{step}"), away.place(&format!("jobs/{step}:1")));
        served.server().control()?.fork(&below, &job)?;
        let bytes = if step == 1 { FIRST_BYTES } else { NEXT_BYTES };
        write(&served, &job, bytes, &raw, &mut random)?;
        away.passed();
        fixed = run(&["freeze", &job, "--push", &location], true)?;
        let passed = away.passed();
        if step == 1 {
            let sent: u64 = passed.iter().map(|one| one.sent_bytes).sum();
            let own = own_bytes(&run, &job, disk, folder.path())?;
            out.put("push", "written_bytes", bytes as f64, "bytes");
            out.put("push", "sent_bytes", sent as f64, "bytes");
            out.put("push", "requests", passed.len() as f64, "");
            out.put("push", "sent_over_own_clusters_and_index", sent as f64 / own as f64, "x");
            let received: u64 = passed.iter().map(|one| one.bytes).sum();
            out.put("push", "received_bytes", received as f64, "bytes");
        }
        below = format!("pushed-{step}");
        run(&["add", &below, "--base", &fixed], true)?;
    }
    let flat = folder.path().join("flat.erofs");
    let flat_name = flat.to_str().context("the path of the flat image")?;
    run(&["freeze", &format!("job-{DEPTH}"), "-o", flat_name], true)?;
    let flat = run(&["push", flat_name, &away.place("flat:1")], false)?;
    drop(served);
    compare(args, [&flat, &fixed], &cache, out)
}

/// Runs the program. Returns what it prints.
fn output_of(pagefold: &Path, cache: &Path, served: Option<&Served>, args: &[&str]) -> anyhow::Result<String> {
    let mut command = Command::new(pagefold);
    command.args(args).env("PAGEFOLD_CACHE", cache).stderr(Stdio::inherit());
    if let Some(served) = served {
        command.arg("--dir").arg(served.server().folder());
    }
    let output = command.output().context("cannot start pagefold")?;
    ensure!(output.status.success(), "pagefold {} failed: {}", args.join(" "), output.status);
    Ok(String::from_utf8(output.stdout)?.trim_end().to_owned())
}

/// Writes content from elsewhere on the disk, at random places.
fn write(served: &Served, job: &str, bytes: u64, raw: &File, random: &mut Random) -> anyhow::Result<()> {
    let pages = raw.metadata()?.len() / PAGE_SIZE as u64;
    let mut client = Nbd::connect(&served.server().socket(), job)?;
    let (mut left, mut buf) = (bytes, Vec::new());
    while left > 0 {
        let most = (WRITE_BYTES.min(left) / PAGE_SIZE as u64).min(pages);
        let len = 1 + random.below(most);
        buf.resize(len as usize * PAGE_SIZE, 0);
        let mut place = || random.below(pages - len + 1) * PAGE_SIZE as u64;
        raw.read_exact_at(&mut buf, place())?;
        // If source and target are the same place, a plain copy would change nothing.
        buf.chunks_mut(PAGE_SIZE).for_each(|page| page[0] ^= 1);
        client.write(place(), &buf)?;
        left -= len * PAGE_SIZE as u64;
    }
    Ok(())
}

/// Returns the bytes of the packed changes with their index.
fn own_bytes(
    run: &dyn Fn(&[&str], bool) -> anyhow::Result<String>,
    job: &str,
    disk: &Disk,
    folder: &Path,
) -> anyhow::Result<u64> {
    let (delta, index) = (folder.join("delta.erofs"), folder.join("delta.index"));
    let names = [&delta, &index, &disk.packed].map(|path| path.to_str().context("a path"));
    let [delta_name, index_name, base] = names;
    let (delta_name, index_name, base) = (delta_name?, index_name?, base?);
    run(&["freeze", job, "--backing", "-o", delta_name], true)?;
    run(&["index", delta_name, "--device", base, "-o", index_name], false)?;
    let bytes = fs::metadata(&delta)?.len() + fs::metadata(&index)?.len();
    fs::remove_file(&delta)?;
    Ok(bytes)
}

/// Reads pages of both images alternately. All of their chunks are in the cache.
fn compare(args: &Args, locations: [&str; 2], cache: &Path, out: &mut Output) -> anyhow::Result<()> {
    let mut bases = Vec::new();
    for location in locations {
        let mut options = Options::default();
        options.cache = Some(Arc::new(Cache::open(cache, 10 << 30)?));
        let remote = Arc::new(open(&Location::parse(location)?, &options)?);
        remote.blobs().iter().try_for_each(|blob| blob.fetch_all(&mut |_| {}))?;
        let clusters = ClusterCache::new(CACHE_BYTES);
        bases.push(Base::of(remote, Path::new(location), &BaseOptions::default(), &clusters, |line| {
            eprintln!("{line}");
        })?);
    }
    let pages = bases[0].size_bytes() / PAGE_SIZE as u64;
    let (mut speeds, mut randoms) = (Speeds::new(2), [1, 1].map(Random::new));
    let mut page = [0; PAGE_SIZE];
    for chunk in 0..args.rounds as u64 * CHUNKS {
        speeds.turn(chunk, CHUNK_READS, |which| {
            let (base, random) = (&bases[which], &mut randoms[which]);
            (0..CHUNK_READS).try_for_each(|_| Ok(base.read(random.below(pages) * PAGE_SIZE as u64, &mut page)?))
        })?;
    }
    out.put("chain", "flat_reads_per_s", speeds.per_s(0), "1/s");
    out.put("chain", "reads_per_s", speeds.per_s(1), "1/s");
    speeds.put_ratio(out, "chain", "reads_over_flat", 1, 0);
    Ok(())
}

//! `pagefold-bench image-soak`: builds images of generated trees, reads them back, mounts and
//! extracts them, for any length of time.

use std::{
    fs,
    path::Path,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use pagefold_erofs::{BuildOptions, ClusterCodec, Error};
use pagefold_roundtrip::{Case, Expected, Fsck, Keeps, Outcome, attempt, build_into, repack, shrink, text};
use tempfile::TempDir;

use crate::{figure::Figure, image::Mounted, server::program};

/// Options of `pagefold-bench image-soak`.
#[derive(clap::Args)]
#[command(after_help = "\
Each number defines a small tree and the options of an image. Each image is built twice and read \
back; every 16th is also mounted by the kernel, extracted by fsck.erofs, and extracted and packed \
again by pagefold, where possible. On the first difference the bench shrinks the tree, prints it \
with its number, and fails. '--seed NUMBER --cases 1' repeats that case.")]
pub(crate) struct Args {
    /// Minutes to run
    #[arg(long, default_value_t = 60)]
    minutes: u64,
    /// Number of the first tree
    #[arg(long, default_value_t = 1 << 32)]
    seed: u64,
    /// Stop after this many trees
    #[arg(long, default_value_t = u64::MAX)]
    cases: u64,
    /// Trees built at the same time [default: one per processor]
    #[arg(long, value_parser = crate::count)]
    threads: Option<usize>,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// One case in this many is also checked by other programs.
const OTHERS_EVERY: u64 = 16;
/// Maximum attempts to shrink a failing case.
const SHRINK_TRIES: usize = 5000;
/// How often progress is printed.
const SAY_EVERY: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Counts {
    cases: AtomicU64,
    refused: AtomicU64,
    mounted: AtomicU64,
    extracted: AtomicU64,
    repacked: AtomicU64,
}

/// Other programs that check images.
struct Others {
    fsck: Option<Fsck>,
    /// Codecs that the kernel can mount.
    mounts: Vec<ClusterCodec>,
    plain_mounts: bool,
    /// Without root, owners and devices are not extracted.
    is_root: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let others = Others::find()?;
    let (counts, end) = (Counts::default(), AtomicBool::new(false));
    let next = AtomicU64::new(args.seed);
    let last = args.seed.saturating_add(args.cases);
    let failed: Mutex<Option<(u64, String)>> = Mutex::new(None);
    let threads = args.threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
    let start = Instant::now();
    let deadline = start + Duration::from_secs(args.minutes.saturating_mul(60));
    let said = AtomicU64::new(0);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| -> anyhow::Result<()> {
                    let folder = tempfile::tempdir().context("cannot create a temporary directory for images")?;
                    while !end.load(Ordering::Relaxed) && Instant::now() < deadline {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= last {
                            break;
                        }
                        if let Err(why) = others.check(&Case::from_seed(seed), seed, &folder, &counts) {
                            end.store(true, Ordering::Relaxed);
                            failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert((seed, why));
                        }
                        counts.cases.fetch_add(1, Ordering::Relaxed);
                        let minutes = start.elapsed().as_secs() / SAY_EVERY.as_secs();
                        if said.fetch_max(minutes, Ordering::Relaxed) < minutes {
                            let cases = counts.cases.load(Ordering::Relaxed);
                            eprintln!(
                                "{minutes} minutes: {cases} trees, {:.0} a second",
                                cases as f64 / start.elapsed().as_secs_f64()
                            );
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| worker.join().unwrap_or_else(|_| bail!("a thread panicked")))
    })?;
    let seconds = start.elapsed().as_secs_f64();
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
    let figures = [
        ("trees", count(&counts.cases), "trees"),
        ("trees_a_second", count(&counts.cases) / seconds, "trees/s"),
        ("options_refused", count(&counts.refused), "trees"),
        ("mounted", count(&counts.mounted), "images"),
        ("extracted_by_fsck", count(&counts.extracted), "images"),
        ("extracted_and_packed_again", count(&counts.repacked), "images"),
    ];
    for (metric, value, unit) in figures {
        if args.json {
            let case = "generated-trees";
            Figure { bench: "image-soak", case, subject: "pagefold-default", metric, value, unit }.print_json();
        } else {
            println!("{metric:40} {value:>16.0} {unit}");
        }
    }
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    let Some((seed, why)) = failed else { return Ok(()) };
    eprintln!("number {seed}: {why}\nmaking it smaller");
    let folder = tempfile::tempdir()?;
    let mut fails = |case: &Case| others.check(case, seed, &folder, &Counts::default()).is_err();
    let small = shrink(&Case::from_seed(seed), SHRINK_TRIES, &mut fails);
    let small_why = others.check(&small, seed, &folder, &Counts::default()).err().unwrap_or_default();
    bail!("number {seed}: {why}\nThe smallest tree that was found: {small_why}\n{small}")
}

impl Others {
    /// Finds the other programs and prints which are missing.
    fn find() -> anyhow::Result<Self> {
        let is_root = rustix::process::geteuid().is_root();
        let fsck = program("fsck.erofs").ok().filter(|_| is_root).and_then(|path| Fsck::new(&path).ok());
        match &fsck {
            Some(fsck) => {
                eprintln!("extracted by fsck.erofs {}.{} if it supports them", fsck.version().0, fsck.version().1);
            }
            None => eprintln!("SKIPPED: extraction needs root and fsck.erofs"),
        }
        let folder = tempfile::tempdir()?;
        let mounts = |codec: Option<ClusterCodec>| {
            let case = Case::new(BuildOptions { codec, ..BuildOptions::default() }).file("text", &[text(0, 20_000)]);
            let path = folder.path().join("image");
            build_into(&case, &Expected::of(&case), &path)?;
            anyhow::Ok(Mounted::kernel(&path, "erofs").is_ok_and(|at| fs::read(at.path().join("text")).is_ok()))
        };
        let plain_mounts = mounts(None)?;
        let mut mountable = Vec::new();
        for codec in [
            ClusterCodec::Lz4,
            ClusterCodec::MicroLzma { preset: 0, dict_bytes: 4096 },
            ClusterCodec::Deflate(1),
            ClusterCodec::Zstd { level: 1, window_log: 14 },
        ] {
            if plain_mounts && mounts(Some(codec))? {
                mountable.push(codec);
            } else {
                eprintln!("SKIPPED: this system mounts no EROFS with {codec:?}");
            }
        }
        Ok(Self { fsck, mounts: mountable, plain_mounts, is_root })
    }

    fn check(&self, case: &Case, seed: u64, folder: &TempDir, counts: &Counts) -> Result<(), String> {
        if let Outcome::Refused(_) = attempt(case)? {
            counts.refused.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        if !seed.is_multiple_of(OTHERS_EVERY) {
            return Ok(());
        }
        let (image, target) = (folder.path().join("image"), folder.path().join("extracted"));
        let expected = Expected::of(case);
        build_into(case, &expected, &image).map_err(|error: Error| error.to_string())?;
        if self.mounts(case) {
            let mounted = Mounted::kernel(&image, "erofs").map_err(|error| format!("mount: {error:#}"))?;
            expected.compare_directory(mounted.path(), Keeps::ALL).map_err(|what| format!("mounted: {what}"))?;
            counts.mounted.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(fsck) = self.fsck.as_ref().filter(|fsck| fsck.takes(case)) {
            remove(&target).map_err(|error| format!("{error:#}"))?;
            fsck.extract(&image, &target)?;
            expected.compare_directory(&target, fsck.keeps()).map_err(|what| format!("extracted: {what}"))?;
            counts.extracted.fetch_add(1, Ordering::Relaxed);
        }
        if self.is_root {
            remove(&target).map_err(|error| format!("{error:#}"))?;
            if repack(case, &expected, &image, &target)? {
                counts.repacked.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    fn mounts(&self, case: &Case) -> bool {
        let options = &case.options;
        let hinted = options.hints.iter().filter_map(|hint| hint.compression);
        let mut codecs = hinted.map(|compression| compression.codec).chain(options.codec);
        let known = |codec: ClusterCodec| self.mounts.iter().any(|known| known.format() == codec.format());
        options.block_bytes as usize <= rustix::param::page_size() && self.plain_mounts && codecs.all(known)
    }
}

fn remove(target: &Path) -> anyhow::Result<()> {
    if target.exists() {
        fs::remove_dir_all(target).with_context(|| format!("removing {}", target.display()))?;
    }
    ensure!(!target.exists(), "{} is still there", target.display());
    Ok(())
}

//! `pagefold-bench image`: compares building, reading, mounting and extracting EROFS images with
//! `mkfs.erofs`, squashfs and ext4.
//!
//! ```text
//! round after round, for each data set, for each codec and cluster:
//!     build with each program, in turn, with all threads and with one
//!     in the first round, compare what each reader reads with the data
//!     read in turn, extract in turn
//! ```
//!
//! Each figure is the best of its rounds, since disturbances only slow a run down. The rounds of a
//! case are far apart, because a neighbour on the host disturbs for ten seconds at a time. Only one
//! case's images are on the disk at a time.

mod builder;
mod case;
mod data;
mod mounted;
pub(crate) mod process;
mod reader;
mod reads;
mod source_table;
mod tools;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;
use pagefold_erofs::Image;
use tempfile::TempDir;

pub(crate) use self::mounted::Mounted;
use self::{
    builder::Builder,
    case::Case,
    data::Data,
    reader::ImageReader,
    reads::{Access, Reads},
    tools::Tools,
};
use pagefold_report::{Output, Rounds};

use crate::{machine::cpus, server::pagefold};

/// Options of `pagefold-bench image`.
#[derive(clap::Args)]
#[command(after_help = "\
Subjects: 'pagefold' builds, extracts, and reads through the library; 'pagefold-fuse' is \
'pagefold mount'; 'kernel-erofs' and 'erofsfuse' read the image that pagefold built, \
'kernel-mkfs.erofs' the one that mkfs.erofs built; 'kernel-squashfs', 'squashfuse' and \
'kernel-ext4' read their own. Every program uses the same codec, level and cluster size; \
squashfs's cluster is its block, which counts input.

Page cache: data and images are cached. Each pass opens or mounts the image again, so that no \
decoded data is left. With one thread, a builder or extractor has one CPU. Extraction goes to \
memory if /dev/shm has room: ext4 without a journal examines every recently deleted inode before \
it allocates one, so earlier passes would slow later ones.

An image that a program cannot build or read is reported as not available. Kernel mounts need \
root.")]
pub(crate) struct Args {
    /// A directory or file to pack [default: text, a tree of this machine's files, and a disk with
    /// that tree]
    #[arg(long, value_name = "PATH")]
    data: Option<PathBuf>,
    /// MiB of each gathered data set
    #[arg(long, default_value_t = 96)]
    mib: u64,
    /// Codec, level and cluster, as in zstd,3@64K; repeat for more
    #[arg(long = "case", value_name = "CODEC[,LEVEL]@CLUSTER", default_values = [
        "lz4@4K", "lz4@64K", "lz4hc,9@4K", "lz4hc,9@64K", "zstd,3@64K", "deflate,6@64K", "lzma,6@64K",
    ])]
    cases: Vec<Case>,
    /// Number of rounds; the best one counts
    #[arg(long, default_value = "3", value_parser = crate::count)]
    rounds: usize,
    /// Read one large text file sequentially from ext4, EROFS and squashfs, from the disk and from
    /// the page cache
    #[arg(long)]
    source_table: bool,
    /// Directory of mkfs.erofs, fsck.erofs and erofsfuse [default: those on the PATH]
    #[arg(long, value_name = "DIR")]
    erofs_utils: Option<PathBuf>,
    /// Directory for images and files [default: a temporary directory]
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// Directory that images are extracted to [default: /dev/shm if it has 4 GiB, else the scratch
    /// directory]
    #[arg(long, value_name = "DIR")]
    extract_to: Option<PathBuf>,
    /// The pagefold program [default: the one next to this program]
    #[arg(long)]
    pagefold: Option<PathBuf>,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let tools = Tools::new(pagefold(args.pagefold.as_deref())?, args.erofs_utils.clone())?;
    let scratch = match &args.scratch {
        Some(folder) => TempDir::new_in(folder),
        None => TempDir::new(),
    };
    let scratch = scratch.context("cannot create a temporary directory for images")?;
    let mut results = Output::new("image", args.json, Rounds::Best);
    describe(&tools);
    if args.source_table {
        let data = match &args.data {
            Some(path) => data::named(path, &scratch)?,
            None => data::text(args.mib, &scratch)?,
        };
        return source_table::run(&tools, &data, args.rounds, scratch.path(), &mut results);
    }
    let all = match &args.data {
        Some(path) => vec![data::named(path, &scratch)?],
        None => data::gathered(args.mib, &tools, &scratch)?,
    };
    let extracted = match &args.extract_to {
        Some(folder) => TempDir::new_in(folder),
        None if has_room(Path::new(MEMORY)) => TempDir::new_in(MEMORY),
        None => TempDir::new_in(scratch.path()),
    };
    let extracted = extracted.context("cannot create a temporary directory to extract to")?;
    let mut bench =
        Bench { tools, scratch: scratch.path(), extracted: extracted.path(), results, verified: BTreeMap::new() };
    for round in 1..=args.rounds {
        for (data, case) in all.iter().flat_map(|data| args.cases.iter().map(move |case| (data, case))) {
            eprintln!("{}/{}, round {round}", data.name, case.name());
            bench.build(data, case)?;
            bench.read(data, case)?;
            bench.extract(data, case)?;
        }
    }
    Ok(())
}

/// A directory in memory.
const MEMORY: &str = "/dev/shm";

/// Whether a directory is in memory and has room for the extracted files.
fn has_room(folder: &Path) -> bool {
    const TMPFS: rustix::fs::FsWord = 0x0102_1994;
    rustix::fs::statfs(folder)
        .is_ok_and(|stat| stat.f_type == TMPFS && stat.f_bavail.saturating_mul(stat.f_bsize as u64) >= 4 << 30)
}

/// Prints the measured programs and their versions.
fn describe(tools: &Tools) {
    for (name, argument) in
        [("mkfs.erofs", "-V"), ("erofsfuse", "--version"), ("mksquashfs", "-version"), ("mkfs.ext4", "-V")]
    {
        match tools.find(name) {
            Some(program) => eprintln!("{name}: {}", Tools::version(&program, argument)),
            None => eprintln!("{name}: not installed"),
        }
    }
    eprintln!("CPUs: {}", cpus());
}

/// Returns the numbers of threads, with their names in cases.
fn thread_counts() -> Vec<(&'static str, usize)> {
    if cpus() > 1 { vec![("1", 1), ("all", cpus())] } else { vec![("all", 1)] }
}

struct Bench<'a> {
    tools: Tools,
    scratch: &'a Path,
    extracted: &'a Path,
    results: Output,
    /// Per case and reader, the result of comparing what it read with the data.
    verified: BTreeMap<(String, &'static str), anyhow::Result<()>>,
}

impl Bench<'_> {
    fn image(&self, builder: Builder) -> PathBuf {
        self.scratch.join(format!("{}.image", builder.subject()))
    }

    /// Builds with each program and keeps the images.
    fn build(&mut self, data: &Data, case: &Case) -> anyhow::Result<()> {
        for builder in Builder::ALL {
            // A leftover image of another case must not be taken for this one's.
            let _ = fs::remove_file(self.image(builder));
        }
        warm_tree(&data.folder)?;
        for &(threads_name, threads) in thread_counts().iter().rev() {
            let name = format!("{}/{}/build/{threads_name}", data.name, case.name());
            for builder in Builder::ALL {
                let image = self.scratch.join("new.image");
                match builder.build(&self.tools, case, threads, &data.folder, &image) {
                    Ok(ran) => {
                        let bytes = builder::image_bytes(builder, &image)?;
                        self.results.put_of(builder.subject(), &name, "image_bytes", bytes, "bytes");
                        self.results.put_of(builder.subject(), &name, "build_s", ran.seconds, "s");
                        self.results.put_of(builder.subject(), &name, "peak_rss_bytes", ran.peak_rss_bytes, "bytes");
                        fs::rename(&image, self.image(builder))?;
                    }
                    Err(error) => self.results.skip(builder.subject(), &error),
                }
            }
        }
        Ok(())
    }

    fn read(&mut self, data: &Data, case: &Case) -> anyhow::Result<()> {
        let reads = Reads::of(&data.folder, 256 << 20)?;
        let prefix = format!("{}/{}/read", data.name, case.name());
        let mut readers = Vec::new();
        for reader in ImageReader::ALL {
            let image = self.image(reader.builder());
            if !image.exists() {
                continue;
            }
            reads::warm(&image)?;
            let verify = || reader.with(&self.tools, &image, |access| reads.verify(access, &data.folder));
            let verified = self.verified.entry((prefix.clone(), reader.subject())).or_insert_with(verify);
            match verified {
                Ok(()) => readers.push(reader),
                Err(error) => self.results.skip(reader.subject(), error),
            }
        }
        for (threads_name, threads) in thread_counts() {
            let name = format!("{prefix}/{threads_name}");
            for reader in &readers {
                let image = self.image(reader.builder());
                let speed = reader.with(&self.tools, &image, |access| reads.sequential(access, threads))?;
                let time = reader.with(&self.tools, &image, |access| reads.random(access, threads))?;
                self.results.put_of(reader.subject(), &name, "seq_read_mb_s", speed, "MB/s");
                self.results.put_of(reader.subject(), &name, "rand_read_us", time, "us");
            }
        }
        let image = Image::open_path(&self.image(Builder::Pagefold))?;
        reads.sequential(&Access::Library(&image), 1)?;
        let counts = image.counts();
        let decoded = counts.decoded_in_place + counts.decoded_by_copy;
        if decoded > 0 {
            let share = counts.decoded_in_place as f64 / decoded as f64;
            self.results.put_of("pagefold", &format!("{prefix}/1"), "in_place_share", share, "share");
        }
        Ok(())
    }

    fn extract(&mut self, data: &Data, case: &Case) -> anyhow::Result<()> {
        let out = self.extracted.join("out");
        for (threads_name, threads) in thread_counts() {
            let name = format!("{}/{}/extract/{threads_name}", data.name, case.name());
            for (subject, program, builder) in [
                ("pagefold", Some(self.tools.pagefold.clone()), Builder::Pagefold),
                ("fsck.erofs", self.tools.find("fsck.erofs"), Builder::Pagefold),
                ("unsquashfs", self.tools.find("unsquashfs"), Builder::MkSquashfs),
            ] {
                let image = self.image(builder);
                let Some(program) = program.filter(|_| image.exists()) else { continue };
                let mut command = std::process::Command::new(program);
                match subject {
                    "pagefold" => {
                        command.arg("extract").arg(image).arg("-C").arg(&out);
                        command.arg("--threads").arg(threads.to_string());
                    }
                    "fsck.erofs" => {
                        command.arg(format!("--extract={}", out.display())).arg(image);
                    }
                    _ => {
                        command.args(["-quiet", "-no-progress", "-processors"]).arg(threads.to_string());
                        command.arg("-d").arg(&out).arg(image);
                    }
                }
                match process::run(&mut command, threads) {
                    Ok(ran) => self.results.put_of(subject, &name, "extract_s", ran.seconds, "s"),
                    Err(error) => self.results.skip(subject, &error),
                }
                if out.exists() {
                    fs::remove_dir_all(&out)?;
                }
            }
        }
        Ok(())
    }
}

/// Reads a tree's files into the page cache.
fn warm_tree(folder: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder)? {
        let (path, kind) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))?;
        if kind.is_dir() {
            warm_tree(&path)?;
        } else if kind.is_file() {
            reads::warm(&path)?;
        }
    }
    Ok(())
}

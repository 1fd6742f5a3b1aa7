//! `pagefold-bench report`: runs all the other benches, which take turns, and writes one page.
//!
//! Each bench is a part and runs as a separate process, whose lines of JSON are the interface. The
//! page is made only from those lines, so it can be made again from a file of them.

use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, ensure};
use pagefold_kinds::files::joined;
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag,
};
use tempfile::TempDir;

use crate::{
    charts,
    line::Line,
    machine, page,
    peers::{self, Peers},
    plan::{Named, Plan, Scratch},
    record::{ABOUT, Record},
    run::{self as runs, Run},
    written::Written,
};

/// Options of `pagefold-bench report`.
#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
    Parts take turns; a figure is the median of its turns. ^C ends the run and keeps what it has. The method is in docs/report.md."
)]
pub struct Args {
    #[command(subcommand)]
    what: Option<What>,
    /// Measure fewer cases and less data: at most 5 minutes on two CPUs instead of 45
    #[arg(long)]
    quick: bool,
    /// Files and directories to store, compress and pack [default: data of this machine]
    #[arg(long, num_args = 1.., value_name = "PATH")]
    data: Vec<PathBuf>,
    /// The page; the figures go to a file next to it with the extension .jsonl
    #[arg(short, long, value_name = "FILE", default_value = "report.md")]
    output: PathBuf,
}

#[derive(clap::Subcommand)]
enum What {
    /// Draw the charts for which an earlier run has figures: ram.svg, io.svg and forks.svg
    Charts {
        /// JSON lines of a report or a bench
        lines: PathBuf,
        /// Directory for the charts
        #[arg(short, long, value_name = "DIR", default_value = ".")]
        output: PathBuf,
    },
    /// Write the verdicts of an earlier run
    Results {
        /// JSON lines of a report
        lines: PathBuf,
        /// The page
        #[arg(short, long, value_name = "FILE", default_value = "results.md")]
        output: PathBuf,
    },
}

/// Measures, or makes files of an earlier run.
pub fn run(args: &Args) -> anyhow::Result<()> {
    match &args.what {
        None => measure(args),
        Some(What::Results { lines, output }) => {
            let command = format!("pagefold-bench report results {} -o {}", lines.display(), output.display());
            Written::Markdown.write(output, &[lines], &page::results(&Record::read(lines)?, &command)?)?;
            println!("{}", output.display());
            Ok(())
        }
        Some(What::Charts { lines, output }) => {
            let charts = charts::charts(&Record::read(lines)?)?;
            ensure!(
                !charts.is_empty(),
                "{} has no figures for a chart; it needs those of device, nbd or fork with their peers",
                lines.display()
            );
            for (file, svg) in charts {
                let path = output.join(file);
                Written::Chart.write(&path, &[lines], &svg)?;
                println!("{}", path.display());
            }
            Ok(())
        }
    }
}

/// Runs the plan.
fn measure(args: &Args) -> anyhow::Result<()> {
    let lines_path = args.output.with_extension("jsonl");
    ensure!(lines_path != args.output, "{}: the page cannot be where the JSON lines go", args.output.display());
    let inputs: Vec<&Path> = args.data.iter().map(PathBuf::as_path).collect();
    Written::Markdown.check(&args.output, &inputs)?;
    Written::Figures.check(&lines_path, &inputs)?;
    let program = env::current_exe().context("cannot find the path of this program")?;
    let (on_disk, in_memory) = scratch()?;
    let scratch =
        Scratch { disk: on_disk.path().to_owned(), memory: in_memory.as_ref().unwrap_or(&on_disk).path().to_owned() };
    let peers = Peers::find();
    let plan = Plan::new(args.quick, &named(&args.data, &scratch)?, &|peer| peers.has(peer), &scratch)?;

    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // Both signals only set the flag, even if one arrives twice, as from `timeout`: ending a
        // part and its mounts takes a second.
        flag::register(signal, Arc::clone(&stop))?;
    }
    let mut run = Run::new(&program, &lines_path, &scratch, stop)?;
    let began_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    run.keep(Line::new([ABOUT, "", &machine::description(), "machine", "s"], began_s as f64))?;
    for line in peers.lines() {
        if line.value == 0.0 {
            eprintln!("missing: {}: {}", line.case, line.subject);
        }
        run.keep(line)?;
    }
    let command = format!("pagefold-bench report{}", if args.quick { " --quick" } else { "" });
    let mut write = |record: &Record| Written::Markdown.write(&args.output, &inputs, &page::whole(record, &command)?);
    let mut clean = || {
        runs::unmount_below(&scratch);
        if peers.has("zram") {
            peers::reset_zram();
        }
    };
    run.follow(&plan, &|peer| peers.missing(peer), &mut write, &mut clean)?;
    println!("{}\n{}", args.output.display(), lines_path.display());
    ensure!(run.record.cut_short.is_none(), "the run was cut short; the page has what was measured");
    Ok(())
}

/// Returns a folder on a disk, and one in memory if possible.
fn scratch() -> anyhow::Result<(TempDir, Option<TempDir>)> {
    // /tmp may be in memory, but images must be read from a disk.
    let parent = env::var_os("TMPDIR").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from);
    let disk = TempDir::with_prefix_in("pagefold-report-", &parent).with_context(|| {
        format!("cannot create a temporary directory in {}; set TMPDIR to choose another place", parent.display())
    })?;
    Ok((disk, TempDir::with_prefix_in("pagefold-report-", "/dev/shm").ok()))
}

/// Maximum bytes taken from a directory's files where pages are needed.
const JOINED_BYTES: usize = 64 << 20;

/// Prepares the data that the user named for the parts. Benches of pages need files, so the files
/// of a directory are joined.
fn named(data: &[PathBuf], scratch: &Scratch) -> anyhow::Result<Named> {
    let mut named = Named::default();
    for (number, path) in data.iter().enumerate() {
        // Parts run in this folder too, but absolute paths make their commands clearer.
        let path = fs::canonicalize(path).with_context(|| format!("cannot read {}", path.display()))?;
        named.images.push(path.clone());
        if !path.is_dir() {
            named.files.push(path);
            continue;
        }
        let name = path.file_name().map_or_else(|| "root".into(), |name| name.to_string_lossy());
        let folder = scratch.disk.join(format!("data-{number}"));
        fs::create_dir(&folder)?;
        let bytes = joined(&[&path.to_string_lossy()], JOINED_BYTES, |_, _| true);
        ensure!(!bytes.is_empty(), "{} has no files of 4 KiB to 8 MiB", path.display());
        let file = folder.join(&*name);
        fs::write(&file, bytes)?;
        named.files.push(file);
        named.directories.push(path);
    }
    Ok(named)
}

/// Returns the command lines of a run without zram, with data and without.
pub fn commands(quick: bool) -> anyhow::Result<Vec<Vec<String>>> {
    let scratch = Scratch { disk: "/d".into(), memory: "/m".into() };
    let data = || vec!["a file".into(), "folder".into()];
    let named = Named { files: data(), images: data(), directories: vec!["folder".into()] };
    let mut parts = Vec::new();
    for named in [Named::default(), named] {
        parts.extend(Plan::new(quick, &named, &|_| false, &scratch)?.parts);
    }
    Ok(parts.into_iter().map(|part| part.args).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_become_files_of_pages_and_stay_directories_for_images() {
        let folder = tempfile::tempdir().unwrap();
        let scratch = Scratch { disk: folder.path().to_owned(), memory: folder.path().to_owned() };
        let data = folder.path().join("data");
        fs::create_dir_all(data.join("below")).unwrap();
        fs::write(data.join("below/file"), vec![7; 10_000]).unwrap();
        let file = data.join("below/file");
        let named = named(&[data.clone(), file.clone()], &scratch).unwrap();
        assert_eq!(named.images, [data.clone(), file.clone()]);
        assert_eq!(named.directories, [data]);
        assert_eq!(named.files.len(), 2);
        assert_eq!(fs::read(&named.files[0]).unwrap().len(), 10_000);
        assert!(super::named(&[folder.path().join("absent")], &scratch).is_err());
    }

    #[test]
    fn a_page_replaces_no_figures() {
        let folder = tempfile::tempdir().unwrap();
        let lines = folder.path().join("run.jsonl");
        fs::write(&lines, Line::new(["codec", "text", "fold", "compress_mb_s", "MB/s"], 1.0).json() + "\n").unwrap();
        let before = fs::read(&lines).unwrap();
        let args = |what| Args { what: Some(what), quick: false, data: Vec::new(), output: PathBuf::new() };
        for output in [lines.clone(), folder.path().join("./run.jsonl")] {
            let error = run(&args(What::Results { lines: lines.clone(), output })).unwrap_err().to_string();
            assert!(error.contains("never replaces an input"), "{error}");
            assert_eq!(fs::read(&lines).unwrap(), before);
        }
        assert!(run(&args(What::Charts { lines, output: folder.path().to_owned() })).is_err());
    }
}

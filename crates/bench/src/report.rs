//! `pagefold-bench report`: runs all the other benches in turns and writes one self-contained page.
//!
//! Each bench is a part and runs as a separate process, whose lines of JSON are the interface. The
//! page is made only from those lines, so it can be made again from a file of them.

mod bars;
mod baseline;
mod chart;
mod comparisons;
mod html;
mod page;
mod peers;
mod plan;
mod published;
mod record;
mod results;
mod run;
mod verdict;
mod words;

use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, ensure};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag,
};
use tempfile::TempDir;

use crate::{codec::files::joined, machine, written::Written};
use page::Baseline;
use peers::Peers;
use plan::{Named, Plan, Scratch};
use record::{Line, Record};
use run::Run;

pub(crate) use words::utc;

/// Options of `pagefold-bench report`.
#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Parts take turns; a figure is the median of its turns. ^C ends the run and keeps what it has. The method is in docs/report.md."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: Option<What>,
    /// Measure fewer cases and less data: at most 5 minutes on two CPUs instead of 45
    #[arg(long)]
    quick: bool,
    /// Files and directories to store, compress and pack [default: data of this machine]
    #[arg(long, num_args = 1.., value_name = "PATH")]
    data: Vec<PathBuf>,
    /// JSON lines of an earlier run: the page shows what became worse by more than its spread
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// The page; the figures go to a file next to it with the extension .jsonl
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
}

#[derive(clap::Subcommand)]
enum What {
    /// Make the page of an earlier run
    Page {
        /// JSON lines of a report or a bench
        lines: PathBuf,
        /// JSON lines of an earlier run
        #[arg(long, value_name = "FILE")]
        baseline: Option<PathBuf>,
        /// The page
        #[arg(short, long, value_name = "FILE", default_value = "report.html")]
        output: PathBuf,
    },
    /// Draw the charts for which an earlier run has figures: ram.svg, io.svg and forks.svg
    Charts {
        /// JSON lines of a report or a bench
        lines: PathBuf,
        /// Directory for the charts
        #[arg(short, long, value_name = "DIR", default_value = ".")]
        output: PathBuf,
    },
    /// Write the verdicts of an earlier run as Markdown
    Results {
        /// JSON lines of a report
        lines: PathBuf,
        /// The page
        #[arg(short, long, value_name = "FILE", default_value = "results.md")]
        output: PathBuf,
    },
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    match &args.what {
        None => measure(args),
        Some(What::Page { lines, baseline, output }) => {
            let inputs: Vec<&Path> = [lines].into_iter().chain(baseline).map(PathBuf::as_path).collect();
            Written::Page.check(output, &inputs)?;
            let record = Record::read(lines)?;
            let baseline = read_baseline(baseline.as_deref())?;
            Written::write(output, &page::page(&record, &lines.display().to_string(), baseline.as_ref()))?;
            println!("{}", output.display());
            Ok(())
        }
        Some(What::Results { lines, output }) => {
            let command = format!("pagefold-bench report results {} -o {}", lines.display(), output.display());
            Written::Markdown.check(output, &[lines])?;
            Written::write(output, &results::results(&Record::read(lines)?, &command))?;
            println!("{}", output.display());
            Ok(())
        }
        Some(What::Charts { lines, output }) => {
            let charts = bars::charts(&Record::read(lines)?);
            ensure!(
                !charts.is_empty(),
                "{} has no figures for a chart; it needs those of device, nbd or fork with their peers",
                lines.display()
            );
            for chart in &charts {
                Written::Chart.check(&output.join(chart.file), &[lines])?;
            }
            for chart in charts {
                let path = output.join(chart.file);
                Written::write(&path, &chart.svg)?;
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
    let inputs: Vec<&Path> = args.data.iter().chain(&args.baseline).map(PathBuf::as_path).collect();
    Written::Page.check(&args.output, &inputs)?;
    Written::Figures.check(&lines_path, &inputs)?;
    let baseline = read_baseline(args.baseline.as_deref())?;
    let program = env::current_exe().context("cannot find the path of this program")?;
    let (on_disk, in_memory) = scratch()?;
    let scratch =
        Scratch { disk: on_disk.path().to_owned(), memory: in_memory.as_ref().unwrap_or(&on_disk).path().to_owned() };
    let peers = Peers::find();
    let plan = Plan::new(args.quick, &named(&args.data, &scratch)?, &peers, &scratch);

    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // Both signals only set the flag, even if one arrives twice, as from `timeout`: ending a
        // part and its mounts takes a second.
        flag::register(signal, Arc::clone(&stop))?;
    }
    let mut run = Run::new(&program, &lines_path, &scratch, stop)?;
    let began_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    run.keep(Line::about("", &machine::description(), "machine", began_s as f64, "s"))?;
    for line in peers.lines() {
        if line.value == 0.0 {
            eprintln!("missing: {}: {}", line.case, line.subject);
        }
        run.keep(line)?;
    }
    let lines_name = lines_path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut write = |record: &Record| Written::write(&args.output, &page::page(record, &lines_name, baseline.as_ref()));
    let mut clean = || {
        run::unmount_below(&scratch);
        if peers.has("zram") {
            peers::reset_zram();
        }
    };
    run.follow(&plan, &run::needs(&peers), &mut write, &mut clean)?;
    println!("{}\n{}", args.output.display(), lines_path.display());
    ensure!(run.record.cut_short.is_none(), "the run was cut short; the page has what was measured");
    Ok(())
}

fn read_baseline(path: Option<&Path>) -> anyhow::Result<Option<Baseline>> {
    let read = |path: &Path| anyhow::Ok(Baseline { name: path.display().to_string(), record: Record::read(path)? });
    path.map(read).transpose()
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
    fn a_page_and_charts_are_made_of_lines_that_were_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (lines, output) = (folder.path().join("run.jsonl"), folder.path().join("run.html"));
        let figure = Line { bench: "codec".to_owned(), ..Line::about("text", "fold", "compress_mb_s", 1.0, "MB/s") };
        fs::write(&lines, figure.json() + "\n").unwrap();
        let what = What::Page { lines: lines.clone(), baseline: Some(lines.clone()), output: output.clone() };
        let args =
            |what| Args { what: Some(what), quick: false, data: Vec::new(), baseline: None, output: PathBuf::new() };
        run(&args(what)).unwrap();
        assert!(fs::read_to_string(&output).unwrap().contains("Compared with"));
        let before = fs::read(&lines).unwrap();
        for output in [lines.clone(), folder.path().join("./run.jsonl")] {
            for what in [
                What::Page { lines: lines.clone(), baseline: None, output: output.clone() },
                What::Results { lines: lines.clone(), output },
            ] {
                assert!(run(&args(what)).unwrap_err().to_string().contains("never replaces an input"));
                assert_eq!(fs::read(&lines).unwrap(), before);
            }
        }
        // The figures of a run would replace its baseline.
        let measured = Args {
            baseline: Some(lines.clone()),
            output,
            ..args(What::Page { lines: lines.clone(), baseline: None, output: PathBuf::new() })
        };
        assert!(measure(&measured).unwrap_err().to_string().contains("never replaces an input"));
        assert_eq!(fs::read(&lines).unwrap(), before);
        let charts = What::Charts { lines, output: folder.path().to_owned() };
        assert!(run(&args(charts)).is_err());
    }
}

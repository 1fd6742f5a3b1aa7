//! `pagefold-bench instructions`: how many instructions every codec takes for fixed pages, counted by callgrind, against a
//! committed table: a gate against slowdowns that a busy machine does not move. `scripts/test` runs it.

use std::{collections::BTreeMap, env, fmt::Write, fs, hint, path::PathBuf, process::Command, thread};

use anyhow::{Context, bail, ensure};
use pagefold_codec::{PAGE_SIZE, Page};

use super::subject::{self, Subject};
use crate::synthetic;

/// Pages of each kind, and how many others train tables.
const PAGES: usize = 16;
const SAMPLE_PAGES: usize = 64;

/// More instructions than the table says, by this share, are a slowdown: 2 %. The same source, compiled by the same compiler, gives
/// the same counts: from one build to another in which other codecs had changed no count moved by more than 0.01 %. What is
/// left to allow for is the C library's copies, of which a page's two take under 2 % of the quickest codec's instructions.
const TOLERANCE: f64 = 0.02;

/// Codecs with tables or dictionaries, which `subject::own_names` does not name.
const TRAINED: &[&str] = &["pleat-trained", "lz4-dict"];

/// What begins the table's line that says what it was made with.
const MADE_WITH: &str = "Made with: ";

/// Options of `pagefold-bench instructions`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The committed table
    #[arg(long, default_value = "bench/results/instructions.txt")]
    file: PathBuf,
    /// Write the table; without it, the run fails where a codec takes more instructions than the table says
    #[arg(long)]
    update: bool,
    /// Do the work that is counted: compress or decompress with this codec
    #[arg(long, hide = true, num_args = 2)]
    work: Vec<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if let [direction, name] = &args.work[..] {
        return work(direction, name);
    }
    ensure!(!cfg!(debug_assertions), "counts are those of a release build");
    if Command::new("valgrind").arg("--version").output().is_err() {
        return skipped("valgrind is not installed");
    }
    let made_with = made_with();
    if args.update {
        let mut text = format!(
            "Instructions for a page, mean over the synthetic kinds, by pagefold-bench instructions.\n{MADE_WITH}{made_with}\n\n"
        );
        for (what, count) in &counts()? {
            writeln!(text, "{what} {count:>8}")?;
        }
        return fs::write(&args.file, text).with_context(|| format!("cannot write {}", args.file.display()));
    }
    let text = fs::read_to_string(&args.file).with_context(|| format!("cannot read {}", args.file.display()))?;
    match text.lines().find_map(|line| line.strip_prefix(MADE_WITH)) {
        Some(theirs) if theirs == made_with => compare(args, &text),
        theirs => skipped(&format!(
            "{} was made with {}, this is {made_with}; --update rewrites it",
            args.file.display(),
            theirs.unwrap_or("nobody knows what")
        )),
    }
}

fn skipped(why: &str) -> anyhow::Result<()> {
    println!("SKIPPED: instructions: {why}");
    ensure!(env::var_os("PAGEFOLD_MUST_RUN").is_none_or(|value| value != "1"), "instructions must run here: {why}");
    Ok(())
}

/// What counts depend on besides the source: the compiler, and which instructions the processor has, as codecs and the C library
/// look for them at run time. Under valgrind that is no more than AVX2 and its like.
fn made_with() -> String {
    let rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into())).arg("--version").output();
    let rustc = rustc.map_or_else(
        |_| "an unknown compiler".to_owned(),
        |out| String::from_utf8_lossy(&out.stdout).trim().to_owned(),
    );
    let mut text = format!("{rustc}, {}", env::consts::ARCH);
    #[cfg(target_arch = "x86_64")]
    for (name, present) in [
        ("sse4.2", is_x86_feature_detected!("sse4.2")),
        ("avx2", is_x86_feature_detected!("avx2")),
        ("bmi2", is_x86_feature_detected!("bmi2")),
    ] {
        if present {
            text += " ";
            text += name;
        }
    }
    text
}

/// The counts of all codecs of ours, both ways. Two run at a time: they are counted, not timed.
fn counts() -> anyhow::Result<BTreeMap<String, u64>> {
    let names: Vec<String> =
        subject::own_names().into_iter().chain(TRAINED.iter().map(|&name| name.to_owned())).collect();
    let count_all = |direction: &'static str| -> anyhow::Result<Vec<(String, u64)>> {
        let count = |name: &String| {
            let count = counted(direction, name).with_context(|| format!("{name} {direction}"))?;
            Ok((format!("{name:14} {direction:10}"), count))
        };
        names.iter().map(count).collect()
    };
    thread::scope(|scope| {
        let decompress = scope.spawn(|| count_all("decompress"));
        let mut counts: BTreeMap<String, u64> = count_all("compress")?.into_iter().collect();
        let Ok(decompress) = decompress.join() else { bail!("a thread panicked") };
        counts.extend(decompress?);
        Ok(counts)
    })
}

fn compare(args: &Args, text: &str) -> anyhow::Result<()> {
    let committed: BTreeMap<&str, u64> = text
        .lines()
        .filter_map(|line| line.rsplit_once(' '))
        .filter_map(|(what, count)| Some((what.trim_end(), count.parse().ok()?)))
        .collect();
    let mut slower = false;
    for (what, count) in counts()? {
        let Some(&was) = committed.get(what.trim_end()) else {
            println!("new    {what} {count:>8}");
            slower = true;
            continue;
        };
        let change = count as f64 / was as f64 - 1.0;
        slower |= change > TOLERANCE;
        let word = if change > TOLERANCE { "slower" } else { "      " };
        println!("{word} {what} {count:>8} {:+.1} %", change * 100.0);
    }
    ensure!(!slower, "slower than {} says, or new there; --update rewrites it", args.file.display());
    Ok(())
}

/// Runs this program under callgrind, collecting only inside [`compress_all`] or [`decompress_all`].
fn counted(direction: &str, name: &str) -> anyhow::Result<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"])
        .arg(format!("--toggle-collect=*{direction}_all*"))
        .arg(env::current_exe()?)
        .args(["instructions", "--work", direction, name])
        .output()?;
    let log = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{log}");
    let count: u64 = log
        .lines()
        .find_map(|line| line.split_once("Collected :"))
        .and_then(|(_, count)| count.trim().parse().ok())
        .with_context(|| format!("callgrind counted nothing: {log}"))?;
    Ok(count / (PAGES * synthetic::KINDS.len()) as u64)
}

fn work(direction: &str, name: &str) -> anyhow::Result<()> {
    let of_all_kinds = |seed, count| -> Vec<Page> {
        synthetic::KINDS.iter().flat_map(|&(_, make)| synthetic::of_kind(make, seed, count)).collect()
    };
    let (pages, sample) = (of_all_kinds(1, PAGES), of_all_kinds(2, SAMPLE_PAGES));
    let Some(mut subject) = Subject::by_name(name, &sample.iter().collect::<Vec<_>>())? else {
        bail!("{name} is not here");
    };
    // Once without counting: what is made at the first page is not a page's cost.
    let mut objects = Vec::new();
    compress_pages(&mut subject, &pages, |object| objects.push(object.to_vec()));
    match direction {
        "compress" => compress_all(&mut subject, &pages),
        "decompress" => decompress_all(&mut subject, &objects),
        _ => bail!("compress or decompress, not {direction}"),
    }
}

fn compress_pages(subject: &mut Subject, pages: &[Page], mut done: impl FnMut(&[u8])) {
    let mut out = [0; 2 * PAGE_SIZE];
    for page in pages {
        match subject.compress(page, &mut out) {
            Some(len) => done(&out[..len]),
            None => done(page),
        }
    }
}

#[inline(never)]
fn compress_all(subject: &mut Subject, pages: &[Page]) -> anyhow::Result<()> {
    compress_pages(subject, pages, |object| {
        hint::black_box(object);
    });
    Ok(())
}

#[inline(never)]
fn decompress_all(subject: &mut Subject, objects: &[Vec<u8>]) -> anyhow::Result<()> {
    let mut page = [0; PAGE_SIZE];
    for object in objects {
        subject.decompress(object, &mut page)?;
        hint::black_box(&page);
    }
    Ok(())
}

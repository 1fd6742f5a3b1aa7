//! Counts instructions with callgrind and compares them with a committed table. A busy machine does
//! not change the counts, so this catches slowdowns reliably.

use std::{
    collections::BTreeMap,
    env,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};

/// Prefix of the table's line that says what produced it.
const MADE_WITH: &str = "Made with: ";

/// Options of the commands that count.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The committed table [default: that of bench/results]
    #[arg(long)]
    file: Option<PathBuf>,
    /// Write the table; without it, the run fails if a count exceeds the table's
    #[arg(long)]
    update: bool,
    /// Do the counted work: this operation with this codec
    #[arg(long, hide = true, num_args = 2)]
    pub(crate) work: Vec<String>,
}

/// A committed table of counts.
pub(crate) struct CountTable {
    pub(crate) file: &'static str,
    /// The table's first line.
    pub(crate) title: &'static str,
    /// A count above the table's by more than this share is a slowdown.
    pub(crate) tolerance: f64,
}

impl CountTable {
    /// Counts, then writes the table or fails if a count exceeds the table's. Without valgrind, or
    /// if the table is from another compiler or processor, prints a note and does neither.
    pub(crate) fn run(
        &self,
        args: &Args,
        counts: impl FnOnce() -> anyhow::Result<BTreeMap<String, u64>>,
    ) -> anyhow::Result<()> {
        let file = args.file.as_deref().unwrap_or(Path::new(self.file));
        ensure!(!cfg!(debug_assertions), "counts are those of a release build");
        if Command::new("valgrind").arg("--version").output().is_err() {
            return skipped("valgrind is not installed");
        }
        let made_with = made_with();
        if args.update {
            let mut text = format!("{}\n{MADE_WITH}{made_with}\n\n", self.title);
            for (what, count) in &counts()? {
                writeln!(text, "{what} {count:>8}")?;
            }
            return fs::write(file, text).with_context(|| format!("cannot write {}", file.display()));
        }
        let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        match text.lines().find_map(|line| line.strip_prefix(MADE_WITH)) {
            Some(theirs) if theirs == made_with => self.compare(file, &text, &counts()?),
            theirs => skipped(&format!(
                "{} was made with {}, this is {made_with}; --update rewrites it",
                file.display(),
                theirs.unwrap_or("an unknown compiler")
            )),
        }
    }

    fn compare(&self, file: &Path, text: &str, counts: &BTreeMap<String, u64>) -> anyhow::Result<()> {
        let committed: BTreeMap<&str, u64> = text
            .lines()
            .filter_map(|line| line.rsplit_once(' '))
            .filter_map(|(what, count)| Some((what.trim_end(), count.parse().ok()?)))
            .collect();
        let mut slower = false;
        for (what, &count) in counts {
            let Some(&was) = committed.get(what.trim_end()) else {
                println!("new    {what} {count:>8}");
                slower = true;
                continue;
            };
            let change = count as f64 / was as f64 - 1.0;
            slower |= change > self.tolerance;
            let word = if change > self.tolerance { "slower" } else { "      " };
            println!("{word} {what} {count:>8} {:+.1} %", change * 100.0);
        }
        ensure!(!slower, "slower than {} says, or new there; --update rewrites it", file.display());
        Ok(())
    }
}

fn skipped(why: &str) -> anyhow::Result<()> {
    println!("SKIPPED: instructions: {why}");
    ensure!(env::var_os("PAGEFOLD_MUST_RUN").is_none_or(|value| value != "1"), "instructions must run here: {why}");
    Ok(())
}

/// Returns what counts depend on besides the source: the compiler, and the processor's instruction
/// sets, which codecs and the C library detect at run time. Valgrind supports AVX2 at most.
fn made_with() -> String {
    let rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into())).arg("--version").output();
    let rustc = rustc.map_or_else(
        |_| "an unknown compiler".to_owned(),
        |out| String::from_utf8_lossy(&out.stdout).trim().to_owned(),
    );
    let text = format!("{rustc}, {}", env::consts::ARCH);
    #[cfg(target_arch = "x86_64")]
    let text = [
        ("sse4.2", is_x86_feature_detected!("sse4.2")),
        ("avx2", is_x86_feature_detected!("avx2")),
        ("bmi2", is_x86_feature_detected!("bmi2")),
    ]
    .into_iter()
    .filter(|(_, present)| *present)
    .fold(text, |text, (name, _)| text + " " + name);
    text
}

/// Runs this program with `args` under callgrind, which counts only inside the function that
/// `function` names. `function` may have wildcards.
pub(crate) fn counted(function: &str, args: &[&str]) -> anyhow::Result<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"])
        .arg(format!("--toggle-collect={function}"))
        .arg(env::current_exe()?)
        .args(args)
        .output()?;
    let log = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{log}");
    log.lines()
        .find_map(|line| line.split_once("Collected :"))
        .and_then(|(_, count)| count.trim().parse().ok())
        .with_context(|| format!("callgrind counted nothing: {log}"))
}

//! A committed table of counts.

use std::{collections::BTreeMap, env, fmt::Write, fs};

use anyhow::{Context, ensure};

use crate::valgrind::made_with;

/// Prefix of the table's line that says what produced it.
const MADE_WITH: &str = "Made with: ";

pub(crate) struct CountTable {
    /// Its name in `--work`.
    pub(crate) name: &'static str,
    /// Its path from the repository's root.
    pub(crate) file: &'static str,
    /// Its first line.
    pub(crate) title: &'static str,
    /// A count above the table's by more than this share is a slowdown.
    pub(crate) tolerance: f64,
}

impl CountTable {
    /// Counts, then writes the table or fails if a count exceeds the table's. If the table is from
    /// another compiler or processor, prints a note and does neither.
    pub(crate) fn run(
        &self,
        update: bool,
        counts: impl FnOnce() -> anyhow::Result<BTreeMap<String, u64>>,
    ) -> anyhow::Result<()> {
        let (file, made_with) = (self.file, made_with());
        if update {
            let mut text = format!("{}\n{MADE_WITH}{made_with}\n\n", self.title);
            for (what, count) in &counts()? {
                writeln!(text, "{what} {count:>8}")?;
            }
            return fs::write(file, text).with_context(|| format!("cannot write {file}"));
        }
        let text = fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
        match text.lines().find_map(|line| line.strip_prefix(MADE_WITH)) {
            Some(theirs) if theirs == made_with => self.compare(&text, &counts()?),
            theirs => skip(&format!(
                "{file} was made with {}, this is {made_with}; --update rewrites it",
                theirs.unwrap_or("an unknown compiler")
            )),
        }
    }

    fn compare(&self, text: &str, counts: &BTreeMap<String, u64>) -> anyhow::Result<()> {
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
        ensure!(!slower, "slower than {} says, or new there; --update rewrites it", self.file);
        Ok(())
    }
}

/// Reports that nothing is compared, and why.
pub(crate) fn skip(why: &str) -> anyhow::Result<()> {
    println!("SKIPPED: instructions: {why}");
    ensure!(
        env::var_os("PAGEFOLD_MUST_RUN").is_none_or(|value| value != "1"),
        "PAGEFOLD_MUST_RUN is set, but instructions cannot be counted: {why}"
    );
    Ok(())
}

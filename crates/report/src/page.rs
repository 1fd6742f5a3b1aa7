//! A run as a Markdown page: verdicts, the sources' tables, and what was not measured.

use std::{collections::BTreeSet, fmt::Write};

use super::{
    comparisons::{Comparison, Winner, groups},
    published,
};
use crate::ratio::Ratios;
use crate::record::Record;
use crate::words::{between, difference, minutes, plural, range, utc};

/// Maximum length of a line of prose, in bytes.
const COLUMNS: usize = 100;

/// Returns the page of a run that continues or has ended. `command` is the command that measures.
pub(super) fn whole(record: &Record, command: &str) -> anyhow::Result<String> {
    let mut text = page(record, &format!("`{command}` made this page."))?;
    text.push_str("\n## The sources' tables\n\n");
    paragraph(
        &mut text,
        "Machines differ: compare rows and columns within one side, not the two sides. \
         Tables of many rows show the means of their groups.",
    );
    published::write(&mut text, record)?;
    missing(&mut text, record)?;
    commands(&mut text, record)?;
    Ok(text)
}

/// Returns the verdicts of an earlier run. `command` is the command that makes the page.
pub(super) fn results(record: &Record, command: &str) -> anyhow::Result<String> {
    page(record, &format!("`{command}` made this page. Its figures are those of one run of `pagefold-bench report`."))
}

fn page(record: &Record, made_by: &str) -> anyhow::Result<String> {
    let mut text = "# Results\n\n".to_owned();
    paragraph(&mut text, &head(record, made_by));
    if let Some(why) = &record.cut_short {
        paragraph(&mut text, &format!("**This run was cut short**: {why}."));
    }
    let left_out: Vec<&str> = record.left_out.iter().map(|(part, _)| part.as_str()).collect();
    if !left_out.is_empty() {
        paragraph(&mut text, &format!("**Left out**: {}.", left_out.join(", ")));
    }
    let (mut tables, mut counts) = (String::new(), [0; 3]);
    let mut contents = Vec::new();
    for group in groups()? {
        let found = group.comparisons.iter().filter_map(|one| Some((one, one.ratios(record)?)));
        let mut rows: Vec<_> = found.collect();
        if rows.is_empty() {
            continue;
        }
        contents.push(format!("[{}](#{})", group.name, anchor(&group.name)));
        writeln!(tables, "\n## {}\n", group.name)?;
        paragraph(&mut tables, &group.note);
        tables.push_str("| pagefold / peer | | pagefold | turns | cases |\n|---|---|---|---|---|\n");
        let mut pairs: Vec<String> = Vec::new();
        for (comparison, _) in &rows {
            let sides = comparison.sides();
            if !pairs.contains(&sides) {
                pairs.push(sides);
            }
        }
        rows.sort_by_key(|(comparison, _)| pairs.iter().position(|sides| *sides == comparison.sides()));
        let mut above = String::new();
        for (comparison, ratios) in rows {
            let winner = comparison.winner(ratios.mean);
            counts[winner as usize] += 1;
            let sides = comparison.sides();
            let shown = if sides == above { "" } else { &*sides };
            tables.push_str(&row(comparison, shown, &ratios, winner));
            above = sides;
        }
    }
    if !contents.is_empty() {
        paragraph(&mut text, &format!("Contents: {}.", contents.join(", ")));
    }
    let [ours, peers, neither] = counts;
    let all = ours + peers + neither;
    paragraph(
        &mut text,
        &format!(
            "Of {all} comparisons pagefold is better in {ours}, the peer in {peers}; {neither} show no difference."
        ),
    );
    paragraph(
        &mut text,
        "A row gives the median over turns of the geometric mean over cases, then the range of the turns as factors \
         (above 1 pagefold is better; (1): a single turn), then the number of cases, the worst and the best. **Bold: the \
         peer is better.** [report.md](report.md) describes the method, and what differs between the two sides.",
    );
    text.pop();
    Ok(text + &tables)
}

/// Returns the anchor that readers of Markdown give a heading of letters, digits and spaces.
fn anchor(heading: &str) -> String {
    heading.to_lowercase().replace(' ', "-")
}

fn head(record: &Record, made_by: &str) -> String {
    let seconds: f64 = record.turns.iter().filter_map(|turn| turn.seconds).sum();
    let turns = record.turns.iter().map(|turn| turn.number).max().unwrap_or(0);
    let began = record.began_s.map_or_else(String::new, |began_s| format!(" It began at {}.", utc(began_s)));
    format!(
        "{made_by} The machine: {}.{began} The run took {turns} {} and {} of measuring. pagefold and its peers took \
         turns within the run.",
        record.machine,
        plural(turns as usize, "turn"),
        minutes(seconds),
    )
}

/// Returns the row of a comparison. `sides` is empty if the row above is of the same two.
fn row(comparison: &Comparison, sides: &str, Ratios { mean, cases }: &Ratios, winner: Winner) -> String {
    let words = difference(comparison.measure, mean.median);
    let words = if winner == Winner::Peer { format!("**{words}**") } else { words };
    let of_cases = match &cases[..] {
        [worst, .., best] => format!("{}: {}", cases.len(), between(worst.0, best.0)),
        _ => String::new(),
    };
    format!("| {sides} | {} | {words} | {} | {of_cases} |\n", comparison.what, range(*mean))
}

/// Lists peers that are missing, parts that failed, and comparisons without figures.
fn missing(text: &mut String, record: &Record) -> anyhow::Result<()> {
    text.push_str("## What was not measured\n\n");
    let mut lines: Vec<String> =
        record.missing_peers.iter().map(|(name, how)| format!("{name} is not here: `{how}`")).collect();
    let failed = record.turns.iter().filter_map(|turn| Some((turn, turn.failure.as_ref()?)));
    lines.extend(failed.map(|(turn, why)| format!("**{}**, turn {}, failed: {why}", turn.part, turn.number)));
    lines.extend(record.left_out.iter().map(|(part, why)| format!("**{part}** was left out: {why}")));
    let said = record.turns.iter().flat_map(|turn| turn.missing.iter().map(move |why| format!("{}: {why}", turn.part)));
    lines.extend(said.collect::<BTreeSet<_>>());
    for group in groups()? {
        let without = group.comparisons.iter().filter(|one| one.ratios(record).is_none());
        lines.extend(without.map(|one| format!("no figures: {}: {}, {}", group.name, one.what, one.sides())));
    }
    if lines.is_empty() {
        text.push_str("Nothing: every part ran, and every peer was here.\n");
    }
    // A part's messages are text, not Markdown.
    lines.iter().try_for_each(|line| writeln!(text, "- {}", line.replace('<', "&lt;")))?;
    Ok(())
}

fn commands(text: &mut String, record: &Record) -> anyhow::Result<()> {
    text.push_str("\n## Commands\n\n| part | turn | seconds | command |\n|---|---|---|---|\n");
    for turn in &record.turns {
        let seconds = turn.seconds.map_or_else(|| "–".to_owned(), |seconds| format!("{seconds:.0}"));
        writeln!(text, "| {} | {} | {seconds} | `{}` |", turn.part, turn.number, turn.command)?;
    }
    Ok(())
}

/// Adds prose in lines of at most [`COLUMNS`], and an empty line.
fn paragraph(text: &mut String, prose: &str) {
    let mut used = 0;
    for word in prose.split_whitespace() {
        if used > 0 && used + 1 + word.len() > COLUMNS {
            text.push('\n');
            used = 0;
        } else if used > 0 {
            text.push(' ');
            used += 1;
        }
        text.push_str(word);
        used += word.len();
    }
    text.push_str("\n\n");
}

#[cfg(test)]
mod tests {
    use super::{super::comparisons::tests, *};
    use crate::line::Line;
    use crate::record::ABOUT;

    #[test]
    fn a_row_names_the_winner_and_the_factor() {
        let mut record = Record::default();
        record.add(Line::new([ABOUT, "", "2 CPUs of a machine", "machine", "s"], 1.8e9));
        for turn in 1..=2 {
            record.add(Line::new([ABOUT, "codec", "pagefold-bench codec", "turn", ""], f64::from(turn)));
            for (metric, ours) in [("compress_mb_s", 3.0), ("decompress_mb_s", 1.0)] {
                for (subject, value) in [("fold", ours), ("liblz4", 2.0)] {
                    record.add(Line::new(["codec", "text", subject, metric, "MB/s"], value));
                }
            }
            record.add(Line::new([ABOUT, "codec", "", "seconds", "s"], 60.0));
        }
        let page = results(&record, "the command").unwrap();
        for line in [
            "| fold / liblz4 | Compression | 50 % faster | 1.50× |  |",
            "|  | Decompression | **2.0× slower** | 0.50× |  |",
            "Of 2 comparisons pagefold is better in 1, the peer in 1; 0 show no difference.",
        ] {
            assert!(page.contains(line), "{line}: {page}");
        }
        assert!(page.starts_with("# Results\n\n`the command` made this page."), "{page}");
        assert!(page.ends_with("|\n") && !page.contains("\n\n\n"), "{page}");
        let prose = page.lines().filter(|line| !line.starts_with('|'));
        assert!(prose.clone().all(|line| line.len() <= COLUMNS), "{page}");
    }

    #[test]
    fn the_page_has_every_comparison_and_what_is_missing() {
        let mut record = Record::default();
        record.add(Line::new([ABOUT, "nbdkit", "apt-get install nbdkit", "peer", ""], 0.0));
        record.add(Line::new([ABOUT, "fio", "/usr/bin/fio", "peer", ""], 1.0));
        record.add(Line::new([ABOUT, "image", "pagefold-bench image --json", "turn", ""], 1.0));
        record.add(Line::new([ABOUT, "image", "squashfuse: <not> installed", "missing", ""], 0.0));
        record.add(Line::new([ABOUT, "image", "killed by signal 9", "failed", ""], 0.0));
        record.add(Line::new([ABOUT, "remote", "no time is left", "left_out", ""], 0.0));
        let empty = whole(&record, "c").unwrap();
        for said in ["apt-get install nbdkit", "squashfuse: &lt;not> installed", "killed by signal 9", "no figures: "] {
            assert!(empty.contains(said), "{said}: {empty}");
        }
        assert!(!empty.contains("/usr/bin/fio"), "{empty}");
        let first: Vec<&str> = empty.lines().take(8).collect();
        assert!(first.contains(&"**Left out**: remote."), "{empty}");
        tests::whole().into_iter().for_each(|line| record.add(line));
        let page = whole(&record, "c").unwrap();
        assert!(!page.contains("no figures: "), "{page}");
        for group in groups().unwrap() {
            assert!(page.contains(&format!("\n## {}\n\n", group.name)));
            let link = format!("[{}](#{})", group.name, anchor(&group.name));
            assert!(page.lines().take(16).collect::<Vec<_>>().join(" ").contains(&link), "{link}: {page}");
            for comparison in &group.comparisons {
                let (first, next) = (format!("| {} | ", comparison.sides()), format!(" | {} | ", comparison.what));
                assert!(page.contains(&first) && page.contains(&next), "{first}{next}");
            }
        }
    }
}

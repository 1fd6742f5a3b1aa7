//! The verdicts of a run as a Markdown page, for docs/results.md.

use std::fmt::Write;

use super::{
    comparisons::GROUPS,
    record::Record,
    run::minutes,
    verdict::{Verdict, Winner, verdicts},
    words::{between, difference, plural, range, utc},
};

/// Maximum length of a line of prose, in bytes.
const COLUMNS: usize = 100;

/// Returns the whole page. `command` is the command that makes it.
pub(super) fn results(record: &Record, command: &str) -> String {
    let verdicts = verdicts(record);
    let mut text = "# Results\n\n".to_owned();
    paragraph(&mut text, &head(record, command));
    paragraph(&mut text, &tally(&verdicts));
    paragraph(
        &mut text,
        "A row gives the median over turns of the geometric mean over cases, then the range of the turns as factors \
         (above 1 pagefold is better), then the worst and the best case. **Bold: the peer is better.** [report.md](report.md) \
         describes the method, and what differs between pagefold and each peer.",
    );
    for group in GROUPS {
        let rows: Vec<&Verdict> = verdicts.iter().filter(|verdict| verdict.comparison.group == group.name).collect();
        if rows.is_empty() {
            continue;
        }
        let _ = writeln!(text, "## {}\n", group.name);
        paragraph(&mut text, group.note);
        text.push_str("| | pagefold / peer | pagefold | turns | cases |\n|---|---|---|---|---|\n");
        for verdict in rows {
            text.push_str(&row(verdict));
        }
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

fn head(record: &Record, command: &str) -> String {
    let seconds: f64 = record.turns.iter().filter_map(|turn| turn.seconds).sum();
    let turns = record.turns.iter().map(|turn| turn.number).max().unwrap_or(0);
    let began = record.began_s.map_or_else(String::new, |began_s| format!(" It began at {}.", utc(began_s)));
    format!(
        "`{command}` made this page. Its figures are those of one run of `pagefold-bench report` on this machine: {}.{began} It took \
         {turns} {} and {} of measuring. pagefold and its peers took turns within the run.",
        record.machine,
        plural(turns as usize, "turn"),
        minutes(seconds),
    )
}

fn tally(verdicts: &[Verdict]) -> String {
    let count = |winner| verdicts.iter().filter(|verdict| verdict.winner() == winner).count();
    format!(
        "Of {} comparisons pagefold is better in {}, the peer in {}; {} show no difference.",
        verdicts.len(),
        count(Winner::Pagefold),
        count(Winner::Peer),
        count(Winner::Neither)
    )
}

fn row(verdict: &Verdict) -> String {
    let Verdict { comparison, ratio, cases, worst, best } = verdict;
    let words = difference(comparison.measure, ratio.median);
    let words = if verdict.winner() == Winner::Peer { format!("**{words}**") } else { words };
    let of_cases = if *cases > 1 { format!("{cases}: {}", between(worst.ratio, best.ratio)) } else { String::new() };
    format!(
        "| {} | {} / {} | {words} | {} | {of_cases} |\n",
        comparison.what,
        comparison.ours_name,
        comparison.peer_name,
        range(*ratio)
    )
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
    use super::{super::record::Line, *};

    #[test]
    fn a_row_says_who_is_better_and_by_how_much() {
        let mut record = Record::default();
        record.add(Line::about("", "2 CPUs of a machine", "machine", 1.8e9, "s"));
        for turn in 1..=2 {
            record.add(Line::about("codec", "pagefold-bench codec", "turn", f64::from(turn), "turn"));
            for (metric, ours) in [("compress_mb_s", 3.0), ("decompress_mb_s", 1.0)] {
                for (subject, value) in [("fold", ours), ("liblz4", 2.0)] {
                    let line = Line::about("text", subject, metric, value, "MB/s");
                    record.add(Line { bench: "codec".to_owned(), ..line });
                }
            }
            record.add(Line::about("codec", "", "seconds", 60.0, "s"));
        }
        let page = results(&record, "the command");
        for line in [
            "| Compression | fold / liblz4 | 50 % faster | 1.50× |  |",
            "| Decompression | fold / liblz4 | **2.0× slower** | 0.50× |  |",
            "Of 2 comparisons pagefold is better in 1, the peer in 1; 0 show no difference.",
        ] {
            assert!(page.contains(line), "{line}: {page}");
        }
        assert!(page.starts_with("# Results\n\n`the command` made this page."), "{page}");
        assert!(page.ends_with("|\n"));
        let prose = page.lines().filter(|line| !line.starts_with('|'));
        assert!(prose.clone().all(|line| line.len() <= COLUMNS), "{page}");
    }
}

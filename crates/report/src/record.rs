//! The figures of a run by turn, and the run's description of itself.
//!
//! Figures of the bench `report` describe the run: which turn of a part begins, how long it took,
//! what failed, which peers are missing.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufRead, BufReader},
    path::Path,
};

use anyhow::{Context, bail, ensure};

use super::line::{Line, geometric_mean, median};

/// The bench name of lines that describe a run.
pub(crate) const ABOUT: &str = "report";

/// Identifies a figure.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) bench: String,
    pub(crate) case: String,
    pub(crate) subject: String,
    pub(crate) metric: String,
}

/// The values of a figure by turn.
#[derive(Clone, Debug, Default)]
pub(crate) struct Series {
    pub(crate) unit: String,
    values: BTreeMap<u32, Vec<f64>>,
}

impl Series {
    /// Returns one value per turn: the median of those that the bench gave in it.
    pub(crate) fn by_turn(&self) -> impl Iterator<Item = (u32, f64)> + '_ {
        self.values.iter().map(|(&turn, values)| (turn, median(values)))
    }

    pub(crate) fn of_turn(&self, turn: u32) -> Option<f64> {
        self.values.get(&turn).map(|values| median(values))
    }

    pub(crate) fn spread(&self) -> Spread {
        Spread::of(&self.by_turn().map(|(_, value)| value).collect::<Vec<_>>())
    }
}

/// The median and the range of the turns' values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) turns: usize,
}

impl Spread {
    pub(crate) fn of(values: &[f64]) -> Self {
        Self {
            median: median(values),
            low: values.iter().copied().fold(f64::NAN, f64::min),
            high: values.iter().copied().fold(f64::NAN, f64::max),
            turns: values.len(),
        }
    }
}

/// The course of one turn of a part.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Turn {
    pub(crate) part: String,
    pub(crate) number: u32,
    pub(crate) command: String,
    /// `None` while it runs, or if the run ended during it.
    pub(crate) seconds: Option<f64>,
    pub(crate) failure: Option<String>,
    /// What the part reported as not measurable.
    pub(crate) missing: Vec<String>,
}

/// Everything known about a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    pub(crate) series: BTreeMap<Key, Series>,
    pub(crate) turns: Vec<Turn>,
    /// Peers that are not here, and how to get them.
    pub(crate) missing_peers: Vec<(String, String)>,
    /// Description of the machine.
    pub(crate) machine: String,
    /// Start of the run, in seconds since 1970.
    pub(crate) began_s: Option<u64>,
    /// Why the run ended before its plan did.
    pub(crate) cut_short: Option<String>,
    /// Parts that did not begin, with the reason.
    pub(crate) left_out: Vec<(String, String)>,
    turn: Option<u32>,
}

impl Record {
    /// Reads the lines of a run or of a bench. The last line may be incomplete, as in a run that
    /// was killed.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let name = path.display();
        let mut file = BufReader::new(File::open(path).with_context(|| format!("cannot open {name}"))?);
        let (mut record, mut text) = (Self::default(), String::new());
        for number in 1.. {
            text.clear();
            if file.read_line(&mut text).with_context(|| format!("cannot read {name}"))? == 0 {
                break;
            }
            match Line::parse(&text) {
                _ if text.trim().is_empty() => {}
                Ok(line) => record.add(line),
                Err(_) if !text.ends_with('\n') => break,
                Err(error) => bail!("{name}, line {number}: {error:#}; expected JSON lines of a report or a bench"),
            }
        }
        ensure!(!record.series.is_empty() || !record.turns.is_empty(), "{name} has no figures");
        Ok(record)
    }

    /// Adds a line of a run.
    pub(crate) fn add(&mut self, line: Line) {
        if line.bench == ABOUT {
            self.describe(line);
            return;
        }
        let Line { bench, case, subject, metric, value, unit } = line;
        let series = self.series.entry(Key { bench, case, subject, metric }).or_default();
        // Lines that were not written by a report are numbered as turns too: a bench's successive
        // rounds.
        let turn = self.turn.unwrap_or(series.values.len() as u32 + 1);
        series.unit = unit;
        series.values.entry(turn).or_default().push(value);
    }

    fn describe(&mut self, line: Line) {
        let Line { case, subject, metric, value, .. } = line;
        let current = self.turns.iter_mut().rfind(|turn| turn.part == case);
        match (metric.as_str(), current) {
            ("turn", _) => {
                // The cast clamps to the range of turn numbers.
                let number = value as u32;
                self.turn = Some(number);
                let (part, command) = (case, subject);
                self.turns.push(Turn { part, number, command, seconds: None, failure: None, missing: Vec::new() });
            }
            ("seconds", Some(turn)) => turn.seconds = Some(value),
            ("failed", Some(turn)) => turn.failure = Some(subject),
            ("missing", Some(turn)) if !turn.missing.contains(&subject) => turn.missing.push(subject),
            ("left_out", _) => self.left_out.push((case, subject)),
            ("peer", _) if value == 0.0 => self.missing_peers.push((case, subject)),
            ("machine", _) => (self.machine, self.began_s) = (subject, Some(value as u64)),
            ("cut_short", _) => self.cut_short = Some(subject),
            _ => {}
        }
    }

    /// Returns the figures whose bench, case, subject and metric match.
    pub(crate) fn matching<'a>(&'a self, pick: &'a Pick<'_>) -> impl Iterator<Item = (&'a Key, &'a Series)> {
        self.series.iter().filter(|(key, _)| pick.takes(key))
    }

    /// Returns the geometric mean over the cases that `pick` matches. Each case counts as the sum
    /// of its figures, each figure as the median of its turns.
    pub(crate) fn mean(&self, pick: &Pick<'_>) -> Option<f64> {
        let mut cases: BTreeMap<&str, f64> = BTreeMap::new();
        for (key, series) in self.matching(pick) {
            *cases.entry(&key.case).or_default() += series.spread().median;
        }
        let sums: Vec<f64> = cases.into_values().filter(|&sum| sum > 0.0).collect();
        (!sums.is_empty()).then(|| geometric_mean(&sums))
    }
}

/// Selects figures of a bench. In `case` and `metric`, `*` matches any text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pick<'a> {
    pub(crate) bench: &'a str,
    pub(crate) case: &'a str,
    pub(crate) subject: &'a str,
    pub(crate) metric: &'a str,
}

impl Pick<'_> {
    fn takes(&self, key: &Key) -> bool {
        key.bench == self.bench
            && key.subject == self.subject
            && fits(self.metric, &key.metric)
            && fits(self.case, &key.case)
    }
}

/// Whether `text` matches `pattern`, in which each `*` matches any text.
fn fits(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut last = None;
    for part in parts {
        if let Some(middle) = last.replace(part) {
            // The earliest match leaves the most text for the following parts.
            let Some(at) = rest.find(middle) else { return false };
            rest = &rest[at + middle.len()..];
        }
    }
    last.map_or(rest.is_empty(), |end| rest.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(case: &str, value: f64) -> Line {
        Line::new(["b", case, "s", "m", "MB/s"], value)
    }

    const PICK: Pick<'static> = Pick { bench: "b", case: "*", subject: "s", metric: "m" };

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, text) in
            [("*", ""), ("a*", "a"), ("a*c", "abc"), ("*/4k/*", "x/4k/1"), ("a*b*a", "aba"), ("a", "a")]
        {
            assert!(fits(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [("a", "ab"), ("a*a", "a"), ("*/4k/1", "x/4k/2"), ("a*b*a", "ab"), ("", "a")] {
            assert!(!fits(pattern, text), "{pattern} {text}");
        }
    }

    #[test]
    fn turns_have_a_median_and_a_spread() {
        let mut record = Record::default();
        for (turn, values) in [(1.0, [10.0, 12.0]), (2.0, [20.0, 20.0]), (3.0, [14.0, 14.0])] {
            record.add(Line::new([ABOUT, "part", "command", "turn", ""], turn));
            values.into_iter().for_each(|value| record.add(line("c", value)));
        }
        let series = record.series.values().next().unwrap();
        assert_eq!(series.spread(), Spread { median: 14.0, low: 11.0, high: 20.0, turns: 3 });
        assert_eq!(record.turns.len(), 3);
    }

    #[test]
    fn lines_of_benches_alone_are_turns_one_after_another() {
        let mut record = Record::default();
        [2.0, 8.0].into_iter().for_each(|value| record.add(line("c", value)));
        record.add(line("d", 20.0));
        assert_eq!(record.series.values().map(|series| series.spread().turns).collect::<Vec<_>>(), [2, 1]);
        assert!((record.mean(&PICK).unwrap() - 10.0).abs() < 1e-9);
        assert_eq!(record.mean(&Pick { case: "x*", ..PICK }), None);
    }

    #[test]
    fn a_file_may_end_within_a_line_but_other_lines_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.jsonl");
        std::fs::write(&path, format!("{}\n\n{}", line("c", 1.0).json(), r#"{"bench":"b","ca"#)).unwrap();
        assert_eq!(Record::read(&path).unwrap().series.len(), 1);
        std::fs::write(&path, format!("{}\nnonsense\n", line("c", 1.0).json())).unwrap();
        let error = format!("{:#}", Record::read(&path).unwrap_err());
        assert!(error.contains("line 2"), "{error}");
        std::fs::write(&path, "").unwrap();
        assert!(Record::read(&path).is_err());
    }
}

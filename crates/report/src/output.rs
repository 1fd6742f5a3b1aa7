//! The destination of a bench's figures: lines of JSON, or tables and verdicts for a reader.

use std::{
    collections::BTreeMap,
    env,
    fmt::{Display, Write},
    time::{SystemTime, UNIX_EPOCH},
};

use crate::machine;
use crate::{line::Line, record::Record, targets::targets, words};

/// How figures that are measured more than once are combined.
#[derive(Clone, Copy, PartialEq)]
pub enum Rounds {
    /// Figures are measured once: lines of JSON appear as they are measured.
    Once,
    /// The median counts. Ratios are of figures of the same round.
    Median,
    /// The best counts.
    Best,
}

/// The subject of figures when no other is named.
const SUBJECT: &str = "pagefold";

/// Metrics with these units are better if they are greater.
const MORE_IS_BETTER: [&str; 6] = ["MB/s", "Mop/s", "1/s", "requests/s", "share", "GB"];

/// Collects a bench's figures, and prints them when it is dropped.
pub struct Output {
    bench: &'static str,
    json: bool,
    rounds: Rounds,
    record: Record,
    best: BTreeMap<(String, String, String), Line>,
    /// In the order of their first figures.
    subjects: Vec<String>,
    skipped: Vec<String>,
    /// Targets apply to the cases whose names begin with this.
    judged: &'static str,
}

impl Output {
    /// Creates an output for the figures of a bench, and prints the bench and the machine.
    pub fn new(bench: &'static str, json: bool, rounds: Rounds) -> Self {
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let command: Vec<String> = env::args().skip(1).collect();
        let head = format!("pagefold-bench {}\n{}, {}", command.join(" "), words::utc(now_s), machine::description());
        if json {
            eprintln!("{head}");
        } else {
            println!("{head}");
        }
        let (record, best, subjects, skipped) = Default::default();
        Self { bench, json, rounds, record, best, subjects, skipped, judged: "" }
    }

    /// Restricts targets to the cases whose names begin with `prefix`.
    pub fn judge_only(&mut self, prefix: &'static str) {
        self.judged = prefix;
    }

    /// Outputs a figure of pagefold.
    pub fn put(&mut self, case: &str, metric: &str, value: f64, unit: &str) {
        self.put_of(SUBJECT, case, metric, value, unit);
    }

    /// Outputs a figure of a subject, unless it is not finite because nothing was measured. A
    /// metric that begins with `=` is for the tables and the verdicts alone.
    pub fn put_of(&mut self, subject: &str, case: &str, metric: &str, value: f64, unit: &str) {
        if !value.is_finite() {
            return;
        }
        if !self.subjects.iter().any(|other| other == subject) {
            self.subjects.push(subject.to_owned());
        }
        let line = Line::new([self.bench, case, subject, metric, unit], value);
        match self.rounds {
            Rounds::Best => {
                let more = MORE_IS_BETTER.contains(&unit);
                let key = [case, metric, subject].map(str::to_owned).into();
                let best = self.best.entry(key).or_insert_with(|| line.clone());
                if if more { value > best.value } else { value < best.value } {
                    *best = line;
                }
            }
            Rounds::Once if self.json => println!("{}", line.json()),
            _ => self.record.add(line),
        }
        // The verdicts need the figures that are printed already.
        if self.rounds == Rounds::Once && self.json {
            self.record.add(Line::new([self.bench, case, subject, metric, unit], value));
        }
    }

    /// Reports what cannot be measured on this machine, and why.
    pub fn skip(&mut self, what: &str, why: impl Display) {
        let text = format!("{what}: {why:#}");
        if !self.skipped.contains(&text) {
            eprintln!("SKIPPED: {text}");
            self.skipped.push(text);
        }
    }

    /// Returns the figures so far, by case and metric.
    fn table(&self) -> Result<String, std::fmt::Error> {
        let mut metrics: BTreeMap<&str, BTreeMap<&str, BTreeMap<&str, f64>>> = BTreeMap::new();
        for (key, series) in &self.record.series {
            let cases = metrics.entry(&key.metric).or_default();
            cases.entry(&key.case).or_default().insert(&key.subject, series.spread().median);
        }
        let (mut text, empty) = (String::new(), BTreeMap::new());
        for (metric, cases) in &metrics {
            let has = |subject: &&String| cases.values().any(|values| values.contains_key(subject.as_str()));
            let subjects: Vec<&String> = self.subjects.iter().filter(has).collect();
            if let ([subject], 1) = (&subjects[..], cases.len()) {
                let (case, values) = cases.iter().next().unwrap_or((metric, &empty));
                let value = values.get(subject.as_str()).copied().unwrap_or(f64::NAN);
                write!(text, "\n{metric:40} {:>14}  {case}", words::figure(value))?;
                continue;
            }
            let width = cases.keys().map(|case| case.len()).max().unwrap_or(0).max(metric.len());
            write!(text, "\n\n{metric:width$}")?;
            subjects.iter().try_for_each(|subject| write!(text, " {subject:>14}"))?;
            for (case, values) in cases {
                write!(text, "\n{case:width$}")?;
                for subject in &subjects {
                    let value = values.get(subject.as_str()).map_or_else(|| "-".to_owned(), |&one| words::figure(one));
                    write!(text, " {value:>0$}", subject.len().max(14))?;
                }
            }
        }
        text.push('\n');
        Ok(text)
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        for line in std::mem::take(&mut self.best).into_values() {
            self.record.add(line);
        }
        if self.json && self.rounds != Rounds::Once {
            for (key, series) in self.record.series.iter().filter(|(key, _)| !key.metric.starts_with('=')) {
                let value = series.spread().median;
                println!(
                    "{}",
                    Line::new([&key.bench, &key.case, &key.subject, &key.metric, &series.unit], value).json()
                );
            }
        }
        // Writing to a string cannot fail.
        let mut text = if self.json { String::new() } else { self.table().unwrap_or_default() };
        self.skipped.iter().for_each(|skipped| text.push_str(&format!("\nnot here: {skipped}")));
        self.record.series.retain(|key, _| key.case.starts_with(self.judged));
        let verdicts: Vec<String> =
            targets(self.bench, machine::cpus()).filter_map(|target| target.verdict(&self.record)).collect();
        if !verdicts.is_empty() {
            text.push_str(&format!("\ntargets\n{}", verdicts.join("\n")));
        }
        if self.json { eprintln!("{text}") } else { println!("{text}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_of_the_rounds_stands_in_the_table() {
        let mut output = Output::new("none", false, Rounds::Best);
        for (speed, time) in [(1.0, 1.0), (3.0, 3.0), (2.0, 2.0)] {
            output.put_of("a", "case", "speed", speed, "MB/s");
            output.put_of("b", "case", "time", time, "s");
            output.put("other", "speed", f64::NAN, "MB/s");
            output.put_of("b", "another", "speed", 0.5, "MB/s");
        }
        let best: Vec<f64> = output.best.values().map(|line| line.value).collect();
        assert_eq!(best, [0.5, 3.0, 1.0]);
        std::mem::take(&mut output.best).into_values().for_each(|line| output.record.add(line));
        let table = output.table().unwrap();
        assert!(table.contains("case             3.000              -") && !table.contains("\nother"), "{table}");
        assert!(table.contains("time                                              1.000  case"), "{table}");
    }
}

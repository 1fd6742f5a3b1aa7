//! The figures of a run, and the targets of some of them.

use crate::figure::Figure;

/// The bound for a figure.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    AtLeast(f64),
    AtMost(f64),
}

impl Target {
    fn is_met(self, value: f64) -> bool {
        match self {
            Target::AtLeast(bound) => value >= bound,
            Target::AtMost(bound) => value <= bound,
        }
    }

    /// Returns whether a value meets it, and what it is, in words.
    pub(crate) fn verdict(self, value: f64) -> String {
        format!("{} ({})", if self.is_met(value) { "PASS" } else { "miss" }, self.text())
    }

    fn text(self) -> String {
        match self {
            Target::AtLeast(bound) => format!("≥ {bound}"),
            Target::AtMost(bound) => format!("≤ {bound}"),
        }
    }
}

/// The destination of a bench's figures.
pub(crate) struct Output {
    bench: &'static str,
    json: bool,
    verdicts: Vec<String>,
}

/// The subject of figures when no other is named.
const SUBJECT: &str = "pagefold";

impl Output {
    pub(crate) fn new(bench: &'static str, json: bool) -> Self {
        Self { bench, json, verdicts: Vec::new() }
    }

    pub(crate) fn put(&self, case: &str, metric: &str, value: f64, unit: &str) {
        if self.json {
            Figure { bench: self.bench, case, subject: SUBJECT, metric, value, unit }.print_json();
        } else {
            println!("{case:44} {metric:34} {value:16.4} {unit}");
        }
    }

    /// Puts a figure of a peer.
    pub(crate) fn put_peer(&self, subject: &str, case: &str, metric: &str, value: f64, unit: &str) {
        if self.json {
            Figure { bench: self.bench, case, subject, metric, value, unit }.print_json();
        } else {
            println!("{:44} {metric:34} {value:16.4} {unit}", format!("{case} {subject}"));
        }
    }

    /// Reports what cannot be measured on this machine, and why.
    pub(crate) fn skip(&mut self, case: &str, why: &str) {
        eprintln!("SKIPPED: {case}: {why}");
        self.verdicts.push(format!("not here {case}: {why}"));
    }

    /// Puts a figure and checks it against its target.
    pub(crate) fn judge(&mut self, case: &str, metric: &str, value: f64, unit: &str, target: Target) {
        self.put(case, metric, value, unit);
        let word = if target.is_met(value) { "PASS" } else { "miss" };
        self.verdicts.push(format!("{word} {case}: {metric} {}: {value:.4} {unit}", target.text()));
    }

    /// Prints which targets were met.
    pub(crate) fn verdicts(&self) {
        let text = format!("\ntargets\n{}", self.verdicts.join("\n"));
        if self.json { eprintln!("{text}") } else { println!("{text}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_itself_is_met_and_no_figure_is_not() {
        assert!(Target::AtLeast(0.8).is_met(0.8) && Target::AtMost(1.0).is_met(1.0));
        assert!(!Target::AtLeast(0.8).is_met(0.79) && !Target::AtMost(1.0).is_met(1.01));
        assert!(!Target::AtLeast(0.8).is_met(f64::NAN) && !Target::AtMost(1.0).is_met(f64::NAN));
    }
}

//! Where a run has a figure of a table or a chart.

use serde::Deserialize;

use crate::record::{Pick, Record};

/// A figure computed from a run's. In texts, `{}` stands for a row's key and `{metric}` for its metric.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Cell {
    pub(super) bench: String,
    case: String,
    pub(super) subject: String,
    take: Take,
    metric: String,
    /// A factor for the unit, or the MB of [`Take::Coding`].
    #[serde(default = "one")]
    by: f64,
}

fn one() -> f64 {
    1.0
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Take {
    /// The metric times the factor.
    Scaled,
    /// The reciprocal of the metric.
    Inverse,
    /// The metric in percent of `orig_bytes`.
    Percent,
    /// Seconds to compress and decompress this many MB.
    Coding,
}

impl Cell {
    pub(super) fn value(&self, record: &Record, key: &str, row_metric: &str) -> Option<f64> {
        let [case, subject, metric] = [&self.case, &self.subject, &self.metric]
            .map(|text| text.replace("{}", key).replace("{metric}", row_metric));
        let mean = |metric: &str| record.mean(&Pick { bench: &self.bench, case: &case, subject: &subject, metric });
        Some(match self.take {
            Take::Scaled => mean(&metric)? * self.by,
            Take::Inverse => 1.0 / mean(&metric)?,
            Take::Percent => mean(&metric)? * 100.0 / mean("orig_bytes")?,
            Take::Coding => self.by / mean("compress_mb_s")? + self.by / mean("decompress_mb_s")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::Line;

    #[test]
    fn cells_are_made_of_a_runs_figures() {
        let mut record = Record::default();
        for (metric, value) in
            [("compress_mb_s", 100.0), ("decompress_mb_s", 400.0), ("ratio", 0.5), ("orig_bytes", 50.0)]
        {
            record.add(Line::new(["codec", "text", "lz4", metric, ""], value));
        }
        let value = |take, metric: &str, by| {
            let [bench, case, subject] = ["codec", "*", "{}"].map(str::to_owned);
            Cell { bench, case, subject, take, metric: metric.to_owned(), by }.value(&record, "lz4", "ratio")
        };
        for (take, metric, by, expected) in [
            (Take::Coding, "", 400.0, 5.0),
            (Take::Inverse, "ratio", 1.0, 2.0),
            (Take::Scaled, "{metric}", 10.0, 5.0),
            (Take::Percent, "ratio", 1.0, 1.0),
        ] {
            assert!((value(take, metric, by).unwrap() - expected).abs() < 1e-9, "{take:?}");
        }
        assert_eq!(value(Take::Scaled, "absent", 1.0), None);
    }
}

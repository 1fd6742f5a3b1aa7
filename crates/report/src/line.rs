//! One figure, as a line of JSON.

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

/// A measured figure. Its fields are the keys of the line, in the documented order; a line's unknown
/// keys are ignored.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Line {
    pub(crate) bench: String,
    pub(crate) case: String,
    pub(crate) subject: String,
    pub(crate) metric: String,
    pub(crate) value: f64,
    pub(crate) unit: String,
}

impl Line {
    pub(crate) fn new([bench, case, subject, metric, unit]: [&str; 5], value: f64) -> Self {
        let [bench, case, subject, metric, unit] = [bench, case, subject, metric, unit].map(str::to_owned);
        Self { bench, case, subject, metric, value, unit }
    }

    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        let line: Self = serde_json::from_str(text).context("not a figure")?;
        ensure!(line.value.is_finite(), "the value is not a number");
        Ok(line)
    }

    pub(crate) fn json(&self) -> String {
        // Text and numbers can always be serialized.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Returns the middle value, or the mean of the two middle ones; NaN if `values` is empty.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match (sorted.get(middle), sorted.len() % 2) {
        (Some(&value), 1) => value,
        (Some(&value), _) => f64::midpoint(sorted[middle - 1], value),
        (None, _) => f64::NAN,
    }
}

/// Returns the geometric mean of positive values; NaN if `values` is empty.
pub(crate) fn geometric_mean(values: &[f64]) -> f64 {
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_a_line_of_json_in_the_promised_order() {
        let figure = Line::new(["b", "a \"c\"/4k", "s", "m", "MB/s"], 0.5);
        let line = figure.json();
        assert_eq!(line, r#"{"bench":"b","case":"a \"c\"/4k","subject":"s","metric":"m","value":0.5,"unit":"MB/s"}"#);
        assert_eq!(Line::parse(&line).unwrap(), figure);
    }

    #[test]
    fn numbers_are_read_as_benches_write_them() {
        for (text, value) in [("1", 1.0), ("-0.5", -0.5), ("1e3", 1000.0), ("0.30000000000000004", 0.1 + 0.2)] {
            let json = format!(r#"{{"bench":"b","case":"c","subject":"s","metric":"m","value":{text},"unit":"x"}}"#);
            let line = Line::parse(&json).unwrap();
            assert_eq!(line.value, value);
            assert_eq!(Line::parse(&line.json()).unwrap(), line);
        }
        let with = |value: &str| {
            format!(r#"{{"bench":"b","case":"c","subject":"s","metric":"m","value":{value},"unit":"x"}}"#)
        };
        for wrong in ["", "{}", "1", &with("\"1\""), &with("1e999")] {
            assert!(Line::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_mean_is_geometric() {
        assert!(geometric_mean(&[]).is_nan());
        assert!((geometric_mean(&[0.5, 2.0]) - 1.0).abs() < 1e-12);
    }
}

//! A bench's results, one figure per line.

use serde_json::Value;

/// One measured figure.
pub(crate) struct Figure<'a> {
    pub(crate) bench: &'a str,
    pub(crate) case: &'a str,
    pub(crate) subject: &'a str,
    pub(crate) metric: &'a str,
    pub(crate) value: f64,
    pub(crate) unit: &'a str,
}

impl Figure<'_> {
    /// Prints the figure as a line of JSON. A value that is not finite, because nothing was
    /// measured, prints nothing.
    pub(crate) fn print_json(&self) {
        if self.value.is_finite() {
            println!("{}", self.json());
        }
    }

    /// Formats the figure with its keys in the documented order, which `serde_json`'s maps do not
    /// keep.
    pub(crate) fn json(&self) -> String {
        let text = |text: &str| Value::from(text).to_string();
        format!(
            r#"{{"bench":{},"case":{},"subject":{},"metric":{},"value":{},"unit":{}}}"#,
            text(self.bench),
            text(self.case),
            text(self.subject),
            text(self.metric),
            Value::from(self.value),
            text(self.unit),
        )
    }
}

/// Returns the middle value, or the mean of the two middle ones; NaN if `values` is empty.
pub(crate) fn median(values: &[f64]) -> f64 {
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
        let figure = Figure { bench: "b", case: "a \"c\"/4k", subject: "s", metric: "m", value: 0.5, unit: "MB/s" };
        let line = figure.json();
        assert_eq!(line, r#"{"bench":"b","case":"a \"c\"/4k","subject":"s","metric":"m","value":0.5,"unit":"MB/s"}"#);
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap()["case"], figure.case);
    }

    #[test]
    fn the_mean_is_geometric() {
        assert!(geometric_mean(&[]).is_nan());
        assert!((geometric_mean(&[0.5, 2.0]) - 1.0).abs() < 1e-12);
    }
}

//! The two formats: OpenMetrics 1.0 and the Prometheus text format 0.0.4.
//!
//! ```text
//!                      OpenMetrics                     Prometheus
//! # TYPE of a counter  without _total                  with _total
//! # TYPE of an info    info, without _info             gauge, with _info
//! # UNIT               if the name ends in a unit      -
//! # EOF                at the end                      -
//! ```
//!
//! Samples are the same in both.

use std::{borrow::Cow, fmt::Write};

/// Units that names end in.
const UNITS: [&str; 3] = ["seconds", "bytes", "ratio"];

/// A format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// The Prometheus text format 0.0.4.
    Prometheus,
}

impl Format {
    /// Returns the media type of a text in this format.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// The kind of a family's samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Values that go up and down.
    Gauge,
    /// Sums that only grow. Their names have `_total` in addition to that of the family.
    Counter,
    /// Texts, as labels. Their names have `_info` in addition.
    Info,
    /// Numbers of values below bounds.
    Histogram,
    /// Numbers of values, and their sums.
    Summary,
}

impl Kind {
    fn suffix(self) -> &'static str {
        match self {
            Self::Counter => "_total",
            Self::Info => "_info",
            Self::Gauge | Self::Histogram | Self::Summary => "",
        }
    }

    fn name(self, format: Format) -> &'static str {
        match (self, format) {
            (Self::Gauge, _) | (Self::Info, Format::Prometheus) => "gauge",
            (Self::Counter, _) => "counter",
            (Self::Info, Format::OpenMetrics) => "info",
            (Self::Histogram, _) => "histogram",
            (Self::Summary, _) => "summary",
        }
    }
}

/// A value of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A whole number.
    Whole(u64),
    /// Any number.
    Float(f64),
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Whole(value)
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Float(value)
    }
}

/// A name and a value.
type Label<'a> = (&'a str, &'a str);

/// Metrics as a text.
#[derive(Debug)]
pub struct Text {
    format: Format,
    out: String,
}

impl Text {
    /// Creates an empty text.
    pub fn new(format: Format) -> Self {
        Self { format, out: String::new() }
    }

    /// Begins a family, whose samples follow. Its name has no suffix of its kind, and ends in its unit if
    /// it has one: `seconds`, `bytes` or `ratio`.
    pub fn family<'a>(&'a mut self, name: &'a str, kind: Kind, help: &str) -> Family<'a> {
        let Self { format, out } = self;
        let suffix = if *format == Format::Prometheus { kind.suffix() } else { "" };
        line(out, &["# TYPE ", name, suffix, " ", kind.name(*format)]);
        let unit = UNITS.iter().find(|unit| name.strip_suffix(**unit).is_some_and(|rest| rest.ends_with('_')));
        if let (Format::OpenMetrics, Some(unit)) = (*format, unit) {
            line(out, &["# UNIT ", name, " ", unit]);
        }
        line(out, &["# HELP ", name, suffix, " ", &escaped(help)]);
        Family { out, name, kind }
    }

    /// Returns the whole text.
    pub fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.out.push_str("# EOF\n");
        }
        self.out
    }
}

fn line(out: &mut String, parts: &[&str]) {
    parts.iter().for_each(|part| out.push_str(part));
    out.push('\n');
}

/// Returns a text between quotation marks, or a help text.
fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(['\\', '"', '\n']) {
        return text.into();
    }
    text.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n").into()
}

/// A family of metrics, for its samples.
#[derive(Debug)]
pub struct Family<'a> {
    out: &'a mut String,
    name: &'a str,
    kind: Kind,
}

impl Family<'_> {
    /// Adds a gauge or a counter.
    pub fn value(&mut self, labels: &[Label<'_>], value: impl Into<Value>) {
        self.sample(self.kind.suffix(), labels, None, value.into());
    }

    /// Adds an info.
    pub fn info(&mut self, labels: &[Label<'_>]) {
        self.sample(self.kind.suffix(), labels, None, Value::Whole(1));
    }

    /// Adds a summary without quantiles.
    pub fn summary(&mut self, labels: &[Label<'_>], count: u64, sum: f64) {
        self.sample("_count", labels, None, count.into());
        self.sample("_sum", labels, None, sum.into());
    }

    /// Adds a histogram: upper bounds in ascending order, the last one without a bound, and the number of
    /// values that are below each.
    pub fn histogram(&mut self, labels: &[Label<'_>], buckets: impl IntoIterator<Item = (Option<f64>, u64)>, sum: f64) {
        let mut all = 0;
        for (bound, count) in buckets {
            let bound = bound.map_or_else(|| "+Inf".to_owned(), float);
            self.sample("_bucket", labels, Some(("le", &bound)), count.into());
            all = count;
        }
        self.sample("_count", labels, None, all.into());
        self.sample("_sum", labels, None, sum.into());
    }

    fn sample(&mut self, suffix: &str, labels: &[Label<'_>], last: Option<Label<'_>>, value: Value) {
        let Self { out, name, .. } = self;
        out.push_str(name);
        out.push_str(suffix);
        for (number, (label, value)) in labels.iter().copied().chain(last).enumerate() {
            out.push(if number == 0 { '{' } else { ',' });
            out.push_str(label);
            out.push_str("=\"");
            out.push_str(&escaped(value));
            out.push('"');
        }
        if !labels.is_empty() || last.is_some() {
            out.push('}');
        }
        // Writing to a string cannot fail.
        let _ = match value {
            Value::Whole(value) => writeln!(out, " {value}"),
            Value::Float(value) => writeln!(out, " {}", float(value)),
        };
    }
}

/// Returns a number in the form that OpenMetrics requires for bounds: 1.0, 0.0001, 1e-05.
fn float(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    if magnitude > 0.0 && magnitude < 1e-4 {
        let text = format!("{value:e}");
        let (mantissa, exponent) = text.split_once("e-").unwrap_or((&text, "0"));
        return format!("{mantissa}e-{exponent:0>2}");
    }
    format!("{value:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(format: Format) -> String {
        let mut text = Text::new(format);
        text.family("a_build", Kind::Info, "What it is.").info(&[("version", "1")]);
        text.family("a_requests", Kind::Counter, "Requests.").value(&[("disk", "q\"\\\n")], 7);
        text.family("a_memory_bytes", Kind::Gauge, "A \"\\\nb.").value(&[], 5);
        let mut family = text.family("a_time_seconds", Kind::Histogram, "Times.");
        family.histogram(&[("operation", "read")], [(Some(1e-6), 1), (Some(1.0), 3), (None, 4)], 5.5);
        text.family("b_time_seconds", Kind::Summary, "Times.").summary(&[], 2, 0.25);
        text.finish()
    }

    #[test]
    fn open_metrics_has_units_and_an_end() {
        let expected = r#"# TYPE a_build info
# HELP a_build What it is.
a_build_info{version="1"} 1
# TYPE a_requests counter
# HELP a_requests Requests.
a_requests_total{disk="q\"\\\n"} 7
# TYPE a_memory_bytes gauge
# UNIT a_memory_bytes bytes
# HELP a_memory_bytes A \"\\\nb.
a_memory_bytes 5
# TYPE a_time_seconds histogram
# UNIT a_time_seconds seconds
# HELP a_time_seconds Times.
a_time_seconds_bucket{operation="read",le="1e-06"} 1
a_time_seconds_bucket{operation="read",le="1.0"} 3
a_time_seconds_bucket{operation="read",le="+Inf"} 4
a_time_seconds_count{operation="read"} 4
a_time_seconds_sum{operation="read"} 5.5
# TYPE b_time_seconds summary
# UNIT b_time_seconds seconds
# HELP b_time_seconds Times.
b_time_seconds_count 2
b_time_seconds_sum 0.25
# EOF
"#;
        assert_eq!(written(Format::OpenMetrics), expected);
    }

    #[test]
    fn numbers_are_canonical() {
        let cases = [
            (0.0, "0.0"),
            (1.024e-6, "1.024e-06"),
            (3.2768e-5, "3.2768e-05"),
            (0.000131072, "0.000131072"),
            (34.359738368, "34.359738368"),
            (1e-12, "1e-12"),
            (f64::INFINITY, "+Inf"),
        ];
        for (value, text) in cases {
            assert_eq!(float(value), text);
        }
    }

    #[test]
    fn types_of_the_text_format_are_those_of_the_samples() {
        let text = written(Format::Prometheus);
        let types: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        let expected = [
            "a_build_info gauge",
            "a_requests_total counter",
            "a_memory_bytes gauge",
            "a_time_seconds histogram",
            "b_time_seconds summary",
        ];
        assert_eq!(types, expected);
        assert!(!text.contains("# UNIT") && !text.contains("# EOF"), "{text}");
        let samples = |text: String| text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect();
        let samples: [Vec<String>; 2] = [samples(text), samples(written(Format::OpenMetrics))];
        assert_eq!(samples[0], samples[1]);
    }
}

//! What a bench found, one figure a line.

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
    /// Prints the figure as a line of JSON.
    pub(crate) fn print_json(&self) {
        println!(
            "{}",
            serde_json::json!({
                "bench": self.bench, "case": self.case, "subject": self.subject,
                "metric": self.metric, "value": self.value, "unit": self.unit,
            })
        );
    }
}

//! Figures as lines of JSON, with the keys of `pagefold-bench` in the same order.

use std::io::{self, Write};

use serde_json::Value;

/// One figure of a disk.
pub(crate) struct Figure<'a> {
    pub(crate) bench: &'a str,
    pub(crate) case: &'a str,
    pub(crate) subject: &'a str,
    pub(crate) metric: &'a str,
    pub(crate) value: u64,
    pub(crate) unit: &'a str,
}

impl Figure<'_> {
    pub(crate) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let text = |text: &str| Value::from(text).to_string();
        writeln!(
            out,
            r#"{{"bench":{},"case":{},"subject":{},"metric":{},"value":{},"unit":{}}}"#,
            text(self.bench),
            text(self.case),
            text(self.subject),
            text(self.metric),
            self.value,
            text(self.unit),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_in_the_promised_order() {
        let mut out = Vec::new();
        let figure = Figure { bench: "stat", case: "a \"b\"", subject: "fold", metric: "m", value: 5, unit: "bytes" };
        figure.write(&mut out).expect("memory");
        let line = String::from_utf8(out).expect("text");
        assert_eq!(
            line,
            "{\"bench\":\"stat\",\"case\":\"a \\\"b\\\"\",\"subject\":\"fold\",\"metric\":\"m\",\"value\":5,\"unit\":\"bytes\"}\n"
        );
    }
}

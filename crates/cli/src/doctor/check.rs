//! What one check found.

use std::io::{self, Write};

use crate::{record::Record, text::plain};

/// Used by every server.
pub(super) const ALWAYS: &str = "serve";

/// Whether something works fully, partly or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Works,
    Limited,
    Missing,
}

impl Status {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Works => "ok",
            Self::Limited => "limited",
            Self::Missing => "missing",
        }
    }
}

/// What one check found.
#[derive(Debug)]
pub(super) struct Check {
    pub(super) name: &'static str,
    /// The commands that use it.
    pub(super) used_by: &'static str,
    pub(super) status: Status,
    pub(super) found: String,
    /// Empty if there is nothing to do.
    pub(super) advice: String,
}

impl Check {
    pub(super) fn new(name: &'static str, used_by: &'static str, status: Status, found: impl Into<String>) -> Self {
        Self { name, used_by, status, found: found.into(), advice: String::new() }
    }

    pub(super) fn advice(self, advice: impl Into<String>) -> Self {
        Self { advice: advice.into(), ..self }
    }

    /// Whether `pagefold serve` always needs it.
    pub(super) fn is_needed(&self) -> bool {
        self.used_by == ALWAYS
    }

    pub(super) fn write(&self, out: &mut impl Write, as_json: bool) -> io::Result<()> {
        let Self { name, used_by, status, found, advice } = self;
        if as_json {
            let record = Record::new().field("name", *name).field("status", status.word());
            let record = record.field("for", *used_by).field("found", found.as_str());
            return record.field("do", advice.as_str()).write(out);
        }
        writeln!(out, "{:<8} {name:<14} {} (for {used_by})", status.word(), plain(found))?;
        if !advice.is_empty() {
            writeln!(out, "{:<23} {}", "", plain(advice))?;
        }
        Ok(())
    }
}

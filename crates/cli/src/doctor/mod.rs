//! `pagefold doctor`: what works on this machine, what does not, why, and what to do.
//!
//! Each check reads a [`Machine`], which may be a tree of files that a test made.

mod images;
mod machine;
mod serving;
mod ways;

use std::{
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

use self::machine::Machine;
use crate::{image::show, output::output, record::Record};

/// Show what works on this machine and what does not, why, and what to do
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold doctor
  pagefold doctor --json | jq -r 'select(.status != \"ok\").name'

Each line has a status: 'ok', 'limited' if a part does not work, or 'missing' if none of it does. The \
exit status is 1 if 'pagefold serve' lacks what it always needs, and 0 otherwise. The command asks \
what the user who runs it may do: run it as the server's user.")]
pub(crate) struct Args {
    /// Directory in which a server would listen
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// How much of something works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Works,
    Limited,
    Missing,
}

impl Status {
    fn word(self) -> &'static str {
        match self {
            Self::Works => "ok",
            Self::Limited => "limited",
            Self::Missing => "missing",
        }
    }
}

/// What one check found.
#[derive(Debug)]
struct Check {
    name: &'static str,
    /// What uses it.
    used_by: &'static str,
    status: Status,
    found: String,
    /// Empty if there is nothing to do.
    advice: String,
}

impl Check {
    fn new(name: &'static str, used_by: &'static str, status: Status, found: impl Into<String>) -> Self {
        Self { name, used_by, status, found: found.into(), advice: String::new() }
    }

    fn advice(self, advice: impl Into<String>) -> Self {
        Self { advice: advice.into(), ..self }
    }

    /// Whether `pagefold serve` always needs it.
    fn is_needed(&self) -> bool {
        self.used_by == serving::ALWAYS
    }

    fn write(&self, out: &mut impl Write, as_json: bool) -> io::Result<()> {
        let Self { name, used_by, status, found, advice } = self;
        if as_json {
            let record = Record::new().field("name", *name).field("status", status.word());
            let record = record.field("for", *used_by).field("found", found.as_str());
            return record.field("do", advice.as_str()).write(out);
        }
        writeln!(out, "{:<8} {name:<14} {} (for {used_by})", status.word(), show(found.as_bytes()))?;
        if !advice.is_empty() {
            writeln!(out, "{:<23} {}", "", show(advice.as_bytes()))?;
        }
        Ok(())
    }
}

fn checks(machine: &Machine) -> Vec<Check> {
    let all = [serving::checks(machine), ways::checks(machine), images::checks(machine)];
    all.into_iter().flatten().collect()
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let checks = checks(&Machine::this(args.dir.as_deref()));
    let mut out = output();
    checks.iter().try_for_each(|check| check.write(&mut out, args.json))?;
    out.flush()?;
    let lacks = checks.iter().any(|check| check.is_needed() && check.status == Status::Missing);
    Ok(if lacks { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

#[cfg(test)]
mod tests;

//! `pagefold doctor`: shows what works on this machine and what does not, why, and what to do.
//!
//! Each check reads a [`Machine`], which may be a tree of files that a test made.

mod check;
mod images;
mod machine;
mod serving;
mod ways;

use std::{io::Write, path::PathBuf, process::ExitCode};

use self::{
    check::{Check, Status},
    machine::Machine,
};
use crate::output::output;

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

//! `pagefold limit`: limits the memory of a server or a disk.

use pagefold_control::{Command, Limited};

use super::Asked;
use crate::size;

/// Set the memory limit of the server or of one disk
#[derive(clap::Args)]
#[command(
    allow_missing_positional = true,
    after_help = "Examples:
  pagefold limit 4G
  pagefold limit guest-7 2G
  pagefold limit guest-7 none

A limit below what is in use loses no data: writes that need more memory fail, or wait if the \
server runs with --when-full wait, until there is room."
)]
pub(crate) struct Args {
    /// The disk; without it, the command sets the limit of the server
    name: Option<String>,

    /// The limit, or 'none'
    #[arg(required = true, value_name = "SIZE|none", value_parser = parse)]
    limit: Limit,

    #[command(flatten)]
    asked: Asked,
}

#[derive(Clone, Copy)]
struct Limit(Option<u64>);

fn parse(text: &str) -> Result<Limit, String> {
    if text == "none" { Ok(Limit(None)) } else { size::parse(text).map(|bytes| Limit(Some(bytes))) }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let command = Command::Limit { name: args.name.clone(), limit_bytes: args.limit.0 };
    args.asked.perform(&command, |limited: &Limited| {
        let show = |limit: Option<u64>| limit.map_or_else(|| "none".to_owned(), size::show);
        let what = limited
            .name
            .as_ref()
            .map_or_else(|| "the server's limit".to_owned(), |name| format!("the limit of '{name}'"));
        let over = limited.limit_bytes.filter(|limit_bytes| limited.spent_bytes > *limit_bytes);
        let over = over.map_or_else(String::new, |_| {
            let spent = size::show(limited.spent_bytes);
            format!("; {spent} are in use: data stay, and writes that need more memory fail or wait")
        });
        format!("{what} was {} and is {}{over}", show(limited.before_bytes), show(limited.limit_bytes))
    })
}

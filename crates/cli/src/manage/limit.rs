//! `pagefold limit`: limits the memory of a server or a disk, or the connections of a server.

use pagefold_control::{Command, Limited, LimitedConnections};

use super::{Asked, quota::parse_connections};
use crate::{
    log::{Level, write},
    size,
};

/// Set the memory limit of the server or of one disk, or the server's number of connections
#[derive(clap::Args)]
#[command(
    allow_missing_positional = true,
    after_help = "Examples:
  pagefold limit 4G
  pagefold limit guest-7 2G
  pagefold limit guest-7 none
  pagefold limit --connections 500

A limit below what is in use loses no data: writes that need more memory fail, or wait if the \
server runs with --when-full wait, until there is room."
)]
pub(crate) struct Args {
    /// The disk; without it, the command sets the limit of the server
    #[arg(allow_negative_numbers = true)]
    name: Option<String>,

    /// The memory limit, or 'none'
    #[arg(required_unless_present = "connections", value_name = "SIZE|none", value_parser = parse,
        allow_negative_numbers = true)]
    limit: Option<Limit>,

    /// Maximum number of simultaneous NBD clients; those that are connected stay
    #[arg(long, value_name = "N", conflicts_with_all = ["name", "limit"], value_parser = parse_connections::<u64>)]
    connections: Option<u64>,

    #[command(flatten)]
    asked: Asked,
}

#[derive(Clone, Copy)]
struct Limit(Option<u64>);

fn parse(text: &str) -> Result<Limit, String> {
    if text == "none" { Ok(Limit(None)) } else { size::parse(text).map(|bytes| Limit(Some(bytes))) }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(connections) = args.connections {
        return args.asked.perform(&Command::LimitConnections { connections }, |limited: &LimitedConnections| {
            warn(&limited.warnings);
            format!("changed the maximum number of connections from {} to {}", limited.before, limited.connections)
        });
    }
    let limit_bytes = args.limit.and_then(|limit| limit.0);
    let command = Command::Limit { name: args.name.clone(), limit_bytes };
    args.asked.perform(&command, |limited: &Limited| {
        warn(&limited.warnings);
        let show = |limit: Option<u64>| limit.map_or_else(|| "none".to_owned(), size::written);
        let what = limited
            .name
            .as_ref()
            .map_or_else(|| "the server's limit".to_owned(), |name| format!("the limit of '{name}'"));
        let over = limited.limit_bytes.filter(|limit_bytes| limited.spent_bytes > *limit_bytes);
        let over = over.map_or_else(String::new, |_| {
            let spent = size::show(limited.spent_bytes);
            format!("; {spent} are in use: data stay, and writes that need more memory fail or wait")
        });
        format!("changed {what} from {} to {}{over}", show(limited.before_bytes), show(limited.limit_bytes))
    })
}

fn warn(warnings: &[String]) {
    warnings.iter().for_each(|warning| write(Level::Warn, warning));
}

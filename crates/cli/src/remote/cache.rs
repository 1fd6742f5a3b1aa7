//! `pagefold cache`: what the cache holds.

use std::{io::Write, time::UNIX_EPOCH};

use super::CacheArgs;
use crate::{output::output, record::Record, size};

/// Show what the cache of remote images holds, or make it smaller
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold cache
  pagefold cache --json
  pagefold cache --prune 2G
  pagefold cache --prune 0

An image is named by the SHA-256 sum of its chunk index. --prune removes first what was not used for \
the longest time; servers that use the cache may run.")]
pub(crate) struct Args {
    /// Remove chunks until the cache takes at most SIZE on disk
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    prune: Option<u64>,

    /// Print one JSON object per line: index, size_bytes, held_bytes, used (seconds since 1970)
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    cache: CacheArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    // Listing creates nothing.
    let Some(cache) = args.cache.existing()? else { return Ok(()) };
    if let Some(limit) = args.prune {
        cache.prune(limit)?;
    }
    let mut out = output();
    for held in cache.list()? {
        if args.json {
            let used = held.used.and_then(|used| used.duration_since(UNIX_EPOCH).ok()).map(|used| used.as_secs());
            let record = Record::new()
                .field("index", held.index.to_string())
                .field("size_bytes", held.size_bytes)
                .field("held_bytes", held.held_bytes)
                .field("used", used);
            writeln!(out, "{}", record.to_json())?;
        } else {
            writeln!(out, "{}  {} of {}", held.index, size::show(held.held_bytes), size::show(held.size_bytes))?;
        }
    }
    out.flush()?;
    Ok(())
}

//! `pagefold diff`: where a disk was changed.

use pagefold_control::{ChangedRange, Changes, Command};
use serde_json::json;

use super::{Asked, Telling};

/// Show where a running server's disk was changed since it was made
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold diff job-1
  pagefold diff job-1 --json | jq -s 'map(.len_bytes) | add'

A line is the offset and the length of a range in bytes. Of a fork, these are the pages that were written or discarded since it was forked; of another disk, since it \
was added. A page that was rewritten with what it held may count. The disk may be in use: what changes meanwhile may be there or not.")]
pub(crate) struct Args {
    /// The disk
    disk: String,

    #[command(flatten)]
    asked: Asked,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut telling = args.asked.connect()?;
    let mut last: Option<ChangedRange> = None;
    let mut next = Some(0);
    while let Some(offset) = next {
        let changes: Changes = telling.call(&Command::Changes { name: args.disk.clone(), offset })?;
        for range in changes.ranges {
            match &mut last {
                Some(last) if last.offset + last.len_bytes == range.offset => last.len_bytes += range.len_bytes,
                last => {
                    if let Some(whole) = last.replace(range) {
                        tell(&mut telling, whole)?;
                    }
                }
            }
        }
        next = changes.next_offset;
    }
    last.map_or(Ok(()), |last| tell(&mut telling, last))
}

fn tell(telling: &mut Telling, ChangedRange { offset, len_bytes }: ChangedRange) -> anyhow::Result<()> {
    telling.tell(&json!({ "offset": offset, "len_bytes": len_bytes }), || format!("{offset} {len_bytes}"))
}

//! `pagefold diff`: lists the changed ranges of a disk.

use std::{fs::File, os::unix::fs::FileExt, path::PathBuf};

use anyhow::Context;
use pagefold_control::{ChangedRange, Changes, Command};
use pagefold_erofs::ReadAt;
use pagefold_output::{Destination, ImageFormat};
use pagefold_server::Frozen;
use serde_json::json;

use super::{Asked, Caller};
use crate::{
    destination::{draft, wrong_name},
    log, size,
};

/// List the ranges of a disk that changed since it was created or forked
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold diff job-1
  pagefold diff job-1 --json | jq -s 'map(.len_bytes) | add'
  pagefold diff job-1 --to job-1.changes

Each line is the offset and the length of a range in bytes. For a fork, the ranges are the pages \
written or discarded since the fork; for another disk, since it was added. A page that was \
rewritten with the same contents may be listed. The disk can be in use: changes made during the \
command may or may not be listed. The bytes that --to writes are all of one instant.")]
pub(crate) struct Args {
    /// The disk
    disk: String,

    /// Write the changed ranges to a sparse file of the disk's size; holes in it are unchanged
    /// ranges
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    to: Option<PathBuf>,

    /// Replace FILE if it exists; never a file that the server uses
    #[arg(long, requires = "to")]
    force: bool,

    #[command(flatten)]
    asked: Asked,
}

/// Bytes per read.
const PART_BYTES: u64 = 1 << 20;

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut caller = args.asked.connect()?;
    let Some(path) = &args.to else {
        return args.each(&mut caller, &mut |caller, ChangedRange { offset, len_bytes }| {
            caller.print(&json!({ "offset": offset, "len_bytes": len_bytes }), || format!("{offset} {len_bytes}"))
        });
    };
    ImageFormat::Raw.check_name(path, "--to").map_err(wrong_name)?;
    let inputs = args.asked.peer.inputs(&args.disk)?;
    let destination = Destination::of(path, ImageFormat::Raw, args.force, &inputs)?;
    let draft = draft(&destination)?;
    let written_bytes = args.write(&mut caller, draft.file()).with_context(|| destination.place())?;
    destination.take(draft)?;
    log::line(&format!("{}: {} of disk '{}' changed", path.display(), size::show(written_bytes), args.disk));
    Ok(())
}

impl Args {
    /// Passes the ranges to `each` in ascending order, merging adjacent ones.
    fn each(
        &self,
        caller: &mut Caller,
        each: &mut dyn FnMut(&mut Caller, ChangedRange) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut last: Option<ChangedRange> = None;
        let mut next = Some(0);
        while let Some(offset) = next {
            let changes: Changes = caller.call(&Command::Changes { name: self.disk.clone(), offset })?;
            for range in changes.ranges {
                match &mut last {
                    Some(last) if last.offset + last.len_bytes == range.offset => last.len_bytes += range.len_bytes,
                    last => {
                        if let Some(whole) = last.replace(range) {
                            each(caller, whole)?;
                        }
                    }
                }
            }
            next = changes.next_offset;
        }
        last.map_or(Ok(()), |last| each(caller, last))
    }

    /// Writes the bytes of the ranges to `out`, an empty file, and returns their number.
    fn write(&self, caller: &mut Caller, out: &File) -> anyhow::Result<u64> {
        // The instant is taken first, so every range that differs in it is in the list.
        let frozen = Frozen::of_client(self.asked.peer.connect()?, &self.disk)?;
        let (reader, size_bytes) = (frozen.reader(), frozen.size_bytes());
        out.set_len(size_bytes)?;
        let (mut written_bytes, mut bytes) = (0, Vec::new());
        self.each(caller, &mut |_, ChangedRange { offset, len_bytes }| {
            let end = offset.saturating_add(len_bytes).min(size_bytes);
            for at in (offset..end).step_by(PART_BYTES as usize) {
                bytes.resize(PART_BYTES.min(end - at) as usize, 0);
                reader.read_exact_at(&mut bytes, at).context("reading the disk")?;
                out.write_all_at(&bytes, at)?;
                written_bytes += bytes.len() as u64;
            }
            Ok(())
        })?;
        Ok(written_bytes)
    }
}

//! `pagefold-bench fork`: checks the targets for forks of a packed disk, and compares them with
//! other ways to make many disks from one.

mod args;
mod base;
mod freeze;
mod idle;
mod peers;
mod snapshot;
mod socket;
mod speeds;
mod work;

use pagefold_kinds::{Data, gather, mixed};
use pagefold_report::{Output, Rounds};

use crate::{product::keep_no_large_blocks, server::pagefold};
pub(crate) use args::Args;
use args::ForkBench;
use base::BaseFiles;

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    keep_no_large_blocks();
    let mut output = Output::new("fork", args.servers.json, Rounds::Once);
    let wants = |part| args.parts.contains(&part);
    let base = if args.parts.iter().any(|part| part.needs_base()) {
        let pagefold = pagefold(args.servers.pagefold.as_deref())?;
        let base = BaseFiles::make(&pagefold, args)?;
        base.print(&mut output);
        Some((pagefold, base))
    } else {
        None
    };
    if let Some((pagefold, base)) = &base {
        // This must run first: memory that the allocator kept from other work would be reused for
        // the forks.
        if wants(ForkBench::Idle) {
            idle::run(&mut output, base, args.forks)?;
        }
        if wants(ForkBench::Socket) {
            socket::run(&mut output, pagefold, base, args)?;
        }
        if wants(ForkBench::Peers) {
            peers::run(&mut output, base, &args.servers.tmpfs)?;
        }
        if wants(ForkBench::Work) {
            work::run(&mut output, pagefold, base, args)?;
        }
        if wants(ForkBench::Reads) {
            speeds::reads(&mut output, base, args.rounds)?;
        }
        if wants(ForkBench::Freeze) {
            freeze::run(&mut output, pagefold, base, args)?;
        }
    }
    if [ForkBench::Snapshot, ForkBench::Writes, ForkBench::Depth, ForkBench::Dedupe].into_iter().any(wants) {
        let (data, pages) = (mixed(&gather(&[], 64 << 8)?), args.pages as u64);
        if wants(ForkBench::Snapshot) {
            snapshot::run(&mut output, &data, args.changed, args.rounds)?;
        }
        type Part = fn(&mut Output, &str, &Data, u64, usize) -> anyhow::Result<()>;
        let parts: [(ForkBench, Part); 3] = [
            (ForkBench::Writes, speeds::writes),
            (ForkBench::Dedupe, speeds::dedupe),
            (ForkBench::Depth, speeds::depth),
        ];
        for codec in &args.codecs {
            for (_, run) in parts.iter().filter(|(part, _)| wants(*part)) {
                run(&mut output, codec, &data, pages, args.rounds)?;
            }
        }
    }
    Ok(())
}

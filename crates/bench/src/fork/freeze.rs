//! Freezing a fork with 1 % changed, compared with packing the whole disk.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::Path,
    process::Command,
};

use anyhow::Context;
use pagefold_codec::PAGE_SIZE;
use pagefold_report::{Output, median};
use tempfile::TempDir;

use super::{args::Args, base::BaseFiles, socket::BASE};
use crate::{client::Nbd, image::process, load::Random, server::Server};

/// How the base is packed: a name and `pack`'s options.
const WAYS: [(&str, [&str; 4]); 2] =
    [("lz4/4K", ["--codec", "lz4", "--cluster", "4K"]), ("zstd-3/64K", ["--codec", "zstd,3", "--cluster", "64K"])];

/// One byte in this many is changed.
const CHANGED_SHARE: u64 = 100;

/// Sizes of a change in bytes. Programs write files in large pieces; single pages are the other
/// extreme, which has no target.
const CHANGES: [(&str, u64); 2] = [("files", 256 << 10), ("pages", PAGE_SIZE as u64)];

pub(super) fn run(output: &mut Output, pagefold: &Path, base: &BaseFiles, args: &Args) -> anyhow::Result<()> {
    for (name, options) in WAYS {
        let case = format!("freeze/{name}");
        let folder =
            TempDir::new_in(&args.servers.scratch).context("cannot create a temporary directory for images")?;
        let (image, target) = (folder.path().join("base.erofs"), folder.path().join("target.erofs"));
        process::run(&mut pack_to(pagefold, options, base, &image), 0)?;
        let shown = image.to_string_lossy().into_owned();
        let server = Server::pagefold(
            pagefold,
            &args.servers.serve.iter().chain([&shown]).map(String::as_str).collect::<Vec<_>>(),
        )?;
        let mut control = server.control()?;
        for (disk, len_bytes) in CHANGES {
            control.fork(BASE, disk)?;
            change(&mut Nbd::connect(&server.socket(), disk)?, base, len_bytes)?;
        }
        let freeze = |disk: &str, more: &[&str]| -> anyhow::Result<f64> {
            let _ = fs::remove_file(&target);
            let mut command = Command::new(pagefold);
            command.arg("freeze").arg(disk).args(more).arg("--dir").arg(server.folder()).arg("-o").arg(&target);
            Ok(process::run(&mut command, 0)?.seconds)
        };
        let (mut packs, mut copies, mut freezes) = (Vec::new(), Vec::new(), CHANGES.map(|_| Vec::new()));
        for _ in 0..args.rounds {
            for ((disk, _), times) in CHANGES.iter().zip(&mut freezes) {
                times.push(freeze(disk, &[])?);
            }
            let _ = fs::remove_file(&target);
            packs.push(process::run(&mut pack_to(pagefold, options, base, &target), 0)?.seconds);
            // The part of every freeze that is unavoidable where files cannot share blocks.
            let _ = fs::remove_file(&target);
            copies.push(process::run(Command::new("cp").arg(&image).arg(&target), 0)?.seconds);
        }
        let pack_s = median(&packs);
        output.put(&case, "pack_s", pack_s, "s");
        output.put_of("cp", &case, "copy_over_pack", median(&copies) / pack_s, "x");
        for ((disk, _), times) in CHANGES.iter().zip(&freezes) {
            freeze(disk, &["--verify"])?;
            output.put(&case, &format!("{disk}_over_pack"), median(times) / pack_s, "x");
        }
    }
    Ok(())
}

fn pack_to(pagefold: &Path, options: [&str; 4], base: &BaseFiles, target: &Path) -> Command {
    let mut pack = Command::new(pagefold);
    pack.arg("pack").args(options).arg(base.raw()).arg("-o").arg(target);
    pack
}

/// Changes part of a disk in pieces of `len_bytes`, each to content from elsewhere in the base.
fn change(disk: &mut Nbd, base: &BaseFiles, len_bytes: u64) -> anyhow::Result<()> {
    let (raw, mut random): (File, _) = (base.raw_file()?, Random::new(1));
    let mut bytes = vec![0; len_bytes as usize];
    let mut somewhere = || random.below((base.len_bytes - len_bytes) / PAGE_SIZE as u64) * PAGE_SIZE as u64;
    for _ in 0..base.len_bytes / CHANGED_SHARE / len_bytes {
        raw.read_exact_at(&mut bytes, somewhere())?;
        disk.write(somewhere(), &bytes)?;
    }
    Ok(())
}

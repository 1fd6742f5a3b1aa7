//! Forks into which the same files are copied through the kernel's ext4, compared with qcow2
//! overlays into which they are copied too.

use std::{path::Path, process::Command, thread, time::Instant};

use anyhow::{Context, ensure};
use pagefold_report::{Output, median, tool};
use tempfile::TempDir;

use super::{
    args::Args,
    base::BaseFiles,
    peers::{EXPORT, overlay_server, stored_bytes},
    socket::{BASE, QUIET, serve},
};
use crate::{image::Mounted, nbdfuse::DiskFile, server::qcow2_overlay};

/// The peer's name in figures.
const OVERLAYS: &str = "qcow2-in-tmpfs";

pub(super) fn run(output: &mut Output, pagefold: &Path, base: &BaseFiles, args: &Args) -> anyhow::Result<()> {
    let name = args.install.file_name().context("the files to install have no name")?.to_string_lossy();
    let case = format!("work/{name}/{}", args.workers);
    // If this machine cannot mount a file system, the bench skips this part and does not fail.
    if let Err(error) = can_mount(base) {
        output.skip(&case, error);
        return Ok(());
    }
    let workers = args.workers as f64;

    let (server, mut control) = serve(pagefold, base, &args.servers.serve)?;
    let resident_before = server.anonymous_bytes()?;
    let spent_before = control.figure("spent_bytes")?;
    let mut times = Vec::new();
    for number in 0..args.workers {
        let fork = format!("job-{number}");
        control.fork(BASE, &fork)?;
        times.push(install(&server.uri(&fork), &args.install, is_looked_at(number, args))?);
    }
    thread::sleep(QUIET);
    let ours = server.anonymous_bytes()? - resident_before;
    let spent = control.figure("spent_bytes")? - spent_before;
    output.put(&case, "resident_bytes_each", ours / workers, "bytes");
    output.put(&case, "spent_bytes_each", spent / workers, "bytes");
    output.put(&case, "install_s", median(&times), "s");
    drop(server);

    let folder = TempDir::new_in(&args.servers.tmpfs).context("cannot create a temporary directory in tmpfs")?;
    times.clear();
    for number in 0..args.workers {
        let path = folder.path().join(number.to_string());
        qcow2_overlay(&base.raw(), &path)?;
        let server = overlay_server(&path)?;
        times.push(install(&server.uri(EXPORT), &args.install, is_looked_at(number, args))?);
    }
    let theirs = stored_bytes(folder.path())? as f64;
    output.put_of(OVERLAYS, &case, "file_bytes_each", theirs / workers, "bytes");
    output.put_of(OVERLAYS, &case, "install_s", median(&times), "s");
    output.put(&case, "resident_over_qcow2_files", ours / theirs, "x");
    output.put(&case, "spent_over_qcow2_files", spent / theirs, "x");
    Ok(())
}

/// Whether the copied files are compared: only in the first disk and in the last.
fn is_looked_at(number: usize, args: &Args) -> bool {
    number == 0 || number + 1 == args.workers
}

/// Mounts the base itself; the base does not change.
fn can_mount(base: &BaseFiles) -> anyhow::Result<()> {
    ensure!(Path::new("/dev/fuse").exists(), "this kernel has no FUSE");
    for program in ["nbdfuse", "qemu-img", "qemu-nbd", "fusermount3"] {
        tool::find(program)?;
    }
    Mounted::kernel(&base.raw(), "ext4").map(drop)
}

/// Copies `files` into the ext4 file system of an export. Returns the seconds until everything is
/// written back.
fn install(uri: &str, files: &Path, compare: bool) -> anyhow::Result<f64> {
    let disk = DiskFile::new(uri)?;
    let start = Instant::now();
    let mounted = Mounted::kernel_writable(&disk.path(), "ext4")?;
    tool::run(Command::new("cp").args(["-a", "-T"]).arg(files).arg(mounted.path().join("installed")))?;
    drop(mounted);
    let seconds = start.elapsed().as_secs_f64();
    if compare {
        let mounted = Mounted::kernel(&disk.path(), "ext4")?;
        let installed = mounted.path().join("installed");
        tool::run(Command::new("diff").args(["-r", "--no-dereference"]).arg(files).arg(installed))?;
    }
    Ok(seconds)
}

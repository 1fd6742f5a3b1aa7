//! Forks in each of which the same files are installed, through the kernel's ext4, beside qcow2
//! overlays with the same done to them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use tempfile::TempDir;

use super::{
    Args,
    base::BaseFiles,
    peers::{EXPORT, overlay, overlay_server, stored_bytes},
    socket::{BASE, QUIET, serve},
    tool,
};
use crate::{
    figure::median,
    image::Mounted,
    verdict::{Output, Target::AtMost},
};

/// The peer's name in figures.
const OVERLAYS: &str = "qcow2-in-tmpfs";

pub(super) fn run(output: &mut Output, pagefold: &Path, base: &BaseFiles, args: &Args) -> anyhow::Result<()> {
    let name = args.install.file_name().context("the files to install have no name")?.to_string_lossy();
    let case = format!("work/{name}/{}", args.workers);
    // What keeps a file system from being mounted here is no failure of the bench.
    if let Err(error) = can_mount(base) {
        output.skip(&case, &format!("{error:#}"));
        return Ok(());
    }
    let workers = args.workers as f64;

    let (server, mut control) = serve(pagefold, base, &args.serve)?;
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

    let folder = TempDir::new_in(&args.tmpfs).context("no folder in tmpfs")?;
    times.clear();
    for number in 0..args.workers {
        let path = folder.path().join(number.to_string());
        overlay(base, &path)?;
        let server = overlay_server(&path)?;
        times.push(install(&server.uri(EXPORT), &args.install, is_looked_at(number, args))?);
    }
    let theirs = stored_bytes(folder.path())? as f64;
    output.put_peer(OVERLAYS, &case, "file_bytes_each", theirs / workers, "bytes");
    output.put_peer(OVERLAYS, &case, "install_s", median(&times), "s");
    output.judge(&case, "resident_over_qcow2_files", ours / theirs, "x", AtMost(0.35));
    output.put(&case, "spent_over_qcow2_files", spent / theirs, "x");
    Ok(())
}

/// What was installed is compared in the first and in the last.
fn is_looked_at(number: usize, args: &Args) -> bool {
    number == 0 || number + 1 == args.workers
}

/// Mounts the base itself, which changes nothing in it.
fn can_mount(base: &BaseFiles) -> anyhow::Result<()> {
    ensure!(Path::new("/dev/fuse").exists(), "this kernel has no FUSE");
    for program in ["nbdfuse", "qemu-img", "qemu-nbd", "fusermount3"] {
        tool::find(program)?;
    }
    Mounted::kernel(&base.raw(), "ext4").map(drop)
}

/// Copies `files` into the ext4 of an export, and ends when all of it is there. Returns the seconds
/// that took.
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

/// An export as a file, by `nbdfuse`, as long as this value is there.
struct DiskFile {
    nbdfuse: Child,
    at: TempDir,
}

impl DiskFile {
    fn new(uri: &str) -> anyhow::Result<Self> {
        let at = TempDir::new()?;
        let nbdfuse = Command::new(tool::find("nbdfuse")?).arg(at.path()).arg(uri).spawn()?;
        let mut disk = Self { nbdfuse, at };
        let deadline = Instant::now() + Duration::from_secs(10);
        while !fs::exists(disk.path())? {
            if let Some(status) = disk.nbdfuse.try_wait()? {
                bail!("nbdfuse ended at once: {status}");
            }
            ensure!(Instant::now() < deadline, "nbdfuse does not mount {uri}");
            thread::sleep(Duration::from_millis(5));
        }
        Ok(disk)
    }

    fn path(&self) -> PathBuf {
        self.at.path().join("nbd")
    }
}

impl Drop for DiskFile {
    fn drop(&mut self) {
        // The loop device over the file goes a moment after its mount.
        for _ in 0..100 {
            if self.nbdfuse.try_wait().is_ok_and(|status| status.is_some()) {
                return;
            }
            let status = Command::new("fusermount3").arg("-u").arg(self.at.path()).stderr(Stdio::null()).status();
            if status.is_ok_and(|status| status.success()) {
                let _ = self.nbdfuse.wait();
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
        eprintln!("{} stays mounted", self.at.path().display());
        let _ = self.nbdfuse.kill();
        let _ = self.nbdfuse.wait();
    }
}

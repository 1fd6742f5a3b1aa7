//! Other ways to make a disk that starts as a copy of another: the time until its first byte is
//! read.

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
    process::Command,
};

use anyhow::{Context, ensure};
use pagefold_codec::{PAGE_SIZE, Page};
use pagefold_report::{Output, tool};
use rustix::fs::ioctl_ficlone;
use tempfile::TempDir;

use super::{base::BaseFiles, idle::Times};
use crate::{
    client::Nbd,
    image::Mounted,
    load::Random,
    server::{Server, qcow2_overlay},
};

/// Number of disks of each type.
const OVERLAYS: usize = 100;
const COPIES: usize = 10;
const REFLINKS: usize = 1000;

/// The export name of qemu-nbd.
pub(super) const EXPORT: &str = "";

pub(super) fn run(output: &mut Output, base: &BaseFiles, tmpfs: &Path) -> anyhow::Result<()> {
    type Peer = fn(&mut Output, &BaseFiles, &Path) -> anyhow::Result<()>;
    let peers: [(&str, Peer); 3] = [("qcow2+qemu-nbd", qcow2), ("cp-tmpfs", copies), ("btrfs-reflink", reflinks)];
    for (name, peer) in peers {
        let folder = TempDir::new_in(tmpfs).context("cannot create a temporary directory in tmpfs")?;
        if let Err(error) = peer(output, base, folder.path()) {
            output.skip(&format!("idle/{name}"), error);
        }
    }
    Ok(())
}

/// Starts a server for an overlay. Written data is in the overlay file, in tmpfs.
pub(super) fn overlay_server(path: &Path) -> anyhow::Result<Server> {
    Server::qemu_nbd(&tool::find("qemu-nbd")?, path)
}

/// Makes a qcow2 overlay and a qemu-nbd for each disk.
fn qcow2(output: &mut Output, base: &BaseFiles, tmpfs: &Path) -> anyhow::Result<()> {
    let mut made = Made::new(base, OVERLAYS);
    let mut servers = Vec::new();
    for number in 0..OVERLAYS {
        made.time(|offset, page| {
            let path = tmpfs.join(number.to_string());
            qcow2_overlay(&base.raw(), &path)?;
            let server = overlay_server(&path)?;
            Nbd::connect(&server.socket(), EXPORT)?.read(offset, page)?;
            servers.push(server);
            Ok(())
        })?;
    }
    made.put(output, "qcow2+qemu-nbd");
    let resident: f64 = servers.iter().map(Server::anonymous_bytes).sum::<anyhow::Result<f64>>()?;
    let file_bytes = stored_bytes(tmpfs)? as f64;
    let case = format!("idle/peer/{OVERLAYS}");
    output.put_of("qcow2+qemu-nbd", &case, "file_bytes_each", file_bytes / OVERLAYS as f64, "bytes");
    output.put_of("qcow2+qemu-nbd", &case, "server_bytes_each", resident / OVERLAYS as f64, "bytes");
    Ok(())
}

/// Copies the whole disk for each disk.
fn copies(output: &mut Output, base: &BaseFiles, tmpfs: &Path) -> anyhow::Result<()> {
    let mut made = Made::new(base, COPIES);
    for number in 0..COPIES {
        let path = tmpfs.join(number.to_string());
        made.time(|offset, page| {
            fs::copy(base.raw(), &path)?;
            Ok(File::open(&path)?.read_exact_at(page, offset)?)
        })?;
        if number == 0 {
            let case = format!("idle/peer/{COPIES}");
            output.put_of("cp-tmpfs", &case, "file_bytes_each", stored_bytes(tmpfs)? as f64, "bytes");
        }
        fs::remove_file(&path)?;
    }
    made.put(output, "cp-tmpfs");
    Ok(())
}

/// Clones a file for each disk, in btrfs on a loop device over a file in tmpfs. Clones are opened
/// and read without a server.
fn reflinks(output: &mut Output, base: &BaseFiles, tmpfs: &Path) -> anyhow::Result<()> {
    let image = tmpfs.join("btrfs");
    File::create(&image)?.set_len(base.len_bytes * 2 + (1 << 30))?;
    tool::run(Command::new(tool::find("mkfs.btrfs")?).arg("-q").arg(&image))?;
    let mounted = Mounted::kernel_writable(&image, "btrfs")?;
    let original = mounted.path().join("base");
    fs::copy(base.raw(), &original)?;
    rustix::fs::syncfs(File::open(&original)?)?;
    let used_before = stored_bytes(tmpfs)?;
    let mut made = Made::new(base, REFLINKS);
    for number in 0..REFLINKS {
        let path = mounted.path().join(number.to_string());
        made.time(|offset, page| {
            let from = File::open(&original)?;
            let clone = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
            ioctl_ficlone(&clone, &from)?;
            Ok(clone.read_exact_at(page, offset)?)
        })?;
    }
    rustix::fs::syncfs(File::open(&original)?)?;
    made.put(output, "btrfs-reflink");
    let bytes = (stored_bytes(tmpfs)?.saturating_sub(used_before)) as f64;
    let case = format!("idle/peer/{REFLINKS}");
    output.put_of("btrfs-reflink", &case, "file_bytes_each", bytes / REFLINKS as f64, "bytes");
    Ok(())
}

/// Disks of one type: measures the time to make each and to read from it, and compares the data
/// with the base.
struct Made<'a> {
    base: &'a BaseFiles,
    count: usize,
    times: Times,
    random: Random,
}

impl<'a> Made<'a> {
    fn new(base: &'a BaseFiles, count: usize) -> Self {
        Self { base, count, times: Times::new(count), random: Random::new(1) }
    }

    /// Times `make`, which makes a disk and reads a page at an offset.
    fn time(&mut self, make: impl FnOnce(u64, &mut Page) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let offset = self.random.below(self.base.len_bytes / PAGE_SIZE as u64) * PAGE_SIZE as u64;
        let (mut page, mut expected) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
        self.times.time(|| make(offset, &mut page))??;
        self.base.raw_file()?.read_exact_at(&mut expected, offset)?;
        ensure!(page == expected, "a disk differs from its base at {offset}");
        Ok(())
    }

    fn put(&self, output: &mut Output, subject: &str) {
        self.times.put(output, Some(subject), &format!("idle/peer/{}", self.count));
    }
}

/// Returns the allocated bytes of the files in a folder.
pub(super) fn stored_bytes(folder: &Path) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        bytes += entry?.metadata()?.blocks() * 512;
    }
    Ok(bytes)
}

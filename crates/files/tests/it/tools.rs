//! Programs that use files.

use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::FileExt,
    path::PathBuf,
    process::Command,
    sync::Arc,
};

use pagefold_disk::BlockDevice;
use pagefold_faulty::Faulty;
use pagefold_testing::{programs, skip_for_good};

use crate::mounted::{Mounted, noise, run, until};

const MIB: usize = 1 << 20;

/// Writes a file of 8 MiB with data at its start and in its middle, and holes.
fn sparse(path: &PathBuf) -> Vec<u8> {
    let file = File::create(path).expect("a file");
    file.set_len(8 * MIB as u64).expect("a length");
    let mut bytes = vec![0; 8 * MIB];
    for (at, len) in [(0, 100_000), (3 * MIB, 4096), (5 * MIB + 7, MIB)] {
        bytes[at..][..len].copy_from_slice(&noise(len, at as u64));
        file.write_all_at(&bytes[at..][..len], at as u64).expect("space");
    }
    bytes
}

/// Also onto disks with other content: holes of the source must then read as zeros.
#[test]
fn cp_and_dd_copy() {
    let Some(mounted) = Mounted::new("cp_and_dd_copy") else { return };
    let source = mounted.sibling("source");
    let bytes = sparse(&source);
    for option in ["--sparse=auto", "--sparse=always", "--sparse=never"] {
        let disk = mounted.disk("disk", 8 * MIB as u64);
        disk.write(0, &noise(8 * MIB, 99)).expect("room");
        run(Command::new("cp").arg(option).arg(&source).arg(mounted.path("disk")));
        assert!(fs::read(mounted.path("disk")).expect("data") == bytes, "{option}");
        let copy = mounted.sibling("copy");
        run(Command::new("cp").arg(option).arg(mounted.path("disk")).arg(&copy));
        assert!(fs::read(&copy).expect("data") == bytes, "{option}");
        mounted.exports.remove("disk").expect("it was there");
    }
    let disk = mounted.disk("disk", 8 * MIB as u64);
    disk.write(7 * MIB as u64, &noise(MIB, 99)).expect("room");
    let dd = |options: &[&str]| {
        let mut command = Command::new("dd");
        command.args(["bs=64k", "status=none"]).args(options);
        command.arg(format!("if={}", source.display())).arg(format!("of={}", mounted.path("disk").display()));
        command
    };
    run(&mut dd(&["count=50"]));
    let mut expected = bytes[..50 << 16].to_vec();
    expected.resize(8 * MIB, 0);
    assert!(fs::read(mounted.path("disk")).expect("data") == expected, "the rest is zeros");
    run(&mut dd(&["count=1", "seek=1", "conv=notrunc"]));
    expected.copy_within(..1 << 16, 1 << 16);
    assert!(fs::read(mounted.path("disk")).expect("data") == expected, "the rest is as before");
    let failed = dd(&["seek=1", "conv=notrunc,fsync", "oflag=direct"]).output().expect("dd starts");
    assert!(!failed.status.success() && String::from_utf8_lossy(&failed.stderr).contains("File too large"));
}

#[test]
fn qemu_uses_files() {
    let test = "qemu_uses_files";
    let Some(mounted) = Mounted::new(test) else { return };
    let Some([qemu_img, qemu_io]) = programs(test, ["qemu-img", "qemu-io"]) else { return };
    mounted.disk("disk", 8 * MIB as u64);
    let source = mounted.sibling("source");
    sparse(&source);
    let disk = mounted.path("disk");
    let convert = |options: &[&str]| {
        run(Command::new(&qemu_img).args(["convert", "-O", "raw", "-n"]).args(options).arg(&source).arg(&disk));
        let raw = ["compare", "-f", "raw", "-F", "raw"];
        run(Command::new(&qemu_img).args(raw).arg(&source).arg(&disk));
    };
    convert(&[]);
    run(Command::new(&qemu_io).args(["-f", "raw", "-c", "write -P 7 0 8M"]).arg(&disk));
    convert(&["-t", "none"]);
    let map = run(Command::new(&qemu_img).args(["map", "-f", "raw", "--output", "json"]).arg(&disk));
    assert!(map.contains("\"zero\": true") && map.contains("\"data\": true"), "{map}");
    for cache in ["none", "writeback"] {
        let commands = [
            "write -P 1 1000000 70000",
            "write -P 2 64k 64k",
            "discard 96k 64k",
            "write -z 1M 1M",
            "write -z -u 2M 1M",
            "flush",
            "read -P 2 64k 32k",
            "read -P 0 96k 64k",
            "read -P 0 1M 2M",
            "aio_write -P 3 3M 1M",
            "aio_read 0 4M",
            "aio_flush",
            "read -P 3 3M 1M",
        ];
        let mut command = Command::new(&qemu_io);
        command.args(["-f", "raw", "-t", cache, "--discard", "unmap"]);
        command.args(commands.iter().flat_map(|one| ["-c", one]));
        let said = run(command.arg(&disk));
        assert!(!said.contains("failed") && !said.contains("rror"), "{said}");
    }
    let size = run(Command::new(&qemu_img).args(["info", "-f", "raw"]).arg(&disk));
    assert!(size.contains("8 MiB"), "{size}");
}

/// A loop device, detached when it is dropped.
struct Loop(String);

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).output();
        let _ = Command::new("losetup").arg("-d").arg(&self.0).output();
    }
}

/// Until it is executed, a program that another test starts has this one's open files, which keep the
/// mount busy.
fn unmount(device: &str) {
    until("the mount goes", || Command::new("umount").arg(device).output().expect("umount starts").status.success());
}

#[test]
fn a_file_system_is_on_a_loop_device_on_a_file() {
    let test = "a_file_system_is_on_a_loop_device_on_a_file";
    let Some(mounted) = Mounted::new(test) else { return };
    let Some([losetup, mkfs, fsck]) = programs(test, ["losetup", "mkfs.ext4", "fsck.ext4"]) else { return };
    if !rustix::process::geteuid().is_root() {
        return skip_for_good(test, "only root has loop devices");
    }
    for direct in ["--direct-io=off", "--direct-io=on"] {
        let disk = mounted.disk("disk", 32 * MIB as u64);
        let attached = Command::new(&losetup).args(["--find", "--show", direct]).arg(mounted.path("disk")).output();
        let attached = attached.expect("losetup starts");
        if !attached.status.success() {
            return skip_for_good(test, &String::from_utf8_lossy(&attached.stderr));
        }
        let device = Loop(String::from_utf8_lossy(&attached.stdout).trim().to_owned());
        run(Command::new(&mkfs).args(["-q", "-E", "discard"]).arg(&device.0));
        let root = mounted.sibling("root");
        fs::create_dir_all(&root).expect("a folder");
        run(Command::new("mount").args(["-o", "discard"]).arg(&device.0).arg(&root));
        let data = noise(5 * MIB, 3);
        for number in 0..20 {
            fs::write(root.join(format!("small-{number}")), &data[number * 100..][..number * 1000]).expect("space");
        }
        let mut large = File::create(root.join("large")).expect("a file");
        large.write_all(&data).expect("space");
        large.sync_all().expect("a flush");
        drop(large);
        fs::remove_file(root.join("small-7")).expect("a file");
        unmount(&device.0);
        drop(device);
        until("the loop device goes", || mounted.exports.get("disk").expect("a disk").connections() == 0);
        run(Command::new(&fsck).args(["-fn"]).arg(mounted.path("disk")));
        // The same file system by a loop device on another file of the same content.
        let mut bytes = vec![0; 32 * MIB];
        disk.read(0, &mut bytes).expect("data");
        mounted.base("copy", Arc::new(Faulty::new(bytes).slow(4096)));
        let attached = run(Command::new(&losetup).args(["--find", "--show", "--read-only"]).arg(mounted.path("copy")));
        let device = Loop(attached.trim().to_owned());
        run(Command::new("mount").args(["-o", "ro,noload"]).arg(&device.0).arg(&root));
        assert!(fs::read(root.join("large")).expect("a file") == data);
        assert_eq!(fs::read(root.join("small-19")).expect("a file"), data[1900..][..19_000]);
        unmount(&device.0);
        drop(device);
        for name in ["disk", "copy"] {
            until("the loop device goes", || mounted.exports.get(name).expect("a disk").connections() == 0);
            mounted.exports.remove(name).expect("it was there");
        }
    }
}

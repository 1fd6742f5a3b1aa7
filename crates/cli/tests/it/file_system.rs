//! A file system on a served disk, with FUSE and a loop device, for users without nbd.ko.

use std::{
    fs,
    path::Path,
    process::{Child, Command},
    thread,
    time::{Duration, Instant},
};

use pagefold_testing::{programs, skip_for_good};

use crate::server::{Server, run};

const TEST: &str = "ext4_lives_on_the_disk";

/// `nbdfuse`, unmounted and stopped when this value is dropped.
struct Fuse<'a> {
    child: Child,
    mount: &'a Path,
}

impl Drop for Fuse<'_> {
    fn drop(&mut self) {
        let _ = Command::new("fusermount3").arg("-uz").arg(self.mount).status();
        let _ = self.child.wait();
    }
}

#[test]
fn ext4_lives_on_the_disk() {
    let Some([nbdfuse, mkfs, e2fsck]) = programs(TEST, ["nbdfuse", "mkfs.ext4", "e2fsck"]) else { return };
    if !Path::new("/dev/fuse").exists() {
        return skip_for_good(TEST, "this kernel has no /dev/fuse");
    }
    let server = Server::start(&["--size", "64M"]);
    let mount = server.folder().join("mount");
    fs::create_dir(&mount).expect("a folder");
    let child = Command::new(nbdfuse).arg(&mount).arg(server.uri("")).spawn().expect("nbdfuse starts");
    let mut fuse = Fuse { child, mount: &mount };
    let disk = mount.join("nbd");
    let deadline = Instant::now() + Duration::from_secs(60);
    while !disk.exists() {
        if let Some(status) = fuse.child.try_wait().expect("a child") {
            return skip_for_good(TEST, &format!("nbdfuse cannot mount here: {status}"));
        }
        assert!(Instant::now() < deadline, "nbdfuse does not mount");
        thread::sleep(Duration::from_millis(10));
    }

    run(Command::new(mkfs).args(["-q", "-F"]).arg(&disk));
    let folder = server.folder().join("files");
    fs::create_dir(&folder).expect("a folder");
    let mounted = Command::new("mount").args(["-o", "loop"]).arg(&disk).arg(&folder).output();
    match mounted {
        Ok(output) if output.status.success() => {
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
            run(Command::new("cp").arg("-r").arg(&source).arg(folder.join("src")));
            run(&mut Command::new("sync"));
            run(Command::new("umount").arg(&folder));
            // The kernel clears the loop device a moment later. Until then, mount finds it and fails.
            let deadline = Instant::now() + Duration::from_secs(60);
            while !run(Command::new("losetup").arg("-j").arg(&disk)).is_empty() {
                assert!(Instant::now() < deadline, "the loop device stays");
                thread::sleep(Duration::from_millis(10));
            }
            run(Command::new("mount").args(["-o", "loop,ro"]).arg(&disk).arg(&folder));
            run(Command::new("diff").arg("-r").arg(&source).arg(folder.join("src")));
            run(Command::new("umount").arg(&folder));
        }
        other => skip_for_good(&format!("{TEST} (the mount of it)"), &format!("no loop mount here: {other:?}")),
    }
    run(Command::new(e2fsck).args(["-f", "-n"]).arg(&disk));
}

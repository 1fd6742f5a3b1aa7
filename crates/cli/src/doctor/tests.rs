use std::{fs, path::Path};

use proptest::prelude::*;
use rustix::process::geteuid;

use super::{Status::*, *};

/// A tree of files that stands for a machine.
struct Tree {
    folder: tempfile::TempDir,
    machine: Machine,
}

impl Tree {
    /// A machine on which everything works, for a user with all capabilities.
    fn whole() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let machine = Machine {
            root: folder.path().to_owned(),
            directory: Ok("/run/pagefold".into()),
            io_uring: Ok(()),
            programs: vec!["/usr/bin".into()],
        };
        let tree = Self { folder, machine };
        let user = geteuid().as_raw();
        tree.write(
            "proc/self/status",
            &format!("Uid:\t{user}\t{user}\t{user}\t{user}\nCapEff:\tffffffffff\nSeccomp:\t0\n"),
        );
        tree.limits("unlimited");
        tree.write("proc/sys/kernel/osrelease", "6.17.0-amd64\n");
        tree.write("proc/meminfo", "MemTotal:       25165824 kB\nCommitLimit: 2048 kB\nCommitted_AS: 1024 kB\n");
        tree.write("proc/sys/vm/overcommit_memory", "0\n");
        tree.write("proc/filesystems", "nodev\tproc\n\terofs\n");
        for feature in images::features() {
            tree.write(&format!("sys/fs/erofs/features/{feature}"), "supported\n");
        }
        tree.write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
        for file in
            ["dev/fuse", "dev/ublk-control", "dev/nbd0", "dev/loop-control", "dev/vhost-vsock", "usr/bin/fusermount3"]
        {
            tree.write(file, "");
        }
        for module in ["ublk_drv", "nbd", "loop"] {
            tree.write(&format!("sys/module/{module}/refcnt"), "0");
        }
        tree.write("etc/fuse.conf", "# a comment\nuser_allow_other\n");
        tree.write("run/empty", "");
        tree
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.folder.path().join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        fs::write(path, text).expect("a file");
    }

    fn remove(&self, name: &str) {
        let path = self.folder.path().join(name);
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.expect("it was there");
    }

    fn limits(&self, value: &str) {
        self.soft_limits(value, value);
    }

    fn soft_limits(&self, soft: &str, hard: &str) {
        let line = |name: &str| format!("{name:<26}{soft:<21}{hard:<21}units\n");
        let names = ["Max open files", "Max locked memory", "Max address space"];
        self.write("proc/self/limits", &names.map(line).concat());
    }

    /// Makes the machine that of a user without rights.
    fn as_user(&self) {
        let user = geteuid().as_raw();
        // The first number is the real user, the second the effective one.
        self.write("proc/self/status", &format!("Uid:\t{user}\t1000\t0\t0\nCapEff:\t0\nSeccomp:\t2\n"));
    }

    fn check(&self, name: &str) -> Check {
        let mut checks = checks(&self.machine);
        let at = checks.iter().position(|check| check.name == name).expect("a check");
        checks.swap_remove(at)
    }

    /// Asserts what a check finds.
    fn is(&self, name: &str, status: Status, words: &str) {
        let check = self.check(name);
        assert!(check.status == status && format!("{} {}", check.found, check.advice).contains(words), "{check:?}");
    }
}

#[test]
fn a_machine_with_everything_has_nothing_to_do() {
    let tree = Tree::whole();
    for check in checks(&tree.machine) {
        // `attach` needs root.
        let is_ok = check.status == Works || (!geteuid().is_root() && check.used_by.starts_with("attach"));
        assert!(is_ok, "{check:?}");
    }
}

#[test]
fn missing_features_are_named_with_advice() {
    let tree = Tree::whole();
    tree.remove("dev/fuse");
    tree.is("fuse", Missing, "modprobe fuse");
    tree.remove("dev/nbd0");
    tree.is("nbd", Missing, "not in /dev");
    tree.remove("sys/module/nbd");
    tree.is("nbd", Missing, "/lib/modules is not visible");
    tree.write(
        "lib/modules/6.17.0-amd64/modules.dep",
        "kernel/drivers/block/nbd.ko.xz: kernel/x.ko\nkernel/a/vhost-vsock.ko:\n",
    );
    tree.is("nbd", Missing, "modprobe nbd");
    tree.remove("dev/ublk-control");
    tree.remove("sys/module/ublk_drv");
    tree.is("ublk", Missing, "no module ublk_drv");
    tree.write("proc/sys/kernel/osrelease", "6.1.0-30-amd64\n");
    tree.is("ublk", Missing, "Linux 6.5");
    tree.remove("dev/vhost-vsock");
    tree.is("vsock", Missing, "modprobe vhost_vsock");
    tree.write("dev/vsock", "");
    tree.is("vsock", Limited, "vhost_vsock");
    tree.write("proc/sys/vm/overcommit_memory", "2\n");
    tree.is("overcommit", Limited, "of which 1 MiB are left");
}

#[test]
fn a_user_without_rights_learns_which() {
    let tree = Tree::whole();
    tree.as_user();
    tree.is("ublk", Limited, "as root");
    tree.is("fuse", Works, "fusermount3");
    tree.remove("usr/bin/fusermount3");
    tree.is("fuse", Missing, "fuse3");
    tree.write("etc/fuse.conf", "#user_allow_other\n");
    tree.is("fuse-others", Missing, "user_allow_other");
    tree.limits("65536");
    tree.is("locked-memory", Missing, "LimitMEMLOCK=infinity");
    tree.is("address-space", Limited, "ulimit -v");
    tree.is("open-files", Works, "at most 65536");
    tree.limits("256");
    tree.is("open-files", Limited, "LimitNOFILE=");
    tree.limits("63");
    tree.is("open-files", Missing, "LimitNOFILE=");
    // A server raises some limits, but not that of addresses.
    tree.soft_limits("63", "unlimited");
    tree.is("address-space", Limited, "limited to 63 B");
    tree.is("open-files", Works, "any number");
}

#[test]
fn the_check_of_io_uring_names_the_obstacle() {
    let mut tree = Tree::whole();
    tree.machine.io_uring = Err("Operation not permitted (os error 1)".to_owned());
    tree.is("io_uring", Missing, "a kernel that has it");
    tree.as_user();
    tree.is("io_uring", Missing, "seccomp");
    tree.write("proc/sys/kernel/io_uring_disabled", "1\n");
    tree.is("io_uring", Missing, "io_uring_group");
    tree.write("proc/sys/kernel/io_uring_disabled", "2\n");
    tree.is("io_uring", Missing, "sysctl");
}

#[test]
fn the_directory_is_one_that_serve_would_take() {
    let mut tree = Tree::whole();
    tree.is("directory", Works, "would make /run/pagefold");
    tree.write("run/pagefold/lock", "");
    tree.is("directory", Works, "can be used");
    let path = tree.folder.path().join("run/pagefold");
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o775)).expect("a mode");
    tree.is("directory", Missing, "chmod go-w");
    tree.write("proc/self/status", "Uid:\t4000\t4000\t4000\t4000\n");
    tree.is("directory", Missing, "belongs to user");
    tree.remove("run/pagefold");
    tree.write("run/pagefold", "");
    tree.is("directory", Missing, "not a directory");
    tree.machine.directory = Err("no directory for the server's sockets".to_owned());
    tree.is("directory", Missing, "XDG_RUNTIME_DIR");
    assert!(tree.check("directory").is_needed());
}

#[test]
fn the_user_of_the_service_gets_sockets_instead_of_a_directory() {
    let mut tree = Tree::whole();
    tree.write("proc/self/status", "Uid:\t990\t990\t990\t990\n");
    tree.machine.directory = Err("no directory for the server's sockets".to_owned());
    tree.write("etc/passwd", "root:x:0:0::/root:/bin/sh\npagefold:x:990:990::/var/cache/pagefold:/usr/sbin/nologin\n");
    tree.write("usr/lib/systemd/system/pagefold.socket", "");
    tree.is("directory", Missing, "XDG_RUNTIME_DIR");
    tree.write("usr/lib/systemd/system/pagefold-control.socket", "");
    tree.is("directory", Limited, "pass a server its sockets; no directory");
    // As root made it.
    tree.machine.directory = Ok("/run/pagefold".into());
    tree.write("run/pagefold/nbd.sock", "");
    if geteuid().as_raw() != 990 {
        tree.is("directory", Limited, "belongs to user");
    }
    tree.write("proc/self/status", "Uid:\t1990\t1990\t1990\t1990\n");
    tree.is("directory", Missing, "belongs to user");
}

#[test]
fn control_groups_limit_the_memory() {
    let tree = Tree::whole();
    tree.is("memory", Works, "disks get 12 GiB");
    tree.write("proc/self/cgroup", "0::/a.service\n");
    tree.write("proc/self/mountinfo", "24 1 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    tree.write("sys/fs/cgroup/a.service/memory.max", "268435456\n");
    tree.is("memory", Limited, "disks get 128 MiB");
}

#[test]
fn faults_of_kernels_are_known_by_version() {
    let tree = Tree::whole();
    for (release, status, words) in [
        ("6.12.9", Limited, "ublk"),
        ("6.18.44-x", Limited, "consecutive"),
        ("6.17", Works, "no fault"),
        ("6.19.1", Works, "no fault"),
        ("what", Works, "no fault"),
    ] {
        tree.write("proc/sys/kernel/osrelease", release);
        tree.is("kernel", status, words);
    }
}

#[test]
fn images_that_the_kernel_cannot_mount_are_named() {
    let tree = Tree::whole();
    tree.remove("sys/fs/erofs/features/48bit");
    tree.is("erofs", Limited, "large sparse disks");
    tree.remove("sys/fs/erofs/features");
    tree.write("proc/sys/kernel/osrelease", "6.1.0\n");
    tree.is("erofs", Limited, "--codec zstd (Linux 6.10)");
    tree.write("proc/filesystems", "nodev\tproc\n");
    tree.is("erofs", Missing, "pagefold mount");
    tree.write("lib/modules/6.1.0/modules.builtin", "kernel/fs/erofs/erofs.ko\n");
    tree.is("erofs", Limited, "modprobe erofs");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    /// Files of the system may hold anything, or not exist.
    #[test]
    fn no_system_makes_it_panic(
        files in proptest::collection::vec((0usize..12, "[ -~\n\t]{0,60}"), 0..6),
        removed in proptest::collection::vec(0usize..12, 0..4),
    ) {
        let names = [
            "proc/self/status", "proc/self/limits", "proc/sys/kernel/osrelease", "proc/meminfo", "proc/filesystems",
            "proc/sys/vm/overcommit_memory", "proc/self/cgroup", "proc/self/mountinfo", "etc/fuse.conf",
            "sys/kernel/mm/transparent_hugepage/enabled", "lib/modules/6.17.0-amd64/modules.dep",
            "proc/sys/kernel/io_uring_disabled",
        ];
        let tree = Tree::whole();
        files.iter().for_each(|(at, text)| tree.write(names[*at], text));
        removed.iter().for_each(|at| drop(fs::remove_file(tree.folder.path().join(names[*at]))));
        for check in checks(&tree.machine) {
            let mut out = Vec::new();
            check.write(&mut out, true).expect("memory");
            let line: serde_json::Value = serde_json::from_slice(&out).expect("JSON");
            prop_assert!(line["found"].as_str().is_some_and(|found| !found.is_empty()), "{}", line);
            prop_assert!(check.status == Works || !check.advice.is_empty(), "{:?}", check);
        }
    }
}

#[test]
fn this_machine_can_be_asked() {
    let folder = tempfile::tempdir().expect("a folder");
    let machine = Machine::this(Some(&folder.path().join("new")));
    assert!(Path::new("/proc/self/limits").exists() && checks(&machine).len() > 12);
}

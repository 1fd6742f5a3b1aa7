//! Checks what each way to a disk needs from the kernel and from the user.

use std::io::ErrorKind;

use super::{
    check::{
        Check,
        Status::{self, Limited, Missing, Works},
    },
    machine::{Machine, Module},
};

/// The first Linux with user-space block devices as `attach` uses them.
const LEAST_LINUX_FOR_UBLK: (u32, u32) = (6, 5);

pub(super) fn checks(machine: &Machine) -> Vec<Check> {
    vec![
        fuse(machine),
        fuse_others(machine),
        io_uring(machine),
        ublk(machine),
        nbd(machine),
        loops(machine),
        vsock(machine),
    ]
}

fn fuse(machine: &Machine) -> Check {
    let check = |status, found: &str| Check::new("fuse", "serve --files, mount", status, found);
    match machine.may_use("dev/fuse") {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            check(Missing, "there is no /dev/fuse").advice("'modprobe fuse'; in a container, --device /dev/fuse")
        }
        Err(error) => check(Missing, &format!("/dev/fuse: {error}")).advice("chmod 666 /dev/fuse, or run it as root"),
        Ok(()) if machine.is_root() => check(Works, "/dev/fuse can be used"),
        Ok(()) if machine.has_program("fusermount3") => check(Works, "/dev/fuse and fusermount3 can be used"),
        Ok(()) => check(Missing, "users other than root need fusermount3").advice("install it (Debian: fuse3)"),
    }
}

fn fuse_others(machine: &Machine) -> Check {
    let check = |status, found| Check::new("fuse-others", "serve --files for other users", status, found);
    if machine.is_root() {
        return check(Works, "root may show files to other users");
    }
    let allows = |text: String| text.lines().any(|line| line.trim() == "user_allow_other");
    if machine.read("etc/fuse.conf").is_some_and(allows) {
        return check(Works, "/etc/fuse.conf has user_allow_other");
    }
    check(Missing, "/etc/fuse.conf lacks user_allow_other").advice("add this line, or run the server as root")
}

fn io_uring(machine: &Machine) -> Check {
    let check = |status, found: &str| Check::new("io_uring", "attach --via ublk", status, found);
    let Err(why) = &machine.io_uring else { return check(Works, "it can be used") };
    let found = format!("it cannot be used: {why}");
    match machine.read("proc/sys/kernel/io_uring_disabled").as_deref() {
        Some("1") => {
            check(Missing, &found).advice("add the user to the group kernel.io_uring_group, or run it as root")
        }
        Some("2") => check(Missing, &found).advice("sysctl kernel.io_uring_disabled=0"),
        _ if machine.is_filtered() => {
            check(Missing, &found).advice("allow io_uring_setup in the container's seccomp profile")
        }
        _ => check(Missing, &found).advice("use a kernel that has it"),
    }
}

fn ublk(machine: &Machine) -> Check {
    let old = machine.linux().filter(|version| *version < LEAST_LINUX_FOR_UBLK);
    if let Some((major, minor)) = old {
        let found = format!("Linux {major}.{minor} has no suitable ublk driver");
        return Check::new("ublk", "attach --via ublk", Missing, found).advice("use Linux 6.5 or newer, or --via nbd");
    }
    module(machine, "ublk", "ublk_drv", "attach --via ublk", machine.exists("dev/ublk-control"))
}

fn nbd(machine: &Machine) -> Check {
    module(machine, "nbd", "nbd", "attach --via nbd", machine.exists("dev/nbd0"))
}

fn loops(machine: &Machine) -> Check {
    module(machine, "loop", "loop", "attach --via loop, mount -o loop", machine.exists("dev/loop-control"))
}

fn vsock(machine: &Machine) -> Check {
    let check = |status, found: &str| Check::new("vsock", "serve --vsock", status, found);
    // This machine may be a host, a guest, or both.
    match (machine.exists("dev/vsock"), machine.exists("dev/vhost-vsock")) {
        (_, true) => check(Works, "virtual machines of this host can connect"),
        (true, false) => check(Limited, "processes of this machine, and its host if it is a guest, can connect")
            .advice("for virtual machines of this host: 'modprobe vhost_vsock'"),
        (false, false) => check(Missing, "the kernel has no vsock sockets").advice("'modprobe vhost_vsock'"),
    }
}

/// Checks a module and its device file, for what needs root.
fn module(machine: &Machine, name: &'static str, module: &str, used_by: &'static str, has_device: bool) -> Check {
    let check = |status: Status, found: String| Check::new(name, used_by, status, found);
    match machine.module(module) {
        _ if has_device && machine.is_root() => check(Works, "the kernel has it".to_owned()),
        _ if has_device => {
            check(Limited, "the kernel has it, and only root may use it".to_owned()).advice("run the command as root")
        }
        Module::Loaded => {
            check(Missing, format!("the module {module} is loaded, but its device files are not in /dev"))
                .advice("in a container, pass /dev of the machine")
        }
        Module::Available => {
            check(Missing, format!("the module {module} is not loaded")).advice(format!("as root: modprobe {module}"))
        }
        Module::Absent => check(Missing, format!("this kernel has no module {module}"))
            .advice("use another way (docs/ways.md), or a kernel that has it"),
        Module::Unknown => {
            check(Missing, format!("the module {module} is not loaded, and /lib/modules is not visible"))
                .advice(format!("on the machine itself, as root: modprobe {module}"))
        }
    }
}

//! Checks which images the kernel can mount.

use super::{
    check::{
        Check,
        Status::{Limited, Missing, Works},
    },
    machine::{Machine, Module},
};

/// A feature that some images need, with its file in `/sys/fs/erofs/features` or the first Linux
/// that has it.
struct Need {
    feature: &'static str,
    linux: (u32, u32),
    options: &'static str,
}

/// As docs/erofs.md lists them. Features without a file depend on the version only.
const NEEDS: [Need; 9] = [
    Need { feature: "big_pcluster", linux: (5, 13), options: "--cluster above a block" },
    Need { feature: "chunked_file", linux: (5, 15), options: "--chunk" },
    Need { feature: "device_table", linux: (5, 16), options: "freeze --backing" },
    Need { feature: "ztailpacking", linux: (5, 17), options: "--ztailpacking" },
    Need { feature: "fragments", linux: (6, 1), options: "--fragments" },
    Need { feature: "dedupe", linux: (6, 1), options: "--dedupe" },
    Need { feature: "", linux: (6, 6), options: "--codec deflate" },
    Need { feature: "", linux: (6, 10), options: "--codec zstd" },
    Need { feature: "48bit", linux: (6, 15), options: "large sparse disks (--indexes compact avoids it)" },
];

/// Returns the names of all features that images may need.
#[cfg(test)]
pub(super) fn features() -> impl Iterator<Item = &'static str> {
    NEEDS.iter().map(|need| need.feature).filter(|feature| !feature.is_empty())
}

pub(super) fn checks(machine: &Machine) -> Vec<Check> {
    vec![erofs(machine)]
}

fn erofs(machine: &Machine) -> Check {
    let check = |status, found: String| Check::new("erofs", "mount -t erofs", status, found);
    let systems = machine.read("proc/filesystems").unwrap_or_default();
    if !systems.lines().any(|line| line.trim() == "erofs") {
        let instead = "'pagefold mount' needs no module";
        return match machine.module("erofs") {
            Module::Available | Module::Loaded => check(Limited, "the module erofs is not loaded".to_owned())
                .advice(format!("as root: modprobe erofs; mount does it by itself; {instead}")),
            Module::Absent => check(Missing, "this kernel has no EROFS".to_owned()).advice(instead),
            Module::Unknown => check(Missing, "EROFS is not loaded, and /lib/modules is not visible".to_owned())
                .advice(format!("on the machine itself, as root: modprobe erofs; {instead}")),
        };
    }
    let features = machine.names("sys/fs/erofs/features");
    let version = machine.linux();
    let lacks = |need: &&Need| match &features {
        Some(features) if !need.feature.is_empty() => !features.iter().any(|feature| feature == need.feature),
        _ => version.is_some_and(|version| version < need.linux),
    };
    let lacking: Vec<_> = NEEDS.iter().filter(lacks).collect();
    if lacking.is_empty() {
        return check(Works, "all images of this program, if the kernel was built with their codecs".to_owned());
    }
    let words = |need: &&Need| format!("{} (Linux {}.{})", need.options, need.linux.0, need.linux.1);
    let words: Vec<_> = lacking.iter().map(words).collect();
    check(Limited, format!("not images with {}", words.join(", "))).advice("'pagefold mount' reads them all")
}

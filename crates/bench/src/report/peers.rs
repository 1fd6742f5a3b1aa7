//! Other projects' programs and devices that a run compares with: which are available, and how to
//! get the missing ones.

use std::{
    env, fs,
    fs::OpenOptions,
    path::{Path, PathBuf},
};

use pagefold_oracle::Liblzo2;

use super::record::Line;

/// A peer, how to find it, and how to get it.
struct Peer {
    name: &'static str,
    kind: PeerKind,
    /// How a reader can get it.
    how: &'static str,
}

enum PeerKind {
    /// A program in the PATH or in root's directories.
    Program,
    /// A file system that the kernel mounts, which needs root.
    FileSystem,
    /// The kernel's compressed RAM disk, unused.
    Zram,
    /// The C library, opened at run time.
    Lzo,
}

use PeerKind::{FileSystem, Lzo, Program, Zram};

const PEERS: &[Peer] = &[
    Peer { name: "nbdkit", kind: Program, how: "apt-get install nbdkit" },
    Peer { name: "zram", kind: Zram, how: "as root: modprobe zram num_devices=1; /dev/zram0 must be unused" },
    Peer { name: "liblzo2", kind: Lzo, how: "apt-get install liblzo2-2" },
    Peer { name: "mkfs.erofs", kind: Program, how: "apt-get install erofs-utils" },
    Peer { name: "fsck.erofs", kind: Program, how: "apt-get install erofs-utils" },
    Peer { name: "erofsfuse", kind: Program, how: "apt-get install erofsfuse" },
    Peer { name: "mksquashfs", kind: Program, how: "apt-get install squashfs-tools" },
    Peer { name: "unsquashfs", kind: Program, how: "apt-get install squashfs-tools" },
    Peer { name: "squashfuse", kind: Program, how: "apt-get install squashfuse" },
    Peer { name: "mkfs.ext4", kind: Program, how: "apt-get install e2fsprogs" },
    Peer { name: "fusermount3", kind: Program, how: "apt-get install fuse3" },
    Peer { name: "nbdfuse", kind: Program, how: "apt-get install nbdfuse" },
    Peer { name: "qemu-img", kind: Program, how: "apt-get install qemu-utils" },
    Peer { name: "qemu-nbd", kind: Program, how: "apt-get install qemu-utils" },
    Peer { name: "qemu-storage-daemon", kind: Program, how: "apt-get install qemu-system-common" },
    Peer { name: "mkfs.btrfs", kind: Program, how: "apt-get install btrfs-progs" },
    Peer { name: "dmsetup", kind: Program, how: "apt-get install dmsetup" },
    Peer { name: "python3", kind: Program, how: "apt-get install python3" },
    Peer { name: "node", kind: Program, how: "apt-get install nodejs" },
    Peer { name: "kernel EROFS", kind: FileSystem, how: "as root, with a kernel that has EROFS (modprobe erofs)" },
    Peer {
        name: "kernel squashfs",
        kind: FileSystem,
        how: "as root, with a kernel that has squashfs (modprobe squashfs)",
    },
    Peer { name: "kernel ext4", kind: FileSystem, how: "as root, with a kernel that has ext4 (modprobe ext4)" },
];

/// The peers that this machine has.
pub(super) struct Peers {
    found: Vec<(&'static str, Option<String>, &'static str)>,
}

impl Peers {
    pub(super) fn find() -> Self {
        let found = PEERS.iter().map(|peer| (peer.name, peer.found(), peer.how)).collect();
        Self { found }
    }

    /// Whether a peer is available.
    pub(super) fn has(&self, name: &str) -> bool {
        self.found.iter().any(|(other, found, _)| *other == name && found.is_some())
    }

    /// Returns how to get a peer.
    pub(super) fn how(&self, name: &str) -> &'static str {
        self.found.iter().find(|(other, ..)| *other == name).map_or("", |(.., how)| how)
    }

    /// Returns a line of the record for each peer.
    pub(super) fn lines(&self) -> impl Iterator<Item = Line> + '_ {
        self.found.iter().map(|(name, found, how)| {
            let is_here = f64::from(u8::from(found.is_some()));
            Line::about(name, found.as_deref().unwrap_or(how), "peer", is_here, "")
        })
    }
}

impl Peer {
    /// Returns where the peer is, or `None` if it is missing.
    fn found(&self) -> Option<String> {
        match self.kind {
            Program => program(self.name).map(|path| path.display().to_string()),
            FileSystem => {
                let name = self.name.rsplit(' ').next()?.to_lowercase();
                let known = fs::read_to_string("/proc/filesystems").ok()?;
                (rustix::process::geteuid().is_root() && known.split_whitespace().any(|other| other == name))
                    .then(|| "kernel".to_owned())
            }
            Zram => {
                // A disk that is already set up must not be reset.
                let size = fs::read_to_string("/sys/block/zram0/disksize").ok()?;
                let is_ours = size.trim() == "0" && OpenOptions::new().write(true).open(ZRAM_RESET).is_ok();
                is_ours.then(|| "/dev/zram0".to_owned())
            }
            Lzo => Liblzo2::open().map(|_| "liblzo2.so.2".to_owned()),
        }
    }
}

const ZRAM_RESET: &str = "/sys/block/zram0/reset";

/// Frees what a killed part left in zram. Only for a disk that was unused before.
pub(super) fn reset_zram() {
    // If it was not set up, there is nothing to reset.
    let _ = fs::write(ZRAM_RESET, "1");
}

fn program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]).collect();
    folders.iter().map(|folder| folder.join(name)).find(|full| Path::is_file(full))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_here_or_there_is_a_way_to_get_it() {
        let peers = Peers::find();
        for line in peers.lines() {
            assert!(!line.subject.is_empty(), "{}", line.case);
            assert_eq!(line.value > 0.0, peers.has(&line.case), "{}", line.case);
            assert!(!peers.how(&line.case).is_empty());
        }
        assert!(!peers.has("no such peer"));
    }
}

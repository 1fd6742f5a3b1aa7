//! Other projects' programs and devices that a run compares with, `data/peers.txt`: which are
//! available, and how to get the missing ones.

use std::{
    fs::{self, OpenOptions},
    path::Path,
};

use pagefold_oracle::Liblzo2;

use crate::{line::Line, record::ABOUT, tool};

/// A peer's name, what was found of it, and how a reader can get it.
struct Peer {
    name: &'static str,
    found: Option<String>,
    how: &'static str,
}

/// The peers, those that this machine has and those that it lacks.
pub(super) struct Peers(Vec<Peer>);

impl Peers {
    pub(super) fn find() -> Self {
        let rows = include_str!("../data/peers.txt").lines();
        let parsed = rows.filter_map(|row| match row.split(" | ").collect::<Vec<_>>()[..] {
            [name, kind, how] => Some(Peer { name, found: found(name, kind), how }),
            _ => None,
        });
        Self(parsed.collect())
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.missing(name).is_none()
    }

    /// Returns how to get a peer that is missing.
    pub(super) fn missing(&self, name: &str) -> Option<String> {
        let missing = self.0.iter().find(|peer| peer.name == name && peer.found.is_none())?;
        Some(format!("{name} is missing: {}", missing.how))
    }

    /// Returns a line of the record for each peer.
    pub(super) fn lines(&self) -> impl Iterator<Item = Line> + '_ {
        self.0.iter().map(|Peer { name, found, how }| {
            let is_here = f64::from(u8::from(found.is_some()));
            Line::new([ABOUT, name, found.as_deref().unwrap_or(how), "peer", ""], is_here)
        })
    }
}

/// Returns what was found of a peer, or `None` if it is missing.
fn found(name: &str, kind: &str) -> Option<String> {
    match kind {
        // A program in the PATH or in root's directories. A record does not say in which.
        "Program" => tool::find(name).ok().map(|_| name.to_owned()),
        // A file system that the kernel mounts, which needs root.
        "FileSystem" => {
            let name = name.rsplit(' ').next()?.to_lowercase();
            let known = fs::read_to_string("/proc/filesystems").ok()?;
            (rustix::process::geteuid().is_root() && known.split_whitespace().any(|other| other == name))
                .then(|| "kernel".to_owned())
        }
        // The kernel's compressed RAM disk. One that is already set up must not be reset.
        "Zram" => {
            let size = fs::read_to_string("/sys/block/zram0/disksize").ok()?;
            let is_ours = size.trim() == "0" && OpenOptions::new().write(true).open(ZRAM_RESET).is_ok();
            is_ours.then(|| "/dev/zram0".to_owned())
        }
        // The C library, opened at run time.
        "Lzo" => Liblzo2::open().map(|_| "liblzo2.so.2".to_owned()),
        _ => None,
    }
}

const ZRAM_RESET: &str = "/sys/block/zram0/reset";

/// Frees what a killed part left in zram. Only for a disk that was unused before.
pub(super) fn reset_zram() {
    // If it was not set up, there is nothing to reset.
    let _ = fs::write(Path::new(ZRAM_RESET), "1");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_here_or_there_is_a_way_to_get_it() {
        let peers = Peers::find();
        assert!(peers.0.len() > 15);
        for line in peers.lines() {
            assert!(!line.subject.is_empty(), "{}", line.case);
            assert_eq!(line.value > 0.0, peers.has(&line.case), "{}", line.case);
        }
    }
}

//! Prepares a server for disks that a system swaps to: the server's own memory must never be
//! swapped out.

use std::fs;

use anyhow::{Context, bail};
use rustix::{
    io::Errno,
    mm::{MlockAllFlags, mlockall},
    process::{Resource, Rlimit, configure_io_flusher_behavior, getrlimit, setrlimit},
    system::uname,
    thread::{CapabilitySet, capabilities},
};

use crate::{log::Log, size};

/// First Linux that frees parts of locked memory (`MADV_DONTNEED_LOCKED`). On older ones, the
/// disks' memory would only grow.
pub(crate) const LEAST_LINUX: (u32, u32) = (5, 18);

/// Value of `oom_score_adj` that exempts a process from the out-of-memory killer.
const NEVER_KILL: &str = "-1000";

/// Locks the current and future memory of this process, and exempts it from the out-of-memory
/// killer and from I/O in reclaim. To be called before disks are created.
pub(crate) fn prepare(log: Log) -> anyhow::Result<()> {
    let release = uname().release().to_string_lossy().into_owned();
    let (major, minor) = LEAST_LINUX;
    if version(&release).is_some_and(|version| version < LEAST_LINUX) {
        bail!("--swap needs Linux {major}.{minor} or newer, and this is {release}");
    }
    lock()?;
    let spared = fs::write("/proc/self/oom_score_adj", NEVER_KILL).is_ok();
    // Reclaiming memory for this process then starts no I/O.
    if !(spared & configure_io_flusher_behavior(true).is_ok()) {
        log.warn(
            "--swap: when memory is short the system may kill this server or make it wait for its own disks; start it with \
             CAP_SYS_RESOURCE (root, or AmbientCapabilities=CAP_SYS_RESOURCE)",
        );
    }
    Ok(())
}

/// Locks all current mappings. Pages of later mappings are locked at their first use, because a
/// pool reserves far more address space than it uses.
fn lock() -> anyhow::Result<()> {
    let Rlimit { current, maximum } = getrlimit(Resource::Memlock);
    let is_unlimited = maximum.is_none()
        && (current.is_none() || setrlimit(Resource::Memlock, Rlimit { current: None, maximum }).is_ok());
    // The limit counts reserved addresses, so a finite one would stop a pool's growth at some
    // point.
    let may_lock = is_unlimited || capabilities(None).is_ok_and(|own| own.effective.contains(CapabilitySet::IPC_LOCK));
    let locked = if may_lock {
        mlockall(MlockAllFlags::CURRENT).and_then(|()| mlockall(MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT))
    } else {
        Err(Errno::PERM)
    };
    locked.with_context(|| {
        let limit = maximum.map_or_else(|| "none".to_owned(), size::written);
        format!(
            "--swap cannot lock the server's memory: raise the limit of locked memory ({limit}) (ulimit -l unlimited, \
             LimitMEMLOCK=infinity), or start it with CAP_IPC_LOCK (as root)"
        )
    })
}

/// Parses the version from a kernel's release.
pub(crate) fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_have_versions() {
        for (release, expected) in [
            ("6.1.0-18-amd64", Some((6, 1))),
            ("5.18", Some((5, 18))),
            ("6.10+", Some((6, 10))),
            ("x", None),
            ("6", None),
        ] {
            assert_eq!(version(release), expected, "{release}");
        }
    }
}

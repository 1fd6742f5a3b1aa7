//! The memory that the machine has and that the process may use.

use rustix::process::{Resource, getrlimit};

/// Returns the bytes of RAM and swap, if the system reports them.
pub(crate) fn bytes() -> Option<u64> {
    let info = rustix::system::sysinfo();
    let units = (info.totalram as u64).checked_add(info.totalswap as u64)?;
    units.checked_mul(u64::from(info.mem_unit)).filter(|&bytes| bytes > 0)
}

/// Returns the bytes of address space that the process may still reserve (`ulimit -v`), or
/// `usize::MAX` without such a limit.
pub(crate) fn address_space() -> usize {
    let Some(limit) = getrlimit(Resource::As).current else { return usize::MAX };
    let pages = std::fs::read_to_string("/proc/self/statm");
    let pages = pages.ok().and_then(|fields| fields.split(' ').next()?.parse::<u64>().ok()).unwrap_or(0);
    limit.saturating_sub(pages * rustix::param::page_size() as u64) as usize
}

/// Returns whether the system charges the process for writable memory even if unused: it does not
/// overcommit (`vm.overcommit_memory=2`), or limits writable memory (`ulimit -d`). True if that is
/// unknown.
pub(crate) fn is_charged_unused() -> bool {
    getrlimit(Resource::Data).current.is_some()
        || std::fs::read("/proc/sys/vm/overcommit_memory").map_or(true, |mode| mode.trim_ascii() == b"2")
}

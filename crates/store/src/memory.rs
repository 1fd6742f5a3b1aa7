//! The machine's memory.

/// Returns the bytes of RAM and swap, if the system reports them.
pub(crate) fn bytes() -> Option<u64> {
    let info = rustix::system::sysinfo();
    let units = (info.totalram as u64).checked_add(info.totalswap as u64)?;
    units.checked_mul(u64::from(info.mem_unit)).filter(|&bytes| bytes > 0)
}

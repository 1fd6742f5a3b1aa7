//! The machine's memory.

/// Bytes of RAM and swap, if the system tells.
pub(crate) fn bytes() -> Option<u64> {
    let info = rustix::system::sysinfo();
    let units = (info.totalram as u64).checked_add(info.totalswap as u64)?;
    units.checked_mul(u64::from(info.mem_unit)).filter(|&bytes| bytes > 0)
}

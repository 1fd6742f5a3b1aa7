//! Memory that a process owns, or shares by fork, read while the process waits.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
};

use anyhow::Context;
use pagefold_codec::PAGE_SIZE;

use super::even::Even;

/// Returns at most `limit_pages` pages of the process's anonymous mappings, spread evenly.
pub(super) fn pages(pid: u32, limit_pages: usize) -> anyhow::Result<Vec<u8>> {
    let open = |name: &str| {
        let path = format!("/proc/{pid}/{name}");
        File::open(&path).with_context(|| format!("cannot read {path}"))
    };
    let (memory, present) = (open("mem")?, open("pagemap")?);
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let mut even = Even::new(limit_pages);
    let mut page = [0; PAGE_SIZE];
    for (start, end) in maps.lines().filter_map(anonymous) {
        for address in (start..end).step_by(PAGE_SIZE) {
            if was_touched(&present, address)? && memory.read_exact_at(&mut page, address).is_ok() {
                even.push(&page);
            }
        }
    }
    Ok(even.finish())
}

/// Returns the address range of a line of `/proc/PID/maps` if it is writable and not backed by a
/// file (proc_pid_maps(5): `start-end perms offset dev inode [name]`). Shared anonymous memory is
/// named `/dev/zero (deleted)`; an allocator may give names such as `[anon:name]`.
fn anonymous(line: &str) -> Option<(u64, u64)> {
    let mut fields = line.split_whitespace();
    let (range, permissions) = (fields.next()?, fields.next()?);
    let name = fields.nth(3).unwrap_or("");
    let taken = match permissions.as_bytes() {
        [b'r', b'w', _, b'p'] => name.is_empty() || name == "[heap]" || name.starts_with("[anon:"),
        [b'r', b'w', _, b's'] => name == "/dev/zero",
        _ => false,
    };
    let (start, end) = range.split_once('-').filter(|_| taken)?;
    Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
}

/// Whether the page is in memory or swapped out (bits 63 and 62 of proc_pid_pagemap(5)). Any other
/// page would read as zeros.
fn was_touched(pagemap: &File, address: u64) -> anyhow::Result<bool> {
    let mut word = [0; 8];
    pagemap.read_exact_at(&mut word, address / PAGE_SIZE as u64 * 8)?;
    Ok(u64::from_le_bytes(word) >> 62 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_anonymous_memory_is_read() {
        let range = Some((0x7f00_0000_0000, 0x7f00_0000_1000));
        for taken in [
            "7f0000000000-7f0000001000 rw-p 00000000 00:00 0                          [heap]",
            "7f0000000000-7f0000001000 rw-p 00000000 00:00 0",
            "7f0000000000-7f0000001000 rwxp 00000000 00:00 0",
            "7f0000000000-7f0000001000 rw-p 00000000 00:00 0                          [anon:v8]",
            "7f0000000000-7f0000001000 rw-s 00000000 00:01 33                         /dev/zero (deleted)",
        ] {
            assert_eq!(anonymous(taken), range, "{taken}");
        }
        for other in [
            "7ffd5e400000-7ffd5e421000 rw-p 00000000 00:00 0                          [stack]",
            "7f0000000000-7f0000001000 r--p 00000000 00:00 0",
            "7f0000000000-7f0000001000 rw-s 00000000 00:00 0",
            "7f0000000000-7f0000001000 rw-p 00001000 08:01 77   /usr/lib/libc.so.6",
            "nonsense",
        ] {
            assert_eq!(anonymous(other), None, "{other}");
        }
    }
}

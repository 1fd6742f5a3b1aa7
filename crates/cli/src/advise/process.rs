//! A process's own memory: the pages that the system would have to swap out.
//!
//! `smaps` lists the mappings. `pagemap` has a word per page (kernel document
//! `admin-guide/mm/pagemap.rst`): bit 63 is set if the page is in RAM, 62 if it is swapped out, and
//! 61 if it belongs to a file or is shared. Unchanged pages of files are left out: the system drops
//! them and reads them from the files again.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, ErrorKind},
    os::unix::fs::FileExt,
    sync::Arc,
};

use anyhow::{anyhow, bail, ensure};
use pagefold_erofs::Span;
use rustix::{param::page_size, process::geteuid};

use super::{
    clock::Deadline,
    input::{Files, Input, InputKind, Names, Skipped},
    stratum::Stratum,
    walk::is_denied,
};

const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OF_FILE: u64 = 1 << 61;

/// Words of `pagemap` per read.
const WORDS: usize = 1 << 16;

/// A mapping listed in `smaps`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Mapping {
    from: u64,
    to: u64,
    readable: bool,
    /// Whether it belongs to a file from which its pages can be read again.
    of_file: bool,
    /// Bytes in RAM or swapped out.
    held_bytes: u64,
    /// Memory of a device, or special memory of the kernel.
    special: bool,
}

/// Examines the memory of process `pid` until `end`.
pub(super) fn look_at(pid: u32, end: Deadline<'_>) -> anyhow::Result<Input> {
    if pid == std::process::id() {
        bail!("process {pid} is this command itself: give another process");
    }
    let refused = |error: io::Error| explain(pid, error);
    let smaps = File::open(format!("/proc/{pid}/smaps")).map_err(refused)?;
    let memory = File::open(format!("/proc/{pid}/mem")).map_err(refused)?;
    let pagemap = File::open(format!("/proc/{pid}/pagemap")).map_err(refused)?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let (mappings, is_complete) = mappings(BufReader::new(smaps), end).map_err(refused)?;
    if mappings.is_empty() {
        bail!("process {pid} has no memory: it has exited, or it is a kernel thread");
    }
    let mut parts = Vec::new();
    let mut skipped = Skipped { more: !is_complete, ..Skipped::default() };
    for mapping in mappings.iter().filter(|mapping| mapping.held_bytes > 0) {
        if mapping.special {
            continue;
        }
        if !mapping.readable {
            skipped.unreadable += 1;
        } else if end.is_over() || !add_pages(mapping, &pagemap, end, &mut parts, &mut skipped).map_err(refused)? {
            skipped.more = true;
            break;
        }
    }
    let len: u64 = parts.iter().map(|part| part.len).sum();
    ensure!(len > 0, "process {pid} has no readable private memory");
    let mut stratum = Stratum::of_pieces();
    stratum.add(0, 0, len);
    Ok(Input {
        kind: InputKind::Process,
        name: format!("process {pid} ({})", name.trim_end()),
        files: Files::Parts(Arc::new(memory), parts),
        strata: vec![stratum],
        names: Names { files: 1, ..Names::default() },
        skipped,
        hole_bytes: 0,
    })
}

fn explain(pid: u32, error: io::Error) -> anyhow::Error {
    if error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) {
        return anyhow!("process {pid} does not exist");
    }
    if !is_denied(&error) {
        return anyhow::Error::new(error).context(format!("reading the memory of process {pid}"));
    }
    let advice = if geteuid().is_root() {
        "root needs CAP_SYS_PTRACE for it, which this process lacks, or a security module forbids it".to_owned()
    } else {
        let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
        let scope = match scope.trim() {
            "" | "0" => String::new(),
            scope => format!(" (kernel.yama.ptrace_scope is {scope})"),
        };
        format!("run this as root, or with CAP_SYS_PTRACE{scope}")
    };
    anyhow!("reading the memory of process {pid}: permission denied; {advice}")
}

/// Adds the pages of a mapping that belong to the process alone. Returns `false` if the time is
/// over.
fn add_pages(
    mapping: &Mapping,
    pagemap: &File,
    end: Deadline<'_>,
    parts: &mut Vec<Span>,
    skipped: &mut Skipped,
) -> io::Result<bool> {
    let page_bytes = page_size() as u64;
    let pages = (mapping.to - mapping.from) / page_bytes;
    let mut bytes = vec![0; WORDS * 8];
    let mut at = 0;
    while at < pages {
        if end.is_over() {
            return Ok(false);
        }
        let count = (pages - at).min(WORDS as u64);
        let offset = (mapping.from / page_bytes + at) * 8;
        let len = pagemap.read_at(&mut bytes[..count as usize * 8], offset)? / 8;
        if len == 0 {
            // The range has been unmapped in the meantime.
            break;
        }
        for (number, word) in bytes[..len * 8].chunks_exact(8).enumerate() {
            let word = u64::from_ne_bytes(word.try_into().unwrap_or_default());
            if word & (PRESENT | SWAPPED) == 0 {
                continue;
            }
            if mapping.of_file && word & OF_FILE != 0 {
                skipped.of_files_bytes += page_bytes;
                continue;
            }
            let source = mapping.from + (at + number as u64) * page_bytes;
            match parts.last_mut() {
                Some(last) if last.source + last.len == source => last.len += page_bytes,
                last => {
                    let at = last.map_or(0, |last| last.at + last.len);
                    parts.push(Span { at, len: page_bytes, source });
                }
            }
        }
        at += len as u64;
    }
    Ok(true)
}

/// Parses the mappings that `smaps` lists until `end`, and returns whether these are all. The kernel
/// visits the pages of the mappings that are read.
fn mappings(smaps: impl BufRead, end: Deadline<'_>) -> io::Result<(Vec<Mapping>, bool)> {
    let mut found: Vec<Mapping> = Vec::new();
    for line in smaps.lines() {
        let line = line?;
        match line.split_once(' ') {
            Some((range, rest)) if !range.ends_with(':') => {
                if end.is_over() {
                    return Ok((found, false));
                }
                found.extend(mapping(range, rest));
            }
            Some((key, value)) => {
                let Some(last) = found.last_mut() else { continue };
                let kib = || value.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0);
                match key {
                    "Rss:" | "Swap:" => last.held_bytes = last.held_bytes.saturating_add(kib().saturating_mul(1024)),
                    // Device memory (`io`), and pages that only the kernel knows (`pf`).
                    "VmFlags:" => last.special |= value.split(' ').any(|flag| flag == "io" || flag == "pf"),
                    _ => {}
                }
            }
            None => {}
        }
    }
    Ok((found, true))
}

/// Parses the line `from-to`, `rw-p offset device inode path`.
fn mapping(range: &str, rest: &str) -> Option<Mapping> {
    let (from, to) = range.split_once('-')?;
    let [from, to] = [from, to].map(|address| u64::from_str_radix(address, 16).ok());
    let mut words = rest.split_ascii_whitespace();
    let permissions = words.next()?;
    let inode = words.nth(2)?;
    let path = words.next().unwrap_or_default();
    // These are in memory, so the system swaps them out.
    let in_memory = ["/memfd:", "/dev/shm/", "/dev/zero", "/SYSV"].iter().any(|start| path.starts_with(start));
    Some(Mapping {
        from: from?,
        to: to.filter(|to| Some(*to) >= from)?,
        readable: permissions.starts_with('r'),
        of_file: inode != "0" && !in_memory,
        held_bytes: 0,
        special: ["[vvar", "[vdso", "[vsyscall"].iter().any(|start| path.starts_with(start))
            || path.starts_with("/dev/") && !in_memory,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{super::clock::Clock, *};

    #[test]
    fn mappings_are_distinguished() {
        let smaps = "\
00400000-00401000 r-xp 00000000 fe:00 123   /usr/bin/a program
Rss:                   4 kB
Swap:                  0 kB
VmFlags: rd ex mr mw me
7f0000000000-7f0000100000 rw-p 00000000 00:00 0
Rss:                 512 kB
Swap:                 12 kB
VmFlags: rd wr mr mw me ac
7f0000100000-7f0000200000 ---p 00000000 00:00 0
Rss:                   0 kB
7f0000200000-7f0000300000 rw-s 00000000 00:05 9   /dev/nvidia0
VmFlags: rd wr sh io pf
7f0000300000-7f0000400000 rw-s 00000000 00:05 9   /dev/shm/a
7fff00000000-7fff00001000 r--p 00000000 00:00 0   [vvar]
nonsense
";
        let clock = Clock::counted(Duration::from_secs(1));
        let (found, is_complete) = mappings(smaps.as_bytes(), clock.until(Duration::from_secs(100))).expect("text");
        assert!(is_complete);
        let brief: Vec<_> = found.iter().map(|m| (m.readable, m.of_file, m.held_bytes >> 10, m.special)).collect();
        let expected = [
            (true, true, 4, false),
            (true, false, 524, false),
            (false, false, 0, false),
            (true, true, 0, true),
            (true, false, 0, false),
            (true, false, 0, true),
        ];
        assert_eq!(brief, expected);
        assert_eq!((found[0].from, found[0].to), (0x40_0000, 0x40_1000));
        let clock = Clock::counted(Duration::from_secs(1));
        let (found, is_complete) = mappings(smaps.as_bytes(), clock.until(Duration::from_secs(3))).expect("text");
        assert_eq!((found.len(), is_complete), (2, false));
    }
}

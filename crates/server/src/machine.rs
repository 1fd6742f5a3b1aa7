//! The memory available to a server: the machine's, the limit of a control group that it runs in, or
//! that of its own address space or writable memory.

use std::{
    fmt, fs,
    path::{Component, Path, PathBuf},
};

use pagefold_size as size;
use rustix::process::{Resource, getrlimit};

/// The least address space for a server: threads, their heaps, and what the pool reserves.
const LEAST_ADDRESS_SPACE: u64 = 160 << 20;

/// The memory that a server can use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    pub(crate) bytes: u64,
    bound: Bound,
}

/// What bounds the memory.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Bound {
    Machine,
    /// A control group, with the file that limits it.
    Group(PathBuf),
    AddressSpace,
    Data,
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = size::show(self.bytes);
        match &self.bound {
            Bound::Machine => write!(f, "the machine's memory of {bytes}"),
            Bound::Group(file) => write!(f, "the control group's memory of {bytes} ({})", file.display()),
            Bound::AddressSpace => write!(f, "the address space of {bytes} (ulimit -v)"),
            Bound::Data => write!(f, "the writable memory of {bytes} (ulimit -d)"),
        }
    }
}

impl Memory {
    /// Returns the memory of this machine, of the narrowest control group around this process, or
    /// that which the process itself may use, whichever is smallest; `None` if it is unknown.
    pub(crate) fn find() -> Option<Self> {
        smallest(Self::under(Path::new("/")), Self::own(""))
    }

    /// Returns what the limits of the process leave, whose `/proc/self/statm` this is.
    fn own(statm: &str) -> Option<Self> {
        let used_bytes = |field: usize| {
            let pages = statm.split(' ').nth(field).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
            pages * rustix::param::page_size() as u64
        };
        let left = |resource, field, bound| {
            let limit_bytes = getrlimit(resource).current?;
            Some(Self { bytes: limit_bytes.saturating_sub(used_bytes(field)), bound })
        };
        // proc_pid_statm(5): the first field is the size, the sixth the writable memory.
        smallest(left(Resource::As, 0, Bound::AddressSpace), left(Resource::Data, 5, Bound::Data))
    }

    /// Returns the memory of the machine, or of the narrowest control group around this process, of
    /// a system whose `/proc` and `/sys` are below `root`; `None` if it is unknown.
    pub fn under(root: &Path) -> Option<Self> {
        Self::all(root, "MemTotal").into_iter().reduce(Self::min)
    }

    /// Returns how much memory processes can still get, and what bounds it; `None` if it is
    /// unknown.
    pub(crate) fn available() -> Option<Self> {
        let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
        smallest(Self::available_under(Path::new("/")), Self::own(&statm))
    }

    fn available_under(root: &Path) -> Option<Self> {
        let left = Self::all(root, "MemAvailable").into_iter().map(|memory| {
            let used_bytes = if let Bound::Group(file) = &memory.bound { used_bytes(root, file) } else { 0 };
            Self { bytes: memory.bytes.saturating_sub(used_bytes), ..memory }
        });
        left.reduce(Self::min)
    }

    /// Returns the machine's memory, from a line of `/proc/meminfo`, and the limits of control
    /// groups.
    fn all(root: &Path, line: &str) -> Vec<Self> {
        let machine = fs::read_to_string(root.join("proc/meminfo")).ok().and_then(|text| meminfo_bytes(&text, line));
        let machine = machine.map(|bytes| Self { bytes, bound: Bound::Machine });
        let read = |name: &str| fs::read_to_string(root.join(name)).unwrap_or_default();
        let (groups, mounts) = (read("proc/self/cgroup"), read("proc/self/mountinfo"));
        let limits = mounts.lines().filter_map(Mount::parse).flat_map(|mount| mount.limits(root, &groups));
        machine.into_iter().chain(limits).collect()
    }

    /// Returns the limit of a server for which none is given: half of the memory, in whole pages.
    pub fn half_bytes(&self) -> u64 {
        self.bytes / 2 / 4096 * 4096
    }

    /// Returns what is wrong with a limit that is larger than the memory.
    pub(crate) fn warning(&self, limit_bytes: u64) -> Option<String> {
        (limit_bytes > self.bytes).then(|| {
            let limit = size::written(limit_bytes);
            let then = match self.bound {
                Bound::AddressSpace | Bound::Data => "writes fail",
                Bound::Machine | Bound::Group(_) => "the system may end the server",
            };
            format!("the memory limit of {limit} exceeds {self}: when that is used up, {then}")
        })
    }

    /// Returns the one with fewer bytes.
    fn min(self, other: Self) -> Self {
        if other.bytes < self.bytes { other } else { self }
    }
}

/// Returns the limit of a server for which none is given; `None` if it has none.
pub fn default_limit_bytes() -> Option<u64> {
    Memory::find().map(|memory| memory.half_bytes())
}

fn smallest(one: Option<Memory>, other: Option<Memory>) -> Option<Memory> {
    one.into_iter().chain(other).reduce(Memory::min)
}

/// Returns why this process has too little address space for a server.
pub(crate) fn lack_of_address_space() -> Option<String> {
    let limit_bytes = getrlimit(Resource::As).current.filter(|bytes| *bytes < LEAST_ADDRESS_SPACE)?;
    let [limit, least] = [limit_bytes, LEAST_ADDRESS_SPACE].map(size::show);
    Some(format!("a server needs {least}, and may have {limit}"))
}

/// Returns the value of a line of `/proc/meminfo`, such as `MemTotal`.
pub fn meminfo_bytes(meminfo: &str, name: &str) -> Option<u64> {
    let value = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns the memory that the group with this limit uses, without caches of files, which the
/// kernel can drop.
fn used_bytes(root: &Path, limit_file: &Path) -> u64 {
    let group = limit_file.parent().and_then(|group| group.strip_prefix("/").ok()).unwrap_or(Path::new(""));
    let read = |name: &str| fs::read_to_string(root.join(group).join(name)).ok();
    let used = read("memory.current").or_else(|| read("memory.usage_in_bytes"));
    let used = used.and_then(|text| text.trim().parse().ok()).unwrap_or(0_u64);
    let stat = read("memory.stat").unwrap_or_default();
    let line = |name: &str| stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
    // In version 1, the lines that include nested groups begin with `total_`; in version 2, all
    // lines include them.
    let cached = ["inactive_file", "active_file"].map(|name| line(&format!("total_{name}")).or_else(|| line(name)));
    cached.into_iter().flatten().fold(used, u64::saturating_sub)
}

/// A mounted hierarchy of control groups with limits of memory.
struct Mount<'a> {
    /// The part of the hierarchy that is visible.
    group: PathBuf,
    at: PathBuf,
    /// The controller in the lines of `/proc/self/cgroup`, empty for version 2.
    controller: &'static str,
    /// Files of a group with a limit.
    files: &'a [&'static str],
}

impl Mount<'_> {
    /// Parses a line of `/proc/self/mountinfo` (`proc_pid_mountinfo(5)`).
    fn parse(line: &str) -> Option<Self> {
        let (own, file_system) = line.split_once(" - ")?;
        let mut own = own.split(' ').skip(3);
        let (group, at) = (unescape(own.next()?), unescape(own.next()?));
        let mut file_system = file_system.split(' ');
        let (kind, options) = (file_system.next()?, file_system.nth(1)?);
        let (controller, files): (_, &[_]) = match kind {
            // Above `memory.high`, the kernel slows the group down until it hardly runs.
            "cgroup2" => ("", &["memory.max", "memory.high"]),
            "cgroup" if options.split(',').any(|option| option == "memory") => ("memory", &["memory.limit_in_bytes"]),
            _ => return None,
        };
        Some(Self { group, at, controller, files })
    }

    /// Returns the limits of this process's group and of those that it is in.
    fn limits(&self, root: &Path, groups: &str) -> Vec<Memory> {
        let group = groups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, group) = (fields.next()?, fields.next()?);
            controllers.split(',').any(|controller| controller == self.controller).then_some(Path::new(group))
        });
        // In a container, the path may be the one on the host, although the group itself is
        // mounted.
        let inside = group.and_then(|group| group.strip_prefix(&self.group).ok()).unwrap_or(Path::new(""));
        let is_plain = inside.components().all(|part| matches!(part, Component::Normal(_)));
        let inside = if is_plain { inside } else { Path::new("") };
        let found = inside.ancestors().flat_map(|group| {
            self.files.iter().filter_map(move |file| {
                let path = self.at.join(group).join(file);
                let text = fs::read_to_string(root.join(path.strip_prefix("/").ok()?)).ok()?;
                // Without a limit, version 2 says `max`, and version 1 a number close to 2^63.
                Some(Memory { bytes: text.trim().parse().ok()?, bound: Bound::Group(path) })
            })
        });
        found.collect()
    }
}

/// Resolves the escapes of spaces and the like.
fn unescape(path: &str) -> PathBuf {
    let path = path.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\");
    path.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const MEMINFO: &str = "MemTotal:       25165824 kB\nMemFree:         1 kB\n";

    /// Writes a system's files below a new directory.
    fn system(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a directory");
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            fs::write(path, text).expect("a file");
        }
        root
    }

    /// Returns the memory that is found, with its file if it is not the machine's.
    fn found(files: &[(&str, &str)]) -> Option<(u64, String)> {
        let all: Vec<_> = [("proc/meminfo", MEMINFO)].into_iter().chain(files.iter().copied()).collect();
        let memory = Memory::under(system(&all).path())?;
        let file = if let Bound::Group(file) = memory.bound { file.display().to_string() } else { String::new() };
        Some((memory.bytes, file))
    }

    const V2: &str = "24 1 0:22 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn without_control_groups_it_is_the_machines() {
        assert_eq!(found(&[]), Some((24 * GIB, String::new())));
        let no_limit = [
            ("proc/self/cgroup", "0::/user.slice/x.scope\n"),
            ("proc/self/mountinfo", V2),
            ("sys/fs/cgroup/user.slice/x.scope/memory.max", "max\n"),
            ("sys/fs/cgroup/user.slice/x.scope/memory.high", "max\n"),
        ];
        assert_eq!(found(&no_limit), Some((24 * GIB, String::new())));
        assert_eq!(Memory::under(system(&[]).path()), None);
        assert_eq!(Memory::under(system(&[("proc/meminfo", "MemTotal: lots\n")]).path()), None);
    }

    #[test]
    fn the_narrowest_group_on_the_way_counts() {
        let path = "/sys/fs/cgroup/a.slice";
        let files = |own: &'static str, above: &'static str, high: &'static str| {
            [
                ("proc/self/cgroup", "0::/a.slice/b.service\n"),
                ("proc/self/mountinfo", V2),
                ("sys/fs/cgroup/a.slice/b.service/memory.max", own),
                ("sys/fs/cgroup/a.slice/memory.max", above),
                ("sys/fs/cgroup/a.slice/memory.high", high),
                // The limit of another group.
                ("sys/fs/cgroup/c.slice/memory.max", "4096\n"),
            ]
        };
        let expected = |bytes, file: &str| Some((bytes, format!("{path}/{file}")));
        assert_eq!(found(&files("2147483648\n", "max\n", "max\n")), expected(2 * GIB, "b.service/memory.max"));
        assert_eq!(found(&files("2147483648\n", "1073741824\n", "max\n")), expected(GIB, "memory.max"));
        assert_eq!(found(&files("max\n", "3221225472\n", "1073741824\n")), expected(GIB, "memory.high"));
        // Larger than the machine.
        assert_eq!(found(&files("99999999999999\n", "max\n", "max\n")), Some((24 * GIB, String::new())));
    }

    #[test]
    fn version_1_and_both_versions_together() {
        let mounts = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
        let files = |own: &'static str| {
            [
                ("proc/self/cgroup", "4:cpu,memory:/x/y\n0::/\n"),
                ("proc/self/mountinfo", mounts),
                ("sys/fs/cgroup/memory/x/y/memory.limit_in_bytes", own),
                ("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "4294967296\n"),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ]
        };
        let file = |name: &str| format!("/sys/fs/cgroup/memory/{name}memory.limit_in_bytes");
        assert_eq!(found(&files("536870912\n")), Some((GIB / 2, file("x/y/"))));
        assert_eq!(found(&files("9223372036854771712\n")), Some((4 * GIB, file("x/"))));
    }

    /// A container sees its group as the root, and its path as it is on the host or as `/..`.
    #[test]
    fn in_a_container_the_mounted_group_counts() {
        for (group, mounted) in [
            ("/", "/"),
            ("/docker/abc", "/docker/abc"),
            ("/docker/abc", "/"),
            ("/../other", "/"),
            ("/docker/abc", "/docker/abc/with space"),
        ] {
            let mounts = format!("9 8 0:2 {} /sys/fs/cgroup ro - cgroup2 cgroup rw\n", mounted.replace(' ', "\\040"));
            let files = [
                ("proc/self/cgroup", &*format!("0::{group}\n")),
                ("proc/self/mountinfo", &*mounts),
                ("sys/fs/cgroup/memory.max", "1073741824\n"),
            ];
            assert_eq!(found(&files), Some((GIB, "/sys/fs/cgroup/memory.max".to_owned())), "{group} {mounted}");
        }
    }

    #[test]
    fn available_memory_is_the_smallest_remainder() {
        let available = |own: &str, used: &str, stat: &str| {
            let meminfo = "MemTotal: 25165824 kB\nMemAvailable:   8388608 kB\n";
            let files = [
                ("proc/meminfo", meminfo),
                ("proc/self/cgroup", "0::/a\n"),
                ("proc/self/mountinfo", V2),
                ("sys/fs/cgroup/a/memory.max", own),
                ("sys/fs/cgroup/a/memory.current", used),
                ("sys/fs/cgroup/a/memory.stat", stat),
            ];
            Memory::available_under(system(&files).path()).map(|memory| memory.bytes)
        };
        assert_eq!(available("max\n", "1\n", ""), Some(8 * GIB));
        assert_eq!(available("4294967296\n", "1073741824\n", ""), Some(3 * GIB));
        let stat = "anon 5\ninactive_file 536870912\nactive_file 536870912\n";
        assert_eq!(available("4294967296\n", "3221225472\n", stat), Some(2 * GIB));
        assert_eq!(available("1073741824\n", "3221225472\n", ""), Some(0));
        assert_eq!(available("4294967296\n", "x\n", "inactive_file x\n"), Some(4 * GIB));
    }

    #[test]
    fn nonsense_is_not_a_limit() {
        for text in ["", "x\n", "-1\n", "99999999999999999999999\n"] {
            let files = [
                ("proc/self/cgroup", "0::/a\nx\n:\n::\n"),
                ("proc/self/mountinfo", &*format!("\nx - \n1 2 3\n - cgroup2\n{V2}")),
                ("sys/fs/cgroup/a/memory.max", text),
            ];
            assert_eq!(found(&files), Some((24 * GIB, String::new())), "{text:?}");
        }
    }

    #[test]
    fn a_limit_above_the_memory_is_warned_of_with_both_numbers() {
        let machine = Memory { bytes: 24 * GIB, bound: Bound::Machine };
        assert_eq!(machine.half_bytes(), 12 * GIB);
        assert_eq!(machine.warning(24 * GIB), None);
        let text = machine.warning(99999 * GIB).expect("a warning");
        assert!(text.contains("99999 GiB") && text.contains("24 GiB"), "{text}");
        let bound = Bound::Group("/sys/fs/cgroup/memory.max".into());
        let text = Memory { bytes: GIB, bound }.warning(2 * GIB).expect("a warning");
        assert!(text.contains("memory.max"), "{text}");
    }
}

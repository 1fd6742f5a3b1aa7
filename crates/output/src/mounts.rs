//! What mounted file systems are stored in, according to the table of mounts
//! (`proc_pid_mountinfo(5)`).

use std::{
    ffi::OsString,
    fs, mem,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

use rustix::fs::{major, makedev, minor};

/// Types of file systems that are stored in memory, or that the kernel makes up.
const IN_MEMORY: [&[u8]; 15] = [
    b"tmpfs",
    b"ramfs",
    b"rootfs",
    b"devtmpfs",
    b"proc",
    b"sysfs",
    b"devpts",
    b"mqueue",
    b"cgroup",
    b"cgroup2",
    b"debugfs",
    b"tracefs",
    b"securityfs",
    b"bpf",
    b"hugetlbfs",
];

/// The table of mounts of this process.
pub(crate) fn table() -> Vec<u8> {
    fs::read("/proc/self/mountinfo").unwrap_or_default()
}

/// A line of the table.
struct Mount<'a> {
    /// The file system's device number, as the table has it: `8:1`.
    device: &'a [u8],
    /// The directory of the file system that is mounted.
    root: &'a [u8],
    at: PathBuf,
    kind: &'a [u8],
    source: &'a [u8],
    options: &'a [u8],
}

/// Returns the lines of a table that have all fields.
fn lines(table: &[u8]) -> impl Iterator<Item = Mount<'_>> {
    table.split(|byte| *byte == b'\n').filter_map(|line| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let sign = fields.iter().position(|field| *field == b"-")?;
        let ([_, _, device, root, at, ..], [kind, source, options, ..]) = (&*fields, fields.get(sign + 1..)?) else {
            return None;
        };
        Some(Mount { device, root, at: path(unescaped(at)), kind, source, options })
    })
}

/// Returns where file systems are mounted below a directory, whose path has no symbolic links. Those
/// that mount others when somebody looks are left out.
pub(crate) fn below(table: &[u8], directory: &Path) -> Vec<PathBuf> {
    let is_below =
        |mount: &Mount<'_>| mount.kind != b"autofs" && mount.at != directory && mount.at.starts_with(directory);
    lines(table).filter(is_below).map(|mount| mount.at).collect()
}

/// Returns the device number of the mount that a file is on, and the file's path from the root of that
/// file system. A file on an overlay or in a volume of btrfs may have another number itself.
pub(crate) fn around(table: &[u8], file: &Path) -> Option<(u64, PathBuf)> {
    // Of several mounts in one place, the last one is on top.
    let mount =
        lines(table).filter(|mount| file.starts_with(&mount.at)).max_by_key(|mount| mount.at.as_os_str().len())?;
    let (major, minor) = str::from_utf8(mount.device).ok()?.split_once(':')?;
    let root = path(unescaped(mount.root));
    let within = root.strip_prefix("/").ok()?.join(file.strip_prefix(&mount.at).ok()?);
    Some((makedev(major.parse().ok()?, minor.parse().ok()?), within))
}

/// What a file system is stored in, apart from its block device.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Sources {
    /// Paths that may be those of images below an EROFS or a file system in user space, such as
    /// `pagefold mount`, or of a block device below one that has a number of its own, such as btrfs.
    pub(crate) files: Vec<PathBuf>,
    /// Directories that an overlay joins, except those whose paths contain a comma.
    pub(crate) directories: Vec<PathBuf>,
    /// Whether it may be stored in other files, too.
    pub(crate) has_more: bool,
}

impl Sources {
    /// Finds those of the file system with this device number. `has_block_device` says whether that is
    /// a block device's.
    pub(crate) fn of(table: &[u8], device: u64, has_block_device: bool) -> Self {
        let number = format!("{}:{}", major(device), minor(device));
        // Another name space may have mounted one that is not listed.
        let is_listed = lines(table).any(|mount| mount.device == number.as_bytes());
        let mut found = Self { has_more: !is_listed && !has_block_device, ..Self::default() };
        for Mount { kind, source, options, .. } in lines(table).filter(|mount| mount.device == number.as_bytes()) {
            if kind == b"overlay" {
                found.directories.extend(options.split(|byte| *byte == b',').flat_map(joined).map(path));
                continue;
            }
            // An EROFS may have several devices, of which the table shows one.
            let is_erofs = kind == b"erofs";
            found.has_more |= is_erofs || !has_block_device && !IN_MEMORY.contains(&kind);
            let is_on_device = !has_block_device && source.starts_with(b"/dev/");
            if is_erofs || kind == b"fuse" || kind.starts_with(b"fuse.") || is_on_device {
                found.files.extend(paths_in(&unescaped(source)));
            }
        }
        found
    }
}

/// Returns an absolute path, and its parts before `:/`: it may be `IMAGE:/PATH`.
fn paths_in(source: &[u8]) -> Vec<PathBuf> {
    if !source.starts_with(b"/") {
        return Vec::new();
    }
    let ends = source.windows(2).enumerate().filter(|(_, pair)| *pair == b":/").map(|(at, _)| at);
    ends.chain([source.len()]).map(|end| path(source[..end].to_vec())).collect()
}

/// Returns the directories in an option of an overlay. In a `lowerdir`, a colon separates two, and one
/// that belongs to a name follows a backslash.
fn joined(option: &[u8]) -> Vec<Vec<u8>> {
    let Some(equals) = option.iter().position(|byte| *byte == b'=') else { return Vec::new() };
    let (key, value) = (&option[..equals], unescaped(&option[equals + 1..]));
    match key {
        b"lowerdir+" | b"datadir+" | b"upperdir" => vec![value],
        b"lowerdir" => {
            let (mut parts, mut part) = (Vec::new(), Vec::new());
            let mut bytes = value.into_iter();
            while let Some(byte) = bytes.next() {
                match byte {
                    b':' => parts.push(mem::take(&mut part)),
                    b'\\' => part.extend(bytes.next()),
                    byte => part.push(byte),
                }
            }
            parts.push(part);
            parts.retain(|part| !part.is_empty());
            parts
        }
        _ => Vec::new(),
    }
}

/// Decodes a field, in which spaces and the like are `\` and three octal digits.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, after @ ..] = rest {
        let code = after
            .first_chunk::<3>()
            .filter(|_| *first == b'\\')
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match code {
            Some(code) => {
                bytes.push(code);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

fn path(bytes: Vec<u8>) -> PathBuf {
    Path::new(&OsString::from_vec(bytes)).to_path_buf()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
        57 22 0:41 / /mnt rw,nosuid shared:9 master:1 - fuse.pagefold /images/a\\040b.erofs ro,user_id=0\n\
        58 22 0:42 / /m2 rw - fuse /images/c.erofs:/d/e ro\n\
        59 22 0:43 / /m3 rw - fuse pagefold-files:/f rw\n\
        60 22 0:44 / /o rw - overlay overlay rw,lowerdir=/l1:/l\\0402:/l\\134:3,upperdir=/u:p,workdir=/work\n\
        61 22 0:45 / /p rw - overlay none rw,lowerdir+=/l\\0543,datadir+=/l:4\n\
        62 22 0:46 / /q rw - tmpfs tmpfs rw\n\
        63 22 0:47 / /r rw - nfs4 host:/share rw\n\
        64 22 7:1 / /s ro - erofs /dev/loop1 ro,user_xattr\n\
        65 22 0:48 / /t ro - erofs /images/d.erofs ro\n\
        66 22 0:50 /volume /u rw - btrfs /dev/loop2 rw,subvol=/volume\n\
        broken - fuse\n\n62 22 0:49 /";

    #[test]
    fn sources_are_found_by_the_device() {
        let of = |major, minor| {
            let Sources { files, directories, has_more } = Sources::of(TABLE, makedev(major, minor), major > 0);
            let [files, directories] = [files, directories]
                .map(|paths| paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" "));
            (files, directories, has_more)
        };
        for (device, files, directories, has_more) in [
            ((8, 1), "", "", false),
            ((0, 41), "/images/a b.erofs", "", true),
            ((0, 42), "/images/c.erofs /images/c.erofs:/d/e", "", true),
            ((0, 43), "", "", true),
            ((0, 44), "", "/l1 /l 2 /l:3 /u:p", false),
            ((0, 45), "", "/l,3 /l:4", false),
            ((0, 46), "", "", false),
            ((0, 47), "", "", true),
            ((7, 1), "/dev/loop1", "", true),
            ((0, 48), "/images/d.erofs", "", true),
            ((0, 49), "", "", true),
            ((0, 50), "/dev/loop2", "", true),
        ] {
            assert_eq!(of(device.0, device.1), (files.to_owned(), directories.to_owned(), has_more), "{device:?}");
        }
    }

    #[test]
    fn mounts_below_a_directory_are_found() {
        let table = b"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n\
            2 1 0:41 / /s\\040t/m rw - tmpfs none rw\n\
            3 1 8:1 /other /s\\040t/bind rw - ext4 /dev/sda1 rw\n\
            4 1 8:1 /f /s\\040t rw - ext4 /dev/sda1 rw\n\
            5 1 0:42 / /s\\040t/auto rw - autofs auto rw\n\
            6 1 0:43 / /s\\040tx rw - tmpfs none rw\n";
        let found = below(table, Path::new("/s t"));
        assert_eq!(found, [Path::new("/s t/m"), Path::new("/s t/bind")]);
    }

    #[test]
    fn paths_within_a_file_system_include_the_directory_that_is_mounted() {
        let table = b"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n\
            2 1 0:40 / /o rw - overlay none rw,lowerdir=/l\n\
            3 1 0:40 /a\\040b /mnt rw - overlay none rw,lowerdir=/l\n";
        let around = |file: &str| around(table, Path::new(file));
        assert_eq!(around("/o/d/f"), Some((makedev(0, 40), PathBuf::from("d/f"))));
        assert_eq!(around("/mnt/f"), Some((makedev(0, 40), PathBuf::from("a b/f"))));
        assert_eq!(around("/x/f"), Some((makedev(8, 1), PathBuf::from("x/f"))));
    }
}

//! What mounted file systems are stored in, according to the table of mounts
//! (`proc_pid_mountinfo(5)`).

use std::{
    ffi::OsString,
    mem,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

use rustix::fs::{major, minor};

/// Types of file systems that are stored in memory.
const IN_MEMORY: [&[u8]; 4] = [b"tmpfs", b"ramfs", b"rootfs", b"devtmpfs"];

/// What a file system is stored in, apart from its block device.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Sources {
    /// Paths that may be those of images below an EROFS or a file system in user space, such as
    /// `pagefold mount`.
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
        let mut found = Self::default();
        for line in table.split(|byte| *byte == b'\n') {
            let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
            let Some(sign) = fields.iter().position(|field| *field == b"-") else { continue };
            let (Some(at), Some([kind, source, options, ..])) = (fields.get(2), fields.get(sign + 1..)) else {
                continue;
            };
            if *at != number.as_bytes() {
                continue;
            }
            if *kind == b"overlay" {
                found.directories.extend(options.split(|byte| *byte == b',').flat_map(joined).map(path));
                continue;
            }
            // An EROFS may have several devices, of which the table shows one.
            let is_erofs = *kind == b"erofs";
            found.has_more |= is_erofs || !has_block_device && !IN_MEMORY.contains(kind);
            if is_erofs || *kind == b"fuse" || kind.starts_with(b"fuse.") {
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
    use rustix::fs::makedev;

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
            ((0, 49), "", "", false),
        ] {
            assert_eq!(of(device.0, device.1), (files.to_owned(), directories.to_owned(), has_more), "{device:?}");
        }
    }
}

//! What mounted file systems are stored in, according to the table of mounts
//! (`proc_pid_mountinfo(5)`).

use std::{
    ffi::OsString,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

use rustix::fs::{major, minor};

/// What a file system without a block device is stored in.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Sources {
    /// Paths that may be those of images below a file system in user space, such as `pagefold mount`,
    /// whose paths have no comma.
    pub(crate) files: Vec<PathBuf>,
    /// Directories that an overlay joins, except those whose paths contain a colon or a comma.
    pub(crate) directories: Vec<PathBuf>,
}

impl Sources {
    /// Finds those of the file system with this device number.
    pub(crate) fn of(table: &[u8], device: u64) -> Self {
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
            if *kind == b"fuse" || kind.starts_with(b"fuse.") {
                found.files.extend(paths_in(&unescaped(source)));
            } else if *kind == b"overlay" {
                found.directories.extend(options.split(|byte| *byte == b',').flat_map(joined).map(path));
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

/// Returns the directories in an option of an overlay.
fn joined(option: &[u8]) -> Vec<Vec<u8>> {
    let Some(equals) = option.iter().position(|byte| *byte == b'=') else { return Vec::new() };
    let (key, value) = (&option[..equals], &option[equals + 1..]);
    if !matches!(key, b"lowerdir" | b"lowerdir+" | b"datadir+" | b"upperdir") {
        return Vec::new();
    }
    value.split(|byte| *byte == b':').filter(|part| !part.is_empty()).map(unescaped).collect()
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
        60 22 0:44 / /o rw - overlay overlay rw,lowerdir=/l1:/l\\0402,upperdir=/up,workdir=/work\n\
        61 22 0:45 / /p rw - overlay none rw,lowerdir+=/l3,datadir+=/l4\n\
        broken - fuse\n\n62 22 0:46 /";

    #[test]
    fn sources_are_found_by_the_device() {
        let of = |minor| {
            let Sources { files, directories } = Sources::of(TABLE, makedev(0, minor));
            [files, directories].map(|paths| paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>())
        };
        let none: [&str; 0] = [];
        assert_eq!(of(41), [vec!["/images/a b.erofs"], vec![]]);
        assert_eq!(of(42), [vec!["/images/c.erofs", "/images/c.erofs:/d/e"], vec![]]);
        assert_eq!(of(43), [none, none]);
        assert_eq!(of(44), [vec![], vec!["/l1", "/l 2", "/up"]]);
        assert_eq!(of(45), [vec![], vec!["/l3", "/l4"]]);
        assert_eq!(of(46), [none, none]);
        assert_eq!(Sources::of(TABLE, makedev(8, 1)), Sources::default());
    }
}

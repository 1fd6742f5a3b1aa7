//! The system's table of mounts (`proc_pid_mountinfo(5)`). Reading it does not access the mounts.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The mount on a directory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mounted {
    /// The mount's number.
    pub(crate) id: u64,
    /// The file system's device number, as in `/sys/class/bdi`.
    pub(crate) device: String,
    /// The file system's type.
    pub(crate) kind: String,
    /// The mounted source, as the table shows it.
    pub(crate) source: String,
}

impl Mounted {
    /// Parses a line of the table.
    fn parse(line: &[u8]) -> Option<Self> {
        let fields: Vec<_> = line.split(|byte| *byte == b' ').map(String::from_utf8_lossy).collect();
        let sign = fields.iter().position(|field| field == "-")?;
        Some(Self {
            id: fields.first()?.parse().ok()?,
            device: fields.get(2)?.to_string(),
            kind: fields.get(sign + 1)?.to_string(),
            source: fields.get(sign + 2)?.to_string(),
        })
    }

    /// Returns whether this is a FUSE file system.
    pub(crate) fn is_fuse(&self) -> bool {
        self.kind == "fuse" || self.kind.starts_with("fuse.")
    }
}

/// Returns the mounts on a directory, the topmost last.
pub(crate) fn mounts_at(directory: &Path) -> io::Result<Vec<Mounted>> {
    let directory = escape(directory.as_os_str().as_bytes());
    let table = std::fs::read("/proc/self/mountinfo")?;
    let is_here = |line: &&[u8]| line.split(|byte| *byte == b' ').nth(4).is_some_and(|at| at == directory);
    Ok(table.split(|byte| *byte == b'\n').filter(is_here).filter_map(Mounted::parse).collect())
}

/// Escapes a path or name as the table does.
pub(crate) fn escape(text: &[u8]) -> Vec<u8> {
    let escaped = |byte: &u8| match byte {
        b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}").into_bytes(),
        byte => vec![*byte],
    };
    text.iter().flat_map(escaped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_found_in_the_table() {
        assert_eq!(mounts_at(Path::new("/proc")).unwrap().pop().unwrap().kind, "proc");
        assert!(mounts_at(Path::new("/proc/self")).unwrap().is_empty());
    }

    #[test]
    fn a_line_has_optional_fields_before_its_sign() {
        let line = b"57 29 0:41 / /a\\040b rw,nosuid shared:9 master:1 - fuse pagefold-files:/a\\040b rw,user_id=0";
        let mounted = Mounted::parse(line).unwrap();
        assert_eq!((mounted.id, mounted.device.as_str(), mounted.is_fuse()), (57, "0:41", true));
        assert_eq!(mounted.source.as_bytes(), escape(b"pagefold-files:/a b"));
        assert_eq!(Mounted::parse(b"57 29 0:41 / /a"), None);
    }
}

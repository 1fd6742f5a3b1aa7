//! The attributes of files that were just created: only deviations need a system call.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::Mode;

use super::options::ExtractOptions;
use crate::read::Inode;

/// The process that creates files.
pub(super) struct Creator {
    owner: (u32, u32),
    umask: Option<u16>,
    keeps_modes: bool,
}

impl Creator {
    pub(super) fn new(options: &ExtractOptions) -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self {
            owner: (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
            umask: status.lines().find_map(|line| u16::from_str_radix(line.strip_prefix("Umask:")?.trim(), 8).ok()),
            keeps_modes: options.permissions,
        }
    }

    /// Returns whether a file belongs to the process's user and group.
    pub(super) fn owns(&self, inode: &Inode) -> bool {
        self.owner == (inode.uid, inode.gid)
    }

    /// Determines the properties of files that are created in an open directory.
    pub(super) fn in_open(&self, directory: &OwnedFd) -> Within {
        // The group is then the same, whether it comes from the process or from the directory.
        let certain = |stat: &rustix::fs::Stat| {
            (stat.st_uid, stat.st_gid) == self.owner && !Mode::from_raw_mode(stat.st_mode).contains(Mode::SGID)
        };
        let stat = rustix::fs::fstat(directory).ok();
        let owner = stat.filter(certain).map(|_| self.owner);
        let passes_group_on = stat.is_none_or(|stat| Mode::from_raw_mode(stat.st_mode).contains(Mode::SGID));
        // A default ACL replaces the umask.
        let acl = rustix::fs::fgetxattr(directory, "system.posix_acl_default", &mut [0; 0]).is_ok();
        let made = AtCreation {
            owner,
            // If the system does not report the umask (Linux before 4.7), only the owner gets
            // access.
            kept_mode: if self.keeps_modes { 0o7777 } else { 0o777 & !self.umask.unwrap_or(0o077) },
            lost_mode: if acl { 0o7777 } else { self.umask.unwrap_or(0o777) | 0o7000 },
            passes_group_on,
        };
        Within { made: Arc::new(made), is_open: true }
    }
}

/// The properties of files just created. A created directory passes them on to files created in it.
struct AtCreation {
    /// Owner and group, if known for certain.
    owner: Option<(u32, u32)>,
    /// The mode bits that are kept: all, or those of new files.
    kept_mode: u16,
    /// The mode bits that may be lost at creation.
    lost_mode: u16,
    /// New directories may inherit a bit that is not in their mode (`S_ISGID`).
    passes_group_on: bool,
}

/// The directory in which a file is created.
#[derive(Clone)]
pub(super) struct Within {
    made: Arc<AtCreation>,
    /// The directory existed before, so others may have access.
    is_open: bool,
}

impl Within {
    /// Returns the properties of files in a directory that was created in this one.
    pub(super) fn created(&self) -> Self {
        Self { made: Arc::clone(&self.made), is_open: false }
    }

    /// Returns whether a file in it has its owner from the start.
    pub(super) fn has_owner(&self, inode: &Inode) -> bool {
        self.made.owner == Some((inode.uid, inode.gid))
    }

    /// Returns the mode that a file should end up with.
    pub(super) fn final_mode(&self, inode: &Inode) -> Mode {
        Mode::from_raw_mode((inode.permissions() & self.made.kept_mode).into())
    }

    /// Returns the mode for creating a file: its final mode, if the file is certain to get and keep
    /// it and others have no access before it is complete. An ACL among its xattrs could restore
    /// cleared bits.
    pub(super) fn mode(&self, inode: &Inode) -> Option<Mode> {
        let mode = self.final_mode(inode);
        let keeps = self.made.kept_mode == 0o7777 || inode.xattr_start == inode.xattr_end;
        (!self.is_open && keeps && mode.as_raw_mode() & u32::from(self.made.lost_mode) == 0).then_some(mode)
    }

    /// Like [`mode`](Self::mode), for a directory in which files are created.
    pub(super) fn directory_mode(&self, inode: &Inode) -> Option<Mode> {
        self.mode(inode).filter(|mode| !self.made.passes_group_on && mode.contains(Mode::RWXU))
    }
}

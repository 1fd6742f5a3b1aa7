//! The facts that checks read: files of the system, and the few that are in no file.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

use io_uring::IoUring;
use rustix::fs::{Access, access};

use crate::server_directory;

/// A machine as a process sees it.
pub(super) struct Machine {
    /// `/`, or a directory with a tree like it.
    pub(super) root: PathBuf,
    /// Where a server would listen, or why there is no such place.
    pub(super) directory: Result<PathBuf, String>,
    /// Whether io_uring can be used, or why not.
    pub(super) io_uring: Result<(), String>,
    /// Directories with programs.
    pub(super) programs: Vec<PathBuf>,
}

/// Whether a kernel module can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Module {
    Loaded,
    /// `modprobe` would load it.
    Available,
    /// This kernel has none.
    Absent,
    /// The kernel's modules are not visible here, for example in a container.
    Unknown,
}

impl Machine {
    /// Returns this machine.
    pub(super) fn this(directory: Option<&Path>) -> Self {
        Self {
            root: "/".into(),
            directory: server_directory::path(directory).map_err(|error| error.to_string()),
            io_uring: IoUring::new(1).map(drop).map_err(|error| error.to_string()),
            programs: env::var_os("PATH").map(|path| env::split_paths(&path).collect()).unwrap_or_default(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Returns the text of a file, without spaces around it.
    pub(super) fn read(&self, name: &str) -> Option<String> {
        Some(fs::read_to_string(self.path(name)).ok()?.trim().to_owned())
    }

    pub(super) fn exists(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    /// Returns the names in a directory, sorted.
    pub(super) fn names(&self, directory: &str) -> Option<Vec<String>> {
        let names = fs::read_dir(self.path(directory)).ok()?.flatten();
        let mut names: Vec<_> = names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort_unstable();
        Some(names)
    }

    /// Returns whether this user may read and write a file.
    pub(super) fn may_use(&self, name: &str) -> io::Result<()> {
        Ok(access(self.path(name), Access::READ_OK | Access::WRITE_OK)?)
    }

    /// Returns a path in the system, or in the tree that replaces it.
    pub(super) fn place(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    pub(super) fn has_program(&self, name: &str) -> bool {
        self.programs.iter().any(|folder| self.place(folder).join(name).is_file())
    }

    /// Returns a field of `/proc/self/status`.
    fn status(&self, field: &str) -> Option<String> {
        let status = self.read("proc/self/status")?;
        let value = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
        Some(value.trim().to_owned())
    }

    /// Returns the effective user.
    pub(super) fn user(&self) -> Option<u32> {
        self.status("Uid")?.split_whitespace().nth(1)?.parse().ok()
    }

    pub(super) fn is_root(&self) -> bool {
        self.user() == Some(0)
    }

    /// Returns whether this process has a capability, by its number in `linux/capability.h`.
    pub(super) fn has_capability(&self, number: u32) -> bool {
        let effective = self.status("CapEff").and_then(|text| u64::from_str_radix(&text, 16).ok());
        effective.is_some_and(|effective| effective >> number & 1 == 1)
    }

    /// Returns whether a filter of system calls applies to this process, as in most containers.
    pub(super) fn is_filtered(&self) -> bool {
        self.status("Seccomp").is_some_and(|mode| mode == "2")
    }

    /// Returns the limit of a resource in `/proc/self/limits`, which applies to a process that does not
    /// raise it. `None`: unlimited or unknown.
    pub(super) fn limit(&self, resource: &str) -> Option<u64> {
        self.limit_column(resource, 0)
    }

    /// Returns the hard limit, to which a server raises what it needs.
    pub(super) fn most(&self, resource: &str) -> Option<u64> {
        self.limit_column(resource, 1)
    }

    fn limit_column(&self, resource: &str, column: usize) -> Option<u64> {
        let limits = self.read("proc/self/limits")?;
        let values = limits.lines().find_map(|line| line.strip_prefix(resource))?;
        values.split_whitespace().nth(column)?.parse().ok()
    }

    /// Returns whether this is the user of the installed service, whose service manager passes it sockets.
    pub(super) fn gets_sockets(&self) -> bool {
        let users = self.read("etc/passwd").unwrap_or_default();
        let number = users.lines().find_map(|line| line.strip_prefix("pagefold:")?.split(':').nth(1));
        let is_user = number.is_some_and(|number| number.parse().ok() == self.user());
        let folders = ["etc", "usr/lib", "usr/local/lib"].map(|folder| format!("{folder}/systemd/system"));
        let units = ["pagefold.socket", "pagefold-control.socket"];
        is_user && units.iter().all(|unit| folders.iter().any(|folder| self.exists(&format!("{folder}/{unit}"))))
    }

    pub(super) fn release(&self) -> Option<String> {
        self.read("proc/sys/kernel/osrelease")
    }

    /// Returns the version of Linux.
    pub(super) fn linux(&self) -> Option<(u32, u32)> {
        crate::serve::version(&self.release()?)
    }

    /// Looks for a kernel module, in the spelling of `/sys/module`.
    pub(super) fn module(&self, name: &str) -> Module {
        if self.exists(&format!("sys/module/{name}")) {
            return Module::Loaded;
        }
        let folder = format!("lib/modules/{}", self.release().unwrap_or_default());
        let lists = ["modules.dep", "modules.builtin"].map(|list| self.read(&format!("{folder}/{list}")));
        if lists.iter().all(Option::is_none) {
            return Module::Unknown;
        }
        // File names of modules may have hyphens.
        let is_it = |line: &str| {
            let path = line.split(':').next().unwrap_or_default();
            let file = path.rsplit('/').next().unwrap_or_default();
            file.split('.').next().is_some_and(|stem| stem.replace('-', "_") == name)
        };
        let is_listed = lists.iter().flatten().any(|list| list.lines().any(is_it));
        if is_listed { Module::Available } else { Module::Absent }
    }
}

//! Scripts with FUSE as a user who is not root, in a mount namespace of their own.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

use pagefold_testing::{programs, skip, skip_for_good};
use rustix::process::geteuid;

/// Goes to the script's folder, and defines `user`, which runs a command as that user, and `fails`,
/// which expects that a command fails. If `/dev/fuse` is not open to all users, makes one that is.
const BEGIN: &str = r#"set -e
cd "$1"
if [ "$(stat -c %a /dev/fuse)" != 666 ]; then
    mknod -m 666 fuse c 10 229
    mount --bind fuse /dev/fuse
fi
fails() { if "$@"; then echo "this should fail: $*" >&2; exit 1; fi; }
user() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }
"#;

/// A script that begins like the others, and its programs.
pub(crate) struct User {
    shell: PathBuf,
    unshare: PathBuf,
}

impl User {
    /// Returns `None` after skipping `test` if it needs more rights or programs.
    pub(crate) fn find(test: &str) -> Option<Self> {
        if !geteuid().is_root() {
            skip_for_good(test, "it takes root to become a user; the other tests are that user's then");
            return None;
        }
        let [shell, unshare, _] = programs(test, ["sh", "unshare", "setpriv"])?;
        Some(Self { shell, unshare })
    }

    /// Runs a script in a folder. Returns `None` after skipping `test` if no namespace can be
    /// created.
    pub(crate) fn run(&self, test: &str, script: &str, folder: &Path) -> Option<Output> {
        let mut command = Command::new(&self.unshare);
        command.args(["--mount", "--propagation", "private"]).arg(&self.shell);
        command.arg("-c").arg(format!("{BEGIN}{script}")).arg("as-a-user").arg(folder);
        let output = command.output().expect("the program starts");
        let said = String::from_utf8_lossy(&output.stderr);
        if said.contains("unshare:") {
            skip(test, &said);
            return None;
        }
        Some(output)
    }
}

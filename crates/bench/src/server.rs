//! NBD servers that a bench starts and ends.

use std::{
    collections::HashMap,
    env,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use pagefold_report::tool;
use tempfile::TempDir;

use crate::{
    client::Control,
    machine::{anonymous_bytes_of, memory_bytes, on_one_cpu, open_file_bytes, process_tree},
};

/// The export name of `qemu-storage-daemon`.
pub(crate) const DAEMON_EXPORT: &str = "disk";

/// The first major version of `qemu-storage-daemon` whose exports may have a thread of their own and
/// clients that leave: earlier ones fail the assertion `qemu_in_main_thread`.
const DAEMON_THREADS: u32 = 9;

/// A server in its own folder, killed on drop.
pub(crate) struct Server {
    child: Child,
    folder: TempDir,
}

/// Returns the path of the `pagefold` program: `given`, or the one next to this program.
pub(crate) fn pagefold(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    let path = match given {
        Some(path) => path.to_owned(),
        None => env::current_exe().context("cannot find the path of this program")?.with_file_name("pagefold"),
    };
    ensure!(path.is_file(), "{} does not exist; `make build` builds it", path.display());
    Ok(path)
}

/// Returns the major version of one of qemu's programs.
fn major_version(program: &Path) -> anyhow::Result<u32> {
    let output = Command::new(program).arg("--version").output().context("cannot start a program of qemu")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let number = text.split_whitespace().find_map(|word| word.split_once('.')?.0.parse().ok());
    number.with_context(|| format!("{} does not say its version", program.display()))
}

/// Makes a qcow2 image with a raw file below it.
pub(crate) fn qcow2_overlay(raw: &Path, path: &Path) -> anyhow::Result<()> {
    let mut create = Command::new(tool::find("qemu-img")?);
    tool::run(create.args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"]).arg(raw).arg(path))
}

impl Server {
    /// Starts `pagefold serve` with `args` on its own socket.
    pub(crate) fn pagefold(program: &Path, args: &[&str]) -> anyhow::Result<Self> {
        Self::start(|socket| {
            let mut command = Command::new(program);
            command.arg("serve").args(args).arg("--unix").arg(socket).arg("--dir").args(socket.parent());
            command
        })
    }

    /// Starts a server that may use a single CPU.
    pub(crate) fn one_cpu(start: impl FnOnce() -> anyhow::Result<Self>) -> anyhow::Result<Self> {
        on_one_cpu(start)?
    }

    /// Starts `nbdkit` with `args` on its own socket, and its temporary files in `files`.
    pub(crate) fn nbdkit(program: &Path, args: &[&str], files: &Path) -> anyhow::Result<Self> {
        Self::start(|socket| {
            let mut command = Command::new(program);
            command.arg("--foreground").arg("--unix").arg(socket).args(args).env("TMPDIR", files);
            command
        })
    }

    /// Starts `qemu-nbd` with a qcow2 image on its own socket.
    pub(crate) fn qemu_nbd(program: &Path, image: &Path) -> anyhow::Result<Self> {
        Self::start(|socket| {
            let mut command = Command::new(program);
            command.args(["--persistent", "--shared=0", "--format=qcow2", "--discard=unmap", "--cache=writeback"]);
            command.arg("--socket").arg(socket).arg(image);
            command
        })
    }

    /// Starts `qemu-storage-daemon` with a qcow2 image on its own socket, whose export is
    /// [`DAEMON_EXPORT`]. A pool of threads reads and writes files. A thread other than the main one
    /// serves the export, unless this version aborts when a client of such a thread leaves.
    pub(crate) fn qemu_storage_daemon(program: &Path, image: &Path) -> anyhow::Result<Self> {
        let has_thread = major_version(program)? >= DAEMON_THREADS;
        let iothread: &[&str] = if has_thread { &["--object", "iothread,id=server"] } else { &[] };
        let on = if has_thread { ",iothread=server" } else { "" };
        let export = format!("type=nbd,id=export,node-name=disk,name={DAEMON_EXPORT},writable=on{on}");
        Self::daemon(program, image, "qcow2", &[iothread, &["--export", &export]].concat())
    }

    /// Starts `qemu-storage-daemon` with an image, which is the node `disk`, and with more options. It
    /// listens for NBD on its own socket.
    pub(crate) fn daemon(program: &Path, image: &Path, format: &str, options: &[&str]) -> anyhow::Result<Self> {
        Self::start(|socket| {
            let mut command = Command::new(program);
            command.args(["--blockdev", &format!("driver=file,node-name=file,filename={}", image.display())]);
            command.args(["--blockdev", &format!("driver={format},node-name=disk,file=file,discard=unmap")]);
            command.args(["--nbd-server", &format!("addr.type=unix,addr.path={}", socket.display())]);
            command.args(options);
            command
        })
    }

    /// Starts the command that `command` makes of the path of a socket, and waits until something listens
    /// there.
    pub(crate) fn start(command: impl FnOnce(&Path) -> Command) -> anyhow::Result<Self> {
        let folder = TempDir::new().context("cannot create a temporary directory for a socket")?;
        let socket = folder.path().join("socket");
        let mut command = command(&socket);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.with_context(|| format!("cannot start {:?}", command.get_program()))?;
        let mut server = Self { child, folder };
        let deadline = Instant::now() + Duration::from_secs(10);
        // The socket's file exists before the server listens on it.
        while UnixStream::connect(&socket).is_err() {
            if let Some(status) = server.child.try_wait()? {
                bail!("{command:?} ended immediately: {status}");
            }
            ensure!(Instant::now() < deadline, "{command:?} does not listen");
            thread::sleep(Duration::from_micros(200));
        }
        Ok(server)
    }

    /// Returns the URI of an export.
    pub(crate) fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket().display())
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// Returns a folder that is removed with the server.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Connects to the control socket of a pagefold server.
    pub(crate) fn control(&self) -> anyhow::Result<Control> {
        Control::connect(&self.folder.path().join("control.sock"))
    }

    /// Returns the server's process.
    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Returns the resident memory of the server's process.
    pub(crate) fn rss_bytes(&self) -> anyhow::Result<f64> {
        Ok(memory_bytes(self.child.id(), "VmRSS").context("the server's memory")? as f64)
    }

    /// Returns the resident memory of the server's process and its descendants, and the bytes of the
    /// files under `folder`, in memory, that they have open.
    pub(crate) fn whole_memory_bytes(&self, folder: &Path) -> anyhow::Result<f64> {
        let (mut resident, mut files) = (0, HashMap::new());
        for process in process_tree(self.child.id())? {
            resident += memory_bytes(process, "VmRSS").context("the server's memory")?;
            files.extend(open_file_bytes(process, folder)?);
        }
        Ok((resident + files.values().sum::<u64>()) as f64)
    }

    /// Returns the anonymous memory of the server's process.
    pub(crate) fn anonymous_bytes(&self) -> anyhow::Result<f64> {
        Ok(anonymous_bytes_of(self.child.id())? as f64)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The server may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

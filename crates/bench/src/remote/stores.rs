//! A registry and an S3 server on this machine.

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use pagefold_report::tool;
use tempfile::TempDir;

/// The bucket of an S3 server.
pub(super) const BUCKET: &str = "disks";

/// How long a server may take to start.
const START: Duration = Duration::from_secs(60);

/// A server in its own folder, killed on drop.
pub(super) struct Store {
    child: Child,
    address: SocketAddr,
    _folder: TempDir,
}

impl Store {
    /// Starts Debian's registry, whose blobs are below `scratch`.
    pub(super) fn registry(scratch: &Path) -> anyhow::Result<Self> {
        let program = tool::find("docker-registry")?;
        let folder = TempDir::new_in(scratch)?;
        let (address, config) = (free_address()?, folder.path().join("config.yml"));
        let root = folder.path().join("root");
        let text = format!(
            "version: 0.1\nlog: {{level: error, accesslog: {{disabled: true}}}}\n\
            storage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: {address}}}\n",
            root.display()
        );
        fs::write(&config, text)?;
        Self::start(Command::new(program).arg("serve").arg(&config), address, folder)
    }

    /// Starts moto, with a bucket.
    pub(super) fn s3(program: Option<&Path>, scratch: &Path) -> anyhow::Result<Self> {
        let program = moto(program)?;
        let (address, folder) = (free_address()?, TempDir::new_in(scratch)?);
        let mut command = Command::new(program);
        command.args(["-H", "127.0.0.1", "-p", &address.port().to_string()]).env("TMPDIR", folder.path());
        let store = Self::start(&mut command, address, folder)?;
        let mut stream = TcpStream::connect(address)?;
        write!(stream, "PUT /{BUCKET} HTTP/1.0\r\nHost: {address}\r\nContent-Length: 0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let first = answer.lines().next().unwrap_or_default();
        ensure!(first.contains(" 200 "), "the S3 server makes no bucket: {first}");
        Ok(store)
    }

    fn start(command: &mut Command, address: SocketAddr, folder: TempDir) -> anyhow::Result<Self> {
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.with_context(|| format!("cannot start {:?}", command.get_program()))?;
        let mut store = Self { child, address, _folder: folder };
        let deadline = Instant::now() + START;
        while TcpStream::connect(address).is_err() {
            if let Some(status) = store.child.try_wait()? {
                bail!("{command:?} ended: {status}");
            }
            ensure!(Instant::now() < deadline, "{command:?} does not listen");
            thread::sleep(Duration::from_millis(20));
        }
        Ok(store)
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // The server may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the path of moto's server: `given`, or where `make deps` installs it, or on the PATH.
fn moto(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(given) = given {
        return Ok(given.to_owned());
    }
    let usual = Path::new("target/moto/bin/moto_server");
    if usual.is_file() {
        return Ok(std::path::absolute(usual)?);
    }
    tool::find("moto_server").context("no S3 server; `make deps` installs moto where Python has venv and pip")
}

/// Returns an address on which nothing listens.
fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr())?)
}

//! Debian's registry for container images, behind a relay that counts what passes.

use std::{
    fs,
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use tempfile::TempDir;

/// A registry that is empty at first, until it is dropped.
pub struct Registry {
    child: Child,
    folder: TempDir,
    /// Where it is reached.
    pub address: SocketAddr,
    counts: Arc<Traffic>,
}

#[derive(Default)]
struct Traffic {
    sent: AtomicU64,
    received: AtomicU64,
    ended: AtomicBool,
}

impl Registry {
    /// Starts a registry. If its program is missing, skips `test` and returns `None`.
    ///
    /// # Panics
    /// It does not start.
    pub fn start(test: &str) -> Option<Self> {
        let [program] = crate::programs(test, ["docker-registry"])?;
        let folder = tempfile::tempdir().expect("a folder");
        let behind = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
        let text = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\n\
            http: {{addr: {behind}}}\n",
            folder.path().join("root").display()
        );
        let config = folder.path().join("config.yml");
        fs::write(&config, text).expect("a file");
        let mut command = Command::new(program);
        command.arg("serve").arg(&config).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("a registry");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let counts = Arc::<Traffic>::default();
        let mut registry = Self { child, folder, address, counts: Arc::clone(&counts) };
        while TcpStream::connect(behind).is_err() {
            assert!(registry.child.try_wait().expect("a child").is_none(), "the registry ended");
            thread::sleep(Duration::from_millis(20));
        }
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if counts.ended.load(Relaxed) {
                    break;
                }
                let Ok(server) = TcpStream::connect(behind) else { continue };
                let copies =
                    [(&client, &server), (&server, &client)].map(|(from, to)| (from.try_clone(), to.try_clone()));
                for (number, copy) in copies.into_iter().enumerate() {
                    let (Ok(from), Ok(to)) = copy else { continue };
                    let counts = Arc::clone(&counts);
                    thread::spawn(move || relay(from, to, if number == 0 { &counts.sent } else { &counts.received }));
                }
            }
        });
        Some(registry)
    }

    /// Returns the URL of an image.
    pub fn url(&self, image: &str) -> String {
        format!("oci://{}/{image}", self.address)
    }

    /// Returns the bytes that clients have sent, with headers.
    pub fn sent_bytes(&self) -> u64 {
        self.counts.sent.load(Relaxed)
    }

    /// Returns the bytes that clients have got, with headers.
    pub fn received_bytes(&self) -> u64 {
        self.counts.received.load(Relaxed)
    }

    /// Returns the file with a blob or a manifest. `digest` is `sha256:` and 64 digits.
    ///
    /// # Panics
    /// It is something else.
    pub fn blob(&self, digest: &str) -> PathBuf {
        let digits = digest.strip_prefix("sha256:").expect("a digest");
        let blobs = self.folder.path().join("root/docker/registry/v2/blobs/sha256");
        blobs.join(&digits[..2]).join(digits).join("data")
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.counts.ended.store(true, Relaxed);
        let _ = TcpStream::connect(self.address);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn relay(mut from: TcpStream, mut to: TcpStream, count: &AtomicU64) {
    let _ = to.set_nodelay(true);
    let mut copied = || -> io::Result<()> {
        let mut bytes = [0; 64 << 10];
        loop {
            match from.read(&mut bytes)? {
                0 => return Ok(()),
                len => {
                    count.fetch_add(len as u64, Relaxed);
                    to.write_all(&bytes[..len])?;
                }
            }
        }
    };
    let _ = copied();
    let _ = to.shutdown(Shutdown::Write);
}

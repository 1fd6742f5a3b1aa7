//! Images in a bucket of a real S3 server.

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use crate::{
    images::output,
    server::{pagefold, run_to_fail},
};

struct Moto {
    child: Child,
    address: SocketAddr,
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Moto {
    /// Starts moto with a bucket `disks`.
    fn start(test: &str) -> Option<Self> {
        let program = pagefold_testing::moto(test)?;
        let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
        let mut command = Command::new(program);
        command.args(["-H", "127.0.0.1", "-p", &address.port().to_string()]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("moto starts");
        let mut moto = Self { child, address };
        let deadline = Instant::now() + Duration::from_secs(120);
        while TcpStream::connect(address).is_err() {
            assert!(moto.child.try_wait().expect("a process").is_none(), "moto has ended");
            assert!(Instant::now() < deadline, "moto does not listen");
            thread::sleep(Duration::from_millis(50));
        }
        assert!(moto.ask("PUT", "/disks").contains(" 200 "));
        Some(moto)
    }

    /// Sends a request without a signature. Returns the first line of the response.
    fn ask(&self, method: &str, path: &str) -> String {
        let mut stream = TcpStream::connect(self.address).expect("a connection");
        let head = format!("{method} {path} HTTP/1.0\r\nHost: {}\r\nContent-Length: 0\r\n\r\n", self.address);
        stream.write_all(head.as_bytes()).expect("sent");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("a response");
        String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned()
    }

    fn pagefold(&self, cache: &Path) -> Command {
        let mut command = pagefold();
        command.env("PAGEFOLD_CACHE", cache).env("AWS_ENDPOINT_URL", format!("http://{}", self.address));
        command.env("AWS_ACCESS_KEY_ID", "key").env("AWS_SECRET_ACCESS_KEY", "secret").env("AWS_REGION", "eu-west-1");
        command
    }
}

#[test]
fn images_in_a_bucket() {
    let Some(moto) = Moto::start("images_in_a_bucket") else { return };
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    let bytes: Vec<u8> = (0..1_500_000_u32).map(|at| (at.wrapping_mul(at) >> 13) as u8 & 0x1f).collect();
    fs::create_dir(at("tree")).expect("a folder");
    fs::write(at("tree/file"), &bytes).expect("a file");
    fs::write(at("disk.img"), &bytes).expect("a file");
    for (source, image) in [("tree", "tree.erofs"), ("disk.img", "disk.erofs")] {
        output(pagefold().args(["pack", &at(source), "-o", &at(image), "--cluster", "16K"]));
    }
    let cache = TempDir::new().expect("a folder");
    let run = |args: &[&str]| output(moto.pagefold(cache.path()).args(args));

    // Names with spaces and more are part of what is signed.
    let url = "s3://disks/a b/Bäume+1.erofs";
    let fixed = run(&["push", &at("tree.erofs"), url]);
    let fixed = fixed.trim_end();
    assert!(fixed.starts_with(url) && fixed.contains("#sha256:"), "{fixed}");
    // An object is private: requests without a signature are refused.
    let refused = moto.ask("GET", "/disks/a%20b/B%C3%A4ume%2B1.erofs");
    assert!(refused.contains(" 403 "), "{refused}");
    assert_eq!(run(&["ls", url]), "file\n");
    let copy = moto.pagefold(cache.path()).args(["cat", &format!("{fixed}:/file")]).output().expect("it starts");
    assert!(copy.status.success() && copy.stdout == bytes);
    assert!(run(&["check", "--offline", fixed]).starts_with("sound"));

    run(&["push", &at("disk.erofs"), "s3://disks/disk.erofs"]);
    if let Some([_]) = pagefold_testing::programs("images_in_a_bucket", ["nbdcopy"]) {
        let copy = at("copy");
        let trace = at("disk.trace");
        run(&["serve", "--record", &trace, "s3://disks/disk.erofs", "--run", &format!("nbdcopy \"$uri\" {copy}")]);
        assert!(fs::read(&copy).expect("a copy")[..bytes.len()] == bytes);
        run(&["push", "--trace", &trace, "s3://disks/disk.erofs"]);
        let other = TempDir::new().expect("a folder");
        let run = |args: &[&str]| output(moto.pagefold(other.path()).args(args));
        fs::remove_file(&copy).expect("removed");
        // The trace is noted as followed once all of it was read.
        let followed = "for try in $(seq 200); do ls \"$PAGEFOLD_CACHE\"/followed/* && break; sleep .05; done >&2";
        run(&["serve", "s3://disks/disk.erofs", "--run", &format!("{followed}; nbdcopy \"$uri\" {copy}")]);
        let marks = fs::read_dir(other.path().join("followed")).expect("a folder");
        assert_eq!(marks.count(), 1, "the trace is not followed");
        assert!(fs::read(&copy).expect("a copy")[..bytes.len()] == bytes);
    }
    let message = run_to_fail(moto.pagefold(cache.path()).args(["ls", "s3://disks/none.erofs"]));
    assert!(message.contains("pagefold index"), "{message}");
    let message = run_to_fail(moto.pagefold(cache.path()).args(["ls", "s3://none/none.erofs"]));
    assert!(message.contains("none"), "{message}");
}

//! Clients that use TLS: nbdinfo, nbdcopy, qemu-img, qemu-io, nbdkit, and those that are refused.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use pagefold_testing::{
    certificates::{Authority, Valid},
    programs,
};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::server::{Server, is_ignored, make_image, pagefold, run};

/// A server with TLS on TCP, and certificates for its clients.
pub(crate) struct Secure {
    pub(crate) server: Server,
    folder: TempDir,
    authority: Authority,
}

impl Secure {
    pub(crate) fn start(args: &[&str]) -> Self {
        let (folder, authority) = (TempDir::new().expect("a folder"), Authority::new());
        authority.server(&folder.path().join("server"), Valid::Now);
        authority.client(&folder.path().join("client"), Valid::Now);
        let directory = folder.path().join("server");
        let directory = directory.to_str().expect("a plain path");
        let args = [&["--tcp", "0", "--tls-certificates", directory], args].concat();
        Self { server: Server::start(&args), folder, authority }
    }

    /// Returns the URI of a disk on TCP, as the server reports it.
    fn uri(&self, name: &str) -> String {
        let uris = run(&mut self.server.ask(&["uri", "--all", name]));
        let uri = uris.lines().find(|uri| uri.starts_with("nbds://")).expect("a URI with TLS");
        uri.to_owned()
    }

    /// Returns a disk's part of a `-drive` of qemu, and the object that it names.
    pub(crate) fn drive(&self, name: &str) -> (String, String) {
        let object = format!("tls-creds-x509,id=tls0,endpoint=client,dir={}", self.client().display());
        let server = format!("file.server.type=inet,file.server.host=127.0.0.1,file.server.port={}", self.port(name));
        (format!("file.driver=nbd,{server},file.export={name},file.tls-creds=tls0"), object)
    }

    fn port(&self, name: &str) -> String {
        let uri = self.uri(name);
        uri.trim_start_matches("nbds://127.0.0.1:").split('/').next().expect("a port").to_owned()
    }

    /// Returns the URI for clients with the certificates in a folder.
    pub(crate) fn uri_with(&self, name: &str, certificates: &Path) -> String {
        format!("{}?tls-certificates={}", self.uri(name), certificates.display())
    }

    pub(crate) fn client(&self) -> PathBuf {
        self.folder.path().join("client")
    }
}

fn fails(command: &mut Command) -> String {
    let Output { status, stderr, .. } = command.stdin(Stdio::null()).output().expect("it starts");
    assert!(!status.success(), "{command:?} succeeds");
    String::from_utf8_lossy(&stderr).into_owned()
}

#[test]
fn libnbd_reads_and_writes_over_tls() {
    let Some([nbdinfo, nbdcopy]) = programs("libnbd_reads_and_writes_over_tls", ["nbdinfo", "nbdcopy"]) else { return };
    let secure = Secure::start(&["--size", "32M", "--name", "disk"]);
    let uri = secure.uri_with("disk", &secure.client());
    let info = run(Command::new(&nbdinfo).arg(&uri));
    assert!(info.contains("with TLS") && info.contains("export-size: 33554432"), "{info}");
    let (image, back) = (secure.folder.path().join("image"), secure.folder.path().join("back"));
    make_image(&image, 32);
    run(Command::new(&nbdcopy).arg(&image).arg(&uri));
    run(Command::new(&nbdcopy).arg(&uri).arg(&back));
    assert!(fs::read(&image).expect("an image") == fs::read(&back).expect("a copy"));
    // The same disk in plain text.
    run(Command::new(&nbdcopy).arg(secure.server.uri("disk")).arg(&back));
    assert!(fs::read(&image).expect("an image") == fs::read(&back).expect("a copy"));
}

#[test]
fn libnbd_is_refused_without_tls_or_trust() {
    let Some([nbdinfo]) = programs("libnbd_is_refused_without_tls_or_trust", ["nbdinfo"]) else { return };
    let secure = Secure::start(&["--size", "1M", "--name", "disk", "--tls-verify-peer"]);
    run(Command::new(&nbdinfo).arg(secure.uri_with("disk", &secure.client())));
    let plain = format!("nbd://127.0.0.1:{}/disk", secure.port("disk"));
    fails(Command::new(&nbdinfo).arg(&plain));
    let other = secure.folder.path().join("other");
    Authority::new().client(&other, Valid::Now);
    fails(Command::new(&nbdinfo).arg(secure.uri_with("disk", &other)));
    // The client trusts the server, but its own certificate is from another authority, expired, or
    // missing.
    secure.authority.certificate(&other);
    fails(Command::new(&nbdinfo).arg(secure.uri_with("disk", &other)));
    secure.authority.client(&other, Valid::Past);
    fails(Command::new(&nbdinfo).arg(secure.uri_with("disk", &other)));
    let (_, messages) = secure.server.end(Signal::TERM);
    assert!(messages.contains("a client was refused: 127.0.0.1:") && messages.contains(": TLS: "), "{messages}");
    assert!(!messages.contains("may be reached from other machines"), "{messages}");
}

#[test]
fn qemu_reads_and_writes_over_tls() {
    let Some([qemu_img, qemu_io]) = programs("qemu_reads_and_writes_over_tls", ["qemu-img", "qemu-io"]) else { return };
    let secure = Secure::start(&["--size", "32M", "--name", "disk", "--tls-verify-peer"]);
    let object = format!("tls-creds-x509,id=tls0,endpoint=client,dir={}", secure.client().display());
    let disk = format!(
        "driver=nbd,server.type=inet,server.host=127.0.0.1,server.port={},export=disk,tls-creds=tls0",
        secure.port("disk")
    );
    let image = secure.folder.path().join("image");
    make_image(&image, 32);
    run(Command::new(&qemu_img)
        .args(["convert", "-n", "-f", "raw", "--object", &object, "--target-image-opts"])
        .arg(&image)
        .arg(&disk));
    let same = ["compare", "--object", &object, "--image-opts"];
    run(Command::new(&qemu_img)
        .args(same)
        .arg(format!("driver=raw,file.driver=file,file.filename={}", image.display()))
        .arg(&disk));
    let io = |commands: &[&str]| {
        let mut command = Command::new(&qemu_io);
        command.args(["--object", &object, "--image-opts"]);
        commands.iter().for_each(|text| _ = command.args(["-c", text]));
        run(command.arg(&disk))
    };
    io(&["write -P 5 12345 300001", "read -P 5 12345 300001", "discard 0 1M", "read -P 0 0 1M", "flush"]);
}

#[test]
fn nbdkit_is_a_client() {
    let Some([nbdkit, nbdinfo]) = programs("nbdkit_is_a_client", ["nbdkit", "nbdinfo"]) else { return };
    let secure = Secure::start(&["--size", "1M", "--name", "disk"]);
    let run_it = format!("{} \"$uri\"", nbdinfo.display());
    let info = run(Command::new(nbdkit)
        .args(["-U", "-", "nbd", "tls=require"])
        .args(["hostname=127.0.0.1".to_owned(), format!("port={}", secure.port("disk")), "export=disk".to_owned()])
        .arg(format!("tls-certificates={}", secure.client().display()))
        .args(["--run", &run_it]));
    assert!(info.contains("export-size: 1048576"), "{info}");
}

#[test]
fn tls_is_optional_if_that_is_asked_for() {
    let Some([nbdinfo]) = programs("tls_is_optional_if_that_is_asked_for", ["nbdinfo"]) else { return };
    let secure = Secure::start(&["--size", "1M", "--name", "disk", "--tls", "on"]);
    run(Command::new(&nbdinfo).arg(secure.uri_with("disk", &secure.client())));
    run(Command::new(&nbdinfo).arg(format!("nbd://127.0.0.1:{}/disk", secure.port("disk"))));
}

#[test]
fn sighup_reads_the_certificates_again() {
    const TEST: &str = "sighup_reads_the_certificates_again";
    let Some([nbdinfo]) = programs(TEST, ["nbdinfo"]) else { return };
    if is_ignored(TEST, Signal::HUP) {
        return;
    }
    let secure = Secure::start(&["--size", "1M", "--name", "disk"]);
    let next = Authority::new();
    next.server(&secure.folder.path().join("server"), Valid::Now);
    let client = secure.folder.path().join("next");
    next.client(&client, Valid::Now);
    let uri = secure.uri_with("disk", &client);
    fails(Command::new(&nbdinfo).arg(&uri));
    secure.server.signal(Signal::HUP);
    let start = Instant::now();
    while !Command::new(&nbdinfo).arg(&uri).output().expect("nbdinfo starts").status.success() {
        assert!(start.elapsed() < Duration::from_secs(30), "the earlier certificates stay");
        thread::sleep(Duration::from_millis(20));
    }
    fs::write(secure.folder.path().join("server/server-key.pem"), "junk").expect("a file");
    secure.server.signal(Signal::HUP);
    // If certificates were wrongly replaced, that would have happened by then.
    thread::sleep(Duration::from_millis(100));
    run(Command::new(&nbdinfo).arg(&uri));
}

#[test]
fn certificates_that_cannot_be_used_are_an_error_at_the_start() {
    let folder = TempDir::new().expect("a folder");
    let start = |more: &[&str]| {
        let mut command = pagefold();
        command.args(["serve", "--size", "1M", "--tcp", "0", "--dir"]).arg(folder.path().join("run"));
        fails(command.arg("--tls-certificates").arg(folder.path()).args(more))
    };
    let why = start(&[]);
    assert!(why.contains("cannot read") && why.contains("server-cert.pem"), "{why}");
    Authority::new().server(folder.path(), Valid::Past);
    let why = start(&["--tls-verify-peer"]);
    assert!(why.contains("server-cert.pem expired ") && why.contains("make a new one"), "{why}");
    let why = fails(pagefold().args(["serve", "--size", "1M", "--tls-verify-peer"]));
    assert!(why.contains("--tls-certificates"), "{why}");
}

//! Sockets passed by a service manager.

use std::{
    os::{
        fd::OwnedFd,
        unix::net::{UnixListener, UnixStream},
    },
    process::{Command, Stdio},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use pagefold_serve::{Export, Passed, Server, protocol::command};

use crate::device::Ram;

/// Returns a command that runs only the test `name` of this test binary, as a service. Its first
/// passed descriptor is `passed`. The shell sets `variables` (`$$` is the service's own process
/// id).
fn service(name: &str, variables: &str, passed: impl Into<OwnedFd>) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("exec 3<&0 </dev/null; export {variables}; exec \"$0\" --exact --nocapture {name}")])
        .arg(std::env::current_exe().unwrap())
        .stdin(passed.into())
        .stdout(Stdio::piped());
    command
}

#[test]
fn without_a_passed_socket_there_is_none() {
    assert!(Passed::take().unwrap().is_none());
}

/// Plays the service in `a_passed_socket_is_served`; does nothing when run on its own.
#[test]
fn activated_child() {
    if std::env::var_os("LISTEN_FDS").is_none() {
        return;
    }
    let device = Ram::shared(8192);
    let export = Export::new("disk", Arc::clone(&device) as _);
    let server = Server::builder().export(export).passed(Passed::take().unwrap().unwrap()).bind().unwrap();
    let handle = server.handle();
    std::thread::spawn(move || {
        // A flush is the signal to stop.
        while device.flushes.load(Ordering::SeqCst) == 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
        handle.stop();
    });
    server.run().unwrap();
}

#[test]
fn a_passed_socket_is_served_and_stays() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nbd.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let mut child = service("activation::activated_child", "LISTEN_PID=$$ LISTEN_FDS=1", listener)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let stream = UnixStream::connect(&path).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut raw = crate::raw::Raw { stream };
    raw.bytes(18);
    raw.send(&3_u32.to_be_bytes());
    assert_eq!(raw.go(b"disk").0, 8192);
    raw.request(command::FLUSH, 0, 1, 0, 0);
    assert_eq!(raw.simple_reply(), (0, 1));
    assert!(child.wait().unwrap().success());
    assert!(path.exists(), "the socket belongs to the service manager");
}

/// Prints what was passed, for the tests below; does nothing when run on its own.
#[test]
fn refused_child() {
    if std::env::var_os("LISTEN_FDS").is_none() {
        return;
    }
    let passed = Passed::take().map_err(|error| format!("{error}: {}", std::error::Error::source(&error).unwrap()));
    let passed = passed.map(|passed| passed.map(|mut passed| passed.take_unix("control").is_some()));
    println!("passed {passed:?}.");
}

fn refused(variables: &str, passed: impl Into<OwnedFd>) -> String {
    let output = service("activation::refused_child", variables, passed).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn sockets_passed_to_another_process_are_ignored() {
    let directory = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(directory.path().join("nbd.sock")).unwrap();
    for variables in [
        "LISTEN_PID=1 LISTEN_FDS=1",
        "LISTEN_PID= LISTEN_FDS=1",
        "LISTEN_FDS=1",
        "LISTEN_PID=x LISTEN_FDS=1",
        "LISTEN_PID=$$ LISTEN_FDS=",
        "LISTEN_PID=$$ LISTEN_FDS=0",
        "LISTEN_PID=$$ LISTEN_FDS=-1",
        "LISTEN_PID=$$ LISTEN_FDS=4294967295",
    ] {
        let said = refused(variables, listener.try_clone().unwrap());
        assert!(said.contains("passed Ok(None)."), "{variables}: {said}");
    }
    let said = refused("LISTEN_PID=$$ LISTEN_FDS=1", listener.try_clone().unwrap());
    assert!(said.contains("passed Ok(Some(false))."), "{said}");
    let said = refused("LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=control", listener);
    assert!(said.contains("passed Ok(Some(true))."), "{said}");
}

#[test]
fn a_passed_socket_that_does_not_listen_is_a_clear_error() {
    let (one, _other) = UnixStream::pair().unwrap();
    let said = refused("LISTEN_PID=$$ LISTEN_FDS=1", one);
    assert!(said.contains("passed Err(\"cannot use passed socket 0: it does not listen\")."), "{said}");
    let file = tempfile::tempfile().unwrap();
    let said = refused("LISTEN_PID=$$ LISTEN_FDS=1", file);
    assert!(said.contains("socket 0: fd 3 is not a socket"), "{said}");
}

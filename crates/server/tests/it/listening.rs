//! A server before, while and after it listens.

use std::{fs, sync::Arc, time::Duration};

use pagefold_control::{Client, Command, Listing, Stopping};
use pagefold_server::{Add, BaseFile, Error, Level, Manage, Server, Sockets};

use crate::{Lines, config, nbd, server};

#[test]
fn a_client_of_the_control_socket_ends_the_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let (socket, control) = (folder.path().join("nbd.sock"), folder.path().join("control.sock"));
    let file = folder.path().join("base.img");
    fs::write(&file, [7; 1000]).expect("a file");
    let lines = Lines::default();
    let mut config = config();
    config.observer = lines.observer();
    let server = Server::new(config).expect("a server");
    let added = server.add(&Add::new("disk", 1 << 20)).expect("a disk");
    assert!(added.uris.is_empty() && server.addresses().is_empty(), "it does not listen yet");
    server.serve_file(&BaseFile::new("base", &file)).expect("a base");
    assert_eq!(lines.count(Level::Warn, "24 bytes of zeros follow them"), 1);
    let running = server.listen(Sockets::new().unix(&socket).control(&control)).expect("sockets").start();
    let running = running.expect("a thread");

    let mut client = Client::connect(&control, Duration::from_secs(10)).expect("a connection");
    let listing: Listing = client.call(&Command::List {}).expect("disks");
    let names: Vec<_> = listing.disks.iter().map(|disk| (&*disk.name, disk.uris.len())).collect();
    assert_eq!(names, [("base", 1), ("disk", 1)]);
    assert_eq!(nbd::write(&socket, "base", 0, &[0; 512]), Err(1), "EPERM");
    for text in ["listening on ", "control socket ", "base 'base', 1 KiB", "disk 'disk', 1 MiB"] {
        assert_eq!(lines.count(Level::Info, text), 1, "{text}");
    }

    let _: Stopping = client.call(&Command::Stop { force: false }).expect("an answer");
    running.wait().expect("an end");
    assert!(!socket.exists() && !control.exists());
    assert_eq!(lines.count(Level::Info, "a client asked for it, stopping"), 1);
}

#[test]
fn a_program_prepares_for_connections_before_there_are_more() {
    let folder = tempfile::tempdir().expect("a folder");
    let lines = Lines::default();
    let mut config = config();
    config.observer = lines.observer();
    config.when_connections = Some(Arc::new(|count| Some(format!("{count} need more files"))));
    let server = Server::new(config).expect("a server");
    server.limit_connections(7).expect_err("it does not listen yet");
    let running = server.listen(Sockets::new().unix(folder.path().join("nbd.sock"))).expect("a socket");
    let running = running.start().expect("a thread");
    let limited = server.limit_connections(7).expect("a limit");
    assert_eq!((limited.connections, &*limited.warnings), (7, &["7 need more files".to_owned()][..]));
    assert_eq!(lines.count(Level::Warn, "7 need more files"), 1);
    let limit = server.server().figures["connections_limit"].as_u64();
    assert_eq!(limit, Some(7));
    drop(running);
}

#[test]
fn a_server_that_could_not_listen_can_try_again_and_listens_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let (socket, missing) = (folder.path().join("nbd.sock"), folder.path().join("none/control.sock"));
    let server = server();
    assert!(matches!(server.listen(Sockets::new()), Err(Error::Serve(_))), "no address");
    assert!(matches!(server.listen(Sockets::new().unix(&socket).control(missing)), Err(Error::Serve(_))));
    assert!(!socket.exists(), "it is removed with the attempt");
    let running = server.listen(Sockets::new().unix(&socket)).expect("a socket").start().expect("a thread");
    let other = folder.path().join("other.sock");
    assert!(matches!(server.listen(Sockets::new().unix(other)), Err(Error::Listening)));
    let of_one = folder.path().join("one.sock");
    let socket = pagefold_control::DiskSocket { path: of_one.display().to_string(), mode: None, group: None };
    let mut add = Add::new("one", 4096);
    add.socket = Some(socket);
    server.add(&add).expect("a disk with a socket of its own");
    assert_eq!(nbd::write(&of_one, "one", 0, &[9; 4096]), Ok(vec![9; 4096]));
    server.drop("one", false, false).expect("a disk");
    assert!(!of_one.exists());
    running.ending().begin("the test is done");
    running.wait().expect("an end");
}

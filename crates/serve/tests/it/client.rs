use std::{
    io::{Read, Write},
    os::unix::net::UnixListener,
    time::{Duration, Instant},
};

use pagefold_serve::{
    Export, Server,
    client::{Client, ClientError, Target},
    protocol::{INIT_MAGIC, OPTION_MAGIC, OptionReplyHeader, transmission},
};

use crate::{device::Ram, raw::Running};

const TIMEOUT: Duration = Duration::from_millis(700);

#[test]
fn it_lists_exports_and_tells_what_they_are() {
    let server = Running::start(
        Server::builder()
            .export(Export::new("disk", Ram::shared(1 << 20)))
            .export(Export::read_only("other", Ram::shared(512))),
    );
    let mut client = Client::connect(&Target::Unix(server.path.clone()), TIMEOUT).unwrap();
    assert_eq!(client.list().unwrap(), ["disk", "other"]);
    let info = client.info("").unwrap();
    assert_eq!((info.name.as_deref(), info.size_bytes), (Some("disk"), 1 << 20));
    assert_eq!(info.description, None, "figures are not for every client");
    assert_eq!(info.block_sizes_bytes, Some((1, 4096, 32 << 20)));
    assert_ne!(client.info("other").unwrap().flags & transmission::READ_ONLY, 0);
    assert!(matches!(client.info("none"), Err(ClientError::UnknownExport(name)) if name == "none"));
    assert_eq!(client.list().unwrap().len(), 2);
}

#[test]
fn it_connects_over_tcp() {
    let server = Server::builder()
        .export(Export::new("disk", Ram::shared(8192)))
        .tcp(([127, 0, 0, 1], 0).into())
        .bind()
        .unwrap();
    let address = server.tcp_addresses().next().unwrap().to_string();
    let handle = server.handle();
    let running = std::thread::spawn(move || server.run());
    let mut client = Client::connect(&Target::Tcp(address), TIMEOUT).unwrap();
    assert_eq!(client.info("disk").unwrap().size_bytes, 8192);
    drop(client);
    handle.stop();
    running.join().unwrap().unwrap();
}

#[test]
fn nobody_there_is_a_clear_error() {
    let error = Client::connect(&Target::Unix("/nonexistent/nbd.sock".into()), TIMEOUT).unwrap_err();
    assert_eq!(error.to_string(), "cannot connect to /nonexistent/nbd.sock");
    assert!(std::error::Error::source(&error).is_some_and(|cause| cause.to_string().contains("No such file")));
}

#[test]
fn a_server_that_never_accepts_cannot_hold_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nbd.sock");
    let listener = UnixListener::bind(&path).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let _fills_the_queue = std::os::unix::net::UnixStream::connect(&path).unwrap();
    let start = Instant::now();
    let error = Client::connect(&Target::Unix(path.clone()), TIMEOUT).unwrap_err();
    assert!(matches!(error, ClientError::Timeout), "{error}");
    assert!(start.elapsed() < TIMEOUT * 8);
    let export = Export::new("disk", Ram::shared(512));
    let error = Server::builder().export(export).unix(path).bind().unwrap_err();
    assert!(matches!(error, pagefold_serve::Error::PathInUse(_)), "{error}");
}

/// What `Client::list` says about a server that sends `greeting` and then, for ever, `replies`.
fn against(greeting: Vec<u8>, replies: Vec<u8>) -> Result<Vec<String>, ClientError> {
    against_for(TIMEOUT, greeting, replies)
}

fn against_for(timeout: Duration, greeting: Vec<u8>, replies: Vec<u8>) -> Result<Vec<String>, ClientError> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nbd.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&greeting).unwrap();
        if !replies.is_empty() {
            while stream.write_all(&replies).is_ok() {}
        }
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let start = Instant::now();
    let listed = Client::connect(&Target::Unix(path), timeout).and_then(|mut client| client.list());
    assert!(start.elapsed() < timeout * 8, "took {:?}", start.elapsed());
    server.join().unwrap();
    listed
}

fn greeting() -> Vec<u8> {
    [&INIT_MAGIC.to_be_bytes()[..], &OPTION_MAGIC.to_be_bytes(), &[0, 3]].concat()
}

fn reply(option: u32, kind: u32, len_bytes: u32) -> Vec<u8> {
    OptionReplyHeader { option, kind, len_bytes }.encode().to_vec()
}

#[test]
fn a_hostile_server_cannot_hold_or_fill_it() {
    assert!(matches!(against(vec![], vec![]), Err(ClientError::Timeout)));
    assert!(matches!(against(greeting(), vec![]), Err(ClientError::Timeout)));
    assert!(matches!(against(vec![b'x'; 18], vec![]), Err(ClientError::Protocol(_))));
    let mut old = greeting();
    old[17] = 0;
    assert!(matches!(against(old, vec![]), Err(ClientError::Protocol(_))));
    assert!(matches!(against(greeting(), vec![0; 20]), Err(ClientError::Protocol(_))));
    assert!(matches!(against(greeting(), reply(6, 1, 0)), Err(ClientError::Protocol(_))), "another option");
    assert!(matches!(against(greeting(), reply(3, 2, u32::MAX)), Err(ClientError::Protocol(_))), "4 GiB");
    let endless = [reply(3, 2, 5), vec![0, 0, 0, 1, b'x']].concat();
    assert!(matches!(against(greeting(), endless), Err(ClientError::Protocol(_) | ClientError::Timeout)));
    let short = [reply(3, 2, 4), vec![0, 0, 0, 9]].concat();
    assert!(matches!(against(greeting(), short), Err(ClientError::Protocol(_))));
    let refusal = [reply(3, 0x8000_0002, 6), b"\x1b[31m!".to_vec()].concat();
    match against(greeting(), refusal) {
        Err(ClientError::Refused { message, .. }) => assert!(!message.contains('\x1b'), "{message:?}"),
        other => panic!("{other:?}"),
    }
}

/// One entry of a list, of `count` bytes.
fn entry(count: u32) -> Vec<u8> {
    [reply(3, 2, 4 + count), count.to_be_bytes().to_vec(), vec![b'n'; count as usize]].concat()
}

#[test]
fn a_hostile_server_cannot_make_it_keep_much() {
    let protocol = |replies| match against_for(Duration::from_secs(20), greeting(), replies) {
        Err(ClientError::Protocol(what)) => what,
        other => panic!("{:?}", other.map(|names| names.len())),
    };
    assert_eq!(protocol(entry(65_000)), "a string is longer than 4096 bytes");
    assert_eq!(protocol(entry(4097)), "a string is longer than 4096 bytes");
    // 1,049 of these are over 4 MiB, long before there are 10,000.
    assert_eq!(protocol(entry(4000)), "its replies are too long together");
}

#[test]
fn what_a_server_says_is_cut_in_errors() {
    let refusal = [reply(3, 0x8000_0002, 60_000), "é".repeat(30_000).into_bytes()].concat();
    let error = against(greeting(), refusal).unwrap_err().to_string();
    assert!(error.contains("éééé") && error.chars().count() < 200, "{} bytes", error.len());
    let error = ClientError::UnknownExport("n".repeat(4096)).to_string();
    assert!(error.contains("nnnn") && error.chars().count() < 200, "{} bytes", error.len());
}

#[test]
fn a_server_that_closes_at_once_may_have_too_many_connections() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let closing = std::thread::spawn(move || drop(listener.accept().unwrap()));
    let error = Client::connect(&Target::Unix(path), TIMEOUT).unwrap_err();
    assert!(error.to_string().contains("limit on connections"), "{error}");
    closing.join().unwrap();
}

#[test]
fn it_asks_while_all_connections_are_in_use() {
    let limits = pagefold_serve::Limits { connections: 1, ..pagefold_serve::Limits::default() };
    let server = Running::limited(Ram::shared(8192), limits);
    let _only = server.simple();
    let mut client = Client::connect(&Target::Unix(server.path.clone()), TIMEOUT).unwrap();
    assert_eq!(client.info("disk").unwrap().size_bytes, 8192);
}

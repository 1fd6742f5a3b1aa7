//! Many clients: none locks out others or the management of the server.

use std::{
    fs,
    io::{Read, Write},
    iter,
    os::unix::net::UnixStream,
    path::Path,
    thread,
    time::Duration,
};

use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use serde_json::json;

use crate::{
    control::Control,
    memory::{Client, READ, WRITE, most_bytes},
    server::{Server, run},
};

/// Lets this process open as many files as it may: tests that run at the same time share them.
fn allow_files() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).expect("a limit within the hard one");
}

#[test]
fn when_all_connections_are_in_use_disks_are_saved_compared_and_managed() {
    let server = Server::start(&["--export", "name=a,size=1M", "--max-connections", "2"]);
    let first = Client::connect(&server, "a");
    first.send(WRITE, 0, &[7; 4096], 4096);
    assert!(first.reply(WRITE, 4096));
    let _second = Client::connect(&server, "a");
    let path = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let image = server.folder().join("a.raw");
    run(&mut server.ask(&["freeze", "a", "--format", "raw", "-o", &path(&image)]));
    let saved = fs::read(&image).expect("an image");
    assert!(saved.len() == 1 << 20 && saved[..4096] == [7; 4096] && saved[4096..].iter().all(|&byte| byte == 0));
    run(&mut server.ask(&["snapshot", "a", "s"]));
    run(&mut server.ask(&["diff", "a", "--to", &path(&server.folder().join("d"))]));
    run(&mut server.ask(&["fork", "a", "b"]));
    run(&mut server.ask(&["disks"]));
    assert_eq!((server.total("connections"), server.total("connections_limit")), (2, 2));
    run(&mut server.ask(&["limit", "--connections", "3"]));
    let third = Client::connect(&server, "b");
    third.send(READ, 0, &[], 4096);
    assert!(third.reply(READ, 4096));
    let (_, messages) = server.end(Signal::TERM);
    assert!(messages.contains("set the maximum number of connections to 3"), "{messages}");
}

#[test]
fn freezes_next_to_each_other_are_all_done_and_keep_no_manager_out() {
    const FREEZES: usize = 20;
    let server = Server::start(&["--export", "name=a,size=16M", "--max-connections", "1"]);
    let client = Client::connect(&server, "a");
    client.send(WRITE, 0, &[3; 1 << 20], 1 << 20);
    assert!(client.reply(WRITE, 1 << 20));
    // Clients that hold an instant and do not end.
    let hold = |_| {
        let mut control = Control::open(&server);
        control.done(&json!({"command": "freeze", "name": "a"}));
        control
    };
    let _holders: Vec<Control> = (0..FREEZES).map(hold).collect();
    thread::scope(|scope| {
        for number in 0..4 {
            let server = &server;
            scope.spawn(move || {
                let image = server.folder().join(format!("{number}.raw"));
                let path = image.to_str().expect("UTF-8");
                run(&mut server.ask(&["freeze", "a", "--threads", "8", "--format", "raw", "-o", path]));
                assert!(fs::read(&image).expect("an image")[..1 << 20] == [3; 1 << 20]);
            });
        }
    });
    run(&mut server.ask(&["disks"]));
}

/// Some descriptors are left to management, and refused clients learn why.
#[test]
fn when_open_files_run_out_the_server_is_managed() {
    let mut server = Server::start_under("-n 100", &["--export", "name=a,size=1M"]);
    let clients: Vec<Client> = iter::from_fn(|| Client::try_connect(&server, "a").ok()).take(100).collect();
    assert!((40..80).contains(&clients.len()), "{}", clients.len());
    // The option GO of an export, whose reply explains an error.
    let mut refused = UnixStream::connect(server.socket()).expect("a server that accepts");
    refused.read_exact(&mut [0; 18]).expect("a greeting");
    let go = b"\0\0\0\x03IHAVEOPT\0\0\0\x07\0\0\0\x07\0\0\0\x01a\0\0";
    refused.write_all(go).expect("an option is sent");
    let mut reply = [0; 20];
    refused.read_exact(&mut reply).expect("a reply");
    let mut why = vec![0; usize::from(reply[19])];
    refused.read_exact(&mut why).expect("a reason");
    let why = String::from_utf8_lossy(&why).into_owned();
    assert!(why.contains("limit of open files"), "{why}");
    // Silent clients take no more than they may.
    let silent: Vec<_> = (0..40).map(|_| UnixStream::connect(server.socket())).collect();
    run(&mut server.ask(&["disks"]));
    let image = server.folder().join("a.raw");
    drop(silent);
    run(&mut server.ask(&["freeze", "a", "--format", "raw", "-o", image.to_str().expect("UTF-8")]));
    run(&mut server.ask(&["stop"]));
    assert!(server.wait().success());
    let messages = server.messages();
    for words in ["at most 68 are served", "a client was refused: the limit of open files"] {
        assert!(messages.contains(words), "{messages}");
    }
}

/// Clients that do not read their replies keep borrowed memory for long.
#[test]
fn clients_that_do_not_read_keep_no_other_out() {
    const BUSY: usize = 100;
    const OTHERS: usize = 28;
    for limit_mib in [64, 256] {
        let server = Server::start(&["--memory-limit", &format!("{limit_mib}M"), "--size", "1G"]);
        let mut clients = Vec::new();
        let most_bytes = most_bytes(&server, || {
            for _ in 0..BUSY {
                let client = Client::connect(&server, "");
                (0..64).for_each(|index| client.send(READ, index << 22, &[], 4 << 20));
                clients.push(client);
            }
            // Replies fill the sockets, and the server's memory.
            thread::sleep(Duration::from_millis(500));
            let others: Vec<Client> = (0..OTHERS).map(|_| Client::connect(&server, "")).collect();
            for (number, client) in others.iter().enumerate() {
                client.send(WRITE, (number as u64) << 16, &vec![number as u8; 65536], 65536);
                assert!(client.reply(WRITE, 65536));
                client.send(READ, (number as u64) << 16, &[], 65536);
                assert!(client.reply(READ, 65536));
            }
        });
        drop(clients);
        let (_, messages) = server.end(Signal::TERM);
        assert!(!messages.contains("wait") && !messages.contains("refused"), "{messages}");
        let limit_bytes = limit_mib << 20;
        assert!(most_bytes <= limit_bytes + limit_bytes * 3 / 100 + (8 << 20), "{most_bytes} bytes");
    }
}

#[test]
fn silent_connections_take_no_thread_and_delay_no_client() {
    const SILENT: usize = 700;
    allow_files();
    let server = Server::start(&["--size", "1M", "--memory-limit", "64M"]);
    let _rest = Client::connect(&server, "");
    let before_bytes = server.anonymous_bytes();
    let silent: Vec<UnixStream> =
        (0..SILENT).map(|_| UnixStream::connect(server.socket()).expect("a server that accepts")).collect();
    let client = Client::connect(&server, "");
    client.send(READ, 0, &[], 4096);
    assert!(client.reply(READ, 4096));
    let status = server.proc("status");
    let threads = status.lines().find_map(|line| line.strip_prefix("Threads:")).expect("a count").trim();
    assert!(threads.parse::<usize>().expect("a number") < 50, "{threads} threads");
    let taken_bytes = server.anonymous_bytes().saturating_sub(before_bytes);
    assert!(taken_bytes <= 4 << 20, "{taken_bytes} bytes for {} silent connections", silent.len());
}

/// The charge of an idle connection covers its memory, and is not much higher.
#[test]
fn idle_connections_take_the_memory_they_are_charged() {
    const CLIENTS: u64 = 300;
    const IDLE_BYTES: u64 = 4 << 10;
    allow_files();
    let server = Server::start(&["--size", "1G", "--memory-limit", "1G", "--max-connections", "500"]);
    let warm = Client::connect(&server, "");
    warm.send(WRITE, 0, &[1; 65536], 65536);
    assert!(warm.reply(WRITE, 65536));
    let mut control = Control::open(&server);
    let mut charged = || {
        let stat = control.done(&json!({"command": "stat"}));
        stat["server"]["figures"]["client_bytes"].as_u64().expect("a figure")
    };
    let before_bytes = server.anonymous_bytes();
    let clients: Vec<Client> = (0..CLIENTS).map(|_| Client::connect(&server, "")).collect();
    for client in &clients {
        client.send(WRITE, 0, &[1; 65536], 65536);
        assert!(client.reply(WRITE, 65536));
    }
    let mut waited = Duration::ZERO;
    while charged() > (CLIENTS + 1) * IDLE_BYTES {
        assert!(waited < Duration::from_secs(60), "{} bytes", charged());
        thread::sleep(Duration::from_millis(50));
        waited += Duration::from_millis(50);
    }
    let taken_bytes = server.anonymous_bytes().saturating_sub(before_bytes);
    // Threads that have ended leave their last pages to the next ones: some MiB, regardless of the
    // number of connections.
    assert!(taken_bytes <= CLIENTS * IDLE_BYTES + (4 << 20), "{} bytes each", taken_bytes / CLIENTS);
}

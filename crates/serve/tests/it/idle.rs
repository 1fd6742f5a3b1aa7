//! The cost of idle clients.

use std::{
    env, fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use pagefold_serve::{
    Export, Server,
    protocol::{OptionHeader, Request, command, option},
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::ClientConnection;

use crate::{
    device::Ram,
    raw::{info, limits_with},
    secure::{PKI, certificates, client, shake_hands},
};

/// Maximum bytes that a process may take for each idle client.
const MOST_BYTES: u64 = 20 << 10;

/// The server whose memory is measured is a separate process: this test, if the variable is set.
const SERVE: &str = "TEST_SERVES_IDLE_CLIENTS";

#[test]
fn serves_idle_clients() {
    let Some(tls) = env::var_os(SERVE) else { return };
    let limits = limits_with(|limits| limits.connections = 2000);
    let builder = Server::builder().export(Export::new("disk", Ram::shared(1 << 20))).limits(limits);
    let builder = if tls == "tls" { builder.tls(certificates()) } else { builder };
    let server = builder.tcp(([127, 0, 0, 1], 0).into()).bind().unwrap();
    let (handle, address) = (server.handle(), server.tcp_addresses().next().unwrap());
    let running = thread::spawn(move || server.run());
    // The line comes after the output of the test runner.
    let line = format!("\nport {} {}\n", address.port(), PKI.display());
    std::io::stdout().write_all(line.as_bytes()).unwrap();
    std::io::stdout().flush().unwrap();
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    handle.stop();
    running.join().unwrap().unwrap();
}

/// The server's process, which ends with its standard input.
struct Served {
    child: Child,
    /// Its output after the first line is not read.
    _out: BufReader<ChildStdout>,
}

impl Served {
    fn figure(&self, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim_start_matches(':').split_whitespace().next().unwrap().parse().unwrap()
    }

    /// Waits until there are not more threads.
    fn wait_for_threads(&self, most: u64) {
        let start = Instant::now();
        while self.figure("Threads") > most {
            assert!(start.elapsed() < Duration::from_secs(30), "{} threads", self.figure("Threads"));
            thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

struct Idle {
    wire: TcpStream,
    tls: Option<ClientConnection>,
}

impl Idle {
    fn exchange(&mut self, sent: &[u8], reply_bytes: usize) {
        let mut reply = vec![0; reply_bytes];
        match &mut self.tls {
            None => {
                self.wire.write_all(sent).unwrap();
                self.wire.read_exact(&mut reply).unwrap();
            }
            Some(tls) => {
                let mut stream = rustls::Stream::new(tls, &mut self.wire);
                stream.write_all(sent).unwrap();
                stream.read_exact(&mut reply).unwrap();
            }
        }
    }
}

#[test]
fn idle_clients_take_no_threads_and_little_memory() {
    let clients: u64 = env::var("TEST_IDLE_CLIENTS").map_or(100, |number| number.parse().unwrap());
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    for tls in [false, true] {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "idle::serves_idle_clients", "--nocapture"])
            .env(SERVE, if tls { "tls" } else { "plain" })
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let line =
            out.by_ref().lines().find_map(|line| line.unwrap().strip_prefix("port ").map(str::to_owned)).unwrap();
        let served = Served { child, _out: out };
        let (port, pki) = line.split_once(' ').unwrap();
        let connect = || {
            let mut wire = TcpStream::connect(("127.0.0.1", port.parse().unwrap())).unwrap();
            let go = info(b"disk", &[]);
            let go = [&OptionHeader { option: option::GO, len_bytes: go.len() as u32 }.encode()[..], &go].concat();
            wire.read_exact(&mut [0; 18]).unwrap();
            wire.write_all(&3_u32.to_be_bytes()).unwrap();
            let mut idle = Idle { wire, tls: None };
            if tls {
                idle.exchange(&OptionHeader { option: option::STARTTLS, len_bytes: 0 }.encode(), 20);
                let mut tls = client(pki.as_ref());
                shake_hands(&mut tls, &mut idle.wire).unwrap();
                idle.tls = Some(tls);
            }
            idle.exchange(&go, 20 + 12 + 20);
            idle
        };
        drop(connect());
        // A thread that has computed a handshake ends after an idle second.
        thread::sleep(Duration::from_secs(if tls { 2 } else { 0 }));
        let (bytes, threads) = (served.figure("RssAnon"), served.figure("Threads"));
        let mut all: Vec<_> = (0..clients).map(|_| connect()).collect();
        let connected_bytes = served.figure("RssAnon");
        // Threads that computed handshakes end when there are no more.
        served.wait_for_threads(threads);
        for idle in &mut all {
            let read = Request { flags: 0, kind: command::READ, cookie: 1, offset: 0, len_bytes: 65536 };
            idle.exchange(&read.encode(), 16 + 65536);
        }
        let start = Instant::now();
        let each = |now: u64| now.saturating_sub(bytes) * 1024 / clients;
        while served.figure("Threads") > threads || each(served.figure("RssAnon")) > MOST_BYTES {
            let (bytes, threads) = (served.figure("RssAnon"), served.figure("Threads"));
            assert!(start.elapsed() < Duration::from_secs(30), "{} bytes each, {threads} threads", each(bytes));
            thread::sleep(Duration::from_millis(50));
        }
        let (before, after) = (each(connected_bytes), each(served.figure("RssAnon")));
        assert!(before <= MOST_BYTES, "{before} bytes each before the first request");
        println!("TLS {tls}: {clients} clients, {before} bytes each, {after} after a request");
        drop(all);
    }
}

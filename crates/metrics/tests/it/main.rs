//! The exporter, with real sockets.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::net::{UnixListener, UnixStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use pagefold_metrics::{Exporter, Kind, Listener, Source, Text};

/// Counts how often it was asked, in a text of about this length.
struct Counted {
    asked: AtomicU64,
    len_bytes: usize,
}

impl Source for Counted {
    fn write(&self, text: &mut Text) {
        let asked = self.asked.fetch_add(1, SeqCst);
        let mut family = text.family("asked", Kind::Counter, "How often.");
        family.value(&[], asked);
        if self.len_bytes > 0 {
            text.family("long", Kind::Info, "Text.").info(&[("text", &"x".repeat(self.len_bytes))]);
        }
    }
}

fn start(len_bytes: usize) -> (Exporter, SocketAddr) {
    let socket = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = socket.local_addr().expect("an address");
    let source = Arc::new(Counted { asked: AtomicU64::new(0), len_bytes });
    (Exporter::start(vec![Listener::Tcp(socket)], source).expect("a thread"), address)
}

fn ask(mut stream: impl Read + Write, request: &str) -> String {
    stream.write_all(request.as_bytes()).expect("a server that receives");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("a server");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    stream
}

const GET: &str = "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";
const PLAIN: &str = "GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: text/plain\r\n\r\n";

#[test]
fn metrics_are_answered_in_either_format() {
    let folder = std::env::temp_dir().join(format!("pagefold-metrics-{}", std::process::id()));
    let _ = std::fs::remove_file(&folder);
    let unix = UnixListener::bind(&folder).expect("a socket");
    let source = Arc::new(Counted { asked: AtomicU64::new(0), len_bytes: 0 });
    let exporter = Exporter::start(vec![Listener::Unix(unix)], source).expect("a thread");
    let ask = |request: &str| ask(UnixStream::connect(&folder).expect("a server"), request);
    let answer = ask(GET);
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
    assert!(body.starts_with("# TYPE asked counter\n") && body.ends_with("# EOF\n"), "{body}");
    let answer = ask("GET /metrics HTTP/1.0\r\nAccept: text/plain\r\n\r\n");
    assert!(
        answer.contains("text/plain; version=0.0.4") && answer.contains("# TYPE asked_total counter\n"),
        "{answer}"
    );
    let answer = ask("HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\n"), "{answer}");
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n", "404 Not Found"),
        ("POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nabcde", "405 Method Not Allowed"),
        ("nonsense\r\n\r\n", "400 Bad Request"),
    ] {
        assert!(ask(request).starts_with(&format!("HTTP/1.1 {status}\r\n")), "{request}");
    }
    let long = format!("GET /metrics HTTP/1.1\r\nA: {}\r\n\r\n", "a".repeat(16 << 10));
    assert!(ask(&long).starts_with("HTTP/1.1 431 "));
    drop(exporter);
    assert!(UnixStream::connect(&folder).is_err(), "the exporter has ended");
    let _ = std::fs::remove_file(&folder);
}

/// Clients that send nothing, half of a request or a byte at a time, and clients that take nothing.
#[test]
fn hostile_clients_keep_no_other_out() {
    let (_exporter, address) = start(4 << 20);
    let mut idle: Vec<_> = (0..40).map(|_| connect(address)).collect();
    for (number, stream) in idle.iter_mut().enumerate() {
        // The server may have dropped it already.
        let _ = stream.write_all(match number % 4 {
            0 => b"",
            1 => b"GET /met",
            2 => GET.as_bytes(),
            _ => b"\0\0\0\0",
        });
    }
    for _ in 0..10 {
        let answer = ask(connect(address), GET);
        assert!(answer.len() > 4 << 20 && answer.ends_with("# EOF\n"), "{}", answer.len());
    }
    drop(idle);
}

/// A client that asks a byte at a time is answered.
#[test]
fn a_request_may_come_in_pieces() {
    let (_exporter, address) = start(0);
    let mut stream = connect(address);
    stream.set_nodelay(true).expect("TCP");
    for byte in GET.as_bytes() {
        stream.write_all(&[*byte]).expect("a server that receives");
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.ends_with("# EOF\n"), "{answer}");
}

/// Metrics that take long to write are written seldom, in whichever formats clients ask for them.
#[test]
fn clients_share_recent_metrics() {
    struct Slow(AtomicU64);
    impl Source for Slow {
        fn write(&self, text: &mut Text) {
            // Metrics that take this long to write are shared for a while.
            thread::sleep(Duration::from_millis(50));
            text.family("asked", Kind::Counter, "How often.").value(&[], self.0.fetch_add(1, SeqCst));
        }
    }
    let socket = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = socket.local_addr().expect("an address");
    let source = Arc::new(Slow(AtomicU64::new(0)));
    let asked = Arc::clone(&source);
    let _exporter = Exporter::start(vec![Listener::Tcp(socket)], source).expect("a thread");
    let begun = std::time::Instant::now();
    for _ in 0..20 {
        assert!(ask(connect(address), GET).ends_with("# EOF\n"));
        assert!(ask(connect(address), PLAIN).contains("asked"));
    }
    // Two seconds pass between a pair of them and the next.
    let most = 2 * (1 + begun.elapsed().as_secs() / 2);
    assert!(asked.0.load(SeqCst) <= most, "{} of {most}", asked.0.load(SeqCst));
}

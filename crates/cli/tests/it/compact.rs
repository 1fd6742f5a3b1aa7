//! `compact` against running servers, ours and another.

use std::{
    io::{Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    thread,
};

use crate::server::{Server, pagefold, run, run_to_fail};

/// A connection in transmission with the default export, by the old option that every server knows.
struct Disk(UnixStream);

impl Disk {
    fn open(server: &Server) -> Self {
        let mut stream = UnixStream::connect(server.socket()).expect("a server");
        stream.read_exact(&mut [0; 18]).expect("a greeting");
        stream.write_all(&3_u32.to_be_bytes()).expect("flags");
        stream.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\0").expect("the option");
        stream.read_exact(&mut [0; 10]).expect("size and flags");
        Self(stream)
    }

    fn request(&mut self, kind: u16, page: u64, payload: &[u8]) {
        let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
        request.extend([0, 0]);
        request.extend(kind.to_be_bytes());
        request.extend(page.to_be_bytes());
        request.extend((page * 4096).to_be_bytes());
        request.extend(4096_u32.to_be_bytes());
        request.extend(payload);
        self.0.write_all(&request).expect("a request is sent");
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply).expect("a reply");
        assert_eq!(reply[4..8], [0; 4], "no error");
    }

    fn read(&mut self, page: u64) -> Vec<u8> {
        self.request(0, page, b"");
        let mut found = vec![0; 4096];
        self.0.read_exact(&mut found).expect("a page");
        found
    }
}

fn page(number: u64) -> Vec<u8> {
    let mut state = number + 1;
    let noise = 600 + number % 7 * 400;
    let byte = |at| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        if at < noise { (state >> 56) as u8 } else { 7 }
    };
    (0..4096).map(byte).collect()
}

#[test]
fn compact_gives_memory_back_and_changes_no_byte() {
    const PAGES: u64 = 3000;
    let server = Server::start(&["--size", "64M"]);
    let mut disk = Disk::open(&server);
    for number in 0..PAGES {
        disk.request(1, number, &page(number));
    }
    // Holes of a third: below what the background thread leaves, once it is done.
    for number in (0..PAGES).filter(|number| number % 3 == 0) {
        disk.request(4, number, b"");
    }
    let taken = server.figure("", "spent_bytes");
    let text = run(pagefold().args(["compact", "--json", "--unix"]).arg(server.socket()));
    let figure = |metric: &str| {
        let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
        let mut found = lines.filter(|line| line["metric"] == metric);
        found.next().unwrap_or_else(|| panic!("no {metric} in {text}"))["value"].as_u64().expect("a number")
    };
    assert_eq!(figure("before_bytes") - figure("after_bytes"), figure("given_back_bytes"));
    let left = server.figure("", "spent_bytes");
    assert!(left <= taken && left == figure("after_bytes"), "{taken} bytes before, {left} afterwards: {text}");
    let compressed = server.figure("", "compr_data_size");
    assert!(left < compressed + compressed / 20 + (400 << 10), "{left} bytes for {compressed}");
    for number in 0..PAGES {
        let expected = if number % 3 == 0 { vec![0; 4096] } else { page(number) };
        assert!(disk.read(number) == expected, "page {number} changed");
    }
    // Once more at once, and in words: there is nothing left to give back.
    let text = run(pagefold().args(["compact", "--unix"]).arg(server.socket()));
    assert!(text.contains("export '': 0 B given back"), "{text}");
}

#[test]
fn a_read_only_export_is_compacted_and_others_are_left_alone() {
    let server = Server::start(&["--export", "name=a,size=1M,read-only", "--export", "name=b,size=1M"]);
    let text = run(pagefold().args(["compact", "--name", "a", "--unix"]).arg(server.socket()));
    assert!(text.starts_with("export 'a': ") && text.lines().count() == 1, "{text}");
    let text = run(pagefold().args(["compact", "--unix"]).arg(server.socket()));
    assert_eq!(text.lines().count(), 2, "{text}");
}

#[test]
fn what_cannot_be_compacted_is_named() {
    let server = Server::start(&["--size", "1M"]);
    let message = run_to_fail(pagefold().args(["compact", "--name", "other", "--unix"]).arg(server.socket()));
    assert!(message.contains("no export named `other`"), "{message}");

    // A server that knows no such option, as any other does.
    let path = server.folder().join("foreign");
    let listener = UnixListener::bind(&path).expect("a socket");
    let foreign = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        stream.write_all(b"NBDMAGICIHAVEOPT\0\x03").expect("a greeting");
        stream.read_exact(&mut [0; 4]).expect("flags");
        let mut header = [0; 16];
        stream.read_exact(&mut header).expect("an option");
        let mut reply = vec![0, 3, 0xe8, 0x89, 4, 0x55, 0x65, 0xa9];
        reply.extend_from_slice(&header[8..12]);
        reply.extend_from_slice(&[0x80, 0, 0, 1, 0, 0, 0, 0]);
        stream.write_all(&reply).expect("a refusal");
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let asked = pagefold().args(["compact", "--name", "", "--unix"]).arg(&path).output().expect("pagefold");
    foreign.join().expect("the other server");
    let message = String::from_utf8_lossy(&asked.stderr).into_owned();
    assert!(!asked.status.success() && message.contains("not pagefold"), "{message}");
}

//! `compact` on a running server.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
};

use crate::server::{Server, run};

/// A connection in transmission with the default export, negotiated with the old option that every
/// server supports.
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
    // With a limit, a part is reserved for clients.
    let server = Server::start(&["--size", "64M", "--memory-limit", "none"]);
    let mut disk = Disk::open(&server);
    for number in 0..PAGES {
        disk.request(1, number, &page(number));
    }
    // Discards a third: less than what the background thread would act on, once it is done.
    for number in (0..PAGES).filter(|number| number % 3 == 0) {
        disk.request(4, number, b"");
    }
    let taken = server.total("spent_bytes");
    let text = run(&mut server.ask(&["compact", "--json"]));
    let figure = |metric: &str| {
        let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
        let mut found = lines.filter(|line| line["metric"] == metric);
        found.next().unwrap_or_else(|| panic!("no {metric} in {text}"))["value"].as_u64().expect("a number")
    };
    assert_eq!(figure("before_bytes") - figure("after_bytes"), figure("given_back_bytes"));
    let left = server.total("spent_bytes");
    assert!(left <= taken && left == figure("after_bytes"), "{taken} bytes before, {left} afterwards: {text}");
    let compressed = server.total("compr_data_size");
    assert!(left < compressed + compressed / 20 + (400 << 10), "{left} bytes for {compressed}");
    for number in 0..PAGES {
        let expected = if number % 3 == 0 { vec![0; 4096] } else { page(number) };
        assert!(disk.read(number) == expected, "page {number} changed");
    }
    // Again immediately, with text output: there is nothing left to return.
    let text = run(&mut server.ask(&["compact"]));
    assert!(text.starts_with("0 B given back"), "{text}");
}

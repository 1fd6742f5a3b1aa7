//! The reading client against the server, and against programs that are not NBD servers.

use std::{
    io::{Read, Write},
    os::unix::net::UnixListener,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use pagefold_serve::{
    Client,
    protocol::{InfoReply, OptionReplyHeader, encode_simple_reply, option, reply},
};

use crate::{device::Ram, raw::Running};

const TIME: Duration = Duration::from_secs(20);

#[test]
fn reads_return_the_device_content() {
    let device = Ram::shared(5 << 20);
    device.bytes.lock().unwrap().iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 7 % 251) as u8);
    let server = Running::of(Arc::clone(&device) as _);
    let mut client = Client::unix(&server.path, "disk", TIME).unwrap();
    assert_eq!(client.size_bytes(), 5 << 20);
    for (offset, len) in [(0, 1), (12_345, 3 << 20), ((5 << 20) - 1, 1), (0, 5 << 20), (100, 0)] {
        let mut buf = vec![0; len];
        client.read(offset, &mut buf).unwrap();
        assert!(buf == device.bytes.lock().unwrap()[offset as usize..][..len], "{offset} {len}");
    }
    // A read that the server refuses is an error, and the next one succeeds.
    let error = client.read(5 << 20, &mut [0; 512]).unwrap_err();
    assert!(error.to_string().contains("the 512 bytes from byte 5242880: "), "{error}");
    client.read(0, &mut [0; 512]).unwrap();
    // Many in parallel, in any order, and again after one of them was refused.
    for refused in [false, true, false] {
        let places = (0..300u64).map(|number| (number * 7919 % 1000 * 5000, 1 + number as usize * 31 % 9000));
        let mut bufs: Vec<_> = places.map(|(offset, len)| (offset, vec![0; len])).collect();
        if refused {
            bufs[150].0 = 5 << 20;
        }
        let mut parts: Vec<_> = bufs.iter_mut().map(|(offset, buf)| (*offset, &mut buf[..])).collect();
        let read = client.read_all(&mut parts);
        assert_eq!(read.is_err(), refused, "{read:?}");
        let held = device.bytes.lock().unwrap();
        assert!(refused || bufs.iter().all(|(offset, buf)| *buf == held[*offset as usize..][..buf.len()]));
    }
    let error = Client::unix(&server.path, "other", TIME).unwrap_err();
    assert!(error.to_string().contains("does not serve the export 'other'"), "{error}");
}

/// Returns what a server sends first.
fn greeting() -> Vec<u8> {
    b"NBDMAGICIHAVEOPT\0\x03".to_vec()
}

fn option_reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let header = OptionReplyHeader { option, kind, len_bytes: data.len() as u32 };
    [&header.encode()[..], data].concat()
}

fn export() -> Vec<u8> {
    option_reply(option::GO, reply::INFO, &InfoReply::Export { size_bytes: 4096, flags: 1 }.encode())
}

/// Returns the client's result for a server that sends these bytes.
fn answered(bytes: &[u8]) -> std::io::Result<()> {
    answered_all(bytes, &mut [(0, &mut [0; 4096])])
}

fn answered_all(bytes: &[u8], parts: &mut [(u64, &mut [u8])]) -> std::io::Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(TIME)).unwrap();
            let _ = stream.write_all(bytes);
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let _ = stream.read_to_end(&mut Vec::new());
        });
        Client::unix(&path, "disk", TIME)?.read_all(parts)
    })
}

#[test]
fn invalid_answers_are_errors() {
    let sound = [
        greeting(),
        export(),
        option_reply(option::GO, reply::ACK, b""),
        encode_simple_reply(0, 0).to_vec(),
        vec![7; 4096],
    ]
    .concat();
    answered(&sound).unwrap();
    let start = Instant::now();
    // Truncated at any position.
    for len in (0..sound.len()).step_by(3).filter(|len| *len < 200 || len % 500 < 3) {
        let error = answered(&sound[..len]).unwrap_err();
        assert_eq!(error.to_string(), "the server closed the connection");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionAborted);
    }
    // A changed byte at any position where it matters: not in flags, nor in the data read.
    let (flags, content) = (16, sound.len() - 4096);
    let size = greeting().len() + 20;
    for at in (0..content).filter(|at| !(flags..flags + 2).contains(at) && !(size + 2..size + 12).contains(at)) {
        let mut other = sound.clone();
        other[at] ^= 0x40;
        answered(&other).unwrap_err();
    }
    // Lengths of gigabytes are not allocated.
    let long = OptionReplyHeader { option: option::GO, kind: reply::INFO, len_bytes: u32::MAX };
    let error = answered(&[greeting(), long.encode().to_vec()].concat()).unwrap_err();
    assert!(error.to_string().contains("unexpected reply"), "{error}");
    assert!(start.elapsed() < TIME, "{:?}", start.elapsed());
}

#[test]
fn answers_may_come_in_another_order() {
    let front = [greeting(), export(), option_reply(option::GO, reply::ACK, b"")].concat();
    let answer = |cookie: u8| [encode_simple_reply(0, cookie.into()).to_vec(), vec![cookie; 3]].concat();
    let read = |order: &[u8]| {
        let answers: Vec<u8> = order.iter().flat_map(|&cookie| answer(cookie)).collect();
        let mut bufs = [[9; 3]; 3];
        let mut parts: Vec<_> = bufs.iter_mut().map(|buf| (0, &mut buf[..])).collect();
        answered_all(&[&front[..], &answers].concat(), &mut parts).map(|()| bufs)
    };
    for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
        assert_eq!(read(&order).unwrap(), [[0; 3], [1; 3], [2; 3]]);
    }
    for order in [[0, 1, 1], [0, 1, 3], [0, 0, 0]] {
        assert!(read(&order).unwrap_err().to_string().contains("unexpected reply"), "{order:?}");
    }
}

#[test]
fn a_server_that_is_silent_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let _listener = UnixListener::bind(&path).unwrap();
    let start = Instant::now();
    let error = Client::unix(&path, "disk", Duration::from_millis(200)).unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}: {error}", start.elapsed());
}

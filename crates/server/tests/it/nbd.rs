//! A minimal client that writes.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
};

/// Negotiates fixed newstyle, and writes `bytes` at `offset` of an export. Returns the error number,
/// or the bytes read back.
pub(crate) fn write(socket: &Path, export: &str, offset: u64, bytes: &[u8]) -> Result<Vec<u8>, u32> {
    let mut stream = UnixStream::connect(socket).expect("a connection");
    let mut take = |len: usize, sent: &[u8]| {
        stream.write_all(sent).expect("a request");
        let mut received = vec![0; len];
        stream.read_exact(&mut received).expect("an answer");
        received
    };
    take(18, &[]);
    let go = [&3_u32.to_be_bytes()[..], b"IHAVEOPT", &7_u32.to_be_bytes()].concat();
    let name_len = export.len() as u32;
    let query = [&name_len.to_be_bytes()[..], export.as_bytes(), &[0, 0]].concat();
    let mut reply = take(20, &[go, (query.len() as u32).to_be_bytes().to_vec(), query].concat());
    // Information, until it is acknowledged.
    while reply[12..16] != 1_u32.to_be_bytes() {
        let len = u32::from_be_bytes(reply[16..20].try_into().expect("four bytes"));
        take(len as usize, &[]);
        reply = take(20, &[]);
    }
    let request = |kind: u16, data: &[u8]| {
        let head = [&0x2560_9513_u32.to_be_bytes()[..], &[0, 0], &kind.to_be_bytes(), &[7; 8], &offset.to_be_bytes()];
        [&head.concat()[..], &(bytes.len() as u32).to_be_bytes(), data].concat()
    };
    let written = take(16, &request(1, bytes));
    match u32::from_be_bytes(written[4..8].try_into().expect("four bytes")) {
        0 => Ok(take(16 + bytes.len(), &request(0, &[])).split_off(16)),
        error => Err(error),
    }
}

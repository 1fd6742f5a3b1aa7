//! A peer sends arbitrary bytes: alone, or after a negotiation that reaches the transmission phase.
//! Each input has its own pool and disk.
#![no_main]

use std::{
    io::{self, Cursor, Read},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use libfuzzer_sys::fuzz_target;
use pagefold_disk::{Pool, PoolConfig, RamDisk};
use pagefold_serve::{Export, Exports, Limits, Transport, protocol::OptionHeader, serve_stream};

/// A stream in memory: everything the peer sends is available from the start, then the peer is
/// gone.
struct Script(Mutex<Cursor<Vec<u8>>>);

impl Transport for Script {
    fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).read(buf)
    }

    fn try_recv(&self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        self.recv(buf).map(Some)
    }

    fn send(&self, bytes: &[u8], _: Duration) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn set_recv_timeout(&self, _: Duration) -> io::Result<()> {
        Ok(())
    }

    fn shutdown(&self) {}
}

fn exports() -> Exports {
    let pool = Pool::new(PoolConfig::default().memory_limit(1 << 20)).expect("a small pool");
    let disk = RamDisk::new(&pool, 1 << 20);
    let exports = Exports::new();
    exports.add(Export::new("", Arc::new(disk.expect("a small disk")))).expect("one export");
    exports
}

/// Client flags, structured replies or extended headers, and GO to the default export.
fn negotiation(extended: bool) -> Vec<u8> {
    let mut bytes = 3_u32.to_be_bytes().to_vec();
    for (option, data) in [(if extended { 11 } else { 8 }, &[][..]), (7, &[0; 6][..])] {
        bytes.extend(OptionHeader { option, len_bytes: data.len() as u32 }.encode());
        bytes.extend(data);
    }
    bytes
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&first, rest)) = bytes.split_first() else { return };
    let mut input = if first & 1 == 0 { negotiation(first & 2 != 0) } else { Vec::new() };
    input.extend(rest);
    // With and without memory beyond the minimum.
    let mut limits = Limits::default();
    if first & 4 != 0 {
        limits.memory_bytes = 0;
    }
    serve_stream(Script(Mutex::new(Cursor::new(input))), &exports(), limits);
});

//! The resources that many clients cost a server.

use std::process::Command;

use pagefold_testing::programs;

use crate::server::{Server, run};

const CLIENTS: u64 = 24;
/// The memory that all clients may use together, according to `docs/nbd.md`.
const CONNECTIONS_BYTES: u64 = (64 << 20) + CLIENTS * (36 << 10);
/// Memory for the program itself and a disk with 64 MiB of zero pages.
const OTHER_BYTES: u64 = 8 << 20;

#[test]
fn many_clients_with_large_requests_stay_within_the_bound() {
    let Some([fio]) = programs("many_clients_with_large_requests_stay_within_the_bound", ["fio"]) else { return };
    let server = Server::start(&["--size", "64M"]);
    run(Command::new(&fio)
        .current_dir(server.folder())
        .args(["--name=many", "--ioengine=nbd", "--thread", "--rw=randwrite", "--iodepth=16"])
        .arg(format!("--numjobs={CLIENTS}"))
        .args(["--bs=1m", "--size=64M", "--io_size=64M", "--zero_buffers", "--norandommap"])
        .arg(format!("--uri={}", server.uri(""))));
    let status = server.proc("status");
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("the most memory");
    let most_bytes = most.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10;
    assert!(most_bytes <= CONNECTIONS_BYTES + OTHER_BYTES, "{most_bytes} bytes");
}

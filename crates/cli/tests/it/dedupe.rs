//! `serve --dedupe`: equal pages on any disks, written by real clients.

use std::{fs, process::Command};

use pagefold_testing::programs;

use crate::server::{Server, run};

const MIB: u64 = 1 << 20;

/// Returns 8 MiB of distinct pages that hardly compress.
fn content() -> Vec<u8> {
    let mut state = 1u64;
    let mut byte = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8 & 0x0f
    };
    (0..8 * MIB).map(|_| byte()).collect()
}

#[test]
fn pages_of_many_disks_are_stored_once() {
    let test = "pages_of_many_disks_are_stored_once";
    let Some([nbdcopy, qemu_io]) = programs(test, ["nbdcopy", "qemu-io"]) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("installed");
    let content = content();
    fs::write(&file, &content).expect("a file");
    for dedupe in [true, false] {
        let mut args = vec!["--export", "name=a,size=8M", "--export", "name=b,size=8M", "--export", "name=c,size=8M"];
        args.extend(dedupe.then_some("--dedupe"));
        let server = Server::start(&args);
        let copy = |disk: &str| run(Command::new(&nbdcopy).arg(&file).arg(server.uri(disk)));
        copy("a");
        let once = server.total("compr_data_size");
        run(&mut server.ask(&["fork", "b", "d"]));
        ["b", "c", "d"].iter().for_each(|disk| drop(copy(disk)));
        let all = server.total("compr_data_size");
        let printed = run(&mut server.ask(&["stat"]));
        if dedupe {
            assert!(all < once * 11 / 10, "{all} {once}");
            assert!(server.total("shared_saved_bytes") > once * 28 / 10);
            assert!(printed.contains("saved by keeping"), "{printed}");
            assert!(server.figure("d", "shared_bytes") > once * 9 / 10);
        } else {
            assert!(all > once * 39 / 10, "{all} {once}");
            assert!(!printed.contains("saved by keeping"), "{printed}");
        }
        // One disk changes some of it, and another is dropped.
        run(Command::new(&qemu_io).args(["-f", "raw", "-c", "write -P 7 1M 64k"]).arg(server.uri("b")));
        run(&mut server.ask(&["drop", "a"]));
        for disk in ["b", "c", "d"] {
            let read = folder.path().join("read");
            run(Command::new(&nbdcopy).arg(server.uri(disk)).arg(&read));
            let mut expected = content.clone();
            if disk == "b" {
                expected[MIB as usize..][..64 << 10].fill(7);
            }
            assert!(fs::read(&read).expect("a copy") == expected, "{disk} has something else");
            fs::remove_file(read).expect("the copy");
        }
        run(&mut server.ask(&["drop", "b", "c", "d"]));
    }
}

//! Forks that share a server: one uses all the memory it can get, the others write a little.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use pagefold_testing::programs;
use serde_json::Value;

use crate::{
    forks::listed,
    server::{Ended, Server, make_image, run},
};

/// Number of forks in addition to the greedy one, and the bytes that each writes.
const QUIET: usize = 20;
const QUIET_BYTES: u64 = 1 << 20;

/// Starts a fio that writes noise all over a disk until it is killed, even if writes are refused.
/// It reports errors to a file.
fn greedy(fio: &Path, uri: &str, errors: &Path) -> Ended {
    let child = Command::new(fio)
        .args(["--name=greedy", "--ioengine=nbd", "--rw=randwrite", "--bs=64k", "--iodepth=32", "--size=32M"])
        .args(["--refill_buffers", "--time_based", "--runtime=600", "--ignore_error=,ENOSPC", "--error_dump=1"])
        .arg(format!("--uri={uri}"))
        .stdout(Stdio::null())
        .stderr(fs::File::create(errors).expect("a file"))
        .spawn();
    Ended(child.expect("fio starts"))
}

/// Writes a little to each disk, 50 pages per second, reads it back and verifies it. Returns the
/// 99th percentiles of the write latencies.
fn quiet(fio: &Path, server: &Server, disks: &[String]) -> Vec<Duration> {
    let mut command = Command::new(fio);
    command.current_dir(server.folder()).args(["--output-format=json", "--ioengine=nbd", "--rw=randwrite", "--bs=4k"]);
    command.args(["--rate_iops=50", "--verify=crc32c", "--verify_fatal=1"]).arg(format!("--size={QUIET_BYTES}"));
    for disk in disks {
        command.arg(format!("--name={disk}")).arg(format!("--uri={}", server.uri(disk)));
    }
    let output = server.folder().join("quiet.json");
    run(command.arg(format!("--output={}", output.display())));
    let report: Value = serde_json::from_slice(&fs::read(&output).expect("a file")).expect("JSON");
    let jobs = report["jobs"].as_array().expect("jobs");
    assert_eq!(jobs.len(), disks.len());
    let each = jobs.iter().map(|job| {
        let done = ["error", "write", "read"].map(|part| job[part].get("io_bytes").unwrap_or(&job[part]).as_u64());
        assert_eq!(done, [Some(0), Some(QUIET_BYTES), Some(QUIET_BYTES)], "{job}");
        Duration::from_nanos(job["write"]["clat_ns"]["percentile"]["99.000000"].as_u64().expect("a percentile"))
    });
    each.collect()
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "{what} does not come");
        thread::sleep(Duration::from_millis(20));
    }
}

/// The greedy fork is refused, or waits, while the others work and are never refused.
#[test]
fn a_greedy_fork_leaves_others_their_room() {
    let Some([fio]) = programs("a_greedy_fork_leaves_others_their_room", ["fio"]) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let (disk, errors) = (folder.path().join("root.img"), folder.path().join("errors"));
    make_image(&disk, 32);
    for when_full in ["error", "wait"] {
        let disk = disk.to_str().expect("a plain path");
        let server = Server::start(&[disk, "--memory-limit", "64M", "--when-full", when_full]);
        let names: Vec<String> = (0..QUIET).map(|number| format!("quiet-{number}")).collect();
        run(&mut server.ask(&["fork", "root", "greedy", "--limit", "8M"]));
        run(server.ask(&["fork", "root"]).args(&names));
        let mut greedy = greedy(&fio, &server.uri("greedy"), &errors);
        let is_stopped = || match when_full {
            "error" => fs::metadata(&errors).expect("a file").len(),
            _ => server.total("waiting_requests"),
        };
        wait_until("the limit", || is_stopped() > 0);

        let before = is_stopped();
        let latencies = quiet(&fio, &server, &names);
        let worst = latencies.iter().max().expect("disks");
        eprintln!("when full {when_full}: 99 % of each quiet fork's writes took {worst:?} at most");
        assert!(greedy.0.try_wait().expect("a child").is_none(), "the greedy one gave up");
        let written = fs::read_to_string(&errors).expect("a file");
        if when_full == "error" {
            assert!(is_stopped() > before, "{written}");
            assert!(written.lines().all(|line| line.contains("No space left on device")), "{written}");
        } else {
            assert!(is_stopped() > 0 && written.is_empty(), "{written}");
        }
        let is_quiet = |disk: &&Value| names.iter().any(|name| disk["name"] == **name);
        let disks = listed(&server, &[]);
        let changed: Vec<_> = disks.iter().filter(is_quiet).map(|disk| disk["changed_bytes"].as_u64()).collect();
        assert_eq!(changed, [Some(QUIET_BYTES); QUIET]);
    }
}

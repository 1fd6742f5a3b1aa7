//! Take-overs of a server with many forks, under the verified load of many clients.
//!
//! | clients | connections | verified by |
//! |---|---|---|
//! | fio, through libnbd | 8 | checksums in what it writes |
//! | fio on files of nbdfuse | 2 or more | the same |
//! | qemu-io | 4 | patterns |
//! | nbdcopy, again and again | 2 or more | the bytes of a fork that nothing changes |
//! | fio on a file of `--files` | 1 | checksums in what it writes |
//! | a vhost-user frontend | two queues | what it has written; each disk has such a socket |
//! | one that only measures: a page each millisecond | 1 | |

use std::{
    env,
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use pagefold_testing::{programs, skip, skip_for_good};
use pagefold_vhost_user::client::{Client as Frontend, Options};
use tempfile::tempdir;

use crate::{
    files::Place,
    fio::{load, succeeds},
    memory::{Client, READ, WRITE},
    server::{Ended, Server, make_image, run, wait},
};

/// Bytes of one request of the thread that fills the disk, of which one half of each page is noise.
const FILL_BYTES: usize = 1 << 20;

/// How long one of several runs of fio takes.
const SECONDS: u32 = 4;

/// Bytes of the disks that clients change.
const BUSY_BYTES: u64 = 64 << 20;

/// Take-overs in a row while this much is stored.
struct Step {
    stored_bytes: u64,
    take_overs: usize,
}

/// Three of the clients in `make test`.
#[test]
fn sixteen_clients_notice_no_take_over() {
    let steps = [Step { stored_bytes: 16 << 20, take_overs: 3 }];
    let lines = clients_notice_nothing("sixteen_clients_notice_no_take_over", "200M", 100, &steps);
    println!("{}", lines.join("\n"));
}

/// A hundred, or as many as `PAGEFOLD_TAKE_OVERS` says, with a thousand forks. `PAGEFOLD_PROGRAM` names the
/// build whose pauses it prints.
#[test]
#[ignore = "takes half an hour and 9 GiB of memory"]
fn sixteen_clients_notice_none_of_a_hundred_take_overs() {
    let test = "sixteen_clients_notice_none_of_a_hundred_take_overs";
    let text = fs::read_to_string("/proc/meminfo").expect("what the machine has");
    let free = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")).expect("Linux 3.14 or later");
    if free.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") < 10 << 20 {
        return skip_for_good(test, "it needs 10 GiB of memory");
    }
    let count: usize = env::var("PAGEFOLD_TAKE_OVERS").map_or(100, |count| count.parse().expect("a number"));
    let steps = [(64 << 20, count / 5), (1 << 30, count / 5), (4 << 30, count - count / 5 * 2)];
    let steps = steps.map(|(stored_bytes, take_overs)| Step { stored_bytes, take_overs });
    let lines = clients_notice_nothing(test, "8G", 1000, &steps);
    println!("{}", lines.join("\n"));
}

/// Returns a line about each step.
fn clients_notice_nothing(test: &str, limit: &str, forks: usize, steps: &[Step]) -> Vec<String> {
    let Some([fio, nbdcopy, nbdfuse, qemu_io]) = programs(test, ["fio", "nbdcopy", "nbdfuse", "qemu-io"]) else {
        return Vec::new();
    };
    let busy = |name: &str| format!("name={name},size={BUSY_BYTES}");
    // Its output exceeds the capacity of a pipe that is not read.
    let (logs, place) = (tempdir().expect("a folder"), Place::new(test));
    let (log, sockets) = (logs.path().join("log"), logs.path().join("sockets"));
    let mut args = vec!["--log-file", text(&log), "--memory-limit", limit, "--vhost-user", text(&sockets)];
    args.extend(place.iter().flat_map(|place| ["--files", place.text()]));
    let disks = ["busy", "qemu", "file", "frontend"].map(busy);
    args.extend(disks.iter().flat_map(|disk| ["--export", disk]));
    args.extend(["--export", "name=stored,size=16G"]);
    let mut server = Server::start(&args);
    let image = server.folder().join("image");
    make_image(&image, 8);
    run(&mut server.ask(&["add", "base", "--base", text(&image)]));
    let names: Vec<String> = (0..forks).map(|number| format!("fork-{number}")).collect();
    let (of_base, of_busy) = names.split_at(forks / 2);
    for (from, names) in [("base", of_base), ("busy", of_busy)] {
        run(server.ask(&["fork", from]).args(names));
    }
    for name in &names {
        let client = Client::connect(&server, name);
        client.send(WRITE, 1 << 20, &[3; 4096], 4096);
        assert!(client.reply(WRITE, 4096));
    }
    let mounts = [mount(&nbdfuse, &server, "busy", "first"), mount(&nbdfuse, &server, &of_busy[0], "second")];
    let mounts: Vec<Mount> = mounts.into_iter().flatten().collect();
    if mounts.len() < 2 {
        skip(&format!("{test} (nbdfuse)"), "nbdfuse does not mount");
    }
    let (folder, ended, longest_us) = (server.folder().to_owned(), AtomicBool::new(false), AtomicU64::new(0));
    let (uri, probe) = (|name: &str| server.uri(name), Client::connect(&server, "stored"));
    let (busy_uri, fork_uri) = (uri("busy"), uri(&of_busy[1]));
    let qemus: Vec<_> = (0..4_u64).map(|number| (uri("qemu"), number)).collect();
    let copied = uri(&of_base[0]);
    let options = Options { queues: 2, ..Options::default() };
    let mut frontend = Frontend::connect(&sockets.join("frontend.sock"), options).expect("a frontend");
    let ended = &ended;
    let lines = thread::scope(|scope| {
        for uri in [&busy_uri, &fork_uri] {
            let (fio, folder) = (&fio, &folder);
            scope.spawn(move || while_on(ended, || succeeds(load(fio, folder, uri, SECONDS))));
        }
        for mount in &mounts {
            let (fio, folder) = (&fio, &folder);
            scope.spawn(move || while_on(ended, || succeeds(load_file(fio, folder, &mount.file))));
        }
        if let Some(place) = &place {
            let (fio, folder) = (&fio, &folder);
            scope.spawn(move || while_on(ended, || succeeds(load_file(fio, folder, &place.path("file")))));
        }
        for (queue, start) in frontend.queues.iter_mut().zip([0, BUSY_BYTES / 2]) {
            let mut number = 0_u64;
            scope.spawn(move || {
                while_on(ended, || {
                    let (at, data) = (start + number * 7 % 1000 * 4096, [number as u8; 4096]);
                    queue.write(at, &data).expect("a write");
                    assert!(queue.read(at, 4096).expect("a read") == data, "page at {at}");
                    number += 1;
                    thread::sleep(Duration::from_millis(1));
                });
            });
        }
        for (uri, number) in &qemus {
            let (qemu_io, said) = (&qemu_io, folder.join(format!("qemu-{number}")));
            scope.spawn(move || patterns(qemu_io, uri, &said, number << 24, ended));
        }
        scope.spawn(|| {
            let back = folder.join("back");
            while_on(ended, || {
                run(Command::new(&nbdcopy).args(["--connections=2", &copied, text(&back)]));
                let (back, image) = (fs::read(&back).expect("a file"), fs::read(&image).expect("a file"));
                // All but the page that the fork has changed.
                assert!(back[..1 << 20] == image[..1 << 20] && back[(1 << 20) + 4096..] == image[(1 << 20) + 4096..]);
            });
        });
        let measures = || {
            while_on(ended, || {
                let start = Instant::now();
                probe.send(READ, 0, &[], 4096);
                assert!(probe.reply(READ, 4096));
                longest_us.fetch_max(start.elapsed().as_micros() as u64, SeqCst);
                thread::sleep(Duration::from_millis(1));
            });
        };
        scope.spawn(measures);
        let _end = End(ended);
        let mut noise = Noise(1);
        let measured = steps.iter().map(|step| {
            noise.fill(&server, step.stored_bytes);
            let figures: Vec<Figures> = (0..step.take_overs)
                .map(|_| {
                    thread::sleep(Duration::from_millis(500));
                    assert!(!ended.load(SeqCst), "a client has failed");
                    longest_us.store(0, SeqCst);
                    server.take_over(&["--log-file", text(&log)]);
                    let mut figures = Figures::of(&fs::read_to_string(&log).expect("a log"));
                    run(&mut server.ask(&["stat"]));
                    figures.longest_ms = longest_us.load(SeqCst) as f64 / 1e3;
                    figures
                })
                .collect();
            Figures::line(step.stored_bytes, &figures)
        });
        measured.collect()
    });
    // Before the files are unmounted, no client has failed.
    drop(mounts);
    lines
}

/// Ends all clients when one has failed, or the test has.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

fn while_on(ended: &AtomicBool, mut again: impl FnMut()) {
    let _end = End(ended);
    while !ended.load(SeqCst) {
        again();
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// What a take-over has taken.
struct Figures {
    /// As the first process says.
    paused_ms: f64,
    sent: String,
    /// The longest time that reading a page took.
    longest_ms: f64,
}

impl Figures {
    fn of(said: &str) -> Self {
        let line = said.rsplit_once("clients paused for ").unwrap_or_else(|| panic!("no pause in {said}")).1;
        let (paused, rest) = line.split_once(" ms").expect("milliseconds");
        let sent = rest.split_once("in the pause: ").expect("the bytes").1;
        Self {
            paused_ms: paused.parse().expect("a number"),
            sent: sent.lines().next().unwrap_or_default().to_owned(),
            longest_ms: 0.0,
        }
    }

    fn line(stored_bytes: u64, all: &[Self]) -> String {
        let of = |figure: fn(&Self) -> f64| {
            let mut all: Vec<f64> = all.iter().map(figure).collect();
            all.sort_by(f64::total_cmp);
            format!("{:.1} / {:.1}", all[all.len() / 2], all[all.len() - 1])
        };
        let sent: Vec<&str> = all.iter().map(|figures| &*figures.sent).collect();
        format!(
            "{} MiB stored, {} take-overs, ms in the median / at most: paused {}, a page was read in {}; sent in the \
             pause: {}",
            stored_bytes >> 20,
            all.len(),
            of(|figures| figures.paused_ms),
            of(|figures| figures.longest_ms),
            sent.join(", ")
        )
    }
}

/// Fills the disk `stored` with pages that compress to a half.
struct Noise(u64);

impl Noise {
    fn fill(&mut self, server: &Server, stored_bytes: u64) {
        let client = Client::connect(server, "stored");
        let mut chunk = vec![0; FILL_BYTES];
        let mut offset = server.figure("stored", "orig_data_size");
        while offset < 2 * stored_bytes {
            for page in chunk.chunks_mut(4096) {
                for word in page[..2048].as_chunks_mut::<8>().0 {
                    self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    *word = (self.0 ^ self.0 >> 29).to_le_bytes();
                }
            }
            client.send(WRITE, offset, &chunk, FILL_BYTES);
            assert!(client.reply(WRITE, FILL_BYTES));
            offset += FILL_BYTES as u64;
        }
    }
}

/// A disk as a file, unmounted when this value is dropped.
struct Mount {
    file: PathBuf,
    _nbdfuse: Ended,
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("fusermount3").arg("-uz").arg(&self.file).stderr(Stdio::null()).status();
    }
}

/// Makes a file of a disk with nbdfuse; `None` if it does not mount here.
fn mount(nbdfuse: &Path, server: &Server, export: &str, name: &str) -> Option<Mount> {
    let file = server.folder().join(name);
    fs::write(&file, "").expect("a file");
    let child = Command::new(nbdfuse).arg(&file).arg(server.uri(export)).stderr(Stdio::null()).spawn();
    let mut mount = Mount { file, _nbdfuse: Ended(child.expect("nbdfuse starts")) };
    let deadline = Instant::now() + Duration::from_secs(20);
    while fs::metadata(&mount.file).is_ok_and(|file| file.len() == 0) {
        if mount._nbdfuse.0.try_wait().expect("a child").is_some() || Instant::now() > deadline {
            return None;
        }
        thread::sleep(Duration::from_millis(5));
    }
    Some(mount)
}

/// As [`load`], which leaves the end of the disk free, on a file and without the kernel's cache.
fn load_file(fio: &Path, folder: &Path, file: &Path) -> Child {
    let (free, seconds) = (BUSY_BYTES - (6 << 20), SECONDS);
    Command::new(fio)
        .current_dir(folder)
        .args(["--name=file", "--ioengine=psync", "--direct=1", "--rw=randrw", "--bsrange=4k-64k", "--size=4M"])
        .args(["--verify=crc32c", "--verify_fatal=1", "--verify_backlog=64", "--buffer_compress_percentage=60"])
        .args(["--refill_buffers", "--time_based", "--allow_file_create=0"])
        .args([format!("--runtime={seconds}"), format!("--offset={free}"), format!("--filename={}", file.display())])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("fio starts")
}

/// Lets qemu-io write patterns from `start` on, and compare them, through one connection. Its
/// output goes to the file `said`.
fn patterns(qemu_io: &Path, uri: &str, said: &Path, start: u64, ended: &AtomicBool) {
    let file = File::create(said).expect("a file");
    let mut command = Command::new(qemu_io);
    command.args(["-f", "raw", uri]).stdin(Stdio::piped()).stdout(file.try_clone().expect("a file")).stderr(file);
    let mut child = Ended(command.spawn().expect("qemu-io starts"));
    let mut to = child.0.stdin.take().expect("a pipe");
    let mut number = 0_u64;
    while_on(ended, || {
        let (offset, pattern) = (start + number * 7 % 200 * 4096, number % 251);
        let lines = format!("write -q -P {pattern} {offset} 16k\nread -q -P {pattern} {offset} 16k\nflush\n");
        to.write_all(lines.as_bytes()).expect("qemu-io reads");
        number += 1;
        thread::sleep(Duration::from_millis(2));
    });
    drop(to);
    let status = wait(&mut child.0);
    let said = fs::read_to_string(said).expect("text").replace("qemu-io> ", "");
    assert!(status.success() && said.trim().is_empty(), "{status}: {said}");
}

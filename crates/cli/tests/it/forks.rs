//! Forks, snapshots and rollbacks, with widely used clients.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use pagefold_testing::programs;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    control::Control,
    server::{Ended, Server, make_image, pagefold, run, run_to_fail},
};

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;

/// Changes disks with clients, and keeps the content that the disks must then have.
struct Clients {
    qemu_io: PathBuf,
    nbdcopy: PathBuf,
}

/// A change with `qemu-io`: fills pages with one byte.
#[derive(Clone, Copy)]
struct Fill {
    byte: u8,
    page: usize,
    pages: usize,
}

impl Fill {
    fn to(self, content: &mut [u8]) {
        content[self.page * PAGE..][..self.pages * PAGE].fill(self.byte);
    }
}

impl Clients {
    fn find(test: &str) -> Option<Self> {
        let [qemu_io, nbdcopy] = programs(test, ["qemu-io", "nbdcopy"])?;
        Some(Self { qemu_io, nbdcopy })
    }

    fn fill(&self, server: &Server, disk: &str, fills: &[Fill]) {
        let mut command = Command::new(&self.qemu_io);
        command.args(["-f", "raw"]);
        for Fill { byte, page, pages } in fills {
            command.args(["-c", &format!("write -P {byte} {}k {}k", 4 * page, 4 * pages)]);
        }
        let said = run(command.arg(server.uri(disk)));
        assert!(!said.contains("failed"), "{said}");
    }

    fn read(&self, server: &Server, disk: &str) -> Vec<u8> {
        let copy = server.folder().join("copy");
        run(Command::new(&self.nbdcopy).arg(server.uri(disk)).arg(&copy));
        let content = fs::read(&copy).expect("a copy");
        fs::remove_file(&copy).expect("the copy");
        content
    }

    fn check(&self, server: &Server, disk: &str, expected: &[u8]) {
        let content = self.read(server, disk);
        let differs = content.chunks(PAGE).zip(expected.chunks(PAGE)).position(|(found, expected)| found != expected);
        assert!(content.len() == expected.len() && differs.is_none(), "{disk}: page {differs:?} differs");
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// Returns all disks, or those in `args`, as reported by `disks --json`.
pub(crate) fn listed(server: &Server, args: &[&str]) -> Vec<Value> {
    let said = run(server.ask(&["disks", "--json"]).args(args));
    said.lines().map(|line| serde_json::from_str(line).expect("a disk")).collect()
}

/// Returns the output of `pagefold diff`, in pages.
fn diff(server: &Server, disk: &str) -> Vec<(usize, usize)> {
    let said = run(&mut server.ask(&["diff", disk]));
    let numbers = |line: &str| line.split(' ').map(|word| word.parse().expect("a number")).collect::<Vec<usize>>();
    said.lines().map(numbers).map(|numbers| (numbers[0] / PAGE, numbers[1] / PAGE)).collect()
}

/// Returns the memory of all disks, once the memory of dropped ones has been freed.
fn settled_bytes(server: &Server, most: u64) -> u64 {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        run(&mut server.ask(&["compact"]));
        let spent = server.total("spent_bytes");
        if spent <= most || Instant::now() > deadline {
            return spent;
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Starts a fio that writes at random offsets for some seconds.
fn writer(fio: &Path, server: &Server, disk: &str, seconds: u32) -> Ended {
    let child = Command::new(fio)
        .args(["--name=w", "--ioengine=nbd", "--rw=randwrite", "--bs=4k", "--iodepth=8", "--size=8M", "--time_based"])
        .args([format!("--runtime={seconds}"), format!("--uri={}", server.uri(disk))])
        .current_dir(server.folder())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    Ended(child.expect("fio starts"))
}

/// Waits until this many bytes of the disk have been written.
fn wait_for_writes(server: &Server, disk: &str, bytes: u64) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while server.figure(disk, "orig_data_size") < bytes {
        assert!(Instant::now() < deadline, "no client writes");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Waits for a child that must succeed.
fn finish(child: &mut Child) {
    let mut said = String::new();
    for output in [
        child.stdout.take().map(|out| Box::new(out) as Box<dyn Read>),
        child.stderr.take().map(|out| Box::new(out) as _),
    ] {
        output.map(|mut output| output.read_to_string(&mut said).expect("text"));
    }
    let status = child.wait().expect("a child");
    assert!(status.success(), "{status}: {said}");
}

#[test]
fn forks_of_a_packed_file_system_are_disks_of_their_own() {
    const FORKS: usize = 20;
    let test = "forks_of_a_packed_file_system_are_disks_of_their_own";
    let (Some(clients), Some([mkfs, e2fsck])) = (Clients::find(test), programs(test, ["mkfs.ext4", "e2fsck"])) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let (disk, image) = (folder.path().join("debian.img"), folder.path().join("debian.erofs"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    run(Command::new(&mkfs).args(["-q", "-F", "-d", text(&source), text(&disk), "16M"]));
    run(pagefold().args(["pack", text(&disk), "-o", text(&image)]));
    let base = fs::read(&disk).expect("the disk");
    let server = Server::start(&[text(&image)]);
    let before = settled_bytes(&server, u64::MAX);

    let names: Vec<String> = (0..FORKS).map(|number| format!("job-{number}")).collect();
    let said = run(server.ask(&["fork", "debian"]).args(&names));
    assert_eq!(said.lines().count(), FORKS);
    let first = format!("forked 'job-0' from 'debian', 16 MiB: '{}'\n", server.uri("job-0"));
    assert!(said.starts_with(&first), "{said}");
    let fills: Vec<Vec<Fill>> = (0..FORKS)
        .map(|number| {
            let byte = number as u8 + 1;
            vec![Fill { byte, page: number * 7, pages: 3 }, Fill { byte, page: 4000 - number, pages: 1 }]
        })
        .collect();
    thread::scope(|scope| {
        for (name, fills) in names.iter().zip(&fills) {
            let (clients, server) = (&clients, &server);
            scope.spawn(move || clients.fill(server, name, fills));
        }
    });
    for (name, fills) in names.iter().zip(&fills) {
        let mut expected = base.clone();
        fills.iter().for_each(|fill| fill.to(&mut expected));
        clients.check(&server, name, &expected);
    }
    clients.check(&server, "debian", &base);
    assert_eq!(fs::read(&disk).expect("the disk"), base);
    run(&mut server.ask(&["fork", "debian", "clean"]));
    let copy = folder.path().join("clean.img");
    fs::write(&copy, clients.read(&server, "clean")).expect("a copy");
    run(Command::new(&e2fsck).args(["-f", "-n", text(&copy)]));

    let disks = listed(&server, &["job-3"]);
    assert_eq!(disks.len(), 1);
    assert_eq!((&disks[0]["from"], &disks[0]["path"]), (&"debian".into(), &text(&image).into()));
    assert_eq!(disks[0]["changed_bytes"], 4 * PAGE);
    let line = run(&mut server.ask(&["drop", "debian"]));
    assert_eq!(line, format!("dropped 'debian', 16 MiB; {} disks still read its file\n", FORKS + 1));
    let mut expected = base.clone();
    fills[7].iter().for_each(|fill| fill.to(&mut expected));
    clients.check(&server, "job-7", &expected);

    run(server.ask(&["drop", "clean"]).args(&names));
    run(&mut server.ask(&["add", "debian", "--base", text(&image)]));
    let after = settled_bytes(&server, before + before / 50);
    assert!(after <= before + before / 50, "{before} bytes before, {after} after");
    let (status, messages) = server.end(Signal::TERM);
    assert!(status.success() && messages.contains("disk 'job-0', 16 MiB, forked from 'debian': "), "{messages}");
}

#[test]
fn a_snapshot_is_of_one_instant_while_clients_write() {
    let test = "a_snapshot_is_of_one_instant_while_clients_write";
    let (Some(clients), Some([fio])) = (Clients::find(test), programs(test, ["fio"])) else { return };
    let server = Server::start(&["--export", "name=job,size=8M"]);
    let mut writing = writer(&fio, &server, "job", 4);
    wait_for_writes(&server, "job", 64 * PAGE as u64);
    let said = run(&mut server.ask(&["snapshot", "job", "before"]));
    assert_eq!(said, format!("created snapshot 'job@before', 8 MiB: '{}'\n", server.uri("job@before")));
    run(&mut server.ask(&["fork", "job", "twin-a", "twin-b"]));
    let kept = clients.read(&server, "job@before");
    let twin = clients.read(&server, "twin-a");
    finish(&mut writing.0);
    clients.check(&server, "job@before", &kept);
    clients.check(&server, "twin-a", &twin);
    clients.check(&server, "twin-b", &twin);
    assert!(kept.iter().any(|&byte| byte != 0) && clients.read(&server, "job") != kept);

    // Connected clients stay connected.
    run(&mut server.ask(&["fork", "job@before", "again"]));
    run(&mut server.ask(&["snapshot", "again", "s"]));
    let mut writing = writer(&fio, &server, "again", 3);
    wait_for_writes(&server, "again", 64 * PAGE as u64);
    let line = run_to_fail(&mut server.ask(&["rollback", "again", "s"]));
    assert!(line.contains("disk 'again' has 1 client: disconnect it first") && line.contains("--force"), "{line}");
    assert_eq!(run(&mut server.ask(&["rollback", "again", "s", "--force"])), "rolled 'again' back to 's', 8 MiB\n");
    finish(&mut writing.0);
    run(&mut server.ask(&["rollback", "again", "s"]));
    run(&mut server.ask(&["drop", "again@s"]));
    clients.check(&server, "again", &kept);
    run(&mut server.ask(&["rollback", "job", "before"]));
    clients.check(&server, "job", &kept);
    clients.check(&server, "twin-b", &twin);

    let line = run_to_fail(&mut server.ask(&["drop", "job"]));
    assert!(line.contains("disk 'job' has 1 snapshot, such as 'job@before'"), "{line}");
    assert_eq!(run(&mut server.ask(&["drop", "job", "--snapshots"])), "dropped 'job' with its snapshot, 8 MiB\n");
    clients.check(&server, "again", &kept);
    let names: Vec<_> = listed(&server, &[]).iter().map(|disk| disk["name"].clone()).collect();
    assert_eq!(names, ["again", "twin-a", "twin-b"]);
}

#[test]
fn a_hundred_forks_of_forks_are_each_as_they_were() {
    const DEPTH: usize = 100;
    let test = "a_hundred_forks_of_forks_are_each_as_they_were";
    let Some(clients) = Clients::find(test) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let disk = folder.path().join("base.img");
    make_image(&disk, 1);
    let mut content = fs::read(&disk).expect("the disk");
    let server = Server::start(&[text(&disk)]);
    let mut state = 7_usize;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut kept: Vec<(String, Vec<u8>)> = Vec::new();
    let mut from = "base".to_owned();
    for depth in 0..DEPTH {
        let name = format!("d{depth}");
        run(&mut server.ask(&["fork", &from, &name]));
        if depth % 5 == 0 {
            let fill = |_| Fill { byte: random(255) as u8, page: random(240), pages: 1 + random(15) };
            let fills: Vec<Fill> = (0..3).map(fill).collect();
            clients.fill(&server, &name, &fills);
            fills.iter().for_each(|fill| fill.to(&mut content));
            kept.push((name.clone(), content.clone()));
            run(&mut server.ask(&["snapshot", &name, "s"]));
            // A fork does not have this change.
            clients.fill(&server, &name, &[Fill { byte: 255, page: random(255), pages: 1 }]);
            from = format!("{name}@s");
        } else {
            from = name;
        }
    }
    clients.check(&server, &from, &content);
    for (name, content) in &kept {
        clients.check(&server, &format!("{name}@s"), content);
        run(&mut server.ask(&["rollback", name, "s"]));
    }
    // Dropping some in the middle of the chain does not affect the others.
    for (name, _) in kept.iter().skip(1).step_by(2) {
        run(&mut server.ask(&["drop", "--snapshots", name]));
    }
    for (name, content) in kept.iter().step_by(2) {
        clients.check(&server, name, content);
    }
    clients.check(&server, &from, &content);
}

#[test]
fn changed_ranges_are_reported() {
    let test = "changed_ranges_are_reported";
    let (Some(clients), Some([nbdinfo, qemu_img])) = (Clients::find(test), programs(test, ["nbdinfo", "qemu-img"]))
    else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let disk = folder.path().join("base.img");
    make_image(&disk, 2);
    let server = Server::start(&[text(&disk), "--export", "name=plain,size=1M"]);
    run(&mut server.ask(&["fork", "base", "a"]));
    assert_eq!(diff(&server, "a"), []);
    assert_eq!(diff(&server, "base"), []);
    clients.fill(
        &server,
        "a",
        &[
            Fill { byte: 1, page: 0, pages: 2 },
            Fill { byte: 2, page: 2, pages: 1 },
            Fill { byte: 3, page: 511, pages: 1 },
            Fill { byte: 0, page: 100, pages: 70 },
        ],
    );
    let changed = [(0, 3), (100, 70), (511, 1)];
    assert_eq!(diff(&server, "a"), changed);
    let map = run(Command::new(&nbdinfo).args(["--json", "--map=pagefold:changed", &server.uri("a")]));
    let map: Vec<Value> = serde_json::from_str(&map).expect("a map");
    let end = |extent: &Value| extent["offset"].as_u64().unwrap_or(0) + extent["length"].as_u64().unwrap_or(0);
    assert_eq!(map.last().map(end), Some(2 << 20));
    let mapped = map.iter().filter(|extent| extent["type"] == 1);
    let mapped = mapped.map(|extent| [&extent["offset"], &extent["length"]].map(|bytes| bytes.as_u64().unwrap_or(0)));
    let mapped: Vec<_> =
        mapped.map(|bytes| bytes.map(|bytes| bytes as usize / PAGE)).map(|[at, len]| (at, len)).collect();
    assert_eq!(mapped, changed);
    let contexts = run(Command::new(&nbdinfo).arg(server.uri("a")));
    assert!(contexts.contains("base:allocation") && contexts.contains("pagefold:changed"), "{contexts}");
    assert!(!run(Command::new(&nbdinfo).arg(server.uri("base"))).contains("pagefold:changed"));
    assert_eq!(diff(&server, "plain"), []);
    let line: Value =
        serde_json::from_str(run(&mut server.ask(&["diff", "a", "--json"])).lines().next().expect("a line"))
            .expect("JSON");
    assert_eq!(line, json!({"offset": 0, "len_bytes": 3 * PAGE}));

    let file = folder.path().join("changes");
    run(&mut server.ask(&["diff", "a", "--to", text(&file)]));
    let mut found = fs::read(&file).expect("the changes");
    let now = clients.read(&server, "a");
    for (page, pages) in changed {
        let bytes = page * PAGE..(page + pages) * PAGE;
        assert!(found[bytes.clone()] == now[bytes.clone()], "page {page}");
        found[bytes].fill(0);
    }
    assert!(found.len() == now.len() && found.iter().all(|&byte| byte == 0));
    let map = run(Command::new(&qemu_img).args(["map", "--output=json", "-f", "raw", text(&file)]));
    let map: Vec<Value> = serde_json::from_str(&map).expect("a map");
    let data = map.iter().filter(|extent| extent["data"] == true);
    let bytes = |extent: &Value, field: &str| extent[field].as_u64().unwrap_or(0) as usize;
    let data: Vec<_> = data.map(|extent| (bytes(extent, "start"), bytes(extent, "length"))).collect();
    assert!(data.iter().eq(&changed.map(|(page, pages)| (page * PAGE, pages * PAGE))), "{data:?}");
    assert!(
        run_to_fail(&mut server.ask(&["diff", "none", "--force", "--to", text(&file)]))
            .contains("no disk named 'none'")
    );
    assert!(fs::metadata(&file).is_ok_and(|metadata| metadata.len() == 2 << 20), "the file of before is there");

    // A snapshot and a rollback keep what the disk has changed since it was forked; a new fork has
    // changed nothing.
    run(&mut server.ask(&["snapshot", "a", "s"]));
    clients.fill(&server, "a", &[Fill { byte: 9, page: 300, pages: 1 }]);
    let later = [(0, 3), (100, 70), (300, 1), (511, 1)];
    assert_eq!(diff(&server, "a"), later);
    // A snapshot keeps the changes that the disk had by then, whatever happens to the disk.
    assert_eq!(diff(&server, "a@s"), changed);
    run(&mut server.ask(&["snapshot", "a", "t"]));
    run(&mut server.ask(&["rollback", "a", "s"]));
    assert_eq!(diff(&server, "a"), changed);
    clients.fill(&server, "a", &[Fill { byte: 8, page: 1, pages: 4 }, Fill { byte: 8, page: 200, pages: 1 }]);
    assert_eq!(diff(&server, "a"), [(0, 5), (100, 70), (200, 1), (511, 1)]);
    assert_eq!((diff(&server, "a@s"), diff(&server, "a@t")), (changed.to_vec(), later.to_vec()));
    run(&mut server.ask(&["reset", "a"]));
    run(&mut server.ask(&["rename", "a", "c"]));
    assert_eq!((diff(&server, "c@s"), diff(&server, "c@t")), (changed.to_vec(), later.to_vec()));
    let map = run(Command::new(&nbdinfo).args(["--json", "--map=pagefold:changed", &server.uri("c@s")]));
    let mapped: Vec<Value> = serde_json::from_str(&map).expect("a map");
    assert_eq!(mapped.iter().filter(|extent| extent["type"] == 1).count(), changed.len());
    let message = run_to_fail(&mut server.ask(&["diff", "c@t", "--to", text(&file)]));
    assert!(message.contains("changes exists") && message.contains("--force"), "{message}");
    run(&mut server.ask(&["diff", "c@t", "--force", "--to", text(&file)]));
    let mut found = fs::read(&file).expect("the changes");
    assert!(found[300 * PAGE..301 * PAGE].iter().all(|&byte| byte == 9) && found[..PAGE].iter().all(|&byte| byte == 1));
    for (page, pages) in later {
        found[page * PAGE..(page + pages) * PAGE].fill(0);
    }
    assert!(found.iter().all(|&byte| byte == 0), "what was not changed is there");
    run(&mut server.ask(&["fork", "c@s", "d"]));
    assert_eq!(diff(&server, "d"), []);
    run(&mut server.ask(&["rename", "c", "a"]));
    run(&mut server.ask(&["rollback", "a", "s"]));
    assert_eq!(diff(&server, "a"), changed);
    run(&mut server.ask(&["fork", "a", "b"]));
    assert_eq!(diff(&server, "b"), []);
    clients.fill(&server, "b", &[Fill { byte: 9, page: 300, pages: 1 }]);
    assert_eq!(diff(&server, "b"), [(300, 1)]);

    // Enough ranges for several answers.
    run(&mut server.ask(&["add", "wide", "--size", "32M"]));
    let fills: Vec<_> = (0..3000).map(|number| Fill { byte: 5, page: 2 * number, pages: 1 }).collect();
    for fills in fills.chunks(500) {
        clients.fill(&server, "wide", fills);
    }
    assert_eq!(diff(&server, "wide"), fills.iter().map(|fill| (fill.page, 1)).collect::<Vec<_>>());
    let mut control = Control::open(&server);
    let answer = control.done(&json!({"command": "changes", "name": "wide"}));
    assert_eq!(answer["ranges"].as_array().map(Vec::len), Some(1024));
    let answer = control.done(&json!({"command": "changes", "name": "wide", "offset": u64::MAX}));
    assert_eq!((&answer["ranges"], &answer["next_offset"]), (&json!([]), &Value::Null));
}

#[test]
fn wrong_names_are_refused_and_nothing_is_made() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("base.img");
    make_image(&file, 1);
    let server = Server::start(&[text(&file), "--export", "name=a,size=1M"]);
    let mut control = Control::open(&server);
    control.done(&json!({"command": "snapshot", "name": "a", "snapshot": "s"}));
    let names = |control: &mut Control| {
        let listing = control.done(&json!({"command": "list"}));
        let disks = listing["disks"].as_array().expect("disks").iter();
        disks.map(|disk| disk["name"].as_str().expect("a name").to_owned()).collect::<Vec<_>>()
    };
    let many: Vec<_> = (0..513).map(|number| format!("n{number}")).collect();
    for (request, code) in [
        (json!({"command": "fork", "from": "none", "names": ["b"]}), "no-such-disk"),
        (json!({"command": "fork", "from": "a@none", "names": ["b"]}), "no-such-disk"),
        (json!({"command": "fork", "from": "a", "names": ["b", "c", "a"]}), "name-in-use"),
        (json!({"command": "fork", "from": "a", "names": ["b", "c", "b"]}), "name-in-use"),
        (json!({"command": "fork", "from": "a", "names": ["b", "b@c"]}), "invalid-name"),
        (json!({"command": "fork", "from": "a", "names": ["b", "\n"]}), "invalid-name"),
        (json!({"command": "fork", "from": "a", "names": []}), "invalid-request"),
        (json!({"command": "fork", "from": "a", "names": many}), "invalid-request"),
        (json!({"command": "fork", "from": "a", "names": "b"}), "invalid-request"),
        (json!({"command": "snapshot", "name": "none", "snapshot": "s"}), "no-such-disk"),
        (json!({"command": "snapshot", "name": "a", "snapshot": "s"}), "name-in-use"),
        (json!({"command": "snapshot", "name": "a", "snapshot": ""}), "invalid-name"),
        (json!({"command": "snapshot", "name": "a", "snapshot": "x@y"}), "invalid-name"),
        (json!({"command": "snapshot", "name": "a", "snapshot": "x".repeat(4096)}), "invalid-name"),
        (json!({"command": "snapshot", "name": "base", "snapshot": "s"}), "read-only"),
        (json!({"command": "snapshot", "name": "a@s", "snapshot": "s"}), "read-only"),
        (json!({"command": "rollback", "name": "a", "snapshot": "t"}), "no-such-disk"),
        (json!({"command": "rollback", "name": "none", "snapshot": "s"}), "no-such-disk"),
        (json!({"command": "changes", "name": "none"}), "no-such-disk"),
        (json!({"command": "drop", "name": "a"}), "has-snapshots"),
        (json!({"command": "drop", "name": "a@t"}), "no-such-disk"),
        (json!({"command": "add", "name": "b@c", "size_bytes": 512}), "invalid-name"),
        (json!({"command": "rename", "name": "a", "to": "b@c"}), "invalid-name"),
        (json!({"command": "rename", "name": "a@s", "to": "b"}), "invalid-name"),
        (json!({"command": "rename", "name": "a@s", "to": "base@s"}), "invalid-name"),
        (json!({"command": "rename", "name": "a", "to": "x".repeat(4095)}), "invalid-name"),
        (json!({"command": "resize", "name": "a@s", "size_bytes": 512, "shrink": true}), "read-only"),
        (json!({"command": "reset", "name": "a@s"}), "read-only"),
        (json!({"command": "limit", "name": "a@s", "limit_bytes": 8192}), "read-only"),
    ] {
        assert_eq!(control.fails(&request), code, "{request}");
        assert_eq!(names(&mut control), ["a", "a@s", "base"], "{request}");
    }
    // Snapshots are renamed with their disk.
    control.done(&json!({"command": "rename", "name": "a", "to": "b"}));
    control.done(&json!({"command": "rename", "name": "b@s", "to": "b@t"}));
    assert_eq!(names(&mut control), ["b", "b@t", "base"]);
    let listing = listed(&server, &["b"]);
    let listed = |field: &str| listing.iter().map(|disk| disk[field].clone()).collect::<Vec<_>>();
    assert_eq!(listed("kind"), ["ram", "snapshot"]);
    assert_eq!(listed("snapshots"), [1, 0]);
    assert_eq!(listed("read_only"), [false, true]);
    assert!(run(&mut server.ask(&["disks", "b"])).contains("'b@t'  1 MiB, read-only, forked from 'b', "));
    control.done(&json!({"command": "drop", "name": "b@t"}));
    control.done(&json!({"command": "remove", "name": "b"}));
    assert_eq!(names(&mut control), ["base"]);
}

#[test]
fn forks_have_limits_of_their_own() {
    let Some(clients) = Clients::find("forks_have_limits_of_their_own") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("base.img");
    make_image(&file, 4);
    let server = Server::start(&[text(&file)]);
    run(&mut server.ask(&["fork", "base", "small", "--limit", "64K"]));
    run(&mut server.ask(&["fork", "base", "fixed", "--read-only"]));
    let base = fs::read(&file).expect("the base");
    let noise = folder.path().join("noise.img");
    let mut state = 1_u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    fs::write(&noise, (0..4 * MIB).map(|_| random()).collect::<Vec<_>>()).expect("a file");
    for (disk, error) in [("small", "No space left"), ("fixed", "read-only")] {
        let output = Command::new(&clients.nbdcopy).arg(&noise).arg(server.uri(disk)).output().expect("nbdcopy");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(error), "{disk}: {said}");
    }
    clients.check(&server, "fixed", &base);
    run(&mut server.ask(&["limit", "small", "none"]));
    run(Command::new(&clients.nbdcopy).arg(&noise).arg(server.uri("small")));
    clients.check(&server, "small", &fs::read(&noise).expect("the noise"));
}

#[test]
fn forks_that_come_and_go_leave_nothing_behind() {
    const ROUNDS: usize = 10;
    const EACH: usize = 100;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("base.img");
    make_image(&file, 2);
    let server = Server::start(&[text(&file), "--export", "name=a,size=1G", "--log", "warn"]);
    let mut control = Control::open(&server);
    let round = |control: &mut Control, number: usize| {
        let names: Vec<_> = (0..EACH).map(|fork| format!("f{number}-{fork}")).collect();
        let from = if number.is_multiple_of(2) { "base" } else { "a" };
        let answer = control.done(&json!({"command": "fork", "from": from, "names": names}));
        assert_eq!(answer["disks"].as_array().map(Vec::len), Some(EACH));
        control.done(&json!({"command": "snapshot", "name": names[0], "snapshot": "s"}));
        control.done(&json!({"command": "rollback", "name": names[0], "snapshot": "s"}));
        for name in names {
            control.done(&json!({"command": "drop", "name": name, "snapshots": true}));
        }
    };
    round(&mut control, 0);
    round(&mut control, 1);
    let before = settled_bytes(&server, u64::MAX);
    (0..ROUNDS).for_each(|number| round(&mut control, number));
    let after = settled_bytes(&server, before + before / 50);
    assert!(after <= before + before / 50, "{before} bytes before, {after} after");
}

/// For any order of several clients' commands, every snapshot has its disk, and nothing is left
/// behind.
#[test]
fn commands_that_meet_leave_no_snapshot_without_its_disk() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 250;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("base.img");
    make_image(&file, 1);
    let server = Server::start(&[text(&file), "--log", "warn"]);
    run(&mut server.ask(&["fork", "base", "d0"]));
    let before = settled_bytes(&server, u64::MAX);
    let done: u64 = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let server = &server;
                scope.spawn(move || {
                    let mut control = Control::open(server);
                    let mut state = thread + 1;
                    let mut random = |below: u64| {
                        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                        (state >> 33) % below
                    };
                    let mut done = 0;
                    for _ in 0..ROUNDS {
                        let (name, other, snapshot) = (random(4), random(4), random(3));
                        let (name, other, snapshot) = (format!("d{name}"), format!("d{other}"), format!("s{snapshot}"));
                        let request = match random(7) {
                            0 => json!({"command": "fork", "from": "base", "names": [other]}),
                            1 => json!({"command": "fork", "from": name, "names": [other]}),
                            2 => json!({"command": "fork", "from": format!("{name}@{snapshot}"), "names": [other]}),
                            3 => json!({"command": "snapshot", "name": name, "snapshot": snapshot}),
                            4 => json!({"command": "rollback", "name": name, "snapshot": snapshot}),
                            5 => json!({"command": "rename", "name": name, "to": other}),
                            _ => json!({"command": "drop", "name": name, "snapshots": random(2) == 0}),
                        };
                        control.send(&request);
                        let answer = control.line();
                        let code = answer["error"]["code"].as_str();
                        let expected = ["no-such-disk", "name-in-use", "has-snapshots"];
                        assert!(code.is_none_or(|code| expected.contains(&code)), "{request}: {answer}");
                        done += u64::from(code.is_none());
                    }
                    done
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread")).sum()
    });
    assert!(done > THREADS * ROUNDS / 10, "{done} of the commands were done");
    let disks = listed(&server, &[]);
    let names: Vec<_> = disks.iter().map(|disk| disk["name"].as_str().expect("a name")).collect();
    for name in &names {
        let disk = name.split('@').next().unwrap_or_default();
        assert!(names.contains(&disk), "{name} in {names:?}");
        if !name.contains('@') && *name != "base" {
            run(&mut server.ask(&["drop", "--snapshots", name]));
        }
    }
    run(&mut server.ask(&["fork", "base", "d0"]));
    let after = settled_bytes(&server, before + before / 50);
    assert!(after <= before + before / 50, "{before} bytes before, {after} after");
    assert_eq!(listed(&server, &[]).len(), 2);
}

/// The limit bounds the number of forks, and their memory is counted.
#[test]
fn forks_stop_at_the_memory_limit() {
    const LIMIT: u64 = 24 << 20;
    const EACH: usize = 512;
    let Some(clients) = Clients::find("forks_stop_at_the_memory_limit") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("base.img");
    make_image(&file, 1);
    let server = Server::start(&[text(&file), "--memory-limit", &LIMIT.to_string(), "--log", "error"]);
    let mut control = Control::open(&server);
    let names = |round: usize| (0..EACH).map(|number| format!("r{round}-{number}")).collect::<Vec<_>>();
    let full = (0..200).find(|&round| {
        control.send(&json!({"command": "fork", "from": "base", "names": names(round)}));
        let answer = control.line();
        assert!(answer["error"].is_null() || answer["error"]["code"] == "no-memory", "{answer}");
        !answer["error"].is_null()
    });
    let full = full.expect("a limit");
    assert!(full * EACH > 5000, "{full} rounds");
    assert_eq!(control.done(&json!({"command": "stat", "name": "base"}))["server"]["disks"], full * EACH + 1);
    let process_bytes = server.anonymous_bytes();
    assert!(process_bytes <= LIMIT + LIMIT / 33 + (8 << 20), "{process_bytes} bytes of {LIMIT}");
    clients.check(&server, "r0-0", &fs::read(&file).expect("the base"));
    for name in names(0) {
        control.done(&json!({"command": "drop", "name": name}));
    }
    control.done(&json!({"command": "fork", "from": "r1-0", "names": names(0)}));
    clients.check(&server, "r0-511", &fs::read(&file).expect("the base"));
}

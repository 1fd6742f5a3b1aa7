//! Compares the forecasts of `pagefold advise` with the results of packing and serving the data.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::Write,
    os::unix::{
        fs::{FileExt, PermissionsExt, symlink},
        net::UnixListener,
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use pagefold_testing::{programs, skip_for_good};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;

use crate::{
    server::{Ended, Server, pagefold, run, run_to_fail},
    stored_below::Mounted,
};

/// Bytes of the larger inputs, then the size of the samples taken from them.
const WHOLE_BYTES: usize = 12 << 20;
const SAMPLE: &str = "4M";

/// The figures of a report, by subject and metric, and its commands.
struct Advice {
    figures: HashMap<(String, String), u64>,
    commands: Vec<String>,
}

fn advise(args: &[&str]) -> Advice {
    let output = run(pagefold().args(["advise", "--json"]).args(args));
    let mut advice = Advice { figures: HashMap::new(), commands: Vec::new() };
    for line in output.lines() {
        let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let text = |key: &str| line[key].as_str().expect("text").to_owned();
        assert_eq!(text("bench"), "advise");
        if line["metric"] == "command" {
            advice.commands.push(text("subject"));
        }
        advice.figures.insert((text("subject"), text("metric")), line["value"].as_u64().expect("a number"));
    }
    advice
}

impl Advice {
    fn figure(&self, subject: &str, metric: &str) -> u64 {
        let found = self.figures.get(&(subject.to_owned(), metric.to_owned()));
        *found.unwrap_or_else(|| panic!("no {metric} of {subject} in {:?}", self.figures))
    }

    /// The true value is in the interval, or close to it in at most one case of twenty.
    fn holds(&self, what: &str, subject: &str, metric: &str, truth: u64) {
        let [value, low, high] =
            ["", "_low", "_high"].map(|end| self.figure(subject, &format!("{metric}{end}")) as f64);
        let slack = (high - low) / 2.0 + 0.04 * value + 8192.0;
        let truth = truth as f64;
        assert!(
            low - slack <= truth && truth <= high + slack,
            "{what}: {metric} of {subject} is {truth}, and was to be {value} ({low} to {high})"
        );
    }
}

/// An endless sequence of pseudo-random numbers (xorshift).
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }

    /// Returns lines of a log, which compress accordingly.
    fn text(&mut self, len: usize) -> Vec<u8> {
        let mut text = Vec::with_capacity(len + 100);
        while text.len() < len {
            let (number, word) = (self.next() % 1_000_000, self.next() % 61);
            writeln!(text, "{number:06} the request of client {word} took {} ms", self.next() % 997).expect("memory");
        }
        text.truncate(len);
        text
    }
}

fn path(folder: &TempDir, name: &str) -> String {
    folder.path().join(name).to_str().expect("a plain path").to_owned()
}

/// Returns the size of the image that `pack` builds.
fn packed_bytes(folder: &TempDir, source: &str, codec: &str, cluster: &str) -> u64 {
    let image = path(folder, "packed.erofs");
    run(pagefold().args(["pack", "--no-verify", "--codec", codec, "--cluster", cluster, source, "-o", &image]));
    fs::metadata(image).expect("an image").len()
}

/// Returns a server's memory, without that of its clients, after this file was written to one of
/// its disks.
fn served_bytes(file: &str, nbdcopy: &Path) -> u64 {
    let server = Server::start(&["--size", &fs::metadata(file).expect("a file").len().to_string()]);
    // One request at a time: the memory of each writing thread does not belong to the data.
    run(Command::new(nbdcopy).args(["--connections=1", "--requests=1", file, &server.uri("")]));
    server.total("spent_bytes") - server.total("outside_bytes")
}

/// A server's lists take memory too, so forks of a server are compared.
#[test]
fn forks_without_changes_take_what_is_forecast() {
    const FORKS: u64 = 500;
    let folder = TempDir::new().expect("a folder");
    let file = path(&folder, "file");
    fs::write(&file, Noise(5).text(1 << 20)).expect("room");
    let forecast = advise(&[&file]).figure("forks", "fork_bytes");
    let server = Server::start(&["--export", "name=disk,size=512M"]);
    let mut fork = server.ask(&["fork", "disk"]);
    fork.args((100..100 + FORKS).map(|number| format!("fork-{number}")));
    let before = server.total("spent_bytes");
    run(&mut fork);
    let each = (server.total("spent_bytes") - before) / FORKS;
    // Memory is allocated for several at a time.
    assert!(each.abs_diff(forecast) <= forecast / 50, "{each} {forecast}");
}

#[test]
fn the_memory_for_forks_is_the_default_limit_of_a_server() {
    let folder = TempDir::new().expect("a folder");
    let file = path(&folder, "file");
    fs::write(&file, "a\n").expect("room");
    let server = Server::start(&["--size", "1M"]);
    let advice = advise(&[&file]);
    assert_eq!(advice.figure("forks", "memory_bytes"), server.total("limit_bytes"));
    assert_eq!(advice.figure("input", "data_bytes"), 2);
}

/// Returns inputs of several kinds, each in one file.
fn kinds() -> Vec<(&'static str, Vec<u8>)> {
    let noise = &mut Noise(88);
    let block = noise.text(64 << 10);
    let mut mixed = Vec::new();
    while mixed.len() < WHOLE_BYTES {
        match noise.next() % 4 {
            0 => mixed.extend(noise.bytes(300 << 10)),
            1 => mixed.resize(mixed.len() + (500 << 10), 0),
            _ => mixed.extend(noise.text(700 << 10)),
        }
    }
    mixed.truncate(WHOLE_BYTES);
    vec![
        ("duplicates", block.repeat(WHOLE_BYTES >> 16)),
        ("text", noise.text(WHOLE_BYTES)),
        ("noise", noise.bytes(WHOLE_BYTES)),
        ("zeros", vec![0; WHOLE_BYTES]),
        ("mixed", mixed),
    ]
}

#[test]
fn forecasts_hold_for_files() {
    let Some([nbdcopy]) = programs("forecasts_hold_for_files", ["nbdcopy"]) else { return };
    for (name, bytes) in kinds() {
        let folder = TempDir::new().expect("a folder");
        let file = path(&folder, name);
        fs::write(&file, bytes).expect("room");
        let (memory, image) = (served_bytes(&file, &nbdcopy), packed_bytes(&folder, &file, "lz4", "4K"));
        let small = packed_bytes(&folder, &file, "zstd,3", "64K");
        for args in [&[&*file][..], &[&*file, "--sample", SAMPLE], &[&*file, "--sample", "1"]] {
            let advice = advise(args);
            assert_eq!(advice.figure("input", "bytes"), WHOLE_BYTES as u64);
            advice.holds(name, "disk", "spent_bytes", memory);
            advice.holds(name, "lz4@4K", "image_bytes", image);
            advice.holds(name, "zstd,3@64K", "image_bytes", small);
        }
    }
}

/// A fresh disk: a little data, zeros in places, and holes.
#[test]
fn forecasts_hold_for_disks_of_holes() {
    let folder = TempDir::new().expect("a folder");
    let (file, noise) = (path(&folder, "disk"), &mut Noise(13));
    let disk = File::create(&file).expect("a file");
    disk.set_len(256 << 20).expect("a file system with holes");
    let mut at = 0;
    for number in 0..60 {
        let len = 1 + noise.next() as usize % (200 << 10);
        let bytes = match number % 4 {
            0 => vec![0; len],
            1 => noise.bytes(len),
            _ => noise.text(len),
        };
        disk.write_all_at(&bytes, at).expect("room");
        at += (noise.next() % (8 << 20)) / 4096 * 4096 + len as u64;
        at = at.min(255 << 20);
    }
    let images = [("lz4", "4K"), ("zstd,3", "64K")];
    let truth = images.map(|(codec, cluster)| packed_bytes(&folder, &file, codec, cluster));
    for args in [&[&*file][..], &[&*file, "--sample", "8M"]] {
        let advice = advise(args);
        assert_eq!(advice.figure("input", "bytes"), 256 << 20);
        assert!(advice.figure("input", "hole_bytes") >= 100 << 20, "holes are not sampled");
        for ((codec, cluster), truth) in images.into_iter().zip(truth) {
            advice.holds("a disk of holes", &format!("{codec}@{cluster}"), "image_bytes", truth);
        }
    }
}

/// A disk of which more than a sixteenth is data, so that its zeros are stored.
#[test]
fn forecasts_hold_for_disks_with_many_zeros() {
    let folder = TempDir::new().expect("a folder");
    let (file, noise) = (path(&folder, "disk"), &mut Noise(14));
    let disk = File::create(&file).expect("a file");
    disk.set_len(2 << 30).expect("a file system with holes");
    for number in 0..10 {
        disk.write_all_at(&noise.text(16 << 20), number * (200 << 20)).expect("room");
    }
    let advice = advise(&[&file]);
    for (codec, cluster) in [("lz4", "4K"), ("zstd,3", "64K")] {
        let truth = packed_bytes(&folder, &file, codec, cluster);
        advice.holds("a disk with many zeros", &format!("{codec}@{cluster}"), "image_bytes", truth);
    }
}

#[test]
fn forecasts_hold_for_many_small_files() {
    let folder = TempDir::new().expect("a folder");
    let (tree, noise) = (folder.path().join("tree"), &mut Noise(5));
    let mut bytes = 0;
    for directory in 0..20 {
        let directory = tree.join(format!("directory-{directory}"));
        fs::create_dir_all(&directory).expect("a folder");
        for number in 0..100 {
            // Most are small.
            let len = 1 << (noise.next() % 17);
            let len = len + (noise.next() % len) as usize as u64;
            bytes += len;
            fs::write(directory.join(format!("file-{number}.log")), noise.text(len as usize)).expect("room");
        }
        File::create(directory.join("nothing")).expect("a file");
        symlink("file-0.log", directory.join("link")).expect("a link");
    }
    fs::hard_link(tree.join("directory-0/file-0.log"), tree.join("again")).expect("a link");
    let tree = path(&folder, "tree");
    let image = packed_bytes(&folder, &tree, "lz4", "4K");
    let small = packed_bytes(&folder, &tree, "zstd,3", "64K");
    for args in [&[&*tree][..], &[&*tree, "--sample", "3M"]] {
        let advice = advise(args);
        assert_eq!(advice.figure("input", "bytes"), bytes);
        assert_eq!(advice.figure("input", "files"), 2020);
        assert_eq!(advice.figure("input", "directories"), 21);
        advice.holds("a tree", "lz4@4K", "image_bytes", image);
        advice.holds("a tree", "zstd,3@64K", "image_bytes", small);
    }
}

/// Metadata is most of their images: inodes with and without times of their own, content behind
/// inodes, names, and links.
#[test]
fn forecasts_hold_for_trees_of_metadata() {
    let noise = &mut Noise(37);
    let times = |equal: bool, number: u64| UNIX_EPOCH + Duration::from_secs(if equal { 1 } else { number });
    let lines =
        |lens: std::ops::Range<u64>, count: u64, equal: bool, noise: &mut Noise| -> Vec<(Vec<u8>, SystemTime)> {
            let one = |number| {
                let len = lens.start + noise.next() % (lens.end - lens.start);
                (noise.text(len as usize), times(equal, number))
            };
            (0..count).map(one).collect()
        };
    for (what, files, links) in [
        ("equal times", lines(18..20, 1000, true, noise), 0),
        ("own times", lines(18..20, 1000, false, noise), 0),
        ("empty ones", lines(0..50, 20_000, false, noise), 0),
        ("up to a block", lines(100..4000, 3000, false, noise), 0),
        ("up to a block, with equal times", lines(100..4000, 3000, true, noise), 0),
        ("links", Vec::new(), 5000),
    ] {
        let folder = TempDir::new().expect("a folder");
        let tree = folder.path().join("tree");
        fs::create_dir(&tree).expect("a folder");
        for (number, (content, time)) in files.iter().enumerate() {
            let mut file = File::create(tree.join(format!("conf-{number}.txt"))).expect("a file");
            file.write_all(content).expect("room");
            file.set_modified(*time).expect("a time");
        }
        for number in 0..links {
            symlink(format!("target-{number}"), tree.join(format!("link-{number}"))).expect("a link");
        }
        let tree = path(&folder, "tree");
        let advice = advise(&[&tree]);
        for (codec, cluster) in [("lz4", "4K"), ("zstd,3", "64K")] {
            let [low, high] =
                ["image_bytes_low", "image_bytes_high"].map(|end| advice.figure(&format!("{codec}@{cluster}"), end));
            let packed = packed_bytes(&folder, &tree, codec, cluster);
            println!("{what}, {codec}: {packed} in {low} to {high}");
            assert!(low <= packed && packed <= high, "{what}, {codec}: {packed} is not in {low} to {high}");
        }
    }
}

/// An image places files by their names, and short ones fill the gaps between longer ones only if they
/// are near.
#[test]
fn forecasts_hold_whichever_names_short_files_have() {
    let noise = &mut Noise(41);
    let mixed: Vec<usize> = (0..2000).map(|_| noise.next() as usize % 4000).collect();
    let sorted = |skew: fn(usize) -> usize| -> Vec<usize> { (0..2000).map(skew).collect() };
    for (what, lens) in [
        ("rising", sorted(|number| number * 3 / 2)),
        ("falling", sorted(|number| 3000 - number * 3 / 2)),
        ("mixed", mixed),
        ("alternating", sorted(|number| if number % 2 == 0 { 2500 + number % 100 } else { number % 1500 })),
        ("among longer ones", sorted(|number| if number % 5 == 0 { 20_000 } else { number * 3 / 2 })),
    ] {
        for directories in [1, 40] {
            let folder = TempDir::new().expect("a folder");
            for (number, len) in lens.iter().enumerate() {
                let directory = folder.path().join(format!("tree/{:03}", number * directories / lens.len()));
                fs::create_dir_all(&directory).expect("a folder");
                fs::write(directory.join(format!("{number:05}")), noise.text(*len)).expect("room");
            }
            let tree = path(&folder, "tree");
            let advice = advise(&[&tree]);
            for (codec, cluster) in [("lz4", "4K"), ("zstd,9", "64K")] {
                let ends = ["image_bytes_low", "image_bytes_high"];
                let [low, high] = ends.map(|end| advice.figure(&format!("{codec}@{cluster}"), end));
                let packed = packed_bytes(&folder, &tree, codec, cluster);
                println!("{what}, {directories}, {codec}: {packed} in {low} to {high}");
                assert!(low <= packed && packed <= high, "{what}, {codec}: {packed} is not in {low} to {high}");
            }
        }
    }
}

#[test]
fn pages_are_distinguished() {
    let folder = TempDir::new().expect("a folder");
    let (file, noise) = (path(&folder, "file"), &mut Noise(9));
    let (zeros, word, raw) = ([0; 4096], 0x0102_0304_0506_0708u64.to_le_bytes().repeat(512), noise.bytes(4096));
    let mut bytes = Vec::new();
    for _ in 0..100 {
        for page in [&zeros[..], &word, &raw, &noise.text(4096)] {
            bytes.extend_from_slice(page);
        }
    }
    // The last page is padded.
    bytes.extend(b"end");
    fs::write(&file, bytes).expect("room");
    let advice = advise(&[&file]);
    for (metric, pages) in [("zero_pages", 100), ("same_pages", 100), ("huge_pages", 100), ("duplicate_pages", 99)] {
        for end in ["", "_low", "_high"] {
            assert_eq!(advice.figure("pages", &format!("{metric}{end}")), pages, "{metric}{end}");
        }
    }
    assert_eq!(advice.figure("input", "pages"), 401);
    assert_eq!(advice.figure("input", "read_pages"), 401);
}

#[test]
fn a_sample_says_how_little_it_knows_of_duplicates() {
    let folder = TempDir::new().expect("a folder");
    let (file, half) = (path(&folder, "twice"), Noise(3).text(WHOLE_BYTES / 2));
    fs::write(&file, half.repeat(2)).expect("room");
    let advice = advise(&[&file, "--sample", "2M"]);
    let [low, high] = ["duplicate_pages_low", "duplicate_pages_high"].map(|metric| advice.figure("pages", metric));
    let truth = (WHOLE_BYTES / 2 / 4096) as u64;
    assert!(low <= truth && truth <= high && high - low > truth, "{low} to {high}");
}

#[test]
fn the_commands_that_it_names_work() {
    let folder = TempDir::new().expect("a folder");
    let disk = path(&folder, "a disk.img");
    fs::write(&disk, Noise(4).text(8 << 20)).expect("room");
    fs::create_dir(path(&folder, "-tree's")).expect("a folder");
    fs::write(path(&folder, "-tree's/a"), "a").expect("a file");
    let program = PathBuf::from(env!("CARGO_BIN_EXE_pagefold"));
    let directory = program.parent().expect("a directory");
    let search = format!("{}:{}", directory.display(), std::env::var("PATH").unwrap_or_default());
    let mut sleeping = Ended(Command::new("sleep").arg("600").spawn().expect("a program"));
    let pid = sleeping.0.id().to_string();
    let mut ran = 0;
    for args in [&["a disk.img"][..], &["./-tree's"], &["--pid", &pid]] {
        let output =
            pagefold().args(["advise", "--json"]).args(args).current_dir(folder.path()).output().expect("it runs");
        if args[0] == "--pid" && !output.status.success() {
            skip_for_good("the_commands_that_it_names_work", "memory of processes cannot be read here");
            continue;
        }
        for line in String::from_utf8(output.stdout).expect("text").lines() {
            let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
            let command = line["subject"].as_str().expect("text");
            if line["metric"] != "command" {
                continue;
            }
            // With `--run true`, a server exits by itself.
            let serves = command.starts_with("pagefold serve");
            let command = if serves { format!("{command} --run true") } else { command.to_owned() };
            run(Command::new("sh").args(["-c", &command]).env("PATH", &search).current_dir(folder.path()));
            ran += 1;
        }
    }
    assert!(ran >= 4, "{ran}");
    sleeping.0.kill().expect("it sleeps");
}

#[test]
fn the_report_is_short() {
    let folder = TempDir::new().expect("a folder");
    let file = path(&folder, "file");
    fs::write(&file, Noise(2).text(2 << 20)).expect("room");
    let report = run(pagefold().args(["advise", "--memory", "16G", &file]));
    assert!((20..=40).contains(&report.lines().count()), "{report}");
    let long = report.lines().find(|line| line.chars().count() > 100 && !line.contains("pagefold pack"));
    assert_eq!(long, None);
    assert!(report.contains("Sampled ") && report.contains("forks") && report.contains("Next:"), "{report}");
}

#[test]
fn a_process_is_looked_at() {
    let test = "a_process_is_looked_at";
    let Some([python]) = programs(test, ["python3"]) else { return };
    let script =
        "import time\nkept = [str(n) * 20 for n in range(200000)]\nprint(len(kept), flush=True)\ntime.sleep(600)";
    let mut child = Command::new(python).args(["-c", script]).stdout(Stdio::piped()).spawn().expect("python3");
    let mut line = String::new();
    let stdout = child.stdout.take().expect("a pipe");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).expect("it runs");
    let child = Ended(child);
    let pid = child.0.id().to_string();
    let output = pagefold().args(["advise", "--json", "--pid", &pid]).output().expect("it runs");
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(message.contains("permission denied") && message.contains("CAP_SYS_PTRACE"), "{message}");
        return skip_for_good(test, "memory of processes cannot be read here");
    }
    let advice = advise(&["--pid", &pid]);
    // The list's strings need about 200,000 times 150 bytes.
    let bytes = advice.figure("input", "bytes");
    assert!((20 << 20..200 << 20).contains(&bytes), "{bytes}");
    assert!(advice.figure("input", "of_files_bytes") > 0, "the program itself");
    assert!(advice.figure("disk", "spent_bytes") < bytes);
}

#[test]
fn unreadable_input_is_refused() {
    let folder = TempDir::new().expect("a folder");
    for name in ["empty", "empty-file", "socket", "pipe"] {
        let place = folder.path().join(name);
        match name {
            "empty" => fs::create_dir(place).expect("a folder"),
            "socket" => drop(UnixListener::bind(place).expect("a socket")),
            "pipe" => mknodat(CWD, place, FileType::Fifo, Mode::RWXU, 0).expect("a pipe"),
            _ => drop(File::create(place).expect("a file")),
        }
    }
    symlink("loop", folder.path().join("loop")).expect("a link");
    let tar = [&[0; 257][..], b"ustar\0", &[0; 4096]].concat();
    fs::write(folder.path().join("archive"), tar).expect("room");
    for (name, expected) in [
        ("missing", "No such file"),
        ("loop", "symbolic links"),
        ("empty", "no files in it"),
        ("empty-file", "is empty"),
        ("socket", "a socket; give a directory"),
        ("pipe", "a pipe; give a directory"),
        ("archive", "extract it"),
    ] {
        let message = run_to_fail(pagefold().args(["advise", &path(&folder, name)]));
        assert!(message.contains(expected) && message.lines().count() == 1, "{name}: {message}");
    }
    let message = run_to_fail(pagefold().args(["advise", "/dev/null"]));
    assert!(message.contains("a character device"), "{message}");
    // `exec` keeps the shell's process id, so the shell knows the command's.
    let own = "exec \"$0\" advise --pid $$";
    let message = run_to_fail(Command::new("sh").args(["-c", own, env!("CARGO_BIN_EXE_pagefold")]));
    assert!(message.contains("is this command itself"), "{message}");
    let mut ended = Command::new("true").spawn().expect("a program");
    let pid = ended.id().to_string();
    ended.wait().expect("it ends");
    let message = run_to_fail(pagefold().args(["advise", "--pid", &pid]));
    assert!(message.contains("does not exist"), "{message}");
    for args in
        [&["advise"][..], &["advise", "a", "--pid", "1"], &["advise", "--pid", "0"], &["advise", "a", "--sample", "0"]]
    {
        assert_eq!(pagefold().args(args).output().expect("it runs").status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn permission_is_asked_for() {
    let test = "permission_is_asked_for";
    if !rustix::process::geteuid().is_root() {
        return skip_for_good(test, "only root can become another user");
    }
    // Other users must be able to reach the program.
    let folder = TempDir::new().expect("a folder");
    let program = folder.path().join("pagefold");
    fs::copy(env!("CARGO_BIN_EXE_pagefold"), &program).expect("room");
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("a mode");
    let closed = folder.path().join("tree/closed");
    fs::create_dir_all(&closed).expect("a folder");
    fs::set_permissions(&closed, PermissionsExt::from_mode(0o700)).expect("a mode");
    for (name, mode) in [("closed-file", 0o600), ("open", 0o644)] {
        let place = folder.path().join("tree").join(name);
        fs::write(&place, Noise(1).text(10_000)).expect("room");
        fs::set_permissions(&place, PermissionsExt::from_mode(mode)).expect("a mode");
    }
    let as_other = |args: &[&str]| {
        let mut command = Command::new(&program);
        command.args(args).uid(65534).gid(65534);
        command
    };
    let own = std::process::id().to_string();
    let message = run_to_fail(&mut as_other(&["advise", "--pid", &own]));
    assert!(message.contains("permission denied") && message.contains("CAP_SYS_PTRACE"), "{message}");
    let report = run(&mut as_other(&["advise", &path(&folder, "tree")]));
    assert!(report.contains(" in 2 files and 1 directory\n"), "{report}");
    assert!(report.contains("Left out: 2 items that could not be read"), "{report}");
    assert!(report.contains("--skip-unreadable"), "{report}");
}

#[test]
fn trees_with_all_kinds_of_files_are_walked() {
    let folder = TempDir::new().expect("a folder");
    let tree = folder.path().join("tree");
    fs::create_dir_all(tree.join("a/b")).expect("a folder");
    symlink("..", tree.join("a/up")).expect("a link");
    symlink("b", tree.join("a/b/itself")).expect("a link");
    symlink("missing", tree.join("dangling")).expect("a link");
    mknodat(CWD, tree.join("pipe"), FileType::Fifo, Mode::RWXU, 0).expect("a pipe");
    let _socket = UnixListener::bind(tree.join("socket")).expect("a socket");
    fs::write(tree.join("a/text"), Noise(6).text(100_000)).expect("room");
    let sparse = File::create(tree.join("sparse")).expect("a file");
    sparse.set_len(1 << 40).expect("a file system with holes");
    let advice = advise(&[tree.to_str().expect("a plain path")]);
    assert_eq!(advice.figure("input", "files"), 2);
    assert_eq!(advice.figure("input", "directories"), 3);
    assert_eq!(advice.figure("input", "hole_bytes"), 1 << 40);
    assert_eq!(advice.figure("input", "pages"), 25);
}

#[test]
fn files_that_change_while_sampled_do_no_harm() {
    let folder = TempDir::new().expect("a folder");
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).expect("a folder");
    let text = Noise(7).text(3 << 20);
    for number in 0..4 {
        fs::write(tree.join(number.to_string()), &text).expect("room");
    }
    let (ended, file) = (AtomicBool::new(false), tree.join("0"));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                fs::write(&file, &text[..100]).expect("room");
                let _ = fs::remove_file(tree.join("1"));
                fs::write(&file, &text).expect("room");
                fs::write(tree.join("1"), &text).expect("room");
            }
        });
        for place in [&tree, &file] {
            let start = Instant::now();
            let output = pagefold().arg("advise").arg(place).output().expect("it runs");
            let message = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success() || message.lines().count() == 1, "{message}");
            // The command does not hang: a minute is six times its normal duration, for slow
            // machines.
            assert!(start.elapsed() < Duration::from_secs(60));
        }
        ended.store(true, Ordering::Relaxed);
    });
}

#[test]
fn what_is_mounted_below_can_be_left_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = path(&folder, "source");
    let at = path(&folder, "source/mounted");
    fs::create_dir_all(&at).expect("folders");
    fs::write(path(&folder, "source/file"), [1; 5000]).expect("a file");
    let Some(_mounted) = Mounted::new("what_is_mounted_below_can_be_left_out", &["-t", "tmpfs", "tmpfs"], &at) else {
        return;
    };
    fs::create_dir(path(&folder, "source/mounted/below")).expect("a folder");
    fs::write(path(&folder, "source/mounted/below/file"), [2; 9000]).expect("a file");
    for (option, directories, bytes) in [(None, 3, 14_000), (Some("--one-file-system"), 2, 5000)] {
        let args: Vec<&str> = option.into_iter().chain([&*source]).collect();
        let advice = advise(&args);
        assert_eq!(advice.figure("input", "directories"), directories, "{option:?}");
        assert_eq!(advice.figure("input", "bytes"), bytes, "{option:?}");
        let [pack, check @ ..] = &advice.commands[..] else { panic!("no command: {:?}", advice.commands) };
        assert_eq!(pack.contains("--one-file-system"), option.is_some(), "{pack}");
        // What was left out would count as a difference.
        assert_eq!(check.is_empty(), option.is_some(), "{check:?}");
    }
}

/// `pack` reads the layers of a container image, not the files of its directory.
#[test]
fn a_container_image_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["oci-layout", "index.json"] {
        fs::write(folder.path().join(name), "{}").expect("a file");
    }
    let message = run_to_fail(pagefold().arg("advise").arg(folder.path()));
    assert!(message.contains("a container image: extract its layers"), "{message}");
}

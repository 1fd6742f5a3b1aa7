//! Images of disks in registries: only changes are sent.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
};

use pagefold_testing::{programs, registry::Registry, skip, skip_for_good};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    images::output,
    server::{Server, make_image, pagefold, run, run_to_fail},
};

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// A machine with a cache of its own.
struct Machine {
    cache: TempDir,
    nbdcopy: PathBuf,
    qemu_io: PathBuf,
}

impl Machine {
    fn new(test: &str) -> Option<Self> {
        let [nbdcopy, qemu_io] = programs(test, ["nbdcopy", "qemu-io"])?;
        Some(Self { cache: TempDir::new().expect("a folder"), nbdcopy, qemu_io })
    }

    fn serve(&self, args: &[&str]) -> Server {
        Server::start(&[args, &["--chunk-cache", text(self.cache.path())]].concat())
    }

    fn with_cache(&self, mut command: Command) -> Command {
        command.env("PAGEFOLD_CACHE", self.cache.path());
        command
    }

    fn run(&self, args: &[&str]) -> String {
        output(self.with_cache(pagefold()).args(args))
    }

    fn ask(&self, server: &Server, args: &[&str]) -> String {
        output(&mut self.with_cache(server.ask(args)))
    }

    fn bytes(&self, args: &[&str]) -> Vec<u8> {
        let output = self.with_cache(pagefold()).args(args).output().expect("the program starts");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    fn write(&self, server: &Server, disk: &str, commands: &[String]) {
        let commands = commands.iter().flat_map(|command| ["-c", command]);
        let said = run(Command::new(&self.qemu_io).args(["-f", "raw"]).args(commands).arg(server.uri(disk)));
        assert!(!said.contains("failed"), "{said}");
    }

    fn content(&self, server: &Server, disk: &str) -> Vec<u8> {
        let folder = TempDir::new().expect("a folder");
        let copy = folder.path().join("copy");
        run(Command::new(&self.nbdcopy).arg(server.uri(disk)).arg(&copy));
        fs::read(copy).expect("a copy")
    }
}

/// Small writes all over a disk.
fn writes(count: u64, mib: u64, seed: u64) -> Vec<String> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut below = |end: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) % end
    };
    let write = |_| format!("write -P {} {}k {}k", 1 + below(200), below((mib << 10) - 32), 1 + below(30));
    (0..count).map(write).collect()
}

/// Returns the manifest that a fixed location leads to.
fn manifest(registry: &Registry, fixed: &str) -> Value {
    let (_, digest) = fixed.trim_end().split_once('@').expect("a digest");
    serde_json::from_slice(&fs::read(registry.blob(digest)).expect("a manifest")).expect("JSON")
}

/// Returns the files of a manifest's layers, the image first, as for `--device`.
fn blobs(registry: &Registry, fixed: &str) -> Vec<PathBuf> {
    let manifest = manifest(registry, fixed);
    let layers = manifest["layers"].as_array().expect("layers");
    let blob = |layer: &Value| registry.blob(layer["digest"].as_str().expect("a digest"));
    let (image, devices) = layers.split_last().expect("layers");
    [image].into_iter().chain(devices).map(blob).collect()
}

/// Returns the only file of an image as Linux reads it from the blobs.
fn mounted(test: &str, blobs: &[PathBuf]) -> Option<Vec<u8>> {
    if !rustix::process::geteuid().is_root() {
        skip_for_good(test, "only root can mount");
        return None;
    }
    let folder = TempDir::new().expect("a folder");
    let mut loops = Vec::new();
    for blob in blobs {
        let made = Command::new("losetup").args(["-f", "--show", "-r"]).arg(blob).output().expect("losetup");
        if !made.status.success() {
            skip_for_good(test, &String::from_utf8_lossy(&made.stderr));
            break;
        }
        loops.push(String::from_utf8(made.stdout).expect("text").trim().to_owned());
    }
    let found = (loops.len() == blobs.len()).then(|| {
        let devices: Vec<_> = loops[1..].iter().map(|device| format!("device={device}")).collect();
        let options = format!("ro,{}", devices.join(","));
        let mounted =
            Command::new("mount").args(["-t", "erofs", "-o", &options, &loops[0]]).arg(folder.path()).output();
        let mounted = mounted.expect("mount");
        if !mounted.status.success() {
            skip_for_good(test, &format!("the kernel does not mount it: {}", String::from_utf8_lossy(&mounted.stderr)));
            return None;
        }
        let found = fs::read(folder.path().join("disk.img"));
        assert!(Command::new("umount").arg(folder.path()).status().expect("umount").success());
        Some(found.expect("a file"))
    });
    for device in loops {
        let _ = Command::new("losetup").args(["-d", &device]).status();
    }
    found.flatten()
}

/// A fork of an image in a registry is pushed without its base. Another machine, the kernel and
/// fsck.erofs read the same disk.
#[test]
fn only_changes_are_pushed() {
    const TEST: &str = "only_changes_are_pushed";
    let (Some(registry), Some(machine)) = (Registry::start(TEST), Machine::new(TEST)) else { return };
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| text(&folder.path().join(name)).to_owned();
    make_image(&folder.path().join("disk.img"), 24);
    for (number, pack) in
        [&["--codec", "zstd,3", "--cluster", "64K"][..], &[], &["--codec", "none"]].into_iter().enumerate()
    {
        let base = at(&format!("base-{number}.erofs"));
        run(pagefold().arg("pack").args(pack).args([&at("disk.img"), "-o", &base]));
        let base_url = registry.url(&format!("disks/base-{number}:13"));
        let base_fixed = machine.run(&["push", &base, &base_url]);
        let server = machine.serve(&[&base_url]);
        let base_name = format!("base-{number}");
        machine.ask(&server, &["fork", &base_name, "job"]);
        // These writes change an eighth of the clusters, whatever program the disk is made of.
        machine.write(&server, "job", &writes(40, 24, number as u64 + 1));
        let expected = machine.content(&server, "job");

        // The new blobs, each with the index of its clusters.
        let delta = at(&format!("delta-{number}.erofs"));
        machine.ask(&server, &["freeze", "job", "--backing", "-o", &delta]);
        let base_arg = ["--device", &base];
        let index = at(&format!("index-{number}"));
        run(pagefold().arg("index").args(base_arg).args([&delta, "-o", &index]));
        let len = |path: &str| fs::metadata(path).expect("a file").len();
        let own = len(&delta) + len(&index);
        assert!(own * 4 < len(&base), "{own} of {}", len(&base));
        let job = registry.url(&format!("jobs/job-{number}:1"));
        let (sent, received) = (registry.sent_bytes(), registry.received_bytes());
        let fixed = machine.ask(&server, &["freeze", "job", "--verify", "--push", &job]);
        let sent = registry.sent_bytes() - sent;
        assert!(sent <= own * 105 / 100 + 8192, "{pack:?}: {sent} for {own}");
        assert!(registry.received_bytes() - received < 64 << 10, "the base was read from the registry");
        let sent = registry.sent_bytes();
        assert_eq!(machine.ask(&server, &["freeze", "job", "--push", &job]), fixed);
        assert!(registry.sent_bytes() - sent < 16 << 10);

        // Another machine.
        let other = Machine::new(TEST).expect("the programs are there");
        let path = format!("{job}:/disk.img");
        assert!(other.bytes(&["cat", &path]) == expected, "{pack:?}");
        assert_eq!(other.run(&["ls", &job]), "disk.img\n");
        assert!(other.run(&["check", &job]).starts_with("sound"));
        let out = at(&format!("out-{number}"));
        other.run(&["extract", &job, "-C", &out]);
        assert!(fs::read(format!("{out}/disk.img")).expect("a file") == expected);
        other.run(&["fetch", &job]);
        let before = registry.sent_bytes();
        assert!(other.bytes(&["cat", "--offline", &path]) == expected);
        let second = other.serve(&["--offline", fixed.trim_end()]);
        assert_eq!(registry.sent_bytes(), before);
        let disk = format!("job-{number}");
        other.ask(&second, &["fork", &disk, "again"]);
        assert!(other.content(&second, "again") == expected);

        // The blobs as files.
        let files = blobs(&registry, &fixed);
        let [image, device] = &files[..] else { panic!("{files:?}") };
        assert!(other.bytes(&["cat", &format!("{}:/disk.img", image.display()), "--device", text(device)]) == expected);
        let message = run_to_fail(pagefold().args(["ls", text(image), "--device", &base]));
        assert!(message.contains("device 1 has the SHA-256 sum"), "{message}");
        // A tag leads to what its registry says.
        let args = ["ls", text(image), "--device"];
        let message = run_to_fail(other.with_cache(pagefold()).args(args).arg(&base_url));
        assert!(message.contains("@sha256:DIGITS"), "{message}");
        assert_eq!(other.run(&["ls", text(image), "--device", base_fixed.trim_end()]), "disk.img\n");
        let before = registry.sent_bytes();
        let again = registry.url(&format!("jobs/job-{number}:again"));
        let pushed = other.run(&["push", text(image), "--device", text(device), &again]);
        assert_eq!(blobs(&registry, &pushed), files);
        assert!(registry.sent_bytes() - before < 16 << 10, "it was sent again");
        if let Some(found) = mounted(TEST, &files) {
            assert!(found == expected, "{pack:?}: the kernel reads something else");
        }
        if pack.contains(&"none") {
            // fsck.erofs 1.9 reads compressed clusters of devices from the image itself.
            let said = Command::new("fsck.erofs").arg("-V").output();
            if !said.is_ok_and(|said| String::from_utf8_lossy(&said.stdout).contains(" 1.9")) {
                skip(TEST, "fsck.erofs 1.9 is not installed");
                continue;
            }
            let out = at("fsck");
            let device = format!("--device={}", device.display());
            run(Command::new("fsck.erofs").args([&format!("--extract={out}"), &device]).arg(image));
            assert!(fs::read(format!("{out}/disk.img")).expect("a file") == expected);
        }
    }
}

/// The tag of a server's base stays, since the base is opened by it again. With a sum, the tag may move.
#[test]
fn a_push_does_not_replace_a_base() {
    const TEST: &str = "a_push_does_not_replace_a_base";
    let (Some(registry), Some(machine)) = (Registry::start(TEST), Machine::new(TEST)) else { return };
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| text(&folder.path().join(name)).to_owned();
    make_image(&folder.path().join("disk.img"), 2);
    run(pagefold().args(["pack", &at("disk.img"), "-o", &at("base.erofs")]));
    let (url, other) = (registry.url("base:latest"), registry.url("base:2"));
    let fixed = machine.run(&["push", &at("base.erofs"), &url]);
    let server = machine.serve(&[&url]);
    machine.ask(&server, &["fork", "base", "job"]);
    machine.ask(&server, &["add", "other", "--size", "1M"]);
    // 'latest' is the tag of a location without one.
    for (disk, to) in [("job", &url), ("other", &url), ("job", &registry.url("base"))] {
        let message = run_to_fail(&mut machine.with_cache(server.ask(&["freeze", disk, "--push", to])));
        let words = [&**to, "a base open by this tag", "push to another tag", "@sha256:DIGITS"];
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    }
    machine.ask(&server, &["freeze", "job", "--push", &other]);
    // Someone else moves the tag.
    run(pagefold().args(["pack", "--codec", "zstd", &at("disk.img"), "-o", &at("new.erofs")]));
    machine.run(&["push", &at("new.erofs"), &url]);
    let message = run_to_fail(&mut machine.with_cache(server.ask(&["freeze", "job", "--push", &other])));
    assert!(message.contains("changed or replaced") && message.contains("with --codec"), "{message}");
    machine.ask(&server, &["freeze", "job", "--push", &other, "--codec", "lz4"]);
    let second = machine.serve(&[fixed.trim_end()]);
    machine.ask(&second, &["fork", "base", "job"]);
    for _ in 0..2 {
        machine.ask(&second, &["freeze", "job", "--push", &url]);
    }
}

/// Ten deltas, one above the other. Each is sent once, and a flat image of the last needs none of them.
#[test]
fn a_chain_in_a_registry() {
    const TEST: &str = "a_chain_in_a_registry";
    let (Some(registry), Some(machine)) = (Registry::start(TEST), Machine::new(TEST)) else { return };
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| text(&folder.path().join(name)).to_owned();
    make_image(&folder.path().join("disk.img"), 6);
    run(pagefold().args(["pack", &at("disk.img"), "-o", &at("base.erofs")]));
    // A file is the first base: it is sent with the first delta.
    let server = machine.serve(&[&at("base.erofs")]);
    let mut below = "base".to_owned();
    let mut fixed = String::new();
    for number in 1..=10 {
        let (job, url) = (format!("job-{number}"), registry.url(&format!("chain:{number}")));
        machine.ask(&server, &["fork", &below, &job]);
        machine.write(&server, &job, &writes(6, 6, number));
        let sent = registry.sent_bytes();
        fixed = machine.ask(&server, &["freeze", &job, "--push", &url]);
        let sent = registry.sent_bytes() - sent;
        let base_bytes = fs::metadata(at("base.erofs")).expect("a file").len();
        assert!((number == 1) == (sent > base_bytes), "{number}: {sent} of {base_bytes}");
        below = format!("pushed-{number}");
        machine.ask(&server, &["add", &below, "--base", &url]);
    }
    let expected = machine.content(&server, "job-10");
    let other = Machine::new(TEST).expect("the programs are there");
    let last = registry.url("chain:10");
    assert!(other.bytes(&["cat", &format!("{last}:/disk.img")]) == expected);
    let files = blobs(&registry, &fixed);
    assert_eq!(files.len(), 11);
    if let Some(found) = mounted(TEST, &files) {
        assert!(found == expected, "the kernel reads something else");
    }
    // Flat: an image that needs no other, here and in the registry.
    machine.ask(&server, &["freeze", "job-10", "-o", &at("flat.erofs")]);
    assert!(machine.bytes(&["cat", &format!("{}:/disk.img", at("flat.erofs"))]) == expected);
    let flat = other.run(&["push", &at("flat.erofs"), &registry.url("flat:1")]);
    assert_eq!(manifest(&registry, &flat)["layers"].as_array().expect("layers").len(), 1);
    let packed = machine.ask(&server, &["freeze", "job-10", "--codec", "lz4", "--push", &registry.url("flat:2")]);
    assert_eq!(manifest(&registry, &packed)["layers"].as_array().expect("layers").len(), 1);
    assert!(other.bytes(&["cat", &format!("{}:/disk.img", packed.trim_end())]) == expected);
    // Another registry gets all of it.
    let second = Registry::start(TEST).expect("a registry");
    let copied = machine.run(&["push", &last, &second.url("chain:10")]);
    assert_eq!(copied.split_once('@').expect("a sum").1, fixed.split_once('@').expect("a sum").1);
    assert!(other.bytes(&["cat", &format!("{}:/disk.img", copied.trim_end())]) == expected);
}

/// Disks without an EROFS image below them become whole images.
#[test]
fn a_disk_without_a_base_is_pushed_whole() {
    const TEST: &str = "a_disk_without_a_base_is_pushed_whole";
    let (Some(registry), Some(machine)) = (Registry::start(TEST), Machine::new(TEST)) else { return };
    let folder = TempDir::new().expect("a folder");
    let raw = folder.path().join("raw.img");
    make_image(&raw, 2);
    let server = machine.serve(&["--export", "name=ram,size=2M", text(&raw)]);
    machine.write(&server, "ram", &writes(5, 2, 1));
    for disk in ["ram", "raw"] {
        let url = registry.url(&format!("{disk}:1"));
        let fixed = machine.ask(&server, &["freeze", disk, "--media-type", "containerd", "--push", &url]);
        let manifest = manifest(&registry, &fixed);
        assert_eq!(manifest["layers"].as_array().expect("layers").len(), 1);
        assert_eq!(manifest["layers"][0]["mediaType"], "application/vnd.erofs.layer.v1");
        assert!(machine.bytes(&["cat", &format!("{url}:/disk.img")]) == machine.content(&server, disk), "{disk}");
    }
}

/// Devices that are missing or wrong are named before anything is sent.
#[test]
fn wrong_devices_are_not_pushed() {
    const TEST: &str = "wrong_devices_are_not_pushed";
    let (Some(registry), Some(machine)) = (Registry::start(TEST), Machine::new(TEST)) else { return };
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| text(&folder.path().join(name)).to_owned();
    make_image(&folder.path().join("disk.img"), 2);
    let other = File::options().write(true).open(at("disk.img")).expect("a file");
    run(pagefold().args(["pack", &at("disk.img"), "-o", &at("base.erofs")]));
    other.write_all_at(b"other", 5000).expect("a write");
    run(pagefold().args(["pack", &at("disk.img"), "-o", &at("other.erofs")]));
    let server = machine.serve(&[&at("base.erofs")]);
    machine.ask(&server, &["fork", "base", "job"]);
    machine.write(&server, "job", &writes(2, 2, 1));
    machine.ask(&server, &["freeze", "job", "--backing", "-o", &at("job.erofs")]);
    let url = registry.url("jobs/job:1");
    for (devices, what) in [
        (&[][..], "the image needs 1 other device, but none was given (give each device with --device"),
        (&["other.erofs"], "device 1 is the image"),
        (&["base.erofs", "other.erofs"], "but 2 were given"),
        (&["missing.erofs"], "missing.erofs: No such file"),
    ] {
        let devices = devices.iter().flat_map(|device| ["--device".to_owned(), at(device)]);
        let message = run_to_fail(machine.with_cache(pagefold()).args(["push", &at("job.erofs"), &url]).args(devices));
        assert!(message.contains(what), "{message}");
    }
    assert_eq!(registry.sent_bytes(), 0);
    let pushed = machine.run(&["push", &at("job.erofs"), "--device", &at("base.erofs"), &url]);
    let expected = machine.content(&server, "job");
    let other = Machine::new(TEST).expect("the programs are there");
    assert!(other.bytes(&["cat", &format!("{}:/disk.img", pushed.trim_end())]) == expected);

    for (args, what) in [
        (&["--push", "s3://bucket/key"][..], "--push stores in a registry"),
        (&["--push", &url, "-o", "file"], "cannot be used with"),
        (&["--push", &url, "--backing"], "leave out --backing"),
        (&["--push", &url, "--offline"], "--offline allows no requests"),
        (&["--push", &url, "--force"], "--force is for -o"),
        (&["--push", &url, "--format", "raw"], "--push is for --format erofs"),
        (&["--media-type", "spec", "-o", "file"], "--push"),
        (&[], "--output"),
    ] {
        let message = run_to_fail(&mut machine.with_cache(server.ask(&[&["freeze", "job"], args].concat())));
        assert!(message.contains(what), "{args:?}: {message}");
    }
    // The base changed after the server opened it.
    fs::write(at("base.erofs"), "another file").expect("a file");
    let message = run_to_fail(&mut machine.with_cache(server.ask(&["freeze", "job", "--push", &url])));
    assert!(message.contains("cannot reuse the base"), "{message}");
}

/// A trace that cannot be stored is refused before the image is, so that no tag moves. The registry is
/// not even asked.
#[test]
fn a_file_that_is_no_trace_of_the_image_is_refused_first() {
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| text(&folder.path().join(name)).to_owned();
    make_image(&folder.path().join("disk.img"), 1);
    run(pagefold().args(["pack", &at("disk.img"), "-o", &at("disk.erofs")]));
    fs::write(at("bad"), "not a trace, but a text").expect("a file");
    // A trace of no chunk of one blob.
    let other = [&b"pgftrac1"[..], &1u32.to_le_bytes(), &0u32.to_le_bytes(), &[7; 32]].concat();
    fs::write(at("other"), other).expect("a file");
    for (trace, why) in [("bad", "not a trace"), ("other", "is a trace of another image"), ("none", "No such file")] {
        let location = "oci://127.0.0.1:1/disks/a:1";
        let said = run_to_fail(pagefold().args(["push", "--trace", &at(trace), &at("disk.erofs"), location]));
        assert!(said.contains(why) && said.contains(&at(trace)), "{said}");
    }
}

//! Programs that use files notice no take-over.

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    path::Path,
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    thread,
    time::Duration,
};

use pagefold_testing::programs;
use rustix::{fs::OFlags, io::Errno, process::Signal};

use crate::{
    files::Place,
    fio::succeeds,
    server::{Server, make_image, pagefold, run, run_to_fail},
    take_over::Impostor,
};

const BLOCK_BYTES: usize = 4096;
const DISK_BYTES: usize = 4 << 20;

fn open(path: &Path, flags: OFlags) -> File {
    let flags = i32::try_from(flags.bits()).expect("few flags");
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).expect("a file")
}

/// Returns the part of a buffer that direct requests may use.
fn aligned(buffer: &mut [u8]) -> &mut [u8] {
    let start = buffer.as_ptr().align_offset(BLOCK_BYTES);
    &mut buffer[start..start + BLOCK_BYTES]
}

/// Writes and reads blocks until `ended`, and compares them with a model.
fn writes_and_verifies(file: &File, ended: &AtomicBool) -> u64 {
    let mut model = vec![0; DISK_BYTES];
    let mut buffer = vec![0; 2 * BLOCK_BYTES];
    let buffer = aligned(&mut buffer);
    let mut state = 1_u64;
    let mut rounds = 0;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    while !ended.load(SeqCst) {
        let at = next() % (DISK_BYTES / BLOCK_BYTES) * BLOCK_BYTES;
        let old = next() % (DISK_BYTES / BLOCK_BYTES) * BLOCK_BYTES;
        buffer.fill(next() as u8);
        buffer[..8].copy_from_slice(&(at as u64).to_le_bytes());
        file.write_all_at(buffer, at as u64).expect("a write");
        model[at..at + BLOCK_BYTES].copy_from_slice(buffer);
        file.read_exact_at(buffer, old as u64).expect("a read");
        assert!(buffer == &model[old..old + BLOCK_BYTES], "block at {old}");
        rounds += 1;
    }
    let back: Vec<u8> = (0..DISK_BYTES).step_by(BLOCK_BYTES).fold(Vec::new(), |mut back, at| {
        file.read_exact_at(buffer, at as u64).expect("a read");
        back.extend_from_slice(buffer);
        back
    });
    assert!(back == model);
    rounds
}

#[test]
fn programs_notice_none_of_three_take_overs() {
    let test = "programs_notice_none_of_three_take_overs";
    let Some(place) = Place::new(test) else { return };
    let Some([fio]) = programs(test, ["fio"]) else { return };
    let mut args = vec!["--files", place.text()];
    for disk in ["name=buffered,size=4M", "name=direct,size=4M", "name=gone,size=1M", "name=kept,size=1M"] {
        args.extend(["--export", disk]);
    }
    let mut server = Server::start(&args);
    let image = server.folder().join("image");
    make_image(&image, 8);
    run(&mut server.ask(&["add", "base", "--base", image.to_str().expect("a plain path")]));
    let content = fs::read(&image).expect("a file");
    let mut names: Vec<_> = ["base", "buffered", "direct", "kept"].map(str::to_owned).into();
    let many: Vec<File> = (0..200).map(|_| File::open(place.path("base")).expect("a file")).collect();
    let gone = open(&place.path("gone"), OFlags::empty());
    run(&mut server.ask(&["drop", "--force", "gone"]));
    let kept = open(&place.path("kept"), OFlags::empty());
    kept.write_all_at(b"kept", 0).expect("a write");
    let before = fs::metadata(place.path("kept")).expect("a file");
    let ended = AtomicBool::new(false);
    let fails = |file: &File| {
        let error = file.read_at(&mut [0; 8], 0).expect_err("its disk is gone");
        assert_eq!(error.raw_os_error(), Some(Errno::SHUTDOWN.raw_os_error()));
    };
    // The last one maps the base.
    let mut mapping = Command::new(fio);
    mapping.args(["--name=maps", "--readonly", "--ioengine=mmap", "--rw=randread", "--bs=4k", "--size=8M"]);
    mapping.args(["--time_based", "--runtime=4", "--invalidate=1"]).arg("--filename").arg(place.path("base"));
    let mapping = mapping.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("fio starts");
    thread::scope(|scope| {
        let [buffered, direct] = [("buffered", OFlags::empty()), ("direct", OFlags::DIRECT)].map(|(name, flags)| {
            let file = open(&place.path(name), flags);
            let ended = &ended;
            scope.spawn(move || writes_and_verifies(&file, ended))
        });
        let lists = scope.spawn(|| {
            while !ended.load(SeqCst) {
                let listed = fs::read_dir(place.path("")).expect("a directory");
                let mut listed: Vec<_> =
                    listed.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect();
                listed.sort();
                assert_eq!(listed, ["base", "buffered", "direct", "kept"]);
                assert!(fs::read(place.path("base")).expect("a file") == content);
            }
        });
        for _ in 0..3 {
            thread::sleep(Duration::from_millis(200));
            let said = server.take_over(&[]);
            println!("{}", said.lines().find(|line| line.contains("clients paused for")).expect("the line"));
            fails(&gone);
            let mut byte = [0];
            for file in &many {
                file.read_exact_at(&mut byte, 4095).expect("a read");
                assert_eq!(byte[0], content[4095]);
            }
            let now = fs::metadata(place.path("kept")).expect("a file");
            assert_eq!((now.ino(), now.mtime_nsec(), now.mode()), (before.ino(), before.mtime_nsec(), before.mode()));
        }
        // A process that fails before it serves.
        for _ in 0..3 {
            let mut impostor = Impostor::begin(&server.control(), server.pid(), true);
            impostor.all();
            drop(impostor);
            let mut back = [0; 4];
            kept.read_exact_at(&mut back, 0).expect("a read");
            assert_eq!(&back, b"kept");
        }
        ended.store(true, SeqCst);
        for writer in [buffered, direct] {
            assert!(writer.join().expect("no error") > 0);
        }
        lists.join().expect("no error");
    });
    succeeds(mapping);
    // What commands do is seen as before.
    run(&mut server.ask(&["fork", "kept", "fork"]));
    names.push("fork".to_owned());
    let mut back = [0; 4];
    File::open(place.path("fork")).expect("a file").read_exact_at(&mut back, 0).expect("a read");
    assert_eq!(&back, b"kept");
    let clients = run(&mut server.ask(&["disks", "--json"]));
    let base = clients.lines().find(|line| line.contains("\"base\"")).expect("a disk");
    assert_eq!(serde_json::from_str::<serde_json::Value>(base).expect("JSON")["clients"], 200);
    drop((many, kept, gone));
    let (status, _) = server.end(Signal::TERM);
    assert!(status.success());
    assert!(!place.is_mounted());
}

#[test]
fn a_write_that_waits_for_room_keeps_the_server() {
    let test = "a_write_that_waits_for_room_keeps_the_server";
    let Some(place) = Place::new(test) else { return };
    let args = ["--memory-limit", "64M", "--when-full", "wait", "--files", place.text(), "--export"];
    let mut server =
        Server::start(&[&args[..], &["name=full,size=64M,limit=1M", "--export", "name=other,size=1M"]].concat());
    let (full, other) = (open(&place.path("full"), OFlags::empty()), open(&place.path("other"), OFlags::empty()));
    let mut noise = 1_u32;
    let data: Vec<u8> = std::iter::repeat_with(|| {
        noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (noise >> 24) as u8
    })
    .take(4 << 20)
    .collect();
    thread::scope(|scope| {
        let writes = scope.spawn(|| full.write_all_at(&data, 0));
        while !run(&mut server.ask(&["stat"])).contains("wait") && !writes.is_finished() {
            thread::sleep(Duration::from_millis(10));
        }
        let mut command = pagefold();
        let line = run_to_fail(command.args(["serve", "--take-over", "--dir"]).arg(server.folder()));
        assert!(line.contains("requests of disk 'full' have not ended in time"), "{line}");
        other.write_all_at(b"other", 0).expect("it goes on");
        assert!(!writes.is_finished());
        run(&mut server.ask(&["limit", "full", "16M"]));
        writes.join().expect("a thread").expect("room");
    });
    server.take_over(&[]);
    let mut back = vec![0; data.len()];
    full.read_exact_at(&mut back, 0).expect("a read");
    assert!(back == data);
    drop((full, other));
    let (status, _) = server.end(Signal::TERM);
    assert!(status.success());
    assert!(!place.is_mounted());
}

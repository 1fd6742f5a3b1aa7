//! nbdinfo, nbdcopy, qemu-img, qemu-io and fio on a served disk.

use std::{
    fs,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use pagefold_testing::programs;

use crate::server::{Server, make_image, run};

#[test]
fn nbdinfo_lists_the_exports() {
    let Some([nbdinfo]) = programs("nbdinfo_lists_the_exports", ["nbdinfo"]) else { return };
    let server = Server::start(&["--export", "name=a,size=1G", "--export", "name=b,size=64M,read-only"]);
    let list = run(Command::new(&nbdinfo).args(["--list", "--json"]).arg(server.uri("")));
    let list: serde_json::Value = serde_json::from_str(&list).expect("JSON");
    let exports = list["exports"].as_array().expect("exports");
    assert_eq!(exports.len(), 2);
    assert_eq!((&exports[0]["export-name"], &exports[0]["export-size"]), (&"a".into(), &(1u64 << 30).into()));
    assert_eq!((&exports[1]["export-name"], &exports[1]["is_read_only"]), (&"b".into(), &true.into()));
    for capability in ["can_df", "can_fast_zero", "can_flush", "can_fua", "can_multi_conn", "can_trim", "can_zero"] {
        assert_eq!(exports[0][capability], true, "{capability}");
    }
    assert_eq!(exports[0]["contexts"][0], "base:allocation");
}

#[test]
fn nbdcopy_takes_an_image_in_and_out() {
    let Some([nbdcopy]) = programs("nbdcopy_takes_an_image_in_and_out", ["nbdcopy"]) else { return };
    for codec in ["lz4", "zstd-1", "fold-dict", "lz4-dict", "zstd-1-dict"] {
        let server = Server::start(&["--size", "64M", "--codec", codec]);
        let (image, back) = (server.folder().join("image"), server.folder().join("back"));
        make_image(&image, 64);
        run(Command::new(&nbdcopy).arg(&image).arg(server.uri("")));
        run(Command::new(&nbdcopy).arg(server.uri("")).arg(&back));
        assert!(fs::read(&image).expect("an image") == fs::read(&back).expect("a copy"), "{codec}");
        let stored = server.figure("", "orig_data_size");
        assert!((40 << 20..=64 << 20).contains(&stored), "{stored} stored");
        // Memory of a training in progress is counted.
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let spent = server.total("spent_bytes") - server.total("outside_bytes");
            if spent < stored {
                break;
            }
            assert!(Instant::now() < deadline, "{stored} stored in {spent}");
            thread::sleep(Duration::from_millis(50));
        }
    }
}

#[test]
fn memory_of_a_training_is_returned_to_the_system() {
    let Some([nbdcopy]) = programs("memory_of_a_training_is_returned_to_the_system", ["nbdcopy"]) else { return };
    let server = Server::start(&["--size", "64M", "--codec", "pleat"]);
    let image = server.folder().join("image");
    make_image(&image, 64);
    run(Command::new(&nbdcopy).arg(&image).arg(server.uri("")));
    let deadline = Instant::now() + Duration::from_secs(60);
    while server.total("trainings") + server.total("trainings_useless") == 0 {
        assert!(Instant::now() < deadline, "it does not train");
        thread::sleep(Duration::from_millis(50));
    }
    // Another training may have begun.
    loop {
        let (taken, spent) = (server.anonymous_bytes(), server.total("spent_bytes"));
        if taken < spent + (8 << 20) {
            break;
        }
        assert!(Instant::now() < deadline, "{taken} bytes taken, {spent} of them said to be spent");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn qemu_img_converts_compares_and_maps() {
    let Some([qemu_img]) = programs("qemu_img_converts_compares_and_maps", ["qemu-img"]) else { return };
    let server = Server::start(&["--size", "32M"]);
    let image = server.folder().join("image");
    make_image(&image, 32);
    let qemu_img = |args: &[&str]| run(Command::new(&qemu_img).args(args));
    let (image, uri) = (image.to_str().expect("a plain path"), server.uri(""));
    qemu_img(&["convert", "-n", "-f", "raw", "-O", "raw", image, &uri]);
    qemu_img(&["compare", "-f", "raw", "-F", "raw", image, &uri]);

    let map: serde_json::Value =
        serde_json::from_str(&qemu_img(&["map", "--output=json", "-f", "raw", &uri])).expect("JSON");
    let first = &map[0];
    assert_eq!((&first["start"], &first["length"]), (&0.into(), &(1 << 18).into()), "the image begins with a hole");
    assert_eq!((&first["zero"], &first["data"]), (&true.into(), &false.into()));
    assert_eq!((&map[1]["zero"], &map[1]["data"]), (&false.into(), &true.into()));

    let qcow = server.folder().join("back.qcow2");
    let qcow = qcow.to_str().expect("a plain path");
    qemu_img(&["convert", "-f", "raw", "-O", "qcow2", &uri, qcow]);
    qemu_img(&["compare", "-f", "raw", "-F", "qcow2", image, qcow]);
}

#[test]
fn qemu_io_reads_writes_zeroes_and_discards() {
    let Some([qemu_io]) = programs("qemu_io_reads_writes_zeroes_and_discards", ["qemu-io"]) else { return };
    let server = Server::start(&["--size", "16M"]);
    let qemu_io = |commands: &[&str]| {
        let mut command = Command::new(&qemu_io);
        command.args(["-f", "raw", "--discard", "unmap"]);
        for text in commands {
            command.args(["-c", text]);
        }
        let output = run(command.arg(server.uri("")));
        assert!(!output.contains("failed"), "{output}");
    };
    qemu_io(&["write -P 0xaa 0 1M", "write -P 0xbb 1000 5000", "read -P 0xaa 0 512", "read -P 0xbb 1000 5000"]);
    assert_eq!(server.figure("", "orig_data_size"), 1 << 20);
    qemu_io(&["read -P 0xaa 6000 1000", "write -z -u 64k 64k", "read -P 0 64k 64k", "discard 128k 128k"]);
    assert_eq!(server.figure("", "orig_data_size"), (1 << 20) - (192 << 10));
    qemu_io(&["write -z 256k 64k", "read -P 0 128k 192k", "read -P 0xaa 320k 100k", "flush", "write -f -P 1 0 4k"]);
    assert_eq!(server.figure("", "orig_data_size"), (1 << 20) - (192 << 10));
}

#[test]
fn fio_verifies_over_several_connections() {
    let Some([fio]) = programs("fio_verifies_over_several_connections", ["fio"]) else { return };
    let server = Server::start(&["--size", "128M"]);
    for block in ["4k-4k", "512-16k"] {
        run(Command::new(&fio)
            .current_dir(server.folder())
            .args(["--name=verify", "--ioengine=nbd", "--thread", "--numjobs=4", "--rw=randrw", "--iodepth=16"])
            .args(["--verify=crc32c", "--verify_fatal=1", "--size=16M", "--offset_increment=32M"])
            .args(["--buffer_compress_percentage=60", "--refill_buffers"])
            .arg(format!("--bsrange={block}"))
            .arg(format!("--uri={}", server.uri(""))));
    }
}

#[test]
fn fio_meets_enospc_at_the_memory_limit() {
    let Some([fio]) = programs("fio_meets_enospc_at_the_memory_limit", ["fio"]) else { return };
    let server = Server::start(&["--size", "64M", "--memory-limit", "8M"]);
    let report = run(Command::new(&fio)
        .current_dir(server.folder())
        .args(["--name=full", "--ioengine=nbd", "--rw=randwrite", "--bs=4k", "--size=64M", "--iodepth=16"])
        .args(["--refill_buffers", "--ignore_error=,ENOSPC", "--error_dump=0", "--verify=crc32c"])
        .args(["--output-format=json", &format!("--uri={}", server.uri(""))]));
    let report: serde_json::Value = serde_json::from_str(&report[report.find('{').expect("JSON")..]).expect("JSON");
    assert!(report["jobs"][0]["total_err"].as_u64().expect("a count") > 0, "the limit was not met");
    assert!(server.total("mem_used_max") <= 8 << 20);
}

//! qcow2 images made by qemu-img.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use pagefold_base::{Base, Cache, Format, OpenError, Options};
use pagefold_disk::BlockDevice;
use pagefold_testing::{programs, skip};

use crate::{
    content, open,
    reading::{LEN_BYTES, check, hole_bytes, sparse_file, threads},
    ready::{is_at_hand, tried},
};

/// Runs `qemu-img convert` on a raw file with these options.
fn converted(qemu_img: &Path, raw: &Path, options: &[&str]) -> PathBuf {
    let image = raw.with_extension("qcow2");
    let status = Command::new(qemu_img)
        .args(["convert", "-f", "raw", "-O", "qcow2"])
        .args(options)
        .arg(raw)
        .arg(&image)
        .status();
    assert!(status.expect("qemu-img starts").success());
    image
}

#[test]
fn an_image_is_read_as_qemu_wrote_it() {
    let Some([qemu_img]) = programs("qcow2", ["qemu-img"]) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let content = content(LEN_BYTES.next_multiple_of(512));
    let raw = sparse_file(&folder, &content);
    let sorts: [&[&str]; 6] = [
        &[],
        &["-c"],
        &["-o", "cluster_size=4k"],
        &["-o", "cluster_size=4k,preallocation=metadata"],
        &["-c", "-o", "cluster_size=2M"],
        &["-o", "compat=0.10,cluster_size=512"],
    ];
    for options in sorts {
        let image = converted(&qemu_img, &raw, options);
        let (base, logged) = open(&image, &Options::default());
        assert_eq!(base.format(), Format::Qcow2);
        check(&base, &content, 100);
        // Uncompressed content in the page cache is read without a wait.
        let filled = tried(&base, &content);
        let is_all = filled == content.len() / 4096 || options.contains(&"-c");
        assert!(is_all || !is_at_hand(&image), "{filled} pages with {options:?}");
        // No run of zeros covers a whole cluster of 64 KiB.
        if options.last().is_some_and(|option| option.starts_with("cluster_size=4k")) {
            assert!(hole_bytes(&base) > 100_000, "{options:?}");
        }
        threads(&image, &content);
        assert!(logged.lines().is_empty());
    }
}

/// Its tables have a place for each cluster, but the file has holes there.
#[test]
fn clusters_in_holes_of_the_file_are_holes() {
    let Some([qemu_img]) = programs("qcow2", ["qemu-img"]) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("disk.qcow2");
    let status = Command::new(&qemu_img)
        .args(["create", "-q", "-f", "qcow2", "-o", "preallocation=metadata"])
        .arg(&image)
        .arg("1G")
        .status();
    assert!(status.expect("qemu-img starts").success());
    let (base, _) = open(&image, &Options::default());
    assert_eq!((base.size_bytes(), hole_bytes(&base)), (1 << 30, 1 << 30));
}

#[test]
fn an_image_that_cannot_be_read_alone_is_refused() {
    let Some([qemu_img]) = programs("qcow2", ["qemu-img"]) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let raw = folder.path().join("disk.raw");
    fs::write(&raw, vec![1; 1 << 20]).expect("a file");
    let above = folder.path().join("above.qcow2");
    let made = |options: &[&str]| {
        let mut command = Command::new(&qemu_img);
        command.args(["create", "-f", "qcow2"]).args(options).arg(&above).arg("1M").current_dir(folder.path());
        assert!(command.status().expect("qemu-img starts").success());
        match Base::open(&above, &Options::default(), &Cache::new(1 << 20), |_| ()) {
            Ok(base) => panic!("{base:?} was opened"),
            Err(error) => error.to_string(),
        }
    };
    let backing = made(&["-b", "disk.raw", "-F", "raw"]);
    assert!(backing.contains("has a backing file"), "{backing}");
    let data = made(&["-o", "data_file=data.raw"]);
    assert!(data.contains("data in an external file"), "{data}");
    let zstd = made(&["-o", "compression_type=zstd"]);
    assert!(zstd.contains("is compressed with Zstandard: 'qemu-img convert -O raw"), "{zstd}");
    let extended = made(&["-o", "extended_l2=on"]);
    assert!(extended.contains("has extended L2 entries: 'qemu-img convert"), "{extended}");
    let mut bytes = fs::read(&above).expect("an image");
    bytes[72..80].copy_from_slice(&(1u64 << 40).to_be_bytes());
    fs::write(&above, &bytes).expect("an image");
    let unknown = Base::open(&above, &Options::default(), &Cache::new(1 << 20), |_| ()).expect_err("a feature");
    assert!(unknown.to_string().contains("needs unknown features (0x10000000000)"), "{unknown}");
    bytes[72..80].fill(0);
    bytes[35] = 1;
    fs::write(&above, bytes).expect("an image");
    let encrypted = Base::open(&above, &Options::default(), &Cache::new(1 << 20), |_| ()).expect_err("encrypted");
    assert!(encrypted.to_string().contains("the image is encrypted"), "{encrypted}");
}

/// The advised command decrypts an encrypted image.
#[test]
fn an_encrypted_image_is_decrypted_by_the_advised_command() {
    let Some([qemu_img, sh]) = programs("qcow2", ["qemu-img", "sh"]) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    fs::write(at("PASSPHRASE"), "secret").expect("a file");
    fs::write(at("disk.raw"), content(1 << 20)).expect("a file");
    for (name, created) in [("disk.qcow2", "disk.img"), ("a,b.qcow2", "NEW.img")] {
        let mut convert = Command::new(&qemu_img);
        convert.args(["convert", "-O", "qcow2", "--object", "secret,id=s,file=PASSPHRASE"]);
        convert.args(["-o", "encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10", "disk.raw", name]);
        convert.current_dir(folder.path());
        // It measures how fast it is, and gives up if other programs disturb that.
        let mut tries = (0..100).map(|_| convert.output().expect("qemu-img starts"));
        let made = tries.find(|made| !String::from_utf8_lossy(&made.stderr).contains("accurate CPU usage"));
        if !made.is_some_and(|made| made.status.success()) {
            return skip("an_encrypted_image", "this qemu-img does not encrypt");
        }
        let opened = Base::open(&at(name), &Options::default(), &Cache::new(1 << 20), |_| ());
        let said = opened.expect_err("encrypted").to_string();
        let command = said.split('\'').nth(1).unwrap_or_else(|| panic!("{said}"));
        let command = command.replace("FILE", "a,,b.qcow2");
        assert!(command.contains("a,,b") || name == "disk.qcow2");
        let run = Command::new(&sh).args(["-c", &command]).current_dir(folder.path()).status();
        assert!(run.expect("sh starts").success(), "{command}");
        let place = folder.path().join(created);
        assert!(fs::read(place).expect("a disk") == content(1 << 20));
    }
}

/// An image with a mark is refused until it was repaired.
#[test]
fn an_image_that_is_marked_as_damaged_is_repaired_by_the_advised_command() {
    let Some([qemu_img, sh]) = programs("qcow2", ["qemu-img", "sh"]) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let content = content(1 << 20);
    let image = converted(&qemu_img, &sparse_file(&folder, &content), &[]);
    let sound = fs::read(&image).expect("an image");
    for (bits, mark) in [(1, "marked as dirty"), (2, "marked as corrupt"), (3, "marked as corrupt")] {
        let mut bytes = sound.clone();
        bytes[79] |= bits;
        fs::write(&image, bytes).expect("an image");
        let opened = Base::open(&image, &Options::default(), &Cache::new(1 << 20), |_| ());
        let said = opened.expect_err("a mark").to_string();
        assert!(said.contains(mark), "{said}");
        let command = said.split('\'').nth(1).unwrap_or_else(|| panic!("{said}"));
        let run = Command::new(&sh).args(["-c", command]).status();
        assert!(run.expect("sh starts").success(), "{command}");
        check(&open(&image, &Options::default()).0, &content, 10);
    }
}

/// An image with a byte changed is rejected, or opened and read to its end with or without errors:
/// never a panic.
#[test]
fn a_changed_byte_is_an_error_or_read() {
    let Some([qemu_img]) = programs("qcow2", ["qemu-img"]) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let content = content(400 << 10);
    let raw = sparse_file(&folder, &content);
    let damaged = folder.path().join("damaged.qcow2");
    let (mut refused, mut failed) = (0, 0);
    for options in [&["-o", "cluster_size=4k"][..], &["-c", "-o", "cluster_size=4k"]] {
        let sound = fs::read(converted(&qemu_img, &raw, options)).expect("an image");
        let places = (0..112).chain((112..40 << 10).step_by(17)).chain((40 << 10..sound.len()).step_by(997));
        for at in places.filter(|at| *at < sound.len()) {
            let mut bytes = sound.clone();
            bytes[at] ^= 0x81 >> (at % 7);
            fs::write(&damaged, &bytes).expect("an image");
            let base = match Base::open(&damaged, &Options::default(), &Cache::new(1 << 20), |_| ()) {
                Ok(base) => base,
                Err(_) => {
                    refused += 1;
                    continue;
                }
            };
            let (mut buf, mut tried) = (vec![0; 4096], vec![0; 4096]);
            for offset in (0..base.size_bytes().min(1 << 20)).step_by(4096) {
                let len = (base.size_bytes() - offset).min(4096) as usize;
                let filled = base.try_read(offset, &mut tried[..len]).expect("a read");
                match base.read(offset, &mut buf[..len]) {
                    Ok(()) => assert!(tried[..filled] == buf[..filled], "byte {at}, offset {offset}"),
                    Err(_) => failed += 1,
                }
            }
        }
    }
    assert!(refused > 20 && failed > 10, "{refused} refused, {failed} reads failed");
}

#[test]
fn an_image_that_loses_its_end_gives_no_zeros() {
    let Some([qemu_img]) = programs("qcow2", ["qemu-img"]) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let content = content(2 << 20);
    let raw = sparse_file(&folder, &content);
    for options in [&[][..], &["-c"]] {
        let image = converted(&qemu_img, &raw, options);
        let (base, logged) = open(&image, &Options::default());
        File::options().write(true).open(&image).expect("an image").set_len(300_000).expect("a shorter file");
        let mut buf = [0; 4096];
        let mut failures = 0;
        for at in (0..content.len()).step_by(4096) {
            match base.read(at as u64, &mut buf) {
                Ok(()) => assert!(buf == content[at..at + 4096], "bytes at {at}"),
                Err(_) => failures += 1,
            }
        }
        assert!(failures > 100 && logged.lines().len() == 2);
    }
}

/// An image that was cut anywhere before it is opened is refused, unless only the end of the last
/// cluster is missing, which reads as zeros.
#[test]
fn an_image_that_lost_its_end_before_is_refused() {
    let Some([qemu_img]) = programs("qcow2", ["qemu-img"]) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let content = content(1 << 20);
    let raw = sparse_file(&folder, &content);
    for options in [&[][..], &["-c"], &["-o", "cluster_size=4k"], &["-c", "-o", "cluster_size=4k,compat=0.10"]] {
        let whole = fs::read(converted(&qemu_img, &raw, options)).expect("an image");
        let cluster = if options.contains(&"cluster_size=4k") || options.len() == 3 { 4 << 10 } else { 64 << 10 };
        let cut = folder.path().join("cut.qcow2");
        let lengths = (8..whole.len()).step_by((whole.len() / 40) | 1).chain([whole.len() - 1, whole.len() - 512]);
        let mut refused = 0;
        for len in lengths {
            fs::write(&cut, &whole[..len]).expect("a file");
            match Base::open(&cut, &Options::default(), &Cache::new(1 << 20), |_| ()) {
                Ok(base) => {
                    assert!(len + cluster > whole.len(), "{options:?}: {len} of {}", whole.len());
                    let mut buf = vec![0; content.len()];
                    if base.read(0, &mut buf).is_ok() {
                        let differ = buf.iter().zip(&content).filter(|(one, other)| one != other).count();
                        assert!(differ <= cluster, "{options:?}: {differ} bytes differ");
                    }
                }
                Err(error) => {
                    let said = error.to_string();
                    assert!(said.contains("ends at byte") || said.contains("ends before byte"), "{len}: {said}");
                    refused += 1;
                }
            }
        }
        assert!(refused >= 35, "{options:?}: {refused}");
    }
}

/// An image whose header or tables contradict themselves is refused as qemu-img refuses it, and never
/// reads as zeros what the tables do not cover.
#[test]
fn an_image_that_contradicts_itself_is_refused() {
    let Some([qemu_img]) = programs("qcow2", ["qemu-img"]) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    // With clusters of 512 bytes, a table of the second level covers 32 KiB.
    for options in [&["-o", "cluster_size=512,compat=0.10"][..], &["-o", "cluster_size=512"]] {
        let content = content(1 << 20);
        let raw = sparse_file(&folder, &content);
        let sound = fs::read(converted(&qemu_img, &raw, options)).expect("an image");
        let number = |at: usize| u64::from_be_bytes(sound[at..at + 8].try_into().expect("8 bytes"));
        let (l1_at, l1_entries) = (number(40), number(36) >> 32);
        assert_eq!(l1_entries, 32);
        let l2_at = number(l1_at as usize) & 0x00ff_ffff_ffff_fe00;
        let entries = |entries: u64| (36, number(36) & u64::from(u32::MAX) | entries << 32);
        let damaged = folder.path().join("damaged.qcow2");
        let refusal = |at: u64, word: u64| {
            let mut bytes = sound.clone();
            bytes[at as usize..at as usize + 8].copy_from_slice(&word.to_be_bytes());
            fs::write(&damaged, &bytes).expect("a file");
            let mut convert = Command::new(&qemu_img);
            convert.args(["convert", "-O", "raw"]).arg(&damaged).arg(folder.path().join("read"));
            let qemu = convert.output().expect("qemu-img starts").status.success();
            let opened = Base::open(&damaged, &Options::default(), &Cache::new(1 << 20), |_| ());
            (qemu, opened.map(|base| base.size_bytes()).map_err(|error| error.to_string()))
        };
        let too_small = "its L1 table is too small for its size";
        for ((at, word), why) in [
            (entries(0), too_small),
            (entries(1), too_small),
            (entries(31), too_small),
            ((24, (1 << 20) + 1024), too_small),
            ((24, 16 << 30), too_small),
            ((24, i64::MAX as u64), too_small),
            ((24, u64::MAX), too_small),
            ((40, sound.len() as u64 + 512), "L1 table is outside the file"),
            ((40, l1_at + 8), "L1 table begins inside a cluster"),
            ((l1_at, 1 << 40), "an L2 table at byte"),
            ((l2_at, 1 << 40), "a cluster at byte"),
        ] {
            let (qemu, ours) = refusal(at, word);
            let said = ours.expect_err("an image that contradicts itself");
            assert!(said.contains(why), "{at}, {word:#x}: {said}");
            // qemu reads everything beyond the end of the file as zeros.
            let is_beyond = why.contains(" at byte") || why.contains("outside");
            assert_eq!(qemu, is_beyond, "{at}, {word:#x}: {options:?}");
        }
        // Version 2 has no clusters of zeros.
        let (qemu, ours) = refusal(l2_at, 1);
        assert_eq!((qemu, ours.is_ok()), if options[1].contains("0.10") { (false, false) } else { (true, true) });
        assert_eq!(refusal(24, 1 << 20).1, Ok(1 << 20));
        assert_eq!(refusal(24, 32 << 10).1, Ok(32 << 10));
    }
}

#[test]
fn a_table_that_the_file_cannot_have_takes_no_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("hostile.qcow2");
    let mut bytes = vec![0; 65536];
    bytes[..8].copy_from_slice(b"QFI\xfb\0\0\0\x02");
    bytes[20..24].copy_from_slice(&16u32.to_be_bytes());
    bytes[24..32].copy_from_slice(&(1u64 << 50).to_be_bytes());
    bytes[36..40].copy_from_slice(&(4u32 << 20).to_be_bytes());
    bytes[40..48].copy_from_slice(&4096u64.to_be_bytes());
    fs::write(&path, &bytes).expect("a file");
    let opened = Base::open(&path, &Options::default(), &Cache::new(1 << 20), |_| ());
    assert!(matches!(opened, Err(OpenError::Unfit { .. })));
}

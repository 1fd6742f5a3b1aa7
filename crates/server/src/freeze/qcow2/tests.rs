use std::{fs, path::Path, process::Command};

use pagefold_testing::programs;
use proptest::{collection::vec, prelude::*};

use super::*;

const SECTOR: u64 = 512;

/// A disk, the file below it, and its images, in a temporary directory.
struct Disk {
    folder: tempfile::TempDir,
    content: Vec<u8>,
    changes: Vec<Change>,
}

/// A change of a disk: a range in sectors is filled with this byte, or with random bytes.
#[derive(Clone, Copy, Debug)]
struct Fill {
    first: u64,
    count: u64,
    byte: Option<u8>,
}

fn noise(seed: u64) -> impl Iterator<Item = u8> {
    let mut state = seed | 1;
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    })
}

impl Disk {
    fn new(base: Vec<u8>, fills: &[Fill]) -> Self {
        let sectors = base.len() as u64 / SECTOR;
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("base.img"), &base).expect("a file");
        let mut content = base;
        let mut changed = vec![None; sectors as usize];
        for &Fill { first, count, byte } in fills {
            let first = first % sectors;
            let range = first..sectors.min(first + count);
            let bytes = &mut content[(range.start * SECTOR) as usize..(range.end * SECTOR) as usize];
            match byte {
                Some(byte) => bytes.fill(byte),
                None => bytes.iter_mut().zip(noise(first)).for_each(|(target, byte)| *target = byte),
            }
            changed[range.start as usize..range.end as usize].fill(Some(byte == Some(0)));
        }
        let mut changes = Vec::<Change>::new();
        for (at, zeros) in (0..).step_by(SECTOR as usize).zip(changed) {
            let Some(zeros) = zeros else { continue };
            match changes.last_mut() {
                Some(last) if last.at + last.len == at && last.zeros == zeros => last.len += SECTOR,
                _ => changes.push(Change { at, len: SECTOR, zeros }),
            }
        }
        fs::write(folder.path().join("disk.img"), &content).expect("a file");
        Self { folder, content, changes }
    }

    fn at(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().expect("a plain path").to_owned()
    }

    /// Writes an image, checks it with `qemu-img`, and returns it.
    fn image(&self, qemu_img: &Path, level: Option<u32>, threads: usize, above_base: bool) -> Vec<u8> {
        let (path, base) = (self.at("disk.qcow2"), self.at("base.img"));
        let out = File::create(&path).expect("a file");
        let source = Qcow2Source {
            size_bytes: self.content.len() as u64,
            changes: self.changes.clone(),
            reader: &self.content,
            backing: above_base.then_some(Backing { path: &base, format: "raw" }),
        };
        write(source, &out, level, threads, &mut |_, _| {}).expect("an image");
        qemu(qemu_img, &["check", &path]);
        qemu(qemu_img, &["compare", "-f", "raw", "-F", "qcow2", &self.at("disk.img"), &path]);
        fs::read(path).expect("an image")
    }

    /// Returns where `qemu-img` finds zeros or content: the offset and length of each range.
    fn map(&self, qemu_img: &Path, what: &str) -> Vec<(u64, u64)> {
        let said = qemu(qemu_img, &["map", "--output=json", &self.at("disk.qcow2")]);
        let found: Vec<serde_json::Value> = serde_json::from_str(&said).expect("JSON");
        let found = found.iter().filter(|part| part[what] == true && part["depth"] == 0 && part["present"] == true);
        found
            .map(|part| (part["start"].as_u64().expect("a number"), part["length"].as_u64().expect("a number")))
            .collect()
    }
}

fn qemu(qemu_img: &Path, args: &[&str]) -> String {
    let output = Command::new(qemu_img).args(args).output().expect("qemu-img starts");
    let said = String::from_utf8_lossy(&[output.stdout.clone(), output.stderr].concat()).into_owned();
    assert!(output.status.success() && !said.contains("eaked"), "{args:?}: {said}");
    String::from_utf8(output.stdout).expect("text")
}

fn fill() -> impl Strategy<Value = Fill> {
    let byte = prop_oneof![Just(Some(0)), Just(None), any::<u8>().prop_map(Some)];
    (0..6000u64, prop_oneof![1..40u64, 100..1500u64], byte).prop_map(|(first, count, byte)| Fill { first, count, byte })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    /// For a disk of any size with any content, QEMU finds the image clean and equal to the disk,
    /// for any number of threads.
    #[test]
    fn an_image_is_what_the_disk_is(
        sectors in 1..6000u64,
        base in prop_oneof![Just(0u8), Just(9u8)],
        fills in vec(fill(), 0..12),
        level in prop_oneof![Just(None), (1..10u32).prop_map(Some)],
        above_base: bool,
    ) {
        let Some([qemu_img]) = programs("an_image_is_what_the_disk_is", ["qemu-img"]) else { return Ok(()) };
        // Without a backing file, everything unchanged is zeros.
        let above_base = above_base || base != 0;
        let disk = Disk::new(vec![base; (sectors * SECTOR) as usize], &fills);
        let image = disk.image(&qemu_img, level, 1, above_base);
        prop_assert!(disk.image(&qemu_img, level, 3, above_base) == image);
    }
}

#[test]
fn holes_and_zeros_are_distinguished() {
    let Some([qemu_img]) = programs("holes_and_zeros_are_distinguished", ["qemu-img"]) else { return };
    let fills = [
        Fill { first: 128, count: 128, byte: Some(1) },
        Fill { first: 512, count: 300, byte: Some(0) },
        Fill { first: 1200, count: 1, byte: Some(0) },
    ];
    let disk = Disk::new(vec![0; 800 << 10], &fills);
    disk.image(&qemu_img, None, 1, false);
    assert_eq!(disk.map(&qemu_img, "data"), [(64 << 10, 64 << 10)]);
    // A partly changed cluster is all zeros too.
    assert_eq!(disk.map(&qemu_img, "zero"), [(256 << 10, 192 << 10), (576 << 10, 64 << 10)]);
}

#[test]
fn a_compressed_image_is_short() {
    let Some([qemu_img]) = programs("a_compressed_image_is_short", ["qemu-img"]) else { return };
    let disk = Disk::new(vec![0; 32 << 20], &[Fill { first: 0, count: 32 << 11, byte: Some(7) }]);
    // One cluster of the file contains hundreds of them.
    assert!(disk.image(&qemu_img, Some(6), 2, false).len() < 512 << 10);
    let disk = Disk::new(vec![0; 4 << 20], &[Fill { first: 0, count: 4 << 11, byte: None }]);
    let image = disk.image(&qemu_img, Some(6), 2, false);
    // Incompressible clusters are stored uncompressed.
    assert!(image.len() <= (4 << 20) + (6 << 16), "{} bytes", image.len());
}

/// Content of a disk too large for memory: a range filled with one byte, otherwise zeros.
struct Vast {
    size_bytes: u64,
    filled: Range<u64>,
}

impl ReadAt for Vast {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.size_bytes)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        for (at, byte) in (offset..).zip(buf) {
            *byte = if self.filled.contains(&at) { 5 } else { 0 };
        }
        Ok(())
    }
}

#[test]
fn a_disk_may_be_empty_or_vast() {
    let Some([qemu_img]) = programs("a_disk_may_be_empty_or_vast", ["qemu-img"]) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("disk.qcow2");
    let path = path.to_str().expect("a plain path");
    const TIB: u64 = 1 << 40;
    for (size_bytes, filled) in
        [(0, 0..0), (4096, 0..4096), (64 * TIB, 64 * TIB - 4096..64 * TIB), (64 * TIB, 40 * TIB..40 * TIB)]
    {
        let reader = Vast { size_bytes, filled: filled.clone() };
        let mut changes = Vec::new();
        if size_bytes > TIB {
            changes.push(Change { at: TIB, len: 30 * TIB, zeros: true });
        }
        if !filled.is_empty() {
            changes.push(Change { at: filled.start, len: filled.end - filled.start, zeros: false });
        }
        let out = File::create(path).expect("a file");
        let source = Qcow2Source { size_bytes, changes, reader: &reader, backing: None };
        write(source, &out, None, 2, &mut |_, _| {}).expect("an image");
        assert!(out.metadata().expect("a file").len() < 2 << 20);
        qemu(&qemu_img, &["check", path]);
        let shown: serde_json::Value =
            serde_json::from_str(&qemu(&qemu_img, &["info", "--output=json", path])).expect("JSON");
        assert_eq!(shown["virtual-size"], size_bytes);
    }
    let out = File::create(path).expect("a file");
    let size_bytes = !511;
    let source =
        Qcow2Source { size_bytes, changes: Vec::new(), reader: &Vast { size_bytes, filled: 0..0 }, backing: None };
    let error = write(source, &out, None, 1, &mut |_, _| {}).expect_err("no such image");
    let error = crate::error::message(&error);
    assert!(error.contains("at most 2 PiB"), "{error}");
}

#[test]
fn an_unreadable_disk_yields_no_image() {
    struct Broken;
    impl ReadAt for Broken {
        fn len_bytes(&self) -> io::Result<u64> {
            Ok(1 << 30)
        }
        fn read_exact_at(&self, _: &mut [u8], offset: u64) -> io::Result<()> {
            if offset > 4 << 20 { Err(io::Error::other("no such byte")) } else { Ok(()) }
        }
    }
    for threads in [1, 3] {
        let out = tempfile::tempfile().expect("a file");
        let changes = vec![Change { at: 0, len: 1 << 30, zeros: false }];
        let source = Qcow2Source { size_bytes: 1 << 30, changes, reader: &Broken, backing: None };
        let error = write(source, &out, Some(1), threads, &mut |_, _| {}).expect_err("no image");
        let error = crate::error::message(&error);
        assert!(error.contains("reading the disk: no such byte"), "{error}");
        let mut front = [0; 4];
        assert!(ReadAt::read_exact_at(&out, &mut front, 0).is_err() || front == [0; 4]);
    }
}

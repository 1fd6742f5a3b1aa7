use std::cell::{Cell, RefCell};

use proptest::{collection::vec, prelude::*};

use super::*;

/// Devices store this much at a time or nothing of it.
const BLOCK: usize = 4096;

/// A device with a cache. It fails at one operation.
struct Fake {
    durable: RefCell<Vec<u8>>,
    cached: RefCell<Vec<(usize, Vec<u8>)>>,
    /// Operations before the one that fails.
    left: Cell<u32>,
}

impl Fake {
    fn new(old: &[u8], left: u32) -> Self {
        Self { durable: RefCell::new(old.to_vec()), cached: RefCell::default(), left: Cell::new(left) }
    }

    /// Returns whether this operation succeeds.
    fn goes(&self) -> io::Result<()> {
        let left = self.left.get().checked_sub(1).ok_or_else(|| io::Error::from(ErrorKind::StorageFull))?;
        self.left.set(left);
        Ok(())
    }

    /// Returns the content of the device after a loss of power that `kept` some cached blocks, or
    /// after none.
    fn content(&self, kept: Option<&[bool]>) -> Vec<u8> {
        let mut content = self.durable.borrow().clone();
        let mut number = 0;
        for (at, bytes) in &*self.cached.borrow() {
            for (block, part) in bytes.chunks(BLOCK).enumerate() {
                number += 1;
                if kept.is_none_or(|kept| kept[number % kept.len()]) {
                    content[at + block * BLOCK..][..part.len()].copy_from_slice(part);
                }
            }
        }
        content
    }
}

impl Target for Fake {
    fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let done = self.goes();
        // A write that fails may have stored some blocks.
        let bytes = if done.is_ok() { bytes } else { &bytes[..bytes.len() / 2 / BLOCK * BLOCK] };
        self.cached.borrow_mut().push((at as usize, bytes.to_vec()));
        done
    }

    fn write_zeros(&self, at: u64, len_bytes: u64) -> io::Result<()> {
        self.write(&vec![0; len_bytes as usize], at)
    }

    fn flush(&self) -> io::Result<()> {
        self.goes()?;
        let content = self.content(None);
        self.durable.replace(content);
        self.cached.take();
        Ok(())
    }
}

/// Content that begins like a qcow2 and an EROFS image.
fn image(len_bytes: usize, fill: u8) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len_bytes).map(|at| (at / BLOCK) as u8 ^ fill).collect();
    FIRST.iter().for_each(|(at, magic)| put_magic(&mut bytes, *at, magic));
    bytes
}

fn put_magic(bytes: &mut [u8], at: usize, magic: &[u8]) {
    if let Some(part) = bytes.get_mut(at..at + magic.len()) {
        part.copy_from_slice(magic);
    }
}

fn has(content: &[u8], at: usize, magic: &[u8]) -> bool {
    content.get(at..at + magic.len()) == Some(magic)
}

/// Magic numbers in the first block, and one behind it.
const FIRST: [(usize, &[u8]); 2] = [(0, b"QFI\xfb"), (1024, b"\xe2\xe1\xf5\xe0")];
const BTRFS: (usize, &[u8]) = (0x1_0040, b"_BHRfS_M");

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Wherever the copy stops, the device has the whole output, its old content, or no magic
    /// number.
    #[test]
    fn a_device_never_holds_a_part_of_an_image(
        blocks in 1usize..80,
        room in 0usize..20,
        odd in 0usize..BLOCK,
        hole in 0usize..40,
        kept in vec(any::<bool>(), 1..50),
    ) {
        let mut new = image(blocks * BLOCK - odd, 0x55);
        let mut old = image((blocks + room) * BLOCK, 0xaa);
        put_magic(&mut old, BTRFS.0, BTRFS.1);
        let output = tempfile::tempfile().unwrap();
        output.set_len(new.len() as u64).unwrap();
        let hole = 1 + hole..(2 * hole).max(2 + hole);
        for (number, block) in new.chunks_mut(BLOCK).enumerate() {
            if hole.contains(&number) {
                block.fill(0);
            } else {
                output.write_all_at(block, (number * BLOCK) as u64).unwrap();
            }
        }
        for fails_at in 0.. {
            let device = Fake::new(&old, fails_at);
            let done = put(&output, new.len() as u64, old.len() as u64, &device);
            let ended = done.is_ok();
            for kept in [None, Some(&kept[..]), Some(&[false])] {
                let content = device.content(kept);
                let is_new = content[..new.len()] == new;
                let first = FIRST.iter().any(|(at, magic)| has(&content, *at, magic));
                prop_assert!(is_new || content == old || !first, "after {fails_at} operations");
                // btrfs ignores the bytes before its superblock.
                let front = (FRONT_BYTES as usize).min(old.len());
                let untouched = content[front..] == old[front..];
                prop_assert!(is_new || untouched || !has(&content, BTRFS.0, BTRFS.1), "after {fails_at} operations");
                prop_assert!(!ended || is_new);
            }
            if ended {
                break;
            }
        }
    }
}

#[test]
fn an_output_that_does_not_fit_changes_nothing() {
    let device = tempfile::tempfile().unwrap();
    device.write_all_at(&image(20_000, 1), 0).unwrap();
    let device = Device { file: device, path: "/dev/disk".into(), size_bytes: 20_000 };
    let output = tempfile::tempfile().unwrap();
    for (len_bytes, what) in
        [(20_001, "/dev/disk has 20000 bytes, and the output needs 20001 bytes"), (1 << 20, "needs 1 MiB")]
    {
        output.set_len(len_bytes).unwrap();
        let message = device.put(&output).expect_err("no room").to_string();
        assert!(message.contains(what) && message.contains("nothing was written"), "{message}");
    }
    let mut found = vec![0; 20_000];
    device.file.read_exact_at(&mut found, 0).unwrap();
    assert!(found == image(20_000, 1));
    output.set_len(20_000).unwrap();
    output.write_all_at(b"new", 0).unwrap();
    device.put(&output).unwrap();
    device.file.read_exact_at(&mut found, 0).unwrap();
    assert!(found.starts_with(b"new\0") && found[3..].iter().all(|byte| *byte == 0));
}

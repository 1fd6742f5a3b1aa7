//! A guest's driver writes arbitrary rings, descriptors and requests. The device accepts only what is
//! within its bounds, the queue stops whatever was written, and what it wrote into the used ring are
//! answers to requests that it took.
//!
//! ```text
//! mode | log2 of the queue's size | three places of rings, 2 bytes each | length of the first part, 2
//! first part: the memory's content when the queue starts | second part: the same later
//! ```
#![no_main]

use std::sync::{
    Arc, LazyLock, Mutex,
    atomic::{AtomicU32, Ordering::Relaxed},
};

use libfuzzer_sys::fuzz_target;
use pagefold_disk::{BlockDevice, Error, Extent, Room, Waits, Zeroes};
use pagefold_executor::{Client, ClientLimits, Executor, Export, Memory};
use pagefold_vhost_user::drive::{Driven, Rings};

const DISK_BYTES: usize = 256 << 10;
/// Regions of the guest's memory: the first two touch each other, the last is apart.
const REGIONS: [(u64, u64); 3] = [(0, 0x2000), (0x2000, 0x2000), (0x8000, 0x1000)];
/// Batches of requests of one input. A driver can place its rings so that answers are new requests.
const MOST_BATCHES: usize = 64;
/// Batches in which requests that wait for room are tried again.
const MOST_RETRIES: usize = 16;

/// A disk that checks that each request is within it.
struct Disk {
    content: Mutex<Vec<u8>>,
    read_only: bool,
    /// Whether requests have to wait for storage.
    blocks: bool,
    /// Changes that fail before there is room.
    failing: AtomicU32,
    waits: Option<Arc<Waits>>,
}

impl Disk {
    fn with(&self, offset: u64, len_bytes: u64, access: impl FnOnce(&mut [u8])) {
        let end = offset.checked_add(len_bytes).expect("a range of 64 bits");
        assert!(end <= DISK_BYTES as u64, "{len_bytes} bytes at {offset}");
        access(&mut self.content.lock().expect("no panic")[offset as usize..end as usize]);
    }

    fn change(&self) -> Result<(), Error> {
        assert!(!self.read_only, "a change of a disk that is read-only");
        let more = |failing: u32| failing.checked_sub(1);
        if self.failing.fetch_update(Relaxed, Relaxed, more).is_ok() { Err(Error::NoSpace) } else { Ok(()) }
    }
}

impl BlockDevice for Disk {
    fn size_bytes(&self) -> u64 {
        DISK_BYTES as u64
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn may_block(&self) -> bool {
        self.blocks
    }

    fn waits(&self) -> Option<&Arc<Waits>> {
        self.waits.as_ref()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        self.with(offset, buf.len() as u64, |content| buf.copy_from_slice(content));
        Ok(())
    }

    fn write(&self, offset: u64, buf: &[u8]) -> Result<(), Error> {
        self.change()?;
        self.with(offset, buf.len() as u64, |content| content.copy_from_slice(buf));
        Ok(())
    }

    fn flush(&self) -> Result<(), Error> {
        Ok(())
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<(), Error> {
        self.change()?;
        self.with(offset, len_bytes, |content| content.fill(0));
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64, _: Zeroes) -> Result<(), Error> {
        self.discard(offset, len_bytes)
    }

    fn extents(&self, _: u64, _: u64, _: &mut dyn FnMut(Extent) -> bool) -> Result<(), Error> {
        unreachable!("virtio does not ask for extents")
    }
}

/// Its client may use no thread, so all requests run here, in the same order each time.
static EXECUTOR: LazyLock<Arc<Executor>> = LazyLock::new(|| Arc::new(Executor::new(1, Memory::new(64 << 20, None))));

/// Writes a part of the input where the guest's memory begins, and on in the next region.
fn fill(driven: &Driven, mut bytes: &[u8]) {
    for (start, len) in REGIONS {
        let (now, later) = bytes.split_at(bytes.len().min(len as usize));
        assert!(driven.write(start, now));
        bytes = later;
    }
}

fn run(driven: &mut Driven) {
    let mut batches = 0..MOST_BATCHES;
    while batches.next().is_some() && driven.run(false) {}
    let mut retries = 0..MOST_RETRIES;
    while retries.next().is_some() && driven.run(true) {}
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&[mode, size, d0, d1, a0, a1, u0, u1, l0, l1], memory)) = bytes.split_first_chunk::<10>() else { return };
    let place = |low, high| u64::from(u16::from_le_bytes([low, high]));
    let failing = if mode & 4 == 0 { 0 } else { u32::from(mode >> 4) };
    let disk = Disk {
        content: Mutex::new((0..DISK_BYTES).map(|at| (at / 512) as u8).collect()),
        read_only: mode & 1 != 0,
        blocks: mode & 2 != 0,
        failing: AtomicU32::new(failing),
        waits: (mode & 4 != 0).then(|| Arc::new(Waits::new(&Arc::new(Room::default())))),
    };
    let export = Arc::new(Export::new("a disk", Arc::new(disk)));
    let limits = ClientLimits { threads: 0, memory_bytes: 0 };
    let client = Client::open(&EXECUTOR, &export, limits).expect("an export without a quota");
    let mut driven = Driven::new(client, export, &REGIONS).expect("memory");
    let (first, second) = memory.split_at(memory.len().min(place(l0, l1) as usize));
    fill(&driven, first);
    let rings = Rings {
        size: 1 << (size % 16),
        descriptors: place(d0, d1) & !15,
        available: place(a0, a1) & !1,
        used: place(u0, u1) & !3,
        event_idx: mode & 8 != 0,
    };
    if driven.start(rings) {
        run(&mut driven);
        fill(&driven, second);
        run(&mut driven);
    }
    driven.stop();
});

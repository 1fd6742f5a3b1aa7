//! A sequence of operations on disks and forks of one small pool, some over a base whose reads
//! fail now and then, against plain models. Each input has its own pool.
#![no_main]

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, LazyLock},
};

use libfuzzer_sys::fuzz_target;
use pagefold_codec::{PAGE_SIZE, Page, by_name};
use pagefold_disk::{BlockDevice, Change, Error, Extent, NewDiskError, Pool, PoolConfig, RamDisk, StoreError, Zeroes};
use pagefold_faulty::Faulty;

const PAGE_BYTES: u64 = PAGE_SIZE as u64;

/// The most operations of an input, and the most disks at a time.
const OPS: usize = 96;
const DISKS: usize = 8;

/// Pages at the borders of leaves (64) and nodes (4096), and of the base.
const PLACES: [u64; 18] = [0, 1, 2, 3, 20, 62, 63, 64, 65, 127, 128, 255, 298, 299, 300, 4095, 4096, 4200];
const SECTORS_MAX: u64 = 4203 * 8 - 3;

/// Memory limits; the first are too small for a pool or its pages.
const LIMITS: [u64; 8] = [100 << 10, 256 << 10, 320 << 10, 400 << 10, 512 << 10, 640 << 10, 1 << 20, u64::MAX];

/// The bytes below some disks: some pages are zeros, some equal, some different. The last one is
/// cut short.
static BASE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let page = |number: usize| -> Vec<u8> {
        match number % 7 {
            0 => vec![0; PAGE_SIZE],
            1 => vec![number as u8; PAGE_SIZE],
            _ => (0..PAGE_SIZE).map(|at| (at * at / (number + 3) + number) as u8).collect(),
        }
    };
    let mut bytes: Vec<u8> = (0..300).flat_map(page).collect();
    bytes.truncate(bytes.len() - 1536);
    bytes
});

/// Returns whether at most a page of bytes are zeros. One comparison is one instrumented branch.
fn is_zero(bytes: &[u8]) -> bool {
    bytes == &[0; PAGE_SIZE][..bytes.len()]
}

/// What a disk should hold: the pages that were changed, and below them as much of the base as was
/// never cut off.
#[derive(Clone)]
struct Model {
    size_bytes: u64,
    below_bytes: u64,
    pages: BTreeMap<u64, Arc<Page>>,
}

impl Model {
    fn page(&self, number: u64) -> Page {
        if let Some(page) = self.pages.get(&number) {
            return **page;
        }
        let mut page = [0; PAGE_SIZE];
        let start = number * PAGE_BYTES;
        if start < self.below_bytes {
            let held = (self.below_bytes - start).min(PAGE_BYTES) as usize;
            page[..held].copy_from_slice(&BASE[start as usize..][..held]);
        }
        page
    }

    /// Fills `buf` from `offset`.
    fn read(&self, offset: u64, buf: &mut [u8]) {
        for part in parts(offset, buf.len() as u64) {
            let page = self.page(part.page);
            buf[part.bytes].copy_from_slice(&page[part.at..][..part.len]);
        }
    }

    fn resize(&mut self, size_bytes: u64) {
        // The pages at both ends are compared later.
        for end in [self.size_bytes, size_bytes] {
            self.pages.insert(end / PAGE_BYTES, Arc::new(self.page(end / PAGE_BYTES)));
        }
        self.size_bytes = size_bytes;
        self.below_bytes = self.below_bytes.min(size_bytes);
        self.pages.retain(|&number, _| number * PAGE_BYTES < size_bytes);
        if let Some(last) = self.pages.get_mut(&(size_bytes / PAGE_BYTES)) {
            Arc::make_mut(last)[(size_bytes % PAGE_BYTES) as usize..].fill(0);
        }
    }
}

/// The part of a request in one page.
struct PagePart {
    page: u64,
    at: usize,
    len: usize,
    bytes: Range<usize>,
}

fn parts(offset: u64, len_bytes: u64) -> impl Iterator<Item = PagePart> {
    let end = offset + len_bytes;
    (offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES)).map(move |page| {
        let from = offset.max(page * PAGE_BYTES);
        let to = end.min((page + 1) * PAGE_BYTES);
        let bytes = (from - offset) as usize..(to - offset) as usize;
        PagePart { page, at: (from % PAGE_BYTES) as usize, len: bytes.len(), bytes }
    })
}

struct Subject {
    disk: Arc<RamDisk>,
    model: Model,
    is_over: bool,
    is_snapshot: bool,
    /// Whether the disk may have had a limit of its own.
    is_limited: bool,
}

/// The input's bytes, followed by zeros.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn index(&mut self, count: usize) -> usize {
        usize::from(self.byte()) % count
    }

    /// Returns a range within a disk: at or near the border of a page, of `pages_max` pages at
    /// most.
    fn range(&mut self, size_bytes: u64, pages_max: u64) -> (u64, u64) {
        let shift = |byte: u8| u64::from(byte % 8) * u64::from(byte / 8) * 17;
        let start = PLACES[self.index(PLACES.len())] * PAGE_BYTES + shift(self.byte());
        let len = u64::from(self.byte()) % (pages_max + 1) * PAGE_BYTES + shift(self.byte());
        let start = start.min(size_bytes - 1);
        (start, len.clamp(1, size_bytes - start))
    }

    /// Returns data of a kind: zeros, one byte, records, or noise.
    fn data(&mut self, len_bytes: u64) -> Vec<u8> {
        let (kind, seed) = (self.byte(), u64::from(self.byte()));
        let mut state = seed * 0x9e37_79b9 + 1;
        let noise = |_: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        match kind % 4 {
            0 => vec![0; len_bytes as usize],
            1 => vec![seed as u8; len_bytes as usize],
            2 => repeated(len_bytes, &std::array::from_fn(|at| (at as u64 / 40 * (at as u64 % 40 + seed)) as u8)),
            _ => repeated(len_bytes, &std::array::from_fn(noise)),
        }
    }
}

/// Returns `len_bytes` of a page, repeated: made once, since each instrumented byte takes long.
fn repeated(len_bytes: u64, page: &Page) -> Vec<u8> {
    let mut bytes = page.repeat(len_bytes.div_ceil(PAGE_BYTES) as usize);
    bytes.truncate(len_bytes as usize);
    bytes
}

struct World {
    pool: Pool,
    base: Arc<Faulty>,
    subjects: Vec<Subject>,
    /// Whether the pool has ever had a limit, and the highest of all its limits.
    is_limited: bool,
    highest_limit: u64,
}

impl World {
    /// Creates a pool. The first disk is over the base, so that there always is one.
    fn new(input: &mut Input) -> Option<Self> {
        let choice = input.byte();
        let limit = LIMITS[input.index(LIMITS.len())];
        let mut config = PoolConfig::default().train(false).dedupe(choice & 2 != 0).memory_limit(limit);
        if choice & 1 != 0 {
            config = config.codec(by_name("lz4").expect("a codec"));
        }
        let pool = Pool::new(config).ok()?;
        let base = Arc::new(Faulty::new(BASE.as_slice()));
        let is_limited = limit != u64::MAX;
        let mut world = Self { pool, base, subjects: Vec::new(), is_limited, highest_limit: limit };
        world.add_over();
        (!world.subjects.is_empty()).then_some(world)
    }

    fn add(&mut self, made: Result<RamDisk, NewDiskError>, is_over: bool) {
        match made {
            Ok(disk) => {
                let size_bytes = disk.size_bytes();
                let model =
                    Model { size_bytes, below_bytes: if is_over { size_bytes } else { 0 }, pages: BTreeMap::new() };
                let disk = Arc::new(disk);
                self.subjects.push(Subject { disk, model, is_over, is_snapshot: false, is_limited: false });
            }
            Err(NewDiskError::Store(StoreError::Full)) => assert!(self.is_limited),
            Err(error) => panic!("{error}"),
        }
    }

    fn add_over(&mut self) {
        let made = RamDisk::over(&self.pool, Arc::clone(&self.base) as Arc<dyn BlockDevice>);
        self.add(made, true);
    }

    /// Returns whether a request succeeded. It may fail only for a limit, or if the base did.
    fn succeeded(&self, number: usize, failures: u64, result: Result<(), Error>) -> bool {
        match result {
            Ok(()) => return true,
            Err(Error::NoSpace) => assert!(self.is_limited || self.subjects[number].is_limited),
            Err(Error::Io(error)) => assert!(self.base.failures() > failures, "{error}"),
            Err(error) => panic!("{error}"),
        }
        false
    }

    /// Changes a range of a disk as `request` does. `data` is what the range then holds.
    fn change(
        &mut self,
        number: usize,
        (offset, len_bytes): (u64, u64),
        data: &[u8],
        request: impl FnOnce(&RamDisk) -> Result<(), Error>,
    ) {
        let failures = self.base.failures();
        let result = request(&self.subjects[number].disk);
        let is_done = self.succeeded(number, failures, result);
        if !is_done {
            self.base.fail_after(0);
        }
        let Subject { disk, model, .. } = &mut self.subjects[number];
        for part in parts(offset, len_bytes) {
            let old = model.page(part.page);
            let mut new = old;
            new[part.at..][..part.len].copy_from_slice(&data[part.bytes]);
            if !is_done {
                let start = part.page * PAGE_BYTES;
                let held = (model.size_bytes - start).min(PAGE_BYTES) as usize;
                let mut found = [0; PAGE_SIZE];
                disk.read(start, &mut found[..held]).expect("a page can be read after a failed change");
                assert!(found == old || found == new, "page {} is neither the old nor the new one", part.page);
                new = found;
            }
            if new != old {
                model.pages.insert(part.page, Arc::new(new));
            }
        }
    }

    fn read(&self, number: usize, offset: u64, len_bytes: u64) {
        let Subject { disk, model, .. } = &self.subjects[number];
        let failures = self.base.failures();
        let (mut found, mut expected) = (vec![7; len_bytes as usize], vec![9; len_bytes as usize]);
        let result = disk.read(offset, &mut found);
        assert!(!matches!(result, Err(Error::NoSpace)), "a read takes no room");
        if self.succeeded(number, failures, result) {
            model.read(offset, &mut expected);
            assert!(found == expected, "disk {number}: {len_bytes} bytes at {offset} are wrong");
        }
    }

    fn resize(&mut self, number: usize, size_bytes: u64) {
        let failures = self.base.failures();
        let result = self.subjects[number].disk.resize(size_bytes);
        if self.succeeded(number, failures, result) {
            self.subjects[number].model.resize(size_bytes);
            return;
        }
        // Some of what was to be removed may be lost.
        self.base.fail_after(0);
        let Subject { disk, model, .. } = &mut self.subjects[number];
        let numbers: Vec<u64> = model.pages.keys().copied().chain(0..BASE.len() as u64 / PAGE_BYTES + 1).collect();
        for page in numbers {
            let start = page * PAGE_BYTES;
            if start + PAGE_BYTES <= size_bytes || start >= model.size_bytes {
                continue;
            }
            let held = (model.size_bytes - start).min(PAGE_BYTES) as usize;
            let (old, mut found) = (model.page(page), [0; PAGE_SIZE]);
            disk.read(start, &mut found[..held]).expect("a page can be read after a failed change");
            let kept = size_bytes.saturating_sub(start) as usize;
            assert!(found[..kept] == old[..kept], "page {page} should be kept");
            assert!(found[kept..].iter().zip(&old[kept..]).all(|(&found, &old)| found == old || found == 0));
            model.pages.insert(page, Arc::new(found));
        }
    }

    /// Applies `request` to a disk, and `change` to its model if it succeeds; if not, nothing
    /// changes.
    fn all_or_nothing(
        &mut self,
        number: usize,
        request: impl FnOnce(&RamDisk) -> Result<(), Error>,
        change: impl FnOnce(&mut Model),
    ) {
        let failures = self.base.failures();
        let result = request(&self.subjects[number].disk);
        if self.succeeded(number, failures, result) {
            change(&mut self.subjects[number].model);
        }
    }

    fn fork(&mut self, number: usize, is_snapshot: bool) {
        if self.subjects.len() == DISKS {
            return;
        }
        let Subject { disk, model, is_over, .. } = &self.subjects[number];
        match if is_snapshot { disk.snapshot() } else { disk.fork() } {
            Ok(disk) => {
                let (disk, model, is_over) = (Arc::new(disk), model.clone(), *is_over);
                self.subjects.push(Subject { disk, model, is_over, is_snapshot, is_limited: false });
            }
            Err(Error::NoSpace) => assert!(self.is_limited || self.subjects[number].is_limited),
            Err(error) => panic!("{error}"),
        }
    }

    /// Compares everything that a disk reports with its model.
    fn verify(&self, number: usize) {
        let Subject { disk, model, .. } = &self.subjects[number];
        assert_eq!(disk.size_bytes(), model.size_bytes);
        let places = model.pages.keys().copied().chain(PLACES).filter(|page| page * PAGE_BYTES < model.size_bytes);
        for page in places {
            let start = page * PAGE_BYTES;
            self.read(number, start, (model.size_bytes - start).min(PAGE_BYTES));
        }
        let (mut at, mut zeros) = (0, Vec::new());
        let each = &mut |extent: Extent| {
            assert!(extent.len_bytes > 0 && (extent.zero || !extent.hole));
            if extent.zero {
                zeros.push(at..at + extent.len_bytes);
            }
            at += extent.len_bytes;
            true
        };
        disk.extents(0, model.size_bytes, each).expect("a range of the disk");
        assert_eq!(at, model.size_bytes, "the extents cover the disk");
        for range in zeros {
            let pages = range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES);
            let in_base = pages.start..pages.end.min(model.below_bytes.div_ceil(PAGE_BYTES));
            for page in model.pages.range(pages).map(|(&page, _)| page).chain(in_base) {
                let start = page * PAGE_BYTES;
                let from = range.start.saturating_sub(start).min(PAGE_BYTES) as usize;
                let to = (range.end - start).min(PAGE_BYTES) as usize;
                assert!(is_zero(&model.page(page)[from..to]), "page {page} is not zeros");
            }
        }
        let mut covered = 0;
        let each = &mut |change: Change| {
            covered += change.len_bytes;
            true
        };
        disk.changes(0, model.size_bytes, each).expect("a range of the disk");
        assert_eq!(covered, model.size_bytes, "the changes cover the disk");
    }

    fn step(&mut self, input: &mut Input) {
        let op = input.byte();
        let number = input.index(self.subjects.len());
        let Subject { model, is_snapshot, is_over, .. } = &self.subjects[number];
        let (size_bytes, is_over) = (model.size_bytes, *is_over);
        if *is_snapshot && matches!(op % 20, 4..=13) {
            return;
        }
        match op % 20 {
            0 if self.subjects.len() < DISKS => {
                let sectors = 1 + (u64::from(input.byte()) << 8 | u64::from(input.byte())) % SECTORS_MAX;
                self.add(RamDisk::new(&self.pool, sectors * 512), false);
            }
            1 if self.subjects.len() < DISKS => self.add_over(),
            0..=2 => self.fork(number, false),
            3 => self.fork(number, true),
            4..=6 => {
                let range = input.range(size_bytes, 12);
                let data = input.data(range.1);
                self.change(number, range, &data, |disk| disk.write(range.0, &data));
            }
            // What the base holds there, or another disk.
            7 => {
                let range = input.range(size_bytes, 12);
                let mut data = vec![0; range.1 as usize];
                let other = &self.subjects[input.index(self.subjects.len())].model;
                other.read(range.0, &mut data);
                self.change(number, range, &data, |disk| disk.write(range.0, &data));
            }
            8 => {
                let range = input.range(size_bytes, 200);
                self.change(number, range, &vec![0; range.1 as usize], |disk| disk.discard(range.0, range.1));
            }
            9 => {
                let range = input.range(size_bytes, 70);
                let zeroes = if input.byte() % 2 == 0 { Zeroes::Allocated } else { Zeroes::MayUnmap };
                let request = |disk: &RamDisk| disk.write_zeroes(range.0, range.1, zeroes);
                self.change(number, range, &vec![0; range.1 as usize], request);
            }
            10 => {
                let sectors = PLACES[input.index(PLACES.len())] * 8 + u64::from(input.byte() % 16);
                self.resize(number, sectors.clamp(1, SECTORS_MAX) * 512);
            }
            11 => self.all_or_nothing(number, RamDisk::reset, |model| {
                model.below_bytes = if is_over { (BASE.len() as u64).min(size_bytes) } else { 0 };
                model.pages.clear();
            }),
            12 => {
                let Subject { disk, model, is_over: other_over, .. } = &self.subjects[input.index(self.subjects.len())];
                let (other, model) = (Arc::clone(disk), model.clone());
                if *other_over == is_over {
                    self.all_or_nothing(number, |disk| disk.become_as(&other), |own| *own = model);
                }
            }
            13 => {
                let limit = if input.byte() % 4 == 0 { u64::MAX } else { u64::from(input.byte()) << 10 };
                self.subjects[number].is_limited = true;
                self.subjects[number].disk.set_limit(limit);
            }
            14 => {
                let limit = LIMITS[input.index(LIMITS.len())];
                if self.pool.set_memory_limit(limit).is_ok() {
                    self.is_limited |= limit != u64::MAX;
                    self.highest_limit = self.highest_limit.max(limit);
                }
            }
            15 if self.subjects.len() > 1 => drop(self.subjects.swap_remove(number)),
            16 => self.pool.compact(),
            17 => self.base.fail_after(u64::from(input.byte() % 8)),
            18 => self.pool.check().expect("a sound pool"),
            _ => {
                let (offset, len_bytes) = input.range(size_bytes, 20);
                self.read(number, offset, len_bytes);
                self.subjects[number].disk.flush().expect("nothing to do");
            }
        }
    }

    fn end(mut self) {
        self.base.fail_after(0);
        (0..self.subjects.len()).for_each(|number| self.verify(number));
        self.pool.check().expect("a sound pool");
        let stats = self.pool.stats();
        assert!(stats.mem_used_max <= self.highest_limit, "{stats:?}");
        self.subjects.clear();
        self.pool.check().expect("a sound pool");
        let stats = self.pool.stats();
        assert_eq!((stats.orig_data_size, stats.compr_data_size), (0, 0), "{stats:?}");
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input(bytes);
    let Some(mut world) = World::new(&mut input) else { return };
    for _ in 0..OPS {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
    }
    world.end();
});

//! The whole store: writers, readers and discards on many slots while objects are moved
//! continuously.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use pagefold_codec::{Codec, CodecId, Corrupt, Lz4, Stream, StreamError};
use pagefold_store::{PAGE_SIZE, Page, PoolConfig};

use crate::{one::One, pages::mixed};

const SLOTS: u64 = 1200;
const WRITERS: u64 = 2;
const READERS: u64 = 2;

/// The versions of a slot that its writer has begun and finished to write. Each slot has one
/// writer, so a read that begins when `finished` is `f` and ends when `begun` is `b` must find one
/// of the versions `f..=b`.
#[derive(Default)]
struct Versions {
    begun: AtomicU64,
    finished: AtomicU64,
}

/// A codec whose decoder sleeps during a decode and then reads the object again.
#[derive(Debug)]
struct Sleepy;

struct SleepyStream {
    stream: Box<dyn Stream>,
    decoded: u64,
}

impl Codec for Sleepy {
    fn id(&self) -> CodecId {
        Lz4.id()
    }

    fn name(&self) -> String {
        "sleepy".to_owned()
    }

    fn stream(&self) -> Result<Box<dyn Stream>, StreamError> {
        Ok(Box::new(SleepyStream { stream: Lz4.stream()?, decoded: 0 }))
    }
}

impl Stream for SleepyStream {
    fn compress(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        self.stream.compress(page, out)
    }

    fn decompress(&mut self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        self.stream.decompress(object, page)?;
        self.decoded += 1;
        if !self.decoded.is_multiple_of(4) {
            return Ok(());
        }
        // Writers replace the object in this time.
        thread::sleep(Duration::from_micros(200));
        let before = *page;
        self.stream.decompress(object, page)?;
        if *page == before { Ok(()) } else { Err(Corrupt::new("it changed while it was read")) }
    }

    fn memory_bytes(&self) -> usize {
        self.stream.memory_bytes()
    }
}

/// Every fifth version is an empty slot, including the first.
fn is_empty(version: u64) -> bool {
    version.is_multiple_of(5)
}

/// Returns pages that compress to many sizes and name their slot and version throughout.
fn page_of(slot: u64, version: u64) -> Box<Page> {
    let mask = [0x01, 0x0f, 0x3f, 0xff][((slot + version) % 4) as usize];
    let mut page = mixed(slot << 32 | version, mask);
    let step = 64 << (version % 3);
    for chunk in page.chunks_exact_mut(step) {
        chunk[..8].copy_from_slice(&slot.to_le_bytes());
        chunk[8..16].copy_from_slice(&version.to_le_bytes());
    }
    page
}

fn check(page: &Page, slot: u64, finished: u64, begun: u64) {
    let (words, _) = page.as_chunks::<8>();
    let (found_slot, version) = (u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1]));
    if found_slot == 0 && version == 0 {
        assert!((finished..=begun).any(is_empty), "slot {slot} lost its page: versions {finished} to {begun}");
        assert!(*page == [0; PAGE_SIZE], "slot {slot} has a torn page");
    } else {
        assert!((finished..=begun).contains(&version), "slot {slot}: {version} is not of {finished} to {begun}");
        assert!(*page == *page_of(slot, version), "slot {slot} has a torn page");
    }
}

fn versions_are_seen_in_order(store: &One, rounds: u64) {
    let versions: Vec<Versions> = (0..SLOTS).map(|_| Versions::default()).collect();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let (versions, done) = (&versions, &done);
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                scope.spawn(move || {
                    let mut random = writer + 1;
                    for _ in 0..rounds {
                        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                        let slot = (random >> 33) % (SLOTS / WRITERS) * WRITERS + writer;
                        let versions = &versions[slot as usize];
                        let version = versions.begun.load(SeqCst) + 1;
                        versions.begun.store(version, SeqCst);
                        let page = page_of(slot, version);
                        if is_empty(version) {
                            store.discard(slot).expect("a slot");
                        } else if version % 5 == 3 {
                            store.update(slot, |old| *old = *page).expect("no limit");
                        } else {
                            store.write(slot, &page).expect("no limit");
                        }
                        versions.finished.store(version, SeqCst);
                    }
                })
            })
            .collect();
        for reader in 0..READERS {
            scope.spawn(move || {
                let mut page = [0; PAGE_SIZE];
                let mut slot = reader * 7;
                while !done.load(SeqCst) {
                    slot = (slot + 13) % SLOTS;
                    let finished = versions[slot as usize].finished.load(SeqCst);
                    store.read(slot, &mut page).expect("a readable page");
                    let begun = versions[slot as usize].begun.load(SeqCst);
                    check(&page, slot, finished, begun);
                }
            });
        }
        scope.spawn(move || {
            while !done.load(SeqCst) {
                store.compact();
                thread::yield_now();
            }
        });
        let panicked = writers.into_iter().map(|writer| writer.join()).filter(Result::is_err).count();
        done.store(true, SeqCst);
        assert_eq!(panicked, 0);
    });
    let mut page = [0; PAGE_SIZE];
    for (slot, versions) in (0..).zip(&versions) {
        let version = versions.finished.load(SeqCst);
        store.read(slot, &mut page).expect("a readable page");
        check(&page, slot, version, version);
    }
    store.check().expect("consistent");
}

#[test]
fn versions_are_seen_in_order_while_objects_move() {
    versions_are_seen_in_order(&One::new(SLOTS, PoolConfig::default()), 6000);
}

/// The object that a slow decoder reads stays unchanged, whichever thread overwrites, discards or
/// moves it.
#[test]
fn objects_stay_while_they_are_read() {
    let config = PoolConfig::default().codec(Arc::new(Sleepy));
    versions_are_seen_in_order(&One::new(SLOTS, config), 6000);
}

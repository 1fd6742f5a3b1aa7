//! Disks over a base that is slow, fails now and then, and whose pages are kept compressed.

use std::sync::Arc;

use pagefold_disk::{BaseCache, BlockDevice, Pool, PoolConfig, RamDisk, Read, Zeroes};
use pagefold_faulty::Faulty;
use proptest::prelude::*;

const UNIT: usize = 32 << 10;

/// Pages that compress to about a half, all different, with a last one that is cut short.
fn content(pages: usize) -> Vec<u8> {
    let mut word = 7u64;
    let byte = |at: usize| {
        word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(at as u64);
        if at.is_multiple_of(2) { 0 } else { (word >> 40) as u8 }
    };
    (0..pages * 4096 - 1536).map(byte).collect()
}

#[derive(Clone, Debug)]
enum Op {
    Read,
    TryRead,
    Together(Vec<(usize, usize)>),
    Write(u8),
    WriteBase,
    TryWrite(u8),
    Discard,
    Zero,
    Fork,
    Shrink,
}

const PAGES: usize = 200;

fn any_op() -> impl Strategy<Value = (usize, usize, usize, Op)> {
    let point = || prop_oneof![0..PAGES * 4096, (0..PAGES).prop_map(|page| page * 4096)];
    let len = || prop_oneof![1..9000usize, Just(4096usize), (1..40usize).prop_map(|pages| pages * 4096)];
    let op = prop_oneof![
        6 => Just(Op::Read),
        4 => Just(Op::TryRead),
        4 => prop::collection::vec((point(), len()), 1..20).prop_map(Op::Together),
        3 => any::<u8>().prop_map(Op::Write),
        1 => Just(Op::WriteBase),
        3 => any::<u8>().prop_map(Op::TryWrite),
        1 => Just(Op::Discard),
        1 => Just(Op::Zero),
        1 => Just(Op::Fork),
        1 => Just(Op::Shrink),
    ];
    (any::<usize>(), point(), len(), op)
}

/// After a failed change, each page has its old or its new content; copies it to the model.
fn settle(disk: &RamDisk, base: &Faulty, model: &mut [u8], at: usize, new: &[u8]) -> Result<(), TestCaseError> {
    let each = base.fail_each(0);
    let mut now = vec![0; new.len()];
    disk.read(at as u64, &mut now).expect("a readable disk");
    base.fail_each(each);
    let old = &mut model[at..at + new.len()];
    let mut start = 0;
    while start < new.len() {
        let end = new.len().min(start + 4096 - (at + start) % 4096);
        let page = &now[start..end];
        prop_assert!(page == &old[start..end] || page == &new[start..end], "page at {}", at + start);
        start = end;
    }
    old.copy_from_slice(&now);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn disks_over_a_slow_base_are_vectors_of_bytes(
        ops in prop::collection::vec(any_op(), 0..80),
        fails_each in prop_oneof![Just(0u64), 3..40u64],
        limit in prop_oneof![Just(u64::MAX), (1400u64..2200).prop_map(|kib| kib << 10)],
        cache_bytes in prop_oneof![Just(1u64 << 30), Just(200 << 10), Just(0)],
    ) {
        let limit = if limit == u64::MAX { limit } else { limit.max(least_limit()) };
        let pool = Pool::new(PoolConfig::default().memory_limit(limit)).expect("a pool");
        let cache = BaseCache::new(&pool, cache_bytes);
        let whole = content(PAGES);
        let base = Arc::new(Faulty::new(whole.clone()).slow(UNIT as u64));
        base.set_short(true);
        base.fail_each(fails_each);
        let Ok(disk) = RamDisk::over_cached(&pool, Arc::clone(&base) as _, &cache) else { return Ok(()) };
        let mut disks = vec![(disk, whole.clone())];
        for (which, at, len, op) in ops {
            let which = which % disks.len();
            let (disk, model) = &mut disks[which];
            let at = at % model.len();
            let len = len.min(model.len() - at);
            match op {
                Op::Read => {
                    let mut buf = vec![1; len];
                    match disk.read(at as u64, &mut buf) {
                        Ok(()) => prop_assert!(buf == model[at..at + len], "{len} bytes at {at}"),
                        Err(_) => prop_assert!(fails_each > 0),
                    }
                }
                Op::TryRead => {
                    let mut buf = vec![1; len];
                    let filled = disk.try_read(at as u64, &mut buf).expect("an error is left to a read that waits");
                    prop_assert!(buf[..filled] == model[at..at + filled], "{filled} bytes at {at}");
                }
                Op::Together(ranges) => {
                    let clip = |(at, len): (usize, usize)| (at % model.len(), len.min(model.len() - at % model.len()));
                    let ranges: Vec<_> = ranges.into_iter().map(clip).collect();
                    let mut bufs: Vec<Vec<u8>> = ranges.iter().map(|&(_, len)| vec![1; len]).collect();
                    let mut reads: Vec<_> =
                        ranges.iter().zip(&mut bufs).map(|(&(at, _), buf)| Read::new(at as u64, buf)).collect();
                    disk.read_together(&mut reads);
                    for (read, (at, len)) in reads.iter().zip(&ranges) {
                        match read.result {
                            Ok(()) => prop_assert!(*read.buf == model[*at..at + len], "{len} bytes at {at}"),
                            Err(_) => prop_assert!(fails_each > 0),
                        }
                    }
                }
                Op::Write(seed) => {
                    let new: Vec<u8> = (0..len).map(|byte| (byte * byte + byte / 7) as u8 ^ seed).collect();
                    match disk.write(at as u64, &new) {
                        Ok(()) => model[at..at + len].copy_from_slice(&new),
                        Err(_) => settle(disk, &base, model, at, &new)?,
                    }
                }
                Op::WriteBase => {
                    let new: Vec<u8> = (at..at + len).map(|byte| whole[byte % whole.len()]).collect();
                    match disk.write(at as u64, &new) {
                        Ok(()) => model[at..at + len].copy_from_slice(&new),
                        Err(_) => settle(disk, &base, model, at, &new)?,
                    }
                }
                Op::TryWrite(seed) => {
                    let new: Vec<u8> = (0..len).map(|byte| (byte * byte + byte / 5) as u8 ^ seed).collect();
                    match disk.try_write(at as u64, &new) {
                        Ok(written) => model[at..at + written].copy_from_slice(&new[..written]),
                        Err(_) => settle(disk, &base, model, at, &new)?,
                    }
                }
                Op::Discard | Op::Zero => {
                    let done = match op {
                        Op::Discard => disk.discard(at as u64, len as u64),
                        _ => disk.write_zeroes(at as u64, len as u64, Zeroes::Allocated),
                    };
                    match done {
                        Ok(()) => model[at..at + len].fill(0),
                        Err(_) => settle(disk, &base, model, at, &vec![0; len])?,
                    }
                }
                Op::Fork if disks.len() < 4 => {
                    let (disk, model) = &disks[which];
                    if let Ok(fork) = disk.fork() {
                        let model = model.clone();
                        disks.push((fork, model));
                    }
                }
                Op::Fork => drop(disks.swap_remove(which)),
                Op::Shrink => cache.set_limit(cache.limit_bytes() / 2),
            }
            prop_assert!(pool.stats().spent_bytes <= limit);
        }
        base.fail_each(0);
        for (disk, model) in &disks {
            let mut bytes = vec![1; model.len()];
            disk.read(0, &mut bytes).expect("a readable disk");
            prop_assert!(bytes == *model);
        }
        pool.check().map_err(TestCaseError::fail)?;
        drop(disks);
        let stats = pool.stats();
        prop_assert_eq!((stats.clean_pages, stats.clean_bytes), (0, 0));
    }
}

/// Returns the least limit of a pool on this machine, with some room for pages.
fn least_limit() -> u64 {
    match Pool::new(PoolConfig::default().memory_limit(1 << 10)) {
        Err(pagefold_disk::NewPoolError::LimitTooSmall { needed, .. }) => needed + (500 << 10),
        other => panic!("{other:?}"),
    }
}

fn over(limit: u64, pages: usize, cache_bytes: u64) -> (Pool, BaseCache, Arc<Faulty>, RamDisk) {
    let pool = Pool::new(PoolConfig::default().memory_limit(limit).train(false)).expect("a pool");
    let cache = BaseCache::new(&pool, cache_bytes);
    let base = Arc::new(Faulty::new(content(pages)).slow(64 << 10));
    let disk = RamDisk::over_cached(&pool, Arc::clone(&base) as _, &cache).expect("a disk");
    (pool, cache, base, disk)
}

/// A unit is read from the base once, however its pages are read; its pages do not count as the
/// disk's.
#[test]
fn a_unit_is_read_once() {
    let pages = || (0..16).map(|number| (3 << 16) + (number * 7 + 5) % 16 * 4096);
    let (pool, cache, base, disk) = over(u64::MAX, 160, 1 << 30);
    let fork = disk.fork().expect("no limit");
    for at in pages() {
        let mut page = [0; 4096];
        fork.read(at, &mut page).expect("a page");
        assert!(page == base.bytes()[at as usize..][..4096]);
    }
    assert_eq!(base.units(), 1);
    let mut page = [0; 4096];
    assert_eq!(disk.try_read(3 << 16, &mut page).expect("a page"), 4096, "forks share what is kept");
    let stats = pool.stats();
    assert_eq!((stats.clean_pages, stats.orig_data_size, disk.stats().orig_data_size), (16, 0, 0));
    assert!(cache.used_bytes() > 16 * 1500 && stats.clean_bytes == cache.used_bytes());
    drop((disk, fork));
    assert_eq!((pool.stats().clean_pages, cache.used_bytes()), (0, 0));

    let (_pool, _cache, base, disk) = over(u64::MAX, 160, 1 << 30);
    let mut bufs = [[0; 4096]; 16];
    let mut reads: Vec<_> = pages().zip(&mut bufs).map(|(at, buf)| Read::new(at, buf)).collect();
    disk.read_together(&mut reads);
    assert!(reads.iter().all(|read| read.result.is_ok()));
    assert_eq!(base.units(), 1);
}

/// A base that is read in order is not kept, unless it is read in order again.
#[test]
fn pages_read_once_in_order_are_not_kept() {
    let (pool, _cache, base, disk) = over(u64::MAX, 320, 1 << 30);
    for (turn, len) in [(0, 128 << 10), (1, 128 << 10)] {
        let mut buf = vec![0; len];
        for at in (0..base.bytes().len() - len).step_by(len) {
            disk.read(at as u64, &mut buf).expect("a read");
            assert!(buf == base.bytes()[at..at + len]);
        }
        let clean = pool.stats().clean_pages;
        assert!(if turn == 0 { clean == 0 } else { clean == 288 }, "{clean} pages after turn {turn}");
    }
    let (pool, _cache, base, disk) = over(u64::MAX, 320, 1 << 30);
    let mut page = [0; 4096];
    for at in (0..base.bytes().len() - 4096).step_by(4096) {
        // A cache of the base would answer all but the first page of each unit.
        if at % (64 << 10) == 0 {
            disk.read(at as u64, &mut page).expect("a read");
        }
    }
    assert!(pool.stats().clean_pages <= 16, "{}", pool.stats().clean_pages);
}

/// Kept pages stay within the cache's limit, and a disk may have the whole pool.
#[test]
fn kept_pages_give_way_to_disks() {
    let limit = least_limit() + (24 << 20);
    let fill = |disk: &RamDisk| {
        let other = content(16_000);
        let pages = other.chunks_exact(4096).enumerate();
        pages.take_while(|(number, page)| disk.write(*number as u64 * 4096, page).is_ok()).count()
    };
    let (_pool, _cache, _base, disk) = over(limit, 16_000, 0);
    let alone = fill(&disk);
    assert!(alone > 4000 && alone < 15_999, "{alone}");

    let (pool, cache, base, disk) = over(limit, 16_000, 8 << 20);
    let mut page = [0; 4096];
    let mut random = 1u64;
    for _ in 0..3000 {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        let at = (random >> 33) % 15_000 * 4096;
        disk.read(at, &mut page).expect("a read");
        assert!(page == base.bytes()[at as usize..][..4096]);
    }
    let used = cache.used_bytes();
    assert!((6 << 20..=8 << 20).contains(&used), "{used}");
    // The first writes are of pages that are not the base's.
    let written = fill(&disk.fork().expect("room"));
    assert!(written >= alone * 19 / 20, "{written} of {alone}");
    pool.check().expect("a consistent pool");
    cache.set_limit(0);
    assert_eq!(pool.stats().clean_pages, 0);
}

/// Readers see the base's bytes, and writers their own, while all of them cause units to be kept
/// and discarded.
#[test]
fn threads_share_kept_pages() {
    const FORKS: usize = 4;
    let limit = least_limit() + (6 << 20);
    let (pool, cache, base, disk) = over(limit, 2000, 700 << 10);
    let forks: Vec<_> = (0..FORKS).map(|_| disk.fork().expect("room")).collect();
    std::thread::scope(|scope| {
        for (number, fork) in forks.iter().enumerate() {
            let (base, cache) = (&base, &cache);
            scope.spawn(move || {
                let mut random = number as u64 + 1;
                let mut below = |count: u64| {
                    random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                    (random >> 33) % count
                };
                // A thread writes to every fourth page, so that it knows what is there.
                let mut written = std::collections::BTreeMap::new();
                let mut buf = vec![0; 3 * 4096];
                for turn in 0..4000_u64 {
                    // Half of the reads are in a part that the cache can hold.
                    let first = if turn % 2 == 0 { below(150) } else { below(1990) };
                    if turn % 16 == 0 {
                        let page = first / 4 * 4;
                        let new = content(2)[..4096].iter().map(|byte| byte ^ turn as u8).collect::<Vec<_>>();
                        if fork.write(page * 4096, &new).is_ok() {
                            written.insert(page, new);
                        }
                    } else if turn % 512 == 5 {
                        cache.set_limit(if number == 0 { 100 << 10 } else { 700 << 10 });
                    }
                    let filled = match turn % 3 {
                        0 => fork.try_read(first * 4096, &mut buf).expect("a read"),
                        1 => fork.read(first * 4096, &mut buf).map(|()| buf.len()).expect("a read"),
                        _ => {
                            let mut read = [Read::new(first * 4096, &mut buf)];
                            fork.read_together(&mut read);
                            assert!(read[0].result.is_ok());
                            buf.len()
                        }
                    };
                    for (page, got) in (first..).zip(buf[..filled].chunks_exact(4096)) {
                        let below = &base.bytes()[page as usize * 4096..][..4096];
                        assert!(got == written.get(&page).map_or(below, Vec::as_slice), "page {page} in turn {turn}");
                    }
                }
            });
        }
    });
    assert!(pool.stats().spent_bytes <= limit);
    pool.check().expect("a consistent pool");
    drop((disk, forks));
    assert_eq!((pool.stats().clean_pages, pool.stats().clean_bytes), (0, 0));
}

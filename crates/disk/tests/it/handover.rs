//! Disks that are handed over to another pool through a stream of bytes.

use std::sync::Arc;

use pagefold_disk::{
    BlockDevice, Change, ImportError, ImportedDisks, Pool, PoolConfig, RamDisk, export_disks, kept_disks,
};
use pagefold_faulty::Faulty;

const SIZE_BYTES: u64 = 300 * 4096 - 512;

fn base_bytes(seed: usize) -> Vec<u8> {
    (0..SIZE_BYTES as usize).map(|at| (at / 4096 * seed + at % 97) as u8).collect()
}

fn content(disk: &RamDisk) -> Vec<u8> {
    let mut bytes = vec![1; disk.size_bytes() as usize];
    disk.read(0, &mut bytes).expect("readable");
    bytes
}

fn changes(disk: &RamDisk) -> Vec<Change> {
    let mut all: Vec<Change> = Vec::new();
    let each = &mut |change: Change| {
        match all.last_mut() {
            Some(last) if last.changed == change.changed => last.len_bytes += change.len_bytes,
            _ => all.push(change),
        }
        true
    };
    disk.changes(0, disk.size_bytes(), each).expect("changes");
    all
}

#[test]
fn disks_go_on_over_the_same_bases() {
    let pool = Pool::new(PoolConfig::default()).expect("a pool");
    let bases = [3, 5].map(|seed| Arc::new(Faulty::new(base_bytes(seed))) as Arc<dyn BlockDevice>);
    let over = |base: usize| RamDisk::over(&pool, Arc::clone(&bases[base])).expect("a disk");
    let (pristine, other) = (over(0), over(1));
    let disk = Arc::new(pristine.fork().expect("no limit"));
    disk.write(10_000, &[7; 9000]).expect("no limit");
    let kept = disk.snapshot().expect("no limit");
    disk.write(500_000, &[8; 5000]).expect("no limit");
    disk.discard(40_960, 8192).expect("no limit");
    disk.resize(200 * 4096).expect("a size");
    let plain = RamDisk::new(&pool, 512).expect("a disk");
    plain.write(0, &[1, 2, 3]).expect("no limit");
    let lost = Arc::new(plain.fork().expect("no limit"));
    let of_lost = lost.snapshot().expect("no limit");
    drop(lost);

    // The snapshot comes before its disk.
    let before = [&pristine, &kept, &other, &disk, &plain, &of_lost];
    let mut stream = Vec::new();
    export_disks(&pool, &before, &mut stream).expect("a stream");
    let imported = ImportedDisks::read(PoolConfig::default(), &mut &stream[..], &mut |_| Ok(())).expect("disks");
    let mut asked = Vec::new();
    let base = |number: usize| {
        asked.push(number);
        Ok::<_, ()>(Arc::clone(&bases[usize::from(number == 2)]))
    };
    let pool = imported.pool().clone();
    let after = imported.restore(None, base).expect("bases");
    assert_eq!(asked, [0, 2], "once for each base");
    pool.check().expect("consistent");

    assert_eq!(after.len(), before.len());
    for (number, (before, after)) in before.iter().zip(&after).enumerate() {
        assert!(content(before) == content(after), "disk {number}");
        assert_eq!(changes(before), changes(after), "disk {number}");
        assert_eq!((before.stats(), before.read_only()), (after.stats(), after.read_only()), "disk {number}");
    }
    let [pristine, kept, _, disk, ..] = &after[..] else { unreachable!("six disks") };
    // A page that equals the base's needs no memory, as before.
    let pages = pool.stats().orig_data_size;
    let mut page = [0; 4096];
    pristine.read(0, &mut page).expect("readable");
    let fork = pristine.fork().expect("no limit");
    fork.write(0, &page).expect("no limit");
    assert_eq!(pool.stats().orig_data_size, pages);

    disk.write(0, &[9; 4096]).expect("no limit");
    disk.become_as(kept).expect("no limit");
    assert!(content(disk) == content(kept));
    drop(after);
    drop(fork);
    assert_eq!(pool.stats().orig_data_size, 0);
}

#[test]
fn a_base_that_fails_ends_the_import() {
    let pool = Pool::new(PoolConfig::default()).expect("a pool");
    let base = Arc::new(Faulty::new(base_bytes(3)));
    let disk = RamDisk::over(&pool, base).expect("a disk");
    let mut stream = Vec::new();
    export_disks(&pool, &[&disk], &mut stream).expect("a stream");
    let imported = ImportedDisks::read(PoolConfig::default(), &mut &stream[..], &mut |_| Ok(())).expect("disks");
    assert_eq!(imported.restore(None, Err).err(), Some(0));

    // A stream of a pool with other notes than those of RAM disks.
    let mut stream = Vec::new();
    let plain = pool.disk(5).expect("a disk");
    pool.export(&[pagefold_store::ExportedDisk { disk: &plain, note: b"?" }], &mut stream).expect("a stream");
    let failed = ImportedDisks::read(PoolConfig::default(), &mut &stream[..], &mut |_| Ok(())).expect_err("no notes");
    assert!(matches!(failed, ImportError::Invalid { .. }), "{failed}");
}

/// Nothing is stored past the end that the next process gets, even if this one is killed during the
/// change.
#[test]
fn a_disk_that_may_change_its_size_has_the_larger_one_in_a_file() {
    let file = rustix::fs::memfd_create("pool", rustix::fs::MemfdFlags::empty()).expect("a file");
    let pool = Pool::new(PoolConfig::default().kept_in(file.into())).expect("a pool");
    let disk = RamDisk::new(&pool, 8 << 12).expect("a disk");
    let slots = || kept_disks(&[&disk]).expect("a kept pool")[0].slots;
    for (size_bytes, slots_during) in [(16 << 12, 16), (4 << 12, 16)] {
        let found = disk.may_become(size_bytes, || {
            let before = slots();
            disk.resize(size_bytes).expect("a size");
            [before, slots()]
        });
        assert_eq!(found, [slots_during; 2]);
        assert_eq!(slots(), size_bytes >> 12);
    }
}

//! Requests that the wrapper rejects, and valid sizes of a disk.

use pagefold_disk::{BlockDevice, Checked, Error, Pool, PoolConfig, RamDisk, Zeroes};

const SIZE: u64 = 1 << 20;

fn disk(size_bytes: u64) -> Result<RamDisk, pagefold_disk::NewDiskError> {
    RamDisk::new(&Pool::new(PoolConfig::default()).expect("a pool"), size_bytes)
}

#[test]
fn sizes_that_no_disk_has_are_refused() {
    for size in [0, 1, 511, 4097] {
        let error = disk(size).expect_err("no such disk");
        assert!(error.to_string().contains("multiple of 512"), "{error}");
    }
    let error = disk(1 << 62).expect_err("too large");
    assert!(error.to_string().contains("exceeds the maximum disk size"), "{error}");
    disk(512).expect("the smallest disk");
}

#[test]
fn ranges_beyond_the_end_are_refused() {
    let disk = Checked::new(disk(SIZE).expect("a small disk"));
    let mut none = |_| true;
    for (at, len) in [(SIZE, 1), (SIZE - 1, 2), (u64::MAX, 1), (u64::MAX - 1, 4), (0, SIZE + 1)] {
        let out = |result| matches!(result, Err(Error::OutOfRange { .. }));
        assert!(out(disk.discard(at, len)), "{at} {len}");
        assert!(out(disk.write_zeroes(at, len, Zeroes::MayUnmap)), "{at} {len}");
        assert!(out(disk.extents(at, len, &mut none)), "{at} {len}");
        let mut bytes = vec![0; len as usize];
        assert!(out(disk.read(at, &mut bytes)), "{at} {len}");
        assert!(out(disk.write(at, &bytes)), "{at} {len}");
    }
    disk.read(SIZE, &mut []).expect("nothing, at the end");
    disk.discard(SIZE, 0).expect("nothing, at the end");
}

#[test]
fn a_read_only_disk_refuses_changes() {
    let disk = Checked::read_only(disk(SIZE).expect("a small disk"));
    assert!(disk.read_only());
    assert!(matches!(disk.write(0, &[1]), Err(Error::ReadOnly)));
    assert!(matches!(disk.discard(0, 1), Err(Error::ReadOnly)));
    assert!(matches!(disk.write_zeroes(0, 1, Zeroes::Allocated), Err(Error::ReadOnly)));
    disk.read(0, &mut [0]).expect("it reads");
    disk.flush().expect("nothing to do");
}

#[test]
fn a_full_disk_says_so() {
    let pool = Pool::new(PoolConfig::default().memory_limit(2 << 20)).expect("a pool");
    let disk = Checked::new(RamDisk::new(&pool, 64 << 20).expect("a small disk"));
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    let noise: Vec<u8> = (0..4 << 20).map(|_| random()).collect();
    assert!(matches!(disk.write(0, &noise), Err(Error::NoSpace)));
    assert_eq!(pool.stats().mem_limit, 2 << 20);
}

#[test]
fn a_disk_with_a_limit_of_its_own_leaves_room_for_others() {
    let pool = Pool::new(PoolConfig::default().memory_limit(16 << 20)).expect("a pool");
    let [greedy, modest] = [(); 2].map(|()| RamDisk::new(&pool, 64 << 20).expect("a small disk"));
    greedy.set_limit(1 << 20);
    let noise = |seed: u64| -> Vec<u8> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        (0..4 << 20).map(|_| next()).collect()
    };
    assert!(matches!(greedy.write(0, &noise(1)), Err(Error::NoSpace)));
    let stats = greedy.stats();
    assert!((900 << 10..=1 << 20).contains(&stats.spent_bytes), "{stats:?}");
    greedy.write(0, &noise(2)[..4096]).expect("what it has can be overwritten");
    modest.write(0, &noise(3)).expect("room in the pool");
    greedy.set_limit(u64::MAX);
    greedy.write(0, &noise(4)).expect("room in the pool");
    drop(greedy);
    assert_eq!(pool.stats().compr_data_size, modest.stats().compr_data_size);
    pool.check().expect("consistent");
}

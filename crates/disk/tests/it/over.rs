//! Disks over a base, and their forks, against plain vectors of bytes.

use std::sync::Arc;

use pagefold_disk::{BlockDevice, Pool, PoolConfig, RamDisk, Zeroes};
use pagefold_faulty::Faulty;
use proptest::prelude::*;

const PAGES: usize = 150;

/// The pages of a base: some zeros, some equal, some different; the last one is cut short.
fn base_bytes() -> Vec<u8> {
    let page = |page: usize| -> Vec<u8> {
        match page % 7 {
            0 => vec![0; 4096],
            1 => vec![page as u8; 4096],
            _ => (0..4096).map(|at| (at * at / (page + 3) + page) as u8).collect(),
        }
    };
    let mut bytes: Vec<u8> = (0..PAGES).flat_map(page).collect();
    bytes.truncate(PAGES * 4096 - 1536);
    bytes
}

#[derive(Clone, Debug)]
enum Op {
    Write { at: u64, len: u64, seed: u8 },
    WriteBase { at: u64, len: u64 },
    Read { at: u64, len: u64 },
    Discard { at: u64, len: u64 },
    Zero { at: u64, len: u64 },
    Resize { sectors: u64 },
    Reset,
    Fork,
    Become { other: usize },
    Drop,
}

fn any_op() -> impl Strategy<Value = (usize, Op)> {
    let range = || {
        let point = prop_oneof![0..PAGES as u64 * 4096, (0..PAGES as u64).prop_map(|page| page * 4096)];
        (point, prop_oneof![1..9000u64, (1..20u64).prop_map(|pages| pages * 4096), Just(1 << 20)])
    };
    let op = prop_oneof![
        6 => (range(), any::<u8>()).prop_map(|((at, len), seed)| Op::Write { at, len, seed }),
        3 => range().prop_map(|(at, len)| Op::WriteBase { at, len }),
        3 => range().prop_map(|(at, len)| Op::Read { at, len }),
        2 => range().prop_map(|(at, len)| Op::Discard { at, len }),
        2 => range().prop_map(|(at, len)| Op::Zero { at, len }),
        1 => (1..PAGES as u64 * 10).prop_map(|sectors| Op::Resize { sectors }),
        1 => Just(Op::Reset),
        2 => Just(Op::Fork),
        1 => any::<usize>().prop_map(|other| Op::Become { other }),
        1 => Just(Op::Drop),
    ];
    (any::<usize>(), op)
}

/// The disk's bytes equal the model's, and its extents agree with them.
fn check(disk: &RamDisk, model: &[u8]) -> Result<(), TestCaseError> {
    prop_assert_eq!(disk.size_bytes(), model.len() as u64);
    let mut bytes = vec![1; model.len()];
    disk.read(0, &mut bytes).expect("a readable disk");
    if let Some(at) = (0..model.len()).find(|&at| bytes[at] != model[at]) {
        prop_assert!(false, "byte {} is {}, not {}", at, bytes[at], model[at]);
    }
    let mut at = 0;
    let listed = disk.extents(0, model.len() as u64, &mut |extent| {
        let end = at + extent.len_bytes as usize;
        assert!(!extent.zero || model[at..end].iter().all(|&byte| byte == 0), "{extent:?} at {at} is not zeros");
        assert!(!extent.hole || extent.zero);
        at = end;
        true
    });
    listed.expect("extents");
    prop_assert_eq!(at, model.len());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn forks_of_a_base_are_vectors_of_bytes(ops in prop::collection::vec(any_op(), 0..60)) {
        let pool = Pool::new(PoolConfig::default()).expect("a pool");
        let content = base_bytes();
        let base: Arc<dyn BlockDevice> = Arc::new(Faulty::new(content.clone()));
        let pristine = RamDisk::over(&pool, base).expect("a disk");
        let mut disks = vec![(pristine.fork().expect("no limit"), content.clone())];
        for (at, op) in ops {
            let many = disks.len();
            let at = at % many;
            let (disk, model) = &mut disks[at];
            let size = model.len() as u64;
            let clip = |at: u64, len: u64| (at.min(size - 1), len.min(size - at.min(size - 1)));
            match op {
                Op::Write { at, len, seed } => {
                    let (at, len) = clip(at, len);
                    let bytes: Vec<u8> = (0..len).map(|byte| (byte / 50) as u8 ^ seed).collect();
                    disk.write(at, &bytes).expect("no limit");
                    model[at as usize..(at + len) as usize].copy_from_slice(&bytes);
                }
                Op::WriteBase { at, len } => {
                    let (at, len) = clip(at, len);
                    let bytes: Vec<u8> = (at..at + len).map(|at| content.get(at as usize).copied().unwrap_or(0)).collect();
                    disk.write(at, &bytes).expect("no limit");
                    model[at as usize..(at + len) as usize].copy_from_slice(&bytes);
                }
                Op::Read { at, len } => {
                    let (at, len) = clip(at, len);
                    let mut bytes = vec![7; len as usize];
                    disk.read(at, &mut bytes).expect("a readable disk");
                    prop_assert!(bytes == model[at as usize..(at + len) as usize]);
                }
                Op::Discard { at, len } => {
                    let (at, len) = clip(at, len);
                    disk.discard(at, len).expect("no limit");
                    model[at as usize..(at + len) as usize].fill(0);
                }
                Op::Zero { at, len } => {
                    let (at, len) = clip(at, len);
                    let zeroes = if at % 2 == 0 { Zeroes::Allocated } else { Zeroes::MayUnmap };
                    disk.write_zeroes(at, len, zeroes).expect("no limit");
                    model[at as usize..(at + len) as usize].fill(0);
                }
                Op::Resize { sectors } => {
                    disk.resize(sectors * 512).expect("a size");
                    model.resize(sectors as usize * 512, 0);
                }
                Op::Reset => {
                    disk.reset().expect("no limit");
                    *model = (0..size as usize).map(|at| content.get(at).copied().unwrap_or(0)).collect();
                }
                Op::Fork if many < 6 => {
                    let fork = (disk.fork().expect("no limit"), model.clone());
                    disks.push(fork);
                }
                Op::Fork => {}
                Op::Become { other } => {
                    let other = other % many;
                    if other != at {
                        disks[at].0.become_as(&disks[other].0).expect("no limit");
                        disks[at].1 = disks[other].1.clone();
                    }
                }
                Op::Drop if many > 1 => drop(disks.swap_remove(at)),
                Op::Drop => disks[0] = (pristine.fork().expect("no limit"), content.clone()),
            }
        }
        disks.iter().try_for_each(|(disk, model)| check(disk, model))?;
        check(&pristine, &content)?;
        pool.check().map_err(TestCaseError::fail)?;
    }
}

/// A page that equals the base's uses no memory and frees the old page, whether it is written in
/// one large request or page by page after it was read.
#[test]
fn pages_equal_to_the_base_take_no_memory() {
    let pool = Pool::new(PoolConfig::default().train(false)).expect("a pool");
    let content = base_bytes();
    let disk = RamDisk::over(&pool, Arc::new(Faulty::new(content.clone()))).expect("a disk");
    let other: Vec<u8> = content.iter().map(|byte| byte ^ 0x55).collect();
    disk.write(0, &other).expect("no limit");
    assert!(disk.stats().orig_data_size >= 140 * 4096);
    disk.write(0, &content).expect("no limit");
    // The last page is partial, so it is changed in part.
    assert!(disk.stats().orig_data_size <= 4096, "{:?}", disk.stats());

    disk.write(0, &other).expect("no limit");
    disk.reset().expect("no limit");
    disk.read(0, &mut vec![0; content.len()]).expect("a readable disk");
    disk.write(0, &other).expect("no limit");
    for at in (0..content.len() - 4096).step_by(4096) {
        disk.write(at as u64, &content[at..at + 4096]).expect("no limit");
    }
    assert!(disk.stats().orig_data_size <= 4096, "{:?}", disk.stats());

    let fork = disk.fork().expect("no limit");
    disk.write(0, &other).expect("no limit");
    fork.write(0, &content).expect("no limit");
    let mut bytes = vec![0; content.len()];
    fork.read(0, &mut bytes).expect("a readable disk");
    assert!(bytes == content);
}

/// If its base fails, a disk still serves its own pages, and reports an error for the others;
/// failed attempts lose nothing.
#[test]
fn a_disk_outlives_its_base() {
    let pool = Pool::new(PoolConfig::default()).expect("a pool");
    let content = base_bytes();
    let base = Arc::new(Faulty::new(content.clone()));
    let disk = RamDisk::over(&pool, Arc::clone(&base) as Arc<dyn BlockDevice>).expect("a disk");
    disk.write(8192, &[3; 4096]).expect("no limit");
    base.fail_each(1);
    let mut page = [0; 4096];
    disk.read(8192, &mut page).expect("the disk's own page");
    assert_eq!(page, [3; 4096]);
    let error = disk.read(4096, &mut page).expect_err("the base's page");
    assert!(error.to_string().contains("damaged"));
    assert!(disk.write(4097, &[9]).is_err(), "a page is not changed that cannot be read");
    disk.write(4096 * 20, &[4; 4096]).expect("a whole page needs no base");
    disk.write(4096 * 30, &vec![5; 40 * 4096]).expect("nor do many");
    disk.discard(4096 * 40, 4096).expect("nor does a discard");
    base.fail_each(0);
    disk.read(4096, &mut page).expect("the base's page");
    assert!(page == content[4096..8192]);
}

/// Random writes of pages that were never read do not read the base.
#[test]
fn whole_pages_are_written_without_the_base() {
    let pool = Pool::new(PoolConfig::default()).expect("a pool");
    let base = Arc::new(Faulty::new(base_bytes()));
    let disk = RamDisk::over(&pool, Arc::clone(&base) as Arc<dyn BlockDevice>).expect("a disk");
    for page in 0..100u64 {
        disk.write(page * 37 % 140 * 4096, &[page as u8 ^ 0x77; 4096]).expect("no limit");
    }
    assert_eq!(base.reads(), 0);
}

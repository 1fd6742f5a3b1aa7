//! A RAM disk against a plain vector of bytes.

use std::thread;

use pagefold_disk::{BlockDevice, Checked, Extent, Pool, PoolConfig, RamDisk, Zeroes};
use proptest::prelude::*;

/// The last page is cut short.
const SIZE: u64 = 40 * 4096 + 512;

fn disk() -> Checked<RamDisk> {
    let pool = Pool::new(PoolConfig::default()).expect("a pool");
    Checked::new(RamDisk::new(&pool, SIZE).expect("a small disk"))
}

#[derive(Clone, Debug)]
enum Op {
    Write { at: u64, bytes: Vec<u8> },
    Discard { at: u64, len: u64 },
    Zero { at: u64, len: u64, zeroes: Zeroes },
}

/// Ranges within the disk, often at page boundaries.
fn any_range() -> impl Strategy<Value = (u64, u64)> {
    let point = prop_oneof![0..=SIZE, (0..=40u64).prop_map(|page| page * 4096), Just(SIZE)];
    (point.clone(), point).prop_map(|(a, b)| (a.min(b), a.max(b) - a.min(b)))
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (any_range(), any::<u8>(), 1u8..=255).prop_map(|((at, len), start, step)| Op::Write {
            at,
            bytes: (0..len).map(|n| start.wrapping_add((n / 97) as u8).wrapping_mul(step)).collect(),
        }),
        1 => any_range().prop_map(|(at, len)| Op::Discard { at, len }),
        1 => (any_range(), prop_oneof![Just(Zeroes::MayUnmap), Just(Zeroes::Allocated)])
            .prop_map(|((at, len), zeroes)| Op::Zero { at, len, zeroes }),
    ]
}

/// A range's extents, with adjacent ones of equal status joined.
fn extents(disk: &dyn BlockDevice, at: u64, len: u64) -> Vec<Extent> {
    let mut all: Vec<Extent> = Vec::new();
    disk.extents(at, len, &mut |extent| {
        match all.last_mut() {
            Some(last) if (last.hole, last.zero) == (extent.hole, extent.zero) => last.len_bytes += extent.len_bytes,
            _ => all.push(extent),
        }
        true
    })
    .expect("a range of the disk");
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn is_a_vector_of_bytes(ops in prop::collection::vec(any_op(), 0..40), reads in prop::collection::vec(any_range(), 8)) {
        let disk = disk();
        let mut model = vec![0; SIZE as usize];
        for op in ops {
            match op {
                Op::Write { at, bytes } => {
                    disk.write(at, &bytes).expect("no limit");
                    model[at as usize..][..bytes.len()].copy_from_slice(&bytes);
                }
                Op::Discard { at, len } => {
                    disk.discard(at, len).expect("no limit");
                    model[at as usize..][..len as usize].fill(0);
                }
                Op::Zero { at, len, zeroes } => {
                    disk.write_zeroes(at, len, zeroes).expect("no limit");
                    model[at as usize..][..len as usize].fill(0);
                }
            }
        }
        for (at, len) in reads.into_iter().chain([(0, SIZE)]) {
            let mut back = vec![1; len as usize];
            disk.read(at, &mut back).expect("a range of the disk");
            prop_assert!(back == model[at as usize..][..len as usize]);

            let found = extents(&disk, at, len);
            prop_assert_eq!(found.iter().map(|extent| extent.len_bytes).sum::<u64>(), len);
            let mut start = at as usize;
            for extent in found {
                let bytes = &model[start..start + extent.len_bytes as usize];
                prop_assert!(!extent.zero || bytes.iter().all(|&byte| byte == 0));
                prop_assert!(!extent.hole || extent.zero);
                start += bytes.len();
            }
        }
    }
}

#[test]
fn extents_distinguish_holes_zeros_and_data() {
    let disk = disk();
    disk.write(8192, &[5; 4096]).expect("no limit");
    disk.write_zeroes(16384, 4096, Zeroes::Allocated).expect("no limit");
    let extent = |len_bytes, hole, zero| Extent { len_bytes, hole, zero };
    assert_eq!(
        extents(&disk, 100, 20000),
        [extent(8092, true, true), extent(4096, false, false), extent(4096, true, true), extent(3716, false, true),]
    );
    let mut heard = 0;
    disk.extents(0, SIZE, &mut |_| {
        heard += 1;
        heard < 2
    })
    .expect("a range of the disk");
    assert_eq!(heard, 2, "it stops when asked");
}

/// The first extents are reported without looking for the end of a long run.
#[test]
fn a_stretch_of_data_is_reported_page_by_page() {
    let disk = disk();
    disk.write(0, &[5; SIZE as usize]).expect("no limit");
    let mut listed_bytes = 0;
    let mut each = |extent: Extent| {
        listed_bytes += extent.len_bytes;
        listed_bytes < 8192
    };
    disk.extents(0, SIZE, &mut each).expect("a range of the disk");
    assert_eq!(listed_bytes, 8192);
}

#[test]
fn clearing_the_cut_last_page_gives_its_memory_back() {
    let disk = disk();
    disk.write(SIZE - 512, &[7; 512]).expect("no limit");
    assert_eq!(disk.get_ref().stats().orig_data_size, 4096);
    disk.discard(SIZE - 512, 512).expect("a range of the disk");
    assert_eq!(disk.get_ref().stats().orig_data_size, 0);
}

/// Writers of adjacent bytes in the same pages: no write undoes another.
#[test]
fn small_writes_to_one_page_do_not_undo_each_other() {
    let disk = disk();
    thread::scope(|scope| {
        for writer in 0..4u64 {
            let disk = &disk;
            scope.spawn(move || {
                for round in 0..300u64 {
                    let value = (round % 251) as u8;
                    for page in 0..3 {
                        disk.write(page * 4096 + 1000 + writer * 100, &[value; 100]).expect("no limit");
                    }
                }
            });
        }
    });
    let mut back = [0; 400];
    for page in 0..3 {
        disk.read(page * 4096 + 1000, &mut back).expect("a range of the disk");
        assert_eq!(back, [(299u64 % 251) as u8; 400]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// A disk of changing size behaves like a vector of changing length: content that is cut off is
    /// lost, and added space is zeros.
    #[test]
    fn of_any_size_is_a_vector_of_bytes(steps in prop::collection::vec((1u64..90, any::<u64>(), any::<u8>()), 1..30)) {
        let pool = Pool::new(PoolConfig::default()).expect("a pool");
        let disk = RamDisk::new(&pool, 512).expect("a small disk");
        let mut model = vec![0; 512];
        for (sectors, at, byte) in steps {
            let size = sectors * 3584;
            disk.resize(size).expect("a size");
            model.resize(size as usize, 0);
            let at = at % size;
            let len = (size - at).min(9000) as usize;
            disk.write(at, &vec![byte; len]).expect("no limit");
            model[at as usize..][..len].fill(byte);
            let mut found = vec![1; model.len()];
            disk.read(0, &mut found).expect("all of it");
            prop_assert!(found == model);
        }
        disk.reset().expect("no limit");
        prop_assert_eq!(disk.stats().spent_bytes - disk.stats().table_bytes, 0);
        pool.check().map_err(TestCaseError::fail)?;
    }
}

//! Both allocators against a plain map of objects, and the properties that each promises.

use std::{collections::BTreeMap, sync::Mutex, thread};

use pagefold_codec::PAGE_SIZE;
use proptest::prelude::*;

use crate::{AllocatorKind, Heap, Object};

/// The content of `owner`'s object in its `version`.
fn content(owner: u64, version: u64, len_bytes: usize) -> Vec<u8> {
    let mut state = owner * 0x9e37_79b9 + version * 31 + 1;
    (0..len_bytes)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .collect()
}

/// Objects by owner, with their versions and lengths.
type Map = BTreeMap<u64, (Object, u64, usize)>;

fn verify(heap: &Heap, map: &Map) -> Result<(), TestCaseError> {
    let live_bytes = heap.check().map_err(TestCaseError::fail)?;
    prop_assert!(map.values().map(|&(_, _, len)| len as u64).sum::<u64>() <= live_bytes);
    prop_assert!(live_bytes <= heap.spent_bytes());
    for (&owner, (object, version, len_bytes)) in map {
        let same = heap.bytes(object, &mut [0; PAGE_SIZE]) == content(owner, *version, *len_bytes);
        prop_assert!(same, "object {} of {} bytes has other bytes", owner, len_bytes);
    }
    Ok(())
}

#[derive(Clone, Debug)]
enum Op {
    Put(u64, usize),
    Remove(u64),
    /// Removes the objects of all owners between these two.
    RemoveMany(u64, u64),
}

fn any_op() -> impl Strategy<Value = Op> {
    let len = prop_oneof![1usize..=64, 1usize..=4096, 900usize..1400, 4080usize..=4096];
    prop_oneof![
        12 => (0u64..300, len).prop_map(|(owner, len)| Op::Put(owner, len)),
        3 => (0u64..300).prop_map(Op::Remove),
        1 => (0u64..300, 0u64..100).prop_map(|(from, count)| Op::RemoveMany(from, from + count)),
    ]
}

fn run(kind: AllocatorKind, ops: &[Op], pages: u64) -> Result<(), TestCaseError> {
    let heap = Heap::new(kind, pages).expect("address space");
    let mut map = Map::new();
    for (version, op) in (1..).zip(ops) {
        match *op {
            Op::Put(owner, len_bytes) => match heap.put(&content(owner, version, len_bytes)) {
                Some(object) => {
                    if let Some((old, ..)) = map.insert(owner, (object, version, len_bytes)) {
                        heap.remove(old);
                    }
                }
                None => prop_assert!(pages < 300),
            },
            Op::Remove(owner) => {
                if let Some((old, ..)) = map.remove(&owner) {
                    heap.remove(old);
                }
            }
            Op::RemoveMany(from, to) => {
                for (_, (old, ..)) in map.extract_if(from..to, |_, _| true) {
                    heap.remove(old);
                }
            }
        }
        if version % 64 == 0 {
            verify(&heap, &map)?;
        }
    }
    verify(&heap, &map)?;
    for (object, ..) in map.into_values() {
        heap.remove(object);
    }
    prop_assert_eq!(heap.check().map_err(TestCaseError::fail)?, 0);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn a_heap_is_a_map_of_objects(
        kind in prop::sample::select(&AllocatorKind::ALL[..]),
        ops in prop::collection::vec(any_op(), 1..1000),
        pages in prop_oneof![Just(301u64), 20u64..150],
    ) {
        run(kind, &ops, pages)?;
    }
}

#[test]
fn objects_of_several_threads_stay_apart() {
    const OWNERS: u64 = 2000;
    for kind in AllocatorKind::ALL {
        let heap = Heap::new(kind, OWNERS + 4).expect("address space");
        let objects: Vec<_> = (0..OWNERS).map(|_| Mutex::new(None)).collect();
        thread::scope(|scope| {
            for thread in 0..4 {
                let (heap, objects) = (&heap, &objects);
                scope.spawn(move || {
                    for turn in 1..10_000u64 {
                        let owner = turn.wrapping_mul(0x9e37_79b9_7f4a_7c15 + 2 * thread) % OWNERS;
                        let len_bytes = 1 + (turn.wrapping_mul(0xd1b5_4a32_d192_ed03) >> 50) as usize % 3000;
                        let new = heap.put(&content(owner, turn, len_bytes)).expect("memory");
                        // Mostly another thread's object.
                        let old =
                            objects[owner as usize].lock().expect("no thread panics").replace((new, turn, len_bytes));
                        if let Some((old, turn, len_bytes)) = old {
                            assert_eq!(heap.bytes(&old, &mut [0; PAGE_SIZE]), content(owner, turn, len_bytes));
                            heap.remove(old);
                        }
                    }
                });
            }
        });
        let objects = (0..).zip(objects).filter_map(|(owner, object)| Some((owner, object.into_inner().ok()??)));
        verify(&heap, &objects.collect()).expect("all there");
    }
}

fn filled(kind: AllocatorKind, count: u64, len_bytes: usize) -> Heap {
    let heap = Heap::new(kind, count).expect("address space");
    (0..count).for_each(|_| _ = heap.put(&vec![1; len_bytes]).expect("memory"));
    heap
}

/// What xcfmalloc was announced for: objects longer than half a page.
#[test]
fn two_pieces_fill_pages_where_one_leaves_a_quarter_free() {
    let percent = |kind| filled(kind, 4000, 3072).spent_bytes() * 100 / (4000 * PAGE_SIZE as u64);
    assert_eq!(percent(AllocatorKind::Xvmalloc), 100);
    assert!((75..=78).contains(&percent(AllocatorKind::Xcfmalloc)));
}

/// The announcement's table has 1.74 descriptors per page of text. A page in two pieces has two.
#[test]
fn an_object_of_three_quarters_takes_about_as_many_descriptors_as_published() {
    let heap = filled(AllocatorKind::Xcfmalloc, 17_000, 3072);
    let pages_bytes = heap.check().expect("consistent").next_multiple_of(PAGE_SIZE as u64);
    let descriptors = (heap.spent_bytes() - pages_bytes) / PAGE_SIZE as u64 * 170;
    assert!((1.3..1.8).contains(&(descriptors as f64 / 17_000.0)), "{descriptors}");
}

#[test]
fn a_page_has_room_for_all_but_its_headers() {
    // 32 blocks of 124 and 4 bytes.
    let one_page = filled(AllocatorKind::Xvmalloc, 32, 124);
    assert_eq!(one_page.check(), Ok(PAGE_SIZE as u64));
    // 64 units of 64 bytes.
    let one_page = filled(AllocatorKind::Xcfmalloc, 64, 60);
    assert_eq!(one_page.check(), Ok(PAGE_SIZE as u64));
}

#[test]
fn no_object_has_no_bytes_or_more_than_a_page() {
    for kind in AllocatorKind::ALL {
        let heap = Heap::new(kind, 2).expect("address space");
        assert!(heap.room(0).is_none() && heap.room(PAGE_SIZE + 1).is_none());
        assert!(heap.room(PAGE_SIZE).is_some());
    }
}

#[test]
#[should_panic(expected = "of another heap")]
fn another_heaps_object_is_refused() {
    let [one, other] = AllocatorKind::ALL.map(|kind| Heap::new(kind, 2).expect("address space"));
    one.remove(other.put(b"something").expect("memory"));
}

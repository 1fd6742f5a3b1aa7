//! Slots that start and stop sharing an object, under loom.

use std::sync::Arc;

use loom::thread;

use super::models::{POISON, SLOT, World, check};
use crate::tree::Tree;

/// Creates a second disk whose slot shares the object of the first disk's.
fn sharing(world: &World) -> Tree {
    let other = world.other_tree();
    assert!(world.share(world.number(&world.tree), &other, 0, 0, &mut Vec::new()));
    other
}

#[test]
fn read_against_share() {
    check(3, || {
        let world = World::new(1, 2);
        let reader = thread::spawn({
            let world = Arc::clone(&world);
            move || world.read(0)
        });
        let other = world.other_tree();
        let shares = world.share(world.number(&world.tree), &other, 0, 1, &mut Vec::new());
        assert_eq!(reader.join().expect("no panic"), Some(0));
        assert!(shares);
        assert_eq!((world.read(0), world.read_slot(&other, SLOT, 1)), (Some(0), Some(0)));
        world.storage.check().expect("consistent");
    });
}

/// A slot is written while another slot starts to share its object.
#[test]
fn write_against_share() {
    check(2, || {
        let world = World::new(2, 2);
        let writer = thread::spawn({
            let world = Arc::clone(&world);
            move || {
                let mut retired = Vec::new();
                world.write(1, 1, 0, &mut retired);
                retired
            }
        });
        let other = world.other_tree();
        let shares = world.share(world.number(&world.tree), &other, 0, 1, &mut Vec::new());
        let still_read = !writer.join().expect("no panic").is_empty();
        assert_eq!(world.read(0), Some(1));
        assert_eq!(world.read_slot(&other, SLOT, 1), shares.then_some(0));
        assert_ne!(shares, world.value(0) == POISON || still_read);
        world.storage.check().expect("consistent");
    });
}

/// Both sharers of an object drop it simultaneously: one of them frees it.
#[test]
fn both_sharers_release_simultaneously() {
    check(3, || {
        let world = World::new(3, 2);
        let other = Arc::new(sharing(&world));
        let writer = thread::spawn({
            let (world, other) = (Arc::clone(&world), Arc::clone(&other));
            move || world.write_slot(&other, SLOT, 1, 1, 0, &mut Vec::new())
        });
        world.write(2, 2, 1, &mut Vec::new());
        writer.join().expect("no panic");
        assert_eq!(world.value(0), POISON);
        assert_eq!((world.read(0), world.read_slot(&other, SLOT, 1)), (Some(2), Some(1)));
        world.storage.check().expect("consistent");
    });
}

/// A third slot starts to share the object that the two others drop.
#[test]
fn share_against_the_last_release() {
    check(2, || {
        let world = World::new(3, 2);
        let (other, number) = (sharing(&world), world.shared_number(&world.tree));
        world.write(1, 1, 0, &mut Vec::new());
        let sharer = thread::spawn({
            let (world, third) = (Arc::clone(&world), world.other_tree());
            move || (world.share(number, &third, 0, 0, &mut Vec::new()), third)
        });
        let mut retired = Vec::new();
        world.write_slot(&other, SLOT, 2, 2, 1, &mut retired);
        let (shares, third) = sharer.join().expect("no panic");
        assert_eq!(world.read_slot(&third, SLOT, 0), shares.then_some(0));
        assert_ne!(shares, world.value(0) == POISON || !retired.is_empty());
        world.storage.check().expect("consistent");
    });
}

/// A disk copies the leaf that it shares with its fork while another disk starts to share an object
/// of that leaf: the copy's link leads to an entry that leads to the object.
#[test]
fn copy_against_share() {
    check(2, || {
        let world = World::new(3, 2);
        let fork = world.fork();
        let number = match world.tree.find(&world.storage, SLOT) {
            crate::tree::SlotPlace::Entry(place) => place.number(),
            found => panic!("{found:?}"),
        };
        let sharer = thread::spawn({
            let (world, other) = (Arc::clone(&world), world.other_tree());
            move || (world.share(number, &other, 0, 0, &mut Vec::new()), other)
        });
        world.write_slot(&world.tree, SLOT + 1, 1, 1, 1, &mut Vec::new());
        assert_eq!(world.read(1), Some(0));
        let (shares, other) = sharer.join().expect("no panic");
        assert!(shares);
        assert_eq!((world.read(0), world.read_slot(&fork, SLOT, 0)), (Some(0), Some(0)));
        world.end(&fork);
        assert_eq!((world.read(0), world.read_slot(&other, SLOT, 0)), (Some(0), Some(0)));
        world.write(2, 2, 0, &mut Vec::new());
        world.end(&other);
        assert_eq!(world.value(0), POISON);
        world.storage.check().expect("consistent");
    });
}

/// The pool's entry is emptied, gets another object, is emptied again and gets a third object,
/// which the slot starts to share: a reader finds what the slot had, and never the second object.
#[test]
fn an_entry_used_again() {
    check(2, || {
        let world = World::new(6, 2);
        let other = sharing(&world);
        let number = world.shared_number(&other);
        let reader = thread::spawn({
            let world = Arc::clone(&world);
            move || world.read(0)
        });
        let mut retired = Vec::new();
        let mut write = |tree: &Tree, at: u64| world.write_slot(tree, SLOT, at, at, 1, &mut retired);
        let third = world.other_tree();
        // The first disk has page 1 of its own, the others share page 2.
        write(&world.tree, 1);
        write(&other, 2);
        assert!(world.share(world.number(&other), &third, 2, 1, &mut Vec::new()));
        assert_eq!(world.shared_number(&third), number);
        // Now the first shares page 4 with the second, in the same entry.
        write(&third, 3);
        write(&other, 4);
        assert!(world.share(world.number(&other), &world.tree, 4, 1, &mut Vec::new()));
        assert_eq!(world.shared_number(&world.tree), number);
        assert!(matches!(reader.join().expect("no panic"), Some(0 | 1 | 4)));
    });
}

//! Checks every lock in every order of events that the memory model allows.
//! `RUSTFLAGS="--cfg loom" cargo test -p pagefold-published --lib models`
#![allow(unsafe_code)] // a cell that loom tracks

use loom::{cell::Cell, model, sync::Arc, thread};

use crate::lock::{BitLock, Flag, Lock, RwSpin, Ticket};

struct Guarded<L> {
    lock: L,
    value: Cell<u64>,
}

// SAFETY: loom fails the model when two threads use the cell simultaneously.
unsafe impl<L> Sync for Guarded<L> {}

impl<L: Lock> Guarded<L> {
    fn add(&self) {
        self.lock.lock();
        self.value.set(self.value.get() + 1);
        self.lock.unlock();
    }

    fn read(&self) -> u64 {
        self.lock.lock_shared();
        let value = self.value.get();
        self.lock.unlock_shared();
        value
    }
}

/// Two threads write and read what the lock guards.
fn excludes<L: Lock + Default + Send + 'static>() {
    model(|| {
        let guarded = Arc::new(Guarded { lock: L::default(), value: Cell::new(0) });
        let other = Arc::clone(&guarded);
        let thread = thread::spawn(move || {
            other.add();
            other.read()
        });
        let seen = guarded.read();
        guarded.add();
        assert!(seen <= 1 && thread.join().expect("no panic") >= 1);
        assert_eq!(guarded.read(), 2);
    });
}

#[test]
fn a_flag_excludes() {
    excludes::<Flag>();
}

#[test]
fn a_ticket_lock_excludes() {
    excludes::<Ticket>();
}

#[test]
fn a_reader_writer_lock_excludes() {
    excludes::<RwSpin>();
}

#[test]
fn a_bit_excludes() {
    excludes::<BitLock>();
}

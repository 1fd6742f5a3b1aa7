//! A work queue: one thread finds items while others process them.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The maximum number of threads. More do not help, and with far too many the system may kill the
/// process instead of refusing to start one.
const MAX_THREADS: usize = 1024;

/// Returns the number of threads to use. 0 asks for one per processor.
pub(crate) fn thread_count(asked: usize) -> usize {
    match asked {
        0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        asked => asked.min(MAX_THREADS),
    }
}

/// A queue of items, in the order in which they were found.
pub(crate) struct Work<T> {
    state: Mutex<State<T>>,
    wake: Condvar,
}

struct State<T> {
    todo: VecDeque<T>,
    finders: usize,
}

/// A thread that may add items, until this is dropped.
pub(crate) struct Finder<'a, T>(&'a Work<T>);

impl<T> Work<T> {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::new(State { todo: VecDeque::new(), finders: 0 }), wake: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // Nothing panics while the lock is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a finder. While one exists, [`next`](Self::next) waits for more items.
    pub(crate) fn finder(&self) -> Finder<'_, T> {
        self.lock().finders += 1;
        Finder(self)
    }

    pub(crate) fn push(&self, thing: T) {
        self.lock().todo.push_back(thing);
        self.wake.notify_one();
    }

    /// Adds an item to the front of the queue.
    pub(crate) fn push_first(&self, thing: T) {
        self.lock().todo.push_front(thing);
        self.wake.notify_one();
    }

    /// Like [`push`](Self::push), unless `most` items are queued: then returns the item, for the
    /// caller to process.
    pub(crate) fn offer(&self, thing: T, most: usize) -> Option<T> {
        let mut state = self.lock();
        if state.todo.len() >= most {
            return Some(thing);
        }
        state.todo.push_back(thing);
        drop(state);
        self.wake.notify_one();
        None
    }

    /// Waits for the next item. Returns `None` if the queue is empty and no finder is left.
    pub(crate) fn next(&self) -> Option<T> {
        self.next_of_finder().map(|(thing, _)| thing)
    }

    /// Like [`next`](Self::next), for a thread that may find more items while it processes this one.
    pub(crate) fn next_of_finder(&self) -> Option<(T, Finder<'_, T>)> {
        let mut state = self.lock();
        loop {
            match state.todo.pop_front() {
                Some(thing) => {
                    state.finders += 1;
                    return Some((thing, Finder(self)));
                }
                None if state.finders == 0 => return None,
                None => state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

impl<T> Drop for Finder<'_, T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.finders -= 1;
        if state.finders == 0 {
            drop(state);
            self.0.wake.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_done_once_and_all_come_home() {
        let work = Work::new();
        let done = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            let finder = work.finder();
            for _ in 0..4 {
                scope.spawn(|| {
                    while let Some(thing) = work.next() {
                        done.lock().unwrap().push(thing);
                    }
                });
            }
            (0..1000).for_each(|thing| work.push(thing));
            drop(finder);
        });
        assert_eq!((work.offer(1, 1), work.offer(2, 1), work.next(), work.next()), (None, Some(2), Some(1), None));
        let mut done = done.into_inner().unwrap();
        done.sort_unstable();
        assert!(done.into_iter().eq(0..1000));
    }
    #[test]
    fn a_thread_that_processes_an_item_may_add_items() {
        let work = Work::new();
        let done = Mutex::new(0);
        let finder = work.finder();
        work.push(10);
        drop(finder);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while let Some((thing, _finder)) = work.next_of_finder() {
                        *done.lock().unwrap() += 1;
                        (0..thing).for_each(|more| work.push_first(more));
                    }
                });
            }
        });
        // One for each set of numbers below ten.
        assert_eq!(done.into_inner().unwrap(), 1 << 10);
    }
}

//! Work that one thread finds and others do meanwhile.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Threads that are started at most. More gain nothing, and of far too many the system may end the process rather than refuse one.
const MAX_THREADS: usize = 1024;

/// Threads for what was asked for: 0 for one a processor.
pub(crate) fn thread_count(asked: usize) -> usize {
    match asked {
        0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        asked => asked.min(MAX_THREADS),
    }
}

/// Things to do, in the order in which they were found.
pub(crate) struct Work<T> {
    state: Mutex<State<T>>,
    wake: Condvar,
}

struct State<T> {
    todo: VecDeque<T>,
    closed: bool,
}

/// Says, when dropped, that nothing more will be found.
pub(crate) struct Finder<'a, T>(&'a Work<T>);

impl<T> Work<T> {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::new(State { todo: VecDeque::new(), closed: false }), wake: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // Nothing panics while the lock is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of whom there is one: until it goes, [`next`](Self::next) waits for more.
    pub(crate) fn finder(&self) -> Finder<'_, T> {
        Finder(self)
    }

    pub(crate) fn push(&self, thing: T) {
        self.lock().todo.push_back(thing);
        self.wake.notify_one();
    }

    /// As [`push`](Self::push), unless `most` things wait: then it comes back, for the finder to do.
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

    /// The next thing to do, for which this waits. `None`: there will be none.
    pub(crate) fn next(&self) -> Option<T> {
        let mut state = self.lock();
        loop {
            match state.todo.pop_front() {
                Some(thing) => return Some(thing),
                None if state.closed => return None,
                None => state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

impl<T> Drop for Finder<'_, T> {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.wake.notify_all();
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
}

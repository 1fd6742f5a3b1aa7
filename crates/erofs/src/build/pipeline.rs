//! Worker threads that run ahead of one consumer, which gets results in order. If one thread is
//! asked for, the consumer does the work itself.
//!
//! ```text
//! worker:    wait until the next job is within the window; take it; work; store the numbered result
//! consumer:  wait for the result with the next number; consume it; move the window
//! ```
//!
//! At most `2 * threads + 2` jobs are taken and not yet consumed, which bounds memory.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::error::{Error, Result};

struct State<J, R> {
    jobs: J,
    taken: usize,
    consumed: usize,
    results: BTreeMap<usize, R>,
    /// No more jobs are taken: none are left, the consumer failed, or a worker panicked.
    ended: bool,
    panicked: bool,
}

struct Shared<J, R> {
    state: Mutex<State<J, R>>,
    changed: Condvar,
}

impl<J, R> Shared<J, R> {
    fn lock(&self) -> MutexGuard<'_, State<J, R>> {
        // A worker that panics does not hold the lock; `panicked` reports it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State<J, R>>) -> MutexGuard<'a, State<J, R>> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the pipeline if its thread panics, so that no other thread waits forever.
struct EndOnPanic<'a, J, R>(&'a Shared<J, R>);

impl<J, R> Drop for EndOnPanic<'_, J, R> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        if std::thread::panicking() {
            state.ended = true;
            state.panicked = true;
        }
        drop(state);
        self.0.changed.notify_all();
    }
}

/// Runs `work` on every job in `threads` threads, or as many as can be started, each with its own
/// state from `start`. Calls `consume` on the calling thread with the results in job order. Stops
/// at the first error of `consume`.
pub(crate) fn in_order<J, S, R>(
    threads: usize,
    mut jobs: impl Iterator<Item = J> + Send,
    start: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, J) -> R + Sync,
    mut consume: impl FnMut(R) -> Result<()>,
) -> Result<()>
where
    R: Send,
{
    if threads == 1 {
        let mut own = start();
        return jobs.try_for_each(|job| consume(work(&mut own, job)));
    }
    let window = 2 * threads + 2;
    let shared = Shared {
        state: Mutex::new(State {
            jobs,
            taken: 0,
            consumed: 0,
            results: BTreeMap::new(),
            ended: false,
            panicked: false,
        }),
        changed: Condvar::new(),
    };
    thread::scope(|scope| {
        for number in 0..threads {
            let work = || {
                let _end = EndOnPanic(&shared);
                let mut own = start();
                loop {
                    let (number, job) = {
                        let mut state = shared.lock();
                        while !state.ended && state.taken >= state.consumed + window {
                            state = shared.wait(state);
                        }
                        if state.ended {
                            return;
                        }
                        let Some(job) = state.jobs.next() else {
                            state.ended = true;
                            return;
                        };
                        state.taken += 1;
                        (state.taken - 1, job)
                    };
                    let result = work(&mut own, job);
                    shared.lock().results.insert(number, result);
                    shared.changed.notify_all();
                }
            };
            // The system may allow fewer threads.
            match thread::Builder::new().spawn_scoped(scope, work) {
                Ok(_) => {}
                Err(error) if number == 0 => return Err(Error::io("starting a thread")(error)),
                Err(_) => break,
            }
        }
        loop {
            let mut state = shared.lock();
            let next = state.consumed;
            let result = loop {
                if let Some(result) = state.results.remove(&next) {
                    break result;
                }
                if state.panicked || (state.ended && state.taken == next) {
                    return Ok(());
                }
                state = shared.wait(state);
            };
            drop(state);
            let outcome = consume(result);
            let mut state = shared.lock();
            state.consumed += 1;
            state.ended |= outcome.is_err();
            drop(state);
            shared.changed.notify_all();
            outcome?;
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_for_any_number_of_threads() {
        for threads in [1, 2, 7] {
            let mut seen = Vec::new();
            in_order(
                threads,
                0..500u64,
                || 0,
                |_, n| n * n,
                |square| {
                    seen.push(square);
                    Ok(())
                },
            )
            .unwrap();
            assert_eq!(seen, (0..500).map(|n| n * n).collect::<Vec<_>>());
        }
    }

    #[test]
    fn an_error_stops_it() {
        for threads in [1, 3] {
            let result = in_order(
                threads,
                0..1_000_000_000u64,
                || (),
                |(), n| n,
                |n| {
                    if n == 50 { Err(Error::Options("enough".to_owned())) } else { Ok(()) }
                },
            );
            assert!(result.is_err());
        }
    }
}

//! Decides when a failed server is tried again, if other servers can replace it.
//!
//! ```text
//! works ── failure ──▶ rests ── time ──▶ is tried by one request at a time ── success ──▶ works
//!                        ▲                              │
//!                        └── failure: twice as long ────┘
//! ```

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// The first rest. Each further one is twice as long.
const FIRST: Duration = Duration::from_secs(10);

/// The longest rest.
const LONGEST: Duration = Duration::from_secs(640);

/// Whether a server works.
#[derive(Debug, Default)]
pub(crate) struct Rest(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The last rest, and when it ends. `None`: the server works.
    last: Option<(Duration, Instant)>,
    /// Whether a request tries the server after its rest.
    is_tried: bool,
}

/// The right to send a request to a server. The request's failure or success is recorded.
#[derive(Debug)]
pub(crate) struct Turn {
    rest: Arc<Rest>,
    is_trial: bool,
}

impl Rest {
    /// Returns the right to send a request, unless the server rests or another request is trying
    /// it.
    pub(crate) fn turn(self: &Arc<Self>, now: Instant) -> Option<Turn> {
        let mut state = self.lock();
        let is_trial = state.last.is_some();
        if state.last.is_some_and(|(_, end)| now < end) || (is_trial && state.is_tried) {
            return None;
        }
        state.is_tried |= is_trial;
        Some(Turn { rest: Arc::clone(self), is_trial })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn {
    /// Records that the server answered the request completely.
    pub(crate) fn succeeded(&mut self) {
        self.is_trial = false;
        *self.rest.lock() = State::default();
    }

    /// Records that the server failed. Concurrent requests that fail count once.
    pub(crate) fn failed(&mut self, now: Instant) {
        let mut state = self.rest.lock();
        if state.last.is_none_or(|(_, end)| now >= end) {
            let rest = state.last.map_or(FIRST, |(rest, _)| (rest * 2).min(LONGEST));
            state.last = Some((rest, now + rest));
        }
        state.is_tried &= !self.is_trial;
        self.is_trial = false;
    }
}

/// A trial that was abandoned has no result: the next request may try the server.
impl Drop for Turn {
    fn drop(&mut self) {
        if self.is_trial {
            self.rest.lock().is_tried = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_server_that_keeps_failing_is_asked_less_and_less() {
        let (rest, start) = (Arc::<Rest>::default(), Instant::now());
        let second = |second: u64| start + Duration::from_secs(second);
        let failed = |at: u64| rest.turn(second(at)).expect("a turn").failed(second(at));
        // Eight requests that fail together are one failure.
        let mut turns: Vec<_> = (0..8).map(|_| rest.turn(second(0)).expect("a turn")).collect();
        turns.iter_mut().zip(0..).for_each(|(turn, at)| turn.failed(second(at)));
        assert!(rest.turn(second(9)).is_none());
        failed(10);
        assert!(rest.turn(second(29)).is_none());
        failed(30);
        assert!(rest.turn(second(69)).is_none());
        let asked =
            (0..24 * 3600).filter(|at| rest.turn(second(*at)).map(|mut turn| turn.failed(second(*at))).is_some());
        assert!(asked.count() < 150);
        rest.turn(second(25 * 3600)).expect("a turn").succeeded();
        failed(26 * 3600);
        assert!(rest.turn(second(26 * 3600 + 10)).is_some());
    }

    proptest! {
        /// After a failure, at most one request asks the server at a time until one succeeds.
        #[test]
        fn one_request_tries_a_server(steps in proptest::collection::vec((0..4, any::<prop::sample::Index>()), 1..60)) {
            let (rest, start) = (Arc::<Rest>::default(), Instant::now());
            rest.turn(start).expect("a turn").failed(start);
            let (mut now, mut turns) = (start + FIRST, Vec::<Turn>::new());
            for (step, which) in steps {
                match step {
                    0 => turns.extend(rest.turn(now)),
                    1 => now += LONGEST,
                    _ if turns.is_empty() => {}
                    2 => turns.swap_remove(which.index(turns.len())).failed(now),
                    _ => drop(turns.swap_remove(which.index(turns.len()))),
                }
                prop_assert!(turns.len() <= 1);
            }
            turns.clear();
            rest.turn(now + LONGEST).expect("a turn").succeeded();
            let all: Vec<_> = (0..3).map(|_| rest.turn(now).expect("a turn")).collect();
            prop_assert_eq!(all.len(), 3);
        }
    }
}

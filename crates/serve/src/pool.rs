//! The memory of a connection's slow requests: bounded, lent, reused.
//!
//! Buffers are mappings of their own, so that a connection that ends leaves nothing behind: as blocks of the C library's
//! heap they stayed with the process, 8 MB after four connections of nbdcopy.

use std::{
    io,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use memmap2::MmapMut;

/// Buffers up to this size are kept for the next request.
const KEPT_BUFFER_BYTES: usize = 1 << 20;
/// So many at most.
const KEPT_BUFFERS: usize = 4;

#[derive(Debug, Default)]
struct State {
    lent_bytes: usize,
    kept: Vec<MmapMut>,
}

/// What all connections of a server have lent.
///
/// ```text
/// lent_bytes = sum of State::lent_bytes over the pools that share it
///            ≤ limit_bytes + pools × Pool::own_bytes
/// ```
#[derive(Debug)]
pub(crate) struct Budget {
    limit_bytes: usize,
    lent_bytes: AtomicUsize,
}

impl Budget {
    pub(crate) fn new(limit_bytes: usize) -> Arc<Self> {
        Arc::new(Self { limit_bytes, lent_bytes: AtomicUsize::new(0) })
    }

    /// Counts `len_bytes` as lent if they fit, or if they are the pool's `own`.
    fn take(&self, len_bytes: usize, own: bool) -> bool {
        let fits = |lent: usize| own || lent.saturating_add(len_bytes) <= self.limit_bytes;
        let taken = |lent| fits(lent).then_some(lent.saturating_add(len_bytes));
        self.lent_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).is_ok()
    }

    fn give_back(&self, len_bytes: usize) {
        self.lent_bytes.fetch_sub(len_bytes, Ordering::Relaxed);
    }
}

/// Lends buffers: up to `own_bytes` together always, up to `limit_bytes` while the budget has room, and one alone of any
/// size. So what other connections hold never keeps this one from going on, though it may then run fewer requests at a
/// time.
#[derive(Debug)]
pub(crate) struct Pool {
    own_bytes: usize,
    limit_bytes: usize,
    budget: Arc<Budget>,
    state: Mutex<State>,
    returned: Condvar,
}

impl Pool {
    pub(crate) fn new(own_bytes: usize, limit_bytes: usize, budget: Arc<Budget>) -> Arc<Self> {
        let limit_bytes = limit_bytes.max(own_bytes);
        Arc::new(Self { own_bytes, limit_bytes, budget, state: Mutex::default(), returned: Condvar::new() })
    }

    /// Counts `len_bytes` as lent, if that is allowed now.
    fn take(&self, state: &mut State, len_bytes: usize) -> bool {
        let lent_bytes = state.lent_bytes.saturating_add(len_bytes);
        let own = state.lent_bytes == 0 || lent_bytes <= self.own_bytes;
        let taken = (own || lent_bytes <= self.limit_bytes) && self.budget.take(len_bytes, own);
        if taken {
            state.lent_bytes = lent_bytes;
        }
        taken
    }

    /// Lends `len_bytes`, once enough has been returned. The content is left over from earlier requests of the same
    /// connection. Fails when the system has no memory.
    ///
    /// Only one thread may wait at a time, and this buffer and those that it holds already must fit in `own_bytes`: then
    /// what it waits for is held by threads of its connection that do not wait. It is not woken when only the budget gets
    /// room; the next return of its own connection will do.
    pub(crate) fn lend(self: &Arc<Self>, len_bytes: usize) -> io::Result<Lent> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while !self.take(&mut state, len_bytes) {
            state = self.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let kept = if len_bytes <= KEPT_BUFFER_BYTES { state.kept.pop() } else { None };
        drop(state);
        let buffer = match kept {
            Some(buffer) if buffer.len() >= len_bytes => Ok(buffer),
            _ => MmapMut::map_anon(len_bytes),
        };
        match buffer {
            Ok(buffer) => Ok(Lent { pool: Arc::clone(self), buffer: Some(buffer), len_bytes }),
            Err(error) => {
                self.give_back(len_bytes, None);
                Err(error)
            }
        }
    }

    fn give_back(&self, len_bytes: usize, buffer: Option<MmapMut>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.lent_bytes -= len_bytes;
        self.budget.give_back(len_bytes);
        if let Some(buffer) = buffer
            && buffer.len() <= KEPT_BUFFER_BYTES
            && state.kept.len() < KEPT_BUFFERS
        {
            state.kept.push(buffer);
        }
        drop(state);
        self.returned.notify_one();
    }
}

/// A buffer that returns to its pool.
#[derive(Debug)]
pub(crate) struct Lent {
    pool: Arc<Pool>,
    /// There until it is dropped; may be longer than what was asked for.
    buffer: Option<MmapMut>,
    len_bytes: usize,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self.buffer.as_ref().and_then(|buffer| buffer.get(..self.len_bytes)).unwrap_or_default()
    }
}

impl AsMut<[u8]> for Lent {
    fn as_mut(&mut self) -> &mut [u8] {
        self.buffer.as_mut().and_then(|buffer| buffer.get_mut(..self.len_bytes)).unwrap_or_default()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.pool.give_back(self.len_bytes, self.buffer.take());
    }
}

#[cfg(test)]
mod tests {
    use std::{thread, time::Duration};

    use super::*;

    fn alone(limit_bytes: usize) -> Arc<Pool> {
        Pool::new(0, limit_bytes, Budget::new(usize::MAX))
    }

    #[test]
    fn beyond_its_own_share_a_pool_needs_the_budget() {
        let budget = Budget::new(100);
        let [greedy, modest] = [(); 2].map(|()| Pool::new(40, 200, Arc::clone(&budget)));
        let held = greedy.lend(90).expect("memory");
        // Its own share is always there, whatever the others hold.
        let own = [modest.lend(30).expect("memory"), modest.lend(10).expect("memory")];
        assert_eq!(budget.lent_bytes.load(Ordering::Relaxed), 130);
        assert!(!modest.take(&mut modest.state.lock().unwrap(), 1), "lent beyond the budget");
        drop(held);
        let more = modest.lend(60).expect("memory");
        assert!(!modest.take(&mut modest.state.lock().unwrap(), 1), "lent beyond the budget");
        drop((own, more));
        assert_eq!(budget.lent_bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn more_than_the_limit_waits_for_a_return() {
        let pool = alone(100);
        let first = pool.lend(60).expect("memory");
        let waiting = thread::spawn({
            let pool = Arc::clone(&pool);
            move || pool.lend(60).expect("memory").as_ref().len()
        });
        thread::sleep(Duration::from_millis(50));
        assert!(!waiting.is_finished(), "120 bytes were lent out of 100");
        drop(first);
        assert_eq!(waiting.join().unwrap_or(0), 60);
        assert_eq!(pool.state.lock().unwrap().lent_bytes, 0);
    }

    #[test]
    fn one_alone_may_be_larger_than_the_limit() {
        assert_eq!(alone(10).lend(11).expect("memory").as_ref().len(), 11);
    }

    #[test]
    fn large_buffers_are_not_kept_nor_many() {
        let pool = alone(usize::MAX);
        drop(pool.lend(KEPT_BUFFER_BYTES + 1).expect("memory"));
        drop(pool.lend(KEPT_BUFFER_BYTES).expect("memory"));
        let kept: Vec<usize> = pool.state.lock().unwrap().kept.iter().map(|buffer| buffer.len()).collect();
        assert_eq!(kept, [KEPT_BUFFER_BYTES]);
        let held: Vec<_> = (0..2 * KEPT_BUFFERS).map(|_| pool.lend(1).expect("memory")).collect();
        drop(held);
        assert_eq!(pool.state.lock().unwrap().kept.len(), KEPT_BUFFERS);
    }
}

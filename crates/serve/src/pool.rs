//! The memory of a connection's slow requests: bounded, lent, reused.
//!
//! Buffers are mappings of their own, so that a connection that ends leaves nothing behind: as blocks of the C library's
//! heap they stayed with the process, 8 MB after four connections of nbdcopy.

use std::{
    io,
    sync::{Arc, Condvar, Mutex, PoisonError},
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

/// Lends buffers; all that are lent together have `limit_bytes` at most, unless one alone has more.
#[derive(Debug)]
pub(crate) struct Pool {
    limit_bytes: usize,
    state: Mutex<State>,
    returned: Condvar,
}

impl Pool {
    pub(crate) fn new(limit_bytes: usize) -> Arc<Self> {
        Arc::new(Self { limit_bytes, state: Mutex::default(), returned: Condvar::new() })
    }

    /// Lends `len_bytes`, once enough has been returned. The content is left over from earlier requests of the same
    /// connection. Fails when the system has no memory.
    ///
    /// Only one thread may wait at a time, and the buffers that it holds already must leave room for this one: then
    /// what it waits for is held by threads that do not wait for it.
    pub(crate) fn lend(self: &Arc<Self>, len_bytes: usize) -> io::Result<Lent> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.lent_bytes != 0 && state.lent_bytes + len_bytes > self.limit_bytes {
            state = self.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.lent_bytes += len_bytes;
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

    #[test]
    fn more_than_the_limit_waits_for_a_return() {
        let pool = Pool::new(100);
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
        assert_eq!(Pool::new(10).lend(11).expect("memory").as_ref().len(), 11);
    }

    #[test]
    fn large_buffers_are_not_kept() {
        let pool = Pool::new(usize::MAX);
        drop(pool.lend(KEPT_BUFFER_BYTES + 1).expect("memory"));
        drop(pool.lend(KEPT_BUFFER_BYTES).expect("memory"));
        let kept: Vec<usize> = pool.state.lock().unwrap().kept.iter().map(|buffer| buffer.len()).collect();
        assert_eq!(kept, [KEPT_BUFFER_BYTES]);
    }
}

//! Memory outside a pool that counts against its limit.

use std::sync::Arc;

use pagefold_control::{Code, Failure};
use pagefold_disk::Pool;

/// Number of copies of a disk's name in the server's lists.
const NAMES: u64 = 3;

/// Bytes that count against the limit until this is dropped.
pub(crate) struct Counted {
    pool: Pool,
    bytes: u64,
}

impl Counted {
    /// Reserves bytes if there is room for them.
    pub(crate) fn take(pool: &Pool, bytes: u64) -> Option<Self> {
        pool.take_outside(bytes).then(|| Self { pool: pool.clone(), bytes })
    }

    /// Returns the bytes of an entry with this name, from those without it.
    pub(crate) fn with_names(name: &str, record_bytes: u64) -> u64 {
        record_bytes + NAMES * name.len() as u64
    }

    /// Reserves the memory of an entry with this name in the server's lists, if there is room.
    pub(crate) fn record(pool: &Pool, name: &str, record_bytes: u64) -> Result<Arc<Self>, Failure> {
        let taken = Self::take(pool, Self::with_names(name, record_bytes));
        let what = "the server's memory limit leaves no room for another disk: 'pagefold limit SIZE' raises it, and \
                    'pagefold drop' frees memory";
        taken.map(Arc::new).ok_or_else(|| Failure::new(Code::NoMemory, what))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.pool.give_outside(self.bytes);
    }
}

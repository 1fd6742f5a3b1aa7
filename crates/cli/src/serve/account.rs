//! The memory of the server's clients, within the limit that the disks share.

use pagefold_disk::Pool;
use pagefold_serve::Account;

/// Counts bytes against a pool's limit.
pub(crate) struct PoolAccount(pub(crate) Pool);

impl Account for PoolAccount {
    fn take(&self, bytes: u64) -> bool {
        self.0.take_beside(bytes)
    }

    fn take_least(&self, bytes: u64) {
        self.0.take_beside_least(bytes);
    }

    fn give(&self, bytes: u64) {
        self.0.give_beside(bytes);
    }
}

//! The file in memory of a pool that outlives its process.

use std::fs::File;

use pagefold_serve::Passed;

use crate::{Config, Server, TakeOverError, memory_file::memory_file};

/// The end of its name in the store, which begins with the process.
pub(super) const POOL: &str = "pool";

/// Its name among those that are handed over.
pub(super) const MEMORY: &str = "memory";

/// Creates the file of a pool, if the options ask for one.
pub(super) fn new_file(config: &Config) -> Result<Option<File>, TakeOverError> {
    config.keep_memory.then(|| memory_file("pagefold-pool")).transpose().map_err(TakeOverError::Broken)
}

/// Returns the file of the server's pool.
pub(super) fn file(server: &Server) -> Option<&File> {
    server.0.disks.table().pool.file()
}

/// Returns the name of a process's file in the store.
pub(super) fn name(process: u32) -> String {
    Passed::name_of(process, POOL)
}

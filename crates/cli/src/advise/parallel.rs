//! Work that several threads share.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use super::clock::Deadline;

/// Does the work of each number below `count`, in order, until `end`. Returns the results.
pub(super) fn each<T: Send>(
    count: usize,
    threads: usize,
    end: Deadline<'_>,
    work: impl Fn(usize) -> anyhow::Result<Option<T>> + Sync,
) -> anyhow::Result<Vec<Option<T>>> {
    let found: Vec<_> = (0..count).map(|_| Mutex::new(None)).collect();
    let next = AtomicUsize::new(0);
    let run = || -> anyhow::Result<()> {
        while let number = next.fetch_add(1, Ordering::Relaxed)
            && let Some(found) = found.get(number)
            && !end.is_over()
        {
            *found.lock().unwrap_or_else(PoisonError::into_inner) = work(number)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect::<anyhow::Result<()>>()
    })?;
    Ok(found.into_iter().map(|found| found.into_inner().unwrap_or_else(PoisonError::into_inner)).collect())
}

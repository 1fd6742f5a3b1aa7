//! What the C library's allocator keeps of memory that was freed.
#![allow(unsafe_code)] // calls libc

/// Blocks from here on are to come from the system and go back to it when they are freed. Longer
/// than a client's requests mostly are, whose buffers would else be new memory each time (reads of
/// 256 KiB by NBD at 0.8 of the speed).
const LARGE_BYTES: i32 = 4 << 20;

/// Heaps of the process. glibc has eight for each CPU, and each keeps some of what was freed in it
/// (0.1 to 0.4 MiB after clients came and went on two CPUs). Pages, and the buffers of clients,
/// come from mappings of their own, so threads seldom meet here.
const HEAPS: i32 = 2;

/// Has the C library give large blocks back to the system when they are freed. For the start of a
/// program whose stores train tables: it sets the allocator of the whole process (glibc's; others
/// are left as they are), so stores do not do it themselves.
///
/// Once a large block was freed, glibc takes such blocks (up to 32 MiB) from a heap of the thread's
/// own instead, of which it keeps up to twice as much for later: 10 MiB and more after a training,
/// beyond what [`Stats::spent_bytes`](crate::Stats::spent_bytes) says.
pub fn keep_no_large_blocks() {
    // SAFETY: it sets three numbers of the allocator's, under its lock.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, LARGE_BYTES);
        libc::mallopt(libc::M_ARENA_MAX, HEAPS);
    }
}

/// Gives back what is free now: it looks over all heaps of the process, for milliseconds.
pub(crate) fn give_back() {
    // SAFETY: it changes nothing that is in use.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

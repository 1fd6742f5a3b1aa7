//! Control over the free memory that the C library's allocator keeps.
#![allow(unsafe_code)] // calls libc

/// Blocks of at least this many bytes come from the system and go back to it when freed. Most
/// buffers for clients' requests are smaller: mapping each of them again would slow down 256 KiB NBD
/// reads by 20 %.
const LARGE_BYTES: i32 = 4 << 20;

/// Heaps of the process. By default glibc has eight per CPU, and each keeps some freed memory (0.1
/// to 0.4 MiB after clients have come and gone on two CPUs). Pages and client buffers have their
/// own mappings, so threads seldom contend here.
const HEAPS: i32 = 2;

/// Makes the C library return large blocks to the system when they are freed. Call it at the start
/// of a program whose pools train tables. It configures the allocator of the whole process (only
/// glibc's), so pools do not call it themselves.
///
/// By default, once a large block was freed, glibc allocates such blocks (up to 32 MiB) from the
/// thread's heap and keeps up to twice as much for later: after a training 10 MiB and more, which
/// [`Stats::spent_bytes`](crate::Stats::spent_bytes) does not count.
pub fn keep_no_large_blocks() {
    // SAFETY: it sets three numbers in the allocator, under the allocator's lock.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, LARGE_BYTES);
        libc::mallopt(libc::M_ARENA_MAX, HEAPS);
    }
}

/// Returns free memory to the system. It walks all heaps of the process, which takes milliseconds.
pub(crate) fn give_back() {
    // SAFETY: it changes no memory in use.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

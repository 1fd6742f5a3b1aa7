//! Each pool has its own thread for compaction, also in a fork of the process.
#![allow(unsafe_code)] // fork(2): see the SAFETY comments

use std::{
    fs,
    io::{self, Write},
    panic,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use pagefold_codec::Lz4;
use pagefold_store::{Disk, Pool, PoolConfig};

/// The number of pages of a disk, and of those that are discarded again: far above the hard
/// pressure.
const PAGES: u64 = 3000;

/// Returns a pool, and a disk in it that has left much memory partly empty.
fn busy_pool() -> (Pool, Disk) {
    let pool = Pool::new(PoolConfig::default().codec(Arc::new(Lz4))).expect("a pool");
    let disk = pool.disk(PAGES).expect("a disk");
    press(&disk, 1);
    (pool, disk)
}

/// Makes a disk leave memory partly empty.
fn press(disk: &Disk, salt: u64) {
    let mut state = salt;
    for slot in 0..PAGES {
        let mut page = [0; 4096];
        for word in page[..2048].chunks_mut(8) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            word.copy_from_slice(&state.to_ne_bytes());
        }
        disk.write(slot, &page).expect("no limit");
    }
    (0..PAGES).filter(|slot| slot % 4 != 0).for_each(|slot| disk.write_zeroes(slot).expect("a disk"));
    disk.write(0, &[7; 4096]).expect("no limit");
}

/// Returns the number of threads for compaction in this process.
fn threads() -> usize {
    let tasks = fs::read_dir("/proc/self/task").expect("the threads of this process").flatten();
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.starts_with("pagefold-comp")).count()
}

/// Waits until there are this many: the system lists a thread a moment longer than it can be joined.
fn wait_for_threads(count: usize) {
    let start = Instant::now();
    while threads() != count {
        assert!(start.elapsed() < Duration::from_secs(60), "{} threads instead of {count}", threads());
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_pool_has_its_own_thread_while_it_exists_also_after_a_fork() {
    // Its thread has not started: a lock that a thread holds when the process forks stays locked.
    let inherited_pool = Pool::new(PoolConfig::default().codec(Arc::new(Lz4))).expect("a pool");
    let inherited = inherited_pool.disk(PAGES).expect("a disk");
    inherited.write(0, &[7; 4096]).expect("no limit");
    // SAFETY: the child runs only the code below, and no other code of this crate's tests. It uses
    // the allocator and files, which glibc makes usable after a fork.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", io::Error::last_os_error()),
        0 => {
            let checked = panic::catch_unwind(panic::AssertUnwindSafe(|| {
                wait_for_threads(0); // only the thread that forked is here
                let first = busy_pool();
                wait_for_threads(1);
                let second = busy_pool();
                wait_for_threads(2);
                drop(first);
                wait_for_threads(1); // it is joined
                drop(second);
                wait_for_threads(0);
                press(&inherited, 2);
                wait_for_threads(1); // one for the pool of the parent
                drop((inherited, inherited_pool));
                wait_for_threads(0);
            }));
            if let Err(panic) = &checked {
                // The harness captures what the macros print.
                let text = panic.downcast_ref::<String>().map_or("a panic", String::as_str);
                let _ = writeln!(io::stderr(), "{text}");
            }
            // SAFETY: ends the process without running anything else.
            unsafe { libc::_exit(i32::from(checked.is_err())) }
        }
        child => {
            let mut status = 0;
            // SAFETY: `status` is valid for the call.
            let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!((ended, status), (child, 0), "what failed in the child is above");
            // The parent's pool is unaffected.
            press(&inherited, 3);
            drop(inherited_pool);
        }
    }
}

//! Generated trees, built and read back.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use pagefold_roundtrip::{Case, Outcome, attempt, shrink};

/// Cases that are read back.
const CASES: u64 = 10_000;
/// Cases that are tried to make one that fails smaller.
const SHRINK_TRIES: usize = 4000;

/// Makes a case that fails smaller and panics with it. `check` says why one fails.
fn fail(seed: u64, case: &Case, check: impl Fn(&Case) -> Result<Outcome, String>) -> ! {
    let why = check(case).err();
    let small = shrink(case, SHRINK_TRIES, &mut |case| check(case).is_err());
    let small_why = check(&small).err();
    panic!("seed {seed}: {why:?}\nThe smallest case that was found: {small_why:?}\n{small}");
}

#[test]
fn generated_trees_are_read_back() {
    let (next, refused, failed) = (AtomicU64::new(0), AtomicU64::new(0), Mutex::new(None));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= CASES {
                        break;
                    }
                    match attempt(&Case::from_seed(seed)) {
                        Ok(Outcome::Sound) => {}
                        Ok(Outcome::Refused(_)) => {
                            refused.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(_) => {
                            next.store(CASES, Ordering::Relaxed);
                            failed.lock().unwrap().get_or_insert(seed);
                        }
                    }
                }
            });
        }
    });
    if let Some(seed) = failed.into_inner().unwrap() {
        fail(seed, &Case::from_seed(seed), attempt);
    }
    let refused = refused.into_inner();
    assert!(refused * 10 < CASES, "{refused} of {CASES} cases have options that are refused");
}

//! What a test does when this machine lacks what it needs.

/// Says on the standard error that `test` did not run, and why.
///
/// # Panics
/// Where `PAGEFOLD_MUST_RUN=1` is set: such a machine is meant to have everything.
pub fn skipped(test: &str, why: &str) {
    eprintln!("SKIPPED: {test}: {why}");
    assert!(std::env::var_os("PAGEFOLD_MUST_RUN").is_none_or(|value| value != "1"), "{test} must run: {why}");
}

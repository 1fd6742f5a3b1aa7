//! The system's information about this process.

use std::fs;

/// Returns the process's anonymous memory in bytes, as counted by the kernel; `None` if `/proc`
/// cannot be read.
pub(crate) fn anonymous_bytes() -> Option<u64> {
    parse(&fs::read_to_string("/proc/self/status").ok()?)
}

fn parse(status: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    value.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anonymous_memory_is_a_line_of_the_status() {
        assert_eq!(parse("Name:\tx\nRssAnon:\t   12 kB\nRssFile:\t 3 kB\n"), Some(12 << 10));
        for text in ["", "RssAnon:\t12\n", "RssAnon:\tx kB\n", "RssAnon:\t18446744073709551615 kB\n"] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert!(anonymous_bytes().is_some_and(|bytes| bytes > 0));
    }
}

//! Ranges of a blob, as the annotations of manifests have them.

use std::ops::Range;

/// The most ranges that are requested early, and the most bytes of all of them.
const MOST_RANGES: usize = 4;
const MOST_BYTES: u64 = 1 << 20;

/// Parses `START[:END]`, of at most `most_bytes`, in a blob of `size_bytes`.
pub(crate) fn parse(text: &str, size_bytes: u64, most_bytes: u64) -> Option<Range<u64>> {
    let range = match text.split_once(':') {
        Some((start, end)) => number(start)?..number(end)?,
        None => number(text)?..size_bytes,
    };
    let fits = range.start < range.end && range.end <= size_bytes && range.end - range.start <= most_bytes;
    fits.then_some(range)
}

/// Parses digits alone.
pub(crate) fn number(text: &str) -> Option<u64> {
    text.parse().ok().filter(|_| text.bytes().all(|digit| digit.is_ascii_digit()))
}

/// Returns the first of these ranges, as many as are requested early.
pub(crate) fn fitting(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut bytes = 0;
    let fits = |range: &&Range<u64>| {
        bytes += range.end - range.start;
        bytes <= MOST_BYTES
    };
    ranges.iter().take(MOST_RANGES).take_while(fits).cloned().collect()
}

/// Returns ranges as text.
pub(crate) fn text(ranges: &[Range<u64>]) -> String {
    ranges.iter().map(|range| format!("{}:{}", range.start, range.end)).collect::<Vec<_>>().join(",")
}

/// Parses ranges of a blob of `size_bytes`. Returns none if one of them is invalid.
pub(crate) fn parse_all(text: &str, size_bytes: u64) -> Vec<Range<u64>> {
    let parse = |part| parse(part, size_bytes, MOST_BYTES);
    let ranges: Option<Vec<_>> = text.split(',').take(MOST_RANGES).map(parse).collect();
    fitting(&ranges.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges_as_text() {
        let ranges = [0..49_152, 90_000..100_000];
        assert_eq!(parse_all(&text(&ranges), 100_000), ranges);
        for other in ["", "100000", "5:5", "6:5", "-1:5", "+1:5", "1:5,", "1:5;7:9", "0:100001", "0:5,0:x"] {
            assert_eq!(parse_all(other, 100_000), [], "{other}");
        }
    }

    proptest! {
        /// Manifests decide neither how much is requested nor where.
        #[test]
        fn hostile_ranges(parts in proptest::collection::vec((any::<u64>(), any::<u64>()), 0..9),
                          most in 1_u64..4_000_000, size_bytes in any::<u64>()) {
            let parts: Vec<_> = parts.iter().map(|(start, len)| {
                let start = start % size_bytes.max(1);
                start..start.saturating_add(len % most)
            }).collect();
            let parsed = parse_all(&text(&parts), size_bytes);
            prop_assert!(parsed.len() <= MOST_RANGES);
            prop_assert!(parsed.iter().all(|part| part.start < part.end && part.end <= size_bytes));
            prop_assert!(parsed.iter().map(|part| part.end - part.start).sum::<u64>() <= MOST_BYTES);
        }
    }
}

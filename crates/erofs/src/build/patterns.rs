//! Path patterns.

use super::work::step;

/// Returns whether `pattern` applies to `path`. Without a slash, it matches a name at any depth;
/// otherwise, it matches a path below the root, with an optional leading `./`. A trailing slash is
/// ignored.
pub(super) fn applies(pattern: &[u8], path: &[u8]) -> bool {
    let pattern = pattern.strip_suffix(b"/").unwrap_or(pattern);
    if !pattern.contains(&b'/') {
        return matches(pattern, path.rsplit(|byte| *byte == b'/').next().unwrap_or_default());
    }
    matches(pattern.strip_prefix(b"./").or_else(|| pattern.strip_prefix(b"/")).unwrap_or(pattern), path)
}

/// Returns the number of names in the paths that a pattern with a slash matches; `None` if it
/// matches names at any depth.
pub(super) fn depth(pattern: &[u8]) -> Option<usize> {
    let pattern = pattern.strip_suffix(b"/").unwrap_or(pattern);
    if !pattern.contains(&b'/') {
        return None;
    }
    let pattern = pattern.strip_prefix(b"./").or_else(|| pattern.strip_prefix(b"/")).unwrap_or(pattern);
    Some(1 + pattern.iter().filter(|byte| **byte == b'/').count())
}

/// Returns whether `pattern` matches all of `text`. Takes time at most proportional to the product
/// of their lengths.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // The position after the last star and the text position to retry from, one byte later each
    // time.
    let mut star = None;
    while t < text.len() {
        step();
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p + 1, t));
                p += 1;
            }
            Some(b'?') if text[t] != b'/' => (p, t) = (p + 1, t + 1),
            Some(byte) if *byte == text[t] => (p, t) = (p + 1, t + 1),
            _ => match star {
                Some((after, from)) if text[from] != b'/' => {
                    star = Some((after, from + 1));
                    (p, t) = (after, from + 1);
                }
                _ => return false,
            },
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, text, expected) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("*.o", "dir.o", true),
            ("a*b*c", "axxbyybc", true),
            ("a*b*c", "axxbyyb", false),
            ("dir/*", "dir/name", true),
            ("dir/*", "dir/name/below", false),
            ("d?r", "dir", true),
            ("d?r", "d/r", false),
            ("*", "", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
        assert!(applies(b"/etc", b"etc") && !applies(b"/etc", b"usr/etc"));
        assert!(applies(b"./etc", b"etc") && applies(b"./etc/*", b"etc/x") && !applies(b"./etc", b"usr/etc"));
        assert!(applies(b"cache/", b"var/cache") && applies(b"/var/cache/", b"var/cache"));
        assert!(!applies(b"/", b"etc") && !applies(b"", b"etc"));
    }
}

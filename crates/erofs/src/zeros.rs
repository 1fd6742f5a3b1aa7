//! Detection of all-zero bytes.

/// Returns whether all bytes are zero.
pub(crate) fn is_zeros(bytes: &[u8]) -> bool {
    // Compares each byte with the one before it, which runs at memory speed; a loop with an early
    // exit does not.
    bytes.first().is_none_or(|first| *first == 0 && bytes[1..] == bytes[..bytes.len() - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_found() {
        for len in [0, 1, 15, 4096, 70_001] {
            let mut bytes = vec![0; len];
            assert!(is_zeros(&bytes), "{len}");
            for at in [0, 1, len / 2, len.saturating_sub(1)].into_iter().filter(|at| *at < len) {
                bytes[at] = 1;
                assert!(!is_zeros(&bytes), "{len} {at}");
                bytes[at] = 0;
            }
        }
    }
}

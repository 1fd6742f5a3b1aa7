//! The header of a frame of Zstandard (RFC 8878, 3.1.1.1).

/// The largest window that is decoded, 128 MiB, as a power of two: what `zstd` decodes without
/// options.
pub(crate) const MOST_WINDOW_LOG: u32 = 27;

/// Returns why a frame that begins with these bytes cannot be decoded, although it is not damaged.
pub(crate) fn refusal(front: &[u8]) -> Option<String> {
    let [_, _, _, _, descriptor, rest @ ..] = front else { return None };
    let is_single = descriptor & 0x20 != 0;
    let number = |at: usize, len: usize| {
        let bytes = rest.get(at..at + len)?;
        Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    };
    let dictionary_at = usize::from(!is_single);
    let dictionary_len = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let dictionary = number(dictionary_at, dictionary_len)?;
    if dictionary != 0 {
        return Some(format!(
            "it needs the dictionary {dictionary} with which it was compressed: decompress it first with 'zstd -dc -D \
             DICTIONARY'"
        ));
    }
    // A single segment is its own window.
    let window_bytes = match (is_single, descriptor >> 6) {
        (false, _) => {
            let byte = number(0, 1)?;
            let base = 1 << (10 + (byte >> 3));
            base + base / 8 * (byte & 7)
        }
        (true, 0) => number(dictionary_len, 1)?,
        (true, 1) => number(dictionary_len, 2)? + 256,
        (true, size) => number(dictionary_len, if size == 2 { 4 } else { 8 })?,
    };
    (window_bytes > 1 << MOST_WINDOW_LOG).then(|| {
        let (needed, most) = (window_bytes.div_ceil(1 << 20), 1 << (MOST_WINDOW_LOG - 20));
        format!(
            "it needs a window of {needed} MiB, more than {most} MiB: decompress it first with 'zstd -dc --long=31'"
        )
    })
}

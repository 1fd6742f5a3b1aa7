//! Tags of devices: text that identifies what is on a device, padded with zeros.

/// Returns the tag of a device that is an EROFS image with this UUID: the UUID as RFC 9562 writes it.
pub(crate) fn tag_of(uuid: &[u8; 16]) -> [u8; 64] {
    let mut tag = [0; 64];
    let mut at = 0;
    for (number, byte) in uuid.iter().enumerate() {
        if matches!(number, 4 | 6 | 8 | 10) {
            tag[at] = b'-';
            at += 1;
        }
        for digit in [byte >> 4, byte & 15] {
            tag[at] = b"0123456789abcdef"[usize::from(digit)];
            at += 1;
        }
    }
    tag
}

/// Returns whether a tag has the form of a UUID.
pub(crate) fn is_uuid(tag: &[u8; 64]) -> bool {
    let (text, padding) = tag.split_at(36);
    let is_right = |(at, byte): (usize, &u8)| match at {
        8 | 13 | 18 | 23 => *byte == b'-',
        _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
    };
    text.iter().enumerate().all(is_right) && padding.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_uuids_as_text() {
        let tag = tag_of(&[0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0, 1, 2, 3, 4, 5, 6, 0xff]);
        assert_eq!(&tag[..37], b"01234567-89ab-cdef-0001-0203040506ff\0");
        assert!(is_uuid(&tag));
        assert!(!is_uuid(&[0; 64]) && !is_uuid(&[b'a'; 64]));
    }
}

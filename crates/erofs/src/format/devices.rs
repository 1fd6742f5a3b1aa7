//! Tags of devices: text that identifies what is on a device, padded with zeros.

use std::fmt::Write as _;

/// The meaning of a device's tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Identity {
    /// It begins with the image that has this UUID.
    Image([u8; 16]),
    /// It is the blob with this SHA-256 sum, or the start of that blob.
    Blob([u8; 32]),
}

impl Identity {
    /// Parses a tag. `None` if it is neither a UUID as RFC 9562 writes it nor the hexadecimal digits of
    /// a sum, as erofs-image-spec has them.
    pub(crate) fn of_tag(tag: &[u8; 64]) -> Option<Self> {
        if let Some(sum) = digits(tag.iter().copied()) {
            return Some(Self::Blob(sum));
        }
        let (text, padding) = tag.split_at(36);
        let is_dash = |at: usize| matches!(at, 8 | 13 | 18 | 23);
        let has_dashes = (0..36).all(|at| (text[at] == b'-') == is_dash(at));
        if !has_dashes || padding.iter().any(|byte| *byte != 0) {
            return None;
        }
        digits(text.iter().copied().filter(|byte| *byte != b'-')).map(Self::Image)
    }

    /// Returns the tag.
    pub(crate) fn tag(&self) -> [u8; 64] {
        let text = self.to_string();
        let mut tag = [0; 64];
        tag[..text.len()].copy_from_slice(text.as_bytes());
        tag
    }
}

impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (bytes, dashes): (&[u8], _) = match self {
            Self::Image(uuid) => (uuid, &[4, 6, 8, 10][..]),
            Self::Blob(sum) => (sum, &[][..]),
        };
        for (number, byte) in bytes.iter().enumerate() {
            if dashes.contains(&number) {
                f.write_char('-')?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// Parses lower-case hexadecimal digits, which must be as many as there is room for.
fn digits<const N: usize>(mut text: impl Iterator<Item = u8>) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    for byte in &mut bytes {
        for _ in 0..2 {
            *byte = *byte << 4
                | match text.next()? {
                    digit @ b'0'..=b'9' => digit - b'0',
                    digit @ b'a'..=b'f' => digit - b'a' + 10,
                    _ => return None,
                };
        }
    }
    text.next().is_none().then_some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn tags_are_text() {
        let uuid = [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0, 1, 2, 3, 4, 5, 6, 0xff];
        let tag = Identity::Image(uuid).tag();
        assert_eq!(&tag[..37], b"01234567-89ab-cdef-0001-0203040506ff\0");
        assert_eq!(
            Identity::Blob([0x5a; 32]).tag(),
            *b"5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a"
        );
        for other in [[0; 64], [b'g'; 64], [b'A'; 64], [b'-'; 64]] {
            assert_eq!(Identity::of_tag(&other), None);
        }
    }

    proptest! {
        #[test]
        fn tags_stand_for_one_identity(uuid: [u8; 16], sum: [u8; 32], at in 0_usize..64, byte: u8) {
            for identity in [Identity::Image(uuid), Identity::Blob(sum)] {
                let mut tag = identity.tag();
                prop_assert_eq!(Identity::of_tag(&tag), Some(identity));
                let before = tag[at];
                tag[at] = byte;
                prop_assert_eq!(Identity::of_tag(&tag) == Some(identity), byte == before);
            }
        }
    }
}

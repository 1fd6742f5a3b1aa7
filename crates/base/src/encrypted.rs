//! Tests of the first bytes of encrypted files.

/// The packets of OpenPGP (RFC 9580, section 5) with which an encrypted message begins.
const KEY_OF_RECIPIENT: u8 = 1;
const KEY_OF_PASSPHRASE: u8 = 3;
const DATA: u8 = 18;
const DATA_OF_GNUPG: u8 = 20;

/// A packet: its tag, the rest of the bytes from its body on, and the body's length, unless it comes
/// in parts.
struct Packet<'a> {
    tag: u8,
    body: &'a [u8],
    len: Option<usize>,
}

impl<'a> Packet<'a> {
    fn of(bytes: &'a [u8]) -> Option<Self> {
        let (first, rest) = bytes.split_first().filter(|(first, _)| **first & 0x80 != 0)?;
        let is_old = first & 0x40 == 0;
        let tag = if is_old { first >> 2 & 0x0f } else { first & 0x3f };
        let (len, size) = match (is_old, rest) {
            (true, [len, ..]) if first & 3 == 0 => (Some(usize::from(*len)), 1),
            (true, [high, low, ..]) if first & 3 == 1 => (Some(usize::from(u16::from_be_bytes([*high, *low]))), 2),
            (false, [len @ 0..192, ..]) => (Some(usize::from(*len)), 1),
            (false, [high @ 192..224, low, ..]) => {
                (Some((usize::from(*high) - 192) * 256 + usize::from(*low) + 192), 2)
            }
            (false, [224..255, ..]) => (None, 1),
            (false, [255, ..]) => (None, 5),
            _ => return None,
        };
        Some(Self { tag, body: rest.get(size..)?, len })
    }
}

/// One or more keys, each encrypted for a recipient or by a passphrase, and then data.
pub(crate) fn is_openpgp(front: &[u8]) -> bool {
    let (mut rest, mut has_key) = (front, false);
    while let Some(Packet { tag, body, len }) = Packet::of(rest) {
        if matches!(tag, DATA | DATA_OF_GNUPG) {
            return has_key && matches!(body, [1 | 2, ..]);
        }
        let Some(key) = len.and_then(|len| body.get(..len)).filter(|key| is_key(tag, key)) else { return false };
        (rest, has_key) = (&body[key.len()..], true);
    }
    false
}

/// Returns whether a packet has the version and the algorithms of an encrypted key.
fn is_key(tag: u8, key: &[u8]) -> bool {
    const LEAST_RECIPIENT_BYTES: usize = 40;
    match (tag, key) {
        // RSA, Elgamal, and those of elliptic curves.
        (KEY_OF_RECIPIENT, [3, _, _, _, _, _, _, _, _, 1 | 2 | 16 | 18 | 25 | 26, ..]) => {
            key.len() > LEAST_RECIPIENT_BYTES
        }
        // A cipher, and how its key is made of a passphrase with a salt and a hash.
        (KEY_OF_PASSPHRASE, [4, 1..=4 | 7..=13, 1 | 3, 1..=3 | 8..=14, ..]) => true,
        // Also with authentication.
        (KEY_OF_PASSPHRASE, [5, 7..=13, 1..=3, 1 | 3, 1..=3 | 8..=14, ..]) => true,
        _ => false,
    }
}

/// The same as text: a line, headers, an empty line, and Base64.
pub(crate) fn is_armored_openpgp(front: &[u8]) -> bool {
    const LINE_CHARACTERS: usize = 64;
    let mut lines = front.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end);
    if lines.next() != Some(b"-----BEGIN PGP MESSAGE-----") {
        return false;
    }
    let data = lines.by_ref().skip_while(|line| !line.is_empty()).nth(1);
    let is_base64 = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=".contains(byte);
    let is_data = data.is_some_and(|line| {
        // The first bit of a message is 1.
        matches!(line.first(), Some(b'g'..=b'z' | b'0'..=b'9' | b'+' | b'/')) && line.iter().all(is_base64)
    });
    let is_whole_line = data.is_some_and(|line| line.len() >= LINE_CHARACTERS);
    is_data && (is_whole_line || lines.any(|line| line == b"-----END PGP MESSAGE-----"))
}

/// A name, a salt, and data that are not text.
pub(crate) fn is_openssl(front: &[u8]) -> bool {
    let Some(rest) = front.strip_prefix(b"Salted__").filter(|rest| rest.len() >= 8) else { return false };
    match str::from_utf8(rest) {
        Ok(text) => text.contains(|c: char| c.is_control() && !c.is_ascii_whitespace()),
        // A character may be cut in two.
        Err(error) => error.error_len().is_some(),
    }
}

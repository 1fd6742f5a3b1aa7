//! SHA-256 sums, as OCI writes them.

use std::fmt::{self, Write as _};

use sha2::{Digest as _, Sha256};

/// A SHA-256 sum.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sum(pub(crate) [u8; 32]);

impl Sum {
    /// Returns the sum of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Parses `sha256:` and 64 lower-case hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix("sha256:")?.as_bytes();
        let value = |digit: u8| match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        if digits.len() != 64 {
            return None;
        }
        let mut sum = [0; 32];
        for (byte, pair) in sum.iter_mut().zip(digits.as_chunks::<2>().0) {
            *byte = value(pair[0])? << 4 | value(pair[1])?;
        }
        Some(Self(sum))
    }

    /// Returns the digits alone.
    pub(crate) fn hex(&self) -> String {
        let mut text = String::with_capacity(64);
        for byte in self.0 {
            let _ = write!(text, "{byte:02x}");
        }
        text
    }
}

impl From<Sum> for [u8; 32] {
    fn from(sum: Sum) -> Self {
        sum.0
    }
}

impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Computes the sum of bytes that arrive in parts.
#[derive(Clone, Default)]
pub(crate) struct Summing(Sha256);

impl Summing {
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn sum(self) -> Sum {
        Sum(self.0.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        let text = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Sum::of(b"").to_string(), text);
        assert_eq!(Sum::parse(text), Some(Sum::of(b"")));
        for wrong in ["", "sha256:", &text[..70], &text.to_uppercase(), "sha512:00", &text.replace('e', "é")] {
            assert_eq!(Sum::parse(wrong), None, "{wrong}");
        }
    }
}

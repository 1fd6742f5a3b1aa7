//! Numbers in headers and PAX records.
//!
//! ```text
//! octal       digits, with spaces before and spaces or NULs after them; old archivers put a NUL in front
//! base 256    the highest bit of the first byte is set: big endian, two's complement without that bit
//! PAX         decimal digits
//! ```

use std::ops::RangeInclusive;

/// The maximum length of a number in a message.
const MOST_SHOWN: usize = 40;

/// A number as an archive states it.
#[derive(Clone, Copy)]
pub(super) enum Stated<'a> {
    /// A field of the header.
    Field(&'a [u8]),
    /// The value of a PAX record.
    Record(&'a [u8]),
}

impl Stated<'_> {
    /// Returns the number; `None` if it cannot be read. A field without a number, such as npm's
    /// owners, is zero.
    fn parse(self) -> Option<i128> {
        match self {
            Self::Record(value) => {
                let digits = value.strip_prefix(b"-").unwrap_or(value);
                let digits = digits.iter().all(u8::is_ascii_digit).then_some(value)?;
                std::str::from_utf8(digits).ok()?.parse().ok()
            }
            Self::Field([first, rest @ ..]) if first & 0x80 != 0 => {
                let first = i128::from(first & 0x7f) - if first & 0x40 != 0 { 0x80 } else { 0 };
                // A field has at most 12 bytes.
                rest.iter().try_fold(first, |sum, byte| Some(sum.checked_mul(256)? + i128::from(*byte)))
            }
            Self::Field(field) => {
                let is_blank = |byte: &u8| matches!(byte, 0 | b' ');
                let field = field.strip_prefix(b"\0").unwrap_or(field);
                let start = field.iter().position(|byte| *byte != b' ').unwrap_or(field.len());
                let digits = field[start..].split(is_blank).next().unwrap_or_default();
                if digits.is_empty() {
                    return field.iter().all(is_blank).then_some(0);
                }
                let octal =
                    |sum: i128, digit: &u8| (b'0'..=b'7').contains(digit).then(|| sum * 8 + i128::from(digit - b'0'));
                digits.iter().try_fold(0, octal)
            }
        }
    }

    /// Returns the number if it is in `range`, or what is wrong with the property `what`.
    pub(super) fn within(self, what: &str, range: RangeInclusive<i128>) -> Result<i128, String> {
        let number = self.parse();
        if let Some(number) = number.filter(|number| range.contains(number)) {
            return Ok(number);
        }
        let shown = self.shown(number);
        Err(format!("its {what}, {shown}, is not a number from {} to {}", range.start(), range.end()))
    }

    /// Returns the number and its place for messages.
    pub(super) fn shown(self, number: Option<i128>) -> String {
        let text = |bytes: &[u8]| {
            let end = if bytes.len() > MOST_SHOWN { "…" } else { "" };
            format!("'{}{end}'", bytes[..bytes.len().min(MOST_SHOWN)].escape_ascii())
        };
        match (self, number) {
            (Self::Record(value), _) => format!("{} in its PAX header", text(value)),
            (Self::Field(_), Some(number)) => format!("{number} in its header"),
            (Self::Field(field), None) => {
                let end = field.iter().rposition(|byte| !matches!(byte, 0 | b' ')).map_or(0, |at| at + 1);
                format!("{} in its header", text(&field[..end]))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_octal_or_binary() {
        for (field, expected) in [
            (&b"0000644\0"[..], Some(0o644)),
            (b"000644 \0", Some(0o644)),
            (b"   644 \0", Some(0o644)),
            (b"644\0xxxx", Some(0o644)),
            (b"77777777", Some(0o77777777)),
            (b"\x000644\0\0", Some(0o644)),
            (b"        ", Some(0)),
            (b"\0\0\0\0\0\0\0\0", Some(0)),
            (b"\0\0\x00644", None),
            (b"0000698\0", None),
            (b"-000001\0", None),
            (b"\x80\0\0\0\0\0\x01\0", Some(256)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xfe", Some(-2)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", Some(-1)),
            (b"\x80\0\0\x01\0\0\0\0\0\0\0\0", Some(1 << 64)),
        ] {
            assert_eq!(Stated::Field(field).parse(), expected, "{}", field.escape_ascii());
        }
    }

    #[test]
    fn numbers_out_of_range_are_shown_as_written() {
        let uid = |stated: Stated| stated.within("owner", 0..=0xffff_ffff);
        assert_eq!(uid(Stated::Record(b"0012")), Ok(12));
        for (stated, shown) in [
            (Stated::Record(b"4294967296"), "'4294967296' in its PAX header"),
            (Stated::Record(b"-2"), "'-2' in its PAX header"),
            (Stated::Record(b"1.5"), "'1.5' in its PAX header"),
            (Stated::Record(b""), "'' in its PAX header"),
            (Stated::Record(b"+1"), "'+1' in its PAX header"),
            (Stated::Record(&[b'9'; 100]), &format!("'{}…' in its PAX header", "9".repeat(40))),
            (Stated::Field(b"\xff\xff\xff\xff\xff\xff\xff\xfe"), "-2 in its header"),
            (Stated::Field(b"00x0000\0"), "'00x0000' in its header"),
        ] {
            assert_eq!(uid(stated), Err(format!("its owner, {shown}, is not a number from 0 to 4294967295")));
        }
    }
}

//! Sizes in bytes as people read and write them.
//!
//! ```
//! assert_eq!(pagefold_size::parse("1.5G"), Ok(3 << 29));
//! assert_eq!(pagefold_size::show(3 << 29), "1.50 GiB");
//! ```
#![forbid(unsafe_code)]

/// Parses a size in bytes: a number, optionally followed by `K M G T P E` (or `KiB` and so on) for
/// powers of 1024, or `kB MB GB TB PB EB` for powers of 1000. Case and a space before the unit are
/// ignored.
///
/// # Errors
/// What is wrong with the text, and how to write a size.
pub fn parse(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        unit => {
            let mut letters = unit.chars();
            let first = letters.next().unwrap_or(' ');
            let power = "kmgtpe".find(first).map(|at| at as u32 + 1).ok_or_else(|| bad(text))?;
            match letters.as_str() {
                "" | "ib" => 1u64 << (10 * power),
                "b" => 10u64.pow(3 * power),
                _ => return Err(bad(text)),
            }
        }
    };
    let too_large = || format!("'{text}' does not fit a 64-bit number of bytes");
    if let Some((whole, fraction)) = number.split_once('.') {
        let whole: u64 = whole.parse().map_err(|_| bad(text))?;
        let digits = u32::try_from(fraction.len()).ok().filter(|&digits| (1..=9).contains(&digits));
        let scale = 10u64.pow(digits.ok_or_else(|| bad(text))?);
        let fraction: u64 = fraction.parse().map_err(|_| bad(text))?;
        let part = u128::from(factor) * u128::from(fraction);
        if part % u128::from(scale) != 0 {
            return Err(format!("'{text}' is not a whole number of bytes"));
        }
        let bytes = u128::from(whole) * u128::from(factor) + part / u128::from(scale);
        return u64::try_from(bytes).map_err(|_| too_large());
    }
    if number.is_empty() {
        return Err(bad(text));
    }
    let number: u64 = number.parse().map_err(|_| too_large())?;
    number.checked_mul(factor).ok_or_else(too_large)
}

fn bad(text: &str) -> String {
    format!("'{text}' is not a size; write for example 512M, 8G or 8GiB")
}

/// Formats `bytes` for humans: three digits and a binary unit.
pub fn show(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.digits$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("512M", 512 << 20),
            ("8G", 8 << 30),
            ("8GiB", 8 << 30),
            ("8 gib", 8 << 30),
            ("8GB", 8_000_000_000),
            ("1.5G", 3 << 29),
            ("10kB", 10_000),
            ("15E", 15 << 60),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in
            ["", "G", "-1", "8X", "8GG", "1.G", ".5G", "1.2.3", "16E", "99999999999999999999", "8Gibb", "１", "512.5"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_with_three_figures() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (10 << 20, "10.0 MiB"),
            (1023 << 20, "1.00 GiB"),
            (345 << 30, "345 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(show(bytes), text);
        }
    }
}

//! Sizes in bytes as people read and write them.
//!
//! ```
//! assert_eq!(pagefold_size::parse("1.5G"), Ok(3 << 29));
//! assert_eq!(pagefold_size::show(3 << 29), "1.5 GiB");
//! assert_eq!(pagefold_size::show((3 << 29) + 7), "1.50 GiB");
//! assert_eq!(pagefold_size::written(99_999 << 30), "99999 GiB");
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

/// Binary units from the largest, each with the decimal unit of the same power.
const UNITS: [(u64, &str, u64, &str); 6] = [
    (1 << 60, "EiB", 10u64.pow(18), "EB"),
    (1 << 50, "PiB", 10u64.pow(15), "PB"),
    (1 << 40, "TiB", 10u64.pow(12), "TB"),
    (1 << 30, "GiB", 10u64.pow(9), "GB"),
    (1 << 20, "MiB", 10u64.pow(6), "MB"),
    (1 << 10, "KiB", 1000, "kB"),
];

/// Formats an amount that was measured: three digits and a binary unit. A fraction ends in zeros only
/// where the number is rounded.
pub fn show(bytes: u64) -> String {
    let Some(mut at) = UNITS.iter().position(|(unit, ..)| bytes >= *unit) else { return format!("{bytes} B") };
    if let Some(number) = exact(bytes, UNITS[at].0) {
        return format!("{number} {}", UNITS[at].1);
    }
    // A number rounded to 1000 or more of a unit is shown in the next.
    if bytes as f64 / UNITS[at].0 as f64 >= 999.5 && at > 0 {
        at -= 1;
    }
    let (unit, name, ..) = UNITS[at];
    let value = bytes as f64 / unit as f64;
    let digits = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.digits$} {name}")
}

/// Formats an amount that a person chose, as people write it: exactly, in the unit that needs the
/// fewest digits. An amount that needs more than five is shown as [`show`] does.
pub fn written(bytes: u64) -> String {
    let each =
        UNITS.iter().flat_map(|&(binary, name, decimal, other)| [(binary, name), (decimal, other)]).chain([(1, "B")]);
    let exact = each.filter(|(unit, _)| bytes >= *unit).filter_map(|(unit, name)| Some((exact(bytes, unit)?, name)));
    let digits = |number: &str| number.bytes().filter(u8::is_ascii_digit).count();
    match exact.min_by_key(|(number, name)| (digits(number), !name.contains('i'))) {
        Some((number, name)) if digits(&number) <= 5 => format!("{number} {name}"),
        _ => show(bytes),
    }
}

/// Returns `bytes` in a unit if two digits after the point suffice.
fn exact(bytes: u64, unit: u64) -> Option<String> {
    let hundredths = u128::from(bytes) * 100;
    let unit = u128::from(unit);
    if hundredths % unit != 0 {
        return None;
    }
    let (whole, part) = (hundredths / unit / 100, hundredths / unit % 100);
    Some(match part {
        0 => whole.to_string(),
        part if part % 10 == 0 => format!("{whole}.{}", part / 10),
        part => format!("{whole}.{part:02}"),
    })
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
    fn invalid_sizes_are_refused() {
        for text in
            ["", "G", "-1", "8X", "8GG", "1.G", ".5G", "1.2.3", "16E", "99999999999999999999", "8Gibb", "１", "512.5"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn measured_sizes_have_three_figures() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1025, "1.00 KiB"),
            (1536, "1.5 KiB"),
            (10 << 20, "10 MiB"),
            ((10 << 20) + 1, "10.0 MiB"),
            (1023 << 20, "1023 MiB"),
            ((1023 << 20) + 1, "1.00 GiB"),
            ((1 << 30) - 1, "1.00 GiB"),
            (345 << 30, "345 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(show(bytes), text);
        }
    }

    #[test]
    fn chosen_sizes_are_as_people_write_them() {
        for text in [
            "0 B",
            "512 B",
            "7 B",
            "4 KiB",
            "64 MiB",
            "100 GiB",
            "1.5 GiB",
            "1.25 TiB",
            "1000 MiB",
            "10000 MiB",
            "99999 GiB",
            "8 GB",
            "1.44 MB",
            "1440 KiB",
            "15 EiB",
            "1 kB",
        ] {
            assert_eq!(written(parse(text).expect("a size")), text);
        }
        assert_eq!(written(12_345_678_848), "11.5 GiB");
        assert_eq!(written(u64::MAX), "16.0 EiB");
    }

    proptest::proptest! {
        /// What is shown is what was given, except that five digits may be rounded to three.
        #[test]
        fn sizes_are_shown_truly(number in 0u64..100_000, power in 0u32..6, decimal: bool, any: u64, shift in 0u32..64) {
            let unit = if decimal { 1000u64.pow(power) } else { 1 << (10 * power) };
            if let Some(bytes) = number.checked_mul(unit) {
                proptest::prop_assert_eq!(parse(&written(bytes)), Ok(bytes), "{}", written(bytes));
            }
            let bytes = any >> shift;
            for text in [show(bytes), written(bytes)] {
                let (digits, unit) = text.split_once(' ').expect("a unit");
                let number: f64 = digits.parse().expect("a number");
                let unit = parse(&format!("1{unit}")).expect("a unit") as f64;
                let difference = (number * unit - bytes as f64).abs();
                proptest::prop_assert!(difference <= 0.0051 * bytes as f64, "{} is not {}", text, bytes);
                let is_round = digits.contains('.') && digits.ends_with('0');
                proptest::prop_assert!(!is_round || difference > 0.0, "{} ends in zeros", text);
            }
        }
    }
}

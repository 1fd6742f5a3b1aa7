//! Numbers and differences in words.

use super::{ratio::Measure, record::Spread};

/// Smaller differences are reported as equal: 0.5 %.
const SAME: f64 = 0.005;

/// Describes `times_better` for pagefold, as in `54 % less`, `2.1× faster`, `12 % slower`.
pub(crate) fn difference(measure: Measure, times_better: f64) -> String {
    let (better, worse) = match measure {
        Measure::Speed | Measure::Time => ("faster", "slower"),
        Measure::Bytes => ("less", "more"),
    };
    if (times_better - 1.0).abs() < SAME {
        return "equal".to_owned();
    }
    if times_better >= 1.0 {
        // Half the bytes are "50 % less"; from a factor of 10 on, the factor says more.
        return match measure {
            Measure::Bytes if times_better < 10.0 => format!("{} % {better}", percent(1.0 - 1.0 / times_better)),
            _ => more(times_better, better),
        };
    }
    match measure {
        Measure::Bytes => more(1.0 / times_better, worse),
        _ if times_better > 0.5 => format!("{} % {worse}", percent(1.0 - times_better)),
        _ => more(1.0 / times_better, worse),
    }
}

fn more(factor: f64, word: &str) -> String {
    if factor < 2.0 { format!("{} % {word}", percent(factor - 1.0)) } else { format!("{} {word}", times(factor)) }
}

fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent < 9.95 { format!("{percent:.1}") } else { format!("{percent:.0}") }
}

/// Formats a factor, as in `0.46×`, `2.1×`, `130×`.
fn times(factor: f64) -> String {
    if !factor.is_finite() {
        return "–".to_owned();
    }
    let decimals = if factor < 2.0 {
        2
    } else if factor < 20.0 {
        1
    } else {
        0
    };
    format!("{}×", grouped(factor, decimals))
}

/// Formats two factors, as in `1.2–1.9×`.
pub(crate) fn between(low: f64, high: f64) -> String {
    format!("{}–{}", times(low).trim_end_matches('×'), times(high))
}

/// Formats the range from the lowest turn to the highest. A single turn is marked `(1)`.
pub(crate) fn range(ratio: Spread) -> String {
    match ratio.turns {
        1 => format!("{} (1)", times(ratio.median)),
        _ if times(ratio.low) == times(ratio.high) => times(ratio.low),
        _ => between(ratio.low, ratio.high),
    }
}

/// Formats a duration, as in `3 min 20 s`.
pub(crate) fn minutes(seconds: f64) -> String {
    let seconds = seconds.max(0.0).round() as u64;
    if seconds < 60 { format!("{seconds} s") } else { format!("{} min {} s", seconds / 60, seconds % 60) }
}

/// Returns the singular or plural of a word.
pub(crate) fn plural(count: usize, word: &str) -> String {
    if count == 1 { word.to_owned() } else { format!("{word}s") }
}

/// Formats a number with `decimals` decimal places and grouped thousands, as in `1,414,200`.
pub(crate) fn grouped(value: f64, decimals: usize) -> String {
    let text = format!("{:.decimals$}", value.abs());
    let (whole, rest) = text.split_once('.').unwrap_or((&text, ""));
    let mut out = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    if !rest.is_empty() {
        out.push('.');
        out.push_str(rest);
    }
    if value < 0.0 { format!("−{out}") } else { out }
}

/// Formats a figure with about four digits, for the raw tables.
pub(crate) fn figure(value: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 1000.0 || size == 0.0 => 0,
        size if size >= 100.0 => 1,
        size if size >= 10.0 => 2,
        size if size >= 0.1 => 3,
        _ => 5,
    };
    grouped(value, decimals)
}

/// Formats a date and time in UTC.
pub(crate) fn utc(unix_s: u64) -> String {
    let (days, second) = (unix_s / 86_400, unix_s % 86_400);
    let (year, month, day) = civil(days);
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", second / 3600, second / 60 % 60)
}

/// Converts a number of days since 1970-01-01 to year, month and day.
fn civil(days: u64) -> (u64, u64, u64) {
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    // 400 years have 146,097 days; the remainder is counted year by year.
    let (mut year, mut left) = (1970 + days / 146_097 * 400, days % 146_097);
    loop {
        let len = if is_leap(year) { 366 } else { 365 };
        if left < len {
            break;
        }
        left -= len;
        year += 1;
    }
    let february = if is_leap(year) { 29 } else { 28 };
    let months = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for len in months {
        if left < len {
            break;
        }
        left -= len;
        month += 1;
    }
    (year, month, left + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_said_from_the_side_of_pagefold() {
        let said = [
            (Measure::Bytes, 2.0, "50 % less"),
            (Measure::Bytes, 1.05, "4.8 % less"),
            (Measure::Bytes, 50.0, "50× less"),
            (Measure::Bytes, 0.8, "25 % more"),
            (Measure::Bytes, 0.25, "4.0× more"),
            (Measure::Speed, 1.5, "50 % faster"),
            (Measure::Speed, 2.14, "2.1× faster"),
            (Measure::Time, 0.88, "12 % slower"),
            (Measure::Speed, 0.25, "4.0× slower"),
            (Measure::Time, 1.0004, "equal"),
        ];
        for (measure, ratio, words) in said {
            assert_eq!(difference(measure, ratio), words);
        }
    }

    #[test]
    fn numbers_are_grouped() {
        assert_eq!([grouped(1_414_200.0, 0), grouped(999.5, 1), grouped(-1000.0, 0)], ["1,414,200", "999.5", "−1,000"]);
        assert_eq!(
            [figure(0.0), figure(12.3456), figure(0.01234), figure(123_456.7)],
            ["0", "12.35", "0.01234", "123,457"]
        );
        assert_eq!([times(0.456), times(2.14), times(131.4), times(f64::NAN)], ["0.46×", "2.1×", "131×", "–"]);
    }

    #[test]
    fn times_are_said_in_minutes() {
        assert_eq!([minutes(0.4), minutes(59.6), minutes(200.0)], ["0 s", "1 min 0 s", "3 min 20 s"]);
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        assert_eq!(utc(0), "1970-01-01 00:00 UTC");
        assert_eq!(utc(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(utc(1_763_942_999), "2025-11-24 00:09 UTC");
        assert_eq!(utc(4_107_542_400), "2100-03-01 00:00 UTC");
    }
}

//! Names, dates and errors as text.

use std::fmt::Write as _;

use pagefold_control::is_unseen;

/// Formats a time since 1970 as a date in UTC (Hinnant, *chrono-Compatible Low-Level Date
/// Algorithms*).
pub(crate) fn date(seconds: i64, nanoseconds: u32) -> String {
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Years begin in March, so the leap day is the last day of a year; 400 years always have the
    // same number of days.
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let year = 400 * era + year + i64::from(month >= 10);
    let month = if month < 10 { month + 3 } else { month - 9 };
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{nanoseconds:09}")
}

/// Returns a name in printable form: characters that cannot be seen, invalid UTF-8 and backslashes are
/// escaped, so no two names look alike.
pub(crate) fn show(name: &[u8]) -> String {
    escaped(name, |letter| is_unseen(letter) || letter == '\\')
}

/// Returns a text, which may contain names in printable form, with what cannot be seen escaped.
pub(crate) fn plain(text: &str) -> String {
    escaped(text.as_bytes(), is_unseen)
}

/// Returns JSON with what cannot be seen in its strings escaped.
pub(crate) fn plain_json(json: &str) -> String {
    let mut plain = String::with_capacity(json.len());
    for letter in json.chars() {
        if is_unseen(letter) {
            letter.encode_utf16(&mut [0; 2]).iter().for_each(|unit| {
                let _ = write!(plain, "\\u{unit:04x}");
            });
        } else {
            plain.push(letter);
        }
    }
    plain
}

fn escaped(text: &[u8], is_escaped: impl Fn(char) -> bool) -> String {
    let mut shown = String::new();
    for chunk in text.utf8_chunks() {
        for letter in chunk.valid().chars() {
            if is_escaped(letter) {
                let _ = write!(shown, "{}", letter.escape_default());
            } else {
                shown.push(letter);
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(shown, "\\x{byte:02x}");
        }
    }
    shown
}

/// Formats an error with its causes on one line.
pub(crate) fn message(error: &anyhow::Error) -> String {
    pagefold_server::message(&**error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        for (seconds, date_) in [
            (0, "1970-01-01 00:00:00"),
            (-1, "1969-12-31 23:59:59"),
            (68_169_599, "1972-02-28 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (951_868_800, "2000-03-01 00:00:00"),
            (1_798_761_599, "2026-12-31 23:59:59"),
            (4_107_542_400, "2100-03-01 00:00:00"),
            (10_000_000_000, "2286-11-20 17:46:40"),
            (-2_208_988_800, "1900-01-01 00:00:00"),
            (i64::MAX, "292277026596-12-04 15:30:07"),
        ] {
            assert_eq!(date(seconds, 5), format!("{date_}.000000005"), "{seconds}");
        }
        assert!(date(i64::MIN, 0).starts_with("-292277022657-01-27 "));
    }

    #[test]
    fn names_are_safe_to_show() {
        assert_eq!(show("grün".as_bytes()), "grün");
        assert_eq!(show(b"\x1b[2J\xff\n"), "\\u{1b}[2J\\xff\\n");
        assert_ne!(show(b"\\n"), show(b"\n"));
        // Once shown, a name is the same in each text.
        assert_eq!((show(b"a\\b").as_str(), plain(&show(b"a\\b\n")).as_str()), ("a\\\\b", "a\\\\b\\n"));
        assert_eq!(show("a\u{202e}\u{200b}\u{2028}b".as_bytes()), "a\\u{202e}\\u{200b}\\u{2028}b");
    }

    #[test]
    fn json_is_safe_to_show() {
        let name = "a\u{7f}\u{85}\u{2028}\u{200b}\u{202e}\u{e0041}\n\\ é\"";
        let json = serde_json::json!({ "name": name }).to_string();
        let plain = plain_json(&json);
        assert_eq!(plain, r#"{"name":"a\u007f\u0085\u2028\u200b\u202e\udb40\udc41\n\\ é\""}"#);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&plain).expect("JSON")["name"], name);
        assert_eq!(plain_json(r#"{"a":[1, "b"]}"#), r#"{"a":[1, "b"]}"#);
    }
}

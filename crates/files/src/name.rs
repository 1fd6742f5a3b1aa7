//! Names of files.
//!
//! A file has the name of its export, except that `/` and `%` are escaped as `%2F` and `%25`, as in
//! URIs. An export named `.` or `..` is `%2E` or `%2E%2E`, and one without a name is `%`. So every
//! name is a file name, and no two are the same.

use std::{borrow::Cow, ffi::OsStr};

use percent_encoding::percent_decode;

/// The longest file name on Linux, in bytes.
const MAX_BYTES: usize = 255;

/// The file name of an export without a name.
const UNNAMED: &str = "%";

/// Returns the name of an export's file; `None` if it would be too long.
pub fn of_export(name: &str) -> Option<Cow<'_, str>> {
    let name: Cow<str> = match name {
        "" => UNNAMED.into(),
        "." => "%2E".into(),
        ".." => "%2E%2E".into(),
        name if name.contains(['/', '%']) => name.replace('%', "%25").replace('/', "%2F").into(),
        name => name.into(),
    };
    (name.len() <= MAX_BYTES).then_some(name)
}

/// Returns the name of the export that has this file; `None` if none can have it.
pub(crate) fn to_export(name: &OsStr) -> Option<Cow<'_, str>> {
    let name = name.to_str()?;
    let export = if name == UNNAMED { "".into() } else { percent_decode(name.as_bytes()).decode_utf8().ok()? };
    // The same name escaped in another way is not a file.
    (of_export(&export)? == name).then_some(export)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn invalid_file_names_are_escaped() {
        let cases = [
            ("job-1", "job-1"),
            ("debian@before", "debian@before"),
            ("a/b", "a%2Fb"),
            ("100%", "100%25"),
            ("%2F", "%252F"),
            ("", "%"),
            ("%", "%25"),
            (".", "%2E"),
            ("..", "%2E%2E"),
            ("...", "..."),
            ("日本 1", "日本 1"),
        ];
        for (export, file) in cases {
            assert_eq!(of_export(export).as_deref(), Some(file));
            assert_eq!(to_export(OsStr::new(file)).as_deref(), Some(export));
        }
        assert_eq!(of_export(&"x".repeat(256)), None);
        for other in ["%2f", "%41", "%2", "a%", "."] {
            assert_eq!(to_export(OsStr::new(other)), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn each_export_has_its_own_name(name in "[/%.2Ea-c\u{e9}]{0,6}") {
            let file = of_export(&name).expect("a short name");
            prop_assert!(!file.is_empty() && !file.contains('/') && file != "." && file != "..");
            prop_assert!(to_export(OsStr::new(&*file)).is_some_and(|export| export == name));
        }

        #[test]
        fn a_file_has_one_export(file in "[%.2EFa-c]{1,7}") {
            if let Some(export) = to_export(OsStr::new(&file)) {
                prop_assert!(of_export(&export).is_some_and(|name| name == file));
            }
        }
    }
}

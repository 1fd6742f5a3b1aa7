//! Names of disks and snapshots.

use crate::{Code, Failure};

/// Separates a disk's name from that of its snapshot.
const SNAPSHOT_SIGN: char = '@';

/// Maximum length of an export's name in NBD.
pub const MAX_NAME_BYTES: usize = 4096;

/// Ranges of characters that are not shown, that look like a space, or that change the direction of
/// the text around them: a name with one could look like another name. These are Unicode's categories
/// Cf, Zl, Zp and Zs (without the plain space and the wide one of East Asian texts), its property
/// Default_Ignorable_Code_Point, which has fillers, variation selectors and tags, and single blank
/// symbols.
#[rustfmt::skip]
const UNSEEN: [(char, char); 30] = [
    ('\u{a0}', '\u{a0}'), ('\u{ad}', '\u{ad}'), ('\u{34f}', '\u{34f}'), ('\u{600}', '\u{605}'),
    ('\u{61c}', '\u{61c}'), ('\u{6dd}', '\u{6dd}'), ('\u{70f}', '\u{70f}'), ('\u{890}', '\u{891}'),
    ('\u{8e2}', '\u{8e2}'), ('\u{115f}', '\u{1160}'), ('\u{1680}', '\u{1680}'), ('\u{17b4}', '\u{17b5}'),
    ('\u{180b}', '\u{180f}'), ('\u{2000}', '\u{200f}'), ('\u{2028}', '\u{202f}'),
    ('\u{205f}', '\u{206f}'), ('\u{2800}', '\u{2800}'), ('\u{3164}', '\u{3164}'),
    ('\u{fe00}', '\u{fe0f}'), ('\u{feff}', '\u{feff}'), ('\u{ffa0}', '\u{ffa0}'),
    ('\u{fff0}', '\u{fffb}'), ('\u{fffe}', '\u{ffff}'), ('\u{110bd}', '\u{110bd}'),
    ('\u{110cd}', '\u{110cd}'), ('\u{13430}', '\u{1343f}'), ('\u{1bca0}', '\u{1bca3}'),
    ('\u{1d159}', '\u{1d159}'), ('\u{1d173}', '\u{1d17a}'), ('\u{e0000}', '\u{e0fff}'),
];

/// Returns whether a character cannot be seen: a control character, one without a shape of its own, or one that
/// changes the direction of the text around it.
pub fn is_unseen(letter: char) -> bool {
    let at = UNSEEN.partition_point(|(_, last)| *last < letter);
    letter.is_control() || UNSEEN.get(at).is_some_and(|(first, _)| *first <= letter)
}

/// Returns the name with unseen characters escaped.
fn shown(name: &str) -> String {
    let mut shown = String::new();
    for letter in name.chars() {
        if is_unseen(letter) {
            shown.extend(letter.escape_unicode());
        } else {
            shown.push(letter);
        }
    }
    shown
}

/// Checks whether a disk can have this name.
///
/// # Errors
/// [`Code::InvalidName`] if the name is longer than NBD allows, contains characters that lists and
/// logs cannot show ([`is_unseen`]), or contains `@`, which is reserved for snapshots.
pub fn check_name(name: &str) -> Result<(), Failure> {
    check_export_name(name)?;
    if name.contains(SNAPSHOT_SIGN) {
        let what = format!("invalid name '{name}': '@' is reserved for snapshots, DISK@SNAPSHOT");
        return Err(Failure::new(Code::InvalidName, what));
    }
    Ok(())
}

/// Returns the name of a disk's snapshot.
pub fn snapshot_name(disk: &str, snapshot: &str) -> String {
    format!("{disk}{SNAPSHOT_SIGN}{snapshot}")
}

/// Splits a snapshot's name into those of the disk and the snapshot; returns `None` for a disk's
/// name.
pub fn split_snapshot_name(name: &str) -> Option<(&str, &str)> {
    name.split_once(SNAPSHOT_SIGN)
}

/// Checks whether a disk's snapshot can have this name.
///
/// # Errors
/// [`Code::InvalidName`].
pub fn check_snapshot(disk: &str, snapshot: &str) -> Result<(), Failure> {
    check_export_name(&snapshot_name(disk, snapshot))?;
    if snapshot.is_empty() || snapshot.contains(SNAPSHOT_SIGN) {
        let what = format!("invalid snapshot name '{snapshot}': must be non-empty and without '@'");
        return Err(Failure::new(Code::InvalidName, what));
    }
    Ok(())
}

/// Checks a new name: a snapshot must remain a snapshot of the same disk, and a disk must not
/// become one.
///
/// # Errors
/// [`Code::InvalidName`].
pub fn check_new_name(name: &str, to: &str) -> Result<(), Failure> {
    match (split_snapshot_name(name), split_snapshot_name(to)) {
        (Some((disk, _)), Some((same, snapshot))) if disk == same => check_snapshot(disk, snapshot),
        (Some((disk, _)), _) => {
            let what = format!("'{name}' is a snapshot: a new name for it begins with '{disk}{SNAPSHOT_SIGN}'");
            Err(Failure::new(Code::InvalidName, what))
        }
        (None, _) => check_name(to),
    }
}

/// Checks whether an export can have this name.
fn check_export_name(name: &str) -> Result<(), Failure> {
    let wrong = |what: String| Err(Failure::new(Code::InvalidName, what));
    if name.len() > MAX_NAME_BYTES {
        return wrong(format!("name of {} bytes: NBD allows {MAX_NAME_BYTES}", name.len()));
    }
    if let Some(letter) = name.chars().find(|letter| is_unseen(*letter)) {
        let what = if letter.is_control() { "a control character" } else { "an invisible character" };
        return wrong(format!("invalid name '{}': contains {what}, {}", shown(name), letter.escape_unicode()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_can_be_seen() {
        for name in ["", "job 1", "e\u{301}", "日本\u{3000}語", "ܐܒܓ", "علم", "🦀", "%2F?#'\""] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        let unseen = "\0\n\u{7f}\u{85}\u{ad}\u{34f}\u{61c}\u{200b}\u{200d}\u{200e}\u{2028}\u{2029}\u{202a}\u{202e}\u{2060}\
                      \u{2066}\u{2069}\u{3164}\u{fe0f}\u{feff}\u{fff9}\u{e0001}\u{e0041}\u{e0100}\u{a0}\u{2003}\u{202f}\u{2800}\u{1d159}\u{ffff}";
        for letter in unseen.chars() {
            let name = format!("job{letter}1");
            for result in [check_name(&name), check_snapshot("disk", &name), check_new_name("disk", &name)] {
                let failure = result.expect_err("a character that is not seen");
                assert_eq!(failure.code, Code::InvalidName);
                assert!(failure.message.contains(&format!("job{}1'", letter.escape_unicode())), "{failure}");
            }
        }
        assert!(UNSEEN.is_sorted() && UNSEEN.iter().all(|(first, last)| first <= last));
    }
}

//! Counts properties of a source that an image does not preserve.

use std::collections::BTreeMap;
use std::fmt;

/// The maximum number of examples per kind.
const MOST_EXAMPLES: usize = 20;
/// The same for files that changed: users need their names.
const MOST_CHANGES: usize = 1000;

/// The kind of a [`Warning`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum WarningKind {
    /// Unreadable files and directories were skipped
    /// ([`ScanOptions::skip_unreadable`](crate::ScanOptions::skip_unreadable)).
    Unreadable,
    /// Files and directories were left out because they vanished, or could no longer be opened,
    /// before they were read.
    Vanished,
    /// Files and directories were left out because others were in their places when they were read.
    Replaced,
    /// Files became shorter before they were read: their ends were replaced by zeros.
    Shorter,
    /// Files changed before their copies in the image could be compared with them.
    Changed,
    /// Extended attributes were skipped because their names have none of EROFS's prefixes.
    XattrName,
    /// Extended attributes were skipped because no file in Linux can have their names: these are
    /// longer than 255 bytes, contain NUL or end with the prefix.
    ImpossibleXattrName,
    /// NFSv4 ACLs were skipped.
    Nfs4Acl,
    /// POSIX ACLs were skipped because they name users or groups without an id that this system
    /// does not know.
    AclName,
    /// Archives end without the zeros that mark their end, so members may be missing.
    NoEnd,
    /// Directories of an archive were left out, with the files in them, because a later member that is
    /// not a directory has their name.
    ReplacedDirectory,
    /// Files whose names denote whiteouts of container layers became ordinary files.
    WhiteoutFile,
    /// A layer contains directories that it does not describe, so their default mode and owner hide
    /// those of the layers below.
    UndescribedDirectory,
    /// A layer hides everything below it, which overlayfs cannot express for the root.
    OpaqueRoot,
}

/// A kind of property that an image does not preserve.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Warning {
    /// The kind.
    pub kind: WarningKind,
    /// The number of occurrences.
    pub count: u64,
    /// The first occurrences as text for users: at most 20, or 1000 if files changed.
    pub examples: Vec<String>,
}

impl Warning {
    /// Returns whether the source changed while it was read.
    pub fn is_change(&self) -> bool {
        is_change(self.kind)
    }
}

fn is_change(kind: WarningKind) -> bool {
    matches!(kind, WarningKind::Vanished | WarningKind::Replaced | WarningKind::Shorter | WarningKind::Changed)
}

fn most_examples(kind: WarningKind) -> usize {
    if is_change(kind) { MOST_CHANGES } else { MOST_EXAMPLES }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, count, examples } = self;
        let (one, more) = match kind {
            WarningKind::Unreadable => {
                ("file skipped because it cannot be read", "files skipped because they cannot be read")
            }
            WarningKind::Vanished => ("file left out because it vanished", "files left out because they vanished"),
            WarningKind::Replaced => {
                ("file left out because it was replaced", "files left out because they were replaced")
            }
            WarningKind::Shorter => (
                "file padded with zeros because it became shorter",
                "files padded with zeros because they became shorter",
            ),
            WarningKind::Changed => ("file not verified because it changed", "files not verified because they changed"),
            WarningKind::XattrName => (
                "extended attribute skipped because EROFS has no prefix for its name",
                "extended attributes skipped because EROFS has no prefix for their names",
            ),
            WarningKind::ImpossibleXattrName => (
                "extended attribute skipped because no file in Linux can have its name",
                "extended attributes skipped because no file in Linux can have their names",
            ),
            WarningKind::Nfs4Acl => (
                "NFSv4 ACL skipped because EROFS supports only POSIX ACLs",
                "NFSv4 ACLs skipped because EROFS supports only POSIX ACLs",
            ),
            WarningKind::AclName => (
                "ACL skipped because it names an account that this system does not know",
                "ACLs skipped because they name accounts that this system does not know",
            ),
            WarningKind::NoEnd => (
                "archive ends without an end marker, so members may be missing",
                "archives end without an end marker, so members may be missing",
            ),
            WarningKind::ReplacedDirectory => (
                "directory left out with its files because a later member of the archive has its name",
                "directories left out with their files because later members of the archive have their names",
            ),
            WarningKind::WhiteoutFile => (
                "whiteout kept as an ordinary file: use --layer to keep it in overlayfs form, or give the lower layers \
                 first to apply it",
                "whiteouts kept as ordinary files: use --layer to keep them in overlayfs form, or give the lower layers \
                 first to apply them",
            ),
            WarningKind::UndescribedDirectory => (
                "directory that the layer does not describe has mode 0755 and root as owner",
                "directories that the layer does not describe have mode 0755 and root as owner",
            ),
            WarningKind::OpaqueRoot => (
                "layer hides everything below it, which overlayfs cannot express for the root: mount it without \
                 the layers below",
                "layers hide everything below them, which overlayfs cannot express for the root: mount them \
                 without the layers below",
            ),
        };
        write!(f, "{count} {}", if *count == 1 { one } else { more })?;
        match &examples[..] {
            [] => Ok(()),
            [only] if *count == 1 => write!(f, ": {only}"),
            [first, ..] => write!(f, ", such as {first}"),
        }
    }
}

/// Warnings by kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct Warnings {
    kinds: BTreeMap<WarningKind, (u64, Vec<String>)>,
}

impl Warnings {
    pub(crate) fn add(&mut self, kind: WarningKind, example: impl FnOnce() -> String) {
        let (count, examples) = self.kinds.entry(kind).or_default();
        *count += 1;
        if examples.len() < most_examples(kind) {
            examples.push(example());
        }
    }

    /// Returns whether another example of this kind would be kept.
    pub(crate) fn wants_example(&self, kind: WarningKind) -> bool {
        self.kinds.get(&kind).is_none_or(|(_, examples)| examples.len() < most_examples(kind))
    }

    pub(crate) fn append(&mut self, other: Self) {
        for (kind, (more, further)) in other.kinds {
            let (count, examples) = self.kinds.entry(kind).or_default();
            *count += more;
            examples.extend(further.into_iter().take(most_examples(kind).saturating_sub(examples.len())));
        }
    }

    pub(crate) fn list(&self) -> Vec<Warning> {
        let warning = |(kind, (count, examples)): (&WarningKind, &(u64, Vec<String>))| Warning {
            kind: *kind,
            count: *count,
            examples: examples.clone(),
        };
        self.kinds.iter().map(warning).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_counted_and_the_first_are_named() {
        let mut warnings = Warnings::default();
        warnings.add(WarningKind::Nfs4Acl, || "a/b".to_owned());
        assert_eq!(warnings.list()[0].to_string(), "1 NFSv4 ACL skipped because EROFS supports only POSIX ACLs: a/b");
        let mut more = Warnings::default();
        for number in 0..100 {
            more.add(WarningKind::Nfs4Acl, || number.to_string());
        }
        warnings.append(more);
        let list = warnings.list();
        assert_eq!((list.len(), list[0].count, list[0].examples.len()), (1, 101, MOST_EXAMPLES));
        assert_eq!(list[0].to_string(), "101 NFSv4 ACLs skipped because EROFS supports only POSIX ACLs, such as a/b");
    }
}

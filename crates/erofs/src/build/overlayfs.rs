//! The xattrs in which overlayfs stores how a file belongs to its layer.
//!
//! ```text
//! opaque            y: the directory hides those below; x: it has whiteouts by xattr
//! whiteout          the empty file is a whiteout
//! redirect          the directory or file is elsewhere in the layers below: a name, or a path
//! metacopy          the file's content is in a layer below
//! origin, impure, nlink, upper, uuid, protattr
//!                   bookkeeping, which means nothing on another file system
//! overlay.NAME      the xattr NAME of an overlayfs that lies within this one
//! ```
//!
//! Each has the prefix `trusted.overlay.`, or `user.overlay.` in mounts with `userxattr`.

use super::tree::NodeKind;
use crate::format::Xattr;

const NAMESPACES: [&[u8]; 2] = [b"trusted.overlay.", b"user.overlay."];
/// This follows the namespace in names of a nested overlayfs.
const ESCAPE: &[u8] = b"overlay.";
const BOOKKEEPING: [&[u8]; 6] = [b"origin", b"impure", b"nlink", b"upper", b"uuid", b"protattr"];
/// The xattr of opaque directories in images.
const OPAQUE: &[u8] = b"trusted.overlay.opaque";

/// The properties of a file in a layer that its xattrs state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) opaque: bool,
    pub(super) whiteout: bool,
    /// Its content is in a layer below.
    pub(super) metacopy: bool,
    /// The name in the same directory, or the path, under which the layers below have it.
    pub(super) redirect: Option<Vec<u8>>,
}

impl Mark {
    /// Returns the mark of a file; `None` for an ordinary one.
    pub(super) fn of(kind: &NodeKind, xattrs: &[Xattr]) -> Option<Self> {
        let mut mark = Self::default();
        for xattr in xattrs {
            match (own(&xattr.name), kind) {
                (Some(b"opaque"), NodeKind::Directory(_)) => mark.opaque |= xattr.value == b"y",
                (Some(b"whiteout"), NodeKind::Regular { size: 0, .. }) => mark.whiteout = true,
                (Some(b"metacopy"), NodeKind::Regular { .. }) => mark.metacopy = true,
                (Some(b"redirect"), NodeKind::Directory(_) | NodeKind::Regular { .. }) => {
                    mark.redirect = Some(xattr.value.clone());
                }
                _ => {}
            }
        }
        // As in Linux, nothing below an opaque directory is looked up, and a file with content is
        // complete.
        if mark.opaque || matches!(kind, NodeKind::Regular { .. }) && !mark.metacopy {
            mark.redirect = None;
        }
        (mark != Self::default()).then_some(mark)
    }

    /// Returns the xattr that says that a part of the file is in a layer below, if there is one.
    pub(super) fn elsewhere(&self) -> Option<&'static str> {
        match (self.metacopy, &self.redirect) {
            (true, _) => Some("overlay.metacopy"),
            (false, Some(_)) => Some("overlay.redirect"),
            (false, None) => None,
        }
    }
}

/// Returns the name without the namespace; `None` if the xattr is not overlayfs's own.
fn own(name: &[u8]) -> Option<&[u8]> {
    let rest = NAMESPACES.iter().find_map(|namespace| name.strip_prefix(*namespace))?;
    (!rest.starts_with(ESCAPE)).then_some(rest)
}

/// Returns the name that a file in the mounted overlayfs shows for this one; `None` if it is not
/// escaped.
fn unescaped(name: &[u8]) -> Option<Vec<u8>> {
    NAMESPACES.iter().find_map(|namespace| {
        let rest = name.strip_prefix(*namespace)?.strip_prefix(ESCAPE)?;
        Some([*namespace, rest].concat())
    })
}

/// Keeps the xattrs that a file has in the mounted overlayfs.
pub(super) fn keep_mounted(xattrs: &mut Vec<Xattr>) {
    xattrs.retain(|xattr| own(&xattr.name).is_none());
    for xattr in &mut *xattrs {
        if let Some(name) = unescaped(&xattr.name) {
            xattr.name = name;
        }
    }
    xattrs.sort();
}

/// Removes overlayfs's xattrs from a file of a layer, except the mark of an opaque directory.
pub(super) fn keep_layered(xattrs: &mut Vec<Xattr>) {
    xattrs.retain(|xattr| own(&xattr.name).is_none_or(|name| name == b"opaque" && xattr.value == b"y"));
}

/// Removes bookkeeping.
pub(super) fn drop_bookkeeping(xattrs: &mut Vec<Xattr>) {
    xattrs.retain(|xattr| own(&xattr.name).is_none_or(|name| !BOOKKEEPING.contains(&name)));
}

/// Returns whether the xattrs are those of an opaque directory.
pub(super) fn is_opaque(xattrs: &[Xattr]) -> bool {
    xattrs.iter().any(|xattr| own(&xattr.name) == Some(b"opaque") && xattr.value == b"y")
}

pub(super) fn set_opaque(xattrs: &mut Vec<Xattr>) {
    xattrs.retain(|xattr| xattr.name != OPAQUE);
    xattrs.push(Xattr { name: OPAQUE.to_vec(), value: b"y".to_vec() });
    xattrs.sort();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn xattrs(names: &[(&str, &str)]) -> Vec<Xattr> {
        names.iter().map(|(name, value)| Xattr { name: (*name).into(), value: (*value).into() }).collect()
    }

    #[test]
    fn escaped_names_lose_one_level_in_the_mount_and_nothing_in_the_layer() {
        let all = [
            ("trusted.overlay.opaque", "y"),
            ("trusted.overlay.origin", "handle"),
            ("trusted.overlay.overlay.opaque", "y"),
            ("trusted.overlay.overlay.overlay.redirect", "a"),
            ("trusted.overlay.unknown", ""),
            ("trusted.overlays", ""),
            ("user.overlay.impure", "y"),
            ("user.overlay.overlay.impure", "y"),
            ("user.overlay.opaque", "x"),
        ];
        let mut mounted = xattrs(&all);
        keep_mounted(&mut mounted);
        let expected = [
            ("trusted.overlay.opaque", "y"),
            ("trusted.overlay.overlay.redirect", "a"),
            ("trusted.overlays", ""),
            ("user.overlay.impure", "y"),
        ];
        assert_eq!(mounted, xattrs(&expected));
        let mut layered = xattrs(&all);
        keep_layered(&mut layered);
        assert_eq!(layered, xattrs(&[all[0], all[2], all[3], all[5], all[7]]));
        let mut copied = xattrs(&all);
        drop_bookkeeping(&mut copied);
        assert_eq!(copied, xattrs(&[all[0], all[2], all[3], all[4], all[5], all[7], all[8]]));
    }
}

//! Xattrs and the prefixes of their names.

pub(crate) const XATTR_LONG_PREFIX: u8 = 0x80;

/// Prefixes of xattr names, indexed by `e_name_index`.
pub(crate) const XATTR_PREFIXES: &[(u8, &[u8])] = &[
    (1, b"user."),
    (2, b"system.posix_acl_access"),
    (3, b"system.posix_acl_default"),
    (4, b"trusted."),
    (5, b"lustre."),
    (6, b"security."),
];

/// One extended attribute.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Xattr {
    /// Its full name, such as `user.note`.
    pub name: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
}

/// The prefix of an xattr's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Prefix {
    Known(Vec<u8>),
    /// Index 0: internal data of the image, such as digests of files. Never shown.
    Hidden,
    /// An index that the format does not define. Not shown, as in Linux.
    Unknown(u8),
}

impl Prefix {
    pub(crate) fn short(index: u8) -> Self {
        match XATTR_PREFIXES.iter().find(|(known, _)| *known == index) {
            Some((_, prefix)) => Self::Known(prefix.to_vec()),
            None if index == 0 => Self::Hidden,
            None => Self::Unknown(index),
        }
    }

    pub(crate) fn followed_by(self, suffix: &[u8]) -> Self {
        match self {
            Self::Known(prefix) => Self::Known([&prefix, suffix].concat()),
            other => other,
        }
    }
}

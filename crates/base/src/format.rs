//! The format of a base's file.

use std::{fmt, str::FromStr};

/// The format of a base's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// The plain bytes: a file or a block device.
    Raw,
    /// An EROFS image that contains the base as a file.
    Erofs,
    /// A qcow2 image.
    Qcow2,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 3] = [Self::Raw, Self::Erofs, Self::Qcow2];

    /// Returns the format's name, which is also the extension of such files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Erofs => "erofs",
            Self::Qcow2 => "qcow2",
        }
    }

    pub(crate) fn described(self) -> &'static str {
        match self {
            Self::Raw => "a raw disk",
            Self::Erofs => "an EROFS image",
            Self::Qcow2 => "a qcow2 image",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = || Self::ALL.map(Self::name).join(", ");
        let found = Self::ALL.into_iter().find(|format| format.name() == text);
        found.ok_or_else(|| format!("unknown format '{text}'; known formats: {}", known()))
    }
}

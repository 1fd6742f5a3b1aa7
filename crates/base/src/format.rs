//! The format of a base's file.

use std::{fmt, fs::File, os::unix::fs::FileExt, path::Path, str::FromStr};

use crate::OpenError;

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

    /// Returns the offset and value of the format's magic number.
    fn magic(self) -> Option<(u64, [u8; 4])> {
        match self {
            Self::Raw => None,
            Self::Erofs => Some((1024, 0xe0f5_e1e2_u32.to_le_bytes())),
            Self::Qcow2 => Some((0, *b"QFI\xfb")),
        }
    }

    /// Returns the format that a file's content indicates. Anyone who can write the disk can choose
    /// it.
    fn of_content(file: &File) -> Self {
        let says = |format: &Self| {
            let Some((at, magic)) = format.magic() else { return false };
            let mut found = [0; 4];
            file.read_exact_at(&mut found, at).is_ok() && found == magic
        };
        Self::ALL.into_iter().find(says).unwrap_or(Self::Raw)
    }

    /// Returns the format that a file's extension indicates.
    fn of_name(path: &Path) -> Option<Self> {
        let extension = path.extension()?;
        Self::ALL.into_iter().find(|format| extension.eq_ignore_ascii_case(format.name()))
    }

    /// Returns the format of a file for which none was specified: its content and its name must
    /// agree. A raw disk needs no particular name.
    pub(crate) fn of(path: &Path, file: &File) -> Result<Self, OpenError> {
        let (content, name) = (Self::of_content(file), Self::of_name(path));
        match (content, name) {
            (Self::Raw, Some(named)) if named != Self::Raw => {
                let (named, raw) = (named.described(), Self::Raw.name());
                let what = format!("named like {named}, but is not one: if it is raw, specify the format {raw}");
                Err(OpenError::Unfit { path: path.into(), what })
            }
            (content, name) if content == name.unwrap_or(Self::Raw) => Ok(content),
            (found, _) => Err(OpenError::Doubtful { path: path.into(), found }),
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

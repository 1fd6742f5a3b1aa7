//! What users write where an image or a disk can be given.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{Storage, StoredFile};

/// Where a storage is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location<'a> {
    /// The path of a file or a block device of this machine.
    File(&'a Path),
    /// A URL.
    Url {
        /// What is before `://`.
        scheme: &'a str,
        /// All of it.
        url: &'a str,
    },
}

impl<'a> Location<'a> {
    /// Returns what a user means by `name`: a URL if it begins with `SCHEME://`. The path of a file
    /// in a directory of such a name can begin with `./`.
    pub fn of(name: &'a Path) -> Self {
        let split = name.to_str().and_then(|url| url.split_once("://").map(|(scheme, _)| (scheme, url)));
        match split {
            Some((scheme, url)) if is_scheme(scheme) => Self::Url { scheme, url },
            _ => Self::File(name),
        }
    }

    /// Returns whether it is a URL.
    pub fn is_url(self) -> bool {
        matches!(self, Self::Url { .. })
    }
}

/// As RFC 3986 has it.
fn is_scheme(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

/// Returns a name that means the same in all directories.
///
/// # Errors
/// The name is empty, or the current directory is not known.
pub fn absolute(name: &Path) -> io::Result<PathBuf> {
    match Location::of(name) {
        Location::File(path) => std::path::absolute(path),
        Location::Url { .. } => Ok(name.to_owned()),
    }
}

/// Opens the file that `name` is the path of.
///
/// # Errors
/// The file cannot be opened, it is neither a file nor a block device
/// ([`InvalidInput`](io::ErrorKind::InvalidInput)), or the name is a URL
/// ([`Unsupported`](io::ErrorKind::Unsupported)): what opens those is not here.
pub fn open(name: &Path) -> io::Result<Arc<dyn Storage>> {
    match Location::of(name) {
        Location::File(path) => Ok(Arc::new(StoredFile::open(path)?)),
        Location::Url { scheme, .. } => {
            let what = format!("opening {scheme}:// URLs is not built in: download the file and give its path");
            Err(io::Error::new(io::ErrorKind::Unsupported, what))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_told_from_paths() {
        for (name, scheme) in [
            ("https://host/debian.erofs", Some("https")),
            ("oci://host:5000/disks/debian:13", Some("oci")),
            ("s3://bucket/a/b", Some("s3")),
            ("git+ssh://x", Some("git+ssh")),
            ("debian.erofs", None),
            ("/a/https://host/x", None),
            ("./https://host/x", None),
            ("https:/host/x", None),
            ("://x", None),
            ("1a://x", None),
            ("a b://x", None),
            ("", None),
        ] {
            let found = match Location::of(name.as_ref()) {
                Location::Url { scheme, url } => {
                    assert_eq!(url, name);
                    Some(scheme)
                }
                Location::File(path) => {
                    assert_eq!(path.as_os_str(), name);
                    None
                }
            };
            assert_eq!(found, scheme, "{name}");
        }
    }

    #[test]
    fn a_url_is_absolute_as_it_is_and_not_opened_here() {
        let url = Path::new("https://host//a/../b");
        assert_eq!(absolute(url).expect("a URL").as_os_str(), url.as_os_str());
        assert!(absolute("b".as_ref()).expect("a path").is_absolute());
        let error = open(url).map(drop).expect_err("not built in");
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        assert!(error.to_string().contains("https://"), "{error}");
    }
}

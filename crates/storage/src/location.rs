//! The location of an image or a disk, as users write it.

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
        /// The part before `://`.
        scheme: &'a str,
        /// All of it.
        url: &'a str,
    },
}

impl<'a> Location<'a> {
    /// Interprets a name as users write it: a URL if it begins with `SCHEME://`. The path of a file
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

/// As RFC 3986 defines it.
fn is_scheme(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

/// Returns a name as errors and logs show it: a URL without user, password and query, which may
/// hold a signature. Digests stay. An empty name is in quotation marks.
pub fn shown(name: &Path) -> String {
    let Location::Url { scheme, url } = Location::of(name) else {
        return if name.as_os_str().is_empty() { "''".to_owned() } else { name.display().to_string() };
    };
    let rest = &url[scheme.len() + "://".len()..];
    let server = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    let start = match (server.rfind('@'), server.rsplit_once(':')) {
        (Some(at), _) => at + 1,
        // The text before is not a port, but part of a password.
        (None, Some((_, port)))
            if !port.bytes().all(|byte| byte.is_ascii_digit() || byte == b']' || server.starts_with('[')) =>
        {
            rest.rfind('@').map_or(0, |at| at + 1)
        }
        _ => 0,
    };
    let rest = &rest[start..];
    let (place, fragment) = rest.split_once('#').map_or((rest, None), |(place, fragment)| (place, Some(fragment)));
    let place = place.split('?').next().unwrap_or_default();
    match fragment.filter(|fragment| is_digest(fragment)) {
        Some(digest) => format!("{scheme}://{place}#{digest}"),
        None => format!("{scheme}://{place}"),
    }
}

/// Returns whether the text is `sha256:DIGITS`.
fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:").is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
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

/// Opens the file with the path `name`.
///
/// # Errors
/// The file cannot be opened, it is neither a file nor a block device
/// ([`InvalidInput`](io::ErrorKind::InvalidInput)), or the name is a URL
/// ([`Unsupported`](io::ErrorKind::Unsupported)), which other crates open.
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
    fn urls_are_distinguished_from_paths() {
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
    fn passwords_and_signatures_are_not_shown() {
        for (name, expected) in [
            ("a@b?c", "a@b?c"),
            ("https://user:secret@host/x", "https://host/x"),
            ("https://user:secret@host:80/a@b?secret#secret", "https://host:80/a@b"),
            ("https://secret@host", "https://host"),
            ("https://user:se/cr?et@host/x", "https://host/x"),
            ("https://user:se@cr@host/x", "https://host/x"),
            ("https://host/x?X-Amz-Signature=secret", "https://host/x"),
            ("https://host/x?secret#sha256:0a", "https://host/x#sha256:0a"),
            ("https://user:secret@host/x@sha256:0a", "https://host/x@sha256:0a"),
            ("http://[::1]:80/x@y", "http://[::1]:80/x@y"),
            ("http://[::1]/x@y", "http://[::1]/x@y"),
            ("oci://host:5000/a:1@sha256:0a", "oci://host:5000/a:1@sha256:0a"),
            ("oci://user:secret@host/a:1@sha256:0a", "oci://host/a:1@sha256:0a"),
        ] {
            assert_eq!(shown(name.as_ref()), expected);
        }
    }

    #[test]
    fn a_url_is_absolute_and_is_not_opened_here() {
        let url = Path::new("https://host//a/../b");
        assert_eq!(absolute(url).expect("a URL").as_os_str(), url.as_os_str());
        assert!(absolute("b".as_ref()).expect("a path").is_absolute());
        let error = open(url).map(drop).expect_err("not built in");
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        assert!(error.to_string().contains("https://"), "{error}");
    }
}

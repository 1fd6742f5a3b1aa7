//! Names of remote images.

use std::{fmt, path::Path};

use url::{Host, ParseError, Url};

use crate::{
    error::{Error, Result},
    sum::Sum,
};

/// Where a remote image is.
///
/// `https://HOST/PATH[#sha256:DIGITS]`, `s3://BUCKET/KEY[#sha256:DIGITS]` or
/// `oci://REGISTRY/REPOSITORY[:TAG][@sha256:DIGITS]`. The digits after `#` are the sum of the
/// image's chunk index, those after `@` the sum of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A file on a web server, with its chunk index next to it.
    Web {
        /// The file's URL.
        url: Url,
        /// The sum of the index, if it was given.
        index: Option<Sum>,
    },
    /// An object in a bucket, with its chunk index next to it.
    S3 {
        /// The bucket's name.
        bucket: String,
        /// The object's key.
        key: String,
        /// The sum of the index, if it was given.
        index: Option<Sum>,
    },
    /// An image in a registry.
    Oci(Reference),
}

/// An image in a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// The registry's host, with its port if one was given.
    pub registry: String,
    /// The path of the repository.
    pub repository: String,
    /// The tag. If there is a sum, it is only a comment.
    pub tag: Option<String>,
    /// The sum of the manifest, if it was given.
    pub manifest: Option<Sum>,
}

impl Reference {
    /// Returns the tag or the sum, as the path of a manifest ends.
    pub(crate) fn last(&self) -> String {
        match (&self.manifest, &self.tag) {
            (Some(sum), _) => sum.to_string(),
            (None, Some(tag)) => tag.clone(),
            (None, None) => "latest".to_owned(),
        }
    }
}

impl Location {
    /// Returns whether `text` starts like a remote image's name.
    pub fn is_in(text: &[u8]) -> bool {
        [&b"https://"[..], b"http://", b"s3://", b"oci://"].iter().any(|scheme| text.starts_with(scheme))
    }

    /// Parses a remote image's name.
    ///
    /// # Errors
    /// [`Error::Location`].
    pub fn parse(text: &str) -> Result<Self> {
        let wrong =
            |what: &str| Error::Location { location: pagefold_storage::shown(Path::new(text)), what: what.to_owned() };
        if let Some(rest) = text.strip_prefix("oci://") {
            return reference(rest).map(Self::Oci).map_err(|what| wrong(&what));
        }
        let (name, index) = match text.split_once('#') {
            Some((name, digest)) => {
                let sum = Sum::parse(digest);
                (name, Some(sum.ok_or_else(|| wrong("what follows '#' must be sha256: and 64 hexadecimal digits"))?))
            }
            None => (text, None),
        };
        if let Some(rest) = name.strip_prefix("s3://") {
            let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
            if bucket.is_empty() || key.is_empty() {
                return Err(wrong("must be s3://BUCKET/KEY"));
            }
            if key.split('/').any(|part| part.is_empty() || part == "." || part == "..") {
                return Err(wrong("a key with empty parts, '.' or '..' has no URL"));
            }
            return Ok(Self::S3 { bucket: bucket.to_owned(), key: key.to_owned(), index });
        }
        let no_scheme = "must start with https://, s3:// or oci://";
        let url = Url::parse(name).map_err(|error| match error {
            ParseError::RelativeUrlWithoutBase => wrong(no_scheme),
            error => wrong(&error.to_string()),
        })?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(wrong("a URL with a user name or password is refused: it would be visible in process lists"));
        }
        if url.query().is_some() {
            return Err(wrong("a URL with '?' is refused: the index has no name next to it"));
        }
        match url.scheme() {
            "https" => Ok(Self::Web { url, index }),
            "http" => Ok(Self::Web { url, index }),
            _ => Err(wrong(no_scheme)),
        }
    }

    /// Returns whether the name leads to the same bytes for all time.
    pub fn is_fixed(&self) -> bool {
        match self {
            Self::Web { index, .. } | Self::S3 { index, .. } => index.is_some(),
            Self::Oci(reference) => reference.manifest.is_some(),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let index = match self {
            Self::Web { url, index } => {
                write!(f, "{url}")?;
                index
            }
            Self::S3 { bucket, key, index } => {
                write!(f, "s3://{bucket}/{key}")?;
                index
            }
            Self::Oci(reference) => {
                write!(f, "oci://{}/{}", reference.registry, reference.repository)?;
                if let Some(tag) = &reference.tag {
                    write!(f, ":{tag}")?;
                }
                return reference.manifest.iter().try_for_each(|sum| write!(f, "@{sum}"));
            }
        };
        index.iter().try_for_each(|sum| write!(f, "#{sum}"))
    }
}

/// Returns whether a URL's host is this machine, which no other machine can impersonate on the way.
pub(crate) fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// Returns a URL for errors and logs: without a user, and without a query, which may contain a
/// signature.
pub(crate) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.into()
}

fn reference(text: &str) -> Result<Reference, String> {
    let (name, manifest) = match text.split_once('@') {
        Some((name, digest)) => {
            let sum = Sum::parse(digest);
            (name, Some(sum.ok_or("what follows '@' must be sha256: and 64 hexadecimal digits")?))
        }
        None => (text, None),
    };
    let (registry, path) = name.split_once('/').ok_or("must be oci://REGISTRY/REPOSITORY[:TAG]")?;
    let (repository, tag) = match path.split_once(':') {
        Some((repository, tag)) => (repository, Some(tag)),
        None => (path, None),
    };
    let part = |part: &str| {
        part.starts_with(|first: char| first.is_ascii_lowercase() || first.is_ascii_digit())
            && part
                .chars()
                .all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || "._-".contains(letter))
    };
    if !repository.split('/').all(part) {
        return Err("a repository consists of a-z, 0-9, '.', '_', '-' and '/'".to_owned());
    }
    if let Some(tag) = tag {
        let letters = tag.chars().all(|letter| letter.is_ascii_alphanumeric() || "._-".contains(letter));
        if tag.is_empty() || tag.len() > 128 || !letters || tag.starts_with(['.', '-']) {
            return Err("a tag consists of at most 128 letters, digits, '.', '_' and '-'".to_owned());
        }
    }
    let url = Url::parse(&format!("https://{registry}/")).map_err(|error| error.to_string())?;
    if !url.username().is_empty() || url.password().is_some() || url.path() != "/" || registry.contains(['?', '#']) {
        return Err("the registry must be a host with an optional port".to_owned());
    }
    Ok(Reference {
        registry: registry.to_owned(),
        repository: repository.to_owned(),
        tag: tag.map(str::to_owned),
        manifest,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let digest = Sum::of(b"x");
        for name in [
            "https://host/a/b.erofs".to_owned(),
            "http://[::1]:8080/b.erofs".to_owned(),
            format!("https://host/b.erofs#{digest}"),
            "s3://bucket/a/b.erofs".to_owned(),
            format!("s3://bucket/b#{digest}"),
            "oci://host/name".to_owned(),
            "oci://host:5000/a/b:13".to_owned(),
            format!("oci://host/a@{digest}"),
            format!("oci://host/a:1@{digest}"),
        ] {
            assert!(Location::is_in(name.as_bytes()));
            let location = Location::parse(&name).expect(&name);
            assert_eq!(location.to_string(), name);
            assert_eq!(location.is_fixed(), name.contains("sha256:"), "{name}");
        }
    }

    #[test]
    fn other_names() {
        for (name, what) in [
            ("ftp://host/x", "https://"),
            ("./image", "must start with https://"),
            ("", "must start with https://"),
            ("https://", "host"),
            ("https://user:secret@host/x", "password"),
            ("https://user:secret@host/x@sha256:0", "password"),
            ("https://host/x?X-Amz-Signature=secret", "'?'"),
            ("https://host/x#sha256:0?secret", "'#'"),
            ("oci://user:secret@host/a", "'@'"),
            ("oci://user:secret@host/a@sha256:0", "'@'"),
            ("https://host/x?y", "'?'"),
            ("https://host/x#y", "'#'"),
            ("s3://bucket", "BUCKET"),
            ("s3://bucket/a/../b", "'..'"),
            ("oci://host", "REPOSITORY"),
            ("oci://host/A", "a-z"),
            ("oci://host/../x", "a-z"),
            ("oci://host/a//b", "a-z"),
            ("oci://host/a:", "tag"),
            ("oci://host/a@sha256:1", "'@'"),
            ("oci://user@host/a", "'@'"),
            ("oci://ho st/a", "domain name"),
        ] {
            let error = Location::parse(name).expect_err(name).to_string();
            assert!(error.contains(what) && !error.contains("secret"), "{error}");
        }
    }
}

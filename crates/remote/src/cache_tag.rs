//! The file that says that a directory is a cache, so that nothing else is deleted.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use crate::file;

/// The name that programs for backups know (Cache Directory Tagging Specification), and the start
/// of the content.
const NAME: &str = "CACHEDIR.TAG";
const CONTENT: &[u8] = b"Signature: 8a477f597d28d172789f06886806bc55\n# The cache of remote images of pagefold.\n";

/// The parts of a cache, which are directories.
pub(crate) const PARTS: [&str; 4] = ["blobs", "followed", "manifests", "names"];

/// What a directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// A cache.
    Cache,
    /// Nothing, or an empty directory.
    Nothing,
    /// Anything else.
    Other,
}

/// Examines a directory. Another process may be making a cache of it: it writes the tag before it
/// makes a part.
pub(crate) fn examine(directory: &Path) -> io::Result<Found> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        entries => entries?,
    };
    let names = entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()?;
    let tag = file::bytes(&directory.join(NAME), CONTENT.len() as u64);
    let has_tag = tag.as_deref().is_ok_and(|tag| tag == CONTENT);
    let is_partial = tag.is_ok_and(|tag| CONTENT.starts_with(&tag));
    // Its tag may be damaged, or missing as in caches of early versions.
    let is_untagged = PARTS.iter().all(|part| names.iter().any(|name| name == part))
        && names.iter().all(|name| name == "lock" || name == NAME || PARTS.iter().any(|part| name == part));
    Ok(match &names[..] {
        _ if has_tag || is_untagged => Found::Cache,
        [] => Found::Nothing,
        [name] if name == NAME && is_partial => Found::Nothing,
        _ => Found::Other,
    })
}

/// Tags a directory.
pub(crate) fn write(directory: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600).open(directory.join(NAME))?.write_all(CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_tagged_or_has_all_parts_is_a_cache() {
        let of = |entries: &[(&str, Option<&[u8]>)]| {
            let folder = tempfile::tempdir().expect("a folder");
            for (name, content) in entries {
                match content {
                    Some(content) => fs::write(folder.path().join(name), content),
                    None => fs::create_dir(folder.path().join(name)),
                }
                .expect("an entry");
            }
            examine(folder.path()).expect("a folder")
        };
        let parts = PARTS.map(|part| (part, None));
        let tag = |content| (NAME, Some(content));
        assert_eq!(examine(Path::new("/no/such")).expect("nothing"), Found::Nothing);
        assert_eq!(of(&[]), Found::Nothing);
        assert_eq!(of(&[tag(CONTENT), ("a", None)]), Found::Cache);
        assert_eq!(of(&parts), Found::Cache);
        assert_eq!(of(&[&parts[..], &[("lock", Some(b"")), tag(b"damaged")]].concat()), Found::Cache);
        assert_eq!(of(&[tag(&CONTENT[..5])]), Found::Nothing);
        for other in [
            &parts[..2],
            &[&parts[..], &[("notes", Some(b""))]].concat(),
            &[tag(&CONTENT[..45]), ("notes", None)],
            &[tag(b"Signature: 8a477f597d28d172789f06886806bc55\n# by cargo")],
            &[("lock", Some(b""))],
        ] {
            assert_eq!(of(other), Found::Other, "{other:?}");
        }
        let folder = tempfile::tempdir().expect("a folder");
        write(folder.path()).expect("a tag");
        assert_eq!(examine(folder.path()).expect("a folder"), Found::Cache);
    }
}

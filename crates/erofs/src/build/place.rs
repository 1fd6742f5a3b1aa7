//! Paths of an image's source files.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A path of the operating system. Files in one directory share its path, so each costs only a name
/// regardless of depth.
#[derive(Clone)]
pub struct SourcePath(Arc<Part>);

struct Part {
    above: Option<Arc<Part>>,
    name: OsString,
}

impl SourcePath {
    /// Returns the path of a file in this directory.
    pub(crate) fn join(&self, name: OsString) -> Self {
        Self(Arc::new(Part { above: Some(Arc::clone(&self.0)), name }))
    }

    /// Returns the whole path.
    pub fn to_path_buf(&self) -> PathBuf {
        let mut parts = vec![&self.0];
        while let Some(above) = parts.last().and_then(|part| part.above.as_ref()) {
            parts.push(above);
        }
        // Each with a slash after it.
        let bytes = parts.iter().map(|part| part.name.len() + 1).sum();
        let mut path = PathBuf::with_capacity(bytes);
        path.extend(parts.iter().rev().map(|part| Path::new(&part.name)));
        path
    }
}

impl<P: AsRef<OsStr> + ?Sized> From<&P> for SourcePath {
    fn from(path: &P) -> Self {
        Self(Arc::new(Part { above: None, name: path.as_ref().to_owned() }))
    }
}

impl fmt::Debug for SourcePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_path_buf().fmt(f)
    }
}

impl Drop for Part {
    /// Drops iteratively: a path may have too many parts for recursion.
    fn drop(&mut self) {
        let mut above = self.above.take();
        while let Some(part) = above {
            above = Arc::into_inner(part).and_then(|mut part| part.above.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_their_parts_in_order_however_many() {
        let root = SourcePath::from("/some/root/");
        let file = root.join("directory".into()).join("file".into());
        assert_eq!(file.to_path_buf(), Path::new("/some/root/directory/file"));
        assert_eq!(format!("{file:?}"), r#""/some/root/directory/file""#);
        let mut deep = root;
        for _ in 0..1_000_000 {
            deep = deep.join("d".into());
        }
        assert_eq!(deep.to_path_buf().as_os_str().len(), "/some/root/".len() + 2 * 1_000_000 - 1);
        let other = deep.clone();
        drop(deep);
        drop(other);
    }
}

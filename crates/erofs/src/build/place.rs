//! Paths of an image's source files.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::{fmt, io};

use super::reach::{MOST_BYTES, Reached};

/// The maximum length of a path with few names, in bytes.
const LONG_BYTES: usize = 512;

/// A path of the operating system. Files in one directory share its path, so each costs only a name
/// regardless of depth.
///
/// ```text
/// source/…/directory/…/directory/…/file
///              anchor      anchor     each within the length that a system call takes of the one before
/// ```
///
/// With anchors, opening a file takes the same time at any depth.
#[derive(Clone)]
pub struct SourcePath(Arc<PathPart>);

struct PathPart {
    above: Option<Arc<PathPart>>,
    name: OsString,
    /// Length of the path from the last anchor above, or of the whole path.
    bytes: usize,
    /// The directory itself, kept open.
    anchor: OnceLock<Arc<OwnedFd>>,
}

impl SourcePath {
    /// Returns the path of a file in this directory.
    pub(crate) fn join(&self, name: OsString) -> Self {
        let before = if self.0.anchor.get().is_some() { 0 } else { self.0.bytes };
        let bytes = before + 1 + name.len();
        Self(Arc::new(PathPart { above: Some(Arc::clone(&self.0)), name, bytes, anchor: OnceLock::new() }))
    }

    /// Returns whether the path from the last anchor, or the whole path, is too long for a system
    /// call.
    pub(crate) fn is_far(&self) -> bool {
        self.0.bytes > MOST_BYTES && self.0.anchor.get().is_none()
    }

    /// Returns whether the path from the last anchor is so long that the system takes long to walk
    /// along its names.
    pub(crate) fn is_long(&self) -> bool {
        self.0.bytes > LONG_BYTES && self.0.anchor.get().is_none()
    }

    /// Keeps this directory open while its path or one below it exists.
    pub(crate) fn set_anchor(&self) -> io::Result<()> {
        let directory = self.reach()?.open_directory()?;
        // If another thread was faster, its descriptor is as good.
        let _ = self.0.anchor.set(Arc::new(directory));
        Ok(())
    }

    /// Makes the file accessible, whatever the length of its path.
    pub(crate) fn reach(&self) -> io::Result<Reached> {
        let mut parts = vec![&self.0];
        let mut anchor = None;
        while let Some(part) = parts.last() {
            anchor = part.anchor.get().map(Arc::clone);
            match &part.above {
                Some(above) if anchor.is_none() => parts.push(above),
                _ => break,
            }
        }
        if anchor.is_some() {
            parts.pop();
        }
        Reached::new(anchor, &joined(&parts))
    }

    /// Returns the whole path.
    pub fn to_path_buf(&self) -> PathBuf {
        let mut parts = vec![&self.0];
        while let Some(above) = parts.last().and_then(|part| part.above.as_ref()) {
            parts.push(above);
        }
        joined(&parts)
    }
}

/// Joins names, the last first.
fn joined(parts: &[&Arc<PathPart>]) -> PathBuf {
    // Each with a slash after it.
    let bytes = parts.iter().map(|part| part.name.len() + 1).sum();
    let mut path = PathBuf::with_capacity(bytes);
    path.extend(parts.iter().rev().map(|part| Path::new(&part.name)));
    path
}

impl<P: AsRef<OsStr> + ?Sized> From<&P> for SourcePath {
    fn from(path: &P) -> Self {
        let name = path.as_ref().to_owned();
        Self(Arc::new(PathPart { above: None, bytes: name.len(), name, anchor: OnceLock::new() }))
    }
}

impl fmt::Debug for SourcePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_path_buf().fmt(f)
    }
}

impl Drop for PathPart {
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

    #[test]
    fn files_are_reached_from_the_last_anchor() {
        const DEPTH: usize = 300;
        let folder = tempfile::tempdir().unwrap();
        let name = "n".repeat(100);
        let mut place = SourcePath::from(folder.path());
        let mut anchors = 0;
        for depth in 0..DEPTH {
            let reached = place.reach().unwrap();
            let path = reached.as_ref();
            assert!(path.as_os_str().len() <= MOST_BYTES + 100, "one step at any depth");
            std::fs::create_dir(path.join(&name)).unwrap();
            std::fs::write(path.join("file"), depth.to_string()).unwrap();
            place = place.join(name.clone().into());
            if place.is_far() {
                place.set_anchor().unwrap();
                anchors += 1;
            }
        }
        assert!((1..=DEPTH * 101 / MOST_BYTES).contains(&anchors), "{anchors}");
        let mut above = &place.0;
        for depth in (0..DEPTH).rev() {
            above = above.above.as_ref().unwrap();
            let file = SourcePath(Arc::clone(above)).join("file".into());
            assert_eq!(std::fs::read_to_string(file.reach().unwrap()).unwrap(), depth.to_string());
        }
        assert!(std::process::Command::new("rm").arg("-rf").arg(folder.path()).status().unwrap().success());
    }
}

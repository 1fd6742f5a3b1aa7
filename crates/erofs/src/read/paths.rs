//! Paths in an image, as names with their parents.

/// The maximum length of a path that is shown, in bytes.
const SHOWN_BYTES: usize = 4096;

/// Names with their parents: a path costs one entry regardless of its depth.
pub(crate) struct Paths {
    entries: Vec<(usize, Vec<u8>)>,
}

/// A name in [`Paths`].
pub(crate) type PathId = usize;

impl Paths {
    /// Creates paths that contain only the root, whose id is 0.
    pub(crate) fn new() -> Self {
        Self { entries: vec![(0, Vec::new())] }
    }

    pub(crate) fn add(&mut self, parent: PathId, name: Vec<u8>) -> PathId {
        self.entries.push((parent, name));
        self.entries.len() - 1
    }

    /// Returns the parent and the name; `None` for the root.
    pub(crate) fn parent(&self, path: PathId) -> Option<(PathId, &[u8])> {
        (path != 0).then(|| (self.entries[path].0, self.entries[path].1.as_slice()))
    }

    /// Returns the path with slashes. Only its last 4 KiB are kept, and only they are visited,
    /// because the image controls the depth.
    pub(crate) fn display(&self, path: PathId) -> Vec<u8> {
        let (mut names, mut len, mut here) = (Vec::new(), 0, path);
        while here != 0 && len < SHOWN_BYTES {
            let (parent, name) = &self.entries[here];
            names.push(name.as_slice());
            len += name.len() + 1;
            here = *parent;
        }
        let mut joined = Vec::with_capacity(len.max(1));
        for name in names.iter().rev() {
            joined.push(b'/');
            joined.extend_from_slice(name);
        }
        if joined.is_empty() {
            joined.push(b'/');
        }
        joined.drain(..joined.len().saturating_sub(SHOWN_BYTES));
        joined
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_shown_from_the_root_or_with_its_last_names() {
        let mut paths = Paths::new();
        let etc = paths.add(0, b"etc".to_vec());
        let file = paths.add(etc, b"file".to_vec());
        assert_eq!(paths.display(0), b"/");
        assert_eq!(paths.display(file), b"/etc/file");
        let deep = (0..100_000).fold(file, |above, number| paths.add(above, format!("{number}").into_bytes()));
        let shown = paths.display(deep);
        assert!(shown.len() == SHOWN_BYTES && shown.ends_with(b"/99998/99999"));
    }
}

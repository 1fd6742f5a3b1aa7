//! Paths in an image, as names with their parents.

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

    /// Returns the names from the root down.
    pub(crate) fn names(&self, mut path: PathId) -> Vec<&[u8]> {
        let mut names = Vec::new();
        while path != 0 {
            let (parent, name) = &self.entries[path];
            names.push(name.as_slice());
            path = *parent;
        }
        names.reverse();
        names
    }

    /// Returns the path with slashes. Only its last 4 KiB are kept, because the image controls the
    /// depth.
    pub(crate) fn display(&self, path: PathId) -> Vec<u8> {
        let joined = [&b"/"[..], &self.names(path).join(&b'/')].concat();
        joined[joined.len().saturating_sub(4096)..].to_vec()
    }
}

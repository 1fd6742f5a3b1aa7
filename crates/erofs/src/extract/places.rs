//! Reaches the directories of a target, each from the one before it.
//!
//! ```text
//! go(to):  climb from the last directory to the first one above both,   openat(.., "..")
//!          then descend by names                                         openat(.., NAME, O_NOFOLLOW)
//! ```
//!
//! A walk moves by one step for each directory, so visiting all of them takes time linear in their
//! number at any depth. Only the last few descriptors stay open. Above them, `..` must lead to the
//! directory from which the walk came. If it does not, because a directory was moved, the walk
//! reaches that directory from the target by names.

use std::collections::{HashMap, VecDeque};
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};

use crate::error::{Error, Result};
use crate::read::{PathId, Paths};

/// The maximum number of directories kept open, in addition to the target.
const MAX_OPEN: usize = 16;
/// The flags for opening directories.
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens a directory by its name in another one, without following a link.
pub(super) fn open_in(directory: &OwnedFd, name: &[u8]) -> Result<OwnedFd> {
    rustix::fs::openat(directory, OsStr::from_bytes(name), DIRECTORY, Mode::empty())
        .map_err(|error| Error::io("opening a directory")(error.into()))
}

/// Device and inode number.
type Identity = (u64, u64);

fn identity(directory: &OwnedFd) -> Result<Identity> {
    let stat = rustix::fs::fstat(directory).map_err(|error| Error::io("opening a directory")(error.into()))?;
    Ok((stat.st_dev, stat.st_ino))
}

/// A place in the target's tree.
pub(super) struct Places {
    root: Arc<OwnedFd>,
    /// The directory reached last and those above it, without a gap; the deepest last.
    open: VecDeque<(PathId, Arc<OwnedFd>)>,
    /// The directories above those, except the target.
    closed: HashMap<PathId, Identity>,
    /// The number of directories entered, up or down.
    steps: u64,
}

impl Places {
    pub(super) fn new(root: Arc<OwnedFd>) -> Self {
        Self { open: VecDeque::from([(0, Arc::clone(&root))]), root, closed: HashMap::new(), steps: 0 }
    }

    /// Opens a directory.
    pub(super) fn go(&mut self, paths: &Paths, to: PathId) -> Result<&Arc<OwnedFd>> {
        // Parents have lower numbers.
        let mut down = Vec::new();
        let (mut above, mut below) = (self.here(), to);
        while above != below {
            if below > above {
                down.push(below);
                below = parent(paths, below);
            } else {
                above = parent(paths, above);
            }
        }
        if self.climb_to(paths, above).is_err() {
            self.open = VecDeque::from([(0, Arc::clone(&self.root))]);
            self.closed.clear();
            while above != 0 {
                down.push(above);
                above = parent(paths, above);
            }
        }
        for path in down.into_iter().rev() {
            self.enter(paths, path)?;
        }
        Ok(self.open.back().map_or(&self.root, |(_, directory)| directory))
    }

    fn here(&self) -> PathId {
        self.open.back().map_or(0, |(path, _)| *path)
    }

    fn climb_to(&mut self, paths: &Paths, above: PathId) -> Result<()> {
        while self.here() != above
            && let Some((path, directory)) = self.open.pop_back()
        {
            self.steps += 1;
            if !self.open.is_empty() {
                continue;
            }
            let parent = parent(paths, path);
            let up = match self.closed.remove(&parent) {
                None => Arc::clone(&self.root),
                Some(expected) => {
                    let up = open_in(&directory, b"..")?;
                    if identity(&up)? != expected {
                        return Err(Error::NotA("directory that stayed in its place"));
                    }
                    Arc::new(up)
                }
            };
            self.open.push_back((parent, up));
        }
        Ok(())
    }

    fn enter(&mut self, paths: &Paths, path: PathId) -> Result<()> {
        let name = paths.parent(path).map_or(&b""[..], |(_, name)| name);
        let last = self.open.back().map_or(&self.root, |(_, directory)| directory);
        let directory = open_in(last, name)?;
        if self.open.len() == MAX_OPEN
            && let Some((path, directory)) = self.open.front()
        {
            if *path != 0 {
                self.closed.insert(*path, identity(directory)?);
            }
            self.open.pop_front();
        }
        self.open.push_back((path, Arc::new(directory)));
        self.steps += 1;
        Ok(())
    }
}

fn parent(paths: &Paths, path: PathId) -> PathId {
    paths.parent(path).map_or(0, |(parent, _)| parent)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn open(path: &Path) -> Arc<OwnedFd> {
        Arc::new(fs::File::open(path).unwrap().into())
    }

    /// Creates a chain of directories, each with a second, empty one in it. Returns the ids of
    /// both kinds.
    fn chain(places: &mut Places, paths: &mut Paths, depth: usize) -> Vec<(PathId, PathId)> {
        let mut above = 0;
        let mut ids = Vec::new();
        for _ in 0..depth {
            let here = places.go(paths, above).unwrap();
            for name in ["chain", "leaf"] {
                rustix::fs::mkdirat(here, name, Mode::RWXU).unwrap();
            }
            let (below, leaf) = (paths.add(above, b"chain".to_vec()), paths.add(above, b"leaf".to_vec()));
            ids.push((below, leaf));
            above = below;
        }
        ids
    }

    fn remove_chain(root: &Arc<OwnedFd>, paths: &Paths, ids: &[(PathId, PathId)]) {
        let mut places = Places::new(Arc::clone(root));
        for (below, leaf) in ids.iter().rev() {
            for id in [below, leaf] {
                let Some((above, name)) = paths.parent(*id) else { continue };
                let here = places.go(paths, above).unwrap();
                rustix::fs::unlinkat(here, OsStr::from_bytes(name), rustix::fs::AtFlags::REMOVEDIR).unwrap();
            }
        }
    }

    #[test]
    fn a_walk_takes_steps_linear_in_its_directories_however_deep() {
        const DEPTH: usize = 3000;
        let folder = tempfile::tempdir().unwrap();
        let root = open(folder.path());
        let (mut places, mut paths) = (Places::new(Arc::clone(&root)), Paths::new());
        let ids = chain(&mut places, &mut paths, DEPTH);
        assert!(places.steps <= 2 * DEPTH as u64, "{}", places.steps);
        // Up again, with a visit to the leaves.
        for (_, leaf) in ids.iter().rev() {
            places.go(&paths, *leaf).unwrap();
        }
        assert!(places.steps <= 5 * DEPTH as u64, "{}", places.steps);
        assert!(places.open.len() <= MAX_OPEN && places.closed.len() <= DEPTH);
        remove_chain(&root, &paths, &ids);
    }

    #[test]
    fn a_directory_that_was_moved_away_leads_nowhere_else() {
        let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let root = open(folder.path());
        let (mut places, mut paths) = (Places::new(Arc::clone(&root)), Paths::new());
        let ids = chain(&mut places, &mut paths, 40);
        places.go(&paths, ids[39].0).unwrap();
        let within = |depth: usize| folder.path().join(vec!["chain"; depth].join("/"));
        fs::rename(within(10), elsewhere.path().join("moved")).unwrap();
        // `..` of the moved directory is now `elsewhere`, which the walk must not mistake for its
        // own.
        let ninth = identity(places.go(&paths, ids[8].0).unwrap()).unwrap();
        assert_eq!(ninth, identity(&open(&within(9))).unwrap());
        assert!(places.go(&paths, ids[20].0).is_err());
        std::os::unix::fs::symlink(elsewhere.path(), within(10)).unwrap();
        assert!(places.go(&paths, ids[9].0).is_err(), "a link is not followed");
    }
}

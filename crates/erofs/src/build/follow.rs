//! Paths in a tree. Symbolic links on the way are followed and never lead out of the root.

use std::collections::VecDeque;

use super::tree::{NodeId, NodeKind, Tree};
use super::work::step;

/// The number of links in a path above which it counts as a loop, as in Linux.
const MOST_LINKS: u32 = 40;

/// What happens to a symbolic link at the end of a path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LastLink {
    Followed,
    Kept,
}

/// The reason why a path leads nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeadEnd {
    /// A name on the way is not a directory.
    NotDirectory,
    /// There are too many symbolic links, as in a loop.
    Loop,
}

/// Where a path leads.
#[derive(Debug)]
pub(super) struct Reached<'a> {
    /// The directories from the root to the last one that exists.
    way: Vec<NodeId>,
    /// The names of these directories except the root, then the names that do not exist, then that
    /// of `file`.
    names: Vec<&'a [u8]>,
    /// The file at the end, unless that is a directory or does not exist.
    pub(super) file: Option<NodeId>,
    /// Whether a symbolic link was followed.
    pub(super) linked: bool,
}

impl Reached<'_> {
    /// Returns the last directory that exists.
    pub(super) fn directory(&self) -> NodeId {
        self.way.last().copied().unwrap_or(NodeId(0))
    }

    /// Returns whether a directory is at the end.
    pub(super) fn is_directory(&self) -> bool {
        self.file.is_none() && self.missing().is_empty()
    }

    /// Returns the names that do not exist below [`directory`](Self::directory).
    pub(super) fn missing(&self) -> &[&[u8]] {
        let all = &self.names[self.way.len() - 1..];
        if self.file.is_some() { &[] } else { all }
    }

    /// Returns the names from the root, without links.
    pub(super) fn names(&self) -> &[&[u8]] {
        &self.names
    }
}

/// Resolves `names` from the last directory of `start`, which begins with the root. `..` of the
/// root is the root. Names below one that does not exist do not exist either.
pub(super) fn follow<'a>(
    tree: &'a Tree,
    start: Vec<NodeId>,
    names: impl IntoIterator<Item = &'a [u8]>,
    last: LastLink,
) -> Result<Reached<'a>, DeadEnd> {
    let mut ahead: VecDeque<&[u8]> = names.into_iter().collect();
    let mut reached = Reached { names: vec![b""; start.len() - 1], way: start, file: None, linked: false };
    let mut links = 0;
    while let Some(name) = ahead.pop_front() {
        step();
        match name {
            b"" | b"." => continue,
            b".." => {
                reached.names.pop();
                reached.way.truncate(reached.names.len() + 1);
                continue;
            }
            _ => {}
        }
        let found = if reached.missing().is_empty() { tree.child(reached.directory(), name) } else { None };
        match found.map(|id| (id, &tree.node(id).kind)) {
            None => reached.names.push(name),
            Some((id, NodeKind::Directory(_))) => {
                reached.way.push(id);
                reached.names.push(name);
            }
            Some((_, NodeKind::Symlink(target))) if last == LastLink::Followed || !ahead.is_empty() => {
                links += 1;
                reached.linked = true;
                if links > MOST_LINKS {
                    return Err(DeadEnd::Loop);
                }
                if target.starts_with(b"/") {
                    reached.way.truncate(1);
                    reached.names.clear();
                }
                target.split(|byte| *byte == b'/').rev().for_each(|name| ahead.push_front(name));
            }
            Some(_) if !ahead.is_empty() => return Err(DeadEnd::NotDirectory),
            Some((id, _)) => {
                reached.names.push(name);
                reached.file = Some(id);
            }
        }
    }
    Ok(reached)
}

//! Container layers: trees that are stacked, with whiteouts for files that a layer deletes from the
//! layers below.
//!
//! ```text
//!                    an OCI layer        overlayfs
//! NAME is deleted    file .wh.NAME       NAME: character device 0:0, or empty with
//!                                        xattr *.overlay.whiteout
//! opaque directory   file .wh..wh..opq   the directory's xattr *.overlay.opaque
//! ignored            .wh..wh.*
//! ```
//!
//! Both forms are read. A whiteout applies to the layers below its own, wherever it is in the
//! archive. In and below an opaque directory, it hides nothing.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;

use super::follow::{LastLink, follow};
use super::overlayfs::{self, Mark};
use super::scan_options::ScanOptions;
use super::tree::{Node, NodeId, NodeKind, Tree, Visit};
use super::warnings::{WarningKind, Warnings};
use crate::error::{Error, Result};

const WHITEOUT_PREFIX: &[u8] = b".wh.";
const WHITEOUT_META_PREFIX: &[u8] = b".wh..wh.";
const OPAQUE_NAME: &[u8] = b".wh..wh..opq";

pub(super) const LINK_TO_DIRECTORY: &str = "it is a hard link to a directory";

/// The treatment of whiteouts when layers are stacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whiteouts {
    /// They delete files of the layers below and do not appear in the tree, which is a container's
    /// root.
    Apply,
    /// They also remain, in overlayfs form: the tree is itself a layer.
    Keep,
}

/// A tree to be stacked on others.
#[derive(Clone, Debug)]
pub struct Layer {
    pub(super) tree: Tree,
    /// Directories that exist only because something is below them.
    pub(super) undescribed: HashSet<NodeId>,
    /// Nodes that are placeholders for files of layers below.
    pub(super) pending: HashMap<NodeId, Pending>,
    pub(super) marks: HashMap<NodeId, Mark>,
    /// Warnings about what is the rule in layers that are stacked.
    pub(super) unless_stacked: Warnings,
}

/// A hard link to a file that is not in the same layer.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    /// The components of the target's path.
    pub(super) target: Vec<Vec<u8>>,
    /// The path of the link, for messages.
    pub(super) path: PathBuf,
}

impl Layer {
    pub(super) fn new(tree: Tree) -> Self {
        Self {
            tree,
            undescribed: HashSet::new(),
            pending: HashMap::new(),
            marks: HashMap::new(),
            unless_stacked: Warnings::default(),
        }
    }

    /// Returns the tree. It may still have whiteouts, and placeholders for files of layers below.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Records a new node's mark, then applies the options to the node.
    pub(super) fn take_in(&mut self, id: NodeId, options: &ScanOptions) {
        let node = self.tree.node_mut(id);
        let mark = Mark::of(&node.kind, &node.xattrs);
        options.apply(node);
        self.undescribed.remove(&id);
        match mark {
            Some(mark) => self.marks.insert(id, mark),
            None => self.marks.remove(&id),
        };
    }

    /// Returns the tree by itself. Files whose names denote whiteouts stay ordinary files.
    ///
    /// # Errors
    /// [`Error::Source`] for a hard link whose target is not in the layer, and for a file of which
    /// overlayfs keeps a part in a layer below.
    pub fn into_tree(mut self) -> Result<Tree> {
        let visits = self.tree.walk();
        if let Some(pending) = visits.iter().find_map(|visit| self.pending.get(&visit.id)) {
            let names = pending.target.iter().map(Vec::as_slice);
            let reached = follow(&self.tree, vec![self.tree.root()], names, LastLink::Kept);
            let what = match reached {
                Ok(reached) if reached.is_directory() => LINK_TO_DIRECTORY,
                _ => "it is a hard link to a file that does not precede it in the archive",
            };
            let path = self.tree.at_source(self.tree.root(), &pending.path);
            return Err(Error::Source { path, what: what.to_owned() });
        }
        let elsewhere = |visit: &Visit| Some((visit.id, self.marks.get(&visit.id)?.elsewhere()?));
        if let Some((id, xattr)) = visits.iter().find_map(elsewhere) {
            let what = format!(
                "overlayfs keeps a part of it in a layer below (xattr {xattr}): give the lower layers as sources before \
                 this one, or mount the layers and pack the mounted tree"
            );
            return Err(Error::Source { path: self.tree.name_of(id), what });
        }
        self.tree.warnings_mut().append(self.unless_stacked);
        self.tree.nodes_mut(0).for_each(|node| overlayfs::drop_bookkeeping(&mut node.xattrs));
        let mut whiteouts = Vec::new();
        for visit in &visits {
            let NodeKind::Directory(names) = &self.tree.node(visit.id).kind else { continue };
            let marks =
                names.range(WHITEOUT_PREFIX.to_vec()..).take_while(|(name, _)| name.starts_with(WHITEOUT_PREFIX));
            whiteouts.extend(marks.map(|(_, id)| *id));
        }
        for id in whiteouts {
            self.tree.warn(WarningKind::WhiteoutFile, |tree| tree.name_of(id));
        }
        Ok(self.tree)
    }
}

impl From<Tree> for Layer {
    /// Converts a tree that was assembled by hand or stacked with [`Whiteouts::Keep`].
    fn from(tree: Tree) -> Self {
        let mut layer = Self::new(tree);
        for visit in layer.tree.walk() {
            layer.take_in(visit.id, &ScanOptions::default());
        }
        layer
    }
}

/// Returns the metadata of a directory that no entry describes.
pub(super) fn undescribed(options: &ScanOptions) -> Node {
    let kind = NodeKind::Directory(BTreeMap::new());
    let mut node = Node { kind, permissions: 0o755, uid: 0, gid: 0, mtime_s: 0, mtime_nsec: 0, xattrs: Vec::new() };
    options.apply(&mut node);
    node
}

/// The meaning of a name in a layer.
pub(super) enum Meaning<'a> {
    Name,
    Whiteout(&'a [u8]),
    Opaque,
    Nothing,
}

impl<'a> Meaning<'a> {
    pub(super) fn of(name: &'a [u8]) -> Self {
        match name.strip_prefix(WHITEOUT_PREFIX) {
            None => Self::Name,
            Some(_) if name == OPAQUE_NAME => Self::Opaque,
            Some(_) if name.starts_with(WHITEOUT_META_PREFIX) => Self::Nothing,
            Some(name) => Self::Whiteout(name),
        }
    }
}

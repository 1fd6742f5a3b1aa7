//! Container layers: trees that are stacked, with whiteouts for what a layer deletes from those
//! below.
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
//! archive.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::path::PathBuf;

use super::scan_options::ScanOptions;
use super::tree::{Node, NodeId, NodeKind, Origin, Tree};
use super::warnings::WarningKind;
use crate::error::{Error, Result};
use crate::format::Xattr;

const WHITEOUT_PREFIX: &[u8] = b".wh.";
const WHITEOUT_META_PREFIX: &[u8] = b".wh..wh.";
const OPAQUE_NAME: &[u8] = b".wh..wh..opq";
/// The xattr that overlayfs uses for opaque directories.
const OPAQUE_XATTR: &[u8] = b"trusted.overlay.opaque";
/// The number of links in a path above which it counts as a loop, as in Linux.
const MOST_LINKS: u32 = 40;

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
    marks: HashMap<NodeId, Mark>,
}

/// A hard link to a file that is not in the same layer.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    /// The components of the target's path.
    pub(super) target: Vec<Vec<u8>>,
    /// The path of the link, for messages.
    pub(super) path: PathBuf,
}

/// The meaning of an overlayfs xattr.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Opaque,
    Whiteout,
    /// Its content or its names are elsewhere in the layers below.
    Elsewhere,
}

impl Mark {
    /// Parses an xattr name without its prefix and its value.
    fn of(xattr: &[u8], value: &[u8]) -> Option<Self> {
        match xattr {
            // A value of `x` means that the directory contains whiteouts by xattr.
            b"opaque" => (value == b"y").then_some(Self::Opaque),
            b"whiteout" => Some(Self::Whiteout),
            b"redirect" | b"metacopy" => Some(Self::Elsewhere),
            _ => None,
        }
    }
}

/// Returns the name of an overlayfs xattr without its prefix.
fn of_overlayfs(xattr: &Xattr) -> Option<&[u8]> {
    xattr.name.strip_prefix(b"trusted.overlay.").or_else(|| xattr.name.strip_prefix(b"user.overlay."))
}

impl Layer {
    pub(super) fn new(tree: Tree) -> Self {
        Self { tree, undescribed: HashSet::new(), pending: HashMap::new(), marks: HashMap::new() }
    }

    /// Returns the tree. It may still have whiteouts, and placeholders for files of layers below.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Records a new node's mark, then applies the options to the node.
    pub(super) fn take_in(&mut self, id: NodeId, options: &ScanOptions) {
        let node = self.tree.node_mut(id);
        let mark = |xattr: &Xattr| of_overlayfs(xattr).and_then(|name| Mark::of(name, &xattr.value));
        let mark = node.xattrs.iter().find_map(mark).filter(|mark| match node.kind {
            NodeKind::Directory(_) => *mark != Mark::Whiteout,
            NodeKind::Regular { size, .. } => *mark == Mark::Elsewhere || *mark == Mark::Whiteout && size == 0,
            _ => false,
        });
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
    /// [`Error::Source`] for a hard link whose target is not in the layer.
    pub fn into_tree(mut self) -> Result<Tree> {
        let visits = self.tree.walk();
        if let Some(pending) = visits.iter().find_map(|visit| self.pending.get(&visit.id)) {
            let what = "it is a hard link to a file that does not precede it in the archive".to_owned();
            return Err(Error::Source { path: self.tree.at_source(self.tree.root(), &pending.path), what });
        }
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

    /// Stacks layers, the lowest first, into a tree.
    ///
    /// A directory in several layers is merged, with the metadata of the last layer that describes
    /// it. Any other file replaces the one below it. Whiteouts apply to the layers below their own.
    /// A hard link may refer to a file of a layer below. If a layer has a directory only because
    /// something is below it, and the layers below have a symbolic link there, the link is
    /// followed, and never leads out of the root.
    ///
    /// # Errors
    /// [`Error::Source`] with the name of a file that cannot be merged.
    pub fn stack(layers: impl IntoIterator<Item = Self>, whiteouts: Whiteouts) -> Result<Tree> {
        let layers: Vec<_> = layers.into_iter().collect();
        let root = undescribed(&ScanOptions::default());
        let root = layers.first().map_or(root, |layer| layer.tree.node(layer.tree.root()).clone());
        let tree = Tree::of_origin(root, Origin::None);
        let is_described = |layer: &Self| !layer.undescribed.contains(&layer.tree.root());
        let described = layers.iter().any(is_described);
        let mut stack = Stack { tree, keeps: whiteouts == Whiteouts::Keep, alone: layers.len() == 1, parents: None };
        for layer in layers {
            stack.lay(layer)?;
        }
        if stack.keeps && !described {
            stack.tree.warn(WarningKind::UndescribedDirectory, |tree| tree.name_of(tree.root()));
        }
        if stack.keeps && is_opaque(stack.tree.node(stack.tree.root())) {
            stack.tree.warn(WarningKind::OpaqueRoot, |tree| tree.name_of(tree.root()));
        }
        Ok(stack.tree)
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
enum Meaning<'a> {
    Name,
    Whiteout(&'a [u8]),
    Opaque,
    Nothing,
}

impl<'a> Meaning<'a> {
    fn of(name: &'a [u8]) -> Self {
        match name.strip_prefix(WHITEOUT_PREFIX) {
            None => Self::Name,
            Some(_) if name == OPAQUE_NAME => Self::Opaque,
            Some(_) if name.starts_with(WHITEOUT_META_PREFIX) => Self::Nothing,
            Some(name) => Self::Whiteout(name),
        }
    }
}

/// The state of stacking.
struct Stack {
    tree: Tree,
    keeps: bool,
    /// Whether there is only one layer.
    alone: bool,
    /// The parent of each directory, computed on first use.
    parents: Option<HashMap<NodeId, NodeId>>,
}

/// The layer being stacked. Its nodes are already in the tree, its names not yet.
struct Upper {
    /// The offset of its ids: lower ids belong to layers below.
    first: usize,
    undescribed: HashSet<NodeId>,
    marks: HashMap<NodeId, Mark>,
    /// Hard links to files of layers below, and their targets.
    links: HashMap<NodeId, NodeId>,
}

impl Upper {
    fn own(&self, id: NodeId) -> Option<NodeId> {
        id.0.checked_sub(self.first).map(NodeId)
    }

    fn mark(&self, id: NodeId) -> Option<Mark> {
        self.marks.get(&self.own(id)?).copied()
    }

    fn is_undescribed(&self, id: NodeId) -> bool {
        self.own(id).is_some_and(|own| self.undescribed.contains(&own))
    }
}

/// A directory of a layer in whose place the layers below have a symbolic link.
struct Redirected {
    directory: NodeId,
    name: Vec<u8>,
    upper: NodeId,
}

/// The remaining work for a layer.
#[derive(Default)]
struct Work {
    /// Directories of the tree, and the layer's directories to merge into them.
    directories: Vec<(NodeId, NodeId)>,
    /// Deferred until everything else is in place, because a link may lead to the layer's own
    /// files.
    redirected: VecDeque<Redirected>,
}

impl Stack {
    fn lay(&mut self, layer: Layer) -> Result<()> {
        let links = self.links(&layer)?;
        let Layer { tree, undescribed, marks, .. } = layer;
        let first = self.tree.append(tree);
        let upper = Upper { first, undescribed, marks, links };
        let mut work = Work::default();
        work.directories.push((self.tree.root(), NodeId(first)));
        loop {
            if let Some((target, directory)) = work.directories.pop() {
                self.merge(&upper, target, directory, &mut work)?;
            } else if let Some(Redirected { directory, name, upper }) = work.redirected.pop_front() {
                match self.resolve(directory, [name.clone()].into(), true, true) {
                    Some(target) if self.is_directory(target) => work.directories.push((target, upper)),
                    _ => {
                        let what = "a layer below has a symbolic link there that does not lead to a directory";
                        return Err(self.error(directory, &name, upper, what));
                    }
                }
            } else {
                return Ok(());
            }
        }
    }

    /// Resolves hard links to files of layers below.
    fn links(&mut self, layer: &Layer) -> Result<HashMap<NodeId, NodeId>> {
        let mut links = HashMap::new();
        if layer.pending.is_empty() {
            return Ok(links);
        }
        for visit in layer.tree.walk() {
            let Some(pending) = layer.pending.get(&visit.id) else { continue };
            let found = self.resolve(self.tree.root(), pending.target.iter().cloned().collect(), false, false);
            let is_file =
                |id: &NodeId| !matches!(self.tree.node(*id).kind, NodeKind::Directory(_) | NodeKind::CharDevice(0, 0));
            let Some(found) = found.filter(is_file) else {
                let what = "it is a hard link to a file that is neither earlier in its archive nor in a layer below";
                let path = layer.tree.at_source(layer.tree.root(), &pending.path);
                return Err(Error::Source { path, what: what.to_owned() });
            };
            links.insert(visit.id, found);
        }
        Ok(links)
    }

    /// Merges `directory` of the layer into `target`, which may be the same.
    fn merge(&mut self, upper: &Upper, target: NodeId, directory: NodeId, work: &mut Work) -> Result<()> {
        let names = self.tree.names_mut(directory).map(std::mem::take).unwrap_or_default();
        let mut opaque = upper.mark(directory) == Some(Mark::Opaque);
        if target != directory && !upper.is_undescribed(directory) {
            // Files below all layers stay hidden.
            let stays_opaque = self.keeps && is_opaque(self.tree.node(target));
            self.tree.describe_as(target, directory);
            if stays_opaque {
                self.set_opaque(target);
            }
        }
        let mut entries = BTreeMap::new();
        let mut deleted = BTreeMap::new();
        for (name, id) in names {
            let id = upper.own(id).and_then(|own| upper.links.get(&own).copied()).unwrap_or(id);
            match Meaning::of(&name) {
                Meaning::Nothing => {}
                Meaning::Opaque => opaque = true,
                Meaning::Whiteout(b"" | b"." | b"..") => {
                    return Err(self.error(target, &name, id, "it is a whiteout of an invalid name"));
                }
                Meaning::Whiteout(of) => _ = deleted.insert(of.to_vec(), id),
                Meaning::Name if self.is_whiteout(upper, id) => _ = deleted.insert(name, id),
                Meaning::Name => _ = entries.insert(name, id),
            }
        }
        self.delete(upper, target, opaque, &deleted, &entries);
        for (name, id) in entries {
            self.place(upper, target, name, id, &deleted, work)?;
        }
        Ok(())
    }

    /// Removes the files that the layer deletes from `target`.
    fn delete(
        &mut self,
        upper: &Upper,
        target: NodeId,
        opaque: bool,
        deleted: &BTreeMap<Vec<u8>, NodeId>,
        entries: &BTreeMap<Vec<u8>, NodeId>,
    ) {
        if !self.keeps {
            let node = self.tree.node_mut(target);
            node.xattrs.retain(|xattr| of_overlayfs(xattr) != Some(b"opaque"));
        } else if opaque {
            self.set_opaque(target);
        }
        let mut made = Vec::new();
        if self.keeps {
            for (name, mark) in deleted.iter().filter(|(name, _)| !entries.contains_key(*name)) {
                let kind = NodeKind::CharDevice(0, 0);
                let mark = self.tree.node(*mark);
                let node = Node { kind, permissions: 0, xattrs: Vec::new(), ..without_content(mark) };
                made.push((name.clone(), self.tree.add_unnamed(node)));
            }
        }
        let Some(names) = self.tree.names_mut(target) else { return };
        let is_lower = |id: &NodeId| id.0 < upper.first;
        if opaque {
            names.retain(|_, id| !is_lower(id));
        }
        for name in deleted.keys() {
            if names.get(name).is_some_and(is_lower) {
                names.remove(name);
            }
        }
        for (name, id) in made {
            names.entry(name).or_insert(id);
        }
    }

    /// Places a file of the layer in `target`.
    fn place(
        &mut self,
        upper: &Upper,
        target: NodeId,
        name: Vec<u8>,
        id: NodeId,
        deleted: &BTreeMap<Vec<u8>, NodeId>,
        work: &mut Work,
    ) -> Result<()> {
        if upper.mark(id) == Some(Mark::Elsewhere) && !(self.keeps && self.alone) {
            let what = "overlayfs has left a part of it in another layer (xattr overlay.redirect or overlay.metacopy); \
                        mount the layers and pack the mounted tree";
            return Err(self.error(target, &name, id, what));
        }
        if !self.is_directory(id) {
            return self.tree.link(target, &name, id);
        }
        match self.tree.child(target, &name) {
            Some(lower) if self.is_directory(lower) => work.directories.push((lower, id)),
            Some(lower) if self.is_symlink(lower) && upper.is_undescribed(id) => {
                work.redirected.push_back(Redirected { directory: target, name, upper: id });
            }
            lower => {
                // There may be a directory below all layers.
                if self.keeps && (lower.is_some() || deleted.contains_key(&name)) {
                    self.set_opaque(id);
                }
                self.add_directory(target, &name, id)?;
                if self.keeps && upper.is_undescribed(id) {
                    self.tree.warn(WarningKind::UndescribedDirectory, |tree| tree.name_of(id));
                }
                work.directories.push((id, id));
            }
        }
        Ok(())
    }

    fn add_directory(&mut self, target: NodeId, name: &[u8], id: NodeId) -> Result<()> {
        self.tree.link(target, name, id)?;
        if let Some(parents) = &mut self.parents {
            parents.insert(id, target);
        }
        Ok(())
    }

    /// Resolves names from the directory `start`. Links on the way are followed; a link at the end
    /// only if `follows`. If `makes`, missing directories are created.
    fn resolve(&mut self, start: NodeId, mut names: VecDeque<Vec<u8>>, follows: bool, makes: bool) -> Option<NodeId> {
        let mut here = start;
        let mut links = 0;
        while let Some(name) = names.pop_front() {
            match &name[..] {
                b"" | b"." => continue,
                b".." => {
                    here = self.parent(here);
                    continue;
                }
                _ if !self.is_directory(here) => return None,
                _ => {}
            }
            let Some(child) = self.tree.child(here, &name) else {
                if !makes {
                    return None;
                }
                let made = self.tree.add_unnamed(undescribed(&ScanOptions::default()));
                self.add_directory(here, &name, made).ok()?;
                here = made;
                continue;
            };
            let NodeKind::Symlink(target) = &self.tree.node(child).kind else {
                here = child;
                continue;
            };
            if names.is_empty() && !follows {
                return Some(child);
            }
            links += 1;
            if links > MOST_LINKS {
                return None;
            }
            if target.starts_with(b"/") {
                here = self.tree.root();
            }
            for name in target.split(|byte| *byte == b'/').rev() {
                names.push_front(name.to_vec());
            }
        }
        Some(here)
    }

    /// Returns the parent of a directory; the root is its own parent.
    fn parent(&mut self, directory: NodeId) -> NodeId {
        let tree = &self.tree;
        let parents = self.parents.get_or_insert_with(|| {
            let is_directory = |id| matches!(tree.node(id).kind, NodeKind::Directory(_));
            let visits = tree.walk().into_iter().filter(|visit| is_directory(visit.id));
            visits.map(|visit| (visit.id, visit.parent)).collect()
        });
        parents.get(&directory).copied().unwrap_or(tree.root())
    }

    fn is_directory(&self, id: NodeId) -> bool {
        matches!(self.tree.node(id).kind, NodeKind::Directory(_))
    }

    fn is_symlink(&self, id: NodeId) -> bool {
        matches!(self.tree.node(id).kind, NodeKind::Symlink(_))
    }

    fn is_whiteout(&self, upper: &Upper, id: NodeId) -> bool {
        matches!(self.tree.node(id).kind, NodeKind::CharDevice(0, 0)) || upper.mark(id) == Some(Mark::Whiteout)
    }

    fn set_opaque(&mut self, id: NodeId) {
        let xattrs = &mut self.tree.node_mut(id).xattrs;
        xattrs.retain(|xattr| xattr.name != OPAQUE_XATTR);
        xattrs.push(Xattr { name: OPAQUE_XATTR.to_vec(), value: b"y".to_vec() });
        xattrs.sort();
    }

    /// Builds an error about node `id` of a layer, which was to become `name` in `directory`.
    fn error(&self, directory: NodeId, name: &[u8], id: NodeId, what: &str) -> Error {
        let path = self.tree.name_below(directory, name, id);
        Error::Source { path, what: what.to_owned() }
    }
}

fn is_opaque(node: &Node) -> bool {
    let opaque = |xattr: &Xattr| of_overlayfs(xattr) == Some(b"opaque") && xattr.value == b"y";
    node.xattrs.iter().any(opaque)
}

/// Returns a node's metadata without kind-specific data and xattrs.
fn without_content(node: &Node) -> Node {
    Node { kind: NodeKind::Fifo, xattrs: Vec::new(), ..*node }
}

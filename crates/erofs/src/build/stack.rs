//! Lays layers on one another.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use super::follow::{LastLink, Reached, follow};
use super::layer::{LINK_TO_DIRECTORY, Layer, Meaning, Whiteouts, undescribed};
use super::overlayfs::{self, Mark};
use super::scan_options::ScanOptions;
use super::tree::{Node, NodeId, NodeKind, Origin, Tree};
use super::warnings::WarningKind;
use crate::error::{Error, Result};

impl Layer {
    /// Stacks layers, the lowest first, into a tree.
    ///
    /// A directory in several layers is merged, with the metadata of the last layer that describes
    /// it. Any other file replaces the one below it. Whiteouts apply to the layers below their own.
    /// A hard link may refer to a file of a layer below. If a layer has a directory only because
    /// something is below it, and the layers below have a symbolic link there, the link is followed
    /// within the root. If overlayfs has moved a directory of the layers below, or left a file's
    /// content in them, it is taken from there, unless whiteouts are kept.
    ///
    /// # Errors
    /// [`Error::Source`] with the name of a file that cannot be merged.
    pub fn stack(layers: impl IntoIterator<Item = Self>, whiteouts: Whiteouts) -> Result<Tree> {
        stack(layers.into_iter().collect(), whiteouts)
    }
}

fn stack(layers: Vec<Layer>, whiteouts: Whiteouts) -> Result<Tree> {
    let root = undescribed(&ScanOptions::default());
    let root = layers.first().map_or(root, |layer| layer.tree.node(layer.tree.root()).clone());
    let tree = Tree::of_origin(root, Origin::None);
    let described = layers.iter().any(|layer| !layer.undescribed.contains(&layer.tree.root()));
    // The root of the last layer, in its source.
    let name = layers.last().map(|layer| layer.tree.name_of(layer.tree.root())).unwrap_or_default();
    let mut stack = Stack { tree, keeps: whiteouts == Whiteouts::Keep, parents: None };
    stack.keep_xattrs(0);
    for layer in layers {
        stack.lay(layer)?;
    }
    if stack.keeps {
        stack.drop_whiteouts_without_effect();
        let root = stack.tree.root();
        if !described {
            stack.tree.warn(WarningKind::UndescribedDirectory, |_| name.clone());
        }
        if stack.is_opaque(root) {
            stack.tree.warn(WarningKind::OpaqueRoot, |_| name);
        }
    }
    Ok(stack.tree)
}

/// The state of stacking.
struct Stack {
    tree: Tree,
    keeps: bool,
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
    /// For each file that refers to a path in the layers below: what overlayfs has left there.
    moved: HashMap<NodeId, Lower>,
}

impl Upper {
    fn own(&self, id: NodeId) -> Option<NodeId> {
        id.0.checked_sub(self.first).map(NodeId)
    }

    fn is_lower(&self, id: NodeId) -> bool {
        id.0 < self.first
    }

    fn mark(&self, id: NodeId) -> Option<&Mark> {
        self.marks.get(&self.own(id)?)
    }

    fn is_opaque(&self, id: NodeId) -> bool {
        self.mark(id).is_some_and(|mark| mark.opaque)
    }

    fn is_undescribed(&self, id: NodeId) -> bool {
        self.own(id).is_some_and(|own| self.undescribed.contains(&own))
    }
}

/// A file of the layers below, and a name of it.
#[derive(Clone)]
struct Lower {
    id: NodeId,
    directory: NodeId,
    name: Vec<u8>,
}

/// A directory of a layer in whose place the layers below have a symbolic link.
struct Redirected {
    directory: NodeId,
    name: Vec<u8>,
    upper: NodeId,
}

/// A directory of the layers below that overlayfs has moved.
struct Moved {
    from: Lower,
    directory: NodeId,
    name: Vec<u8>,
}

/// The remaining work for a layer.
#[derive(Default)]
struct Work {
    /// Directories of the tree, and the layer's directories to merge into them.
    directories: Vec<(NodeId, NodeId)>,
    /// Deferred until everything else is in place, because a link may lead to the layer's own
    /// files.
    redirected: VecDeque<Redirected>,
    moved: Vec<Moved>,
    /// Files that have got their content from a layer below.
    completed: HashSet<NodeId>,
}

impl Stack {
    fn lay(&mut self, layer: Layer) -> Result<()> {
        let links = self.links(&layer)?;
        let moved = self.moved(&layer);
        let Layer { tree, undescribed, marks, .. } = layer;
        let first = self.tree.append(tree);
        self.keep_xattrs(first);
        let upper = Upper { first, undescribed, marks, links, moved };
        let mut work = Work::default();
        work.directories.push((self.tree.root(), NodeId(first)));
        loop {
            if let Some((target, directory)) = work.directories.pop() {
                self.merge(&upper, target, directory, &mut work)?;
            } else if let Some(Redirected { directory, name, upper }) = work.redirected.pop_front() {
                let Some(target) = self.follow(directory, &name) else {
                    let what = "a layer below has a symbolic link there that does not lead to a directory";
                    return Err(self.error(directory, &name, upper, what));
                };
                work.directories.push((target, upper));
            } else {
                return self.check_moved(&work.moved);
            }
        }
    }

    /// Keeps the xattrs that belong to the result, of the nodes from `first` on.
    fn keep_xattrs(&mut self, first: usize) {
        for node in self.tree.nodes_mut(first) {
            if self.keeps {
                overlayfs::keep_layered(&mut node.xattrs);
            } else {
                overlayfs::keep_mounted(&mut node.xattrs);
            }
        }
    }

    /// Resolves hard links to files of layers below.
    fn links(&self, layer: &Layer) -> Result<HashMap<NodeId, NodeId>> {
        let mut links = HashMap::new();
        if layer.pending.is_empty() {
            return Ok(links);
        }
        for visit in layer.tree.walk() {
            let Some(pending) = layer.pending.get(&visit.id) else { continue };
            let target = pending.target.iter().map(Vec::as_slice);
            let reached = follow(&self.tree, vec![self.tree.root()], target, LastLink::Kept).ok();
            let is_file = |id: &NodeId| !matches!(self.tree.node(*id).kind, NodeKind::CharDevice(0, 0));
            let what = match reached {
                Some(Reached { file: Some(id), .. }) if is_file(&id) => {
                    links.insert(visit.id, id);
                    continue;
                }
                Some(reached) if reached.is_directory() => LINK_TO_DIRECTORY,
                _ => "it is a hard link to a file that is neither earlier in its archive nor in a layer below",
            };
            let path = layer.tree.at_source(layer.tree.root(), &pending.path);
            return Err(Error::Source { path, what: what.to_owned() });
        }
        Ok(links)
    }

    /// Finds what overlayfs has left at paths in the layers below.
    fn moved(&self, layer: &Layer) -> HashMap<NodeId, Lower> {
        let find = |path: &[u8]| {
            let mut found = None;
            let mut directory = self.tree.root();
            for name in path.strip_prefix(b"/")?.split(|byte| *byte == b'/') {
                let id = self.tree.child(directory, name)?;
                found = Some(Lower { id, directory, name: name.to_vec() });
                directory = id;
            }
            found
        };
        let redirects = layer.marks.iter().filter_map(|(id, mark)| Some((*id, find(mark.redirect.as_deref()?)?)));
        redirects.collect()
    }

    /// Merges `directory` of the layer into `target`, which may be the same.
    fn merge(&mut self, upper: &Upper, target: NodeId, directory: NodeId, work: &mut Work) -> Result<()> {
        let names = self.tree.names_mut(directory).map(std::mem::take).unwrap_or_default();
        let mut opaque = upper.is_opaque(directory);
        if target != directory && !upper.is_undescribed(directory) {
            // Files below all layers stay hidden.
            let stays_opaque = self.keeps && self.is_opaque(target);
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
        let mut elsewhere = HashMap::new();
        for (name, id) in &entries {
            if let Some(lower) = self.elsewhere(upper, target, name, *id)? {
                elsewhere.insert(*id, lower);
            }
        }
        self.delete(upper, target, opaque, &deleted, &entries);
        for (name, id) in entries {
            match elsewhere.remove(&id) {
                Some(lower) if self.is_directory(id) => {
                    self.add_directory(target, &name, lower.id)?;
                    work.directories.push((lower.id, id));
                    work.moved.push(Moved { from: lower, directory: target, name });
                }
                lower => {
                    if let Some(lower) = lower
                        && work.completed.insert(id)
                    {
                        let kind = self.tree.node(lower.id).kind.clone();
                        self.tree.node_mut(id).kind = kind;
                    }
                    self.place(upper, target, name, id, &deleted, work)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the part of the file `id` that overlayfs has left in the layers below. The file will
    /// become `name` in `target`.
    fn elsewhere(&self, upper: &Upper, target: NodeId, name: &[u8], id: NodeId) -> Result<Option<Lower>> {
        let Some((mark, xattr)) = upper.mark(id).and_then(|mark| Some((mark, mark.elsewhere()?))) else {
            return Ok(None);
        };
        if self.keeps {
            let what = format!(
                "overlayfs keeps a part of it in a layer below (xattr {xattr}), which is not merged while whiteouts \
                 are kept: mount the layers and pack the mounted tree"
            );
            return Err(self.error(target, name, id, &what));
        }
        let near = |name: &[u8]| {
            let found = self.tree.child(target, name).filter(|found| upper.is_lower(*found));
            found.map(|id| Lower { id, directory: target, name: name.to_vec() })
        };
        let lower = match &mark.redirect {
            Some(path) if path.starts_with(b"/") => upper.own(id).and_then(|own| upper.moved.get(&own).cloned()),
            Some(other) => near(other),
            None => near(name),
        };
        let fits = |lower: &Lower| match self.tree.node(lower.id).kind {
            NodeKind::Directory(_) => self.is_directory(id),
            NodeKind::Regular { .. } => !self.is_directory(id),
            _ => false,
        };
        if let Some(lower) = lower.filter(fits) {
            return Ok(Some(lower));
        }
        let place = mark.redirect.as_deref().unwrap_or(name);
        let what = format!(
            "overlayfs keeps a part of it in a layer below (xattr {xattr}), at '{}', but no source before this one \
             has that: give all layers, the lowest first, or mount them and pack the mounted tree",
            String::from_utf8_lossy(place)
        );
        Err(self.error(target, name, id, &what))
    }

    /// Checks that each directory that overlayfs has moved is in one place only.
    fn check_moved(&self, moved: &[Moved]) -> Result<()> {
        let stays = |moved: &&Moved| {
            let Lower { id, directory, name } = &moved.from;
            (moved.directory, &moved.name) != (*directory, name) && self.tree.child(*directory, name) == Some(*id)
        };
        let mut places: HashSet<NodeId> = HashSet::new();
        let twice = moved.iter().find(|moved| !places.insert(moved.from.id));
        let mut suspects = moved.iter().filter(stays).peekable();
        let stayed = if suspects.peek().is_some() {
            let reached: HashSet<_> = self.tree.walk().into_iter().map(|visit| visit.id).collect();
            suspects.find(|moved| reached.contains(&moved.from.directory))
        } else {
            None
        };
        let Some(Moved { from, directory, name }) = twice.or(stayed) else { return Ok(()) };
        let what = format!(
            "its xattr overlay.redirect names '{}', which is still in place there or was moved twice; these are not \
             the layers that overlayfs made",
            String::from_utf8_lossy(&from.name)
        );
        Err(self.error(*directory, name, from.id, &what))
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
        let mut made = Vec::new();
        if self.keeps {
            if opaque {
                self.set_opaque(target);
            }
            for (name, mark) in deleted.iter().filter(|(name, _)| !entries.contains_key(*name)) {
                let kind = NodeKind::CharDevice(0, 0);
                let mark = self.tree.node(*mark);
                let node = Node { kind, permissions: 0, xattrs: Vec::new(), ..without_content(mark) };
                made.push((name.clone(), self.tree.add_unnamed(node)));
            }
        }
        let Some(names) = self.tree.names_mut(target) else { return };
        if opaque {
            names.retain(|_, id| !upper.is_lower(*id));
        }
        for name in deleted.keys() {
            if names.get(name).is_some_and(|id| upper.is_lower(*id)) {
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
        if !self.is_directory(id) {
            return self.tree.link(target, &name, id);
        }
        match self.tree.child(target, &name) {
            // A hidden directory stays as it is, since overlayfs may have moved it.
            Some(lower) if self.is_directory(lower) && !(upper.is_opaque(id) && upper.is_lower(lower)) => {
                work.directories.push((lower, id));
            }
            Some(lower) if self.is_symlink(lower) && upper.is_undescribed(id) => {
                work.redirected.push_back(Redirected { directory: target, name, upper: id });
            }
            // There is nothing to delete below a file.
            Some(lower)
                if upper.is_lower(lower)
                    && !self.is_directory(lower)
                    && !self.is_whiteout(upper, lower)
                    && self.only_deletes(upper, id) => {}
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

    /// Returns whether a layer has a directory only to delete files in it.
    fn only_deletes(&self, upper: &Upper, directory: NodeId) -> bool {
        let mut stack = vec![directory];
        while let Some(directory) = stack.pop() {
            let NodeKind::Directory(names) = &self.tree.node(directory).kind else { return false };
            if !upper.is_undescribed(directory) {
                return false;
            }
            for (name, id) in names {
                match Meaning::of(name) {
                    Meaning::Whiteout(_) | Meaning::Nothing => {}
                    Meaning::Name if self.is_whiteout(upper, *id) => {}
                    Meaning::Name => stack.push(*id),
                    Meaning::Opaque => return false,
                }
            }
        }
        true
    }

    /// Removes whiteouts in opaque directories and below them. They hide nothing, and Linux lists the
    /// whiteouts of a directory that is in one layer only.
    fn drop_whiteouts_without_effect(&mut self) {
        let mut stack = vec![(self.tree.root(), false)];
        while let Some((directory, below)) = stack.pop() {
            let hides = below || self.is_opaque(directory);
            let NodeKind::Directory(names) = &self.tree.node(directory).kind else { continue };
            stack.extend(names.values().filter(|id| self.is_directory(**id)).map(|id| (*id, hides)));
            if hides {
                let is_whiteout = |id: &NodeId| matches!(self.tree.node(*id).kind, NodeKind::CharDevice(0, 0));
                let names = names.iter().filter(|(_, id)| !is_whiteout(id));
                let names = names.map(|(name, id)| (name.clone(), *id)).collect();
                self.tree.names_mut(directory).into_iter().for_each(|all| all.clone_from(&names));
            }
        }
    }

    fn add_directory(&mut self, target: NodeId, name: &[u8], id: NodeId) -> Result<()> {
        self.tree.link(target, name, id)?;
        if let Some(parents) = &mut self.parents {
            parents.insert(id, target);
        }
        Ok(())
    }

    /// Returns the directory to which the symbolic link `name` in `directory` leads. Creates
    /// missing directories.
    fn follow(&mut self, directory: NodeId, name: &[u8]) -> Option<NodeId> {
        let way = self.way_to(directory);
        let reached = follow(&self.tree, way, [name], LastLink::Followed).ok()?;
        if reached.file.is_some() {
            return None;
        }
        let mut here = reached.directory();
        let missing: Vec<_> = reached.missing().iter().map(|name| name.to_vec()).collect();
        for name in missing {
            let made = self.tree.add_unnamed(undescribed(&ScanOptions::default()));
            self.add_directory(here, &name, made).ok()?;
            here = made;
        }
        Some(here)
    }

    /// Returns the directories from the root to this one.
    fn way_to(&mut self, directory: NodeId) -> Vec<NodeId> {
        let tree = &self.tree;
        let parents = self.parents.get_or_insert_with(|| {
            let is_directory = |id| matches!(tree.node(id).kind, NodeKind::Directory(_));
            let visits = tree.walk().into_iter().filter(|visit| is_directory(visit.id));
            visits.map(|visit| (visit.id, visit.parent)).collect()
        });
        let mut way = vec![directory];
        while let Some(above) = way.last().filter(|id| **id != tree.root()) {
            way.push(parents.get(above).copied().unwrap_or(tree.root()));
        }
        way.reverse();
        way
    }

    fn is_directory(&self, id: NodeId) -> bool {
        matches!(self.tree.node(id).kind, NodeKind::Directory(_))
    }

    fn is_symlink(&self, id: NodeId) -> bool {
        matches!(self.tree.node(id).kind, NodeKind::Symlink(_))
    }

    fn is_whiteout(&self, upper: &Upper, id: NodeId) -> bool {
        matches!(self.tree.node(id).kind, NodeKind::CharDevice(0, 0))
            || upper.mark(id).is_some_and(|mark| mark.whiteout)
    }

    fn is_opaque(&self, id: NodeId) -> bool {
        overlayfs::is_opaque(&self.tree.node(id).xattrs)
    }

    fn set_opaque(&mut self, id: NodeId) {
        overlayfs::set_opaque(&mut self.tree.node_mut(id).xattrs);
    }

    /// Builds an error about node `id` of a layer, which was to become `name` in `directory`.
    fn error(&self, directory: NodeId, name: &[u8], id: NodeId, what: &str) -> Error {
        let path = self.tree.name_below(directory, name, id);
        Error::Source { path, what: what.to_owned() }
    }
}

/// Returns a node's metadata without kind-specific data and xattrs.
fn without_content(node: &Node) -> Node {
    Node { kind: NodeKind::Fifo, xattrs: Vec::new(), ..*node }
}

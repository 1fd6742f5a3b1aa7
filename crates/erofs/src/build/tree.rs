//! The source of an image: a tree of files with sorted names.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::content::Content;
use super::live::State;
use super::member::of_archive;
use super::warnings::{Warning, WarningKind, Warnings};
use crate::error::{Error, Result};
use crate::format::{NAME_LEN, Xattr, mode};

/// Identifies a node in its [`Tree`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub(crate) usize);

/// The kind of a node, with kind-specific data.
#[derive(Clone, Debug)]
pub enum NodeKind {
    /// Names and their nodes.
    Directory(BTreeMap<Vec<u8>, NodeId>),
    /// A regular file.
    Regular {
        /// The content.
        content: Content,
        /// The size in bytes.
        size: u64,
    },
    /// A symbolic link, with its target.
    Symlink(Vec<u8>),
    /// A character device: major and minor number.
    CharDevice(u32, u32),
    /// A block device: major and minor number.
    BlockDevice(u32, u32),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

/// A file, independent of its names.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its kind.
    pub kind: NodeKind,
    /// Permissions, set-id and sticky bits: 12 bits.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Modification time: seconds since the epoch.
    pub mtime_s: i64,
    /// The nanoseconds of the modification time, below 10⁹.
    pub mtime_nsec: u32,
    /// Extended attributes with names that EROFS can store.
    pub xattrs: Vec<Xattr>,
}

impl Node {
    pub(crate) fn mode(&self) -> u16 {
        let kind = match self.kind {
            NodeKind::Directory(_) => mode::DIRECTORY,
            NodeKind::Regular { .. } => mode::REGULAR,
            NodeKind::Symlink(_) => mode::SYMLINK,
            NodeKind::CharDevice(..) => mode::CHARACTER,
            NodeKind::BlockDevice(..) => mode::BLOCK,
            NodeKind::Fifo => mode::FIFO,
            NodeKind::Socket => mode::SOCKET,
        };
        kind as u16 | (self.permissions & 0o7777)
    }
}

/// The origin of nodes, for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Assembled by hand.
    None,
    /// A directory of the operating system.
    Directory(PathBuf),
    /// The archive with this name.
    Archive(PathBuf),
}

/// A tree of files. Node 0 is the root directory.
#[derive(Clone, Debug)]
pub struct Tree {
    nodes: Vec<Node>,
    /// For each node, an index into `sources`. Nodes past the end have the last source.
    origins: Vec<u32>,
    sources: Vec<Origin>,
    warnings: Warnings,
}

impl Tree {
    /// Creates a tree that contains only a root directory. A `root` of another kind becomes an
    /// empty directory.
    pub fn new(root: Node) -> Self {
        Self::of_origin(root, Origin::None)
    }

    /// Like [`new`](Self::new), with the given `origin`.
    pub(crate) fn of_origin(mut root: Node, origin: Origin) -> Self {
        root.kind = NodeKind::Directory(BTreeMap::new());
        Self { nodes: vec![root], origins: Vec::new(), sources: vec![origin], warnings: Warnings::default() }
    }

    /// Returns warnings about properties of the source that an image of the tree does not preserve.
    pub fn warnings(&self) -> Vec<Warning> {
        self.warnings.list().into_iter().filter(|warning| !warning.is_change()).collect()
    }

    pub(crate) fn warnings_mut(&mut self) -> &mut Warnings {
        &mut self.warnings
    }

    /// Counts a warning about a file. Calls `name` only if it is needed as an example.
    pub(crate) fn warn(&mut self, kind: WarningKind, name: impl FnOnce(&Self) -> PathBuf) {
        let name = self.warnings.wants_example(kind).then(|| name(self).display().to_string());
        self.warnings.add(kind, || name.unwrap_or_default());
    }

    /// Adds the nodes of another tree, without names in this one. Returns the offset added to their
    /// ids.
    pub(crate) fn append(&mut self, other: Self) -> usize {
        let (moved, sources) = (self.nodes.len(), self.sources.len());
        self.origins.resize(moved, sources as u32 - 1);
        self.origins.extend(other.origins.iter().map(|origin| origin + sources as u32));
        self.origins.resize(moved + other.nodes.len(), (sources + other.sources.len()) as u32 - 1);
        self.sources.extend(other.sources);
        self.nodes.extend(other.nodes.into_iter().map(|mut node| {
            if let NodeKind::Directory(names) = &mut node.kind {
                names.values_mut().for_each(|id| id.0 += moved);
            }
            node
        }));
        self.warnings.append(other.warnings);
        moved
    }

    fn source_of(&self, id: NodeId) -> usize {
        self.origins.get(id.0).map_or(self.sources.len() - 1, |source| *source as usize)
    }

    /// Returns a directory's names and their nodes.
    pub(crate) fn names_mut(&mut self, directory: NodeId) -> Option<&mut BTreeMap<Vec<u8>, NodeId>> {
        match &mut self.nodes[directory.0].kind {
            NodeKind::Directory(names) => Some(names),
            _ => None,
        }
    }

    /// Copies another directory's metadata, but not its names.
    pub(crate) fn describe_as(&mut self, id: NodeId, other: NodeId) {
        let node = Node { kind: NodeKind::Fifo, ..self.nodes[other.0].clone() };
        let kind = std::mem::replace(&mut self.nodes[id.0].kind, NodeKind::Fifo);
        self.nodes[id.0] = Node { kind, ..node };
        let (source, last) = (self.source_of(other) as u32, self.sources.len() as u32 - 1);
        if self.origins.len() <= id.0 {
            self.origins.resize(id.0 + 1, last);
        }
        self.origins[id.0] = source;
    }

    /// Returns the root directory.
    pub fn root(&self) -> NodeId {
        NodeId(0)
    }

    /// Returns a node.
    ///
    /// # Panics
    /// May panic if `id` belongs to another tree; so may all methods with such a parameter.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0]
    }

    /// Returns a node for modification. Its kind must not change.
    pub fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.0]
    }

    /// Returns all nodes from number `first` on, for modification. Their kinds must not change.
    pub(crate) fn nodes_mut(&mut self, first: usize) -> impl Iterator<Item = &mut Node> {
        self.nodes.iter_mut().skip(first)
    }

    /// Adds a node under `name` in a directory. Returns its id. Replaces any node with that name.
    ///
    /// # Errors
    /// The errors of [`link`](Self::link).
    pub fn add(&mut self, directory: NodeId, name: &[u8], node: Node) -> Result<NodeId> {
        let id = self.add_unnamed(node);
        self.link(directory, name, id)?;
        Ok(id)
    }

    /// Adds a node without a name, so that it is not in the tree yet.
    pub(crate) fn add_unnamed(&mut self, node: Node) -> NodeId {
        self.nodes.push(node);
        NodeId(self.nodes.len() - 1)
    }

    /// Gives a node another name.
    ///
    /// # Errors
    /// [`Error::Source`], with the tree unchanged: the name is empty, `.`, `..`, longer than 255
    /// bytes or contains a slash or NUL, or `directory` is not a directory.
    pub fn link(&mut self, directory: NodeId, name: &[u8], node: NodeId) -> Result<()> {
        let refuse = |what: &str| {
            let path = PathBuf::from(String::from_utf8_lossy(name).into_owned());
            Err(Error::Source { path, what: what.to_owned() })
        };
        if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') || name.contains(&0) {
            return refuse("a file cannot have this name");
        }
        if name.len() > NAME_LEN {
            return refuse("the name is longer than 255 bytes");
        }
        match &mut self.nodes[directory.0].kind {
            NodeKind::Directory(names) => names.insert(name.to_vec(), node),
            _ => return refuse("its parent is not a directory"),
        };
        Ok(())
    }

    /// Returns the node with `name` in a directory.
    pub fn child(&self, directory: NodeId, name: &[u8]) -> Option<NodeId> {
        match &self.nodes[directory.0].kind {
            NodeKind::Directory(names) => names.get(name).copied(),
            _ => None,
        }
    }

    /// If a file has several names, makes all but the first one separate files with equal content
    /// and metadata.
    pub fn separate_links(&mut self) {
        let mut is_named = vec![false; self.nodes.len()];
        for directory in 0..self.nodes.len() {
            let NodeKind::Directory(names) = &mut self.nodes[directory].kind else { continue };
            let mut names = std::mem::take(names);
            for id in names.values_mut() {
                if matches!(self.nodes[id.0].kind, NodeKind::Directory(_)) {
                    continue;
                }
                if std::mem::replace(&mut is_named[id.0], true) {
                    let source = self.source_of(*id) as u32;
                    self.origins.resize(self.nodes.len(), self.sources.len() as u32 - 1);
                    self.origins.push(source);
                    *id = self.add_unnamed(self.nodes[id.0].clone());
                    is_named.push(true);
                }
            }
            self.nodes[directory].kind = NodeKind::Directory(names);
        }
    }

    /// Returns what changed in a scanned directory while its tree was scanned, built or verified,
    /// if [`ScanOptions::skip_unreadable`](crate::ScanOptions::skip_unreadable) was set.
    pub fn changes(&self) -> Vec<Warning> {
        let mut changes = Warnings::default();
        for node in &self.nodes {
            let NodeKind::Regular { content: Content::Live(file), .. } = &node.kind else { continue };
            let kind = match file.state() {
                State::Unread | State::Read => continue,
                State::Gone => WarningKind::Vanished,
                State::Replaced => WarningKind::Replaced,
                State::Shorter => WarningKind::Shorter,
                State::Changed => WarningKind::Changed,
            };
            changes.add(kind, || file.path().to_path_buf().display().to_string());
        }
        let mut all = self.warnings.clone();
        all.append(changes);
        all.list().into_iter().filter(Warning::is_change).collect()
    }

    /// Returns the files that vanished before they could be read.
    pub(crate) fn gone(&self) -> HashSet<NodeId> {
        let is_gone = |node: &Node| matches!(&node.kind, NodeKind::Regular { content, .. } if content.is_gone());
        self.nodes.iter().enumerate().filter(|(_, node)| is_gone(node)).map(|(id, _)| NodeId(id)).collect()
    }

    /// Returns a copy without the names of some files.
    pub(crate) fn without(&self, files: &HashSet<NodeId>) -> Self {
        let mut copy = self.clone();
        for node in &mut copy.nodes {
            if let NodeKind::Directory(names) = &mut node.kind {
                names.retain(|_, id| !files.contains(id));
            }
        }
        copy
    }

    /// Returns a node's path below the root and its source, for messages.
    pub(crate) fn name_of(&self, id: NodeId) -> PathBuf {
        self.at_source(id, &self.path_of(id))
    }

    /// Like [`name_of`](Self::name_of), for a node that will be `name` in a directory.
    pub(crate) fn name_below(&self, directory: NodeId, name: &[u8], id: NodeId) -> PathBuf {
        self.at_source(id, &self.path_of(directory).join(OsStr::from_bytes(name)))
    }

    /// Returns a path in a node's source, for messages.
    pub(crate) fn at_source(&self, id: NodeId, path: &Path) -> PathBuf {
        let is_root = path.as_os_str().is_empty();
        match &self.sources[self.source_of(id)] {
            Origin::None if is_root => PathBuf::from("/"),
            Origin::None => path.to_owned(),
            Origin::Directory(root) if is_root => root.clone(),
            Origin::Directory(root) => root.join(path),
            Origin::Archive(name) => of_archive(name, if is_root { Path::new("/") } else { path }),
        }
    }

    /// Returns a path of a node below the root, for messages. Takes time linear in the number of
    /// names.
    fn path_of(&self, id: NodeId) -> PathBuf {
        let mut above = vec![None; self.nodes.len()];
        for (parent, node) in self.nodes.iter().enumerate() {
            let NodeKind::Directory(names) = &node.kind else { continue };
            for (name, child) in names {
                above[child.0].get_or_insert((parent, name));
            }
        }
        let mut names = Vec::new();
        let mut below = id.0;
        while below != self.root().0
            && let Some((parent, name)) = above[below].take()
        {
            names.push(OsStr::from_bytes(name));
            below = parent;
        }
        names.iter().rev().collect()
    }

    /// Returns all named nodes, the root first: each directory's children in name order, before
    /// anything below them. Each has its link count (for directories, 2 plus the number of
    /// subdirectories) and the directory in which it was first found.
    pub(crate) fn walk(&self) -> Vec<Visit> {
        let mut visits: Vec<Visit> = Vec::with_capacity(self.nodes.len());
        let mut place = vec![usize::MAX; self.nodes.len()];
        visits.push(Visit { id: self.root(), nlink: 2, parent: self.root() });
        place[0] = 0;
        let mut stack = vec![self.root()];
        while let Some(directory) = stack.pop() {
            let NodeKind::Directory(names) = &self.nodes[directory.0].kind else { continue };
            let mut below = Vec::new();
            for &child in names.values() {
                let is_directory = matches!(self.nodes[child.0].kind, NodeKind::Directory(_));
                if place[child.0] != usize::MAX {
                    visits[place[child.0]].nlink += 1;
                    continue;
                }
                place[child.0] = visits.len();
                visits.push(Visit { id: child, nlink: if is_directory { 2 } else { 1 }, parent: directory });
                if is_directory {
                    visits[place[directory.0]].nlink += 1;
                    below.push(child);
                }
            }
            stack.extend(below.into_iter().rev());
        }
        visits
    }
}

/// One node in the order of [`Tree::walk`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visit {
    pub(crate) id: NodeId,
    pub(crate) nlink: u32,
    pub(crate) parent: NodeId,
}

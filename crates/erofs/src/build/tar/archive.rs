//! Reads a tar archive into a tree.
//!
//! Members are read by position, one 512-byte header after another: POSIX ustar, PAX records (by
//! their lengths, because values may contain any byte), GNU long names, and the sparse formats of
//! both (`sparse.rs`).

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use tar::EntryType;

use super::describe::Describer;
use super::members::{LABEL, Member, Members, source_error};
use crate::build::content::Content;
use crate::build::layer::{Layer, Pending, undescribed};
use crate::build::member::{Archive, MemberContent, Place, of_archive, shown};
use crate::build::scan_options::ScanOptions;
use crate::build::sparse::Sparse;
use crate::build::tree::{Node, NodeId, NodeKind, Origin, Tree};
use crate::error::{Error, Result};

impl Tree {
    /// Reads the tree in a tar archive (POSIX, PAX, GNU). `archive` stays open, because content is
    /// read from it when the image is built. A later member replaces an earlier one of the same
    /// name. Directories without a member belong to root and have mode 0755 and time 0. Whiteouts
    /// of container layers stay ordinary files.
    ///
    /// # Errors
    /// [`Error::Source`] with the member's name if the archive is invalid; [`Error::Io`] if it
    /// cannot be read.
    pub fn from_tar(archive: File, options: &ScanOptions) -> Result<Self> {
        Layer::from_tar(archive, Path::new(""), options)?.into_tree()
    }
}

impl Layer {
    /// As [`Tree::from_tar`], for an archive that messages call `name`, unless that is empty.
    ///
    /// # Errors
    /// The errors of [`Tree::from_tar`].
    pub fn from_tar(archive: File, name: &Path, options: &ScanOptions) -> Result<Self> {
        read(archive, name, options).map_err(|error| match error {
            Error::Source { path, what } => Error::Source { path: of_archive(name, &path), what },
            Error::Io { what, source } if name != Path::new("") => {
                Error::Io { what: format!("{}: {what}", name.display()), source }
            }
            other => other,
        })
    }
}

/// The state of reading an archive.
struct Reading<'a> {
    archive: Arc<Archive>,
    options: &'a ScanOptions,
    layer: Layer,
    describer: Describer,
    /// Excluded files, by path.
    left_out: HashMap<Vec<u8>, NodeId>,
}

fn read(file: File, name: &Path, options: &ScanOptions) -> Result<Layer> {
    let archive = Arc::new(Archive { file, name: name.to_owned() });
    let tree = Tree::of_origin(undescribed(options), Origin::Archive(name.to_owned()));
    let mut reading = Reading {
        archive: Arc::clone(&archive),
        options,
        layer: Layer::new(tree),
        describer: Describer::new(name, options.no_xattrs),
        left_out: HashMap::new(),
    };
    let root = reading.layer.tree.root();
    reading.layer.undescribed.insert(root);
    let mut members = Members::new(&archive.file)?;
    while let Some(member) = members.next()? {
        let names = names(&member.path)?;
        if names.is_empty() && member.kind.as_byte() == LABEL {
            continue;
        }
        if names.is_empty() {
            if !member.kind.is_dir() {
                return Err(source_error(&member.path, "it is not a directory: the root of an image must be one"));
            }
            reading.describe(&member, root)?;
        } else if is_left_out(&names, options) {
            // Errors in an excluded member do not matter.
            let _ = reading.leave_out(&member, &names);
        } else {
            reading.add(&member, &names)?;
        }
    }
    let Reading { mut layer, describer, .. } = reading;
    layer.tree.warnings_mut().append(describer.warnings);
    Ok(layer)
}

impl Reading<'_> {
    fn describe(&mut self, member: &Member, id: NodeId) -> Result<()> {
        let node = self.layer.tree.node_mut(id);
        self.describer.describe(member, node)?;
        self.layer.take_in(id, self.options);
        Ok(())
    }

    fn add(&mut self, member: &Member, names: &[&[u8]]) -> Result<()> {
        let Some((name, above)) = names.split_last() else { return Ok(()) };
        let parent = self.directories(above, &member.path)?;
        if member.kind == EntryType::Link {
            let node = self.linked(member)?;
            return self.layer.tree.link(parent, name, node).map_err(|error| of_member(&member.path, error));
        }
        let Some(kind) = self.kind_of(member)? else { return Ok(()) };
        // A directory that is described after its files keeps them.
        let tree = &mut self.layer.tree;
        let known = tree.child(parent, name).filter(|node| matches!(tree.node(*node).kind, NodeKind::Directory(_)));
        let id = match (known, &kind) {
            (Some(node), NodeKind::Directory(_)) => node,
            _ => {
                let node = Node { kind, ..undescribed(self.options) };
                tree.add(parent, name, node).map_err(|error| of_member(&member.path, error))?
            }
        };
        self.describe(member, id)
    }

    /// Keeps an excluded file without a name, because an included name may be a hard link to it.
    fn leave_out(&mut self, member: &Member, names: &[&[u8]]) -> Result<()> {
        let id = if member.kind == EntryType::Link {
            self.linked(member)?
        } else {
            let kind = self.kind_of(member)?.filter(|kind| !matches!(kind, NodeKind::Directory(_)));
            let Some(kind) = kind else { return Ok(()) };
            let mut node = Node { kind, ..undescribed(self.options) };
            self.describer.describe(member, &mut node)?;
            self.options.apply(&mut node);
            self.layer.tree.add_unnamed(node)
        };
        self.left_out.insert(names.join(&b'/'), id);
        Ok(())
    }

    /// Returns the file that a member is a hard link to, or a placeholder until the layers below
    /// are known.
    fn linked(&mut self, member: &Member) -> Result<NodeId> {
        let target = names(&member.link)?;
        let tree = &mut self.layer.tree;
        let found = target.iter().try_fold(tree.root(), |node, name| tree.child(node, name));
        let file = found.filter(|node| !matches!(tree.node(*node).kind, NodeKind::Directory(_)));
        if let Some(id) = file.or_else(|| self.left_out.get(&target.join(&b'/')).copied()) {
            return Ok(id);
        }
        let id = tree.add_unnamed(Node { kind: NodeKind::Fifo, ..undescribed(self.options) });
        let target = target.iter().map(|name| name.to_vec()).collect();
        self.layer.pending.insert(id, Pending { target, path: shown(&member.path) });
        Ok(id)
    }

    /// Returns the kind of a member that is not a hard link; `None` for a member that is not part
    /// of the tree.
    fn kind_of(&self, member: &Member) -> Result<Option<NodeKind>> {
        let refuse = |what: &str| Err(source_error(&member.path, what));
        let device = || {
            let recorded = |key: &[u8]| {
                member.records.get(key).map(|value| std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()))
            };
            let own = |number: std::io::Result<Option<u32>>| number.ok().flatten();
            let major = recorded(b"SCHILY.devmajor").unwrap_or_else(|| own(member.header.device_major()));
            let minor = recorded(b"SCHILY.devminor").unwrap_or_else(|| own(member.header.device_minor()));
            let unreadable = || source_error(&member.path, "its device number cannot be read");
            major.zip(minor).ok_or_else(unreadable)
        };
        Ok(Some(match member.kind {
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                let (place, size) = match &member.sparse {
                    Some(Sparse { size, spans }) => (Place::Spans(spans.as_slice().into()), *size),
                    None => (Place::Whole(member.offset), member.size),
                };
                let content = Content::Member(MemberContent::new(&self.archive, &member.path, place));
                NodeKind::Regular { content, size }
            }
            EntryType::Directory => NodeKind::Directory(BTreeMap::new()),
            EntryType::Symlink if (1..=4095).contains(&member.link.len()) => NodeKind::Symlink(member.link.clone()),
            EntryType::Symlink => return refuse("a symbolic link's target must have 1 to 4095 bytes"),
            EntryType::Char => device().map(|(major, minor)| NodeKind::CharDevice(major, minor))?,
            EntryType::Block => device().map(|(major, minor)| NodeKind::BlockDevice(major, minor))?,
            EntryType::Fifo => NodeKind::Fifo,
            kind if kind.as_byte() == LABEL => return Ok(None),
            kind => return refuse(&format!("unknown member type '{}'", kind.as_byte().escape_ascii())),
        }))
    }

    /// Returns the directory at `names`. Creates missing ones.
    fn directories(&mut self, names: &[&[u8]], path: &[u8]) -> Result<NodeId> {
        let tree = &mut self.layer.tree;
        let mut here = tree.root();
        for name in names {
            here = match tree.child(here, name) {
                Some(node) if matches!(tree.node(node).kind, NodeKind::Directory(_)) => node,
                Some(_) => return Err(source_error(path, "its parent is not a directory")),
                None => {
                    let made = tree.add(here, name, undescribed(self.options));
                    let made = made.map_err(|error| of_member(path, error))?;
                    self.layer.undescribed.insert(made);
                    made
                }
            };
        }
        Ok(here)
    }
}

/// Returns whether the path of `names` or one of its parents is excluded.
fn is_left_out(names: &[&[u8]], options: &ScanOptions) -> bool {
    if options.excludes.is_empty() {
        return false;
    }
    let path = names.join(&b'/');
    let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    slashes.chain([path.len()]).any(|end| options.excludes(&path[..end]))
}

/// Splits a path into names, without single dots.
fn names(path: &[u8]) -> Result<Vec<&[u8]>> {
    let names: Vec<_> = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".").collect();
    if names.contains(&&b".."[..]) { Err(source_error(path, "its path contains ..")) } else { Ok(names) }
}

/// Converts an error about a name into one about its member.
fn of_member(path: &[u8], error: Error) -> Error {
    match error {
        Error::Source { what, .. } => source_error(path, &what),
        other => other,
    }
}

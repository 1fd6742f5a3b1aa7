//! Reads a tar archive into a tree.
//!
//! Members are read by position, one 512-byte header after another: POSIX ustar, PAX records (by
//! their lengths, because values may contain any byte), GNU long names, and the sparse formats of
//! both (`sparse.rs`).

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

use tar::EntryType;

use super::describe::Describer;
use super::members::{LABEL, Member, Members, source_error};
use super::number::Stated;
use crate::build::content::Content;
use crate::build::follow::{DeadEnd, LastLink, follow};
use crate::build::layer::{LINK_TO_DIRECTORY, Layer, Pending, undescribed};
use crate::build::member::{Archive, MemberContent, Place, of_archive, shown};
use crate::build::scan_options::ScanOptions;
use crate::build::sparse::Sparse;
use crate::build::tree::{Node, NodeId, NodeKind, Origin, Tree};
use crate::build::warnings::WarningKind;
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
    /// Like [`Tree::from_tar`], for an archive that messages call `name`, unless that is empty.
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

const NO_DIRECTORY: &str = "its parent is not a directory";
const DEVICES: RangeInclusive<i128> = 0..=u32::MAX as i128;

/// The state of reading an archive.
struct Reading<'a> {
    archive: Arc<Archive>,
    options: &'a ScanOptions,
    layer: Layer,
    describer: Describer<'a>,
    /// Excluded files, by path without links.
    left_out: HashMap<Vec<u8>, NodeId>,
}

fn read(file: File, name: &Path, options: &ScanOptions) -> Result<Layer> {
    let archive = Arc::new(Archive { file, name: name.to_owned() });
    let tree = Tree::of_origin(undescribed(options), Origin::Archive(name.to_owned()));
    let mut reading = Reading {
        archive: Arc::clone(&archive),
        options,
        layer: Layer::new(tree),
        describer: Describer::new(name, options),
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
            if !member.kind.is_dir() && member.path.is_empty() {
                return Err(source_error(format!("byte {}", member.at).as_bytes(), "a member without a name"));
            }
            // A path that ends with a slash makes a file a directory, but content says more.
            let is_file = member.header.entry_type().is_file() && member.size > 0;
            if !member.kind.is_dir() || is_file {
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
    let Reading { mut layer, mut describer, .. } = reading;
    if !members.has_end() {
        describer.warnings.add(WarningKind::NoEnd, || name.display().to_string());
    }
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
        let parent = match self.directories(above, name, &member.path)? {
            Parent::At(parent) => parent,
            Parent::LeftOut(path) => {
                let names: Vec<_> = path.iter().map(Vec::as_slice).collect();
                let _ = self.leave_out(member, &names);
                return Ok(());
            }
        };
        if member.kind == EntryType::Link
            && let Some(node) = self.linked(member)?
        {
            self.warn_of_directory(parent, name, member);
            return self.layer.tree.link(parent, name, node).map_err(|error| of_member(&member.path, error));
        }
        let Some(kind) = self.kind_of(member)? else { return Ok(()) };
        // A directory that is described after its files keeps them.
        let tree = &mut self.layer.tree;
        let known = tree.child(parent, name).filter(|node| matches!(tree.node(*node).kind, NodeKind::Directory(_)));
        let id = match (known, &kind) {
            (Some(node), NodeKind::Directory(_)) => node,
            _ => {
                self.warn_of_directory(parent, name, member);
                let node = Node { kind, ..undescribed(self.options) };
                self.layer.tree.add(parent, name, node).map_err(|error| of_member(&member.path, error))?
            }
        };
        self.describe(member, id)
    }

    /// Counts a directory with files of which a member that is not a directory takes the name.
    fn warn_of_directory(&mut self, parent: NodeId, name: &[u8], member: &Member) {
        let Layer { tree, unless_stacked, .. } = &mut self.layer;
        let replaced = tree.child(parent, name).map(|id| &tree.node(id).kind);
        if matches!(replaced, Some(NodeKind::Directory(names)) if !names.is_empty()) {
            let path = || of_archive(&self.archive.name, &shown(&member.path)).display().to_string();
            unless_stacked.add(WarningKind::ReplacedDirectory, path);
        }
    }

    /// Keeps an excluded file without a name, because an included name may be a hard link to it.
    fn leave_out(&mut self, member: &Member, names: &[&[u8]]) -> Result<()> {
        let linked = if member.kind == EntryType::Link { self.linked(member)? } else { None };
        let id = match linked {
            Some(id) => id,
            None => {
                let kind = self.kind_of(member)?.filter(|kind| !matches!(kind, NodeKind::Directory(_)));
                let Some(kind) = kind else { return Ok(()) };
                let mut node = Node { kind, ..undescribed(self.options) };
                self.describer.describe(member, &mut node)?;
                self.options.apply(&mut node);
                self.layer.tree.add_unnamed(node)
            }
        };
        let tree = &self.layer.tree;
        let reached = follow(tree, vec![tree.root()], names.iter().copied(), LastLink::Kept).ok();
        let path = reached.map_or_else(|| names.join(&b'/'), |reached| reached.names().join(&b'/'));
        self.left_out.insert(path, id);
        Ok(())
    }

    /// Returns the file that a member is a hard link to, or a placeholder until the layers below
    /// are known. `None`: the member has content, and its target is not in the archive, so it is a
    /// separate file. Content of other members is that of the target.
    fn linked(&mut self, member: &Member) -> Result<Option<NodeId>> {
        let refuse = |what: &str| Err(source_error(&member.path, what));
        let mut target = names(&member.link)?;
        if target.is_empty() {
            let what = "it is a hard link without a target";
            return refuse(if member.link.is_empty() { what } else { LINK_TO_DIRECTORY });
        }
        let tree = &self.layer.tree;
        let reached = follow(tree, vec![tree.root()], target.iter().copied(), LastLink::Kept).ok();
        let mut found = None;
        if let Some(reached) = &reached {
            // Without a description, the layers below may have a file there.
            if reached.is_directory() && !self.layer.undescribed.contains(&reached.directory()) {
                return refuse(LINK_TO_DIRECTORY);
            }
            found = reached.file.or_else(|| self.left_out.get(&reached.names().join(&b'/')).copied());
        }
        found = found.or_else(|| self.left_out.get(&target.join(&b'/')).copied());
        if let Some(id) = found {
            let kind = if member.size > 0 { self.kind_of(member)? } else { None };
            let node = self.layer.tree.node_mut(id);
            if let (Some(kind), NodeKind::Regular { .. }) = (kind, &node.kind) {
                node.kind = kind;
            }
            return Ok(Some(id));
        }
        if member.size > 0 {
            return Ok(None);
        }
        if let Some(reached) = &reached {
            target = reached.names().to_vec();
        }
        let target = target.iter().map(|name| name.to_vec()).collect();
        let id = self.layer.tree.add_unnamed(Node { kind: NodeKind::Fifo, ..undescribed(self.options) });
        self.layer.pending.insert(id, Pending { target, path: shown(&member.path) });
        Ok(Some(id))
    }

    /// Returns the kind of a member that is not a hard link; `None` for a member that is not part
    /// of the tree.
    fn kind_of(&self, member: &Member) -> Result<Option<NodeKind>> {
        let refuse = |what: &str| Err(source_error(&member.path, what));
        let device = || {
            let numbers = member.header.as_ustar().map(|header| (&header.dev_major, &header.dev_minor));
            let numbers =
                numbers.or_else(|| member.header.as_gnu().map(|header| (&header.dev_major, &header.dev_minor)));
            let number = |what: &str, key: &[u8], field: Option<&[u8; 8]>| {
                let field = field.map(|field| Stated::Field(field));
                let stated = member.records.get(key).map(|value| Stated::Record(value)).or(field);
                let number = match stated {
                    Some(stated) => stated.within(what, DEVICES).map(|number| number as u32),
                    None => Err("its header has no device number".to_owned()),
                };
                number.map_err(|what| source_error(&member.path, &what))
            };
            let major = number("major device number", b"SCHILY.devmajor", numbers.map(|(major, _)| major))?;
            Ok::<_, Error>((major, number("minor device number", b"SCHILY.devminor", numbers.map(|(_, minor)| minor))?))
        };
        Ok(Some(match member.kind {
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse | EntryType::Link => {
                let (place, size) = match &member.sparse {
                    Some(Sparse { size, spans }) => (Place::Spans(spans.as_slice().into()), *size),
                    None => (Place::Whole(member.offset), member.size),
                };
                let content = Content::Member(MemberContent::new(&self.archive, &member.path, place));
                NodeKind::Regular { content, size }
            }
            EntryType::Directory => NodeKind::Directory(BTreeMap::new()),
            EntryType::Symlink if !(1..=4095).contains(&member.link.len()) => {
                return refuse("a symbolic link's target must have 1 to 4095 bytes");
            }
            EntryType::Symlink if member.link.contains(&0) => return refuse("a symbolic link's target contains NUL"),
            EntryType::Symlink => NodeKind::Symlink(member.link.clone()),
            EntryType::Char => device().map(|(major, minor)| NodeKind::CharDevice(major, minor))?,
            EntryType::Block => device().map(|(major, minor)| NodeKind::BlockDevice(major, minor))?,
            EntryType::Fifo => NodeKind::Fifo,
            kind if kind.as_byte() == LABEL => return Ok(None),
            kind => return refuse(&format!("unknown member type '{}'", kind.as_byte().escape_ascii())),
        }))
    }

    /// Returns the directory at `above`, in which the member at `path` is `name`. Follows symbolic
    /// links of the archive and creates missing directories.
    fn directories(&mut self, above: &[&[u8]], name: &[u8], path: &[u8]) -> Result<Parent> {
        let tree = &self.layer.tree;
        let reached = follow(tree, vec![tree.root()], above.iter().copied(), LastLink::Followed);
        let reached = reached.map_err(|end| {
            let what = match end {
                DeadEnd::NotDirectory => NO_DIRECTORY,
                DeadEnd::Loop => "its parent is a symbolic link that leads to itself or through more than 40 others",
            };
            source_error(path, what)
        })?;
        if reached.file.is_some() {
            return Err(source_error(path, NO_DIRECTORY));
        }
        if reached.linked {
            let names = [reached.names(), &[name]].concat();
            if is_left_out(&names, self.options) {
                return Ok(Parent::LeftOut(names.iter().map(|name| name.to_vec()).collect()));
            }
        }
        let mut here = reached.directory();
        let missing: Vec<_> = reached.missing().iter().map(|name| name.to_vec()).collect();
        for name in missing {
            let made = self.layer.tree.add(here, &name, undescribed(self.options));
            here = made.map_err(|error| of_member(path, error))?;
            self.layer.undescribed.insert(here);
        }
        Ok(Parent::At(here))
    }
}

/// Where a member's path leads to.
enum Parent {
    /// A file in this directory.
    At(NodeId),
    /// An excluded file, through a symbolic link, with the names of its path.
    LeftOut(Vec<Vec<u8>>),
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

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::build::work::steps_of;

    /// Returns the steps of reading an archive whose only member is at a path of `count` names
    /// below a symbolic link.
    fn steps(count: usize, excludes: &[&str]) -> u64 {
        let path = "d/".repeat(count) + "file";
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(EntryType::Symlink);
        header.set_size(0);
        builder.append_link(&mut header, "link", "d/d").unwrap();
        let mut header = tar::Header::new_gnu();
        header.set_size(0);
        // The builder itself would join the names.
        let long = format!("link/{path}\0");
        let mut extension = tar::Header::new_gnu();
        extension.set_entry_type(EntryType::GNULongName);
        extension.set_size(long.len() as u64);
        extension.set_cksum();
        builder.append(&extension, long.as_bytes()).unwrap();
        header.set_cksum();
        builder.append(&header, &b""[..]).unwrap();
        let mut archive = tempfile::tempfile().unwrap();
        archive.write_all(&builder.into_inner().unwrap()).unwrap();
        let excludes = excludes.iter().map(|pattern| pattern.as_bytes().to_vec()).collect();
        let options = ScanOptions { excludes, ..ScanOptions::default() };
        steps_of(|| drop(read(archive, Path::new("the.tar"), &options).unwrap()))
    }

    /// Handling a path must not take work that is quadratic in its depth.
    #[test]
    fn work_grows_as_the_path_does() {
        for excludes in [&[][..], &["*.o", "/d/e", "fil", "d/*/x", "./d/?/d"]] {
            let [few, many] = [10_000, 40_000].map(|count| steps(count, excludes));
            assert!(few >= 10_000 && many <= 5 * few, "{few} {many}");
        }
    }
}

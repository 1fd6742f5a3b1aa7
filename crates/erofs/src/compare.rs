//! Compares an image with a tree: names, metadata, links and every byte of content.
//!
//! One thread walks both together and compares the inodes. Other threads compare content in parallel.
//! The image is read by the regular reading code, and the tree's files are read again from their
//! sources. The findings and their order do not depend on the number of threads.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::build::{Content, Node, NodeId, NodeKind, ReadContent, Tree};
use crate::error::Result;
use crate::format::Xattr;
use crate::read::{File, FileKind, Image, Inode, PathId, Paths};
use crate::work::{Work, thread_count};
use crate::zeros::is_zeros;

/// The maximum number of differences in a report; further ones are only counted.
const MAX_DIFFERENCES: usize = 1000;
/// The size in bytes of the part of a file that one thread compares. Longer files are split.
const PART_BYTES: u64 = 4 << 20;
/// In files of at least this size, holes are looked for before the parts, so that they take no
/// time.
const LONG_BYTES: u64 = 256 << 20;
/// Bytes read from both sides together, so that they are compared while still in the CPU cache.
const PIECE_BYTES: usize = 512 << 10;

/// Something that differs between an image and a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Difference {
    /// The path of the file, from the root; at most the last 4 KiB.
    pub path: Vec<u8>,
    /// What differs.
    pub what: String,
}

/// The result of a comparison.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CompareReport {
    /// Names compared, the root included.
    pub names: u64,
    /// Bytes of regular files that were compared.
    pub file_bytes: u64,
    /// The first thousand differences by path, with at most one content difference per file.
    pub differences: Vec<Difference>,
    /// The number of further differences.
    pub more_differences: u64,
}

/// A part of a file's content.
struct FilePart<'a> {
    path: PathId,
    content: &'a Content,
    inode: Inode,
    /// Opened by the first thread that processes a part of the file.
    file: Arc<OnceLock<File>>,
    start: u64,
    end: u64,
}

struct Comparison<'a> {
    image: &'a Image,
    tree: &'a Tree,
    parts: &'a Work<FilePart<'a>>,
    paths: Paths,
    report: CompareReport,
    differences: Differences,
    /// The number of names of each node in the tree.
    nlinks: HashMap<NodeId, u32>,
    /// The inode of each compared node that is not a directory, and the reverse.
    nids: HashMap<NodeId, u64>,
    nodes: HashMap<u64, NodeId>,
}

impl Image {
    /// Compares the image with a tree, such as the one it was built from: names, kinds, modes,
    /// owners, times, sizes, device numbers, xattrs, hard links and all content. Uses `threads`
    /// threads (at most 1024; 0 for one per processor). A hole compares equal to zeros.
    ///
    /// Anything that cannot be read, in the image or in the tree, is reported as a difference, except
    /// what [`Tree::changes`](crate::Tree::changes) then reports.
    /// Memory use is linear in the number of names.
    pub fn compare(&self, tree: &Tree, threads: usize) -> CompareReport {
        let (parts, contents) = (Work::<FilePart<'_>>::new(), Mutex::new(BTreeMap::new()));
        let compare_parts = || {
            let mut buffers = Buffers::default();
            while let Some(part) = parts.next() {
                if let Err((at, what)) = part.compare(self, &mut buffers) {
                    let mut contents = contents.lock().unwrap_or_else(PoisonError::into_inner);
                    let first = contents.entry(part.path).or_insert_with(|| (at, what.clone()));
                    if at < first.0 {
                        *first = (at, what);
                    }
                }
            }
        };
        let mut comparison = Comparison {
            image: self,
            tree,
            parts: &parts,
            paths: Paths::new(),
            report: CompareReport::default(),
            differences: Differences::default(),
            nlinks: tree.walk().iter().map(|visit| (visit.id, visit.nlink)).collect(),
            nids: HashMap::new(),
            nodes: HashMap::new(),
        };
        std::thread::scope(|scope| {
            let finder = parts.finder();
            // The system may allow fewer threads.
            let spawn = |_| std::thread::Builder::new().spawn_scoped(scope, compare_parts).is_ok();
            let _ = (1..thread_count(threads)).all(spawn);
            comparison.walk();
            drop(finder);
            compare_parts();
        });
        let contents = contents.into_inner().unwrap_or_else(PoisonError::into_inner);
        for (path, (_, what)) in contents {
            comparison.differs(path, what);
        }
        comparison.into_report()
    }
}

impl<'a> Comparison<'a> {
    fn differs(&mut self, path: PathId, what: impl Into<String>) {
        self.differences.add(Difference { path: self.paths.display(path), what: what.into() });
    }

    fn walk(&mut self) {
        let tree = self.tree;
        let root = match self.image.root() {
            Ok(root) => root,
            Err(error) => return self.differs(0, error.to_string()),
        };
        self.compare_inode(0, tree.root(), &root);
        let mut directories = vec![(0, tree.root(), root)];
        while let Some((path, id, inode)) = directories.pop() {
            let NodeKind::Directory(names) = &tree.node(id).kind else { continue };
            let mut found = BTreeMap::new();
            let listed = self.image.for_each_entry(&inode, |entry| {
                if entry.name != b"." && entry.name != b".." {
                    found.insert(entry.name, entry.nid);
                }
                Ok(())
            });
            if let Err(error) = listed {
                self.differs(path, error.to_string());
            }
            let mut below = Vec::new();
            for (name, &child) in names {
                if matches!(&tree.node(child).kind, NodeKind::Regular { content, .. } if content.is_gone()) {
                    continue;
                }
                let child_path = self.paths.add(path, name.clone());
                let Some(nid) = found.remove(name) else {
                    self.differs(child_path, "is missing in the image");
                    continue;
                };
                match self.image.inode(nid) {
                    Ok(inode) => {
                        if self.compare_inode(child_path, child, &inode) {
                            below.push((child_path, child, inode));
                        }
                    }
                    Err(error) => self.differs(child_path, error.to_string()),
                }
            }
            for name in found.into_keys() {
                let extra = self.paths.add(path, name);
                self.differs(extra, "is only in the image");
            }
            // The tree bounds the depth, so a cycle of directories in the image ends where the tree
            // ends.
            directories.extend(below.into_iter().rev());
        }
    }

    /// Compares an inode's metadata and queues its content. Returns whether both sides are
    /// directories.
    fn compare_inode(&mut self, path: PathId, id: NodeId, inode: &Inode) -> bool {
        let node = self.tree.node(id);
        self.report.names += 1;
        if let Some(what) = different_kind(node, inode) {
            self.differs(path, what);
            return false;
        }
        let is_directory = inode.kind == FileKind::Directory;
        if !is_directory {
            if let Some(nid) = self.nids.get(&id) {
                if *nid != inode.nid {
                    self.differs(path, "is not the same file as its other names in the image");
                }
                return false;
            }
            self.nids.insert(id, inode.nid);
            if self.nodes.insert(inode.nid, id).is_some() {
                self.differs(path, "is a hard link to another file in the image, but should be a separate file");
            }
        }
        let mut facts = vec![
            ("mode", format!("{:04o}", node.permissions & 0o7777), format!("{:04o}", inode.permissions())),
            ("owner", node.uid.to_string(), inode.uid.to_string()),
            ("group", node.gid.to_string(), inode.gid.to_string()),
            ("time", show_time(node.mtime_s, node.mtime_nsec), show_time(inode.mtime_s, inode.mtime_nsec)),
        ];
        if let Some(nlink) = self.nlinks.get(&id) {
            facts.push(("number of links", nlink.to_string(), inode.nlink.to_string()));
        }
        match &node.kind {
            NodeKind::Regular { size, .. } => facts.push(("size", size.to_string(), inode.size.to_string())),
            NodeKind::CharDevice(major, minor) | NodeKind::BlockDevice(major, minor) => {
                let (of_image, of_image_minor) = inode.device().unwrap_or_default();
                facts.push(("device number", format!("{major},{minor}"), format!("{of_image},{of_image_minor}")));
            }
            _ => {}
        }
        let differing: Vec<_> = facts.into_iter().filter(|(_, expected, found)| expected != found).collect();
        for (what, expected, found) in differing {
            self.differs(path, format!("{what} is {found} in the image, not {expected}"));
        }
        match self.image.xattrs(inode) {
            Ok(found) => {
                if let Some(what) = different_xattrs(&node.xattrs, &found) {
                    self.differs(path, what);
                }
            }
            Err(error) => self.differs(path, error.to_string()),
        }
        match &node.kind {
            NodeKind::Symlink(target) => match self.image.read_link(inode) {
                Ok(found) if found == *target => {}
                Ok(_) => self.differs(path, "the link has a different target"),
                Err(error) => self.differs(path, error.to_string()),
            },
            NodeKind::Regular { content, size } if inode.size == *size => self.hand_over(path, content, inode),
            _ => {}
        }
        is_directory
    }

    fn hand_over(&mut self, path: PathId, content: &'a Content, inode: &Inode) {
        self.report.file_bytes = self.report.file_bytes.saturating_add(inode.size);
        let file = Arc::new(OnceLock::new());
        if inode.size >= LONG_BYTES {
            match self.image.file(inode) {
                Ok(opened) => drop(file.set(opened)),
                Err(error) => return self.differs(path, error.to_string()),
            }
        }
        let mut start = 0;
        while start < inode.size {
            if let Some(end) = file.get().and_then(|file| end_of_hole(file, content, start)) {
                start = end;
                continue;
            }
            let end = inode.size.min(start + PART_BYTES);
            self.parts.push(FilePart { path, content, inode: inode.clone(), file: Arc::clone(&file), start, end });
            start = end;
        }
    }

    fn into_report(mut self) -> CompareReport {
        self.differences.cut();
        let Differences { first: differences, more: more_differences } = self.differences;
        CompareReport { differences, more_differences, ..self.report }
    }
}

/// The first differences by path and text, in whatever order they are added.
#[derive(Default)]
struct Differences {
    first: Vec<Difference>,
    more: u64,
}

impl Differences {
    fn add(&mut self, difference: Difference) {
        self.first.push(difference);
        if self.first.len() >= 2 * MAX_DIFFERENCES {
            self.cut();
        }
    }

    fn cut(&mut self) {
        self.first.sort_by(|left, right| (&left.path, &left.what).cmp(&(&right.path, &right.what)));
        self.more += self.first.len().saturating_sub(MAX_DIFFERENCES) as u64;
        self.first.truncate(MAX_DIFFERENCES);
    }
}

/// Returns the end of the hole that both sides have at `start`, if it is longer than a part.
/// Failures are left to the comparison.
fn end_of_hole(file: &File, content: &Content, start: u64) -> Option<u64> {
    let run = file.run_at(start).ok().filter(|run| run.hole && run.len > PART_BYTES)?;
    let mut end = start + run.len;
    let found = content.stretches(start..end, &mut |stretch| {
        end = stretch.range.start;
        Ok(ControlFlow::Break(()))
    });
    found.ok().map(|_| end).filter(|end| end - start > PART_BYTES)
}

/// A thread's read buffers.
#[derive(Default)]
struct Buffers {
    of_image: Vec<u8>,
    of_tree: Vec<u8>,
}

impl FilePart<'_> {
    /// Compares the part. Returns the first difference and its position as the error.
    fn compare(&self, image: &Image, buffers: &mut Buffers) -> std::result::Result<(), (u64, String)> {
        let file = match self.file.get() {
            Some(file) => file,
            None => {
                let file = image.file(&self.inode).map_err(|error| (self.start, error.to_string()))?;
                self.file.get_or_init(|| file)
            }
        };
        let mut at = self.start;
        while at < self.end {
            let len = self.compare_piece(file, at, buffers)?;
            at += len as u64;
        }
        Ok(())
    }

    /// Compares up to the last extent that ends within the piece. Returns the number of bytes
    /// compared.
    fn compare_piece(&self, file: &File, at: u64, buffers: &mut Buffers) -> std::result::Result<usize, (u64, String)> {
        let Buffers { of_image, of_tree } = buffers;
        let room = File::room_bytes(PIECE_BYTES);
        if of_image.len() < room {
            of_image.resize(room, 0);
        }
        let most = (self.end - at).min(PIECE_BYTES as u64) as usize;
        let read = |of_image: &mut [u8]| -> Result<usize> {
            let len = file.whole_extents(most, most, at)?.min(most);
            file.read_alone(of_image, len, at)?;
            Ok(len)
        };
        let len = read(of_image).map_err(|error| (at, error.to_string()))?;
        let has_changed = || matches!(self.content, Content::Live(file) if file.has_changed());
        let found = match self.content.read_again(at, len, of_tree) {
            Ok(found) => found,
            Err(_) if has_changed() => return Ok(len),
            Err(error) => {
                let what = match error.kind() {
                    io::ErrorKind::UnexpectedEof => "has become shorter".to_owned(),
                    _ => format!("cannot be read again: {error}"),
                };
                return Err((at, what));
            }
        };
        let of_image = &of_image[..len];
        let same = match found {
            ReadContent::Bytes => of_image == of_tree.as_slice(),
            ReadContent::Zeros => is_zeros(of_image),
        };
        if same || has_changed() {
            return Ok(len);
        }
        if found == ReadContent::Zeros {
            of_tree.clear();
            of_tree.resize(len, 0);
        }
        let differs = of_image.iter().zip(of_tree.iter()).position(|(left, right)| left != right);
        let at = at + differs.unwrap_or_default() as u64;
        Err((at, format!("content differs from byte {at} on")))
    }
}

/// Describes the kinds of both if they differ.
fn different_kind(node: &Node, inode: &Inode) -> Option<String> {
    let expected = match node.kind {
        NodeKind::Directory(_) => FileKind::Directory,
        NodeKind::Regular { .. } => FileKind::Regular,
        NodeKind::Symlink(_) => FileKind::Symlink,
        NodeKind::CharDevice(..) => FileKind::CharDevice,
        NodeKind::BlockDevice(..) => FileKind::BlockDevice,
        NodeKind::Fifo => FileKind::Fifo,
        NodeKind::Socket => FileKind::Socket,
    };
    (inode.kind != expected).then(|| format!("is {:?} in the image, not {expected:?}", inode.kind))
}

fn show_time(seconds: i64, nanoseconds: u32) -> String {
    format!("{seconds}.{nanoseconds:09}")
}

/// Returns the first xattr that only one side has or whose value differs.
fn different_xattrs(expected: &[Xattr], found: &[Xattr]) -> Option<String> {
    let by_name = |xattrs: &[Xattr]| -> BTreeMap<Vec<u8>, Vec<u8>> {
        xattrs.iter().map(|xattr| (xattr.name.clone(), xattr.value.clone())).collect()
    };
    let (expected, found) = (by_name(expected), by_name(found));
    let show = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
    for (name, value) in &expected {
        match found.get(name) {
            None => return Some(format!("the xattr {} is missing in the image", show(name))),
            Some(other) if other != value => return Some(format!("the xattr {} has a different value", show(name))),
            Some(_) => {}
        }
    }
    let extra = found.keys().find(|name| !expected.contains_key(*name))?;
    Some(format!("the xattr {} is only in the image", show(extra)))
}

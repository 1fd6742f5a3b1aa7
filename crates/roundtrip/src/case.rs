//! A tree and the options for its image, as plain data.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use pagefold_erofs::{BuildOptions, Content, Error, Node, NodeId, NodeKind, Result, Span, Tree, Xattr};

use crate::segment::{self, Segment, Stuff};

/// A tree and the options for its image.
#[derive(Clone, Debug)]
pub struct Case {
    /// The build options; the number of threads is ignored.
    pub options: BuildOptions,
    /// The metadata of the root directory.
    pub root: Facts,
    /// Names, each after its directory's entry and the entry that it links to.
    pub entries: Vec<TreeEntry>,
}

/// A name in a tree.
#[derive(Clone, Debug)]
pub struct TreeEntry {
    /// The index of its directory's entry; `None` for the root.
    pub directory: Option<usize>,
    /// The name, unique in its directory.
    pub name: Vec<u8>,
    /// The metadata of the inode. Ignored for hard links.
    pub facts: Facts,
    /// The kind.
    pub kind: EntryKind,
}

/// Metadata of an inode of any kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Permissions, set-id and sticky bits.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The modification time in seconds and nanoseconds.
    pub mtime: (i64, u32),
    /// Extended attributes, sorted by name, without duplicates.
    pub xattrs: Vec<Xattr>,
}

impl Default for Facts {
    fn default() -> Self {
        Self { permissions: 0o644, uid: 0, gid: 0, mtime: (1, 0), xattrs: Vec::new() }
    }
}

/// The kind of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A directory.
    Directory,
    /// A regular file.
    Regular(Vec<Segment>),
    /// A symbolic link and its target.
    Symlink(Vec<u8>),
    /// A character device: major and minor number.
    CharDevice(u32, u32),
    /// A block device: major and minor number.
    BlockDevice(u32, u32),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// Another name of the entry with this index, which is neither a directory nor a link.
    Link(usize),
}

/// Where a tree stores its files' content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    Memory,
    /// In a file, without zeros.
    Spans,
}

impl Case {
    /// Creates a case with an empty root directory.
    pub fn new(options: BuildOptions) -> Self {
        Self { options, root: Facts { permissions: 0o755, ..Facts::default() }, entries: Vec::new() }
    }

    /// Adds a regular file to the root directory.
    #[must_use]
    pub fn file(self, name: &str, segments: &[Segment]) -> Self {
        self.file_with(name, Facts::default(), segments)
    }

    /// Adds a regular file with metadata to the root directory.
    #[must_use]
    pub fn file_with(self, name: &str, facts: Facts, segments: &[Segment]) -> Self {
        self.entry(name, facts, EntryKind::Regular(segments.to_vec()))
    }

    /// Adds an entry of any kind to the root directory.
    #[must_use]
    pub fn entry(mut self, name: &str, facts: Facts, kind: EntryKind) -> Self {
        self.entries.push(TreeEntry { directory: None, name: name.as_bytes().to_vec(), facts, kind });
        self
    }

    /// Returns the size of all regular files in bytes.
    pub fn content_bytes(&self) -> u64 {
        self.entries
            .iter()
            .map(|entry| if let EntryKind::Regular(segments) = &entry.kind { segment::len(segments) } else { 0 })
            .sum()
    }

    /// Returns the paths of all entries.
    pub(crate) fn paths(&self) -> Vec<Vec<u8>> {
        let mut paths: Vec<Vec<u8>> = Vec::with_capacity(self.entries.len());
        for entry in &self.entries {
            let path = match entry.directory {
                Some(directory) => [&paths[directory][..], b"/", &entry.name].concat(),
                None => entry.name.clone(),
            };
            paths.push(path);
        }
        paths
    }

    /// Builds the tree, with `contents` for its files.
    pub(crate) fn tree(&self, contents: &[Arc<[u8]>], store: Store) -> Result<Tree> {
        let node = |facts: &Facts, kind| Node {
            kind,
            permissions: facts.permissions,
            uid: facts.uid,
            gid: facts.gid,
            mtime_s: facts.mtime.0,
            mtime_nsec: facts.mtime.1,
            xattrs: facts.xattrs.clone(),
        };
        let mut spans = match store {
            Store::Memory => None,
            Store::Spans => Some(Spans { file: Arc::new(crate::memory_file()?), len: 0 }),
        };
        let mut tree = Tree::new(node(&self.root, NodeKind::Fifo));
        let mut ids: Vec<NodeId> = Vec::with_capacity(self.entries.len());
        for (entry, content) in self.entries.iter().zip(contents) {
            let directory = entry.directory.map_or(tree.root(), |directory| ids[directory]);
            let kind = match &entry.kind {
                EntryKind::Directory => NodeKind::Directory(Default::default()),
                EntryKind::Regular(segments) => NodeKind::Regular {
                    size: content.len() as u64,
                    content: match &mut spans {
                        None => Content::Bytes(Arc::clone(content)),
                        Some(spans) => spans.add(segments, content)?,
                    },
                },
                EntryKind::Symlink(target) => NodeKind::Symlink(target.clone()),
                EntryKind::CharDevice(major, minor) => NodeKind::CharDevice(*major, *minor),
                EntryKind::BlockDevice(major, minor) => NodeKind::BlockDevice(*major, *minor),
                EntryKind::Fifo => NodeKind::Fifo,
                EntryKind::Socket => NodeKind::Socket,
                EntryKind::Link(to) => {
                    tree.link(directory, &entry.name, ids[*to])?;
                    ids.push(ids[*to]);
                    continue;
                }
            };
            ids.push(tree.add(directory, &entry.name, node(&entry.facts, kind))?);
        }
        Ok(tree)
    }
}

/// A file that stores contents without their zeros.
struct Spans {
    file: Arc<File>,
    len: u64,
}

impl Spans {
    fn add(&mut self, segments: &[Segment], content: &[u8]) -> Result<Content> {
        let (mut at, mut spans) = (0, Vec::new());
        for segment in segments {
            let len = u64::from(segment.len);
            if segment.stuff != Stuff::Zeros && len > 0 {
                let bytes = &content[at as usize..(at + len) as usize];
                let failed = |source| Error::Io { what: "keeping contents".to_owned(), source };
                self.file.write_all_at(bytes, self.len).map_err(failed)?;
                spans.push(Span { at, len, source: self.len });
                self.len += len;
            }
            at += len;
        }
        Ok(Content::Spans(Arc::clone(&self.file), spans.into()))
    }
}

/// Prints what is needed to write the case as a test.
impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = format!("{:?}", self.options);
        writeln!(f, "{options}")?;
        if self.root != Case::new(BuildOptions::default()).root {
            writeln!(f, "root: {}", self.root)?;
        }
        for (number, (entry, path)) in self.entries.iter().zip(self.paths()).enumerate() {
            let path = path.escape_ascii().to_string();
            write!(f, "{number} {path}: ")?;
            match &entry.kind {
                EntryKind::Regular(segments) => {
                    let segments: Vec<_> = segments.iter().map(Segment::to_string).collect();
                    write!(f, "[{}]", segments.join(", "))?;
                }
                EntryKind::Symlink(target) => write!(f, "symlink of {} bytes", target.len())?,
                kind => write!(f, "{kind:?}")?,
            }
            if entry.facts != Facts::default() && !matches!(entry.kind, EntryKind::Link(_)) {
                write!(f, "; {}", entry.facts)?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:o} {}:{} {:?}", self.permissions, self.uid, self.gid, self.mtime)?;
        for xattr in &self.xattrs {
            write!(f, ", {} of {} bytes", xattr.name.escape_ascii(), xattr.value.len())?;
        }
        Ok(())
    }
}

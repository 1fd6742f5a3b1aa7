//! The expected contents of a case's image.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::case::{Case, EntryKind};
use crate::segment;
use crate::shown::Shown;

/// The expected properties of each path, sorted by path; the root's path is empty.
#[derive(Clone, Debug)]
pub struct Expected {
    pub(crate) paths: BTreeMap<Vec<u8>, Named>,
    /// The content of each entry that is a regular file; empty for others.
    pub(crate) contents: Vec<Arc<[u8]>>,
}

/// The expected properties and the inode of a path.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) shown: Arc<Shown>,
    /// The index of the entry with the inode; `None` for the root.
    pub(crate) inode: Option<usize>,
}

impl Expected {
    /// Computes the expected contents of a case's image.
    pub fn of(case: &Case) -> Self {
        let nothing: Arc<[u8]> = Arc::new([]);
        let contents: Vec<Arc<[u8]>> = case
            .entries
            .iter()
            .map(|entry| match &entry.kind {
                EntryKind::Regular(segments) => segment::content(segments).into(),
                _ => Arc::clone(&nothing),
            })
            .collect();
        let mut links: Vec<u32> =
            case.entries.iter().map(|entry| if is_directory(&entry.kind) { 2 } else { 1 }).collect();
        let mut root_links = 2;
        for entry in &case.entries {
            match (&entry.kind, entry.directory) {
                (EntryKind::Link(to), _) => links[*to] += 1,
                (EntryKind::Directory, Some(parent)) => links[parent] += 1,
                (EntryKind::Directory, None) => root_links += 1,
                _ => {}
            }
        }
        let mut shown: Vec<Arc<Shown>> = Vec::with_capacity(case.entries.len());
        let mut paths = BTreeMap::new();
        let root = Shown::new(&EntryKind::Directory, &case.root, root_links, &nothing);
        paths.insert(Vec::new(), Named { shown: Arc::new(root), inode: None });
        for (number, (entry, path)) in case.entries.iter().zip(case.paths()).enumerate() {
            let inode = if let EntryKind::Link(to) = entry.kind { to } else { number };
            let here = match entry.kind {
                EntryKind::Link(to) => Arc::clone(&shown[to]),
                _ => Arc::new(Shown::new(&entry.kind, &entry.facts, links[number], &contents[number])),
            };
            shown.push(Arc::clone(&here));
            paths.insert(path, Named { shown: here, inode: Some(inode) });
        }
        Self { paths, contents }
    }
}

fn is_directory(kind: &EntryKind) -> bool {
    matches!(kind, EntryKind::Directory)
}

//! Path resolution.

use super::image::Image;
use super::inode::{FileKind, Inode};
use crate::error::{Error, Result};

/// The maximum number of symbolic links in a path, as in Linux.
const MAX_LINKS: u32 = 40;

impl Image {
    /// Returns the root directory.
    pub fn root(&self) -> Result<Inode> {
        let root = self.inode(self.superblock().root_nid)?;
        if root.kind == FileKind::Directory { Ok(root) } else { Error::corrupt("root is not a directory", root.offset) }
    }

    /// Returns the inode at `path`. The path is relative to the root whether or not it starts with
    /// a slash. Symbolic links on the way are followed within the image. A link at the end is
    /// followed only if a slash follows it.
    pub fn resolve(&self, path: &[u8]) -> Result<Inode> {
        let not_found = || {
            let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
            Error::NotFound(String::from_utf8_lossy(&path[..end]).into_owned())
        };
        let mut todo: Vec<Vec<u8>> = split(path);
        let mut parents: Vec<Inode> = Vec::new();
        let mut here = self.root()?;
        let mut links = 0;
        let follow_last = path.ends_with(b"/") || path.ends_with(b"/.");
        while let Some(name) = todo.pop() {
            if name == b".." {
                here = parents.pop().map_or_else(|| self.root(), Ok)?;
                continue;
            }
            if here.kind != FileKind::Directory {
                return Err(Error::NotA("directory"));
            }
            let next = self.inode(self.lookup(&here, &name)?.ok_or_else(not_found)?)?;
            if next.kind == FileKind::Symlink && (follow_last || !todo.is_empty()) {
                links += 1;
                if links > MAX_LINKS {
                    return Err(not_found());
                }
                let target = self.read_link(&next)?;
                if target.starts_with(b"/") {
                    here = self.root()?;
                    parents.clear();
                }
                todo.extend(split(&target));
                continue;
            }
            parents.push(std::mem::replace(&mut here, next));
        }
        Ok(here)
    }

    /// Returns a symbolic link's target: 1 to 4095 bytes.
    pub fn read_link(&self, link: &Inode) -> Result<Vec<u8>> {
        if link.kind != FileKind::Symlink {
            return Err(Error::NotA("symbolic link"));
        }
        let mut target = vec![0; link.size as usize];
        self.read_exact_at(link, &mut target, 0)?;
        if target.contains(&0) {
            return Error::corrupt("symbolic link holds a NUL", link.offset);
        }
        Ok(target)
    }
}

/// Returns the components of a path, last first.
fn split(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|byte| *byte == b'/')
        .filter(|part| !part.is_empty() && *part != b".")
        .map(<[u8]>::to_vec)
        .rev()
        .collect()
}

//! Files of this machine as a kind's pages. Each file begins at a page boundary, as on a disk, and
//! its partial last page is left out.

use std::{
    fs::File,
    io::{ErrorKind, Read},
    path::{Path, PathBuf},
};

use anyhow::Context;
use pagefold_codec::PAGE_SIZE;

use super::even::Even;
use crate::codec::files::walk;

/// Searches skip larger files, so that no single file makes up most of its kind.
const LARGEST_BYTES: u64 = 8 << 20;

/// Selects the files that make up a kind.
pub(super) struct Wanted {
    /// Folders to search.
    pub(super) roots: &'static [&'static str],
    /// Decides by the path and the file's first page.
    pub(super) takes: fn(&Path, &[u8]) -> bool,
}

impl Wanted {
    /// Returns the files in path order. Skips files that cannot be read.
    pub(super) fn list(&self) -> Vec<PathBuf> {
        let mut taken = Vec::new();
        for root in self.roots {
            walk(Path::new(root), &mut |path, len| {
                if (PAGE_SIZE as u64..=LARGEST_BYTES).contains(&len)
                    && first_page(path).is_ok_and(|first| (self.takes)(path, &first))
                {
                    taken.push(path.to_owned());
                }
                true
            });
        }
        taken
    }
}

fn first_page(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut page = vec![0; PAGE_SIZE];
    File::open(path)?.read_exact(&mut page)?;
    Ok(page)
}

/// Returns the file at `path`, or all files under it.
pub(super) fn all_under(path: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    walk(path, &mut |file, _| {
        files.push(file.to_owned());
        true
    });
    files
}

/// Returns at most `limit_pages` of the pages of `files`, spread evenly.
pub(super) fn pages(files: &[PathBuf], limit_pages: usize) -> anyhow::Result<Vec<u8>> {
    let mut even = Even::new(limit_pages);
    let mut buffer = vec![0; 256 * PAGE_SIZE];
    for path in files {
        let mut file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        loop {
            let filled = fill(&mut file, &mut buffer).with_context(|| format!("cannot read {}", path.display()))?;
            buffer[..filled].as_chunks().0.iter().for_each(|page| even.push(page));
            if filled < buffer.len() {
                break;
            }
        }
    }
    Ok(even.finish())
}

/// Reads until `buffer` is full or the file ends.
fn fill(file: &mut File, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Whether the path ends in one of `extensions`.
pub(super) fn has_extension(path: &Path, extensions: &[&str]) -> bool {
    path.extension().and_then(|extension| extension.to_str()).is_some_and(|found| extensions.contains(&found))
}

/// Whether the first page is UTF-8 text, apart from a character cut at its end.
pub(super) fn begins_as_text(first: &[u8]) -> bool {
    let whole = match std::str::from_utf8(first) {
        Ok(_) => first,
        Err(error) if error.error_len().is_none() => &first[..error.valid_up_to()],
        Err(_) => return false,
    };
    crate::codec::files::is_text(whole)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn text_may_be_cut_within_a_character() {
        assert!(begins_as_text("naïv".as_bytes()) && begins_as_text(&"naï".as_bytes()[..3]));
        assert!(!begins_as_text(b"na\xefv") && !begins_as_text(b"\x7fELF"));
    }

    #[test]
    fn files_begin_at_pages_in_the_order_of_their_names() {
        let folder = tempfile::tempdir().unwrap();
        for (name, byte, len) in [("b", 2, 5000), ("a", 1, 2 * PAGE_SIZE + 1), ("c", 3, 100)] {
            let mut content = vec![byte; len];
            content.iter_mut().step_by(2).for_each(|at| *at = 0);
            content[0] = 9;
            fs::write(folder.path().join(name), content).unwrap();
        }
        let pages = pages(&all_under(folder.path()), 100).unwrap();
        // The second page of a is same-filled, and c has no whole page.
        assert_eq!(pages.len(), 2 * PAGE_SIZE);
        assert_eq!([pages[1], pages[PAGE_SIZE + 1]], [1, 2]);
    }
}

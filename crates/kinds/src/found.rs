//! Files of this machine as a kind's pages. Each file begins at a page boundary, as on a disk, and
//! its partial last page is left out.

use std::{
    fs::File,
    io::{ErrorKind, Read},
    path::{Path, PathBuf},
};

use anyhow::Context;
use pagefold_codec::PAGE_SIZE;
use serde::Deserialize;

use super::{
    even::Even,
    files::{is_text, walk},
};

/// Searches skip larger files, so that no single file makes up most of its kind.
const LARGEST_BYTES: u64 = 8 << 20;

/// Selects the files that make up a kind.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Wanted {
    /// Folders to search.
    roots: Vec<String>,
    /// Suffixes of paths: one of `ends`, unless it is empty, and none of `ends_not`.
    ends: Vec<String>,
    ends_not: Vec<String>,
    /// A folder that is left out.
    without: Option<String>,
    /// The required content of the first page: `text`, `elf` or `elf-x86-64`. If empty, any
    /// content.
    content: String,
}

impl Wanted {
    /// Returns the files in path order. Skips files that cannot be read.
    pub(super) fn list(&self) -> Vec<PathBuf> {
        let mut taken = Vec::new();
        for root in &self.roots {
            walk(Path::new(root), &mut |path, len| {
                if (PAGE_SIZE as u64..=LARGEST_BYTES).contains(&len)
                    && first_page(path).is_ok_and(|first| self.takes(path, &first))
                {
                    taken.push(path.to_owned());
                }
                true
            });
        }
        taken
    }

    fn takes(&self, path: &Path, first: &[u8]) -> bool {
        let text = path.to_string_lossy();
        let ends = |ends: &[String]| ends.iter().any(|end| text.ends_with(end));
        let is_elf = || first.starts_with(b"\x7fELF");
        (self.ends.is_empty() || ends(&self.ends))
            && !ends(&self.ends_not)
            && !self.without.as_ref().is_some_and(|folder| path.starts_with(folder))
            && match self.content.as_str() {
                "text" => begins_as_text(first),
                "elf" => is_elf(),
                // The number of the machine.
                "elf-x86-64" => is_elf() && first.get(18..20) == Some(&[62, 0]),
                _ => true,
            }
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

/// Whether the first page is UTF-8 text, apart from a character cut at its end.
fn begins_as_text(first: &[u8]) -> bool {
    let whole = match std::str::from_utf8(first) {
        Ok(_) => first,
        Err(error) if error.error_len().is_none() => &first[..error.valid_up_to()],
        Err(_) => return false,
    };
    is_text(whole)
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
    fn files_are_chosen_by_their_paths_and_first_pages() {
        let takes = |wanted: Wanted, path: &str, first: &[u8]| wanted.takes(Path::new(path), first);
        let ends = || Wanted { ends: vec![".csv".into(), "/Data.txt".into()], ..Wanted::default() };
        assert!(takes(ends(), "/a/b.csv", b"") && takes(ends(), "/a/Data.txt", b"") && !takes(ends(), "/a/b.txt", b""));
        let text = || Wanted { ends_not: vec![".html".into()], content: "text".into(), ..Wanted::default() };
        assert!(takes(text(), "/a", b"x") && !takes(text(), "/a.html", b"x") && !takes(text(), "/a", b"\xff\0"));
        let elf = |content: &str| Wanted { content: content.into(), without: Some("/d".into()), ..Wanted::default() };
        let head = [&b"\x7fELF"[..], &[0; 14], &[183, 0]].concat();
        assert!(takes(elf("elf"), "/a", &head) && !takes(elf("elf"), "/d/a", &head));
        assert!(!takes(elf("elf-x86-64"), "/a", &head));
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

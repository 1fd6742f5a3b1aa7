//! Files of this machine as one kind of data.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Files smaller than this share their pages with others; those larger than [`LARGEST`] are left out.
const SMALLEST: u64 = 4096;
const LARGEST: u64 = 8 << 20;

/// Up to `limit` bytes of the files under `roots` that `wanted` takes, in the order of their paths, one after another.
/// What cannot be read is passed over.
pub(crate) fn joined(roots: &[&str], limit: usize, wanted: impl Fn(&Path, &[u8]) -> bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    for root in roots {
        let mut pending = vec![PathBuf::from(root)];
        while let Some(path) = pending.pop() {
            if bytes.len() >= limit {
                return bytes;
            }
            let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
            if metadata.is_dir() {
                let Ok(entries) = fs::read_dir(&path) else { continue };
                let mut children: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
                children.sort_unstable_by(|a, b| b.cmp(a));
                pending.append(&mut children);
            } else if metadata.is_file() && (SMALLEST..=LARGEST).contains(&metadata.len()) {
                let Ok(content) = fs::read(&path) else { continue };
                if wanted(&path, &content) {
                    bytes.extend_from_slice(&content);
                }
            }
        }
    }
    bytes
}

/// Text as this bench understands it: UTF-8 without control characters but line ends and tabs.
pub(crate) fn is_text(content: &[u8]) -> bool {
    std::str::from_utf8(content)
        .is_ok_and(|text| !text.chars().any(|char| char.is_control() && !matches!(char, '\n' | '\r' | '\t' | '\x0c')))
}

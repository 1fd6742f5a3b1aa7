//! Temporary files for data that must be read by position.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::{Result, error::Within};

/// Zeros of this length, at a multiple of it, become a hole.
const PIECE_BYTES: usize = 64 << 10;

/// Keeps the content of `source`, which is called `name`, in a file without a name. Zeros become
/// holes.
pub(crate) fn spool(mut source: impl Read, name: &Path) -> Result<File> {
    let folder = std::env::temp_dir();
    let keeping = || format!("keeping {} in {} (TMPDIR chooses another place)", name.display(), folder.display());
    let kept = tempfile::tempfile_in(&folder).within(keeping)?;
    let mut buf = vec![0; 4 * PIECE_BYTES];
    let mut at = 0;
    loop {
        let len = match fill(&mut source, &mut buf) {
            Ok(0) => break,
            Ok(len) => len,
            Err(error) => return Err(error).within(|| format!("{} is damaged or truncated", name.display())),
        };
        for piece in buf[..len].chunks(PIECE_BYTES) {
            if piece.iter().any(|byte| *byte != 0) {
                kept.write_all_at(piece, at).within(keeping)?;
            }
            at += piece.len() as u64;
        }
    }
    kept.set_len(at).within(keeping)?;
    Ok(kept)
}

/// Reads until `buf` is full or the source ends.
fn fill(source: &mut impl Read, buf: &mut [u8]) -> std::io::Result<usize> {
    let mut len = 0;
    while len < buf.len() {
        match source.read(&mut buf[len..]) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}

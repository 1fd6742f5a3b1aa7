//! Encodes directory blocks from sorted names.

use crate::format::Dirent;

/// The division of a directory's names, including `.` and `..`, into blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DirShape {
    /// The number of names in each block.
    counts: Vec<usize>,
    /// The size of the last block in bytes.
    last_bytes: usize,
    block_bytes: usize,
}

/// The inode that a name refers to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) nid: u64,
    pub(crate) file_type: u8,
}

/// Inserts `.` and `..` into sorted `names`.
fn with_dots<'a, T>(
    names: impl Iterator<Item = (&'a [u8], T)>,
    dot: T,
    dot_dot: T,
) -> impl Iterator<Item = (&'a [u8], T)> {
    let mut names = names.peekable();
    let mut dots = [(&b"."[..], dot), (&b".."[..], dot_dot)].into_iter().peekable();
    std::iter::from_fn(move || match (names.peek(), dots.peek()) {
        (Some((name, _)), Some((dot, _))) if name < dot => names.next(),
        (_, Some(_)) => dots.next(),
        _ => names.next(),
    })
}

impl DirShape {
    pub(crate) fn new<'a>(names: impl Iterator<Item = &'a [u8]>, block_bytes: usize) -> Self {
        let mut shape = Self { counts: vec![0], last_bytes: 0, block_bytes };
        for (name, ()) in with_dots(names.map(|name| (name, ())), (), ()) {
            let bytes = Dirent::SIZE + name.len();
            if shape.last_bytes + bytes > block_bytes {
                shape.counts.push(0);
                shape.last_bytes = 0;
            }
            shape.last_bytes += bytes;
            if let Some(count) = shape.counts.last_mut() {
                *count += 1;
            }
        }
        shape
    }

    /// Returns the directory's size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        ((self.counts.len() - 1) * self.block_bytes + self.last_bytes) as u64
    }

    /// Encodes the directory: full blocks, then the last, without padding.
    pub(crate) fn encode<'a>(
        &self,
        names: impl Iterator<Item = (&'a [u8], Target)>,
        own: Target,
        parent: Target,
    ) -> Vec<u8> {
        let mut names = with_dots(names, own, parent);
        let mut bytes: Vec<u8> = Vec::with_capacity(self.bytes() as usize);
        for &count in &self.counts {
            bytes.resize(bytes.len().next_multiple_of(self.block_bytes), 0);
            let mut name_bytes = Vec::new();
            for (name, target) in names.by_ref().take(count) {
                let nameoff = (count * Dirent::SIZE + name_bytes.len()) as u16;
                let dirent = Dirent { nid: target.nid, nameoff, file_type: target.file_type, reserved: 0 };
                bytes.extend_from_slice(&dirent.encode());
                name_bytes.extend_from_slice(name);
            }
            bytes.extend_from_slice(&name_bytes);
        }
        bytes
    }
}

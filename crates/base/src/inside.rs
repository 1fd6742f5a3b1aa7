//! What a file in an EROFS image is. Its content decides, as for a file outside an image. Its name
//! does not: an image is made of a disk of any name.

use std::{io, path::Path};

use pagefold_erofs::{File, ReadAt, ReadPart};

use crate::{
    Format, OpenError, advice,
    behind::TAIL_BYTES,
    signature::{HEAD_BYTES, Kind, Signature},
};

/// Refuses a file that is not a raw disk: `name` in the image at `path`. Parts that cannot be read
/// show nothing: their reads fail later, too. Of a file that is far, only the first part is read, which
/// a guest reads first in any case.
pub(crate) fn check(path: &Path, name: &[u8], file: &File, is_far: bool) -> Result<(), OpenError> {
    let found = Signature::of(&Ends::of(file, is_far), 0).unwrap_or_default();
    let Some(found) = found.filter(|found| found.kind() != Kind::Disk) else { return Ok(()) };
    let what = format!(
        "{} in it is {} ({} extracts it): {}; --format {} takes its bytes as they are",
        String::from_utf8_lossy(name).escape_debug(),
        found.name(),
        advice::copying(path, name),
        found.advice(Path::new("FILE")),
        Format::Erofs
    );
    Err(OpenError::Unfit { path: path.into(), what })
}

/// A file, with what most formats show in memory.
struct Ends<'a> {
    file: &'a File,
    /// Whether everything but the first part counts as zeros.
    is_far: bool,
    head: Vec<u8>,
    tail: Vec<u8>,
}

impl<'a> Ends<'a> {
    fn of(file: &'a File, is_far: bool) -> Self {
        let len_bytes = file.inode().size;
        let mut head = vec![0; len_bytes.min(HEAD_BYTES) as usize];
        let tail_bytes = if is_far { 0 } else { TAIL_BYTES };
        let mut tail = vec![0; (len_bytes - head.len() as u64).min(tail_bytes) as usize];
        let tail_start = len_bytes - tail.len() as u64;
        let mut parts =
            [(0, &mut head), (tail_start, &mut tail)].map(|(offset, buf)| ReadPart { offset, buf, result: Ok(()) });
        let wanted = if parts[1].buf.is_empty() { 1 } else { 2 };
        file.read_together(&mut parts[..wanted]);
        for part in parts.iter_mut().filter(|part| part.result.is_err()) {
            part.buf.fill(0);
        }
        Self { file, is_far, head, tail }
    }
}

impl ReadAt for Ends<'_> {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.file.inode().size)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let tail_start = self.file.inode().size - self.tail.len() as u64;
        for (part, start) in [(&self.head, 0), (&self.tail, tail_start)] {
            let at = offset.checked_sub(start).and_then(|at| usize::try_from(at).ok());
            if let Some(bytes) = at.and_then(|at| part.get(at..at + buf.len())) {
                buf.copy_from_slice(bytes);
                return Ok(());
            }
        }
        if self.is_far {
            let known = usize::try_from(offset).ok().and_then(|at| self.head.get(at..)).unwrap_or_default();
            let (front, rest) = buf.split_at_mut(known.len().min(buf.len()));
            front.copy_from_slice(&known[..front.len()]);
            rest.fill(0);
            return Ok(());
        }
        match self.file.read_at(buf, offset) {
            Ok(len) if len == buf.len() => Ok(()),
            Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) => Err(io::Error::other(error)),
        }
    }
}

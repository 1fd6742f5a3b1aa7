//! Reads files that should be short, but are untrusted.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

/// The longest configuration that is read.
const MOST_TEXT_BYTES: u64 = 1 << 20;

/// Reads a file of at most `most_bytes`. Devices and pipes, whose length is unknown, are not read further.
///
/// # Errors
/// The system's, and [`io::ErrorKind::FileTooLarge`].
pub(crate) fn bytes(path: &Path, most_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most_bytes + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most_bytes {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(bytes)
}

/// Reads a configuration.
///
/// # Errors
/// Those of [`bytes`], and [`io::ErrorKind::InvalidData`] if it is not text.
pub(crate) fn text(path: &Path) -> io::Result<String> {
    let bytes = bytes(path, MOST_TEXT_BYTES)?;
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not UTF-8 text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_length_is_not_read_without_end() {
        let zero = text(Path::new("/dev/zero")).expect_err("too long");
        assert_eq!(zero.kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(text(Path::new("/dev/null")).expect("empty"), "");
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), [b'x'; 10]).expect("written");
        assert_eq!(bytes(file.path(), 10).expect("read").len(), 10);
        bytes(file.path(), 9).expect_err("too long");
    }
}

//! An image inside of something larger.

use std::io;

use crate::ReadAt;

/// An image embedded in a larger source, from a given byte to the source's end.
///
/// Positions in the image, including those in errors, are relative to that byte.
#[derive(Clone, Debug)]
pub struct Embedded<S> {
    source: S,
    start_bytes: u64,
    len_bytes: u64,
}

impl<S: ReadAt> Embedded<S> {
    /// Returns the image that `source` holds from `start_bytes` to its end.
    ///
    /// # Errors
    /// The source cannot say its length, or ends before `start_bytes`
    /// ([`UnexpectedEof`](io::ErrorKind::UnexpectedEof)).
    pub fn new(source: S, start_bytes: u64) -> io::Result<Self> {
        let source_bytes = source.len_bytes()?;
        let Some(len_bytes) = source_bytes.checked_sub(start_bytes) else {
            let what = format!("byte {start_bytes} is past the end: there are {source_bytes} bytes");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
        };
        Ok(Self { source, start_bytes, len_bytes })
    }
}

impl<S: ReadAt> ReadAt for Embedded<S> {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.len_bytes)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let offset = offset.checked_add(self.start_bytes).ok_or(io::ErrorKind::UnexpectedEof)?;
        self.source.read_exact_at(buf, offset)
    }

    fn read_all_at(&self, parts: &mut [(u64, &mut [u8])]) -> io::Result<()> {
        let shifted = parts.iter_mut().map(|(offset, buf)| {
            let offset = offset.checked_add(self.start_bytes).ok_or(io::ErrorKind::UnexpectedEof)?;
            Ok((offset, &mut **buf))
        });
        self.source.read_all_at(&mut shifted.collect::<io::Result<Vec<_>>>()?)
    }

    fn unit_bytes(&self) -> u64 {
        self.source.unit_bytes()
    }

    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> usize {
        offset.checked_add(self.start_bytes).map_or(0, |offset| self.source.try_read_at(buf, offset))
    }

    fn bytes_at(&self, len: usize, offset: u64) -> Option<&[u8]> {
        self.source.bytes_at(len, offset.checked_add(self.start_bytes)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_embedded_source_begins_and_ends_where_it_should() {
        let bytes: Vec<u8> = (0..100).collect();
        let embedded = Embedded::new(bytes.clone(), 30).expect("bytes");
        assert_eq!(embedded.len_bytes().expect("bytes"), 70);
        let mut two = [0; 2];
        embedded.read_exact_at(&mut two, 68).expect("bytes");
        assert_eq!(two, [98, 99]);
        assert_eq!(embedded.bytes_at(2, 0), Some(&[30, 31][..]));
        for offset in [69, 70, u64::MAX - 30, u64::MAX] {
            assert!(embedded.read_exact_at(&mut two, offset).is_err(), "{offset}");
            assert_eq!(embedded.bytes_at(2, offset), None, "{offset}");
        }
        let mut one = [0; 1];
        embedded.read_all_at(&mut [(69, &mut one), (0, &mut two)]).expect("bytes");
        assert_eq!((one, two), ([99], [30, 31]));
        assert!(embedded.read_all_at(&mut [(u64::MAX, &mut one)]).is_err());
        assert_eq!(Embedded::new(bytes.clone(), 100).expect("bytes").len_bytes().expect("bytes"), 0);
        for start in [101, u64::MAX] {
            let error = Embedded::new(bytes.clone(), start).expect_err("no bytes");
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
            assert!(error.to_string().contains("there are 100 bytes"), "{error}");
        }
    }
}

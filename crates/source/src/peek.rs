//! A reader whose next bytes can be seen before they are read.

use std::io::{self, BufRead, ErrorKind, Read};

const BUFFER_BYTES: usize = 1 << 16;

/// A buffered reader. Interrupted reads are repeated.
pub(crate) struct Peek<R> {
    source: R,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

impl<R: Read> Peek<R> {
    pub(crate) fn new(source: R) -> Self {
        Self { source, buffer: vec![0; BUFFER_BYTES].into(), start: 0, end: 0 }
    }

    /// Returns the next bytes: at least `least`, which is at most [`BUFFER_BYTES`], unless the
    /// source ends before.
    pub(crate) fn peek(&mut self, least: usize) -> io::Result<&[u8]> {
        if self.start + least > self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        while self.end - self.start < least {
            match self.source.read(&mut self.buffer[self.end..]) {
                Ok(0) => break,
                Ok(len) => self.end += len,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(&self.buffer[self.start..self.end])
    }

    /// Skips bytes, which must exist.
    pub(crate) fn skip(&mut self, len: u64) -> io::Result<()> {
        match io::copy(&mut self.take(len), &mut io::sink())? {
            skipped if skipped == len => Ok(()),
            _ => Err(ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Skips the rest, which must be zeros.
    pub(crate) fn skip_zeros(&mut self) -> io::Result<()> {
        loop {
            let front = self.peek(1)?;
            let len = front.len();
            match front.iter().all(|byte| *byte == 0) {
                _ if len == 0 => return Ok(()),
                true => self.consume(len),
                false => {
                    return Err(io::Error::new(ErrorKind::InvalidData, "other data follow the compressed stream"));
                }
            }
        }
    }
}

impl<R: Read> BufRead for Peek<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.peek(1)
    }

    fn consume(&mut self, len: usize) {
        self.start = (self.start + len).min(self.end);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }
}

impl<R: Read> Read for Peek<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let front = self.peek(1)?;
        let len = front.len().min(buf.len());
        buf[..len].copy_from_slice(&front[..len]);
        self.consume(len);
        Ok(len)
    }
}

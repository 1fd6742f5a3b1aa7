//! Traces: the chunks of an image that a start reads, in the order of their first use, with their
//! bytes. A later start on another machine gets all of them with one request.
//!
//! ```text
//! 0   magic "pgftrac1"      little-endian
//! 8   number of blobs       four bytes
//! 12  number of chunks      four bytes
//! 16  blobs                 32 bytes each: the SHA-256 sum of the blob's index
//! …   chunks                8 bytes each: number of the blob, number of the chunk in its index
//! …   the bytes of these chunks, in the same order
//! ```
//!
//! A trace is untrusted: its bytes are compared with the sums in the image's index.

use std::{
    collections::HashSet,
    io::{self, Read},
};

use crate::sum::Sum;

/// The suffix of the name of a file's trace.
pub const TRACE_SUFFIX: &str = ".trace";

const MAGIC: [u8; 8] = *b"pgftrac1";
const START_BYTES: usize = 16;

/// Maximum number of blobs: an image and its devices.
pub(crate) const MOST_BLOBS: usize = 65;

/// The most chunks of a trace.
pub(crate) const MOST_CHUNKS: usize = 64 << 10;

/// The most bytes of a trace's chunks.
pub(crate) const MOST_TRACE_BYTES: u64 = 256 << 20;

/// Which chunks are used, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Trace {
    /// The sums of the blobs' indexes.
    pub(crate) blobs: Vec<Sum>,
    pub(crate) touches: Vec<Touch>,
}

/// The first use of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Touch {
    /// The number of the blob in the trace.
    pub(crate) blob: u32,
    pub(crate) chunk: u32,
}

impl Trace {
    /// Reads the part before the bytes of the chunks.
    ///
    /// # Errors
    /// What is wrong with it, or why it cannot be read.
    pub(crate) fn read(from: &mut dyn Read) -> io::Result<Self> {
        let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what);
        let mut start = [0; START_BYTES];
        from.read_exact(&mut start)?;
        let number = |at: usize| u32::from_le_bytes(start[at..at + 4].try_into().expect("four bytes")) as usize;
        let (blobs, chunks) = (number(8), number(12));
        if start[..8] != MAGIC {
            return Err(wrong("not a trace"));
        }
        if blobs > MOST_BLOBS || chunks > MOST_CHUNKS {
            return Err(wrong("the trace has too many chunks"));
        }
        let mut sums = vec![0; blobs * 32];
        from.read_exact(&mut sums)?;
        let sums: Vec<_> = sums.as_chunks::<32>().0.iter().map(|sum| Sum(*sum)).collect();
        if sums.iter().collect::<HashSet<_>>().len() < blobs {
            return Err(wrong("invalid trace: it names a blob twice"));
        }
        let mut entries = vec![0; chunks * 8];
        from.read_exact(&mut entries)?;
        let mut seen = HashSet::with_capacity(chunks);
        let mut touches = Vec::with_capacity(chunks);
        for entry in entries.as_chunks::<8>().0 {
            let entry = u64::from_le_bytes(*entry);
            let touch = Touch { blob: entry as u32, chunk: (entry >> 32) as u32 };
            if touch.blob as usize >= blobs || !seen.insert(touch) {
                return Err(wrong("invalid trace: it names a chunk twice, or a blob that it does not have"));
            }
            touches.push(touch);
        }
        Ok(Self { blobs: sums, touches })
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend((self.blobs.len() as u32).to_le_bytes());
        bytes.extend((self.touches.len() as u32).to_le_bytes());
        self.blobs.iter().for_each(|sum| bytes.extend(sum.0));
        for touch in &self.touches {
            bytes.extend((u64::from(touch.blob) | u64::from(touch.chunk) << 32).to_le_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn trace(chunks: impl IntoIterator<Item = u32>) -> Trace {
        let touches = chunks.into_iter().map(|chunk| Touch { blob: chunk % 2, chunk }).collect();
        Trace { blobs: vec![Sum::of(b"a"), Sum::of(b"b")], touches }
    }

    proptest! {
        #[test]
        fn reads_what_it_encodes(chunks in proptest::collection::hash_set(any::<u32>(), 0..50)) {
            let trace = trace(chunks);
            prop_assert_eq!(Trace::read(&mut &trace.encode()[..]).expect("a trace"), trace);
        }

        /// Changed bytes give an error, or a trace without a chunk twice.
        #[test]
        fn hostile_bytes(changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
                         cut in proptest::option::of(any::<prop::sample::Index>())) {
            let mut bytes = trace(0..20).encode();
            for (at, value) in changes {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            bytes.truncate(cut.map_or(bytes.len(), |cut| cut.index(bytes.len() + 1)));
            if let Ok(trace) = Trace::read(&mut &bytes[..]) {
                let once: HashSet<_> = trace.touches.iter().collect();
                prop_assert!(once.len() == trace.touches.len() && trace.blobs.len() <= MOST_BLOBS);
                prop_assert!(trace.touches.iter().all(|touch| (touch.blob as usize) < trace.blobs.len()));
            }
        }
    }
}

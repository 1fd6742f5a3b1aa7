//! Runs of bytes that make up contents.

use std::fmt;
use std::sync::LazyLock;

use crate::choices::Numbers;

/// The size of a pool in bytes. Longer content wraps around.
const POOL_BYTES: usize = 256 << 10;

static NOISE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut numbers = Numbers(1);
    (0..POOL_BYTES / 8).flat_map(|_| numbers.next().to_le_bytes()).collect()
});

static TEXT: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let words = ["page", "fold", "cluster", "of", "the", "inode", "extent", "a", "block", "and", "index", "compressed"];
    let mut numbers = Numbers(2);
    let mut bytes = Vec::with_capacity(POOL_BYTES + 32);
    while bytes.len() < POOL_BYTES {
        let number = numbers.next();
        bytes.extend_from_slice(words[number as usize % words.len()].as_bytes());
        bytes.push(b' ');
        if number >> 60 == 0 {
            bytes.extend_from_slice(number.to_string().as_bytes());
        }
    }
    bytes.truncate(POOL_BYTES);
    bytes
});

/// The kind of bytes in a [`Segment`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stuff {
    /// Zeros.
    Zeros,
    /// Incompressible bytes.
    Noise,
    /// Bytes that compress like text.
    Text,
    /// Numbers from 1 to this one, repeated.
    Period(u8),
}

/// A run of bytes: a part of an endless sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The endless sequence.
    pub stuff: Stuff,
    /// The offset in it.
    pub from: u32,
    /// The length in bytes.
    pub len: u32,
}

/// Returns incompressible bytes.
pub fn noise(from: u32, len: u32) -> Segment {
    Segment { stuff: Stuff::Noise, from, len }
}

/// Returns bytes that compress like text.
pub fn text(from: u32, len: u32) -> Segment {
    Segment { stuff: Stuff::Text, from, len }
}

/// Returns zeros.
pub fn zeros(len: u32) -> Segment {
    Segment { stuff: Stuff::Zeros, from: 0, len }
}

/// Returns the numbers from 1 to `last`, repeated.
pub fn period(last: u8, len: u32) -> Segment {
    Segment { stuff: Stuff::Period(last), from: 0, len }
}

impl Segment {
    /// Appends the bytes.
    pub(crate) fn append_to(&self, bytes: &mut Vec<u8>) {
        let len = self.len as usize;
        let pool: &[u8] = match self.stuff {
            Stuff::Zeros => return bytes.resize(bytes.len() + len, 0),
            Stuff::Period(last) => {
                let last = u32::from(last.max(1));
                return bytes.extend(
                    (0..self.len).map(|at| ((u64::from(self.from) + u64::from(at)) % u64::from(last)) as u8 + 1),
                );
            }
            Stuff::Noise => &NOISE,
            Stuff::Text => &TEXT,
        };
        let end = bytes.len() + len;
        let mut from = self.from as usize % pool.len();
        while bytes.len() < end {
            let part = (end - bytes.len()).min(pool.len() - from);
            bytes.extend_from_slice(&pool[from..from + part]);
            from = 0;
        }
    }
}

impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stuff, from, len } = self;
        match stuff {
            Stuff::Zeros => write!(f, "zeros({len})"),
            Stuff::Noise => write!(f, "noise({from}, {len})"),
            Stuff::Text => write!(f, "text({from}, {len})"),
            Stuff::Period(last) if *from == 0 => write!(f, "period({last}, {len})"),
            Stuff::Period(last) => write!(f, "Segment {{ from: {from}, ..period({last}, {len}) }}"),
        }
    }
}

/// Returns the bytes of all segments.
pub(crate) fn content(segments: &[Segment]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len(segments) as usize);
    for segment in segments {
        segment.append_to(&mut bytes);
    }
    bytes
}

pub(crate) fn len(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| u64::from(segment.len)).sum()
}

/// Keeps the first `len` bytes.
pub(crate) fn truncate(segments: &mut Vec<Segment>, mut len: u64) {
    segments.retain_mut(|segment| {
        segment.len = segment.len.min(len.min(u64::from(u32::MAX)) as u32);
        len -= u64::from(segment.len);
        segment.len > 0
    });
}

//! Pages generated from a seed: the same on every machine and in every run.

use pagefold_codec::{PAGE_SIZE, Page};

/// SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014): small,
/// and any number can be a seed.
pub struct Random(u64);

impl Random {
    /// Begins a sequence.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number.
    #[expect(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }

    /// Returns a number below `end`, the least of `draws`, so small ones are more frequent.
    pub fn small(&mut self, end: usize, draws: usize) -> usize {
        (0..draws).map(|_| self.below(end)).min().unwrap_or(0)
    }
}

/// Mean length of a segment.
const SEGMENT: usize = 64;
/// Bytes that a repeat costs LZ4 among literals: the token, the offset, and what its hash misses at
/// both ends.
const REPEAT_COST: f64 = 7.5;

/// Makes `count` pages that LZ4 compresses to about `percent` of their size: segments of 32 to 96
/// bytes, each either new random bytes or a copy of earlier bytes of the page.
pub fn of_ratio(percent: usize, count: usize) -> Vec<Page> {
    let mut random = Random::new(percent as u64);
    let mean = SEGMENT as f64;
    let fresh = (percent as f64 / 100.0 * mean - REPEAT_COST) / (mean - REPEAT_COST);
    let fresh_of_65536 = (fresh.clamp(0.0, 1.0) * 65536.0) as usize;
    (0..count)
        .map(|_| {
            let mut page = [0; PAGE_SIZE];
            let mut at = 0;
            while at < PAGE_SIZE {
                let len = (SEGMENT / 2 + random.below(SEGMENT + 1)).min(PAGE_SIZE - at);
                if at < SEGMENT * 2 || random.below(65536) < fresh_of_65536 {
                    page[at..at + len].fill_with(|| random.next() as u8);
                } else {
                    let from = random.below(at - len + 1);
                    page.copy_within(from..from + len, at);
                }
                at += len;
            }
            page
        })
        .collect()
}

/// Makes the next page of a kind.
pub type Maker = fn(&mut Random) -> Page;

/// Kinds of pages that imitate common data without containing anyone's.
pub const KINDS: &[(&str, Maker)] =
    &[("text", text), ("heap", heap), ("binary", binary), ("records", records), ("random", random)];

/// Makes `count` pages of a kind of [`KINDS`]. Another `seed` gives other pages of the same kind.
pub fn of_kind(make: Maker, seed: u64, count: usize) -> Vec<Page> {
    let mut random = Random::new(seed);
    (0..count).map(|_| make(&mut random)).collect()
}

/// Fills a page by repeated calls of `piece`; the last piece is cut.
fn joined(mut piece: impl FnMut(&mut Vec<u8>)) -> Page {
    let mut bytes = Vec::with_capacity(PAGE_SIZE + 256);
    while bytes.len() < PAGE_SIZE {
        piece(&mut bytes);
    }
    let mut page = [0; PAGE_SIZE];
    page.copy_from_slice(&bytes[..PAGE_SIZE]);
    page
}

/// Makes sentences from one vocabulary, in which short words are frequent.
fn text(random: &mut Random) -> Page {
    const SYLLABLES: &[&str] = &[
        "a", "the", "in", "er", "on", "re", "st", "en", "nd", "ing", "to", "or", "is", "ar", "al", "te", "co", "de",
        "ra", "ro", "li", "ve", "me", "ne", "us", "ly", "ment", "sh", "wh", "pre", "com", "tion",
    ];
    let mut column = 0;
    joined(|bytes| {
        // The word of a rank is the same on every page: its syllables are the digits of a number
        // derived from the rank.
        let rank = random.small(4000, 3) + 1;
        let mut number = Random::new(rank as u64).next();
        for _ in 0..1 + rank.ilog2() / 4 {
            bytes.extend(SYLLABLES[(number % SYLLABLES.len() as u64) as usize].bytes());
            number /= SYLLABLES.len() as u64;
        }
        column += 1;
        bytes.extend(match random.below(14) {
            0 => &b", "[..],
            1 => b". ",
            _ if column % 13 == 0 => b"\n",
            _ => b" ",
        });
    })
}

/// Makes an interpreter's objects: a count, a type, sizes, pointers into a few regions, and unused
/// words.
fn heap(random: &mut Random) -> Page {
    let region = 0x7f3a_0000_0000 | (random.below(64) as u64) << 20;
    joined(|bytes| {
        let kind = random.small(12, 2) as u64;
        let mut words = vec![1 + random.small(40, 4) as u64, 0x55d0_c0a0_0000 + kind * 0x1a0];
        for field in 0..2 + kind % 5 {
            words.push(match (kind + field) % 4 {
                0 => region + random.small(1 << 16, 2) as u64 * 16,
                1 => 0,
                2 => random.small(1 << 12, 3) as u64,
                _ => region + kind * 4096 + field * 64,
            });
        }
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    })
}

/// Makes machine code: few opcodes, few registers, short and long displacements, calls.
fn binary(random: &mut Random) -> Page {
    joined(|bytes| {
        let register = random.small(8, 2) as u8;
        let short = (random.small(32, 2) * 8) as u8;
        match random.below(9) {
            0 | 1 => bytes.extend([0x48, 0x8b, 0x40 | register << 3 | 5, short.wrapping_neg()]),
            2 => bytes.extend([0x48, 0x89, 0xc0 | register << 3 | random.small(8, 2) as u8]),
            3 => {
                bytes.push(0xe8);
                bytes.extend((random.small(1 << 18, 2) as u32).wrapping_neg().to_le_bytes());
            }
            4 => bytes.extend([0x74 | random.below(2) as u8, short]),
            5 => bytes.extend([0x48, 0x8d, 0x05 | register << 3, random.next() as u8, random.below(64) as u8, 0, 0]),
            6 => bytes.extend([0x0f, 0xb6, 0x40 | register, short]),
            7 => bytes.extend([0x48, 0x85, 0xc0 | (register * 9)]),
            _ => bytes.extend([0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, short]),
        }
    })
}

/// Makes rows of a table, 64 bytes each: a rising number, a rising time, a measurement, a name,
/// flags.
fn records(random: &mut Random) -> Page {
    let (mut number, mut time) = (random.below(1 << 24) as u64, 1_700_000_000_000 + random.below(1 << 30) as u64);
    joined(|bytes| {
        number += 1;
        time += random.small(5000, 2) as u64;
        let measurement = 20.0 + random.below(1000) as f64 / 100.0;
        let name = format!("sensor-{:03}.example.org", random.small(200, 2));
        bytes.extend(number.to_le_bytes());
        bytes.extend(time.to_le_bytes());
        bytes.extend(measurement.to_le_bytes());
        bytes.extend([name.as_bytes(), &[0; 32][name.len()..]].concat());
        bytes.extend([1, 0, random.below(4) as u8, 0, 0, 0, 0, 0]);
    })
}

/// Makes rows of a table space like InnoDB's: headers, a rising key, a transaction, and short fields
/// with few values of four or five bytes among numbers that do not repeat.
pub fn table_space(random: &mut Random) -> Page {
    let first = random.below(1 << 24) as u32;
    let transaction = Random::new(u64::from(first)).next();
    let mut row = 0_u32;
    joined(|bytes| {
        row += 1;
        // The value of a number in a column is the same on every page.
        let value = |column: u64, number: usize| Random::new(column << 32 | number as u64).next().to_le_bytes();
        let text = |column: u64, number: usize| value(column, number).map(|byte| b'A' + byte % 26);
        bytes.extend([0, 0, (row >> 5) as u8, (row << 3) as u8, 0, 30 + random.below(20) as u8]);
        bytes.extend((0x8000_0000 | (first + row)).to_be_bytes());
        bytes.extend(&transaction.to_be_bytes()[2..]);
        bytes.extend([0x80, 0, 0, 1, (row >> 8) as u8, row as u8]);
        bytes.extend(&value(1, random.small(60, 2))[..4]);
        bytes.extend(&random.next().to_be_bytes()[..4]);
        bytes.extend(&text(2, random.below(40))[..4]);
        bytes.extend(&random.next().to_be_bytes()[..2]);
        bytes.extend(&value(3, random.small(80, 2))[..5]);
    })
}

fn random(random: &mut Random) -> Page {
    joined(|bytes| bytes.extend(random.next().to_le_bytes()))
}

#[cfg(test)]
mod tests {
    use pagefold_codec::by_name;

    use super::*;

    #[test]
    fn pages_compress_to_the_ratio_asked_for() {
        for percent in [25, 50, 75] {
            let pages = of_ratio(percent, 256);
            let mut stream = by_name("lz4").unwrap().stream().unwrap();
            let mut out = [0; PAGE_SIZE];
            let bytes: usize = pages.iter().map(|page| stream.compress(page, &mut out).unwrap_or(PAGE_SIZE)).sum();
            let reached = bytes as f64 / (pages.len() * PAGE_SIZE) as f64 * 100.0;
            assert!((reached - percent as f64).abs() < 5.0, "asked for {percent} %, got {reached:.1} %");
        }
    }
}

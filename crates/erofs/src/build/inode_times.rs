//! Which inodes are compact.
//!
//! A compact inode takes half as many bytes as an extended one. It has the image's time, and fewer
//! bits for other numbers.

use std::collections::BTreeMap;

use crate::format::{InodeCompact, InodeExtended};

/// The numbers of an inode that a compact one may not hold.
#[derive(Clone, Copy, Debug)]
pub struct InodeNumbers {
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The number of names.
    pub nlink: u32,
    /// The size in bytes.
    pub size: u64,
}

impl InodeNumbers {
    /// Returns whether a compact inode holds them.
    pub fn are_compact(&self) -> bool {
        let is_short = |number: u32| number <= u32::from(u16::MAX);
        [self.uid, self.gid, self.nlink].into_iter().all(is_short) && u32::try_from(self.size).is_ok()
    }
}

/// The inodes of an image by modification time. The image's time is the most frequent one.
#[derive(Clone, Debug, Default)]
pub struct InodeTimes {
    counts: BTreeMap<(i64, u32), Count>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    inodes: u64,
    /// Those with numbers that a compact one holds.
    fitting: u64,
}

impl InodeTimes {
    /// The size of an extended inode.
    pub const EXTENDED_BYTES: u64 = InodeExtended::SIZE as u64;
    /// The size of a compact inode.
    pub const COMPACT_BYTES: u64 = InodeCompact::SIZE as u64;

    /// Adds an inode: seconds and nanoseconds of its time, and whether its numbers
    /// [are compact](InodeNumbers::are_compact).
    pub fn add(&mut self, time: (i64, u32), are_compact: bool) {
        let count = self.counts.entry(time).or_default();
        count.inodes += 1;
        count.fitting += u64::from(are_compact);
    }

    /// Adds all of `other`.
    pub fn append(&mut self, other: Self) {
        for (time, more) in other.counts {
            let count = self.counts.entry(time).or_default();
            count.inodes += more.inodes;
            count.fitting += more.fitting;
        }
    }

    fn most_frequent(&self) -> ((i64, u32), Count) {
        let (mut time, mut most) = ((0, 0), Count::default());
        for (other, count) in &self.counts {
            if count.inodes > most.inodes {
                (time, most) = (*other, *count);
            }
        }
        (time, most)
    }

    /// Returns the most frequent time, the earliest if there are several.
    pub(super) fn of_image(&self) -> (i64, u32) {
        self.most_frequent().0
    }

    /// Returns the number of compact inodes.
    pub fn compact(&self) -> u64 {
        self.most_frequent().1.fitting
    }
}

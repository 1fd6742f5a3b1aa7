//! The 64-bit word of a slot.
//!
//! ```text
//!  63    62  61 60    59..56   55..44      43..0
//! ┌─────┬─────┬──────┬────────┬───────────┬───────────────────┐
//! │lock │idle │ kind │ tables │ len − 1   │ location          │  Object
//! │     │     │      │ 0      │ 4095      │ location          │  Raw
//! │     │     │      │ form   │  fill's bits (56)             │  Same
//! │     │     │      │ 0      │  1                            │  Empty
//! │     │     │      │ 0      │  2                            │  Hole
//! │     │     │      │ 8      │  number of a leaf (24)        │  Link
//! │     │     │      │ 2      │ len − 1 (12)│ an entry (30)   │  Shared
//! └─────┴─────┴──────┴────────┴───────────┴───────────────────┘
//! ```
//!
//! `Same` stores the 8-byte word that fills the page. 56 bits cannot hold every word, so `form`
//! says which byte of the word is zero and omitted (0 to 7), or that its two halves are equal (8).
//! A page filled with any other word is an ordinary object.
//!
//! The word 0 is not an entry: its leaf is unused ([`GONE`]).

mod layer;
mod lock;
mod pins;
mod status;

use pagefold_codec::PAGE_SIZE;

pub use self::status::{ChangedRun, Status, StatusRun};
pub(crate) use self::{
    layer::LayerId,
    lock::Locked,
    pins::{Pin, Pins},
};

use crate::heap::{Location, Owner};

/// The bit that a thread sets while it holds a slot.
pub(crate) const LOCK: u64 = 1 << 63;

/// The bits that can change while a slot keeps its object: lock and idle.
pub(crate) const MARKS: u64 = 3 << 62;

/// The value of all words of an unused leaf. No thread locks such a word.
pub(crate) const GONE: u64 = 0;

const KIND_SHIFT: u32 = 60;
const TABLES_SHIFT: u32 = 56;
const LEN_SHIFT: u32 = 44;

const NONE: u64 = 0;
const SAME: u64 = 1;
const OBJECT: u64 = 2;
const RAW: u64 = 3;

/// The payloads of words of the kind [`NONE`].
const EMPTY: u64 = 1;
const HOLE: u64 = 2;
const LINK: u64 = 1 << 59;
const SHARED: u64 = 1 << 57;

/// Bits of an entry's number.
const NUMBER_BITS: u32 = 30;
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;

/// The content of a slot, as its word encodes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Nothing was ever written: reads as zeros, or as what is below the disk.
    Empty,
    /// Zeros without memory, whatever is below the disk.
    Hole,
    /// The content of the entry with the same index in that leaf.
    Link(Owner),
    /// The content of the pool's entry with that number (`equal/common.rs`). `len_bytes` is the
    /// length of its object when this entry was created.
    Shared { number: u64, len_bytes: usize },
    /// A page of one repeated word.
    Same(Fill),
    /// A compressed page; `tables` is the number of the pool's tables that it was made with, 0 if
    /// the codec has none to choose from.
    Object { tables: u8, len_bytes: usize, at: Location },
    /// A page stored uncompressed, because it does not compress.
    Raw { at: Location },
}

impl Entry {
    /// Returns the word, unlocked.
    pub(crate) fn encode(self) -> u64 {
        match self {
            Self::Empty => (NONE << KIND_SHIFT) | EMPTY,
            Self::Hole => (NONE << KIND_SHIFT) | HOLE,
            Self::Link(leaf) => (NONE << KIND_SHIFT) | LINK | u64::from(leaf),
            Self::Shared { number, len_bytes } => {
                (NONE << KIND_SHIFT) | SHARED | (len_bytes as u64 - 1) << NUMBER_BITS | number
            }
            Self::Same(fill) => (SAME << KIND_SHIFT) | fill.0,
            Self::Object { tables, len_bytes, at } => {
                let len_field = (len_bytes as u64 - 1) << LEN_SHIFT;
                (OBJECT << KIND_SHIFT) | (u64::from(tables) << TABLES_SHIFT) | len_field | at.get()
            }
            Self::Raw { at } => (RAW << KIND_SHIFT) | at.get(),
        }
    }

    /// Decodes `word`, locked or not. Words come only from [`encode`](Self::encode).
    pub(crate) fn decode(word: u64) -> Self {
        let at = Location::new(word & ((1 << LEN_SHIFT) - 1));
        match (word >> KIND_SHIFT) & 3 {
            NONE if word & LINK != 0 => Self::Link(word as Owner),
            NONE if word & SHARED != 0 => {
                Self::Shared { number: word & NUMBER_MASK, len_bytes: ((word >> NUMBER_BITS) & 0xfff) as usize + 1 }
            }
            NONE if word & HOLE != 0 => Self::Hole,
            NONE => Self::Empty,
            SAME => Self::Same(Fill(word & ((1 << KIND_SHIFT) - 1))),
            OBJECT => Self::Object {
                tables: (word >> TABLES_SHIFT) as u8 & 0xf,
                len_bytes: ((word >> LEN_SHIFT) & 0xfff) as usize + 1,
                at,
            },
            _ => Self::Raw { at },
        }
    }

    /// Returns the object that the entry names, and its length.
    pub(crate) fn object(self) -> Option<(Location, usize)> {
        match self {
            Self::Empty | Self::Hole | Self::Link(_) | Self::Shared { .. } | Self::Same(_) => None,
            Self::Object { len_bytes, at, .. } => Some((at, len_bytes)),
            Self::Raw { at } => Some((at, PAGE_SIZE)),
        }
    }

    /// Returns the length of the object that the entry names, 0 if it names none.
    pub(crate) fn object_bytes(self) -> usize {
        self.object().map_or(0, |(_, len_bytes)| len_bytes)
    }

    /// Returns the bytes that the entry counts against its disk's limit: the length of its object,
    /// shared or not.
    pub(crate) fn counted_bytes(self) -> usize {
        match self {
            Self::Shared { len_bytes, .. } => len_bytes,
            _ => self.object_bytes(),
        }
    }

    /// Returns whether the page is in another entry.
    pub(crate) fn is_elsewhere(self) -> bool {
        matches!(self, Self::Link(_) | Self::Shared { .. })
    }

    /// Returns whether the page is in one of the pool's own entries.
    pub(crate) fn is_shared(self) -> bool {
        matches!(self, Self::Shared { .. })
    }

    /// Returns whether both entries share one object.
    pub(crate) fn shares_with(self, other: Self) -> bool {
        let number = |entry| if let Self::Shared { number, .. } = entry { Some(number) } else { None };
        number(self).is_some() && number(self) == number(other)
    }

    /// Returns the same entry with its object at another location.
    pub(crate) fn moved(self, to: Location) -> Self {
        match self {
            Self::Object { tables, len_bytes, .. } => Self::Object { tables, len_bytes, at: to },
            Self::Raw { .. } => Self::Raw { at: to },
            plain => plain,
        }
    }
}

/// An 8-byte word in a form that fits an entry: `form` in bits 59..56 and the rest below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fill(u64);

impl Fill {
    /// The word 0.
    pub(crate) const ZERO: Self = Self(HALVES << FORM_SHIFT);

    /// Encodes `word`, if it has a short form.
    pub(crate) fn new(word: u64) -> Option<Self> {
        let low = word & u64::from(u32::MAX);
        if low == word >> 32 {
            return Some(Self((HALVES << FORM_SHIFT) | low));
        }
        let zero = (0..8).find(|byte| (word >> (byte * 8)) & 0xff == 0)?;
        let below = (1 << (zero * 8)) - 1;
        Some(Self((zero << FORM_SHIFT) | (word & below) | ((word >> 8) & !below)))
    }

    /// Returns these bits if their form is valid; untrusted bits may have an invalid one.
    pub(crate) fn checked(self) -> Option<Self> {
        (self.0 >> FORM_SHIFT <= HALVES).then_some(self)
    }

    /// Returns the whole word.
    pub(crate) fn word(self) -> u64 {
        let form = self.0 >> FORM_SHIFT;
        let bits = self.0 & ((1 << FORM_SHIFT) - 1);
        if form == HALVES {
            return bits | (bits << 32);
        }
        let below = (1 << (form * 8)) - 1;
        (bits & below) | ((bits & !below) << 8)
    }
}

const FORM_SHIFT: u32 = 56;
const HALVES: u64 = 8;

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn fill_survives(word: u64, zeroed in 0u32..8, halves: bool) {
            let word = if halves { (word << 32) | (word & 0xffff_ffff) } else { word & !(0xff << (zeroed * 8)) };
            let entry = Entry::Same(Fill::new(word).expect("this word has a short form"));
            prop_assert_eq!(Entry::decode(entry.encode() | LOCK), entry);
            prop_assert_eq!(entry.encode() & LOCK, 0);
            let Entry::Same(fill) = entry else { unreachable!() };
            prop_assert_eq!(fill.word(), word);
        }

        #[test]
        fn object_survives(tables in 0u8..16, len_bytes in 1usize..=4096, at in 0u64..1 << 44, locked: bool) {
            let lock = if locked { LOCK } else { 0 };
            let entries = [
                Entry::Object { tables, len_bytes, at: Location::new(at) },
                Entry::Raw { at: Location::new(at) },
                Entry::Link(at as Owner & 0xff_ffff),
                Entry::Shared { number: at & NUMBER_MASK, len_bytes },
                Entry::Hole,
                Entry::Empty,
            ];
            for entry in entries {
                prop_assert_ne!(entry.encode(), GONE);
                prop_assert_eq!(Entry::decode(entry.encode() | lock), entry);
            }
        }
    }

    #[test]
    fn some_fills_have_no_short_form() {
        assert_eq!(Fill::new(0x0102_0304_0506_0708), None);
        assert_eq!(Fill::new(0), Some(Fill::ZERO));
    }
}

//! Blocks: the units that a segment is divided into.
//!
//! ```text
//!            0           1        2..5
//! live       ┌───────────┬────────┬───────┬──────────────────────────────────┬───────┐
//!  Whole     │kind p len…│…len    │ owner │ object                           │ slack │
//!  First     │kind p len…│…len    │ owner │ second: 4 │ the object's front   │       │
//!  Second    │kind p len…│…len    │ owner │ first: 4  │ the object's rest    │ slack │
//!            └───────────┴────────┴───────┴──────────────────────────────────┴───────┘
//!            0     1       5       9       13                       len − 4
//! free       ┌─────┬───────┬───────┬───────┬────────────────────────┬───────┐
//!  Free      │ 0   │ len   │ next  │ prev  │                        │ len   │
//!            └─────┴───────┴───────┴───────┴────────────────────────┴───────┘
//! ```
//!
//! `kind` uses 2 bits, `p` (the previous block is free) 1 bit, a live block's `len` 13 bits and its
//! owner's number 3 bytes. Nothing is aligned. `second`, `first`, `next` and `prev` are offsets of
//! blocks in the shard. A block after a free one reads that block's length from the 4 bytes before
//! itself.
#![allow(unsafe_code)] // reads and writes the region

use std::io;

use super::owners::Owner;
use crate::memory::Region;

/// Bytes of a segment, in which blocks lie side by side.
pub(super) const SEGMENT: u32 = 64 << 10;

/// No block.
pub(super) const NIL: u32 = u32::MAX;

/// The length of the shortest block: a free one needs it for its fields.
pub(super) const BLOCK_MIN: u32 = 17;

/// Bytes of a live block's header; the last three are its owner's number.
pub(super) const HEADER_BYTES: u32 = 2 + OWNER_BYTES;
const OWNER_BYTES: u32 = 3;
const LINK_BYTES: u32 = 4;
// Bytes of a header, a link, and the offset of the previous queued object.
const _: () = assert!(BLOCK_MIN >= HEADER_BYTES + LINK_BYTES + 4);
const KIND_SHIFT: u32 = 6;
const PREV_FREE: u8 = 1 << 5;
const LEN_HIGH: u8 = PREV_FREE - 1;

/// The kind of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockKind {
    Free,
    Whole,
    First,
    Second,
}

impl BlockKind {
    fn of(byte: u8) -> Self {
        match byte >> KIND_SHIFT {
            0 => Self::Free,
            1 => Self::Whole,
            2 => Self::First,
            _ => Self::Second,
        }
    }
}

/// The memory of a shard, seen as blocks.
///
/// Offsets passed to its methods are those of blocks. Only the holder of the shard's lock creates,
/// changes and inspects blocks. In addition, the owner of a live object reads its kind, length and
/// link, and reads or writes its body. A live block's first byte is accessed atomically, because
/// `p` changes in it while the object is read.
#[derive(Debug)]
pub(super) struct Blocks {
    region: Region,
}

// Every access below is within a block, or in the 4 bytes before a block that follows a free one,
// by the contract above. So no two threads access the same byte, except a live block's first byte,
// which is atomic. The region checks its bounds.
impl Blocks {
    pub(super) fn new(region: Region) -> Self {
        Self { region }
    }

    /// Returns the length of a block for `len_bytes` of an object in one piece.
    pub(super) fn whole_len(len_bytes: u32) -> u32 {
        (HEADER_BYTES + len_bytes).max(BLOCK_MIN)
    }

    /// Returns the bytes of an object that fit in a first piece of length `len`.
    pub(super) fn first_room(len: u32) -> u32 {
        len - HEADER_BYTES - LINK_BYTES
    }

    /// Returns the length of a second piece for `len_bytes` of an object.
    pub(super) fn second_len(len_bytes: u32) -> u32 {
        (HEADER_BYTES + LINK_BYTES + len_bytes).max(BLOCK_MIN)
    }

    /// Returns the kind and the length of a live block that begins with these bytes.
    pub(super) fn live(first: u8, second: u8) -> (BlockKind, u32) {
        (BlockKind::of(first), (u32::from(first & LEN_HIGH) << 8) | u32::from(second))
    }

    pub(super) fn kind(&self, at: u32) -> BlockKind {
        BlockKind::of(self.byte(at))
    }

    /// Returns the length of a block, live or free.
    pub(super) fn len(&self, at: u32) -> u32 {
        let first = self.byte(at);
        match BlockKind::of(first) {
            BlockKind::Free => self.load(at + 1),
            _ => Self::live(first, self.byte(at + 1)).1,
        }
    }

    /// Returns a live block's owner.
    pub(super) fn owner(&self, at: u32) -> Owner {
        // SAFETY: see above `impl`.
        let [low, middle, high] = unsafe { self.region.load(at as usize + 2) };
        u32::from_le_bytes([low, middle, high, 0])
    }

    /// Changes a live block's owner.
    pub(super) fn set_owner(&self, at: u32, owner: Owner) {
        let [low, middle, high, _] = owner.to_le_bytes();
        // SAFETY: see above `impl`.
        unsafe { self.region.write(at as usize + 2, &[low, middle, high]) };
    }

    /// Returns the other piece of an object in two pieces.
    pub(super) fn link(&self, at: u32) -> u32 {
        self.load(at + HEADER_BYTES)
    }

    /// Returns the object queued before this one, which [`put_handed`](Self::put_handed) recorded.
    pub(super) fn handed(&self, at: u32) -> u32 {
        self.load(at + HEADER_BYTES + LINK_BYTES)
    }

    /// Stores `next` after the header and link of a live block whose object is no longer needed;
    /// the shortest block has room for it. The caller owns the object.
    pub(super) fn put_handed(&self, at: u32, next: u32) {
        self.store(at + HEADER_BYTES + LINK_BYTES, next);
    }

    /// Returns whether the block before a live one is free.
    pub(super) fn prev_free(&self, at: u32) -> bool {
        self.byte(at) & PREV_FREE != 0
    }

    pub(super) fn set_prev_free(&self, at: u32, free: bool) {
        let byte = self.byte(at) & !PREV_FREE;
        // SAFETY: see above `impl`.
        unsafe { self.region.set_byte(at as usize, byte | if free { PREV_FREE } else { 0 }) };
    }

    /// Returns the length of the free block that ends at `at`.
    pub(super) fn len_before(&self, at: u32) -> u32 {
        self.load(at - 4)
    }

    /// Makes a live block of `len` bytes after a block that is not free.
    pub(super) fn put_live(&self, at: u32, kind: BlockKind, len: u32, owner: Owner) {
        let first = ((kind as u8) << KIND_SHIFT) | ((len >> 8) as u8 & LEN_HIGH);
        // SAFETY: see above `impl`.
        unsafe {
            self.region.set_byte(at as usize, first);
            self.region.set_byte(at as usize + 1, len as u8);
        }
        self.set_owner(at, owner);
    }

    pub(super) fn put_link(&self, at: u32, other: u32) {
        self.store(at + HEADER_BYTES, other);
    }

    /// Makes an unlisted free block of `len` bytes; only [`len`](Self::len) may be called on it.
    pub(super) fn put_dead(&self, at: u32, len: u32) {
        // SAFETY: see above `impl`.
        unsafe { self.region.set_byte(at as usize, 0) };
        self.store(at + 1, len);
    }

    /// Makes a free block of `len` bytes between `prev` and `next` of its list.
    pub(super) fn put_free(&self, at: u32, len: u32, next: u32, prev: u32) {
        self.put_dead(at, len);
        self.store(at + 5, next);
        self.store(at + 9, prev);
        self.store(at + len - 4, len);
    }

    pub(super) fn next(&self, at: u32) -> u32 {
        self.load(at + 5)
    }

    pub(super) fn prev(&self, at: u32) -> u32 {
        self.load(at + 9)
    }

    pub(super) fn set_next(&self, at: u32, next: u32) {
        self.store(at + 5, next);
    }

    pub(super) fn set_prev(&self, at: u32, prev: u32) {
        self.store(at + 9, prev);
    }

    /// Prefetches a block's front.
    pub(super) fn prefetch(&self, at: u32) {
        self.region.prefetch(at as usize, 1);
    }

    /// Prefetches `len` bytes from a block's front.
    pub(super) fn prefetch_all(&self, at: u32, len: u32) {
        self.region.prefetch(at as usize, len as usize);
    }

    /// Enables the first `end` bytes of the region.
    pub(super) fn enable(&self, end: u32) -> io::Result<()> {
        self.region.enable(end as usize)
    }

    /// Faults in the memory of whole pages, which costs less in one call than page by page.
    pub(super) fn make_present(&self, at: u32, len: u32) {
        self.region.make_present(at as usize, len as usize);
    }

    /// Returns the bytes that the system reports to be in memory.
    #[cfg(all(test, not(loom)))]
    pub(super) fn resident_bytes(&self) -> u64 {
        self.region.resident_bytes() as u64
    }

    /// Releases the memory of whole pages.
    pub(super) fn give_back(&self, at: u32, len: u32) {
        // SAFETY: see above `impl`; the shard has made no block of the range.
        unsafe { self.region.give_back(at as usize, len as usize) };
    }

    /// Returns the bytes of the live object whose body begins at `body`, if it is in one piece.
    ///
    /// # Safety
    /// The object has `len_bytes`, and no thread writes or frees it while the slice lives.
    pub(super) unsafe fn bytes(&self, body: u32, len_bytes: usize) -> Option<&[u8]> {
        match self.kind(body - HEADER_BYTES) {
            // SAFETY: guaranteed by the caller.
            BlockKind::Whole => Some(unsafe { self.region.bytes(body as usize, len_bytes) }),
            _ => None,
        }
    }

    /// Copies the live object whose body begins at `body` to `out`.
    ///
    /// # Safety
    /// The object has `out.len()` bytes, and no thread writes or frees it during the call.
    pub(super) unsafe fn read(&self, body: u32, out: &mut [u8]) {
        let (front, rest) = self.pieces(body, out.len());
        let (to_front, to_rest) = out.split_at_mut(front.1);
        // SAFETY: guaranteed by the caller, and the pieces are the object's.
        unsafe {
            to_front.copy_from_slice(self.region.bytes(front.0, front.1));
            to_rest.copy_from_slice(self.region.bytes(rest.0, rest.1));
        }
    }

    /// Stores the live object whose body begins at `body`.
    ///
    /// # Safety
    /// The object has `bytes.len()` bytes, and only the caller uses it.
    pub(super) unsafe fn write(&self, body: u32, bytes: &[u8]) {
        let (front, rest) = self.pieces(body, bytes.len());
        let (to_front, to_rest) = bytes.split_at(front.1);
        // SAFETY: guaranteed by the caller, and the pieces are the object's.
        unsafe {
            self.region.write(front.0, to_front);
            self.region.write(rest.0, to_rest);
        }
    }

    /// Returns offset and length of an object's two pieces; the second is empty if there is one
    /// piece.
    fn pieces(&self, body: u32, len_bytes: usize) -> ((usize, usize), (usize, usize)) {
        let at = body - HEADER_BYTES;
        if self.kind(at) == BlockKind::Whole {
            return ((body as usize, len_bytes), (body as usize, 0));
        }
        let room = (Self::first_room(self.len(at)) as usize).min(len_bytes);
        let second = self.link(at) + HEADER_BYTES + LINK_BYTES;
        (((body + LINK_BYTES) as usize, room), (second as usize, len_bytes - room))
    }

    fn byte(&self, at: u32) -> u8 {
        // SAFETY: see above `impl`.
        unsafe { self.region.byte(at as usize) }
    }

    fn load(&self, at: u32) -> u32 {
        // SAFETY: see above `impl`.
        u32::from_le_bytes(unsafe { self.region.load(at as usize) })
    }

    fn store(&self, at: u32, value: u32) {
        // SAFETY: see above `impl`.
        unsafe { self.region.write(at as usize, &value.to_le_bytes()) };
    }
}

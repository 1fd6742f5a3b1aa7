//! Which streams are held, and which object each holder reads: hazard pointers (M. M. Michael,
//! "Hazard Pointers: Safe Memory Reclamation for Lock-Free Objects", IEEE TPDS 15(6), 2004).
//!
//! ```text
//! reader:   w ← entry; take a stream: pin ← w (one compare-and-swap does both)
//!           until entry = w: w ← entry; pin ← w
//!           decode w's object; give the stream back: pin ← free
//! writer:   old ← swap(entry, new); keep old's word in a list
//!           when the list is long: free every old that no pin names; keep the others
//! ```
//!
//! The reader writes its pin and then reads the entry; the writer writes the entry and then reads
//! the pins. As all of these are sequentially consistent, one of them sees the other: if a reader's
//! second load finds its word, every later scan sees its pin. So no thread writes or frees an
//! object's bytes while they are read, and no reader waits.

use crossbeam_utils::CachePadded;

use super::{LOCK, MARKS, layer::LayerId};
use crate::sync::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    fence,
};

/// A free pin. Any other has the lock bit set, over the word that its holder reads (0 if it reads
/// none).
const FREE: u64 = 0;

/// Set in a writer's pin, next to the layer's number.
const WRITING: u64 = 1 << 58;

/// One pin per stream, each on its own cache line. The rest of the line belongs to the pin's
/// holder.
#[derive(Debug)]
pub(crate) struct Pins<T = ()> {
    seats: Box<[CachePadded<Seat<T>>]>,
}

#[derive(Debug)]
struct Seat<T> {
    pin: AtomicU64,
    beside: T,
}

/// A pin that this thread holds, and with it the stream of the same number. Dropping it frees both.
#[derive(Debug)]
pub(crate) struct Pin<'a> {
    pin: &'a AtomicU64,
    word: u64,
    number: usize,
}

impl<T: Default> Pins<T> {
    pub(crate) fn new(count: usize) -> Self {
        let seat = |_| CachePadded::new(Seat { pin: AtomicU64::new(FREE), beside: T::default() });
        Self { seats: (0..count.max(1)).map(seat).collect() }
    }
}

impl<T> Pins<T> {
    pub(crate) fn len(&self) -> usize {
        self.seats.len()
    }

    /// Returns the bytes of the pins and the data next to them.
    pub(crate) fn bytes(&self) -> u64 {
        size_of_val(&*self.seats) as u64
    }

    /// Returns the data next to pin `number`.
    pub(crate) fn beside(&self, number: usize) -> &T {
        &self.seats[number].beside
    }

    fn pins(&self) -> impl Iterator<Item = &AtomicU64> {
        self.seats.iter().map(|seat| &seat.pin)
    }

    /// Takes pin `number` if it is free, and records that its holder reads the object of `word`.
    pub(crate) fn try_take(&self, number: usize, word: u64) -> Option<Pin<'_>> {
        let (pin, word) = (&self.seats[number].pin, word | LOCK);
        if pin.load(Relaxed) != FREE {
            return None;
        }
        pin.compare_exchange(FREE, word, SeqCst, Relaxed).ok()?;
        order();
        Some(Pin { pin, word, number })
    }

    /// Returns whether a holder of a pin [writes](Pin::writes) to the layer. The layer must have
    /// been replaced as its disk's topmost one by a `SeqCst` store.
    pub(crate) fn write_to(&self, layer: LayerId) -> bool {
        fence(SeqCst);
        self.pins().any(|pin| pin.load(SeqCst) == LOCK | writing(layer))
    }

    /// Removes from `retired` every word that no pin names, and passes it to `free`. The words were
    /// swapped out of their entries before the call. At most [`len`](Self::len) stay.
    pub(crate) fn release(&self, retired: &mut Vec<u64>, mut free: impl FnMut(u64)) {
        fence(SeqCst);
        let mut kept = 0;
        for pin in self.pins() {
            let pinned = pin.load(Acquire);
            if pinned == FREE || pinned == LOCK {
                continue;
            }
            if let Some(at) = retired[kept..].iter().position(|&word| same_object(word, pinned)) {
                retired.swap(kept, kept + at);
                kept += 1;
            }
        }
        for word in retired.drain(kept..) {
            free(word);
        }
    }

    /// Returns whether any pin names an object of `words`, which were swapped out of their entries
    /// before the call.
    pub(crate) fn name_any(&self, words: &[u64]) -> bool {
        if words.is_empty() {
            return false;
        }
        fence(SeqCst);
        self.pins().any(|pin| {
            let pinned = pin.load(Acquire);
            words.iter().any(|&word| same_object(word, pinned))
        })
    }
}

impl Pin<'_> {
    /// Returns the pin's number, below [`Pins::len`].
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// Pins the object that `entry` names now, and returns its word without the lock bit. The
    /// object stays live and unchanged until the pin is dropped or changed.
    pub(crate) fn pin(&mut self, entry: &AtomicU64) -> u64 {
        loop {
            // A locked word still names its object: the lock's holder retires the object only after
            // it has unlocked the entry.
            let word = entry.load(SeqCst) | LOCK;
            if word == self.word {
                return word & !LOCK;
            }
            self.word = word;
            self.pin.store(word, SeqCst);
            order();
        }
    }
}

impl Pin<'_> {
    /// Declares that the holder is about to write to a layer, until the pin is dropped or changed.
    /// Afterwards the holder must check by a `SeqCst` load that the layer is still a disk's topmost
    /// one.
    pub(crate) fn writes(&mut self, layer: LayerId) {
        self.word = LOCK | writing(layer);
        self.pin.store(self.word, SeqCst);
        order();
    }

    /// Declares that the holder neither reads an object nor writes to a layer.
    pub(crate) fn rests(&mut self) {
        self.word = LOCK;
        self.pin.store(LOCK, Release);
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.pin.store(FREE, Release);
    }
}

/// Returns whether two words name one object, regardless of the lock and idle bits.
fn same_object(word: u64, pinned: u64) -> bool {
    (word ^ pinned) & !MARKS == 0
}

/// Returns a word that differs from every entry that names an object: words that name none are low
/// numbers.
fn writing(layer: LayerId) -> u64 {
    WRITING | u64::from(layer.number())
}

/// Orders the store of a pin before the load of the entry. Both are `SeqCst`, which is enough; loom
/// treats such accesses as weaker and orders only by fences.
fn order() {
    #[cfg(loom)]
    fence(SeqCst);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_pin_is_exclusive_and_comes_back() {
        let pins: Pins = Pins::new(2);
        let held = pins.try_take(1, 0).expect("a free pin");
        assert_eq!(held.number(), 1);
        assert!(pins.try_take(1, 0).is_none());
        assert!(pins.try_take(0, 0).is_some());
        drop(held);
        assert!(pins.try_take(1, 0).is_some());
    }

    #[test]
    fn what_is_pinned_is_kept() {
        let pins: Pins = Pins::new(3);
        let entry = AtomicU64::new(7);
        let mut held = pins.try_take(2, 7).expect("a free pin");
        assert_eq!(held.pin(&entry), 7);
        let mut retired = vec![5, 7, 9];
        let mut freed = Vec::new();
        pins.release(&mut retired, |word| freed.push(word));
        assert_eq!(retired, [7]);
        freed.sort_unstable();
        assert_eq!(freed, [5, 9]);
        assert!(pins.name_any(&[5, 7]) && !pins.name_any(&[5]) && !pins.name_any(&[]));

        entry.store(11, SeqCst);
        assert_eq!(held.pin(&entry), 11);
        pins.release(&mut retired, |word| freed.push(word));
        assert_eq!((retired.len(), freed.len()), (0, 3));
    }

    #[test]
    fn a_locked_entry_can_be_read() {
        let pins: Pins = Pins::new(1);
        let mut held = pins.try_take(0, 0).expect("a free pin");
        assert_eq!(held.pin(&AtomicU64::new(3 | LOCK)), 3);
        assert!(pins.name_any(&[3]));
    }
}

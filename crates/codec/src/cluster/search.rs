//! Fixed-size output from a compressor that has only fixed-size input.
//!
//! ```text
//! fits := 0; too_long := len(src) + 1; n := the length that filled the last cluster
//! repeat:
//!     s := size of compress(src[..n])
//!     if s <= capacity: keep it, fits := n; stop if n is all there is, or if it fills the cluster but for a few bytes and more
//!         than a little is left; all of src is tried where little is
//!     else too_long := n
//!     n := where the line between the sizes of the two has the capacity, or, where there is no size of one, the line from 0 to the other;
//!         every third time the middle of the two; all of src where that is beyond it and was not tried
//! ```
//!
//! A compressed size grows almost linearly with the input, so that a few trials fill a cluster to 1/2048.

use super::Filled;

/// Trials before the best length found is taken as it is.
const MAX_TRIALS: u32 = 16;

/// A cluster is full if less than this part of it is free.
const SLACK: usize = 2048;

/// Lengths nearer to each other than this part of them are the same.
const RESOLUTION: usize = 8192;

/// The part by which a trial is shorter than it might be.
const LOW: usize = 4096;

/// `len * part / whole`.
fn scaled(len: usize, part: usize, whole: usize) -> usize {
    (len as u128 * part as u128 / whole.max(1) as u128) as usize
}

/// The search's memory: two outputs, so that the best survives the next trial.
#[derive(Default)]
pub(super) struct Search {
    best: Vec<u8>,
    trial: Vec<u8>,
    last_consumed: usize,
}

impl Search {
    pub(super) fn restart(&mut self) {
        self.last_consumed = 0;
    }

    /// Fills `dst` with a prefix of `src`, at most `max_consumed` bytes of it. `compress` returns the length of its
    /// output, or `None` when that does not fit.
    pub(super) fn fill(
        &mut self,
        src: &[u8],
        dst: &mut [u8],
        mut compress: impl FnMut(&[u8], &mut [u8]) -> Option<usize>,
    ) -> Option<Filled> {
        let capacity = dst.len();
        // Room to see how far a trial overshoots.
        self.trial.resize(capacity + capacity / 4 + 64, 0);
        self.best.resize(self.trial.len(), 0);
        let mut fits = Filled { consumed: 0, written: 0 };
        let mut too_long = src.len() + 1;
        // What `too_long` came to.
        let mut excess = None;
        let mut guess = if self.last_consumed == 0 { capacity * 2 } else { self.last_consumed };
        for trial in 1..=MAX_TRIALS {
            guess = guess.clamp(fits.consumed + 1, too_long - 1);
            let size = compress(&src[..guess], &mut self.trial);
            match size {
                Some(written) if written <= capacity => {
                    fits = Filled { consumed: guess, written };
                    std::mem::swap(&mut self.best, &mut self.trial);
                    if guess == src.len() {
                        break;
                    }
                    if capacity - written <= capacity / SLACK {
                        let little_left = src.len() - guess <= guess / 32;
                        if !little_left || too_long <= src.len() {
                            break;
                        }
                        // The rest would take a cluster of its own.
                        guess = src.len();
                        continue;
                    }
                }
                _ => (too_long, excess) = (guess, size),
            }
            let narrow = too_long - fits.consumed <= 1 + fits.consumed / RESOLUTION;
            if narrow && too_long <= src.len() {
                break;
            }
            let middle = fits.consumed + (too_long - fits.consumed) / 2;
            guess = match (fits.written, excess) {
                _ if trial % 3 == 0 && too_long <= src.len() => middle,
                (0, None) => middle,
                (0, Some(size)) => scaled(too_long, capacity, size),
                (written, None) => scaled(fits.consumed, capacity, written),
                (written, Some(size)) => {
                    fits.consumed + scaled(too_long - fits.consumed, capacity - written, size - written)
                }
            };
            // A little low, since a trial that fits counts and one that does not is lost.
            guess -= guess / LOW;
            if (narrow || guess >= too_long) && too_long > src.len() {
                guess = src.len();
            } else if guess <= fits.consumed || guess >= too_long {
                guess = middle;
            }
        }
        self.last_consumed = fits.consumed;
        if fits.written == 0 || fits.written >= fits.consumed || self.best[0] == 0 {
            return None;
        }
        dst[..fits.written].copy_from_slice(&self.best[..fits.written]);
        Some(fits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A compressor that halves what comes before 4 KiB, and makes what comes after much smaller.
    fn compressor(src: &[u8], dst: &mut [u8]) -> Option<usize> {
        let len = src.len().min(4096) / 2 + src.len().saturating_sub(4096) / 8 + 1;
        dst.get_mut(..len)?.fill(1);
        Some(len)
    }

    fn fill(len: usize) -> usize {
        Search::default().fill(&vec![0; len], &mut vec![0; 4096], compressor).map_or(0, |filled| filled.consumed)
    }

    #[test]
    fn all_that_fits_is_taken() {
        // 20,479 bytes are the most.
        for len in (3..20_479).step_by(61).chain(20_300..20_480) {
            assert_eq!(fill(len), len);
        }
        for len in (20_480..20_700).chain([21_000, 30_000, 100_000]) {
            assert!((20_400..20_480).contains(&fill(len)), "{} of {len}", fill(len));
        }
    }
}

//! Fixed-size output from a compressor that only accepts fixed-size input.
//!
//! ```text
//! fits := 0; too_long := len(src) + 1; n := the length that filled the last cluster
//! repeat:
//!     s := size of compress(src[..n])
//!     if s <= capacity: keep it, fits := n
//!         stop if n is all there is, or if only a few bytes of the cluster are free and more than
//!             a little of src is left; if only a little is left, try all of src
//!     else too_long := n
//!     n := the first of these that is between fits and too_long:
//!         where the line through the last two trials has nearly the capacity
//!         where the line through fits and too_long has
//!         where the line from 0 through the last trial has
//!         the middle
//! ```
//!
//! Compressed size grows almost linearly with the input, so a few trials fill a cluster to within
//! 1/1024.

use super::Filled;

/// Maximum number of trials; then the best length found is used.
const MAX_TRIALS: u32 = 16;

/// A cluster is full if less than one part in this many is free.
const SLACK: usize = 1024;

/// Lengths closer together than one part in this many are equal.
const RESOLUTION: usize = 8192;

/// A length of input and its compressed size.
#[derive(Clone, Copy)]
struct Trial {
    len: usize,
    size: usize,
}

impl Trial {
    /// Returns the bytes of output per byte of input between two trials.
    fn slope(self, other: Self) -> f64 {
        (self.size as f64 - other.size as f64) / (self.len as f64 - other.len as f64)
    }

    /// Returns the bytes of output per byte of input.
    fn mean(self) -> f64 {
        self.size as f64 / self.len as f64
    }

    /// Returns the length that compresses to `size`, if each byte from here on compresses to
    /// `slope`.
    fn length_of(self, size: usize, slope: f64) -> usize {
        (self.len as f64 + (size as f64 - self.size as f64) / slope) as usize
    }
}

/// The state of a search: two outputs, so that the best survives the next trial.
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

    /// Fills `dst` with a prefix of `src`. `compress` returns the length of its output, or `None`
    /// if that does not fit.
    pub(super) fn fill(
        &mut self,
        src: &[u8],
        dst: &mut [u8],
        mut compress: impl FnMut(&[u8], &mut [u8]) -> Option<usize>,
    ) -> Option<Filled> {
        let capacity = dst.len();
        // Leaves room, so that the overshoot of a trial can be measured.
        self.trial.resize(capacity * 2 + 64, 0);
        self.best.resize(self.trial.len(), 0);
        let mut fits = Filled { consumed: 0, written: 0 };
        let mut too_long = src.len() + 1;
        // Compressed size of `too_long`.
        let mut excess = None;
        let mut before = None;
        let aim = capacity - capacity / (2 * SLACK);
        let mut guess = if self.last_consumed == 0 { capacity * 2 } else { self.last_consumed };
        for _ in 0..MAX_TRIALS {
            guess = guess.clamp(fits.consumed + 1, too_long - 1);
            let size = compress(&src[..guess], &mut self.trial);
            let this = size.map(|size| Trial { len: guess, size });
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
                        // The rest would need another cluster.
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
            let low = (fits.written > 0).then_some(Trial { len: fits.consumed, size: fits.written });
            let high = excess.map(|size| Trial { len: too_long, size });
            let line = low.zip(high).map(|(low, high)| low.length_of(aim, low.slope(high)));
            let mean = this.map(Trial::mean);
            let near = this.zip(before).map(|(this, before)| this.slope(before));
            // No length is known to be too long yet: limit the step.
            let near =
                if too_long > src.len() { near.zip(mean).map(|(near, mean)| near.max(mean / 2.0)) } else { near };
            let along = |slope| this.map(|this| this.length_of(aim, slope));
            guess = [near.and_then(along), line, mean.and_then(along)]
                .into_iter()
                .flatten()
                .map(|len| len.min(src.len()))
                .find(|len| (fits.consumed + 1..too_long).contains(len))
                .unwrap_or(middle);
            if narrow {
                guess = src.len();
            }
            before = this;
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

    /// A compressor that halves the first 4 KiB and makes the rest much smaller.
    fn compressor(src: &[u8], dst: &mut [u8]) -> Option<usize> {
        let len = src.len().min(4096) / 2 + src.len().saturating_sub(4096) / 8 + 1;
        dst.get_mut(..len)?.fill(1);
        Some(len)
    }

    fn fill(len: usize) -> usize {
        Search::default().fill(&vec![0; len], &mut vec![0; 4096], compressor).map_or(0, |filled| filled.consumed)
    }

    #[test]
    fn input_that_changes_takes_few_trials() {
        // Compresses longer input better, as with XML: a line to a distant trial reaches the
        // capacity far too late.
        let size = |len: usize| ((len as f64).powf(0.75) * 3.0) as usize;
        let mut trials = 0;
        let filled = Search::default().fill(&vec![0; 4 << 20], &mut vec![0; 200 << 10], |src, dst| {
            trials += 1;
            dst.get_mut(..size(src.len()))?.fill(1);
            Some(size(src.len()))
        });
        let written = filled.map_or(0, |filled| filled.written);
        assert!(written > 204_500 && trials <= 6, "{written} bytes in {trials} trials");
    }

    #[test]
    fn all_that_fits_is_taken() {
        // The most that fits is 20,479 bytes.
        for len in (3..20_479).step_by(61).chain(20_300..20_480) {
            assert_eq!(fill(len), len);
        }
        for len in (20_480..20_700).chain([21_000, 30_000, 100_000]) {
            assert!((20_400..20_480).contains(&fill(len)), "{} of {len}", fill(len));
        }
    }
}

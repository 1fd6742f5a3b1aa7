//! Fixed-size output from a compressor that has only fixed-size input.
//!
//! ```text
//! fits := 0; too_long := len(src) + 1; n := the length that filled the last cluster
//! repeat:
//!     s := size of compress(src[..n])
//!     if s <= capacity: keep it, fits := n; stop if n is all there is, or if it fills the cluster but for a few bytes and more
//!         than a little is left; all of src is tried where little is
//!     else too_long := n
//!     n := where the line through the last two trials has nearly the capacity; if that is not between fits and too_long, the line
//!         through those two; if that neither, or there are not two, the line from 0 to the last; then the middle
//! ```
//!
//! A compressed size grows almost linearly with the input, so that a few trials fill a cluster to
//! 1/1024.

use super::Filled;

/// Trials before the best length found is taken as it is.
const MAX_TRIALS: u32 = 16;

/// A cluster is full if less than this part of it is free.
const SLACK: usize = 1024;

/// Lengths nearer to each other than this part of them are the same.
const RESOLUTION: usize = 8192;

/// A length of input, and what it was compressed to.
#[derive(Clone, Copy)]
struct Trial {
    len: usize,
    size: usize,
}

impl Trial {
    /// Bytes of output for each of input between two trials.
    fn slope(self, other: Self) -> f64 {
        (self.size as f64 - other.size as f64) / (self.len as f64 - other.len as f64)
    }

    /// Bytes of output for each of input.
    fn mean(self) -> f64 {
        self.size as f64 / self.len as f64
    }

    /// The length that comes to `size`, if each byte from here on comes to `slope`.
    fn length_of(self, size: usize, slope: f64) -> usize {
        (self.len as f64 + (size as f64 - self.size as f64) / slope) as usize
    }
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

    /// Fills `dst` with a prefix of `src`. `compress` returns the length of its output, or `None`
    /// when that does not fit.
    pub(super) fn fill(
        &mut self,
        src: &[u8],
        dst: &mut [u8],
        mut compress: impl FnMut(&[u8], &mut [u8]) -> Option<usize>,
    ) -> Option<Filled> {
        let capacity = dst.len();
        // Room to see how far a trial overshoots.
        self.trial.resize(capacity * 2 + 64, 0);
        self.best.resize(self.trial.len(), 0);
        let mut fits = Filled { consumed: 0, written: 0 };
        let mut too_long = src.len() + 1;
        // What `too_long` came to.
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
            let low = (fits.written > 0).then_some(Trial { len: fits.consumed, size: fits.written });
            let high = excess.map(|size| Trial { len: too_long, size });
            let line = low.zip(high).map(|(low, high)| low.length_of(aim, low.slope(high)));
            let mean = this.map(Trial::mean);
            let near = this.zip(before).map(|(this, before)| this.slope(before));
            // Nothing says yet where it is too long: not too far at once.
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
    fn input_that_changes_takes_few_trials() {
        // Compressed ever better the longer it is, as XML is: a line to a far trial meets the
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
        // 20,479 bytes are the most.
        for len in (3..20_479).step_by(61).chain(20_300..20_480) {
            assert_eq!(fill(len), len);
        }
        for len in (20_480..20_700).chain([21_000, 30_000, 100_000]) {
            assert!((20_400..20_480).contains(&fill(len)), "{} of {len}", fill(len));
        }
    }
}

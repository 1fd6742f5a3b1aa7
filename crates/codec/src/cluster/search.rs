//! Fixed-size output from a compressor that has only fixed-size input.
//!
//! ```text
//! fits := 0; too_long := len(src) + 1; n := the length that filled the last cluster
//! repeat:
//!     s := size of compress(src[..n])
//!     if s <= capacity: keep it, fits := n; stop if it nearly fills the cluster or n is all there is
//!     else too_long := n
//!     n := n * capacity / s, kept strictly between fits and too_long
//! ```
//!
//! A compressed size grows almost linearly with the input, so that three or four trials fill a cluster to 1/128.

use super::Filled;

/// Trials before the best length found is taken as it is.
const MAX_TRIALS: u32 = 12;

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
        let mut guess = if self.last_consumed == 0 { capacity * 2 } else { self.last_consumed };
        for _ in 0..MAX_TRIALS {
            guess = guess.clamp(fits.consumed + 1, too_long - 1);
            let size = compress(&src[..guess], &mut self.trial);
            match size {
                Some(written) if written <= capacity => {
                    fits = Filled { consumed: guess, written };
                    std::mem::swap(&mut self.best, &mut self.trial);
                    if guess == src.len() || capacity - written <= capacity / 256 {
                        break;
                    }
                }
                _ => too_long = guess,
            }
            if too_long - fits.consumed <= 1 + fits.consumed / 1024 {
                break;
            }
            guess = match size {
                // Aim a little low, since a trial that fits counts and one that does not is lost.
                Some(written) if written > 0 => {
                    (guess as u128 * (capacity - capacity / 512) as u128 / written as u128) as usize
                }
                _ => fits.consumed + (too_long - fits.consumed) / 2,
            };
            if guess <= fits.consumed || guess >= too_long {
                guess = fits.consumed + (too_long - fits.consumed) / 2;
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

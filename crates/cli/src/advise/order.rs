//! Orders of numbers, random or evenly spread. The first numbers of an order, however many, are a
//! sample.
//!
//! The random order is that of a Feistel network over the next even number of bits. Results beyond the
//! count are mapped again until they are below it, so that it stays a permutation (J. Black and P.
//! Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). It needs no memory, and it is the same
//! in each run.

/// Rounds of the network. Four make a pseudo-random permutation of random functions.
const ROUNDS: u64 = 4;

/// The numbers below `count` in random order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order {
    count: u64,
    half_bits: u32,
}

impl Order {
    pub(super) fn new(count: u64) -> Self {
        let bits = u64::BITS - count.saturating_sub(1).leading_zeros();
        Self { count, half_bits: bits.div_ceil(2).max(1) }
    }

    /// Returns the number at this place of the order; `None` after the last one.
    pub(super) fn nth(self, place: u64) -> Option<u64> {
        if place >= self.count {
            return None;
        }
        let mut number = self.network(place);
        // The network has less than four times as many numbers.
        while number >= self.count {
            number = self.network(number);
        }
        Some(number)
    }

    fn network(self, number: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (number >> self.half_bits & mask, number & mask);
        for round in 0..ROUNDS {
            (left, right) = (right, left ^ (mixed(right ^ round << 40 ^ self.count << 43) & mask));
        }
        left << self.half_bits | right
    }
}

/// Returns a number whose bits all depend on all bits of `number` (the end of SplitMix64).
fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ (number >> 31)
}

/// Returns the number that follows after `taken` of `count` numbers. The numbers taken are evenly
/// spread at any time: they are steps of the golden section.
pub(super) fn spread(taken: u64, count: u64) -> u64 {
    (u128::from(taken) * u128::from(step(count)) % u128::from(count)) as u64
}

/// Returns a number near the golden section of `count` that is coprime to it.
fn step(count: u64) -> u64 {
    let golden = (count as f64 * 0.618_033_988_749_895) as u64;
    (golden.max(1)..).find(|&step| common_divisor(step, count) == 1).unwrap_or(1)
}

fn common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_number_comes_once() {
        for count in (0..70).chain([1000, 4096, 4097]) {
            let order = Order::new(count);
            let found: HashSet<_> = (0..count).map(|place| order.nth(place).expect("a number")).collect();
            assert_eq!(found.len() as u64, count);
            assert!(found.iter().all(|number| *number < count));
            assert_eq!(order.nth(count), None);
        }
        assert!(Order::new(u64::MAX >> 1).nth(5).is_some());
    }

    #[test]
    fn a_beginning_is_spread_like_random_numbers() {
        for count in [1 << 20, 1_000_003, (1 << 40) + 1] {
            let order = Order::new(count);
            let mut tenths = [0; 10];
            for place in 0..5000 {
                let number = order.nth(place).expect("a number");
                tenths[(u128::from(number) * 10 / u128::from(count)) as usize] += 1;
            }
            // The standard deviation is 21.
            assert!(tenths.iter().all(|in_tenth| (410..590).contains(in_tenth)), "{tenths:?}");
        }
    }
}

//! Prefix codes of bounded length, as code lengths. The codes follow from the lengths (canonical
//! order, as in RFC 1951 section 3.2.2) and are sent first bit lowest.

/// Returns code lengths, at most `max`, that minimise the sum of `count × length`. A symbol of
/// count 0 gets length 0: no code.
///
/// Package-merge (Larmore and Hirschberg, 1990): a symbol's length is the number of lists, out of
/// `max`, in which its coin is among the 2n − 2 cheapest.
///
/// # Panics
/// If fewer than two symbols are used, or more than `1 << max`.
pub(super) fn lengths(counts: &[u32], max: u8) -> Vec<u8> {
    let mut used: Vec<usize> = (0..counts.len()).filter(|&symbol| counts[symbol] > 0).collect();
    let mut lengths = vec![0; counts.len()];
    assert!((2..=1 << max).contains(&used.len()), "{} symbols have no code of {max} bits", used.len());
    used.sort_by_key(|&symbol| counts[symbol]);
    let coins: Vec<u64> = used.iter().map(|&symbol| u64::from(counts[symbol])).collect();
    // Each list is the coins merged with the pairs of the previous list; `is_coin` distinguishes
    // them.
    let mut lists: Vec<Vec<bool>> = Vec::with_capacity(usize::from(max));
    let mut packages: Vec<u64> = Vec::new();
    for _ in 0..max {
        let mut weights = Vec::with_capacity(coins.len() + packages.len());
        let mut is_coin = Vec::with_capacity(coins.len() + packages.len());
        let (mut coin, mut package) = (0, 0);
        while coin < coins.len() || package < packages.len() {
            let take_coin = coin < coins.len() && packages.get(package).is_none_or(|&weight| coins[coin] <= weight);
            weights.push(if take_coin { coins[coin] } else { packages[package] });
            is_coin.push(take_coin);
            if take_coin { coin += 1 } else { package += 1 }
        }
        packages = weights.chunks_exact(2).map(|pair| pair[0] + pair[1]).collect();
        lists.push(is_coin);
    }
    let mut take = 2 * coins.len() - 2;
    for list in lists.iter().rev() {
        let coins = list[..take].iter().filter(|&&is_coin| is_coin).count();
        used[..coins].iter().for_each(|&symbol| lengths[symbol] += 1);
        take = 2 * (take - coins);
    }
    lengths
}

/// A symbol's code: `bits`, low bits first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Code {
    pub(super) bits: u16,
    pub(super) length: u8,
}

/// Returns the codes of `lengths`, or `None` if these are not a complete prefix code: a length
/// exceeds `max`, or the sum of `2^-length` is not 1.
pub(super) fn codes(lengths: &[u8], max: u8) -> Option<Vec<Code>> {
    let mut of_length = [0u32; 17];
    for &length in lengths {
        if length > max {
            return None;
        }
        of_length[usize::from(length)] += 1;
    }
    of_length[0] = 0;
    let mut next = [0u32; 17];
    let mut code = 0;
    for length in 1..=usize::from(max) {
        code = (code + of_length[length - 1]) << 1;
        next[length] = code;
    }
    if next[usize::from(max)] + of_length[usize::from(max)] != 1 << max {
        return None;
    }
    let code = |&length: &u8| {
        if length == 0 {
            return Code::default();
        }
        let next = &mut next[usize::from(length)];
        let bits = (*next as u16).reverse_bits() >> (16 - length);
        *next += 1;
        Code { bits, length }
    };
    Some(lengths.iter().map(code).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_code() {
        assert_eq!(lengths(&[1, 1, 2, 4], 12), [3, 3, 2, 1]);
        assert_eq!(lengths(&[1, 1, 2, 4], 2), [2, 2, 2, 2]);
        assert_eq!(lengths(&[0, 7, 1], 10), [0, 1, 1]);
        let codes = codes(&[3, 3, 2, 1], 10).expect("complete");
        assert_eq!(codes.iter().map(|code| code.bits).collect::<Vec<_>>(), [0b011, 0b111, 0b01, 0b0]);
    }

    #[test]
    fn incomplete_and_overfull_lengths_are_refused() {
        assert_eq!(codes(&[1, 2], 10), None);
        assert_eq!(codes(&[1, 1, 1], 10), None);
        assert_eq!(codes(&[2], 10), None);
        assert_eq!(codes(&[0, 0], 10), None);
        assert_eq!(codes(&[11; 2048], 10), None);
    }

    proptest! {
        #[test]
        fn complete_bounded_and_no_worse_than_any_flat_code(
            mut counts in proptest::collection::vec(0u32..2000, 2..300),
            max in 9u8..=12,
        ) {
            counts[0] = 1;
            counts[1] = 9;
            let used = counts.iter().filter(|&&count| count > 0).count();
            let lengths = lengths(&counts, max);
            prop_assert!(lengths.iter().all(|&length| length <= max));
            prop_assert!(codes(&lengths, max).is_some());
            let cost: u64 = counts.iter().zip(&lengths).map(|(&count, &length)| u64::from(count) * u64::from(length)).sum();
            let flat = used.next_power_of_two().trailing_zeros();
            let total: u64 = counts.iter().map(|&count| u64::from(count)).sum();
            prop_assert!(cost <= total * u64::from(flat));
            // Entropy is the lower bound.
            let floor: f64 = counts.iter().filter(|&&count| count > 0)
                .map(|&count| f64::from(count) * (total as f64 / f64::from(count)).log2()).sum();
            prop_assert!(cost as f64 >= floor - 1e-6);
        }
    }
}

//! CRC-32 with the polynomial 0x04c11db7, highest bit first, starting at 0, not inverted.
//!
//! Processes eight bytes at a time with eight tables ("slicing by 8": M. Kounavis, F. Berry, "A
//! systematic approach to building high performance software-based CRC generators", 2005).

const POLYNOMIAL: u32 = 0x04c1_1db7;

/// `TABLES[n][byte]` is the sum of `byte` followed by n zero bytes.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut sum = (byte as u32) << 24;
        let mut bit = 0;
        while bit < 8 {
            sum = sum << 1 ^ (POLYNOMIAL & (sum >> 31).wrapping_neg());
            bit += 1;
        }
        tables[0][byte] = sum;
        byte += 1;
    }
    let mut zeros = 1;
    while zeros < 8 {
        let mut byte = 0;
        while byte < 256 {
            let sum = tables[zeros - 1][byte];
            tables[zeros][byte] = sum << 8 ^ tables[0][(sum >> 24) as usize];
            byte += 1;
        }
        zeros += 1;
    }
    tables
}

/// Returns the sum of `bytes`.
pub(super) fn crc32(bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut sum = 0u32;
    for word in words {
        let mixed = (u64::from_be_bytes(*word) ^ u64::from(sum) << 32).to_be_bytes();
        sum = mixed.iter().enumerate().fold(0, |sum, (at, &byte)| sum ^ TABLES[7 - at][usize::from(byte)]);
    }
    rest.iter().fold(sum, |sum, &byte| sum << 8 ^ TABLES[0][usize::from((sum >> 24) as u8 ^ byte)])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bit_by_bit(bytes: &[u8]) -> u32 {
        bytes.iter().fold(0, |sum, &byte| {
            (0..8).fold(
                sum ^ u32::from(byte) << 24,
                |sum, _| {
                    if sum & 1 << 31 == 0 { sum << 1 } else { sum << 1 ^ POLYNOMIAL }
                },
            )
        })
    }

    proptest! {
        #[test]
        fn tables_agree_with_the_definition(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(crc32(&bytes), bit_by_bit(&bytes));
        }
    }

    /// The check value of CRC-32/CKSUM without its final inversion.
    #[test]
    fn check_value() {
        assert_eq!(crc32(b"123456789"), !0x765e_7680);
    }
}

//! The builds of the hot loops.

/// Which build of the hot loops a stream runs. All builds give the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Isa {
    /// The features of the compiler's target.
    Portable,
    /// x86-64 with BMI1, BMI2, LZCNT, POPCNT and AVX2: shifts by a register that leave the flags
    /// alone, bit counts without a special case for zero, bit deposit, 32 bytes in one step.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// The same, with AVX-512 (F, BW, CD, VBMI, VBMI2) for literals, tokens, long matches, and all
    /// of decoding.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Isa {
    pub(super) fn of_this_cpu() -> Self {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("popcnt")
            && is_x86_feature_detected!("avx2")
        {
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512cd")
                && is_x86_feature_detected!("avx512vbmi")
                && is_x86_feature_detected!("avx512vbmi2");
            return if avx512 { Self::Avx512 } else { Self::Avx2 };
        }
        Self::Portable
    }

    /// Returns the builds that this CPU can run.
    #[cfg(any(test, fuzzing))]
    pub(super) fn all_of_this_cpu() -> Vec<Self> {
        let best = Self::of_this_cpu();
        let mut isas = vec![Self::Portable];
        #[cfg(target_arch = "x86_64")]
        if best == Self::Avx512 {
            isas.push(Self::Avx2);
        }
        if best != Self::Portable {
            isas.push(best);
        }
        isas
    }
}

//! Estimates for a whole from a sample, with 95 % confidence intervals.
//!
//! The estimate is that of a ratio: `total_x × Σy ÷ Σx`, where `x` (bytes, pages) is known for the
//! whole and `y` was measured. Its variance is that of the residuals `y − x × Σy ÷ Σx`, reduced by
//! the fraction of the whole that was measured (W. G. Cochran, "Sampling Techniques", chapter 6).

use std::iter::Sum;

/// Relative standard error assumed for a single measurement, which gives no variance.
const UNKNOWN_ERROR: f64 = 0.25;

/// A figure and its uncertainty.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Estimate {
    pub(super) value: f64,
    variance: f64,
    /// The sum of `variance² ÷ degrees of freedom` over its components (Welch and Satterthwaite).
    spread: f64,
}

impl Estimate {
    /// Returns an exact figure.
    pub(super) fn exact(value: f64) -> Self {
        Self { value, variance: 0.0, spread: 0.0 }
    }

    /// Estimates the figure of a whole of `total_x` from `measured` pairs of `x` and `y`.
    pub(super) fn of_whole(total_x: f64, measured: &[(f64, f64)]) -> Self {
        let (sum_x, ratio) = ratio(measured);
        if sum_x <= 0.0 || sum_x >= total_x {
            return Self::exact(measured.iter().map(|(_, y)| y).sum());
        }
        let factor = total_x / sum_x;
        Self::new(total_x * ratio, residuals(measured, ratio) * factor * factor * (1.0 - 1.0 / factor), measured.len())
    }

    /// Estimates the figure of each stratum, given its `x` and its measurements. A stratum without
    /// measurements is estimated from the others, with a large error.
    pub(super) fn of_strata(strata: &[(f64, Vec<(f64, f64)>)]) -> Vec<Self> {
        let all: Vec<_> = strata.iter().flat_map(|(_, measured)| measured).copied().collect();
        let (_, common) = ratio(&all);
        let of_stratum = |(total_x, measured): &(f64, Vec<(f64, f64)>)| match measured[..] {
            [] => Self::new(total_x * common, 0.0, 0),
            _ => Self::of_whole(*total_x, measured),
        };
        strata.iter().map(of_stratum).collect()
    }

    /// Estimates a figure that relates to this one like `y` to `x` in the pairs `measured`, which
    /// are part of what this figure covers.
    pub(super) fn in_proportion(self, measured: &[(f64, f64)]) -> Self {
        let (sum_x, _) = ratio(measured);
        // If everything was measured, the pairs contain all that this figure counts.
        let left = if self.value > sum_x { 1.0 - sum_x / self.value } else { 0.0 };
        self.in_proportion_to(measured, left)
    }

    /// The same, if a fraction `left` of what this figure covers was not measured.
    fn in_proportion_to(self, measured: &[(f64, f64)], left: f64) -> Self {
        let (sum_x, ratio) = ratio(measured);
        if sum_x <= 0.0 {
            return Self::default();
        }
        let factor = self.value / sum_x;
        let own = Self::new(self.value * ratio, residuals(measured, ratio) * factor * factor * left, measured.len());
        self.times(ratio) + Self { value: 0.0, ..own }
    }

    /// Estimates another figure of a whole of `total_x` from this one; a fraction `left` was not
    /// measured. In the triples `measured`, `z` is nearly `a × x + b × y`, where `y` belongs to
    /// this figure. Both terms are needed if only one of two kinds of content is compressible.
    pub(super) fn beside(self, total_x: f64, measured: &[[f64; 3]], left: f64) -> Self {
        let sum = |term: &dyn Fn(&[f64; 3]) -> f64| measured.iter().map(term).sum::<f64>();
        if left <= 0.0 {
            return Self::exact(sum(&|[_, _, z]| *z));
        }
        // Weights of 1/x: the variance of a batch grows with its length.
        let [xx, xy, yy] = [sum(&|[x, ..]| *x), sum(&|[_, y, _]| *y), sum(&|[x, y, _]| y * y / x)];
        let [xz, yz] = [sum(&|[_, _, z]| *z), sum(&|[x, y, z]| y * z / x)];
        let determinant = xx * yy - xy * xy;
        if measured.len() < 5 || determinant < 1e-6 * xx * yy {
            let pairs: Vec<_> = measured.iter().map(|[_, y, z]| (*y, *z)).collect();
            return self.in_proportion_to(&pairs, left);
        }
        let (a, b) = ((xz * yy - yz * xy) / determinant, (yz * xx - xz * xy) / determinant);
        let squares = sum(&|[x, y, z]| (z - a * x - b * y).powi(2));
        let (count, factor) = (measured.len() as f64, total_x / xx);
        let variance = squares * count / (count - 2.0) * factor * factor * left;
        Self { value: a * total_x, ..Self::new(0.0, variance, measured.len() - 1) } + self.times(b)
    }

    fn new(value: f64, variance: f64, count: usize) -> Self {
        if count < 2 {
            let variance = (value * UNKNOWN_ERROR).powi(2);
            return Self { value, variance, spread: variance * variance };
        }
        Self { value, variance, spread: variance * variance / (count - 1) as f64 }
    }

    /// Adds the relative error of the method itself.
    pub(super) fn within(self, method_error: f64) -> Self {
        let variance = self.variance + (self.value * method_error / students_t(f64::INFINITY)).powi(2);
        Self { variance, ..self }
    }

    /// Returns the figure multiplied by `factor`.
    pub(super) fn times(self, factor: f64) -> Self {
        let square = factor * factor;
        Self { value: self.value * factor, variance: self.variance * square, spread: self.spread * square * square }
    }

    /// Returns half of the interval's width.
    pub(super) fn error(self) -> f64 {
        if self.variance <= 0.0 {
            return 0.0;
        }
        students_t((self.variance * self.variance / self.spread).max(1.0)) * self.variance.sqrt()
    }

    /// Returns the error relative to the figure.
    pub(super) fn relative_error(self) -> f64 {
        if self.value > 0.0 { self.error() / self.value } else { 0.0 }
    }

    pub(super) fn low(self) -> f64 {
        (self.value - self.error()).max(0.0)
    }

    pub(super) fn high(self) -> f64 {
        self.value + self.error()
    }
}

impl std::ops::Add for Estimate {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            value: self.value + other.value,
            variance: self.variance + other.variance,
            spread: self.spread + other.spread,
        }
    }
}

impl Sum for Estimate {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, each| sum + each)
    }
}

fn ratio(measured: &[(f64, f64)]) -> (f64, f64) {
    let (sum_x, sum_y) = measured.iter().fold((0.0, 0.0), |(sum_x, sum_y), (x, y)| (sum_x + x, sum_y + y));
    (sum_x, if sum_x > 0.0 { sum_y / sum_x } else { 0.0 })
}

/// Returns the variance of the sum of `y`, given the sum of `x`.
fn residuals(measured: &[(f64, f64)], ratio: f64) -> f64 {
    let count = measured.len() as f64;
    let squares: f64 = measured.iter().map(|(x, y)| (y - ratio * x).powi(2)).sum();
    squares * count / (count - 1.0).max(1.0)
}

/// Returns the 0.975 quantile of Student's distribution, accurate to 1 %.
fn students_t(freedom: f64) -> f64 {
    const FIRST: [f64; 8] = [12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306];
    match FIRST.get((freedom as usize).saturating_sub(1)) {
        Some(quantile) => *quantile,
        None => 1.96 + 2.72 / freedom,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(state: &mut u64) -> f64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 40) as f64 / (1u64 << 24) as f64
    }

    #[test]
    fn all_that_was_measured_has_no_error() {
        let measured = [(4.0, 1.0), (6.0, 4.0)];
        assert_eq!(Estimate::of_whole(10.0, &measured), Estimate::exact(5.0));
        let base = Estimate::exact(10.0);
        assert_eq!(base.in_proportion(&measured).value, 5.0);
        assert_eq!(base.in_proportion(&measured).error(), 0.0);
        assert_eq!(Estimate::of_whole(0.0, &[]), Estimate::exact(0.0));
    }

    #[test]
    fn one_measurement_says_that_little_is_known() {
        let estimate = Estimate::of_whole(100.0, &[(1.0, 0.5)]);
        assert_eq!(estimate.value, 50.0);
        assert!(estimate.low() == 0.0 && estimate.high() > 150.0, "{estimate:?}");
    }

    #[test]
    fn strata_without_a_measurement_are_as_the_others() {
        let strata = [(10.0, vec![(4.0, 2.0), (6.0, 3.0)]), (20.0, Vec::new()), (0.0, Vec::new())];
        let [known, unknown, nothing] = Estimate::of_strata(&strata)[..] else { unreachable!("three strata") };
        assert_eq!((known.value, known.error()), (5.0, 0.0));
        assert!(unknown.value == 10.0 && unknown.high() > 20.0, "{unknown:?}");
        assert_eq!((nothing.value, nothing.error()), (0.0, 0.0));
    }

    #[test]
    fn two_kinds_of_content_are_told_apart() {
        // Incompressible batches keep their length; the others are reduced to 60 % or 30 %.
        let batch = |at: usize| if at < 6 { [10.0, 10.0, 10.0] } else { [10.0, 6.0, 3.0] };
        let measured: Vec<_> = (0..10).map(batch).collect();
        // The whole contains a smaller fraction of incompressible data.
        let estimate = Estimate::exact(2000.0 + 0.6 * 8000.0).beside(10_000.0, &measured, 0.99);
        assert!((estimate.value - (2000.0 + 0.3 * 8000.0)).abs() < 1e-6, "{estimate:?}");
        let all = Estimate::exact(84.0).beside(100.0, &measured, 0.0);
        assert_eq!((all.value, all.error()), (72.0, 0.0));
    }

    #[test]
    fn intervals_hold_the_truth_in_nineteen_cases_of_twenty() {
        let state = &mut 7;
        for count in [5, 20, 100] {
            let mut held = 0;
            for _ in 0..1000 {
                let whole: Vec<(f64, f64)> = (0..400)
                    .map(|_| {
                        let x = 1.0 + noise(state);
                        (x, x * (0.3 + 0.4 * noise(state)))
                    })
                    .collect();
                // They are in random order, so the first ones are a fair sample.
                let total_x = whole.iter().map(|(x, _)| x).sum();
                let truth: f64 = whole.iter().map(|(_, y)| y).sum();
                let estimate = Estimate::of_whole(total_x, &whole[..count]);
                held += usize::from(estimate.low() <= truth && truth <= estimate.high());
            }
            assert!((920..=990).contains(&held), "{held} of 1000 with {count}");
        }
    }
}

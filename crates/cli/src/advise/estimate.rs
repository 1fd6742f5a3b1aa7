//! Estimates for a whole from a random sample, with 95 % confidence intervals.
//!
//! The estimate is that of a ratio: `total_x × Σy ÷ Σx`, where `x` (bytes, pages) is known for the
//! whole and `y` was measured. Its interval has four parts:
//!
//! - The *spread* of what was measured: the variance of the residuals `y − x × Σy ÷ Σx`, reduced by
//!   the fraction of the whole that was measured (W. G. Cochran, "Sampling Techniques", chapter 6),
//!   with Student's distribution. Skewed populations shift it, by the third cumulant (P. Hall, "On
//!   the removal of skewness by transformation", 1992).
//! - The *unseen*: a fraction of the whole may be unlike everything measured and reach the limits of
//!   `y ÷ x`. A sample of `n` misses a fraction of `1 − 0.05^(1/n)` in one case of twenty (Clopper
//!   and Pearson).
//! - What is *open*: parts of which too little was measured. Each has the range of all possible
//!   values, and their ranges add up.
//! - The *limits*: what the figure cannot be smaller or larger than.
//!
//! The interval is the spread or the unseen, whichever is wider, plus what is open, within the
//! limits.

use std::iter::Sum;

/// Probability that more was missed than the interval allows for. Then the figure is beyond one end
/// of the interval, never beyond both.
const TAIL: f64 = 0.05;

/// Minimum number of measurements from which to judge those not taken.
const LEAST: usize = 2;

/// Minimum number of measurements for two unknowns. The line through fewer leads anywhere.
const LEAST_FOR_LINE: usize = 10;

/// The least and the greatest possible `y` per `x`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Limits {
    pub(super) least: f64,
    pub(super) most: f64,
}

impl Limits {
    /// The limits of counts: each counted item has the property or not.
    pub(super) const COUNT: Self = Self { least: 0.0, most: 1.0 };
}

/// A figure and its uncertainty. `[f64; 2]` holds the distances, or limits, below and above.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Estimate {
    pub(super) value: f64,
    variance: f64,
    third_cumulant: f64,
    /// The sum of `variance² ÷ degrees of freedom` over its components (Welch and Satterthwaite).
    per_freedom: f64,
    /// Squares of the distances by which the unseen exceeds the spread.
    unseen: [f64; 2],
    open: [f64; 2],
    limits: [f64; 2],
}

impl Estimate {
    /// Returns an exact figure.
    pub(super) fn exact(value: f64) -> Self {
        Self { value, limits: [value; 2], ..Self::default() }
    }

    /// Returns the estimate of a figure of which only the limits are known.
    pub(super) fn unknown(total_x: f64, limits: Limits) -> Self {
        let [least, most] = [limits.least, limits.most].map(|limit| limit * total_x);
        Self::open(f64::midpoint(least, most), [least, most])
    }

    /// Returns an uncertainty to add to a figure: it may be this much smaller or larger.
    pub(super) fn doubt(open: [f64; 2]) -> Self {
        Self { open, limits: [-open[0], open[1]], ..Self::default() }
    }

    /// Returns a guess between these limits.
    fn open(guess: f64, limits: [f64; 2]) -> Self {
        let value = guess.clamp(limits[0], limits[1].max(limits[0]));
        Self { value, open: [value - limits[0], limits[1] - value], limits, ..Self::default() }
    }

    /// Estimates the figure of a whole of `total_x` from `measured` pairs of `x` and `y`, which were
    /// chosen at random.
    pub(super) fn of_whole(total_x: f64, measured: &[(f64, f64)], limits: Limits) -> Self {
        let sum_x: f64 = measured.iter().map(|(x, _)| x).sum();
        let sum_y: f64 = measured.iter().map(|(_, y)| y).sum();
        if total_x <= 0.0 || sum_x >= total_x {
            return Self::exact(sum_y);
        }
        if sum_x <= 0.0 {
            return Self::unknown(total_x, limits);
        }
        let (ratio, left_x) = (sum_y / sum_x, total_x - sum_x);
        let ends = [limits.least, limits.most].map(|limit| sum_y + limit * left_x);
        if measured.len() < LEAST {
            return Self::open(total_x * ratio, ends);
        }
        let (count, factor, left) = (measured.len() as f64, total_x / sum_x, left_x / total_x);
        let residuals = |power: i32| measured.iter().map(|(x, y)| (y - ratio * x).powi(power)).sum::<f64>();
        let corrected = count / (count - 1.0);
        let third_corrected = corrected * count / (count - 2.0).max(1.0);
        let variance = residuals(2) * corrected * factor.powi(2) * left;
        let mut estimate = Self {
            value: total_x * ratio,
            variance,
            // The mean's own skewness vanishes if half is sampled; its correlation with the variance
            // does not (Babu and Singh, 1985). Here are both, at two standard deviations.
            third_cumulant: residuals(3) * third_corrected * factor.powi(3) * left * (1.0 + 2.0 * left) / 3.0,
            per_freedom: variance * variance / (count - 1.0),
            limits: [ends[0].min(total_x * ratio), ends[1].max(total_x * ratio)],
            ..Self::default()
        };
        let squares_x: f64 = measured.iter().map(|(x, _)| x * x).sum();
        let missed = missed(sum_x * sum_x / squares_x, 1.0 - left);
        let seen = estimate.spread();
        let value = estimate.value;
        let reach = [value - limits.least * total_x, limits.most * total_x - value];
        estimate.unseen = [0, 1].map(|end| ((missed * reach[end]).powi(2) - seen[end].powi(2)).max(0.0));
        estimate
    }

    /// Estimates another figure of a whole of `total_x` from this one. In the triples `measured`,
    /// `z` is nearly `a × x + b × y`, where `y` belongs to this figure. Both terms are needed if
    /// only one of two kinds of content is compressible; from few triples, `z` is estimated as
    /// `b × y`. A fraction `left` was not measured.
    pub(super) fn regression(self, total_x: f64, measured: &[[f64; 3]], left: f64, limits: Limits) -> Self {
        let sum = |term: &dyn Fn(&[f64; 3]) -> f64| measured.iter().map(term).sum::<f64>();
        let [sum_x, sum_y, sum_z] = [0, 1, 2].map(|at| sum(&|triple| triple[at]));
        if left <= 0.0 {
            return Self::exact(sum_z);
        }
        let ends = [limits.least, limits.most].map(|limit| limit * total_x);
        if sum_x <= 0.0 || total_x <= 0.0 {
            return Self::open(self.value, ends);
        }
        let [mean_y, mean_z] = [sum_y / sum_x, sum_z / sum_x];
        // Weights of 1/x: the variance of a batch grows with its length.
        let yy = sum(&|[x, y, _]| (y - mean_y * x).powi(2) / x);
        let yz = sum(&|[x, y, z]| (y - mean_y * x) * (z - mean_z * x) / x);
        let away = self.value / total_x - mean_y;
        // If all have the same `y`, the slope is that through the origin, and only a guess.
        let has_slope = yy > 1e-9 * sum_x * mean_y * mean_y;
        if has_slope && measured.len() < LEAST_FOR_LINE && sum_y < self.value {
            let pairs: Vec<_> = measured.iter().map(|[_, y, z]| (*y, *z)).collect();
            let limits = Limits { least: ends[0] / self.value, most: ends[1] / self.value };
            return Self::of_whole(self.value, &pairs, limits).of_estimated(self, limits);
        }
        if measured.len() < LEAST + 1 {
            let guess = if sum_y > 0.0 { self.value * sum_z / sum_y } else { total_x * mean_z };
            return Self::open(guess, ends);
        }
        let origin = if sum_y > 0.0 { sum_z / sum_y } else { 0.0 };
        let slope = if has_slope { yz / yy } else { origin };
        // The estimate is a weighted sum of all `z`. Its variance follows from the residuals, each
        // without the influence of its own measurement (J. MacKinnon and H. White, 1985: HC3).
        let steepness = if has_slope { 1.0 / yy } else { 0.0 };
        let variance_of = |[x, y, z]: &[f64; 3]| {
            let deviation = y / x - mean_y;
            let leverage = x / sum_x + x * deviation * deviation * steepness;
            let residual = (z - mean_z * x - slope * (y - mean_y * x)) / (1.0 - leverage).max(0.05);
            let weight = total_x * (1.0 / sum_x + away * deviation * steepness);
            (weight * residual).powi(2)
        };
        let (count, variance) = (measured.len() as f64, sum(&variance_of) * left);
        let guessed = if has_slope { 0.0 } else { (away * origin * total_x).abs() };
        let own = Self {
            value: total_x * (mean_z - slope * mean_y),
            variance,
            per_freedom: variance * variance / (count - 2.0),
            open: [guessed; 2],
            ..Self::default()
        };
        let mut estimate = own + self.scaled(slope);
        estimate.limits = ends;
        estimate.value = estimate.value.clamp(ends[0], ends[1].max(ends[0]));
        estimate
    }

    /// Returns the figure for a whole whose size was estimated too; `self` is the estimate for a
    /// size of `size.value`.
    pub(super) fn of_estimated(self, size: Self, limits: Limits) -> Self {
        if size.is_exact() {
            return self;
        }
        if size.value <= 0.0 {
            let most = limits.most * size.high();
            return Self { open: [self.open[0], most], limits: [0.0, most], ..self };
        }
        let ratio = self.value / size.value;
        let sizes = Self { value: 0.0, ..size.scaled(ratio) };
        let limits = [limits.least * size.limits[0], limits.most * size.limits[1]];
        Self { limits: [limits[0].min(self.limits[0]), limits[1].max(self.limits[1])], ..self + sizes }
    }

    /// Returns this figure with an interval that contains the other's as well.
    pub(super) fn covering(self, other: Self) -> Self {
        let [below, above] = [(self.low() - other.low()).max(0.0), (other.high() - self.high()).max(0.0)];
        let limits = [self.limits[0].min(other.limits[0]), self.limits[1].max(other.limits[1])];
        Self { open: [self.open[0] + below, self.open[1] + above], limits, ..self }
    }

    /// Returns this figure with limits that are certain.
    pub(super) fn bounded(self, [least, most]: [f64; 2]) -> Self {
        let limits = [self.limits[0].max(least), self.limits[1].min(most)];
        let limits = [limits[0].min(limits[1]), limits[1]];
        Self { value: self.value.clamp(limits[0], limits[1]), limits, ..self }
    }

    /// Returns the figure within what is left possible if `y` was measured for `x` of the whole, of
    /// which `size` is the estimate.
    pub(super) fn with_measured(self, size: Self, [x, y]: [f64; 2], limits: Limits) -> Self {
        let [least, most] = size.limits.map(|size| (size - x).max(0.0));
        self.bounded([y + limits.least * least, y + limits.most * most])
    }

    /// Adds the error of the method itself, within which 95 % of the cases are: a fraction of the
    /// figure, and an absolute error.
    pub(super) fn within(self, fraction: f64, absolute: f64) -> Self {
        let variance = self.variance + ((self.value * fraction + absolute) / students_t(f64::INFINITY)).powi(2);
        let [low, high] = self.limits;
        let limits = [low * (1.0 - fraction) - absolute, high * (1.0 + fraction) + absolute];
        Self { variance, limits, ..self }
    }

    /// Returns the figure multiplied by `factor`. A negative factor exchanges below and above.
    pub(super) fn scaled(self, factor: f64) -> Self {
        let square = factor * factor;
        let turned = |pair: [f64; 2]| if factor < 0.0 { [pair[1], pair[0]] } else { pair };
        Self {
            value: self.value * factor,
            variance: self.variance * square,
            third_cumulant: self.third_cumulant * square * factor,
            per_freedom: self.per_freedom * square * square,
            unseen: turned(self.unseen.map(|end| end * square)),
            open: turned(self.open.map(|end| end * factor.abs())),
            limits: turned(self.limits.map(|end| end * factor)),
        }
    }

    /// Returns the distances from the value to both ends of the interval, by the spread alone.
    fn spread(self) -> [f64; 2] {
        if self.variance <= 0.0 {
            return [0.0; 2];
        }
        let freedom = if self.per_freedom > 0.0 { self.variance * self.variance / self.per_freedom } else { f64::MAX };
        let (quantile, deviation) = (students_t(freedom.max(1.0)), self.variance.sqrt());
        let skewness = self.third_cumulant / self.variance.powf(1.5);
        [quantile, -quantile].map(|quantile| {
            if skewness.abs() < 1e-3 {
                return quantile.abs() * deviation;
            }
            let untransformed = (1.0 + skewness * (quantile - skewness / 6.0)).cbrt() - 1.0;
            (3.0 / skewness * untransformed).abs() * deviation
        })
    }

    fn distances(self) -> [f64; 2] {
        let spread = self.spread();
        [0, 1].map(|end| (spread[end].powi(2) + self.unseen[end]).sqrt() + self.open[end])
    }

    pub(super) fn low(self) -> f64 {
        (self.value - self.distances()[0]).max(self.limits[0]).max(0.0).min(self.value)
    }

    pub(super) fn high(self) -> f64 {
        (self.value + self.distances()[1]).min(self.limits[1]).max(self.value)
    }

    /// Returns whether the figure was counted or measured completely.
    pub(super) fn is_exact(self) -> bool {
        self.low() >= self.high()
    }
}

impl std::ops::Add for Estimate {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let sum = |a: [f64; 2], b: [f64; 2]| [a[0] + b[0], a[1] + b[1]];
        Self {
            value: self.value + other.value,
            variance: self.variance + other.variance,
            third_cumulant: self.third_cumulant + other.third_cumulant,
            per_freedom: self.per_freedom + other.per_freedom,
            unseen: sum(self.unseen, other.unseen),
            open: sum(self.open, other.open),
            limits: sum(self.limits, other.limits),
        }
    }
}

impl Sum for Estimate {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, each| sum + each)
    }
}

/// Returns the largest fraction of a whole of which a sample of `count` misses everything in one
/// case of twenty. The sample is a `fraction` of the whole.
fn missed(count: f64, fraction: f64) -> f64 {
    let endless = 1.0 - TAIL.powf(1.0 / count);
    // Of `k` items, all are missed with a probability of about `(1 − fraction)^k`.
    let finite = TAIL.ln() / (1.0 - fraction).ln() * fraction / count;
    endless.min(finite).clamp(0.0, 1.0)
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
mod tests;

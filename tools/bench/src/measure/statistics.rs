//! Medians, and how much they vary.

use spillway_core::random::Random;

/// Resamples of an interval, and the seed that draws them: the same values always have the same interval.
const RESAMPLES: usize = 2000;
const SEED: u64 = 0x626f_6f74;

/// Resamples that lie outside the interval on each side: together 5 %.
const OUTSIDE: usize = RESAMPLES / 40;

/// The median of `values`; the lower of two in the middle. Panics without values.
pub(crate) fn median(values: &[f64]) -> f64 {
    let sorted = sorted(values.to_vec());
    sorted[(sorted.len() - 1) / 2]
}

/// The higher of two values of each round.
pub(crate) fn higher(one: &[f64], other: &[f64]) -> Vec<f64> {
    one.iter().zip(other).map(|(one, other)| one.max(*other)).collect()
}

/// The interval that holds the median with 95 % confidence, by percentile bootstrap: rounds are drawn with replacement, and 2.5 % of the
/// medians of such draws lie below it, 2.5 % above. None of fewer than two values.
///
/// Efron and Tibshirani, An Introduction to the Bootstrap (1993), section 13.3. Of five rounds the interval is rough: the least or the
/// most of them is its end where 2.5 % of all draws have it as their median.
pub(crate) fn interval(values: &[f64]) -> Option<[f64; 2]> {
    let count = values.len();
    if count < 2 {
        return None;
    }
    let mut random = Random(SEED);
    let mut resample = |_| {
        let drawn: Vec<f64> = (0..count).map(|_| values[random.below(count as u64) as usize]).collect();
        median(&drawn)
    };
    let medians = sorted((0..RESAMPLES).map(&mut resample).collect());
    Some([medians[OUTSIDE], medians[RESAMPLES - 1 - OUTSIDE]])
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lower_of_two_in_the_middle_is_the_median() {
        assert_eq!([median(&[3.0, 1.0]), median(&[9.0, 1.0, 2.0])], [1.0, 2.0]);
    }

    /// Of three values 1, 2, 3 a draw of three has the median 1 with probability 7/27, and 3 as often; of a hundred values the
    /// median lies between the 40th and the 61st of the order with 95 %.
    #[test]
    fn intervals_of_known_draws_are_as_computed_by_hand() {
        assert_eq!(interval(&[3.0, 1.0, 2.0]), Some([1.0, 3.0]));
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        let [low, high] = interval(&hundred).unwrap();
        assert!((38.0..=43.0).contains(&low) && (57.0..=62.0).contains(&high), "{low} {high}");
        assert_eq!(interval(&hundred), Some([low, high]), "the same values, the same interval");
    }

    #[test]
    fn noise_widens_an_interval_and_its_lack_makes_it_a_point() {
        let width = |spread: f64| {
            let values: Vec<f64> =
                (0..15).map(|round| 10.0 + spread * f64::from(round * 7 % 15 - 7)).collect();
            let [low, high] = interval(&values).unwrap();
            assert!(low <= 10.0 && 10.0 <= high);
            high - low
        };
        assert!(width(0.5) > 5.0 * width(0.05));
        assert!(width(0.0).abs() < 1e-12);
        assert_eq!((interval(&[4.0]), interval(&[])), (None, None));
    }
}

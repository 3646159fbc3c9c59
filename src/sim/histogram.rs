//! A Prometheus histogram with fixed bounds.

/// Counts of observations below each bound.
#[derive(Debug, Clone)]
pub(super) struct Histogram {
    bounds: &'static [f64],
    counts: Vec<u64>,
    count: u64,
    sum: f64,
}

impl Histogram {
    /// An empty one; `bounds` ascend.
    pub fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len()], count: 0, sum: 0.0 }
    }

    /// Counts one value.
    pub fn observe(&mut self, value: f64) {
        if let Some(place) = self.bounds.iter().position(|&b| value <= b) {
            self.counts[place] += 1;
        }
        self.count += 1;
        self.sum += value;
    }

    /// Upper bounds with how many values are at or below each.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let mut so_far = 0;
        self.bounds.iter().zip(&self.counts).map(move |(&bound, &n)| {
            so_far += n;
            (bound, so_far)
        })
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Sum of values.
    pub fn sum(&self) -> f64 {
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulative_and_the_overflow_counts_only_in_the_total() {
        let mut histogram = Histogram::new(&[1.0, 10.0]);
        for value in [0.5, 1.0, 2.0, 50.0] {
            histogram.observe(value);
        }
        assert_eq!(histogram.cumulative().collect::<Vec<_>>(), [(1.0, 2), (10.0, 3)]);
        assert_eq!((histogram.count(), histogram.sum()), (4, 53.5));
    }
}

//! Size classes of an object pool.
//!
//! A *span* is a run of 1 to [`SPAN_PAGES_MAX`] pages cut into equal *cells*, one object each. A class fixes cell size,
//! cells and pages. For each object length (in steps of [`CELL_STEP`]) the class is the one that spends the fewest bytes of
//! span an object; lengths with the same answer share a class, whose cell is then as large as the span allows. This is the
//! idea of zsmalloc (reference: zram, pool), searched over all span lengths instead of one rule for the chain.

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;

/// Longest span in pages. Larger spans waste less at their end and more while partly filled; 8 balances both for pools
/// from 64 MiB (mean waste at the end 1.3 %).
pub const SPAN_PAGES_MAX: usize = 8;

/// Cells start at multiples of this many bytes.
pub const CELL_STEP: usize = 16;

/// Most cells in a span.
pub const CELLS_MAX: usize = 256;

/// Longest object that is worth less than a page: at most 9 cells fill a span of 8 pages. Longer ones are stored raw.
pub const COMPRESSED_BYTES_MAX: usize = SPAN_PAGES_MAX * PAGE_BYTES / 9 / CELL_STEP * CELL_STEP;

/// How one class cuts its spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeClass {
    /// Bytes of a cell.
    pub cell_bytes: usize,
    /// Cells in a span.
    pub cells: usize,
    /// Pages in a span.
    pub pages: usize,
}

/// All classes, and which one holds objects of a given length.
pub struct SizeClasses {
    classes: Vec<SizeClass>,
    by_length: Vec<u8>,
}

impl Default for SizeClasses {
    fn default() -> Self {
        Self::new()
    }
}

impl SizeClasses {
    /// The classes for objects of 1 to 4096 bytes.
    pub fn new() -> Self {
        let mut classes: Vec<SizeClass> = Vec::new();
        let by_length = (1..=PAGE_BYTES / CELL_STEP)
            .map(|step| {
                let class = best_class(step * CELL_STEP);
                if classes.last() != Some(&class) {
                    classes.push(class);
                }
                u8::try_from(classes.len() - 1).expect("there are fewer classes than cell steps")
            })
            .collect();
        Self { classes, by_length }
    }

    /// The class of objects of `len` bytes, 1 to 4096.
    pub fn of(&self, len: usize) -> usize {
        usize::from(self.by_length[(len - 1) / CELL_STEP])
    }

    /// The classes by number, smallest cells first.
    pub fn classes(&self) -> &[SizeClass] {
        &self.classes
    }
}

fn best_class(len: usize) -> SizeClass {
    if len > COMPRESSED_BYTES_MAX {
        return SizeClass { cell_bytes: PAGE_BYTES, cells: SPAN_PAGES_MAX, pages: SPAN_PAGES_MAX };
    }
    // Compared as fractions pages / cells; the first minimum is the shortest span.
    let (mut pages, mut cells) = (0, 0);
    for candidate in 1..=SPAN_PAGES_MAX {
        let fit = candidate * PAGE_BYTES / len;
        if (1..=CELLS_MAX).contains(&fit) && (cells == 0 || candidate * cells < pages * fit) {
            (pages, cells) = (candidate, fit);
        }
    }
    // A short span is repeated to spread its bookkeeping, as long as it stays within half of the longest.
    while pages * 2 <= SPAN_PAGES_MAX / 2 && cells * 2 <= CELLS_MAX {
        (pages, cells) = (pages * 2, cells * 2);
    }
    SizeClass { cell_bytes: pages * PAGE_BYTES / cells / CELL_STEP * CELL_STEP, cells, pages }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_fits_its_class_and_every_class_its_span() {
        let classes = SizeClasses::new();
        for len in 1..=PAGE_BYTES {
            let class = classes.classes()[classes.of(len)];
            assert!(class.cell_bytes >= len, "{len} in {class:?}");
            assert!(class.cells * class.cell_bytes <= class.pages * PAGE_BYTES, "{class:?}");
            assert!(
                class.cells <= CELLS_MAX
                    && class.pages <= SPAN_PAGES_MAX
                    && class.cell_bytes.is_multiple_of(CELL_STEP)
            );
        }
    }

    #[test]
    fn longer_objects_never_get_smaller_cells() {
        let classes = SizeClasses::new();
        assert!(classes.classes().windows(2).all(|pair| pair[0].cell_bytes < pair[1].cell_bytes));
        assert!((1..PAGE_BYTES).all(|len| classes.of(len) <= classes.of(len + 1)));
    }

    #[test]
    fn spans_waste_little_of_what_their_objects_need() {
        let classes = SizeClasses::new();
        let lengths = (608..3000).step_by(CELL_STEP);
        let waste = |len: usize| {
            let class = classes.classes()[classes.of(len)];
            (class.pages * PAGE_BYTES) as f64 / class.cells as f64 / len as f64 - 1.0
        };
        let (sum, count) = lengths.fold((0.0, 0), |(sum, count), len| (sum + waste(len), count + 1));
        assert!(sum / f64::from(count) < 0.015, "mean waste {}", sum / f64::from(count));
    }

    #[test]
    fn raw_pages_waste_nothing() {
        let classes = SizeClasses::new();
        let raw = classes.classes()[classes.of(PAGE_BYTES)];
        assert_eq!(raw.cells * raw.cell_bytes, raw.pages * PAGE_BYTES);
        assert_eq!(classes.of(COMPRESSED_BYTES_MAX + 1), classes.of(PAGE_BYTES));
        assert!(classes.of(COMPRESSED_BYTES_MAX) < classes.of(PAGE_BYTES));
    }
}

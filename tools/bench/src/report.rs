//! Medians, ratios and tables.

/// The median of `values`; the lower of two in the middle. Panics without values.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[(sorted.len() - 1) / 2]
}

/// The median over rounds of `ours / theirs`.
pub(crate) fn ratio(ours: &[f64], theirs: &[f64]) -> f64 {
    let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
    median(&ratios)
}

/// A ratio beside what it should at least be.
pub(crate) fn at_least(ratio: f64, wanted: f64) -> String {
    format!("{ratio:.2} ({} {wanted})", if ratio >= wanted { ">=" } else { "MISSED, wanted" })
}

/// Prints a table in Markdown.
pub(crate) fn table(title: &str, head: &[&str], rows: &[Vec<String>]) {
    println!("\n{title}\n\n| {} |", head.join(" | "));
    println!("|{}", " --- |".repeat(head.len()));
    for row in rows {
        println!("| {} |", row.join(" | "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_round_by_round() {
        assert!((ratio(&[10.0, 40.0, 12.0], &[5.0, 10.0, 6.0]) - 2.0).abs() < 1e-9);
        assert!((median(&[3.0, 1.0]) - 1.0).abs() < 1e-9);
    }
}

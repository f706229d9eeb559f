//! Medians and the table.

use std::fmt::Write as _;

/// The middle one, or the mean of the two in the middle; 0 of none.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let at = |index: usize| sorted.get(index).copied().unwrap_or_default();
    if sorted.len() % 2 == 1 {
        at(middle)
    } else {
        f64::midpoint(at(middle.saturating_sub(1)), at(middle))
    }
}

/// One line: a measure, its figures, and the ratio that a gate is set on.
#[derive(Debug, serde::Serialize)]
pub(crate) struct Row {
    /// What is measured, with its unit.
    pub(crate) measure: String,
    /// Without a proxy, where that means something.
    pub(crate) direct: Option<f64>,
    /// The bare limit.
    pub(crate) bare: f64,
    /// wallgate.
    pub(crate) wallgate: f64,
    /// What the gate is about: usually wallgate ÷ bare.
    pub(crate) value: f64,
    /// What `value` is.
    pub(crate) meaning: &'static str,
    /// The gate and the aim, as text.
    pub(crate) target: &'static str,
}

/// The rows as a Markdown table.
pub(crate) fn markdown(rows: &[Row]) -> String {
    let mut text = String::from(
        "| measure | direct | bare | wallgate | compared | gate / aim |\n|---|---|---|---|---|---|\n",
    );
    for row in rows {
        let direct = row.direct.map_or_else(|| "–".to_owned(), figure);
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| {} | {direct} | {} | {} | **{}** {} | {} |",
            row.measure,
            figure(row.bare),
            figure(row.wallgate),
            figure(row.value),
            row.meaning,
            row.target
        );
    }
    text
}

fn figure(value: f64) -> String {
    if value.abs() >= 100.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.2}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        let rows: [(&[f64], f64); 4] = [
            (&[], 0.0),
            (&[3.0], 3.0),
            (&[9.0, 1.0, 2.0], 2.0),
            (&[4.0, 1.0, 2.0, 3.0], 2.5),
        ];
        for (values, expected) in rows {
            assert!((median(values) - expected).abs() < f64::EPSILON, "{values:?}");
        }
    }
}

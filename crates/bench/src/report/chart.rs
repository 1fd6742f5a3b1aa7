//! A ratio as a dot on a logarithmic axis, in SVG that is as wide as its place.
//!
//! ```text
//!  ⅛      ¼      ½      1      2      4      8
//!  |      |      |      |   ├──●──┤   |      |     the whisker is the spread over turns
//! ```
//!
//! Positions are in percent and sizes in pixels, so that a dot stays round and text readable at any
//! width.

use std::fmt::Write;

use super::{record::Spread, verdict::Winner};

/// The axis runs from 1 / `END` to `END`. Ratios beyond it are arrows at the edge.
const END: f64 = 8.0;

/// Ticks and their labels.
const TICKS: [(f64, &str); 7] =
    [(0.125, "⅛"), (0.25, "¼"), (0.5, "½"), (1.0, "1"), (2.0, "2×"), (4.0, "4×"), (8.0, "8×")];

/// Room for half a dot at each end, in percent.
const MARGIN: f64 = 3.0;

/// Returns the position of a ratio, in percent of the width.
fn place(ratio: f64) -> f64 {
    let share = ratio.clamp(1.0 / END, END).ln() / END.ln();
    50.0 + share * (50.0 - MARGIN)
}

/// Draws the axis of a group of rows.
pub(super) fn axis() -> String {
    let mut svg = r#"<svg class="axis" height="16" role="img" aria-label="times better, logarithmic">"#.to_owned();
    for (ratio, label) in TICKS {
        let _ = write!(svg, r#"<text x="{:.2}%" y="12">{label}</text>"#, place(ratio));
    }
    svg.push_str("</svg>");
    svg
}

/// Draws one row: how many times better pagefold is.
pub(super) fn strip(ratio: Spread, winner: Winner) -> String {
    let class = match winner {
        Winner::Pagefold => "ours",
        Winner::Peer => "peer",
        Winner::Neither => "even",
    };
    let mut svg = format!(r#"<svg class="strip {class}" height="22" aria-hidden="true">"#);
    for (tick, _) in TICKS {
        let at = place(tick);
        let class = if tick == 1.0 { "one" } else { "tick" };
        let _ = write!(svg, r#"<line class="{class}" x1="{at:.2}%" x2="{at:.2}%" y1="0" y2="22"/>"#);
    }
    let at = place(ratio.median);
    let _ = write!(
        svg,
        r#"<line class="spread" x1="{:.2}%" x2="{:.2}%" y1="11" y2="11"/>"#,
        place(ratio.low),
        place(ratio.high)
    );
    if ratio.median > END || ratio.median < 1.0 / END {
        let (anchor, arrow) = if ratio.median > END { ("end", "▶") } else { ("start", "◀") };
        let edge = if ratio.median > END { 100.0 } else { 0.0 };
        let _ = write!(svg, r#"<text class="beyond" x="{edge}%" y="16" text-anchor="{anchor}">{arrow}</text>"#);
    } else {
        let _ = write!(svg, r#"<circle cx="{at:.2}%" cy="11" r="5"/>"#);
    }
    svg.push_str("</svg>");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_in_the_middle_and_what_lies_beyond_at_the_edge() {
        assert_eq!(place(1.0), 50.0);
        assert_eq!(place(8.0), 97.0);
        assert_eq!(place(0.125), 3.0);
        assert!(place(2.0) - 50.0 - (50.0 - place(0.5)) < 1e-9);
        assert_eq!(place(1000.0), place(8.0));
        let strip = strip(Spread::of(&[100.0]), Winner::Pagefold);
        assert!(strip.contains('▶') && !strip.contains("circle"));
    }
}

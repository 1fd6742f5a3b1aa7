//! Standalone charts as SVG files, `data/charts.json`: bars of absolute figures next to peers'.

use std::fmt::Write;

use anyhow::Context;
use serde::Deserialize;

use super::cell::Cell;
use crate::record::Record;
use crate::words::grouped;

#[derive(Deserialize)]
struct Chart {
    file: String,
    title: String,
    decimals: usize,
    unit: String,
    /// Whether bars begin at the power of ten below the least figure: a linear scale would hide which
    /// of the shortest bars is shorter if figures differ by a factor of a thousand.
    logarithmic: bool,
    groups: Vec<Group>,
}

/// Bars under one heading.
#[derive(Deserialize)]
struct Group {
    heading: String,
    bars: Vec<Bar>,
}

#[derive(Deserialize)]
struct Bar {
    name: String,
    cell: Cell,
}

/// A group's heading, and the names and figures that the run has.
type Drawn<'a> = (&'a str, Vec<(&'a str, f64)>);

/// Returns the file names and contents of the charts that the run has figures for.
pub(super) fn charts(record: &Record) -> anyhow::Result<Vec<(String, String)>> {
    let charts: Vec<Chart> = serde_json::from_str(include_str!("../data/charts.json")).context("charts.json")?;
    let drawn = charts.iter().filter_map(|chart| {
        let of = |bar: &'_ Bar| bar.cell.value(record, "", "");
        let groups: Vec<Drawn> = chart
            .groups
            .iter()
            .map(|group| {
                let bars = group.bars.iter().filter_map(|bar| Some((bar.name.as_str(), of(bar)?)));
                (group.heading.as_str(), bars.collect())
            })
            .collect();
        groups.iter().any(|(_, bars)| bars.len() > 1).then(|| (chart.file.clone(), chart.draw(&groups)))
    });
    Ok(drawn.collect())
}

/// Widths of a chart, of the names at the left, and of a figure at the right.
const WIDTH: f64 = 720.0;
const NAMES: f64 = 210.0;
const FIGURE: f64 = 90.0;
/// Heights of a bar with the gap below it, and of a heading.
const BAR: f64 = 26.0;
const HEADING: f64 = 30.0;

const STYLE: &str = "text{font:14px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;fill:#1b1b1b}\
.title{font-weight:600;font-size:15px}.group{font-weight:600}.ours{fill:#0b61a4}.peer{fill:#9a9a9a}\
@media(prefers-color-scheme:dark){text{fill:#e8e8e6}.ours{fill:#62b0f0}.peer{fill:#7d8186}}";

impl Chart {
    fn draw(&self, groups: &[Drawn]) -> String {
        let Self { title, decimals, unit, logarithmic, .. } = self;
        let values = || groups.iter().flat_map(|(_, bars)| bars).map(|(_, value)| *value);
        let most = values().fold(0.0, f64::max);
        let least = 10_f64.powf(values().fold(f64::INFINITY, f64::min).log10().floor());
        let share = |value: f64| if *logarithmic { (value / least).ln() / (most / least).ln() } else { value / most };
        let mut body = String::new();
        let mut top = HEADING;
        for (heading, bars) in groups.iter().filter(|(_, bars)| !bars.is_empty()) {
            if !heading.is_empty() {
                top += HEADING;
                let _ = write!(body, r#"<text class="group" x="0" y="{:.0}">{heading}</text>"#, top - 8.0);
            }
            for (name, value) in bars {
                let width = (share(*value) * (WIDTH - NAMES - FIGURE)).max(1.0);
                let class = if name.starts_with("pagefold") { "ours" } else { "peer" };
                let _ = writeln!(
                    body,
                    r#"<text x="{:.0}" y="{1:.0}" text-anchor="end">{name}</text><rect class="{class}" x="{NAMES}" y="{2:.0}" width="{width:.1}" height="{3:.0}"/><text x="{4:.1}" y="{1:.0}">{5} {unit}</text>"#,
                    NAMES - 10.0,
                    top + 15.0,
                    top + 2.0,
                    BAR - 8.0,
                    NAMES + width + 6.0,
                    grouped(*value, *decimals)
                );
                top += BAR;
            }
        }
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {top}\" width=\"{WIDTH}\" height=\"{top}\" \
             role=\"img\">\n<title>{title}</title>\n<style>{STYLE}</style>\n<text class=\"title\" x=\"0\" y=\"18\">{title}\
             </text>\n{body}</svg>\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::Line;

    fn charts_of(figures: &[(&str, &str, &str, &str, f64)]) -> Vec<(String, String)> {
        let mut record = Record::default();
        for &(bench, case, subject, metric, value) in figures {
            record.add(Line::new([bench, case, subject, metric, ""], value));
        }
        charts(&record).unwrap()
    }

    #[test]
    fn a_chart_has_a_bar_for_each_subject_that_was_measured() {
        let mut figures = Vec::new();
        for (subject, spent) in [("zram-lz4", 36.0), ("pagefold-default", 16.5)] {
            figures.push(("device", "heap-python", subject, "orig_bytes", 100.0));
            figures.push(("device", "heap-python", subject, "spent_bytes", spent));
        }
        for subject in ["qcow2-nbd", "fork-lz4"] {
            figures.push(("nbd", "heap/rand-read/4k/1x16/whole/changed-1", subject, "read_mb_s", 100.0));
        }
        figures.push(("fork", "idle/socket/9", "pagefold", "all_p50_us", 280.0));
        let charts = charts_of(&figures);
        // A single bar is not drawn.
        assert_eq!(charts.iter().map(|(file, _)| file.as_str()).collect::<Vec<_>>(), ["ram.svg", "io.svg"]);
        assert_eq!(charts[1].1.matches("class=\"ours\"").count(), 1);
        let svg = &charts[0].1;
        assert_eq!((svg.matches("<rect").count(), svg.matches("class=\"ours\"").count()), (2, 1));
        assert!(svg.contains("36.0 %") && svg.contains("16.5 %") && svg.contains("Heap of python"), "{svg}");
        assert!(charts_of(&[]).is_empty());
    }

    /// A reflink is faster than a fork, and the chart shows it.
    #[test]
    fn the_chart_of_forks_shows_small_figures_apart() {
        let charts = charts_of(&[
            ("fork", "idle/peer/9", "cp-tmpfs", "all_p50_us", 78_640.0),
            ("fork", "idle/peer/9", "btrfs-reflink", "all_p50_us", 60.0),
            ("fork", "idle/socket/9", "pagefold", "all_p50_us", 320.0),
        ]);
        let widths = charts[0].1.split("width=\"").skip(2).filter_map(|rest| rest.split('"').next()?.parse().ok());
        let widths: Vec<f64> = widths.collect();
        assert_eq!(widths.len(), 3, "{}", charts[0].1);
        assert!(widths[0] > widths[2] && widths[2] > widths[1] + 50.0, "{widths:?}");
    }
}

//! Standalone charts as SVG files: bars of absolute figures next to peers'.

use std::fmt::Write;

use super::{
    html::escape,
    record::{Pick, Record},
    words::grouped,
};

/// A chart.
pub(super) struct Chart {
    /// The file's name.
    pub(super) file: &'static str,
    pub(super) svg: String,
}

/// A bar with its figure.
struct Bar {
    name: String,
    value: f64,
    is_ours: bool,
}

/// Bars under one heading.
struct Group {
    heading: String,
    bars: Vec<Bar>,
}

/// How long a bar is.
#[derive(Clone, Copy, PartialEq)]
enum Scale {
    Linear,
    /// Bars begin at the power of ten below the least figure.
    Logarithmic,
}

/// A chart before it is drawn.
struct Plan {
    file: &'static str,
    title: &'static str,
    groups: Vec<Group>,
    decimals: usize,
    unit: &'static str,
    scale: Scale,
}

/// Returns the charts that the run has figures for.
pub(super) fn charts(record: &Record) -> Vec<Chart> {
    let plans = [
        Plan {
            file: "ram.svg",
            title: "RAM for the same pages of program heaps, % of their size",
            groups: ram(record),
            decimals: 1,
            unit: "%",
            scale: Scale::Linear,
        },
        Plan {
            file: "io.svg",
            title: "4 KiB requests over NBD, one connection, 16 in flight, MB/s",
            groups: io(record),
            decimals: 0,
            unit: "MB/s",
            scale: Scale::Linear,
        },
        // Figures differ by a factor of a thousand: a linear scale would hide which of the shortest
        // bars is shorter.
        Plan {
            file: "forks.svg",
            title: "From the request for a disk to its first page, milliseconds, logarithmic scale",
            groups: forks(record),
            decimals: 2,
            unit: "ms",
            scale: Scale::Logarithmic,
        },
    ];
    let has_bars = |plan: &&Plan| plan.groups.iter().any(|group| group.bars.len() > 1);
    plans.iter().filter(has_bars).map(|plan| Chart { file: plan.file, svg: draw(plan) }).collect()
}

/// Memory of pages of heaps in zram and in the store: of all data sets stored, those whose name
/// begins with `heap`.
fn ram(record: &Record) -> Vec<Group> {
    const SUBJECTS: [(&str, &str); 4] = [
        ("zram-lz4", "zram, lz4"),
        ("zram-lzo-rle", "zram, lzo-rle"),
        ("pagefold-lz4", "pagefold, lz4"),
        ("pagefold-default", "pagefold"),
    ];
    let pick = Pick { bench: "device", case: "heap-*", subject: SUBJECTS[3].0, metric: "orig_bytes" };
    record
        .matching(&pick)
        .map(|(key, _)| {
            let of = |subject, metric| record.mean(&Pick { bench: "device", case: &key.case, subject, metric });
            let bar = |(subject, name): (&'static str, &str)| {
                let share = of(subject, "spent_bytes")? / of(subject, "orig_bytes")? * 100.0;
                Some(Bar { name: name.to_owned(), value: share, is_ours: subject.starts_with("pagefold") })
            };
            let heading = key.case.replace("heap-", "Heap of ");
            Group { heading, bars: SUBJECTS.into_iter().filter_map(bar).collect() }
        })
        .collect()
}

/// Speeds over NBD, of RAM disks and of disks that start as copies.
fn io(record: &Record) -> Vec<Group> {
    type Subjects = [(&'static str, &'static str); 4];
    const DISKS: Subjects = [
        ("nbdkit-malloc", "nbdkit memory"),
        ("nbdkit-zstd", "nbdkit memory, zstd"),
        ("pagefold-lz4", "pagefold, lz4"),
        ("pagefold-default", "pagefold"),
    ];
    const COPIES: Subjects = [
        ("qcow2-nbd", "qcow2, qemu-nbd"),
        ("qcow2-daemon", "qcow2, qemu-storage-daemon"),
        ("nbdkit-cow", "nbdkit cow"),
        ("fork-lz4", "pagefold"),
    ];
    let of = |(heading, subjects, case, metric): (&str, Subjects, &str, &str)| {
        let bar = |(subject, name): (&'static str, &str)| {
            let value = record.mean(&Pick { bench: "nbd", case, subject, metric })?;
            Some(Bar { name: name.to_owned(), value, is_ours: name.starts_with("pagefold") })
        };
        Group { heading: heading.to_owned(), bars: subjects.into_iter().filter_map(bar).collect() }
    };
    let (read, write) = ("*/rand-read/4k/1x16/whole/changed-1", "*/rand-write/4k/1x16");
    [
        ("RAM disks: random reads", DISKS, read, "read_mb_s"),
        ("RAM disks: random writes", DISKS, write, "write_mb_s"),
        ("Forks of a disk, 1 % changed: random reads", COPIES, read, "read_mb_s"),
        ("Forks of a disk: random writes", COPIES, write, "write_mb_s"),
    ]
    .map(of)
    .into()
}

/// Time to make a disk that starts as a copy of another.
fn forks(record: &Record) -> Vec<Group> {
    const SUBJECTS: [(&str, &str, &str); 5] = [
        ("cp-tmpfs", "a copy in tmpfs", "idle/peer/*"),
        ("dm-snapshot", "dm-snapshot", "idle/peer/*"),
        ("qcow2+qemu-nbd", "qcow2 overlay, qemu-nbd", "idle/peer/*"),
        ("btrfs-reflink", "btrfs reflink, no server", "idle/peer/*"),
        ("pagefold", "pagefold, by its socket", "idle/socket/*"),
    ];
    let bar = |(subject, name, case): (&'static str, &str, &'static str)| {
        let value = record.mean(&Pick { bench: "fork", case, subject, metric: "all_p50_us" })? / 1e3;
        Some(Bar { name: name.to_owned(), value, is_ours: subject == "pagefold" })
    };
    vec![Group { heading: String::new(), bars: SUBJECTS.into_iter().filter_map(bar).collect() }]
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

fn draw(plan: &Plan) -> String {
    let Plan { title, groups, decimals, unit, scale, .. } = plan;
    let values = || groups.iter().flat_map(|group| &group.bars).map(|bar| bar.value);
    let most = values().fold(0.0, f64::max);
    let least = 10_f64.powf(values().fold(f64::INFINITY, f64::min).log10().floor());
    let share = |value: f64| match scale {
        Scale::Linear => value / most,
        Scale::Logarithmic => (value / least).ln() / (most / least).ln(),
    };
    let mut body = String::new();
    let mut top = HEADING;
    for group in groups.iter().filter(|group| !group.bars.is_empty()) {
        if !group.heading.is_empty() {
            top += HEADING;
            let _ = write!(body, r#"<text class="group" x="0" y="{:.0}">{}</text>"#, top - 8.0, escape(&group.heading));
        }
        for bar in &group.bars {
            let width = (share(bar.value) * (WIDTH - NAMES - FIGURE)).max(1.0);
            let class = if bar.is_ours { "ours" } else { "peer" };
            let _ = write!(
                body,
                r#"<text x="{:.0}" y="{:.0}" text-anchor="end">{}</text><rect class="{class}" x="{NAMES}" y="{:.0}" width="{width:.1}" height="{:.0}"/><text x="{:.1}" y="{:.0}">{} {unit}</text>"#,
                NAMES - 10.0,
                top + 15.0,
                escape(&bar.name),
                top + 2.0,
                BAR - 8.0,
                NAMES + width + 6.0,
                top + 15.0,
                grouped(bar.value, *decimals)
            );
            body.push('\n');
            top += BAR;
        }
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {top}\" width=\"{WIDTH}\" height=\"{top}\" \
         role=\"img\">\n<title>{0}</title>\n<style>{STYLE}</style>\n<text class=\"title\" x=\"0\" y=\"18\">{0}</text>\n{body}</svg>\n",
        escape(title)
    )
}

#[cfg(test)]
mod tests {
    use super::{super::record::Line, *};

    fn record(figures: &[(&str, &str, &str, &str, f64)]) -> Record {
        let mut record = Record::default();
        for &(bench, case, subject, metric, value) in figures {
            record.add(Line { bench: bench.to_owned(), ..Line::about(case, subject, metric, value, "") });
        }
        record
    }

    #[test]
    fn a_chart_has_a_bar_for_each_subject_that_was_measured() {
        let mut figures = Vec::new();
        for (subject, spent) in [("zram-lz4", 36.0), ("pagefold-default", 16.5)] {
            figures.push(("device", "heap-<python>", subject, "orig_bytes", 100.0));
            figures.push(("device", "heap-<python>", subject, "spent_bytes", spent));
        }
        for subject in ["qcow2-nbd", "fork-lz4"] {
            figures.push(("nbd", "heap/rand-read/4k/1x16/whole/changed-1", subject, "read_mb_s", 100.0));
        }
        figures.push(("fork", "idle/socket/9", "pagefold", "all_p50_us", 280.0));
        let charts = charts(&record(&figures));
        // A single bar is not drawn.
        assert_eq!(charts.iter().map(|chart| chart.file).collect::<Vec<_>>(), ["ram.svg", "io.svg"]);
        assert_eq!(charts[1].svg.matches("class=\"ours\"").count(), 1);
        let svg = &charts[0].svg;
        assert_eq!((svg.matches("<rect").count(), svg.matches("class=\"ours\"").count()), (2, 1));
        assert!(svg.contains("36.0 %") && svg.contains("16.5 %") && svg.contains("Heap of &lt;python&gt;"), "{svg}");
        assert!(!svg.contains("href"));
    }

    /// A reflink is faster than a fork, and the chart shows it.
    #[test]
    fn the_chart_of_forks_shows_small_figures_apart() {
        let figures = [
            ("fork", "idle/peer/9", "cp-tmpfs", "all_p50_us", 78_640.0),
            ("fork", "idle/peer/9", "btrfs-reflink", "all_p50_us", 60.0),
            ("fork", "idle/socket/9", "pagefold", "all_p50_us", 320.0),
        ];
        let charts = charts(&record(&figures));
        let widths = charts[0].svg.split("width=\"").skip(2).filter_map(|rest| rest.split('"').next()?.parse().ok());
        let widths: Vec<f64> = widths.collect();
        assert_eq!(widths.len(), 3, "{}", charts[0].svg);
        assert!(widths[0] > widths[2] && widths[2] > widths[1] + 50.0, "{widths:?}");
    }

    #[test]
    fn without_figures_there_is_no_chart() {
        assert!(charts(&Record::default()).is_empty());
    }
}

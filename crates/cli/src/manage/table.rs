//! The table of disks: its columns, and how they sort.

use std::{
    cmp::{Ordering, Reverse},
    io::{self, Write},
};

use clap::ValueEnum;
use pagefold_control::{DiskKind, DiskRecord};

use super::tree::{Branch, branches};
use crate::{size, text::plain};

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Column {
    Name,
    Size,
    /// Memory limit
    Limit,
    /// What the disk wrote itself
    Changed,
    /// Memory that this takes
    Ram,
    /// CHANGED divided by RAM
    Ratio,
    Age,
    Clients,
    /// Maximum number of connections
    Connections,
    /// Maximum bytes read and written per second
    Rate,
    /// Number of snapshots
    Snapshots,
    /// disk, base or snapshot
    Kind,
    /// The disk that it was forked from, or the base's file
    From,
    /// The first URI
    Uri,
}

/// The columns without `--columns`.
pub(super) const USUAL: [Column; 8] = [
    Column::Name,
    Column::Size,
    Column::Changed,
    Column::Ram,
    Column::Ratio,
    Column::Age,
    Column::Clients,
    Column::From,
];

impl Column {
    fn heading(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_uppercase())
    }

    /// Returns whether the column is aligned at its left side.
    fn is_text(self) -> bool {
        matches!(self, Self::Name | Self::Kind | Self::From | Self::Uri)
    }

    fn cell(self, Branch { disk, lines }: &Branch<'_>) -> String {
        let is_base = disk.kind == DiskKind::Base;
        let own = |text: String| if is_base { "-".to_owned() } else { text };
        let name = |name: &str| if name.is_empty() { "''".to_owned() } else { plain(name) };
        match self {
            Self::Name => format!("{lines}{}", name(&disk.name)),
            Self::Size => size::written(disk.size_bytes),
            Self::Limit => disk.limit_bytes.map_or_else(|| "-".to_owned(), size::written),
            Self::Changed => own(size::show(disk.changed_bytes)),
            Self::Ram => own(size::show(disk.own_bytes)),
            Self::Ratio => ratio(disk).map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.1}")),
            Self::Age => age(disk.age_seconds),
            Self::Clients => disk.clients.to_string(),
            Self::Connections => disk.max_connections.map_or_else(|| "-".to_owned(), |most| most.to_string()),
            Self::Rate => {
                disk.bytes_per_second.map_or_else(|| "-".to_owned(), |rate| format!("{}/s", size::written(rate)))
            }
            Self::Snapshots => disk.snapshots.to_string(),
            Self::Kind => match disk.kind {
                DiskKind::Base => "base",
                DiskKind::Snapshot => "snapshot",
                _ => "disk",
            }
            .to_owned(),
            Self::From => disk.from.as_deref().or(disk.path.as_deref()).map_or_else(|| "-".to_owned(), name),
            Self::Uri => disk.uris.first().map_or_else(|| "-".to_owned(), |uri| format!("'{}'", plain(uri))),
        }
    }

    /// Compares two disks by this column: texts in alphabetical order, figures from the largest.
    fn compare(self, one: &DiskRecord, other: &DiskRecord) -> Ordering {
        let figure = |disk: &DiskRecord| match self {
            Self::Size => disk.size_bytes,
            Self::Limit => disk.limit_bytes.unwrap_or(0),
            Self::Changed => disk.changed_bytes,
            Self::Ram => disk.own_bytes,
            Self::Age => disk.age_seconds,
            Self::Clients => disk.clients,
            Self::Connections => disk.max_connections.unwrap_or(0),
            Self::Rate => disk.bytes_per_second.unwrap_or(0),
            Self::Snapshots => disk.snapshots,
            _ => 0,
        };
        match self {
            Self::Ratio => ratio(other).unwrap_or(0.0).total_cmp(&ratio(one).unwrap_or(0.0)),
            Self::Name => one.name.cmp(&other.name),
            Self::From => (&one.from, &one.path).cmp(&(&other.from, &other.path)),
            Self::Uri => one.uris.cmp(&other.uris),
            Self::Kind => format!("{:?}", one.kind).cmp(&format!("{:?}", other.kind)),
            _ => Reverse(figure(one)).cmp(&Reverse(figure(other))),
        }
    }
}

/// Returns the ratio of the bytes that a disk wrote to the memory that they take, if it wrote
/// anything.
fn ratio(disk: &DiskRecord) -> Option<f64> {
    let wrote = disk.kind != DiskKind::Base && disk.changed_bytes > 0 && disk.own_bytes > 0;
    wrote.then(|| disk.changed_bytes as f64 / disk.own_bytes as f64)
}

/// The widest cell, in characters, that widens its column. After a wider one, its line is not
/// aligned.
const MOST_WIDE: usize = 64;

/// Writes one line per disk: as a tree, or sorted by a column.
pub(super) fn write(
    out: &mut dyn Write,
    disks: &[DiskRecord],
    columns: &[Column],
    sort: Option<Column>,
) -> io::Result<()> {
    let rows = match sort {
        None => branches(disks),
        Some(column) => {
            let mut sorted: Vec<_> = disks.iter().collect();
            sorted.sort_by(|one, other| column.compare(one, other).then_with(|| one.name.cmp(&other.name)));
            sorted.into_iter().map(|disk| Branch { disk, lines: String::new() }).collect()
        }
    };
    let headings = columns.iter().map(|column| column.heading()).collect();
    let cells = rows.iter().map(|row| columns.iter().map(|column| column.cell(row)).collect());
    let lines: Vec<Vec<String>> = std::iter::once(headings).chain(cells).collect();
    let wide = |text: &String| text.chars().count();
    let widest = |at: usize| lines.iter().map(|line| wide(&line[at])).filter(|wide| *wide <= MOST_WIDE).max();
    let widths: Vec<usize> = (0..columns.len()).map(|at| widest(at).unwrap_or(0)).collect();
    for line in lines {
        let mut text = String::new();
        for ((cell, column), width) in line.iter().zip(columns).zip(&widths) {
            let space = " ".repeat(width.saturating_sub(wide(cell)));
            text += &if column.is_text() { format!("{cell}{space}  ") } else { format!("{space}{cell}  ") };
        }
        writeln!(out, "{}", text.trim_end())?;
    }
    Ok(())
}

/// Formats a duration in the largest unit that gives at least 2.
pub(super) fn age(seconds: u64) -> String {
    let units = [(86_400, "d"), (3600, "h"), (60, "min")];
    let unit = units.into_iter().find(|(unit, _)| seconds >= 2 * unit);
    unit.map_or_else(|| format!("{seconds} s"), |(unit, name)| format!("{} {name}", seconds / unit))
}

#[cfg(test)]
mod tests {
    use super::{super::tree, *};

    fn disk(name: &str, from: Option<&str>, own_bytes: u64) -> DiskRecord {
        DiskRecord {
            size_bytes: 1023 << 40,
            age_seconds: 999 * 86_400,
            changed_bytes: 1000 << 20,
            own_bytes,
            clients: 99,
            ..tree::tests::disk(name, from)
        }
    }

    fn written(disks: &[DiskRecord], columns: &[Column], sort: Option<Column>) -> String {
        let mut out = Vec::new();
        write(&mut out, disks, columns, sort).expect("memory");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn a_table_fits_a_terminal() {
        let disks = [disk("debian", None, 100 << 10), disk("job-1@before-upgrade", Some("debian"), 100 << 20)];
        let text = written(&disks, &USUAL, None);
        assert!(text.lines().all(|line| line.chars().count() <= 88), "{text}");
        assert_eq!(text.lines().count(), 3);
        assert!(text.lines().next().is_some_and(|line| line.ends_with("CLIENTS  FROM")), "{text}");
    }

    #[test]
    fn one_long_name_widens_no_other_line() {
        let (long, short) = ("n".repeat(4096), disk("a", None, 0));
        let alone = written(std::slice::from_ref(&short), &USUAL, None);
        let both = written(&[short, disk(&long, None, 0)], &USUAL, None);
        let lines: Vec<&str> = both.lines().collect();
        assert_eq!(lines[..2], alone.lines().collect::<Vec<_>>());
        assert!(lines[2].starts_with(&long));
    }

    #[test]
    fn columns_are_chosen_and_sorted() {
        let disks = [disk("a", None, 300), disk("b", Some("a"), 100), disk("c", None, 200)];
        let first = |text: String| text.lines().map(|line| line.split(' ').next().unwrap_or("").to_owned()).collect();
        let names: Vec<String> = first(written(&disks, &[Column::Name, Column::Ram], Some(Column::Ram)));
        assert_eq!(names, ["NAME", "a", "c", "b"]);
        let names: Vec<String> = first(written(&disks, &[Column::Name], Some(Column::Ratio)));
        assert_eq!(names, ["NAME", "b", "c", "a"]);
        assert_eq!(written(&disks, &[Column::Name], None), "NAME\na\n└ b\nc\n");
    }
}

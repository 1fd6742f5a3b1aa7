//! The tables of the five sources, and where a run has the same figures: `data/published.json`.

use std::fmt::Write;

use anyhow::Context;
use serde::Deserialize;

use super::cell::Cell;
use crate::line::geometric_mean;
use crate::record::Record;
use crate::words::grouped;

/// A source's table next to the same table as measured here.
#[derive(Deserialize)]
struct PublishedTable {
    title: String,
    /// Who published it, where and when.
    source: String,
    /// How it was measured there.
    there: String,
    /// How it is measured here, and what differs.
    here: String,
    unit: String,
    /// Decimal places.
    decimals: usize,
    /// Whether it makes sense to compare means with the first column of each side.
    means: bool,
    published: Vec<String>,
    measured: Vec<String>,
    /// One for each measured column.
    cells: Vec<Cell>,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    /// The group of the row, of which the page shows only the mean. Empty if the table has no groups.
    #[serde(default)]
    group: String,
    name: String,
    key: String,
    #[serde(default)]
    metric: String,
    /// One for each published column, or none if the source does not have the row.
    values: Vec<f64>,
}

fn tables() -> anyhow::Result<Vec<PublishedTable>> {
    serde_json::from_str(include_str!("../data/published.json")).context("published.json")
}

/// Writes the tables as Markdown.
pub(super) fn write(text: &mut String, record: &Record) -> anyhow::Result<()> {
    for table in tables()? {
        let PublishedTable { title, source, there, here, unit, .. } = &table;
        writeln!(text, "### {title}\n\n{source}.\n\n- **There**: {there}\n- **Here**: {here}\n- **Unit**: {unit}\n")?;
        let columns = table.published.iter().map(|column| format!("there: {column}"));
        let columns: Vec<String> =
            columns.chain(table.measured.iter().map(|column| format!("here: {column}"))).collect();
        writeln!(text, "| | {} |\n|---|{}", columns.join(" | "), "---|".repeat(columns.len()))?;
        let mut row = |name: &str, values: &[Option<f64>], decimals| {
            let cell = |value: &Option<f64>| value.map_or_else(|| "–".to_owned(), |value| grouped(value, decimals));
            writeln!(text, "| {name} | {} |", values.iter().map(cell).collect::<Vec<_>>().join(" | "))
        };
        let values: Vec<_> = table.rows.iter().map(|row| (&row.group, table.values(row, record))).collect();
        let grouped_rows = values.chunk_by(|(a, _), (b, _)| a == b && !a.is_empty());
        for (rows, of) in grouped_rows.scan(0, |at, rows| {
            *at += rows.len();
            Some((rows, &table.rows[*at - rows.len()]))
        }) {
            match rows {
                [(group, values)] if group.is_empty() => row(&of.name, values, table.decimals)?,
                rows => row(&format!("{}: mean / first column", of.group), &table.mean(rows), 2)?,
            }
        }
        if table.means {
            row("all: mean / first column", &table.mean(&values), 2)?;
        }
        text.push('\n');
    }
    Ok(())
}

impl PublishedTable {
    /// Returns the published values of a row, then the measured ones.
    fn values(&self, row: &Row, record: &Record) -> Vec<Option<f64>> {
        let published = (0..self.published.len()).map(|at| row.values.get(at).copied());
        published.chain(self.cells.iter().map(|cell| cell.value(record, &row.key, &row.metric))).collect()
    }

    /// Returns for each column the geometric mean of its values divided by those of its side's first
    /// column, over the rows that have both.
    fn mean(&self, rows: &[(&String, Vec<Option<f64>>)]) -> Vec<Option<f64>> {
        let of = |column: usize| {
            let first = if column < self.published.len() { 0 } else { self.published.len() };
            let ratios: Vec<f64> = rows.iter().filter_map(|(_, row)| Some(row[column]? / row[first]?)).collect();
            (!ratios.is_empty()).then(|| geometric_mean(&ratios))
        };
        (0..self.published.len() + self.measured.len()).map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_a_value_for_each_column() {
        let tables = tables().unwrap();
        assert_eq!(tables.len(), 10);
        for table in &tables {
            assert_eq!(table.cells.len(), table.measured.len(), "{}", table.title);
            for row in &table.rows {
                assert!([0, table.published.len()].contains(&row.values.len()), "{}: {}", table.title, row.name);
            }
        }
    }

    #[test]
    fn the_tables_of_the_sources_are_complete() {
        let mut text = String::new();
        write(&mut text, &Record::default()).unwrap();
        for row in [
            "| LZ4 (r101; here liblz4) | 2.08 | 422.00 | 1,820.00 | – | – | – |",
            "| Mixed workload | 4,172,747 | 5,680,814 | 5,927,825 | 5,489,578 | 5,972,253 | – | – | – | – | – | – |",
            "| text (75 %) | 99.95 | 78.11 | – | – | – | – |",
            "| LZ4_DYN (here lz4dyn) | 19.67 | 21.22 | – | – |",
            "| squashfs 128k | 292 | – | – |",
        ] {
            assert!(text.contains(row), "{row}: {text}");
        }
        assert_eq!(text.matches("10 jobs: mean / first column").count(), 2, "{text}");
        let table = &tables().unwrap()[4];
        let group = String::new();
        let rows: Vec<_> = [[1.0, 2.0], [2.0, 16.0]]
            .map(|row| {
                let mut values: Vec<_> = row.into_iter().map(Some).collect();
                values.resize(table.published.len() + table.measured.len(), None);
                (&group, values)
            })
            .into();
        assert_eq!(table.mean(&rows)[..3], [Some(1.0), Some(4.0), None]);
    }
}

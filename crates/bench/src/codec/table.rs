//! The committed table of compressed bytes by kind. It has no speeds, so it is the same on every
//! machine with the same pages.

use std::{collections::BTreeMap, fmt::Write, path::Path, thread};

use anyhow::{Context, bail};
use libdeflater::Crc;
use pagefold_codec::PAGE_SIZE;

use super::{
    corpus::{Corpus, MEASURED_PAGES},
    subject::Subject,
};
use crate::{
    figures::geometric_mean,
    kinds::{DataKind, Set, gathered},
    machine,
};

/// The subjects compared. Those with dictionaries or trained tables train for each kind.
const SUBJECTS: &[&str] = &[
    "lz4",
    "lz4-dict",
    "lz4dyn",
    "fold",
    "fold-dict",
    "pleat",
    "pleat-trained",
    "zstd-1",
    "deflate-1",
    "liblz4",
    "libzstd-1",
    "libzstd-1-dict",
    "libzstd-1-dict-16k",
    "libzstd-1-dict-110k",
    "zxc-3",
];

/// Subjects and the peers that they are compared with.
const QUOTIENTS: &[(&str, &str)] = &[
    ("lz4dyn", "liblz4"),
    ("fold", "liblz4"),
    ("fold-dict", "liblz4"),
    ("lz4-dict", "liblz4"),
    ("pleat", "libzstd-1"),
    ("pleat-trained", "libzstd-1"),
    ("pleat-trained", "libzstd-1-dict"),
    ("pleat-trained", "libzstd-1-dict-16k"),
    ("libzstd-1-dict", "libzstd-1"),
];

/// One kind's row.
struct Row {
    set: Set,
    name: String,
    pages: usize,
    /// Of the kind's whole file.
    crc32: u32,
    /// By subject.
    bytes: BTreeMap<&'static str, usize>,
}

impl Row {
    fn of(kind: &DataKind, dir: &Path) -> anyhow::Result<Self> {
        let content = kind.pages(dir)?;
        let mut crc = Crc::new();
        crc.update(&content);
        let corpus = Corpus::split(&kind.name, &content, MEASURED_PAGES);
        let mut out = [0; 2 * PAGE_SIZE];
        let mut bytes = BTreeMap::new();
        for &name in SUBJECTS {
            let mut subject = Subject::by_name(name, &corpus.sample)?.with_context(|| format!("there is no {name}"))?;
            let sum = corpus.pages.iter().map(|page| subject.compress(page, &mut out).unwrap_or(PAGE_SIZE)).sum();
            bytes.insert(name, sum);
        }
        Ok(Self { set: kind.set, name: kind.name.clone(), pages: corpus.pages.len(), crc32: crc.sum(), bytes })
    }

    fn quotient(&self, (subject, peer): (&str, &str)) -> f64 {
        self.bytes[subject] as f64 / self.bytes[peer] as f64
    }

    fn identity(&self) -> String {
        format!("{:8} {:24} {:5} {:08x}", self.set.word(), self.name, self.pages, self.crc32)
    }
}

/// Returns the table of the kinds in `dir`.
pub(super) fn of_kinds(dir: &Path) -> anyhow::Result<String> {
    let mut kinds = gathered(dir)?;
    kinds.sort_by_key(|kind| kind.set);
    let mut rows = Vec::new();
    for together in kinds.chunks(machine::cpus()) {
        rows.extend(thread::scope(|scope| {
            let threads: Vec<_> = together.iter().map(|kind| scope.spawn(|| Row::of(kind, dir))).collect();
            let joined = threads.into_iter().map(|thread| match thread.join() {
                Ok(row) => row,
                Err(_) => bail!("a thread panicked"),
            });
            joined.collect::<anyhow::Result<Vec<Row>>>()
        })?);
    }
    Ok(rendered(&rows)?)
}

fn rendered(rows: &[Row]) -> Result<String, std::fmt::Error> {
    let mut text = String::from(
        "Compressed bytes of the pages measured of each kind, by pagefold-bench sizes --kinds DIR. crc32: of DIR/KIND.pages.\n\n",
    );
    write!(text, "{:8} {:24} {:>5} {:8}", "set", "kind", "pages", "crc32")?;
    SUBJECTS.iter().try_for_each(|subject| write!(text, " {subject:>0$}", subject.len().max(8)))?;
    for row in rows {
        write!(text, "\n{}", row.identity())?;
        SUBJECTS.iter().try_for_each(|&subject| write!(text, " {:1$}", row.bytes[subject], subject.len().max(8)))?;
    }
    for set in Set::ALL {
        let of_set: Vec<&Row> = rows.iter().filter(|row| row.set == set).collect();
        write!(text, "\n\n{:32}", format!("{}: bytes / bytes of", set.word()))?;
        QUOTIENTS.iter().try_for_each(|(_, peer)| write!(text, " {peer:>18}"))?;
        write!(text, "\n{:32}", "")?;
        QUOTIENTS.iter().try_for_each(|(subject, _)| write!(text, " {subject:>18}"))?;
        for row in &of_set {
            write!(text, "\n{:32}", row.name)?;
            QUOTIENTS.iter().try_for_each(|&of| write!(text, " {:18.3}", row.quotient(of)))?;
        }
        write!(text, "\n{:32}", "geometric mean")?;
        for &of in QUOTIENTS {
            let quotients: Vec<f64> = of_set.iter().map(|row| row.quotient(of)).collect();
            write!(text, " {:18.3}", geometric_mean(&quotients))?;
        }
        write!(text, "\n{:32}", "worst")?;
        for &of in QUOTIENTS {
            let worst = of_set.iter().max_by(|a, b| a.quotient(of).total_cmp(&b.quotient(of)));
            write!(text, " {:>18.18}", worst.map_or("-", |row| &row.name))?;
        }
    }
    text.push('\n');
    Ok(text)
}

/// Whether two tables disagree about the same pages. Prints a line for each kind whose pages
/// differ.
pub(super) fn differs(committed: &str, found: &str) -> bool {
    // The key is set, kind, pages and checksum. The column names form a row too, so a table of
    // other subjects differs.
    let rows = |text: &str| -> BTreeMap<String, String> {
        let lines = text.lines().skip(2).take_while(|line| !line.is_empty());
        lines
            .filter_map(|line| line.split_at_checked(48))
            .map(|(key, bytes)| (key.to_owned(), bytes.to_owned()))
            .collect()
    };
    let (committed, found) = (rows(committed), rows(found));
    let mut differs = false;
    for (key, bytes) in &found {
        match committed.get(key) {
            Some(before) => differs |= before != bytes,
            None => eprintln!("not in the table: {key}"),
        }
    }
    differs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(crc32: u32, fold_bytes: usize) -> Row {
        let mut bytes: BTreeMap<&str, usize> = SUBJECTS.iter().map(|&subject| (subject, 1000)).collect();
        bytes.insert("fold", fold_bytes);
        Row { set: Set::Measured, name: "heap-java".to_owned(), pages: 3, crc32, bytes }
    }

    #[test]
    fn bytes_of_the_same_pages_are_compared_and_of_others_not() {
        let table = |row: Row| rendered(&[row]).unwrap();
        assert!(!differs(&table(row(1, 900)), &table(row(1, 900))));
        assert!(differs(&table(row(1, 900)), &table(row(1, 901))));
        assert!(!differs(&table(row(1, 900)), &table(row(2, 901))));
    }
}

//! Tables of the bytes that codecs make of each gathered kind of data. They have no speeds, so they
//! are the same on every machine with the same pages.

use std::{collections::BTreeMap, fmt::Write};

use crate::line::geometric_mean;

/// The subjects of the table. Those with dictionaries or trained tables train for each kind.
pub const SUBJECTS: [&str; 15] = [
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
const QUOTIENTS: [(&str, &str); 9] = [
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

/// Characters of a row that say which pages it is about.
const IDENTITY: usize = 48;

/// One kind's row.
pub struct Sizes {
    /// The name of the set that it is in.
    pub set: &'static str,
    /// Its name.
    pub kind: String,
    /// Pages that were compressed.
    pub pages: usize,
    /// The checksum of the kind's whole file.
    pub crc32: u32,
    /// The bytes of each subject, in the order of [`SUBJECTS`].
    pub bytes: Vec<usize>,
}

impl Sizes {
    fn quotient(&self, (subject, peer): (&str, &str)) -> f64 {
        let of =
            |name| SUBJECTS.iter().zip(&self.bytes).find(|(one, _)| **one == name).map_or(f64::NAN, |(_, &b)| b as f64);
        of(subject) / of(peer)
    }

    /// Returns the table of rows, which are in the order of their sets.
    pub fn table(rows: &[Self]) -> String {
        // Writing to a string cannot fail.
        Self::write(rows).unwrap_or_default()
    }

    fn write(rows: &[Self]) -> Result<String, std::fmt::Error> {
        let mut text = String::from(
            "Compressed bytes of the pages measured of each kind, by pagefold-bench sizes --kinds DIR. crc32: of DIR/KIND.pages.\n\n",
        );
        let width = |subject: &str| subject.len().max(8);
        write!(text, "{:8} {:24} {:>5} {:8}", "set", "kind", "pages", "crc32")?;
        SUBJECTS.iter().try_for_each(|subject| write!(text, " {subject:>0$}", width(subject)))?;
        for Self { set, kind, pages, crc32, bytes } in rows {
            write!(text, "\n{set:8} {kind:24} {pages:5} {crc32:08x}")?;
            SUBJECTS.iter().zip(bytes).try_for_each(|(subject, bytes)| write!(text, " {bytes:0$}", width(subject)))?;
        }
        for of_set in rows.chunk_by(|a, b| a.set == b.set) {
            write!(text, "\n\n{:32}", format!("{}: bytes / bytes of", of_set[0].set))?;
            QUOTIENTS.iter().try_for_each(|(_, peer)| write!(text, " {peer:>18}"))?;
            write!(text, "\n{:32}", "")?;
            QUOTIENTS.iter().try_for_each(|(subject, _)| write!(text, " {subject:>18}"))?;
            for row in of_set {
                write!(text, "\n{:32}", row.kind)?;
                QUOTIENTS.iter().try_for_each(|&of| write!(text, " {:18.3}", row.quotient(of)))?;
            }
            write!(text, "\n{:32}", "geometric mean")?;
            for &of in &QUOTIENTS {
                let quotients: Vec<f64> = of_set.iter().map(|row| row.quotient(of)).collect();
                write!(text, " {:18.3}", geometric_mean(&quotients))?;
            }
            write!(text, "\n{:32}", "worst")?;
            for &of in &QUOTIENTS {
                let worst = of_set.iter().max_by(|a, b| a.quotient(of).total_cmp(&b.quotient(of)));
                write!(text, " {:>18.18}", worst.map_or("-", |row| row.kind.as_str()))?;
            }
        }
        text.push('\n');
        Ok(text)
    }

    /// Returns whether two tables disagree about the same pages, or have other subjects. Prints a line for
    /// each kind whose pages differ.
    pub fn differ(committed: &str, found: &str) -> bool {
        // The names of the columns are a row too.
        let rows = |text| -> BTreeMap<_, _> {
            let lines = str::lines(text).skip(2).take_while(|line| !line.is_empty());
            lines.filter_map(|line| line.split_at_checked(IDENTITY)).collect()
        };
        let committed = rows(committed);
        let mut differ = false;
        for (identity, bytes) in rows(found) {
            match committed.get(identity) {
                Some(before) => differ |= *before != bytes,
                None => eprintln!("not in the table, and not compared: {identity}"),
            }
        }
        differ
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_the_same_pages_are_compared_and_of_others_not() {
        let table = |crc32, first| {
            let bytes = [first].into_iter().chain([1000; SUBJECTS.len() - 1]).collect();
            Sizes::table(&[Sizes { set: "measured", kind: "heap-java".into(), pages: 3, crc32, bytes }])
        };
        assert!(!Sizes::differ(&table(1, 900), &table(1, 900)));
        assert!(Sizes::differ(&table(1, 900), &table(1, 901)));
        assert!(!Sizes::differ(&table(1, 900), &table(2, 901)));
        assert!(Sizes::differ(&table(1, 900).replace("lz4dyn", "lz4old"), &table(1, 900)));
    }

    #[test]
    fn the_committed_table_has_these_subjects_and_quotients() {
        let committed = include_str!("../../../bench/results/codec-kinds.txt");
        let lines = committed.lines().skip(3).take_while(|line| !line.is_empty());
        let row = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let set = ["tuned", "measured"].into_iter().find(|set| *set == words[0]).unwrap();
            let crc32 = u32::from_str_radix(words[3], 16).unwrap();
            let bytes = words[4..].iter().map(|word| word.parse().unwrap()).collect();
            Sizes { set, kind: words[1].to_owned(), pages: words[2].parse().unwrap(), crc32, bytes }
        };
        assert_eq!(Sizes::table(&lines.map(row).collect::<Vec<_>>()), committed);
    }
}

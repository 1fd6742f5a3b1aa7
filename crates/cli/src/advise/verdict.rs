//! Recommendations: the options that pay off, and commands that use them.

use std::{fmt::Write, path::Path};

use super::{
    Report,
    input::{Files, InputKind},
};
use crate::size;

/// Minimum fraction of the bytes that another codec must save,
const GAIN: f64 = 0.1;

/// provided that 99 of 100 reads are faster than this. It is 100 times the duration of a 4 KiB read
/// over NBD, which users would notice.
const MOST_READ_NS: u64 = 1_000_000;

/// Minimum fraction of duplicate pages for deduplication to be worth it.
const DUPLICATES: f64 = 0.05;

/// Files with a smaller mean size waste much of their last cluster of 64 KiB.
const SMALL_FILE_BYTES: u64 = 64 << 10;

/// The recommendations.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    /// Sentences.
    pub(super) reasons: Vec<String>,
    /// Commands to run in this order.
    pub(super) commands: Vec<String>,
}

/// Evaluates the results. `path` is the user's argument.
pub(super) fn of(report: &Report, path: Option<&Path>) -> Verdict {
    let mut verdict = Verdict::default();
    let serve_codec = verdict.page_codec(report);
    let pack_options = path.map(|_| verdict.image_options(report)).unwrap_or_default();
    verdict.packing_together(report);
    let dedupe = verdict.dedupe(report);
    let Some(path) = path else {
        let Files::Parts(..) = report.input.files else { return verdict };
        let len = size_option(report.input.bytes());
        verdict.commands.push(format!("pagefold serve{serve_codec} --export name=swap,size={len}"));
        return verdict;
    };
    let Some(text) = path.to_str() else {
        verdict.reasons.push("The path is not UTF-8 text, so there is no command to show.".to_owned());
        return verdict;
    };
    let name = path.canonicalize().ok().and_then(|path| Some(path.file_stem()?.to_string_lossy().into_owned()));
    let name = name.unwrap_or_else(|| "input".to_owned());
    // An output never replaces its source.
    let suffix = if path.extension().is_some_and(|extension| extension == "erofs") { "-packed" } else { "" };
    let image = quoted(&format!("{name}{suffix}.erofs"));
    let source = quoted(text);
    let is_partial =
        report.input.kind == InputKind::Directory && report.input.skipped.unreadable + report.pages.lost_units > 0;
    let skip = if is_partial { " --skip-unreadable" } else { "" };
    verdict.commands.push(format!("pagefold pack{pack_options}{skip} {source} -o {image}"));
    if report.input.kind == InputKind::Directory {
        // The parts that were left out would count as differences.
        if is_partial {
            return verdict;
        }
        verdict.commands.push(format!("pagefold check --against {source} {image}"));
    } else {
        verdict.commands.push(format!("pagefold serve{serve_codec}{dedupe} {image}"));
    }
    verdict
}

impl Verdict {
    /// Returns the `serve` option for the page codec that pays off.
    fn page_codec(&mut self, report: &Report) -> String {
        let [first, ..] = &report.codecs[..] else { return String::new() };
        let best = report.codecs.iter().filter(|codec| codec.decompression.p99_ns < MOST_READ_NS);
        let best = best.min_by(|a, b| a.bytes.value.total_cmp(&b.bytes.value)).unwrap_or(first);
        let gain = 1.0 - best.bytes.value / first.bytes.value.max(1.0);
        if gain >= GAIN {
            self.reasons.push(format!(
                "In RAM, {} takes {:.0} % less than {}, at {:.0} % of its speed.",
                best.name,
                gain * 100.0,
                first.name,
                best.compression.bytes_per_second / first.compression.bytes_per_second * 100.0
            ));
            return format!(" --codec {}", best.name);
        }
        let raw = report.pages.incompressible.value / report.pages.total.max(1) as f64;
        if raw > 0.9 {
            self.reasons.push("Compression in RAM gains little: most pages do not compress.".to_owned());
        }
        String::new()
    }

    /// Returns the `pack` options that pay off.
    fn image_options(&mut self, report: &Report) -> String {
        let [first, ..] = &report.images[..] else { return String::new() };
        let good = report.images.iter().filter(|image| image.read_p99_ns < MOST_READ_NS);
        let Some(smallest) = good.clone().map(|image| image.bytes.value).min_by(f64::total_cmp) else {
            return String::new();
        };
        // Among those that are nearly as small, choose the fastest to build.
        let near = good.filter(|image| image.bytes.value <= smallest * (1.0 + GAIN / 2.0));
        let best = near.min_by_key(|image| image.build).unwrap_or(first);
        let gain = 1.0 - best.bytes.value / first.bytes.value.max(1.0);
        if gain < GAIN {
            self.reasons
                .push("No other codec or cluster size makes the image 10 % smaller than the default.".to_owned());
            return String::new();
        }
        self.reasons.push(format!(
            "As an image, {} in clusters of {} takes {:.0} % less than {} in {}.",
            best.codec,
            best.cluster,
            gain * 100.0,
            first.codec,
            first.cluster
        ));
        let read = super::table::time(best.read_p99_ns);
        self.reasons.push(format!("Of its random reads of 4 KiB, 99 of 100 take {read} or less."));
        let mut options = String::new();
        // Writing to a string cannot fail.
        let _ = write!(options, " --codec {} --cluster {}", best.codec, best.cluster);
        options
    }

    /// Recommends the `pack` options that store content of many files together. A sample does not
    /// show their gain.
    fn packing_together(&mut self, report: &Report) {
        if report.input.kind != InputKind::Directory {
            return;
        }
        let is_small = report.input.bytes() < report.input.names.files * SMALL_FILE_BYTES;
        let is_repeated = report.pages.duplicate.low >= DUPLICATES * report.pages.total as f64;
        let what = match (is_small, is_repeated) {
            (true, true) => "Files are small and repeat content",
            (true, false) => "Files are small",
            (false, true) => "Files repeat content",
            (false, false) => return,
        };
        self.reasons.push(format!(
            "{what}: 'pack --codec zstd,3 --cluster 64K --fragments all --dedupe' takes less than forecast here."
        ));
    }

    /// Returns the `serve` option that stores equal pages once, if that pays off.
    fn dedupe(&mut self, report: &Report) -> &'static str {
        if report.pages.duplicate.low < DUPLICATES * report.pages.total as f64 {
            return "";
        }
        self.reasons.push("Many pages are equal: serve --dedupe stores equal pages that forks write once.".to_owned());
        " --dedupe"
    }
}

/// Returns the size of a disk with room for these bytes, as an option's value.
fn size_option(bytes: u64) -> String {
    let mib = bytes.div_ceil(1 << 20);
    debug_assert!(size::parse(&format!("{mib}M")).is_ok());
    format!("{mib}M")
}

/// Quotes a word for a shell.
fn quoted(text: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-+@%:,".contains(letter);
    if !text.is_empty() && !text.starts_with('-') && text.chars().all(plain) {
        return text.to_owned();
    }
    let text = if text.starts_with('-') { format!("./{text}") } else { text.to_owned() };
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_a_shell_needs_it() {
        for (text, expected) in [
            ("a/b.img", "a/b.img"),
            ("a b", "'a b'"),
            ("it's", r"'it'\''s'"),
            ("-rf", "'./-rf'"),
            ("", "''"),
            ("$HOME;ls", "'$HOME;ls'"),
        ] {
            assert_eq!(quoted(text), expected);
        }
    }

    #[test]
    fn disks_have_whole_sectors() {
        assert_eq!(size_option(1), "1M");
        assert_eq!(size_option(5 << 20), "5M");
    }
}

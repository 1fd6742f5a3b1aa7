//! Recommendations: the options that pay off, and commands that use them.

use std::{fmt, fs, path::Path, time::Duration};

use pagefold_control::is_unseen;

use super::{
    codecs,
    estimate::Estimate,
    images,
    input::{Files, InputKind},
    report::Report,
    times::time,
};
use crate::size;

/// Minimum fraction of the bytes that another codec must save to be recommended.
const GAIN: f64 = 0.1;

/// A codec is recommended only if 99 of 100 reads are faster than this. A read of 4 KiB over NBD
/// takes a hundredth of it; users would notice longer reads.
const MOST_READ_NS: u64 = 1_000_000;

/// Minimum fraction of duplicate pages for deduplication to be worth it.
const DUPLICATES: f64 = 0.05;

/// Files with a smaller mean size waste much of their last cluster of 64 KiB.
const SMALL_FILE_BYTES: u64 = 64 << 10;

/// The fraction of bytes that is saved: the likely one, and its bounds.
#[derive(Clone, Copy, Debug)]
struct Gain {
    value: f64,
    low: f64,
    high: f64,
}

/// Whether a gain is large enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pays {
    Yes,
    No,
    Unknown,
}

impl Gain {
    /// Returns the fraction of `other` that `own` saves. The bounds assume that both errors are
    /// independent, at their worst.
    fn of(own: Estimate, other: Estimate) -> Self {
        let saved = |own: f64, other: f64| 1.0 - own / other.max(1.0);
        Self {
            value: saved(own.value, other.value),
            low: saved(own.high(), other.low()),
            high: saved(own.low(), other.high()),
        }
    }

    fn verdict(self) -> Pays {
        if self.value >= GAIN && self.low >= GAIN / 2.0 {
            Pays::Yes
        } else if self.value < GAIN && self.high < 2.0 * GAIN {
            Pays::No
        } else {
            Pays::Unknown
        }
    }
}

impl fmt::Display for Gain {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [low, high] = [self.low, self.high].map(|part| (part * 100.0).round());
        if low < high { write!(out, "{low} to {high} %") } else { write!(out, "{low} %") }
    }
}

/// The recommendations.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    /// Sentences.
    pub(super) reasons: Vec<String>,
    /// Commands to run in this order.
    pub(super) commands: Vec<String>,
}

/// Evaluates the results. `path` and `one_file_system` are the user's arguments.
pub(super) fn of(report: &Report, path: Option<&Path>, one_file_system: bool) -> Verdict {
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
    // Another image may have the name, or the source.
    let others = (2..).map(|number| format!("{name}-{number}.erofs"));
    let mut names = [format!("{name}.erofs"), format!("{name}-packed.erofs")].into_iter().chain(others);
    let image = quoted(&names.find(|name| fs::symlink_metadata(name).is_err()).unwrap_or_default());
    // Its content is raw, whatever its name says.
    let is_named_image =
        path.extension().is_some_and(|extension| extension == "erofs" || extension == "qcow2") && path.is_file();
    let format = if is_named_image { " --format raw" } else { "" };
    let source = quoted(text);
    let is_partial =
        report.input.kind == InputKind::Directory && report.input.skipped.unreadable + report.pages.lost_units > 0;
    let skip = if is_partial { " --skip-unreadable" } else { "" };
    let is_one_file_system = one_file_system && report.input.kind == InputKind::Directory;
    let within = if is_one_file_system { " --one-file-system" } else { "" };
    verdict.commands.push(format!("pagefold pack{pack_options}{format}{skip}{within} {source} -o {image}"));
    if report.input.kind == InputKind::Directory {
        // The parts that were left out would count as differences.
        if is_partial || is_one_file_system {
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
        let is_fast = |codec: &&codecs::Figures| codec.decompression.is_some_and(|times| times.p99_ns < MOST_READ_NS);
        let gain = |codec: &codecs::Figures| Gain::of(codec.of_first, Estimate::exact(1.0));
        let good = report.codecs.iter().filter(is_fast).filter(|codec| gain(codec).verdict() == Pays::Yes);
        let best = good.min_by(|a, b| a.of_first.value.total_cmp(&b.of_first.value));
        if let Some(best) = best {
            let speed = match (best.compression, first.compression) {
                (Some(own), Some(other)) => {
                    let speed = own.bytes_per_second / other.bytes_per_second * 100.0;
                    format!(", at {speed:.0} % of its speed")
                }
                _ => String::new(),
            };
            self.reasons.push(format!("In RAM, {} takes {} less than {}{speed}.", best.name, gain(best), first.name));
            return format!(" --codec {}", best.name);
        }
        if report.codecs.iter().any(|codec| gain(codec).verdict() == Pays::Unknown) {
            self.reasons.push("Too little was sampled to say whether another codec pays off in RAM.".to_owned());
        }
        if report.pages.incompressible.low() > 0.9 * report.pages.total.max(1) as f64 {
            self.reasons.push("Compression in RAM gains little: most pages do not compress.".to_owned());
        }
        String::new()
    }

    /// Returns the `pack` options that pay off.
    fn image_options(&mut self, report: &Report) -> String {
        let [first, ..] = &report.images[..] else { return String::new() };
        let is_fast = |image: &&images::Figures| image.reads.is_some_and(|reads| reads.p99_ns < MOST_READ_NS);
        let gain = |image: &images::Figures| Gain::of(image.bytes, first.bytes);
        let good = report.images.iter().filter(is_fast).filter(|image| gain(image).verdict() == Pays::Yes);
        let smallest = good.clone().map(|image| image.bytes.value).min_by(f64::total_cmp).unwrap_or(f64::MAX);
        // Among those that are nearly as small, choose the fastest to build.
        let near = good.filter(|image| image.bytes.value <= smallest * (1.0 + GAIN / 2.0));
        let Some(best) = near.min_by_key(|image| image.build.unwrap_or(Duration::MAX)) else {
            let is_unknown = report.images.iter().any(|image| gain(image).verdict() == Pays::Unknown);
            self.reasons.push(if is_unknown {
                "Too little was sampled to say which codec and cluster size pay off.".to_owned()
            } else {
                "No other codec or cluster size makes the image 10 % smaller than the default.".to_owned()
            });
            return String::new();
        };
        let gain = gain(best);
        self.reasons.push(format!(
            "As an image, {} in clusters of {} takes {gain} less than {} in {}.",
            best.codec, best.cluster, first.codec, first.cluster
        ));
        if let Some(reads) = best.reads {
            let read = time(reads.p99_ns);
            self.reasons.push(format!("Of its random reads of 4 KiB, 99 of 100 take {read} or less."));
        }
        format!(" --codec {} --cluster {}", best.codec, best.cluster)
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

/// Quotes a word for a shell. Control characters are written with escapes, which `bash`, `zsh` and POSIX.1-2024
/// know.
fn quoted(text: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-+@%:,".contains(letter);
    if !text.is_empty() && !text.starts_with('-') && text.chars().all(plain) {
        return text.to_owned();
    }
    let text = if text.starts_with('-') { format!("./{text}") } else { text.to_owned() };
    if text.chars().any(is_unseen) {
        let escaped = |byte: u8| match byte {
            b'\'' | b'\\' => format!("\\{}", char::from(byte)),
            b' '..=b'~' => char::from(byte).to_string(),
            other => format!("\\{other:03o}"),
        };
        return format!("$'{}'", text.bytes().map(escaped).collect::<String>());
    }
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
            ("a\n'b\\ä", r"$'a\012\'b\\\303\244'"),
        ] {
            assert_eq!(quoted(text), expected);
        }
    }

    #[test]
    fn gains_follow_from_intervals() {
        let measured = |value: f64, error: f64| Estimate::exact(value).within(error / value, 0.0);
        for (own, other, expected) in [
            (measured(50.0, 5.0), measured(100.0, 5.0), Pays::Yes),
            (measured(80.0, 1.0), measured(100.0, 1.0), Pays::Yes),
            (measured(80.0, 10.0), measured(100.0, 10.0), Pays::Unknown),
            (measured(2.0, 15.0), measured(100.0, 700.0), Pays::Unknown),
            (measured(98.0, 1.0), measured(100.0, 1.0), Pays::No),
            (measured(100.0, 0.1), measured(100.0, 0.1), Pays::No),
            (measured(100.0, 50.0), measured(100.0, 50.0), Pays::Unknown),
        ] {
            assert_eq!(Gain::of(own, other).verdict(), expected, "{own:?} {other:?}");
        }
        let gain = Gain::of(measured(50.0, 5.0), measured(100.0, 5.0));
        assert_eq!(gain.to_string(), "42 to 57 %");
        assert_eq!(Gain::of(Estimate::exact(50.0), Estimate::exact(100.0)).to_string(), "50 %");
    }

    #[test]
    fn disks_have_whole_sectors() {
        assert_eq!(size_option(1), "1M");
        assert_eq!(size_option(5 << 20), "5M");
    }
}

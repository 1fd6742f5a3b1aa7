//! A codec or peer being measured.

use anyhow::bail;
use pagefold_codec::{NAMES, PAGE_SIZE, Page, Stream, trained};

use super::peer;

/// Levels measured by default, for codecs that have levels.
const LEVELS: &[(&str, &[&str])] = &[("lz4hc", &["9"]), ("zstd", &["1", "3"]), ("deflate", &["1"])];

pub(super) struct Subject {
    pub(super) name: String,
    stream: Box<dyn Stream>,
    /// The length of the output buffer that it gets.
    room: usize,
}

/// Returns the names of all subjects: our codecs, with their default levels where they have levels,
/// without those that need a sample; then the peers.
pub(super) fn all_names() -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for &name in NAMES {
        match LEVELS.iter().find(|(family, _)| *family == name) {
            Some((_, levels)) => names.extend(levels.iter().map(|level| format!("{name}-{level}"))),
            None if name.ends_with("-LEVEL") || name.ends_with("-dict") => {}
            None => names.push(name.to_owned()),
        }
    }
    names.extend(peer::NAMES.iter().map(|&name| name.to_owned()));
    names
}

impl Subject {
    /// Returns the codec or peer called `name`, its tables trained on `sample` if it has any. If
    /// this machine does not have the peer, prints a line and returns `None`.
    pub(super) fn by_name(name: &str, sample: &[&Page]) -> anyhow::Result<Option<Self>> {
        if peer::NAMES.contains(&name) {
            let stream = match peer::by_name(name, sample)? {
                Some(stream) => stream,
                None => {
                    eprintln!("SKIPPED: {name}: this machine does not have it");
                    return Ok(None);
                }
            };
            return Ok(Some(Self { name: name.to_owned(), stream, room: 2 * PAGE_SIZE }));
        }
        let codec = match trained(name, sample) {
            Ok(codec) => codec,
            Err(error) => bail!("{error}; peers are {}", peer::NAMES.join(", ")),
        };
        let stream = codec.stream()?;
        Ok(Some(Self { name: name.to_owned(), stream, room: PAGE_SIZE }))
    }

    /// Compresses `page`. Returns `None` if it does not shrink. `out` has two pages.
    pub(super) fn compress(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        self.stream.compress(page, &mut out[..self.room]).filter(|&len| len < PAGE_SIZE)
    }

    /// Decompresses an object, or copies a page that was stored raw.
    pub(super) fn decompress(&mut self, object: &[u8], page: &mut Page) -> anyhow::Result<()> {
        if let Ok(raw) = <&Page>::try_from(object) {
            *page = *raw;
        } else {
            self.stream.decompress(object, page)?;
        }
        Ok(())
    }
}

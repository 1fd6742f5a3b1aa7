//! One codec or peer under measurement.

use anyhow::bail;
use pagefold_codec::{NAMES, PAGE_SIZE, Page, Stream, trained};

use super::peer;

/// The levels measured of codecs that have levels, where none is named.
const LEVELS: &[(&str, &[&str])] = &[("lz4hc", &["9"]), ("zstd", &["1", "3"]), ("deflate", &["1"])];

/// A codec of ours, or a peer behind the same interface.
pub(super) struct Subject {
    pub(super) name: String,
    stream: Box<dyn Stream>,
    /// Bytes of output room that it is called with.
    room: usize,
}

/// All subjects: our codecs, then the peers.
pub(super) fn all_names() -> Vec<String> {
    own_names().into_iter().chain(peer::NAMES.iter().map(|&name| name.to_owned())).collect()
}

/// Our codecs by their names, those with levels at the usual ones, without those that need a
/// sample.
pub(super) fn own_names() -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for &name in NAMES {
        match LEVELS.iter().find(|(family, _)| *family == name) {
            Some((_, levels)) => names.extend(levels.iter().map(|level| format!("{name}-{level}"))),
            None if name.ends_with("-LEVEL") || name.ends_with("-dict") => {}
            None => names.push(name.to_owned()),
        }
    }
    names
}

impl Subject {
    /// The codec or peer called `name`, its tables trained on `sample` if it has any. `None`, after
    /// a line that says so: a peer that this machine does not have.
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

    /// Compresses `page`; `None` if that makes it no smaller. `out` holds two pages.
    pub(super) fn compress(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        self.stream.compress(page, &mut out[..self.room]).filter(|&len| len < PAGE_SIZE)
    }

    /// Decodes an object, or copies a page that was kept as it is.
    pub(super) fn decompress(&mut self, object: &[u8], page: &mut Page) -> anyhow::Result<()> {
        if let Ok(raw) = <&Page>::try_from(object) {
            *page = *raw;
        } else {
            self.stream.decompress(object, page)?;
        }
        Ok(())
    }
}

//! The runs of data in a file, and so its zeros. Known zeros are not read.

use std::io;
use std::ops::{ControlFlow, Range};

use super::content::Content;
use super::holes::ReadContent;
use super::stretch::{Held, Stretch};
use crate::error::Result;
use crate::zeros::is_zeros;

/// Aligned zeros of this length may be part of a hole. The length is the same for all block sizes,
/// so that changes of whole pages lead to the same runs as a file with the resulting content.
const GRAIN_BYTES: u64 = 4096;

/// Zeros of fewer blocks belong to the run around them. The end of a run wastes half a block on
/// average, and a codec stores that many zeros in less.
pub const LEAST_ZERO_BLOCKS: u64 = 64;

/// Bytes that are read together.
const PIECE_BYTES: u64 = 4 << 20;

struct Runs {
    found: Vec<Range<u64>>,
    least_bytes: u64,
    data_bytes: u64,
    most_bytes: u64,
}

impl Runs {
    /// Adds data that begins where the last one began or later. Stops if there is too much.
    fn add(&mut self, data: Range<u64>) -> ControlFlow<()> {
        match self.found.last_mut() {
            Some(last) if data.start < last.end.saturating_add(self.least_bytes) => {
                self.data_bytes += data.end.saturating_sub(last.end);
                last.end = last.end.max(data.end);
            }
            _ => {
                self.data_bytes += data.end - data.start;
                self.found.push(data);
            }
        }
        if self.data_bytes > self.most_bytes { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// Returns the runs of data of a content of `size` bytes, or `None` if they have more than
/// `most_bytes`. Reads no more than it takes to decide.
pub(super) fn find(content: &Content, size: u64, block_bytes: u32, most_bytes: u64) -> Result<Option<Vec<Range<u64>>>> {
    let least_bytes = LEAST_ZERO_BLOCKS * u64::from(block_bytes);
    let mut runs = Runs { found: Vec::new(), least_bytes, data_bytes: 0, most_bytes };
    let mut piece = Vec::new();
    let looked = content.stretches(0..size, &mut |stretch| look(content, size, stretch, &mut piece, &mut runs));
    let complete = looked.map_err(content.failed())?.is_continue();
    Ok(complete.then_some(runs.found))
}

/// Adds the data of a stretch.
fn look(
    content: &Content,
    size: u64,
    stretch: Stretch,
    piece: &mut Vec<u8>,
    runs: &mut Runs,
) -> io::Result<ControlFlow<()>> {
    let Stretch { range, held } = stretch;
    if held == Held::Below {
        return Ok(runs.add(range));
    }
    let mut at = range.start;
    while at < range.end {
        let end = range.end.min((at / PIECE_BYTES + 1) * PIECE_BYTES);
        let is_zero = content.read(at, (end - at) as usize, piece)? == ReadContent::Zeros;
        let mut from = at;
        while from < end {
            let to = end.min((from / GRAIN_BYTES + 1) * GRAIN_BYTES);
            let is_data = !is_zero && !is_zeros(&piece[(from - at) as usize..(to - at) as usize]);
            let data = match held {
                Held::Unread => {
                    is_data.then(|| from / GRAIN_BYTES * GRAIN_BYTES..size.min(to.next_multiple_of(GRAIN_BYTES)))
                }
                // Zeros over zeros are not a change.
                _ => (is_data || content.is_zeros_below(from..to)?).then_some(from..to),
            };
            if let Some(data) = data
                && runs.add(data).is_break()
            {
                return Ok(ControlFlow::Break(()));
            }
            from = to;
        }
        at = end;
    }
    Ok(ControlFlow::Continue(()))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::build::Span;

    proptest! {
        #[test]
        fn runs_hold_all_data_and_depend_on_content_alone(
            pieces in proptest::collection::vec((0u64..300_000, 1usize..70_000, any::<bool>()), 0..12),
            tail in 0u64..200_000,
            block_bytes in prop_oneof![Just(512u32), Just(4096)],
        ) {
            let file = tempfile::tempfile().unwrap();
            let (mut at, mut spans) = (0, Vec::new());
            for &(gap, len, zeros) in &pieces {
                at += gap;
                file.write_all_at(&vec![u8::from(!zeros); len], at).unwrap();
                spans.push(Span { at, len: len as u64, source: at });
                at += len as u64;
            }
            let size = at + tail;
            prop_assume!(size > 0);
            file.set_len(size).unwrap();
            let mut bytes = vec![0; size as usize];
            file.read_exact_at(&mut bytes, 0).unwrap();
            let expected = find(&Content::Bytes(bytes.clone().into()), size, block_bytes, size).unwrap().unwrap();
            let least = 64 * u64::from(block_bytes);
            let mut end = 0;
            for (number, run) in expected.iter().enumerate() {
                prop_assert!(run.start < run.end && (number == 0 || run.start - end >= least));
                prop_assert!(is_zeros(&bytes[end as usize..run.start as usize]));
                let last = &bytes[(run.end - 1) as usize / 4096 * 4096..run.end as usize];
                let first = &bytes[run.start as usize..((run.start + 4096) as usize).min(bytes.len())];
                prop_assert!(!is_zeros(first) && !is_zeros(last));
                end = run.end;
            }
            prop_assert!(is_zeros(&bytes[end as usize..]));
            let spans = Content::Spans(Arc::new(file), spans.into());
            prop_assert_eq!(find(&spans, size, block_bytes, size).unwrap().unwrap(), expected.clone());
            let data: u64 = expected.iter().map(|run| run.end - run.start).sum();
            prop_assert_eq!(find(&spans, size, block_bytes, data).unwrap(), Some(expected));
            if data > 0 {
                prop_assert_eq!(find(&spans, size, block_bytes, data - 1).unwrap(), None);
            }
        }
    }

    #[test]
    fn holes_of_any_length_are_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        let file = File::create(&path).unwrap();
        let size = 8 << 40;
        if file.set_len(size).is_err() {
            eprintln!("\nSKIPPED: holes_of_any_length_are_not_read: this file system has no files of 8 TiB");
            return;
        }
        for at in [1 << 40, (1 << 40) + 300_000, 5 << 40] {
            file.write_all_at(&[1; 100], at).unwrap();
        }
        let content = Content::Open(Arc::new(File::open(&path).unwrap()), path.as_path().into());
        let runs = find(&content, size, 4096, size).unwrap().unwrap();
        assert_eq!(runs.len(), 3);
        assert!(runs.iter().all(|run| run.end - run.start == 4096));
        file.set_len(4 << 40).unwrap();
        let error = find(&content, size, 4096, size).unwrap_err();
        assert!(error.to_string().contains("truncated"), "{error}");
    }
}

//! The holes and data of a content, known without reading it.

use std::io;
use std::ops::{ControlFlow, Range};

use super::content::Content;
use super::holes;
use super::sparse;
use super::stretch::{Held, Stretch};

impl Content {
    /// Calls `each` with the stretches of a range in order until it breaks. The ranges between them
    /// are zeros. Takes time linear in their number, not in the length.
    ///
    /// # Errors
    /// Those of `each`, and [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) if the source ends
    /// within the range.
    pub(crate) fn stretches(
        &self,
        range: Range<u64>,
        each: &mut dyn FnMut(Stretch) -> io::Result<ControlFlow<()>>,
    ) -> io::Result<ControlFlow<()>> {
        let mut unread = |range| each(Stretch { range, held: Held::Unread });
        let spans = match self {
            Self::Path(file) => return holes::each_data(&file.open()?, range, &mut unread),
            Self::Open(file, _) => return holes::each_data(file, range, &mut unread),
            Self::Live(file) => return file.each_data(range, &mut unread),
            Self::Overlay(overlay) => return overlay.stretches(range, each),
            Self::Spans(_, spans) => &**spans,
            Self::Member(member) => match member.spans() {
                Some(spans) => spans,
                None => return unread(range),
            },
            Self::Range(..) | Self::Bytes(_) => return unread(range),
        };
        for span in sparse::overlapping(spans, range.clone()) {
            let span = span.at.max(range.start)..span.end().min(range.end);
            if !span.is_empty() && unread(span)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Returns whether the bytes that an overlay's base stores for a range are all zeros.
    pub(crate) fn is_zeros_below(&self, range: Range<u64>) -> io::Result<bool> {
        match self {
            Self::Overlay(overlay) => overlay.is_zeros_below(range),
            _ => Ok(false),
        }
    }
}

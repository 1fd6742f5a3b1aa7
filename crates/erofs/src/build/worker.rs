//! Reads and compresses the segments of files, on each thread.

use super::base::OverlayBase;
use super::content::Content;
use super::copies::{self, Room, Stretch};
use super::devices::Devices;
use super::holes::ReadContent;
use super::kept_chunks::{self, KeptChunks};
use super::options::{BuildOptions, Compression, Fragments};
use super::overlay::Overlay;
use super::parts::FileSegment;
use super::segment::{Compressor, Segment, SegmentOptions};
use super::spare::Spare;
use crate::error::Result;

/// The result of processing a file's segment.
pub(super) enum Work {
    /// In parts.
    Compressed(Vec<Segment>),
    Raw(Vec<u8>),
    /// This many zeros, uncompressed.
    RawZeros(u64),
    Fragment(Vec<u8>),
    /// Uncompressed chunks, some of which stay in the base's image.
    Chunks(KeptChunks),
}

/// A thread's compressors and buffers.
pub(super) struct Worker<'a> {
    ways: &'a [Option<Compression>],
    devices: &'a Devices,
    /// One for each choice, created on first use.
    compressors: Vec<Option<Compressor>>,
    input: Vec<u8>,
}

impl<'a> Worker<'a> {
    pub(super) fn new(ways: &'a [Option<Compression>], devices: &'a Devices) -> Self {
        Self { ways, devices, compressors: ways.iter().map(|_| None).collect(), input: Vec::new() }
    }

    /// Reads a segment and compresses it.
    pub(super) fn work(&mut self, part: &FileSegment, options: &BuildOptions, spare: &Spare) -> Result<Work> {
        let (source, last) = (&part.source, part.ends_file());
        let compression = self.ways.get(source.way).copied().flatten().filter(|_| source.shape.chunking().is_none());
        let Some(compression) = compression else {
            if let Some((overlay, base)) = stays(&source.content, self.devices)
                && let Some(chunking) = source.shape.chunking()
            {
                let chunks =
                    kept_chunks::find((overlay, base, self.devices), part.offset..part.end(), chunking.chunk_bytes());
                return chunks.map(Work::Chunks).map_err(source.content.failed());
            }
            if source.shape.has_holes()
                && let Some((overlay, base)) = stays(&source.content, self.devices)
            {
                let block = u64::from(options.block_bytes);
                let blocks = kept_chunks::find((overlay, base, self.devices), part.offset..part.end(), block);
                return blocks.map(Work::Chunks).map_err(source.content.failed());
            }
            if source.shape.has_holes() {
                if source.read(part.offset, part.len, &mut self.input)? == ReadContent::Zeros {
                    if !last {
                        return Ok(Work::Compressed(vec![Segment { zeros: part.len, ..Segment::default() }]));
                    }
                    self.input.clear();
                    self.input.resize(part.len as usize, 0);
                }
                let segment = Segment::plain(&self.input, options.block_bytes as usize, spare.take(part.len));
                return Ok(Work::Compressed(vec![segment]));
            }
            let mut bytes = spare.take(part.len);
            let found = source.read(part.offset, part.len, &mut bytes)?;
            return Ok(match found {
                ReadContent::Bytes => Work::Raw(bytes),
                ReadContent::Zeros => {
                    spare.give(bytes);
                    Work::RawZeros(part.len)
                }
            });
        };
        if source.packable && options.fragments == Fragments::All && part.offset == 0 && last {
            let mut bytes = Vec::new();
            source.read_bytes(0, part.len, &mut bytes)?;
            return Ok(Work::Fragment(bytes));
        }
        if let Content::Overlay(overlay) = &source.content
            && let Some(base) = &overlay.base
        {
            let stretch = Stretch { range: part.offset..part.end(), ends_file: last };
            let mut input = std::mem::take(&mut self.input);
            let blocks = spare.take(part.len);
            let compressor = self.compressor(source.way, compression)?;
            let room = Room { input: &mut input, blocks };
            let segment = copies::segment(overlay, &**base, stretch, compression, options, compressor, room);
            self.input = input;
            return segment.map(|segment| Work::Compressed(vec![segment])).map_err(source.content.failed());
        }
        if source.read(part.offset, part.len, &mut self.input)? == ReadContent::Zeros {
            if !last {
                return Ok(Work::Compressed(vec![Segment { zeros: part.len, ..Segment::default() }]));
            }
            self.input.clear();
            self.input.resize(part.len as usize, 0);
        }
        let input = std::mem::take(&mut self.input);
        let mut segment_options = SegmentOptions::new(options, compression, source.packable);
        // Linux does not read inline clusters of files with encoded extents.
        segment_options.ztailpacking &= !source.shape.has_holes();
        let room = spare.take(part.len);
        let compressor = self.compressor(source.way, compression)?;
        let parts = compressor.compress_parts(&input, &part.cuts, last, &segment_options, room);
        self.input = input;
        Ok(Work::Compressed(parts))
    }

    /// Returns the compressor of choice `way`.
    pub(super) fn compressor(&mut self, way: usize, compression: Compression) -> Result<&mut Compressor> {
        Ok(match &mut self.compressors[way] {
            Some(compressor) => compressor,
            none => none.insert(Compressor::new(compression.codec)?),
        })
    }
}

/// Returns a disk and its base if the base's image becomes a device of the new image.
pub(super) fn stays<'a>(content: &'a Content, devices: &Devices) -> Option<(&'a Overlay, &'a dyn OverlayBase)> {
    match content {
        Content::Overlay(overlay) if !devices.is_empty() => Some((&**overlay, overlay.base.as_deref()?)),
        _ => None,
    }
}

//! Stores files' data: turns segments into blocks, tails and indexes.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;

use pagefold_codec::cluster::ClusterCodec;

use super::base::OverlayBase;
use super::blocks::Blocks;
use super::choices::algorithm;
use super::chunks::Chunking;
use super::content::Content;
use super::devices::Devices;
use super::extents::{BuiltExtent, BuiltPlace, ExtentLog};
use super::holes::ReadContent;
use super::indexes::{IndexForm, IndexStyle, Indexes};
use super::kept_chunks::KeptChunks;
use super::options::{self, BuildOptions, Compression, Fragments};
use super::parts::{FileSegment, Job, Source, jobs, parts};
use super::pipeline;
use super::plan::Plan;
use super::repeats::{self, Chunk, Repeats};
use super::report::Progress;
use super::segment::{self, FAST_SEGMENT_BYTES, SEGMENT_BYTES, Segment, SegmentOptions, Tail};
use super::shape::{LONG_FILE_BYTES, Shape};
use super::spare::Spare;
use super::spool::{Fragment, Spool};
use super::tree::{NodeId, NodeKind, Tree};
use super::worker::{Work, Worker, stays};
use super::zero_clusters::Zeros;
use crate::error::Result;
use crate::format::{NULL_ADDR, align};
use crate::zeros::is_zeros;

/// The stored form of a regular file.
#[derive(Clone, Debug)]
pub(crate) enum FileData {
    /// Blocks from an address on, and the inline tail instead of the last block.
    Flat { blkaddr: u32, tail: Vec<u8> },
    /// The addresses of chunks, including holes, and the inode's field for their length.
    Chunks { addresses: Vec<u32>, format: u32 },
    /// Indexes, the inline tail, and the number of blocks.
    Compressed { indexes: Indexes, tail: Vec<u8>, blocks: u32 },
    /// The offset of the content in the packed inode.
    WholeFragment(u64),
}

/// The stored data of all files.
pub(crate) struct Data {
    pub(crate) files: HashMap<NodeId, FileData>,
    pub(crate) packed: Option<(u64, FileData)>,
    /// The extents that indexes refer to.
    pub(crate) extents: ExtentLog,
    /// The first block after the data.
    pub(crate) end_block: u32,
    pub(crate) data_bytes: u64,
    pub(crate) shared_blocks: u64,
    /// Whether zeros of long files share clusters, although the options share none.
    pub(crate) shares_zeros: bool,
    /// A hash of everything stored.
    pub(crate) digest: u128,
}

/// Stores the data of all regular files.
pub(crate) fn write(
    tree: &Tree,
    options: &BuildOptions,
    plan: &Plan,
    out: &File,
    watch: &mut dyn FnMut(Progress),
) -> Result<Data> {
    let mut writer = Writer {
        options,
        ways: plan.choices.ways(),
        style: plan.index_style(options),
        blocks: Blocks::new(out, options.block_bits(), plan.first_data_block()..plan.devices.limit()),
        devices: &plan.devices,
        extents: ExtentLog::default(),
        chunking: Chunking::of(options),
        spool: Spool::beginning_with(&plan.packed_front(), options.block_bytes)?,
        worker: Worker::new(plan.choices.ways(), &plan.devices),
        spare: Spare::new(options.thread_count()),
        zeros: Zeros::default(),
        shares_zeros: false,
    };
    let mut files = HashMap::new();
    let (mut ids, mut sources) = (Vec::new(), Vec::new());
    for (id, header_bytes) in plan.regular_files(tree) {
        if let NodeKind::Regular { content, size: size @ 1.. } = &tree.node(id).kind {
            let way = plan.choices.way(id);
            let compression = writer.ways.get(way).copied().flatten();
            let mut shape = Shape::of(content, *size, compression, options)?;
            let stays = compression.is_none() && stays(content, &plan.devices).is_some();
            if stays && shape.chunking().is_none() && !shape.has_holes() {
                shape = Shape::of_blocks(*size, options.block_bytes);
            }
            ids.push(id);
            sources.push(Arc::new(writer.source(content.clone(), *size, header_bytes, way, shape)));
        }
    }
    let mut ids = ids.into_iter();
    let total_bytes = sources.iter().fold(0u64, |sum, source| sum.saturating_add(source.size));
    let mut progress = |done_bytes| watch(Progress { done_bytes, total_bytes });
    writer.store_all(&sources, &mut progress, |data| {
        if let Some(id) = ids.next() {
            files.insert(id, data);
        }
    })?;
    let mut packed = None;
    if let Some(spool) = writer.spool.take() {
        let (gathered, size) = spool.into_file();
        let content = Content::Range(Arc::new(gathered), 0);
        let header_bytes = crate::format::InodeExtended::SIZE as u64;
        let source = writer.source(content, size, header_bytes, 0, Shape::Whole);
        let source = Arc::new(Source { packable: false, ..source });
        writer.store_all(&[source], &mut |_| {}, |data| packed = Some((size, data)))?;
    }
    let mut blocks = writer.blocks;
    blocks.flush()?;
    Ok(Data {
        files,
        packed,
        extents: writer.extents,
        end_block: blocks.next(),
        data_bytes: u64::from(blocks.next() - plan.first_data_block()) << options.block_bits(),
        shared_blocks: blocks.shared(),
        shares_zeros: writer.shares_zeros,
        digest: blocks.digest(),
    })
}

struct Writer<'a> {
    options: &'a BuildOptions,
    /// The compression choices.
    ways: &'a [Option<Compression>],
    style: IndexStyle,
    blocks: Blocks<'a>,
    /// The devices on which clusters of the base stay. Without devices, clusters are copied.
    devices: &'a Devices,
    extents: ExtentLog,
    /// The chunks of plain files; `None` if only files with holes have chunks, of one block each.
    chunking: Option<Chunking>,
    spool: Option<Spool>,
    /// Compresses content at the time it is stored.
    worker: Worker<'a>,
    spare: Spare,
    zeros: Zeros,
    shares_zeros: bool,
}

/// Zeros of a long file share clusters once they have taken this many bytes. Fewer are not worth the
/// need for Linux 6.1.
pub const UNSHARED_BYTES: u64 = 1 << 20;

/// Bytes that are read together when a plain file is read again.
const READ_BYTES: u64 = 1 << 20;

impl Writer<'_> {
    fn source(&self, content: Content, size: u64, header_bytes: u64, way: usize, shape: Shape) -> Source {
        let codec = self.ways.get(way).copied().flatten().map(|compression| compression.codec);
        // A file of several segments cannot become a fragment: finding duplicates would require all
        // of it in memory. With copied clusters, extents that cross a segment's end are
        // recompressed; long segments have few of them.
        let is_copied = matches!(&content, Content::Overlay(overlay) if overlay.base.is_some());
        let fast = codec == Some(ClusterCodec::Lz4) && self.options.fragments != Fragments::All && !is_copied;
        let segment_bytes = if fast { FAST_SEGMENT_BYTES } else { SEGMENT_BYTES };
        Source { content, size, header_bytes, way, segment_bytes, packable: true, shape }
    }

    /// Stores files and calls `done` with the result for each, in order. Reports the number of
    /// bytes done to `progress`.
    fn store_all(
        &mut self,
        sources: &[Arc<Source>],
        progress: &mut dyn FnMut(u64),
        mut done: impl FnMut(FileData),
    ) -> Result<()> {
        let (options, ways, devices) = (self.options, self.ways, self.devices);
        let mut done_bytes = 0u64;
        let mut cuts = if options.dedupe { self.cuts(sources)?.into_iter() } else { Vec::new().into_iter() };
        let parts = parts(sources).map(move |part| FileSegment { cuts: cuts.next().unwrap_or_default(), ..part });
        let spare = std::mem::take(&mut self.spare);
        let mut open: Option<OpenFile> = None;
        let outcome = pipeline::in_order(
            options.thread_count(),
            jobs(parts, options.thread_count()),
            || Worker::new(ways, devices),
            |worker, job: Job| {
                let works: Vec<_> = job.iter().map(|part| worker.work(part, options, &spare)).collect();
                (job, works)
            },
            |(job, works)| {
                for (part, work) in job.into_iter().zip(works) {
                    let mut file = open.take().unwrap_or_else(|| OpenFile::new(self, &part.source));
                    done_bytes = done_bytes.saturating_add(part.end() - file.at);
                    file.skip_to(part.offset, &part.source);
                    self.add(&mut file, &part, work?, &spare)?;
                    file.at = part.end();
                    if part.is_last {
                        done_bytes = done_bytes.saturating_add(part.source.size - file.at);
                        file.skip_to(part.source.size, &part.source);
                        done(self.finish(file, &part.source)?);
                    } else {
                        open = Some(file);
                    }
                }
                progress(done_bytes);
                Ok(())
            },
        );
        self.spare = spare;
        outcome
    }

    /// Returns, for each segment of these files, where repeated content begins and ends.
    fn cuts(&self, sources: &[Arc<Source>]) -> Result<Vec<Vec<u32>>> {
        let (options, ways) = (self.options, self.ways);
        let least = repeats::least_bytes(options.block_bytes);
        let mut found = Vec::new();
        let mut repeats = Repeats::default();
        pipeline::in_order(
            options.thread_count(),
            jobs(parts(sources), options.thread_count()),
            Default::default,
            |(input, zeros): &mut (Vec<u8>, Vec<Chunk>), job| -> Vec<Result<Vec<Chunk>>> {
                let mut chunks = |part: &FileSegment| {
                    // Copied extents keep their starts.
                    let is_copied = matches!(&part.source.content, Content::Overlay(overlay) if overlay.base.is_some());
                    if is_copied || part.len < least || ways.get(part.source.way).is_none_or(Option::is_none) {
                        return Ok(Vec::new());
                    }
                    if part.source.read(part.offset, part.len, input)? == ReadContent::Bytes {
                        return Ok(repeats::chunks(input));
                    }
                    if zeros.last().is_none_or(|chunk| u64::from(chunk.end) != part.len) {
                        *zeros = repeats::chunks(&vec![0; part.len as usize]);
                    }
                    Ok(zeros.clone())
                };
                job.iter().map(&mut chunks).collect()
            },
            |segments| {
                for chunks in segments {
                    let chunks = chunks?;
                    repeats.add(&chunks);
                    found.push(chunks);
                }
                Ok(())
            },
        )?;
        Ok(found.iter().map(|chunks| repeats.cuts(chunks, options.block_bytes)).collect())
    }

    fn add(&mut self, file: &mut OpenFile, part: &FileSegment, work: Work, spare: &Spare) -> Result<()> {
        let chunking = part.source.shape.chunking().or(self.chunking);
        match work {
            Work::Raw(bytes) => {
                match chunking {
                    Some(chunking) => chunking.add(&bytes, &mut self.blocks, &mut file.chunks)?,
                    None => self.add_raw(file, &bytes)?,
                }
                spare.give(bytes);
                Ok(())
            }
            Work::RawZeros(len) => {
                if let Some(chunking) = chunking {
                    chunking.add_zeros(len, &mut file.chunks);
                    return Ok(());
                }
                let blocks = len >> self.options.block_bits();
                file.chunks.resize(file.chunks.len() + blocks as usize, NULL_ADDR);
                let tail = len & (u64::from(self.options.block_bytes) - 1);
                self.add_raw(file, &vec![0; tail as usize])
            }
            Work::Chunks(KeptChunks { addresses, own }) => {
                let Some(chunking) = chunking else { return self.add_blocks(file, part, addresses, &own) };
                let mut own = own.chunks(chunking.chunk_bytes() as usize);
                for (kept, at) in addresses.into_iter().zip((part.offset..).step_by(chunking.chunk_bytes() as usize)) {
                    match kept {
                        Some(address) if !self.is_mistaken(file, address) => {
                            self.blocks.digest_more(&address.to_le_bytes());
                            file.chunks.push(address);
                        }
                        Some(_) => {
                            let (mut bytes, len) = (Vec::new(), chunking.chunk_bytes().min(part.end() - at));
                            part.source.read_bytes(at, len, &mut bytes)?;
                            let address = self.append_apart(file, &bytes)?;
                            file.chunks.push(address);
                        }
                        None => self.add_own_chunk(file, chunking, own.next().unwrap_or_default())?,
                    }
                }
                Ok(())
            }
            Work::Fragment(bytes) => {
                let begins_its_file = file.last_extent.is_none() && file.zeros == 0;
                let way = part.source.way;
                let splits = self.ways.get(way).copied().flatten().filter(|_| begins_its_file);
                let spool = match &mut self.spool {
                    Some(spool) => spool,
                    none => none.insert(Spool::new(self.options.block_bytes)?),
                };
                let Fragment { head_len, offset } = spool.add(&bytes, splits.is_some())?;
                if let Some(compression) = splits
                    && head_len > 0
                {
                    self.add_head(file, way, compression, &bytes[..head_len])?;
                }
                let len = (bytes.len() - head_len) as u32;
                let place = BuiltPlace::Fragment(offset);
                self.push_extent(file, BuiltExtent { len, compressed: true, place })
            }
            Work::Compressed(segments) => {
                segments.into_iter().try_for_each(|segment| self.add_segment(file, part, segment, spare))
            }
        }
    }

    fn add_segment(&mut self, file: &mut OpenFile, part: &FileSegment, segment: Segment, spare: &Spare) -> Result<()> {
        if !segment.pieces.is_empty() || segment.tail.is_some() {
            self.add_zeros(file, &part.source)?;
        }
        self.add_pieces(file, part.source.way, &segment, self.shares())?;
        file.zeros += segment.zeros;
        if part.ends_file() && file.is_plain {
            file.plain_end = segment.plain_end(self.options.block_bytes as usize).to_vec();
        }
        spare.give(segment.blocks);
        match segment.tail {
            None => {}
            Some(Tail::Fragment(bytes)) => self.add(file, part, Work::Fragment(bytes), spare)?,
            Some(Tail::Inline { bytes, len, compressed }) => {
                self.blocks.digest_more(&bytes);
                let place = BuiltPlace::Inline(bytes.len() as u32);
                self.push_extent(file, BuiltExtent { len, compressed, place })?;
                file.tail = bytes;
            }
        }
        Ok(())
    }

    /// Adds blocks of an uncompressed file with encoded extents, some of which stay in the base's image
    /// at `addresses`. The others are `own`.
    fn add_blocks(
        &mut self,
        file: &mut OpenFile,
        part: &FileSegment,
        addresses: Vec<Option<u32>>,
        own: &[u8],
    ) -> Result<()> {
        let block = self.options.block_bytes as usize;
        let mut own = own.chunks(block);
        for (kept, at) in addresses.into_iter().zip((part.offset..).step_by(block)) {
            let len = (part.end() - at).min(block as u64) as u32;
            let blkaddr = match kept {
                Some(address) => {
                    self.blocks.digest_more(&address.to_le_bytes());
                    address
                }
                None => {
                    let bytes = own.next().unwrap_or_default();
                    if is_zeros(bytes) && at + u64::from(len) < part.source.size {
                        file.zeros += u64::from(len);
                        continue;
                    }
                    self.blocks.append_padded(bytes, false)?
                }
            };
            self.add_hole(file)?;
            let place = BuiltPlace::Blocks { blkaddr, blocks: 1 };
            self.push_extent(file, BuiltExtent { len, compressed: false, place })?;
        }
        Ok(())
    }

    /// Returns whether a chunk at `address` must not follow the file's last chunk.
    fn is_mistaken(&self, file: &OpenFile, address: u32) -> bool {
        file.chunks.last().is_some_and(|last| self.devices.is_mistaken(*last, file.chunk_blocks, address))
    }

    /// Appends a chunk where Linux does not mistake it for the continuation of the file's last
    /// chunk. Unless that would cause the same mistake, leaves a block free before it.
    fn append_apart(&mut self, file: &OpenFile, bytes: &[u8]) -> Result<u32> {
        let is_next = self.is_mistaken(file, self.blocks.next() + 1);
        self.blocks.append_padded(bytes, !is_next)
    }

    /// Adds a chunk of a file that also has chunks on devices.
    fn add_own_chunk(&mut self, file: &mut OpenFile, chunking: Chunking, bytes: &[u8]) -> Result<()> {
        let before = file.chunks.len();
        chunking.add(bytes, &mut self.blocks, &mut file.chunks)?;
        let added = file.chunks.split_off(before);
        for address in added {
            let address = if self.is_mistaken(file, address) { self.append_apart(file, bytes)? } else { address };
            file.chunks.push(address);
        }
        Ok(())
    }

    /// Adds the pieces of a segment that was compressed with choice `way`, and shares equal clusters if
    /// `share` is set.
    fn add_pieces(&mut self, file: &mut OpenFile, way: usize, segment: &Segment, share: bool) -> Result<()> {
        let format = self.ways[way].map(|compression| compression.codec.format());
        let block = self.options.block_bytes as usize;
        let (mut pieces, mut blocks) = (&segment.pieces[..], &segment.blocks[..]);
        while let Some(&first) = pieces.first() {
            if let (Some(from), Some(base)) = (first.from, &file.copied_from)
                && let Some(blkaddr) = self.stays(&**base, from, first.blocks as usize * block)
            {
                let place = BuiltPlace::Blocks { blkaddr, blocks: first.blocks };
                self.push_extent(file, BuiltExtent { len: first.len, compressed: first.compressed, place })?;
                pieces = &pieces[1..];
                continue;
            }
            // Adjacent pieces are stored together.
            let (run, rest) = pieces.split_at(if share { 1 } else { segment::side_by_side(pieces, block) });
            let len_bytes = run.iter().map(|piece| piece.blocks as usize).sum::<usize>() * block;
            let mut next = match (first.from, &file.copied_from) {
                (Some(from), Some(base)) if share => self.blocks.copy_once(&**base, from, len_bytes)?,
                (Some(from), Some(base)) => self.blocks.copy(&**base, from, len_bytes)?,
                _ => {
                    let (own, others) = blocks.split_at(len_bytes);
                    blocks = others;
                    match share {
                        true => self.blocks.add_cluster(own, format.filter(|_| first.compressed))?,
                        false => self.blocks.append(own)?,
                    }
                }
            };
            for piece in run {
                let place = BuiltPlace::Blocks { blkaddr: next, blocks: piece.blocks };
                self.push_extent(file, BuiltExtent { len: piece.len, compressed: piece.compressed, place })?;
                next += piece.blocks;
            }
            pieces = rest;
        }
        Ok(())
    }

    /// Returns the address of a cluster of the base if it is on a device, so that it is not copied.
    fn stays(&mut self, base: &dyn OverlayBase, from: u64, len_bytes: usize) -> Option<u32> {
        if self.devices.is_empty() {
            return None;
        }
        let address = self.devices.address(base.spot(from)?, len_bytes as u64)?;
        self.blocks.digest_origin(base, from, len_bytes);
        Some(address)
    }

    /// Adds an extent to a file.
    fn push_extent(&mut self, file: &mut OpenFile, extent: BuiltExtent) -> Result<()> {
        let number = (self.extents.next() - file.first_extent) as u32;
        let is_next = match extent.place {
            BuiltPlace::Blocks { blkaddr, .. } => blkaddr == file.first_block.wrapping_add(number),
            BuiltPlace::Inline(_) | BuiltPlace::Fragment(_) => true,
            BuiltPlace::Hole(_) => false,
        };
        let follows_blocks = file.last_extent.is_none_or(|last| last.len == self.options.block_bytes);
        file.is_plain &= !extent.compressed && is_next && follows_blocks;
        file.last_extent = Some(extent);
        self.extents.push(extent)
    }

    /// Adds the zeros that no extent covers yet as a hole.
    fn add_hole(&mut self, file: &mut OpenFile) -> Result<()> {
        let len = std::mem::take(&mut file.zeros);
        if len == 0 {
            return Ok(());
        }
        self.push_extent(file, BuiltExtent { len: 0, compressed: false, place: BuiltPlace::Hole(len) })
    }

    /// Adds the zeros that segments left over, as holes or as clusters. The first and the last of
    /// these clusters are not shared, because compact indexes cannot express that next to other
    /// clusters, and full indexes would cost more than two blocks.
    fn add_zeros(&mut self, file: &mut OpenFile, source: &Source) -> Result<()> {
        if source.shape.has_holes() {
            return self.add_hole(file);
        }
        let is_long = source.size >= LONG_FILE_BYTES && self.options.indexes == options::Indexes::Auto;
        let mut zeros = std::mem::take(&mut self.zeros);
        let mut first = true;
        while file.zeros > 0
            && let Some(compression) = self.ways[source.way]
        {
            let cluster = zeros.cluster(source.way, compression, file.zeros, self.options)?;
            file.zeros -= cluster.content_bytes() as u64;
            let is_inner = !first && file.zeros > 0;
            let shares_here = is_long && u64::from(file.zero_blocks) << self.options.block_bits() >= UNSHARED_BYTES;
            let (next, shared) = (self.blocks.next(), self.blocks.shared());
            self.add_pieces(file, source.way, cluster, is_inner && (self.shares() || shares_here))?;
            file.zero_blocks += self.blocks.next() - next;
            self.shares_zeros |= !self.shares() && self.blocks.shared() > shared;
            first = false;
        }
        self.zeros = zeros;
        Ok(())
    }

    /// Adds full blocks of an uncompressed file, except blocks of zeros, and keeps the rest as its
    /// tail.
    fn add_raw(&mut self, file: &mut OpenFile, bytes: &[u8]) -> Result<()> {
        let block = self.options.block_bytes as usize;
        let mut blocks = bytes.chunks_exact(block);
        for bytes in &mut blocks {
            let zeros = bytes.iter().all(|byte| *byte == 0);
            file.chunks.push(if zeros { NULL_ADDR } else { self.blocks.append(bytes)? });
        }
        file.tail = blocks.remainder().to_vec();
        self.blocks.digest_more(&file.tail);
        Ok(())
    }

    /// Returns whether clusters are shared. Every Linux that reads fragments supports that too.
    fn shares(&self) -> bool {
        self.options.dedupe || self.options.fragments != Fragments::Off
    }

    /// Adds the front of a file whose end is in another file's fragment.
    fn add_head(&mut self, file: &mut OpenFile, way: usize, compression: Compression, bytes: &[u8]) -> Result<()> {
        let options = SegmentOptions::new(self.options, compression, false);
        let compressor = self.worker.compressor(way, compression)?;
        let segment = compressor.compress(bytes, &[], true, &options, Vec::new());
        self.add_pieces(file, way, &segment, self.shares())
    }

    /// Chooses the layout of a file after its last segment.
    fn finish(&mut self, file: OpenFile, source: &Source) -> Result<FileData> {
        let first_extent = file.first_extent;
        let data = self.laid_out(file, source)?;
        if !matches!(data, FileData::Compressed { .. }) {
            self.extents.truncate(first_extent);
        }
        Ok(data)
    }

    fn laid_out(&mut self, mut file: OpenFile, source: &Source) -> Result<FileData> {
        if source.content.is_gone() {
            // Its inode is left out. Chunks may be shared already, so they stay.
            if source.shape.chunking().is_none() {
                self.blocks.rewind(file.first_block)?;
            }
            return Ok(FileData::Flat { blkaddr: file.first_block, tail: Vec::new() });
        }
        if let Some(chunking) = source.shape.chunking() {
            return Ok(FileData::Chunks { addresses: file.chunks, format: chunking.format() });
        }
        if source.shape.has_holes() {
            self.add_hole(&mut file)?;
        }
        let block = u64::from(self.options.block_bytes);
        let tail_len = source.size % block;
        let tail_fits = source.header_bytes + tail_len <= block;
        let tail_cost = if tail_fits { tail_len } else { block };
        let flat_cost = (source.size - tail_len) + tail_cost;
        let format = match self.ways.get(source.way).copied().flatten() {
            Some(compression) => algorithm(compression.codec),
            // No extent has a format then.
            None if source.shape.has_holes() => 0,
            None => return self.finish_raw(file, source, tail_fits),
        };
        let extents = file.first_extent..self.extents.next();
        if let Some(BuiltExtent { place: BuiltPlace::Fragment(offset), .. }) = file.last_extent
            && extents.end - extents.start == 1
        {
            return Ok(FileData::WholeFragment(offset));
        }
        let blocks = self.blocks.next() - file.first_block;
        let header_at = align(source.header_bytes, 8);
        let stays = stays(&source.content, self.devices).is_some();
        let extents = Indexes::of_extents(self.style, format, source.size, extents, file.last_extent, header_at);
        let mut indexes = match source.shape.has_holes() {
            true => extents.clone(),
            false => extents.clone().by_lcluster(&self.extents)?,
        };
        // Clusters of two devices need full indexes. With long clusters, encoded extents take less.
        if stays
            && indexes.form == IndexForm::Full
            && self.options.indexes != options::Indexes::Full
            && file.tail.is_empty()
            && extents.len() * 2 <= indexes.len()
        {
            indexes = extents;
        }
        if stays {
            return Ok(FileData::Compressed { indexes, tail: file.tail, blocks });
        }
        let cost = (u64::from(blocks) << self.options.block_bits()) + indexes.len() + file.tail.len() as u64;
        let fragment = matches!(file.last_extent, Some(BuiltExtent { place: BuiltPlace::Fragment(_), .. }));
        if cost >= flat_cost && !fragment {
            if file.is_plain {
                // Its whole blocks are already stored.
                self.blocks.rewind(file.first_block + (source.size / block) as u32)?;
                return self.end_of_flat(file.first_block, source, file.plain_end, tail_fits);
            }
            return self.store_flat(file.first_block, source, tail_fits);
        }
        Ok(FileData::Compressed { indexes, tail: file.tail, blocks })
    }

    fn finish_raw(&mut self, mut file: OpenFile, source: &Source, tail_fits: bool) -> Result<FileData> {
        if let Some(chunking) = self.chunking {
            return Ok(FileData::Chunks { addresses: file.chunks, format: chunking.format() });
        }
        let block = self.options.block_bytes as usize;
        let holes = file.chunks.iter().filter(|blkaddr| **blkaddr == NULL_ADDR).count();
        if holes * block <= (file.chunks.len() + 1) * 4 {
            if holes > 0 {
                return self.store_flat(file.first_block, source, tail_fits);
            }
            return self.end_flat(file.first_block, source, file.tail, tail_fits);
        }
        if !file.tail.is_empty() {
            file.tail.resize(block, 0);
            file.chunks.push(self.blocks.append(&file.tail)?);
        }
        Ok(FileData::Chunks { addresses: file.chunks, format: 0 })
    }

    /// Stores a file again, uncompressed.
    fn store_flat(&mut self, first_block: u32, source: &Source, tail_fits: bool) -> Result<FileData> {
        self.blocks.rewind(first_block)?;
        let block = u64::from(self.options.block_bytes);
        let in_blocks = source.size - source.size % block;
        let mut bytes = Vec::new();
        let mut at = 0;
        while at < in_blocks {
            source.read_bytes(at, (in_blocks - at).min(READ_BYTES), &mut bytes)?;
            self.blocks.append(&bytes)?;
            at += bytes.len() as u64;
        }
        self.end_of_flat(first_block, source, Vec::new(), tail_fits)
    }

    /// Adds the data after a plain file's last whole block: `end` if its length matches; otherwise,
    /// it is read again.
    fn end_of_flat(&mut self, first_block: u32, source: &Source, end: Vec<u8>, tail_fits: bool) -> Result<FileData> {
        let tail_len = source.size % u64::from(self.options.block_bytes);
        let mut tail = end;
        if tail.len() as u64 != tail_len {
            source.read_bytes(source.size - tail_len, tail_len, &mut tail)?;
        }
        self.blocks.digest_more(&tail);
        self.end_flat(first_block, source, tail, tail_fits)
    }

    /// Finishes a plain file whose whole blocks are the last ones stored, from `first_block` on;
    /// `tail` follows them. A reader expects a tail that is not inline right after the whole
    /// blocks. So the tail is stored before the search for an equal run, and shared together with
    /// the blocks or not at all.
    fn end_flat(&mut self, first_block: u32, source: &Source, mut tail: Vec<u8>, tail_fits: bool) -> Result<FileData> {
        let whole = (source.size >> self.options.block_bits()) as u32;
        debug_assert_eq!(self.blocks.next(), first_block + whole);
        if !tail_fits && !tail.is_empty() {
            tail.resize(self.options.block_bytes as usize, 0);
            self.blocks.append(&tail)?;
            tail.clear();
        }
        let blkaddr = if self.shares() { self.blocks.share_run(first_block, whole)? } else { first_block };
        Ok(FileData::Flat { blkaddr, tail })
    }
}

/// A file whose segments are being added.
struct OpenFile {
    first_block: u32,
    /// The base that pieces are copied from.
    copied_from: Option<Arc<dyn OverlayBase>>,
    /// The number of its first extent.
    first_extent: u64,
    last_extent: Option<BuiltExtent>,
    /// Whether its whole blocks are stored uncompressed and in sequence: each extent is the file's next
    /// block and has the next address.
    is_plain: bool,
    chunks: Vec<u32>,
    /// The number of blocks in a chunk.
    chunk_blocks: u32,
    /// The end of the last part that was added.
    at: u64,
    /// Zeros after the extents that no extent covers yet.
    zeros: u64,
    /// The number of blocks with clusters of zeros.
    zero_blocks: u32,
    tail: Vec<u8>,
    /// The content of a plain file's last piece.
    plain_end: Vec<u8>,
}

impl OpenFile {
    fn new(writer: &mut Writer<'_>, source: &Source) -> Self {
        let base = match &source.content {
            Content::Overlay(overlay) => overlay.base.as_ref(),
            _ => None,
        };
        Self {
            first_block: writer.blocks.begin_file(),
            copied_from: base.cloned(),
            first_extent: writer.extents.next(),
            last_extent: None,
            is_plain: true,
            chunks: Vec::new(),
            chunk_blocks: source.shape.chunking().map_or(1, Chunking::blocks),
            at: 0,
            zeros: 0,
            zero_blocks: 0,
            tail: Vec::new(),
            plain_end: Vec::new(),
        }
    }

    /// Leaves a hole from the last part to `offset`.
    fn skip_to(&mut self, offset: u64, source: &Source) {
        let len = offset - self.at;
        match source.shape.chunking() {
            Some(chunking) => chunking.add_zeros(len, &mut self.chunks),
            None => self.zeros += len,
        }
    }
}

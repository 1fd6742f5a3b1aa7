//! Builds an image.
//!
//! ```text
//! 1. scan        a directory or an archive becomes a tree of nodes with sorted names
//! 2. shapes      files that are almost only zeros are cut into their runs of data (`shape.rs`)
//! 3. repeats     only if clusters are shared: files are read to find repeated content
//! 4. data        files in tree order are cut into segments at fixed offsets; threads compress
//!                segments; a single writer takes the results in order: packs tails, shares equal
//!                clusters, appends blocks
//! 5. metadata    inodes with their xattrs, indexes and inline tails are placed after the data by
//!                best fit; then directories are written, because only now is every inode's number
//!                known
//! 6. superblock  last, so that an unfinished image is not valid
//! ```
//!
//! Equal trees and options produce equal bytes: nothing above depends on time, on the number of
//! threads, on the order in which a directory lists its names, or on hash seeds. A segment's
//! clusters depend only on its bytes and the options, and only the writer assigns addresses.

mod acl;
mod base;
mod blocks;
mod choices;
mod chunks;
mod content;
mod copies;
mod data;
mod devices;
mod directory;
mod extents;
mod follow;
mod found;
mod holes;
mod ids;
mod indexes;
mod inline;
mod inode_times;
mod kept_chunks;
mod layer;
mod live;
mod member;
mod metadata;
mod options;
mod overlay;
mod overlayfs;
mod parts;
mod patterns;
mod pipeline;
mod place;
mod placer;
mod plan;
mod prefixes;
mod reach;
mod repeats;
mod report;
mod runs;
mod scan;
mod scan_options;
mod segment;
mod shape;
mod source_file;
mod spare;
mod sparse;
mod spool;
mod stack;
mod stretch;
mod stretches;
mod tar;
mod tree;
mod validate;
mod warnings;
mod work;
mod worker;
mod xattrs;
mod zero_clusters;

use std::fs::File;

pub(crate) use base::{BaseImage, BaseSpot, Device, OverlayBase};
pub use content::Content;
pub use data::UNSHARED_BYTES;
pub(crate) use holes::ReadContent;
pub use ids::{IdMap, IdRange};
pub use inline::{directory_bytes, placed_bytes, stored_bytes};
pub use inode_times::{InodeNumbers, InodeTimes};
pub use layer::{Layer, Whiteouts};
pub use live::LiveFile;
pub use member::MemberContent;
pub use options::{BuildOptions, Compression, Fragments, Hint, Indexes};
pub use overlay::{Change, Overlay};
pub use place::SourcePath;
pub use report::{BuildReport, Progress};
pub use runs::LEAST_ZERO_BLOCKS;
pub use scan_options::{ImageFile, ScanOptions};
pub use shape::{LONG_FILE_BYTES, LONG_FILE_DATA_PARTS};
pub use source_file::SourceFile;
pub use sparse::Span;
pub use tree::{Node, NodeId, NodeKind, Tree};
pub use warnings::{Warning, WarningKind};

use crate::error::{Error, Result};

/// Builds an image of `tree` in `out`, a regular file open for reading and writing, and truncates
/// it to the image's length.
///
/// Memory use: the tree; 16 MiB of extents, of which more are kept in a temporary file; 4 bytes per
/// chunk; with `dedupe`, 70 bytes per 10 KiB of compressed files; 60 to 120 bytes per distinct chunk;
/// 16 MiB of input per thread; and the compressed output of up to `2 * threads + 2` pieces of 16 MiB.
///
/// # Errors
/// [`Error::Options`] before anything is read or written; [`Error::Source`] for a file that cannot
/// be stored in an image, or is unreadable or shorter than when it was scanned, unless such files are
/// skipped; [`Error::Io`] if a file cannot be read or `out` cannot be written. After
/// an error, `out` contains no superblock, so it cannot be mistaken for an image.
pub fn build(tree: &Tree, options: &BuildOptions, out: &File) -> Result<BuildReport> {
    build_watched(tree, options, out, &mut |_| {})
}

/// Like [`build`], and reports progress to `watch` after every few files, or 16 MiB of one.
pub fn build_watched(
    tree: &Tree,
    options: &BuildOptions,
    out: &File,
    watch: &mut dyn FnMut(Progress),
) -> Result<BuildReport> {
    options.check()?;
    let emptying = Error::io("emptying the image");
    // When a file that was truncated to zero is closed, ext4 flushes all of it to disk.
    if out.metadata().map_or(true, |metadata| metadata.len() > 0) {
        out.set_len(0).map_err(emptying)?;
    }
    let mut plan = plan::Plan::new(tree, options)?;
    let data = data::write(tree, options, &plan, out, watch)?;
    let gone = tree.gone();
    if gone.is_empty() {
        return metadata::write(tree, options, plan, data, out);
    }
    let tree = tree.without(&gone);
    plan.leave_out(&tree, &gone, options);
    metadata::write(&tree, options, plan, data, out)
}

//! Building an image.
//!
//! ```text
//! 1. scan        a directory or an archive becomes a tree of nodes, names sorted
//! 2. repeats     only to share clusters: files are read to find what content lies in several places
//! 3. data        files in the tree's order are cut into segments at fixed offsets; threads compress segments, one
//!                writer takes the results in order: packs tails, shares equal clusters, appends blocks
//! 4. metadata    inodes with their xattrs, indexes and inline tails are placed behind the data, first where they fit
//!                best; then directories are written, since only now every inode has its number
//! 5. superblock  last, so that an image that was not finished is none
//! ```
//!
//! The same tree and options give the same bytes: nothing above depends on time, on the number of
//! threads, on the order in which a directory lists its names, or on hash seeds. A segment's
//! clusters depend on its bytes and the options alone, and the writer alone decides addresses.

mod acl;
mod base;
mod blocks;
mod choices;
mod chunks;
mod content;
mod copies;
mod data;
mod directory;
mod holes;
mod ids;
mod indexes;
mod layer;
mod member;
mod metadata;
mod options;
mod overlay;
mod patterns;
mod pipeline;
mod place;
mod placer;
mod plan;
mod prefixes;
mod reach;
mod repeats;
mod report;
mod scan;
mod scan_options;
mod segment;
mod spare;
mod sparse;
mod spool;
mod tar;
mod tree;
mod validate;
mod warnings;
mod zero_clusters;

use std::fs::File;

pub(crate) use base::{BaseImage, OverlayBase};
pub use content::Content;
pub(crate) use holes::Found;
pub use ids::{IdMap, IdRange};
pub use layer::{Layer, Whiteouts};
pub use member::MemberContent;
pub use options::{BuildOptions, Compression, Fragments, Hint, Indexes};
pub use overlay::{Change, Overlay};
pub use place::SourcePath;
pub use report::{BuildReport, Progress};
pub use scan_options::ScanOptions;
pub use sparse::Span;
pub use tree::{Node, NodeId, NodeKind, Tree};
pub use warnings::{Warning, WarningKind};

use crate::error::{Error, Result};

/// Builds an image of `tree` in `out`, a regular file open for reading and writing, which is cut to
/// the image's length.
///
/// Memory: the tree, 2 to 8 bytes a block of compressed files, with `dedupe` 70 bytes for each 10
/// KiB of them, 60 to 120 bytes for each different chunk, 16 MiB of input a thread, and what at
/// most `2 * threads + 2` pieces of 16 MiB are compressed to.
///
/// # Errors
/// [`Error::Options`] before anything is read or written; [`Error::Source`] for a file that cannot be put into an image;
/// [`Error::Io`] where a file cannot be read or `out` not be written. After an error `out` holds no superblock, so that
/// nothing takes it for an image.
pub fn build(tree: &Tree, options: &BuildOptions, out: &File) -> Result<BuildReport> {
    build_watched(tree, options, out, &mut |_| {})
}

/// [`build`], which tells `watch` how far it is whenever a few files, or 16 MiB of one, were stored.
pub fn build_watched(
    tree: &Tree,
    options: &BuildOptions,
    out: &File,
    watch: &mut dyn FnMut(Progress),
) -> Result<BuildReport> {
    options.check()?;
    let emptying = Error::io("emptying the image");
    // ext4 has all of a file that was cut to nothing on its way to the disk before the file is
    // closed.
    if out.metadata().map_or(true, |metadata| metadata.len() > 0) {
        out.set_len(0).map_err(emptying)?;
    }
    let plan = plan::Plan::new(tree, options)?;
    let data = data::write(tree, options, &plan, out, watch)?;
    metadata::write(tree, options, plan, data, out)
}

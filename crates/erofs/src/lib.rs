//! EROFS images, built and read in user space without unsafe code.
#![forbid(unsafe_code)]

mod ahead;
mod buffers;
mod build;
mod cache;
mod check;
mod compressed;
mod directory;
mod error;
mod extract;
mod file;
mod format;
mod image;
mod inode;
mod segments;
mod source;
mod superblock;
mod visits;
mod walk;
mod work;
mod workers;
mod xattr;
mod zmap;

pub use build::{
    BuildOptions, BuildReport, Compression, Content, Fragments, Hint, IdMap, IdRange, Indexes, Node, NodeId, NodeKind,
    Progress, ScanOptions, Tree, build, build_watched,
};
pub use check::{CheckReport, Problem};
pub use directory::DirEntry;
pub use error::{Error, Result};
pub use extract::{ExtractOptions, ExtractReport};
pub use file::{File, Run};
pub use format::DataLayout;
pub use image::{Counts, Image};
pub use inode::{FileKind, Inode};
pub use source::ReadAt;
pub use superblock::Superblock;
pub use xattr::Xattr;

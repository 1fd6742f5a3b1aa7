//! Reads an image. Nothing in it is trusted.

mod check;
mod compressed;
mod content;
mod devices;
mod directory;
mod fetch;
mod file;
mod image;
mod inode;
mod metabox;
mod near;
mod open;
mod path;
mod paths;
mod ready;
mod runs;
mod stored;
mod superblock;
mod together;
mod walk;
mod xattr;
mod zextents;
mod zmap;

pub(crate) use check::Notices;
pub use check::{CheckReport, Notice, Problem};
pub use directory::DirEntry;
pub use file::File;
pub use image::{Image, ReadCounts};
pub use inode::{FileKind, Inode};
pub(crate) use paths::{PathId, Paths};
pub use runs::Run;
pub use superblock::Superblock;
pub use together::ReadPart;
pub(crate) use walk::{Step, Visitor, walk_from};
pub(crate) use xattr::Xattrs;

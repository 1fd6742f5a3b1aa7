//! Memory for decoded data: buffers and bounded caches; and the threads that decode ahead.

mod ahead_segments;
mod buffers;
mod clock;
mod clusters;
mod index_windows;
mod visits;
mod workers;

pub(crate) use ahead_segments::{Decoded, FileId, Segment, SegmentSearch, Segments};
pub(crate) use buffers::{Buffers, Content, room_bytes};
pub(crate) use clock::{Cache, Kept};
pub use clusters::ClusterCache;
pub(crate) use clusters::Clusters;
pub(crate) use index_windows::{Budget, KeptWindows};
pub(crate) use workers::Workers;

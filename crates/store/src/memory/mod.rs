//! Memory from the system, by the page, and rows of small parts in it.

mod file;
pub(crate) mod malloc;
mod prefetch;
mod region;
mod reserved;
mod slab;

pub(crate) use self::{
    file::MemoryFile,
    prefetch::{LINE_BYTES, prefetch},
    region::Region,
    reserved::Reserved,
    slab::Slab,
};

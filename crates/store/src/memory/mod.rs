//! Memory from the system, by the page, and rows of small parts in it.

pub(crate) mod malloc;
mod prefetch;
mod region;
mod reserved;
mod slab;

pub(crate) use self::{
    prefetch::{LINE_BYTES, prefetch},
    region::Region,
    reserved::Reserved,
    slab::Slab,
};

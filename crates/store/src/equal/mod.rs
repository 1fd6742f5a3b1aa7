//! Equal pages: hints to them, and the objects that slots share.

mod common;
mod hints;

pub(crate) use self::{
    common::Common,
    hints::{Equals, Seeds, Sum},
};

//! Integration tests of the published systems: every lock, stream policy and allocator behind one
//! test body.

mod model;

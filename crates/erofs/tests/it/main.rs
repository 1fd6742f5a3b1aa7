//! Images against other implementations, and against bytes that are no image.

mod mkfs;
mod tools;
mod trees;

//! Images against other implementations, and against bytes that are no image.

mod built;
mod hostile;
mod mkfs;
mod tools;
mod trees;

//! Images against other implementations, and against bytes that are no image.

mod archives;
mod built;
mod hostile;
mod mkfs;
mod tools;
mod trees;

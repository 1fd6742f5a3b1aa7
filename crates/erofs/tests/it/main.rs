//! Images against other implementations, and against bytes that are no image.

mod archives;
mod built;
mod hostile;
mod mkfs;
mod reading;
mod tools;
mod trees;

//! Names and file types of directory entries.

use super::inode::mode;

/// The longest file name.
pub(crate) const NAME_LEN: usize = 255;

/// File types in directory entries (the kernel's generic `FT_*`).
pub(crate) mod file_type {
    use super::mode;

    pub(crate) fn from_mode(mode: u16) -> u8 {
        match u32::from(mode) & mode::FORMAT {
            mode::REGULAR => 1,
            mode::DIRECTORY => 2,
            mode::CHARACTER => 3,
            mode::BLOCK => 4,
            mode::FIFO => 5,
            mode::SOCKET => 6,
            mode::SYMLINK => 7,
            _ => 0,
        }
    }
}

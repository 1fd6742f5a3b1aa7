//! Exchanges the file behind a descriptor.
#![allow(unsafe_code)] // a descriptor that another owns

use std::{
    io,
    mem::ManuallyDrop,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use rustix::io::{DupFlags, dup3};

/// Makes the descriptor `old` refer to the file of `new`, and closes the file it referred to.
pub(crate) fn replace(old: BorrowedFd<'_>, new: impl AsFd) -> io::Result<()> {
    // SAFETY: the descriptor is open while it is borrowed, and stays open: this owner never closes it.
    let mut owned = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(old.as_raw_fd()) });
    Ok(dup3(new, &mut owned, DupFlags::CLOEXEC)?)
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::{Read, Write},
        os::unix::net::UnixStream,
    };

    use super::*;

    #[test]
    fn a_descriptor_stays_with_another_file() {
        let (mut first, mut first_end) = UnixStream::pair().expect("sockets");
        let (second, mut second_end) = UnixStream::pair().expect("sockets");
        replace(first.as_fd(), &second).expect("another file");
        drop(second);
        assert_eq!(first_end.read(&mut [0]).expect("the end"), 0, "the first file is open");
        first.write_all(b"a").expect("room");
        let mut byte = [0];
        second_end.read_exact(&mut byte).expect("a byte");
        assert_eq!(byte, *b"a");
        drop(first);
        assert_eq!(second_end.read(&mut byte).expect("the end"), 0);
        replace(File::open("/dev/null").expect("a file").as_fd(), &second_end).expect("another file");
    }
}

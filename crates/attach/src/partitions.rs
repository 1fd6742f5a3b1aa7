//! The kernel's view of a device's content.
#![allow(unsafe_code)] // an ioctl of block devices

use std::{fs::File, io, path::Path};

use rustix::{
    io::Errno,
    ioctl::{NoArg, Opcode, ioctl, opcode},
};

const BLKRRPART: Opcode = opcode::none(0x12, 95);

/// Makes the kernel, and programs that follow its events, read a device's partition table again and
/// drop what they have cached of it.
///
/// # Errors
/// The device does not exist, or other programs have it open.
pub fn reread(device: &Path) -> io::Result<()> {
    let file = File::open(device)?;
    // SAFETY: this command has no argument.
    match unsafe { ioctl(&file, NoArg::<BLKRRPART>::new()) } {
        // A device that cannot have partitions gives this error.
        Err(Errno::INVAL) => Ok(()),
        result => Ok(result?),
    }
}

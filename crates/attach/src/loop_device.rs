//! `/dev/loopN` (Linux, `include/uapi/linux/loop.h`).
#![allow(unsafe_code)] // the ioctls of loop devices

use std::{
    ffi::c_void,
    fs::{File, OpenOptions},
    io,
    os::{
        fd::AsRawFd,
        unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
    ptr,
};

use linux_raw_sys::loop_device::{
    LO_FLAGS_DIRECT_IO, LO_FLAGS_READ_ONLY, LOOP_CLR_FD, LOOP_CONFIGURE, LOOP_CTL_GET_FREE, LOOP_GET_STATUS64,
    loop_config, loop_info64,
};
use rustix::{
    fs::{OFlags, major, minor},
    io::Errno,
    ioctl::{Getter, Ioctl, IoctlOutput, NoArg, Opcode, Setter, ioctl},
};

/// The device's block size: what every partition table and file system can work with.
const BLOCK_BYTES: u32 = 512;

/// Attempts to get a free device, which other processes may take first.
const ATTEMPTS: usize = 64;

/// How the sources of servers' files begin in the table of mounts.
const FILES: &str = "pagefold-files:";

/// A device in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its number: `/dev/loopN`.
    pub number: u32,
    /// The file below it.
    pub file: PathBuf,
}

/// A file below a device. Its numbers identify it even if it was renamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Below {
    /// The device number of its file system.
    pub file_system: u64,
    /// The inode number in this file system.
    pub inode: u64,
    /// The number of the block device that the file is; 0 for a regular file.
    pub device: u64,
}

/// Returns the path of a device.
pub fn path(number: u32) -> PathBuf {
    format!("/dev/loop{number}").into()
}

/// Returns the devices in use, also those of other programs.
///
/// # Errors
/// `/sys` cannot be read.
pub fn devices() -> io::Result<Vec<Device>> {
    let of = |number| {
        let file = super::attribute(Path::new(&format!("/sys/block/loop{number}/loop/backing_file")));
        Ok(file?.map(|file| Device { number, file: file.into() }))
    };
    super::numbers("loop")?.into_iter().filter_map(|number| of(number).transpose()).collect()
}

/// Returns the file below a device.
///
/// # Errors
/// The caller may not read the device, or there is no such device in use.
pub fn file_of(number: u32) -> io::Result<Below> {
    let device = File::open(path(number))?;
    // SAFETY: this command fills a `loop_info64`, of which every bit pattern is valid.
    let info = unsafe { ioctl(device, Getter::<{ LOOP_GET_STATUS64 as Opcode }, loop_info64>::new()) }?;
    Ok(Below { file_system: info.lo_device, inode: info.lo_inode, device: info.lo_rdevice })
}

/// Returns whether a device's file is on a mounted file system that is not the files of a server.
/// That of a server that has ended may be mounted no longer.
///
/// # Errors
/// The caller is not root, there is no such device in use, or `/proc` cannot be read.
pub fn is_foreign(number: u32) -> io::Result<bool> {
    let below = file_of(number)?;
    Ok(is_foreign_in(&std::fs::read_to_string("/proc/self/mountinfo")?, below.file_system))
}

/// The same for a table of mounts (`proc_pid_mountinfo(5)`).
fn is_foreign_in(table: &str, device: u64) -> bool {
    let device = format!("{}:{}", major(device), minor(device));
    table.lines().any(|line| {
        let source = line.split_once(" - ").and_then(|(_, file_system)| file_system.split(' ').nth(1));
        line.split(' ').nth(2) == Some(&device) && source.is_some_and(|source| !source.starts_with(FILES))
    })
}

/// Makes a device over a regular file of `owner`, or of anyone if that is `None`. The device reads and
/// writes it past the page cache if the file allows that. Returns its number.
///
/// # Errors
/// The caller is not root, there are no loop devices, the file cannot be opened, is not a regular file,
/// or is another user's.
pub fn attach(file: &Path, read_only: bool, owner: Option<u32>) -> io::Result<u32> {
    // Otherwise, opening a pipe would wait.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = flags.bits().cast_signed();
    let below = OpenOptions::new().read(true).write(!read_only).custom_flags(flags).open(file)?;
    let metadata = below.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    if owner.is_some_and(|owner| owner != metadata.uid()) {
        let why = format!("it belongs to user {}, not to that of the server", metadata.uid());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
    for _ in 0..ATTEMPTS {
        let number = free_number(&control)?;
        let device = OpenOptions::new().read(true).write(true).open(path(number))?;
        match configure(&device, &below, file, read_only) {
            Ok(()) => return Ok(number),
            Err(Errno::BUSY) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Errno::BUSY.into())
}

/// Detaches the device's file once no program has the device open.
///
/// # Errors
/// The caller is not root, or there is no such device.
pub fn detach(number: u32) -> io::Result<()> {
    let device = File::open(path(number))?;
    // SAFETY: this command has no argument.
    Ok(unsafe { ioctl(device, NoArg::<{ LOOP_CLR_FD as Opcode }>::new()) }?)
}

fn configure(device: &File, below: &File, file: &Path, read_only: bool) -> Result<(), Errno> {
    let mut info = NO_INFO;
    info.lo_flags = LO_FLAGS_DIRECT_IO as u32 | if read_only { LO_FLAGS_READ_ONLY as u32 } else { 0 };
    // Only for lists, and truncated: /sys has the whole path.
    let name = file.as_os_str().as_encoded_bytes();
    let shown = name.len().min(info.lo_file_name.len() - 1);
    info.lo_file_name[..shown].copy_from_slice(&name[..shown]);
    let fd = below.as_raw_fd().cast_unsigned();
    let config = loop_config { fd, block_size: BLOCK_BYTES, info, __reserved: [0; 8] };
    // SAFETY: this command reads a `loop_config`.
    unsafe { ioctl(device, Setter::<{ LOOP_CONFIGURE as Opcode }, loop_config>::new(config)) }
}

const NO_INFO: loop_info64 = loop_info64 {
    lo_device: 0,
    lo_inode: 0,
    lo_rdevice: 0,
    lo_offset: 0,
    lo_sizelimit: 0,
    lo_number: 0,
    lo_encrypt_type: 0,
    lo_encrypt_key_size: 0,
    lo_flags: 0,
    lo_file_name: [0; 64],
    lo_crypt_name: [0; 64],
    lo_encrypt_key: [0; 32],
    lo_init: [0; 2],
};

fn free_number(control: &File) -> io::Result<u32> {
    // SAFETY: `GetFree` describes the command as it is.
    Ok(unsafe { ioctl(control, GetFree) }?)
}

/// [`LOOP_CTL_GET_FREE`], which has no argument and returns a device's number.
struct GetFree;

// SAFETY: the command neither reads nor writes memory of the caller.
unsafe impl Ioctl for GetFree {
    type Output = u32;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        LOOP_CTL_GET_FREE as Opcode
    }

    fn as_ptr(&mut self) -> *mut c_void {
        ptr::null_mut()
    }

    // SAFETY: the pointer, which is null, is not used.
    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<u32> {
        u32::try_from(out).map_err(|_| Errno::INVAL)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{FileExt, MetadataExt},
    };

    use super::*;

    #[test]
    fn files_of_servers_are_known_by_their_mounts() {
        let table = "57 29 0:41 / /a\\040b rw shared:9 master:1 - fuse pagefold-files:/a\\040b rw,user_id=0\n\
                     29 1 254:0 / / rw - ext4 /dev/vda rw\n58 29 0:42 / /c rw - fuse nbdfuse rw\n";
        let is_foreign = |major, minor| is_foreign_in(table, rustix::fs::makedev(major, minor));
        assert_eq!(
            [(0, 41), (254, 0), (0, 42), (0, 43)].map(|(major, minor)| is_foreign(major, minor)),
            [false, true, true, false]
        );
    }

    #[test]
    fn a_device_shows_its_file_until_it_is_detached() {
        let test = "a_device_shows_its_file_until_it_is_detached";
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().canonicalize().expect("a path").join("disk");
        fs::write(&file, vec![7; 1 << 20]).expect("a file");
        // Files named by another user's server are refused before a device is created.
        let other = fs::metadata(&file).expect("a file").uid() + 1;
        let refused = |file: &Path, owner| attach(file, true, owner).expect_err("it is refused").to_string();
        assert!(refused(&file, Some(other)).contains("it belongs to user"));
        assert!(refused(Path::new("/dev/null"), None).contains("it is not a regular file"));
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        refused(&link, None);
        let number = match attach(&file, false, None) {
            Ok(number) => number,
            Err(error) => return pagefold_testing::skip(test, &format!("no loop device: {error}")),
        };
        assert!(devices().expect("/sys").contains(&Device { number, file: file.clone() }));
        let metadata = fs::metadata(&file).expect("a file");
        let below = Below { file_system: metadata.dev(), inode: metadata.ino(), device: 0 };
        assert_eq!(file_of(number).expect("a device in use"), below);
        assert!(is_foreign(number).expect("a device in use"), "the file is not a server's");
        let device = OpenOptions::new().read(true).write(true).open(path(number)).expect("a device");
        let mut sector = [0; 512];
        device.read_exact_at(&mut sector, 512).expect("a read");
        assert_eq!(sector, [7; 512]);
        device.write_all_at(&[8; 512], 1024).expect("a write");
        device.sync_all().expect("a flush");
        drop(device);
        detach(number).expect("a device in use");
        assert!(!devices().expect("/sys").iter().any(|device| device.file == file));
        let content = fs::read(&file).expect("a file");
        assert!(content[1024..1536] == [8; 512] && content[1536..] == [7; (1 << 20) - 1536]);

        let number = attach(&file, true, None).expect("a device");
        let written = OpenOptions::new().write(true).open(path(number)).and_then(|device| device.write_all_at(&[1], 0));
        detach(number).expect("a device in use");
        written.expect_err("a device that is read-only");
    }
}

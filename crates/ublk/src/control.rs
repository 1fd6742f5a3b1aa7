//! Commands to the driver. They need root.
#![allow(unsafe_code)] // entries of the ring name memory

use std::{
    fmt,
    fs::{self, File, OpenOptions},
    io,
    os::fd::AsRawFd,
    path::PathBuf,
    process,
};

use io_uring::{IoUring, cqueue, opcode::UringCmd80, squeue, types::Fd};
use rustix::io::Errno;

use crate::abi::{self, Device, INFO_BYTES, Layout, command, feature};

/// A device to be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct New {
    /// Its queues. The kernel makes at most one for each processor.
    pub layout: Layout,
    /// Whether another server can recover it when its own has ended. Its requests then wait for
    /// one. Set this only for an export that the next server has too.
    pub recovers: bool,
    /// A word by which the creator finds it.
    pub tag: u64,
}

/// The properties of a new device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// Its size, a multiple of 512.
    pub size_bytes: u64,
    /// Whether it refuses changes.
    pub read_only: bool,
}

/// The driver.
pub struct Control {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    file: File,
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("file", &self.file).finish_non_exhaustive()
    }
}

/// Returns the path of a device.
pub fn path(number: u32) -> PathBuf {
    format!("/dev/ublkb{number}").into()
}

/// Returns the numbers of all devices, ascending.
///
/// # Errors
/// `/sys` cannot be read.
pub fn devices() -> io::Result<Vec<u32>> {
    let entries = match fs::read_dir("/sys/class/ublk-char") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut numbers = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        numbers.extend(name.to_str().and_then(|name| name.strip_prefix("ublkc")?.parse::<u32>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Returns whether the driver does not know a command.
fn is_unknown(error: &io::Error) -> bool {
    /// The error of older drivers: `ENOTSUPP`, which user space does not know.
    const OLDER: i32 = 524;
    error.raw_os_error().is_some_and(|number| number == Errno::OPNOTSUPP.raw_os_error() || number == OLDER)
}

impl Control {
    /// Opens the driver.
    ///
    /// # Errors
    /// [`NotFound`](io::ErrorKind::NotFound) if the kernel does not have it, perhaps because its module
    /// is not loaded. [`Unsupported`](io::ErrorKind::Unsupported) if it is too old. The caller is not
    /// root, or may not use io_uring.
    pub fn open() -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open("/dev/ublk-control")?;
        let mut control = Self { ring: IoUring::builder().build(4)?, file };
        let mut features = [0; 8];
        let known = match control.call(command::GET_FEATURES, 0, &mut features, 0) {
            Ok(()) => u64::from_ne_bytes(features),
            Err(error) if is_unknown(&error) => 0,
            Err(error) => return Err(error),
        };
        let needed = feature::USER_COPY | feature::IOCTL_ENCODE;
        if known & needed != needed {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "its ublk driver is older than Linux 6.5"));
        }
        Ok(control)
    }

    /// Creates a device, which has to be [started](Self::start).
    ///
    /// # Errors
    /// The kernel's.
    pub fn add(&mut self, new: New) -> io::Result<Device> {
        let recovery = if new.recovers { feature::USER_RECOVERY | feature::RECOVERY_REISSUE } else { 0 };
        let features = feature::USER_COPY | feature::IOCTL_ENCODE | recovery;
        let mut info = Device::encode_new(new.layout, features, new.tag, process::id().cast_signed());
        self.call(command::ADD, abi::NEW, &mut info, 0)?;
        let device = Device::decode(&info);
        // The kernel leaves out what it does not know.
        let max_data_bytes = device.max_data_bytes as usize;
        let is_odd = device.layout.queues == 0
            || device.layout.depth != new.layout.depth
            || max_data_bytes > abi::MAX_DATA_BYTES
            || max_data_bytes == 0;
        if device.features & features != features || is_odd {
            let _ = self.delete(device.number);
            return Err(io::Error::other("the kernel made another device than it was asked for"));
        }
        Ok(device)
    }

    /// Sets a device's properties before it is started.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_params(&mut self, number: u32, params: Params) -> io::Result<()> {
        let max_data_bytes = self.info(number)?.max_data_bytes;
        let mut bytes = abi::encode_params(params.size_bytes, params.read_only, max_data_bytes);
        self.call(command::SET_PARAMS, number, &mut bytes, 0)
    }

    /// Starts a device. Waits until all its queues are [served](crate::Served). The process that calls
    /// this is the one that has [opened](Device::open) it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn start(&mut self, number: u32) -> io::Result<()> {
        self.call(command::START, number, &mut [], process::id().into())
    }

    /// Begins the recovery of a device whose server has ended. It then has to be served again.
    ///
    /// # Errors
    /// The kernel's: EBUSY if its server has not ended yet.
    pub fn begin_recovery(&mut self, number: u32) -> io::Result<()> {
        self.call(command::BEGIN_RECOVERY, number, &mut [], 0)
    }

    /// Ends the recovery, as [`start`](Self::start) does for a new device.
    ///
    /// # Errors
    /// The kernel's.
    pub fn end_recovery(&mut self, number: u32) -> io::Result<()> {
        self.call(command::END_RECOVERY, number, &mut [], process::id().into())
    }

    /// Returns the driver's description of a device.
    ///
    /// # Errors
    /// There is no such device.
    pub fn info(&mut self, number: u32) -> io::Result<Device> {
        let mut info = [0; INFO_BYTES];
        self.call(command::GET_INFO, number, &mut info, 0)?;
        Ok(Device::decode(&info))
    }

    /// Stops a device. Requests in flight fail, and further ones too.
    ///
    /// # Errors
    /// There is no such device.
    pub fn stop(&mut self, number: u32) -> io::Result<()> {
        self.call(command::STOP, number, &mut [], 0)
    }

    /// Stops and removes a device. Its number is free once no program has it open. A driver before Linux 6.11
    /// waits until then.
    ///
    /// # Errors
    /// There is no such device.
    pub fn delete(&mut self, number: u32) -> io::Result<()> {
        match self.delete_later(number) {
            Err(error) if is_unknown(&error) => self.call(command::DELETE, number, &mut [], 0),
            result => result,
        }
    }

    /// Like `delete`, but never waits.
    ///
    /// # Errors
    /// There is no such device, or the driver cannot remove one without waiting.
    pub fn delete_later(&mut self, number: u32) -> io::Result<()> {
        self.call(command::DELETE_LATER, number, &mut [], 0)
    }

    /// Runs a command, which reads and writes `buf`.
    fn call(&mut self, command: u32, number: u32, buf: &mut [u8], data: u64) -> io::Result<()> {
        // At most a page.
        let len_bytes = u16::try_from(buf.len()).map_err(io::Error::other)?;
        // If this thread cannot find out whether the command has ended, the command's memory is
        // never freed.
        let memory = buf.to_vec().leak();
        let address = if memory.is_empty() { 0 } else { memory.as_mut_ptr() as u64 };
        let word = abi::encode_control(number, len_bytes, address, data);
        let entry = UringCmd80::new(Fd(self.file.as_raw_fd()), command).cmd(word).build();
        // SAFETY: the file is open, and the memory is not used by others, until the command has ended.
        unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)?;
        let result = loop {
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            if let Some(done) = self.ring.completion().next() {
                break done.result();
            }
        };
        buf.copy_from_slice(memory);
        // SAFETY: it was leaked above, and the command has ended.
        drop(unsafe { Box::from_raw(memory) });
        if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) }
    }
}

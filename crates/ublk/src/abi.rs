//! The structures that the driver and its servers exchange (Linux,
//! `include/uapi/linux/ublk_cmd.h`).

use std::{
    fs::{File, OpenOptions},
    io,
};

/// Length of a sector, the unit of positions and sizes.
pub(crate) const SECTOR_BYTES: u64 = 512;
/// Maximum number of queues of a device.
pub const MAX_QUEUES: u16 = 64;
/// Maximum number of requests in flight in a queue.
pub const MAX_DEPTH: u16 = 4096;
/// Maximum length of one request's data.
pub(crate) const MAX_DATA_BYTES: usize = 128 << 10;
/// Bytes of one range to discard or to fill with zeros.
pub(crate) const MAX_DISCARD_BYTES: u64 = 1 << 30;

/// Length of the argument of commands to the driver, a part of the commands' numbers.
const CONTROL_BYTES: u32 = 32;
/// The same for commands to a device.
pub(crate) const IO_BYTES: usize = 16;

/// Returns a command's number, as ioctls have them.
const fn number(is_written: bool, command: u32, len_bytes: u32) -> u32 {
    let direction = if is_written { 3 } else { 2 };
    direction << 30 | len_bytes << 16 | (b'u' as u32) << 8 | command
}

/// Commands to the driver.
pub(crate) mod command {
    use super::{CONTROL_BYTES, number};

    pub(crate) const GET_INFO: u32 = number(false, 0x02, CONTROL_BYTES);
    pub(crate) const ADD: u32 = number(true, 0x04, CONTROL_BYTES);
    pub(crate) const DELETE: u32 = number(true, 0x05, CONTROL_BYTES);
    pub(crate) const START: u32 = number(true, 0x06, CONTROL_BYTES);
    pub(crate) const STOP: u32 = number(true, 0x07, CONTROL_BYTES);
    pub(crate) const SET_PARAMS: u32 = number(true, 0x08, CONTROL_BYTES);
    pub(crate) const BEGIN_RECOVERY: u32 = number(true, 0x10, CONTROL_BYTES);
    pub(crate) const END_RECOVERY: u32 = number(true, 0x11, CONTROL_BYTES);
    pub(crate) const GET_FEATURES: u32 = number(false, 0x13, CONTROL_BYTES);
    pub(crate) const DELETE_LATER: u32 = number(false, 0x14, CONTROL_BYTES);
}

/// Commands to a device.
pub(crate) mod io_command {
    use super::{IO_BYTES, number};

    pub(crate) const FETCH: u32 = number(true, 0x20, IO_BYTES as u32);
    pub(crate) const COMMIT_AND_FETCH: u32 = number(true, 0x21, IO_BYTES as u32);
}

/// Features of a device.
pub(crate) mod feature {
    pub(crate) const USER_RECOVERY: u64 = 1 << 3;
    pub(crate) const RECOVERY_REISSUE: u64 = 1 << 4;
    pub(crate) const IOCTL_ENCODE: u64 = 1 << 6;
    pub(crate) const USER_COPY: u64 = 1 << 7;
}

/// How many requests a device can have in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Number of its queues, at most [`MAX_QUEUES`]. Each is served by a thread.
    pub queues: u16,
    /// Requests of a queue, at most [`MAX_DEPTH`].
    pub depth: u16,
}

/// The state of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// The device was not started yet.
    New,
    /// It was stopped, or its server has ended. Its requests fail.
    Dead,
    /// It is served.
    Live,
    /// Its server has ended, and another may recover it. Its requests wait.
    Quiesced,
    /// A state that only a newer kernel knows.
    Other(u16),
}

/// A device, as the driver describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Device {
    /// Its number: `/dev/ublkbN`.
    pub number: u32,
    /// Its queues.
    pub layout: Layout,
    /// The operation.
    pub state: State,
    /// A number of the creator's choice.
    pub tag: u64,
    pub(crate) features: u64,
    pub(crate) max_data_bytes: u32,
}

pub(crate) const INFO_BYTES: usize = 64;
/// Used instead of a number: the driver chooses one.
const ANY_NUMBER: u32 = u32::MAX;

impl Device {
    /// Returns the argument of `ADD`. `creator` is a process: a device that was started and stopped
    /// has -1 instead.
    pub(crate) fn encode_new(layout: Layout, features: u64, tag: u64, creator: i32) -> [u8; INFO_BYTES] {
        let mut bytes = [0; INFO_BYTES];
        bytes[0..2].copy_from_slice(&layout.queues.to_ne_bytes());
        bytes[2..4].copy_from_slice(&layout.depth.to_ne_bytes());
        bytes[8..12].copy_from_slice(&(MAX_DATA_BYTES as u32).to_ne_bytes());
        bytes[12..16].copy_from_slice(&ANY_NUMBER.to_ne_bytes());
        bytes[16..20].copy_from_slice(&creator.to_ne_bytes());
        bytes[24..32].copy_from_slice(&features.to_ne_bytes());
        bytes[32..40].copy_from_slice(&tag.to_ne_bytes());
        bytes
    }

    /// ```text
    ///  0 queues (2)   2 depth (2)   4 state (2)   8 most bytes of a request (4)   12 number (4)
    /// 16 process (4)   24 features (8)   32 the creator's word (8)   40 owner (8)   48 unused
    /// ```
    pub(crate) fn decode(bytes: &[u8; INFO_BYTES]) -> Self {
        let half = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| {
            let mut long = [0; 8];
            long.copy_from_slice(&bytes[at..at + 8]);
            u64::from_ne_bytes(long)
        };
        let state = match (half(4), word(16).cast_signed()) {
            (0, -1) => State::Dead,
            (0, _) => State::New,
            (1, _) => State::Live,
            (2, _) => State::Quiesced,
            (other, _) => State::Other(other),
        };
        Self {
            number: word(12),
            layout: Layout { queues: half(0), depth: half(2) },
            state,
            tag: long(32),
            features: long(24),
            max_data_bytes: word(8),
        }
    }

    /// Returns whether a server can recover it after its own has ended.
    pub fn recovers(&self) -> bool {
        self.features & feature::USER_RECOVERY != 0
    }

    /// Opens the device for its server. Only one process can have it open, with all the descriptors that
    /// it shares.
    ///
    /// # Errors
    /// The caller lacks permission, or another process has the device open.
    pub fn open(&self) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).open(format!("/dev/ublkc{}", self.number))
    }
}

/// The command word of a control command, which is at the start of 80 bytes.
pub(crate) fn encode_control(number: u32, len_bytes: u16, address: u64, data: u64) -> [u8; 80] {
    /// Used instead of a queue: the command is for the whole device.
    const NO_QUEUE: u16 = u16::MAX;
    let mut bytes = [0; 80];
    bytes[0..4].copy_from_slice(&number.to_ne_bytes());
    bytes[4..6].copy_from_slice(&NO_QUEUE.to_ne_bytes());
    bytes[6..8].copy_from_slice(&len_bytes.to_ne_bytes());
    bytes[8..16].copy_from_slice(&address.to_ne_bytes());
    bytes[16..24].copy_from_slice(&data.to_ne_bytes());
    bytes
}

/// The number in the argument of `ADD`.
pub(crate) const NEW: u32 = ANY_NUMBER;

pub(crate) const PARAMS_BYTES: usize = 60;

/// Returns a device's parameters.
///
/// ```text
///  0 length (4)   4 types (4): 1 basic, 2 discard
///  8 attributes (4): 1 read-only, 4 has a volatile cache, 8 knows FUA
/// 12 log2 of the logical and physical block size, optimal and least size of a request (1 each)
/// 16 most sectors of a request (4)   20 chunk (4)   24 sectors (8)   32 virtual boundary (8)
/// 40 discard: alignment (4), granularity (4), most sectors (4), most sectors of zeros (4), segments (2)
/// ```
pub(crate) fn encode_params(size_bytes: u64, read_only: bool, max_data_bytes: u32) -> [u8; PARAMS_BYTES] {
    const BASIC: u32 = 1;
    const DISCARD: u32 = 2;
    const READ_ONLY: u32 = 1;
    const CACHE: u32 = 1 << 2;
    const FUA: u32 = 1 << 3;
    let (types, attributes) = if read_only { (BASIC, READ_ONLY) } else { (BASIC | DISCARD, CACHE | FUA) };
    let sectors = (MAX_DISCARD_BYTES / SECTOR_BYTES) as u32;
    let mut bytes = [0; PARAMS_BYTES];
    bytes[0..4].copy_from_slice(&(PARAMS_BYTES as u32).to_ne_bytes());
    bytes[4..8].copy_from_slice(&types.to_ne_bytes());
    bytes[8..12].copy_from_slice(&attributes.to_ne_bytes());
    // Requests of 512 bytes are possible, those of a page are better.
    bytes[12..16].copy_from_slice(&[9, 12, 12, 12]);
    bytes[16..20].copy_from_slice(&(max_data_bytes / SECTOR_BYTES as u32).to_ne_bytes());
    bytes[24..32].copy_from_slice(&(size_bytes / SECTOR_BYTES).to_ne_bytes());
    bytes[44..48].copy_from_slice(&4096_u32.to_ne_bytes());
    bytes[48..52].copy_from_slice(&sectors.to_ne_bytes());
    bytes[52..56].copy_from_slice(&sectors.to_ne_bytes());
    bytes[56..58].copy_from_slice(&1_u16.to_ne_bytes());
    bytes
}

/// Returns the command word of an answer, or of the first wait for a request.
pub(crate) fn encode_io(queue: u16, tag: u16, result: i32) -> [u8; IO_BYTES] {
    let mut bytes = [0; IO_BYTES];
    bytes[0..2].copy_from_slice(&queue.to_ne_bytes());
    bytes[2..4].copy_from_slice(&tag.to_ne_bytes());
    bytes[4..8].copy_from_slice(&result.to_ne_bytes());
    bytes
}

/// Where the descriptors of a queue are in a device's file.
pub(crate) const fn descriptors_at(queue: u16) -> u64 {
    queue as u64 * (MAX_DEPTH as u64 * DESCRIPTOR_BYTES as u64)
}

/// Where the data of a request is in a device's file.
pub(crate) const fn data_at(queue: u16, tag: u16) -> u64 {
    0x8000_0000 + ((queue as u64) << 41 | (tag as u64) << 25)
}

pub(crate) const DESCRIPTOR_BYTES: usize = 24;

/// Kinds of requests, and their flags.
pub(crate) mod request {
    pub(crate) const KIND: u32 = 0xff;
    pub(crate) const READ: u32 = 0;
    pub(crate) const WRITE: u32 = 1;
    pub(crate) const FLUSH: u32 = 2;
    pub(crate) const DISCARD: u32 = 3;
    pub(crate) const WRITE_ZEROES: u32 = 5;
    pub(crate) const FUA: u32 = 1 << 13;
    pub(crate) const NO_UNMAP: u32 = 1 << 15;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_header() {
        assert_eq!([command::ADD, command::GET_INFO, command::DELETE_LATER], [0xc020_7504, 0x8020_7502, 0x8020_7514]);
        assert_eq!([io_command::FETCH, io_command::COMMIT_AND_FETCH], [0xc010_7520, 0xc010_7521]);
        assert_eq!((descriptors_at(1), descriptors_at(0) % 4096), (98_304, 0));
        assert_eq!((data_at(0, 0), data_at(1, 2)), (1 << 31, (1 << 31) + (1 << 41) + (2 << 25)));
    }

    #[test]
    fn a_device_is_decoded_as_it_was_encoded() {
        let layout = Layout { queues: 3, depth: 64 };
        let mut bytes = Device::encode_new(layout, feature::USER_COPY, 77, 5);
        let device = Device::decode(&bytes);
        assert_eq!((device.layout, device.tag, device.state, device.recovers()), (layout, 77, State::New, false));
        bytes[16..20].copy_from_slice(&(-1_i32).to_ne_bytes());
        assert_eq!(Device::decode(&bytes).state, State::Dead);
        bytes[4] = 2;
        assert_eq!(Device::decode(&bytes).state, State::Quiesced);
    }
}

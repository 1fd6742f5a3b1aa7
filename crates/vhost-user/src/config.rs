//! The device's features and its configuration space.

use crate::request::{MAX_DISCARD_SECTORS, MAX_DISCARD_SEGMENTS, MAX_SEGMENTS, SECTOR_BYTES};

/// Queues that a frontend may use.
pub(crate) const MAX_QUEUES: u16 = 64;
/// Maximum number of descriptors of a queue.
pub(crate) const MAX_QUEUE_SIZE: u16 = 1024;

/// Feature bits of virtio, of its block device, and of vhost-user.
pub(crate) mod feature {
    pub(crate) const SEG_MAX: u64 = 1 << 2;
    pub(crate) const RO: u64 = 1 << 5;
    pub(crate) const BLK_SIZE: u64 = 1 << 6;
    pub(crate) const FLUSH: u64 = 1 << 9;
    pub(crate) const TOPOLOGY: u64 = 1 << 10;
    pub(crate) const CONFIG_WCE: u64 = 1 << 11;
    pub(crate) const MQ: u64 = 1 << 12;
    pub(crate) const DISCARD: u64 = 1 << 13;
    pub(crate) const WRITE_ZEROES: u64 = 1 << 14;
    pub(crate) const RING_INDIRECT: u64 = 1 << 28;
    pub(crate) const RING_EVENT_IDX: u64 = 1 << 29;
    pub(crate) const PROTOCOL_FEATURES: u64 = 1 << 30;
    pub(crate) const VERSION_1: u64 = 1 << 32;
}

/// Feature bits of the vhost-user protocol.
pub(crate) mod protocol {
    pub(crate) const MQ: u64 = 1;
    pub(crate) const REPLY_ACK: u64 = 1 << 3;
    pub(crate) const BACKEND_REQ: u64 = 1 << 5;
    pub(crate) const CONFIG: u64 = 1 << 9;
    pub(crate) const INFLIGHT_SHMFD: u64 = 1 << 12;
    pub(crate) const RESET_DEVICE: u64 = 1 << 13;
    pub(crate) const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;

    pub(crate) const ALL: u64 =
        MQ | REPLY_ACK | BACKEND_REQ | CONFIG | INFLIGHT_SHMFD | RESET_DEVICE | CONFIGURE_MEM_SLOTS;
}

/// Returns the features of a device.
pub(crate) fn features(read_only: bool) -> u64 {
    use feature::{
        BLK_SIZE, CONFIG_WCE, DISCARD, FLUSH, MQ, PROTOCOL_FEATURES, RING_EVENT_IDX, RING_INDIRECT, RO, SEG_MAX,
        TOPOLOGY, VERSION_1, WRITE_ZEROES,
    };
    let all = SEG_MAX | BLK_SIZE | FLUSH | TOPOLOGY | CONFIG_WCE | MQ | RING_INDIRECT | RING_EVENT_IDX;
    let of_kind = if read_only { RO } else { DISCARD | WRITE_ZEROES };
    all | of_kind | PROTOCOL_FEATURES | VERSION_1
}

/// Bytes of the configuration space that the device fills.
const SPACE_BYTES: usize = 60;
/// Bytes that a frontend may ask for. Those after [`SPACE_BYTES`] are zeros.
const MAX_SPACE_BYTES: usize = 256;
/// Position of the byte with which the driver chooses between write-back (1) and write-through (0).
pub(crate) const WRITE_BACK_AT: u32 = 32;

/// The values of the configuration space.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Space {
    pub(crate) size_bytes: u64,
    pub(crate) queues: u16,
    pub(crate) write_back: bool,
}

impl Space {
    /// Returns a part of the configuration space, or `None` if it is not within it.
    ///
    /// ```text
    ///  0 capacity       8 size_max   12 seg_max   16 geometry (4)   20 blk_size
    /// 24 physical_block_exp   25 alignment_offset   26 min_io_size (2)   28 opt_io_size
    /// 32 writeback   33 unused   34 num_queues (2)
    /// 36 max_discard_sectors   40 max_discard_seg   44 discard_sector_alignment
    /// 48 max_write_zeroes_sectors   52 max_write_zeroes_seg   56 write_zeroes_may_unmap (4)
    /// ```
    pub(crate) fn part(&self, offset: u32, len_bytes: u32) -> Option<Vec<u8>> {
        let (offset, len_bytes) = (offset as usize, len_bytes as usize);
        let end = offset.checked_add(len_bytes).filter(|end| *end <= MAX_SPACE_BYTES)?;
        let mut space = Vec::with_capacity(MAX_SPACE_BYTES);
        space.extend_from_slice(&(self.size_bytes / SECTOR_BYTES).to_le_bytes());
        let sectors = MAX_DISCARD_SECTORS.to_le_bytes();
        let [no_limit, geometry, no_preference, one] = [0_u32, 0, 0, 1].map(u32::to_le_bytes);
        for word in [no_limit, MAX_SEGMENTS.to_le_bytes(), geometry, 512_u32.to_le_bytes()] {
            space.extend_from_slice(&word);
        }
        // 8 sectors are one page. No request should be smaller.
        space.extend_from_slice(&[3, 0, 8, 0]);
        space.extend_from_slice(&no_preference);
        let queues = self.queues.to_le_bytes();
        space.extend_from_slice(&[u8::from(self.write_back), 0, queues[0], queues[1]]);
        let segments = MAX_DISCARD_SEGMENTS.to_le_bytes();
        for word in [sectors, segments, 8_u32.to_le_bytes(), sectors, segments, one] {
            space.extend_from_slice(&word);
        }
        debug_assert_eq!(space.len(), SPACE_BYTES);
        space.resize(MAX_SPACE_BYTES, 0);
        space.get(offset..end).map(<[u8]>::to_vec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_the_space_is_where_it_should_be() {
        let space = Space { size_bytes: 5 << 30, queues: 0x0304, write_back: true };
        let whole = space.part(0, MAX_SPACE_BYTES as u32).expect("all of it");
        assert_eq!(whole[..8], (10_u64 << 20).to_le_bytes());
        assert_eq!((whole[12], whole[20..24].to_vec(), whole[24]), (126, vec![0, 2, 0, 0], 3));
        assert_eq!((whole[WRITE_BACK_AT as usize], &whole[34..36]), (1, &[4, 3][..]));
        assert!(whole[SPACE_BYTES..].iter().all(|byte| *byte == 0));
        for (offset, len) in [(0, 257), (256, 1), (u32::MAX, 1), (1, u32::MAX), (u32::MAX, u32::MAX)] {
            assert_eq!(space.part(offset, len), None);
        }
        assert_eq!(space.part(34, 2), Some(vec![4, 3]));
        assert_eq!(space.part(256, 0), Some(Vec::new()));
    }
}

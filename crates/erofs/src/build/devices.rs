//! The devices of an image that refers to clusters of its base's image instead of copying them.
//!
//! ```text
//! addresses   0                                                              2^32 - 1
//!             | new image ...         | base's image | the base's own devices |
//! device                                1              2, 3, ...
//! ```
//!
//! Addresses are assigned before the length of the new image is known, so devices are at the end.

use std::sync::Arc;

use super::base::{BaseSpot, Device, OverlayBase};
use super::content::Content;
use super::options::BuildOptions;
use super::tree::{NodeKind, Tree};
use crate::error::{Error, Result};
use crate::format::{DeviceSlot, Identity, NULL_ADDR};

/// The device table.
#[derive(Default)]
pub(crate) struct Devices {
    /// In the order of their numbers and addresses, each with its first block.
    table: Vec<(u32, Device)>,
    block_bits: u32,
}

impl Devices {
    /// Returns the devices that an image of `tree` refers to.
    pub(super) fn of(tree: &Tree, options: &BuildOptions) -> Result<Self> {
        if !options.base_is_device {
            return Ok(Self::default());
        }
        let refuse = |what: &str| Err(Error::Options(what.to_owned()));
        let mut found: Option<&Arc<dyn OverlayBase>> = None;
        for visit in tree.walk() {
            let NodeKind::Regular { content: Content::Overlay(overlay), .. } = &tree.node(visit.id).kind else {
                continue;
            };
            match (&overlay.base, found) {
                (Some(base), Some(other)) if !Arc::ptr_eq(base, other) => {
                    return refuse("an image refers to one base at most");
                }
                (Some(base), _) => found = Some(base),
                (None, _) => {}
            }
        }
        let Some(base) = found else { return refuse("there is no base to refer to") };
        if base.base_image().block_bytes != u64::from(options.block_bytes) {
            return refuse("an image that refers to a base must have the base's block size");
        }
        let mut devices = base.devices();
        if let (Some(sum), Some(own)) = (options.base_sha256, devices.first_mut()) {
            own.tag = Identity::Blob(sum).tag();
        }
        if devices.len() > usize::from(u16::MAX) {
            return refuse("the base has too many devices");
        }
        let mut table = Vec::with_capacity(devices.len());
        let mut end = NULL_ADDR;
        for device in devices.into_iter().rev() {
            let start = u32::try_from(device.blocks).ok().and_then(|blocks| end.checked_sub(blocks));
            let Some(start) = start.filter(|start| *start > 0) else {
                return refuse("the base's image exceeds 2^32 blocks");
            };
            table.push((start, device));
            end = start;
        }
        table.reverse();
        Ok(Self { table, block_bits: options.block_bits() })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    pub(super) fn count(&self) -> u16 {
        self.table.len() as u16
    }

    /// Returns the block at which the new image must end.
    pub(super) fn limit(&self) -> u32 {
        self.table.first().map_or(NULL_ADDR, |(start, _)| *start)
    }

    /// Returns the address of blocks of the base; `None` if they are not all on one of its devices.
    pub(super) fn address(&self, spot: BaseSpot, len_bytes: u64) -> Option<u32> {
        let (start, device) = self.table.get(spot.device)?;
        let end = spot.offset.checked_add(len_bytes)?;
        let is_there = spot.offset.is_multiple_of(1 << self.block_bits) && end <= device.blocks << self.block_bits;
        is_there.then(|| start + (spot.offset >> self.block_bits) as u32)
    }

    /// Returns the device and the block on it that an address stands for.
    pub(super) fn locate(&self, address: u32) -> (u16, u32) {
        let number = self.table.partition_point(|(start, _)| *start <= address);
        let start = number.checked_sub(1).map_or(0, |last| self.table[last].0);
        (number as u16, address - start)
    }

    /// Returns whether Linux would mistake the chunk at `next` for the continuation of one of `blocks`
    /// blocks at `address`. It compares only the blocks' numbers, not the devices, when it joins the
    /// reads of uncompressed chunks (seen in 6.18, `iomap`).
    pub(super) fn is_mistaken(&self, address: u32, blocks: u32, next: u32) -> bool {
        if address == NULL_ADDR || next == NULL_ADDR {
            return false;
        }
        let ((device, block), (next_device, next_block)) = (self.locate(address), self.locate(next));
        device != next_device && u64::from(block) + u64::from(blocks) == u64::from(next_block)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let slot = |(start, device): &(u32, Device)| DeviceSlot {
            tag: device.tag,
            blocks: device.blocks as u32,
            uniaddr: *start,
            blocks_hi: 0,
            uniaddr_hi: 0,
            reserved: [0; 52],
        };
        self.table.iter().flat_map(|device| slot(device).encode()).collect()
    }
}

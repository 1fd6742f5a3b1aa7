//! The other devices with an image's data: files in addition to the image, listed in its device table.
//!
//! ```text
//! a chunk           names a device by number and a block on it; number 0 means a unified address
//! all other data    has a unified address: a block of the image, or of the range that the table maps
//!                   to a device
//! metadata          is always in the image
//! ```
//!
//! If no devices are given, devices that the table maps to blocks of the image are assumed to be
//! there, as Linux does.

use pagefold_storage::ReadAt;
use sha2::{Digest as _, Sha256};

use crate::error::{Error, Result};
use crate::format::{DeviceSlot, Identity, SUPER_MAGIC, SUPER_OFFSET, SuperBlock};

/// A device is compared with its sum in pieces of this size.
const PIECE_BYTES: u64 = 1 << 20;

/// A location on one of an image's devices; device 0 is the image itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Spot {
    pub(crate) device: u16,
    pub(crate) offset: u64,
}

/// A device, as the table describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Mapped {
    /// The unified address of its first byte; 0 if it has none.
    start: u64,
    len_bytes: u64,
    number: u16,
}

/// An image's other devices.
#[derive(Default)]
pub(crate) struct Devices {
    /// By number, minus 1.
    table: Vec<Mapped>,
    /// The devices with unified addresses, sorted by address.
    unified: Vec<Mapped>,
    /// Empty if all devices are within the image.
    sources: Vec<Box<dyn ReadAt>>,
    /// By number, minus 1.
    tags: Vec<[u8; 64]>,
}

impl Devices {
    /// Opens the devices of the table. Each must be given and be at least as long as the table
    /// says. If `wide`, block addresses and counts in the table have 48 bits.
    pub(crate) fn open(
        slots: &[DeviceSlot],
        (block_bytes, wide): (u64, bool),
        sources: Vec<Box<dyn ReadAt>>,
        image_bytes: u64,
    ) -> Result<Self> {
        let bytes = |low: u32, high: u16| {
            let blocks = u64::from(low) | if wide { u64::from(high) << 32 } else { 0 };
            blocks.saturating_mul(block_bytes)
        };
        let mapped = |(number, slot): (u16, &DeviceSlot)| Mapped {
            start: bytes(slot.uniaddr, slot.uniaddr_hi),
            len_bytes: bytes(slot.blocks, slot.blocks_hi),
            number,
        };
        let table: Vec<_> = (1..).zip(slots).map(mapped).collect();
        let tags = slots.iter().map(|slot| slot.tag).collect();
        let mut unified: Vec<_> = table.iter().filter(|device| device.start > 0).copied().collect();
        unified.sort_unstable();
        let in_image =
            |device: &Mapped| device.start > 0 && device.start.saturating_add(device.len_bytes) <= image_bytes;
        if sources.is_empty() && table.iter().all(in_image) {
            return Ok(Self { table, unified: Vec::new(), sources, tags });
        }
        if sources.len() != table.len() {
            let needed = match table.len() {
                0 => "no other device".to_owned(),
                1 => "1 other device".to_owned(),
                count => format!("{count} other devices"),
            };
            let given = match sources.len() {
                0 => "none was given".to_owned(),
                1 => "1 was given".to_owned(),
                count => format!("{count} were given"),
            };
            return Err(Error::Devices(format!("the image needs {needed}, but {given}")));
        }
        for (device, source) in table.iter().zip(&sources) {
            let number = device.number;
            let len_bytes =
                source.len_bytes().map_err(Error::io(format!("asking for the length of device {number}")))?;
            if len_bytes < device.len_bytes {
                let wanted = device.len_bytes;
                return Err(Error::Devices(format!(
                    "device {number} has {len_bytes} bytes, but the image expects {wanted}: does it belong to another image?"
                )));
            }
            if let Some(wanted) = Identity::of_tag(&slots[usize::from(number) - 1].tag) {
                check(number, &**source, len_bytes, wanted)?;
            }
        }
        Ok(Self { table, unified, sources, tags })
    }

    /// Returns the devices that are not within the image, with their tags and lengths in bytes.
    pub(crate) fn others(&self) -> impl Iterator<Item = ([u8; 64], u64)> + '_ {
        let others = if self.sources.is_empty() { &[][..] } else { &self.table };
        others.iter().zip(&self.tags).map(|(device, tag)| (*tag, device.len_bytes))
    }

    /// Resolves an address on the device `number`. Returns `None` if there is no such device.
    pub(crate) fn spot(&self, number: u16, address: u64) -> Option<Spot> {
        // The mask is the smallest that fits all numbers; bits above it have other uses.
        let number = number & (self.table.len() + 1).next_power_of_two().wrapping_sub(1) as u16;
        if number > 0 {
            let device = self.table.get(usize::from(number) - 1)?;
            return Some(match self.sources.is_empty() {
                true => Spot { device: 0, offset: device.start.checked_add(address)? },
                false => Spot { device: number, offset: address },
            });
        }
        let before = self.unified.partition_point(|device| device.start <= address);
        let device = before.checked_sub(1).map(|last| self.unified[last]);
        Some(match device.filter(|device| address - device.start < device.len_bytes) {
            Some(device) => Spot { device: device.number, offset: address - device.start },
            None => Spot { device: 0, offset: address },
        })
    }

    /// Returns whether the table is empty, so that all data is in the image.
    pub(crate) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Returns a device's length in bytes according to the table; 0 if there is no such device.
    pub(crate) fn len_bytes(&self, device: u16) -> u64 {
        usize::from(device)
            .checked_sub(1)
            .and_then(|number| self.table.get(number))
            .map_or(0, |device| device.len_bytes)
    }

    /// Returns whether one of them is far.
    pub(crate) fn are_far(&self) -> bool {
        self.sources.iter().any(|source| source.is_far())
    }

    pub(crate) fn source(&self, device: u16) -> Option<&dyn ReadAt> {
        self.sources.get(usize::from(device).checked_sub(1)?).map(|source| &**source)
    }
}

/// Checks that a device matches its tag.
fn check(number: u16, source: &dyn ReadAt, len_bytes: u64, wanted: Identity) -> Result<()> {
    let wrong = |what: String| Err(Error::Devices(format!("device {number} {what}")));
    match wanted {
        Identity::Image(_) => match image_in(source, len_bytes)? {
            Some(found) if found == wanted => Ok(()),
            Some(found) => wrong(format!("is the image {found}, but the image expects the image {wanted}")),
            None => wrong(format!("is not an EROFS image; the image expects EROFS image {wanted} here")),
        },
        Identity::Blob(sum) => {
            let found = match source.blob_sha256() {
                Some(found) => found,
                None if source.is_far() => {
                    return wrong(format!(
                        "is named by the SHA-256 sum {wanted}, with which only a file can be compared, or an image in \
                        a registry whose URL ends with @sha256:DIGITS, the sum of its manifest"
                    ));
                }
                None => sha256(source, len_bytes)?,
            };
            if found == sum {
                return Ok(());
            }
            let found = Identity::Blob(found);
            wrong(format!("has the SHA-256 sum {found}, but the image expects {wanted}"))
        }
    }
}

/// Returns which image a device holds; `None` if it holds none.
fn image_in(source: &dyn ReadAt, len_bytes: u64) -> Result<Option<Identity>> {
    let mut bytes = [0; SuperBlock::SIZE];
    if len_bytes < SUPER_OFFSET + bytes.len() as u64 {
        return Ok(None);
    }
    source.read_exact_at(&mut bytes, SUPER_OFFSET).map_err(Error::io("reading the superblock of a device"))?;
    let superblock = SuperBlock::decode(&bytes);
    Ok((superblock.magic == SUPER_MAGIC).then_some(Identity::Image(superblock.uuid)))
}

/// Reads a whole device.
fn sha256(source: &dyn ReadAt, len_bytes: u64) -> Result<[u8; 32]> {
    let mut sum = Sha256::new();
    let mut bytes = vec![0; PIECE_BYTES.min(len_bytes) as usize];
    let mut at = 0;
    while at < len_bytes {
        let piece = &mut bytes[..PIECE_BYTES.min(len_bytes - at) as usize];
        source.read_exact_at(piece, at).map_err(Error::io("reading a device to compare it with its tag"))?;
        sum.update(&*piece);
        at += piece.len() as u64;
    }
    Ok(sum.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(blocks: u32, uniaddr: u32) -> DeviceSlot {
        DeviceSlot { tag: [0; 64], blocks, uniaddr, blocks_hi: 0, uniaddr_hi: 0, reserved: [0; 52] }
    }

    fn sources(lens: &[usize]) -> Vec<Box<dyn ReadAt>> {
        lens.iter().map(|len| Box::new(vec![0u8; *len]) as Box<dyn ReadAt>).collect()
    }

    #[test]
    fn addresses_lead_to_devices() {
        let slots = [slot(2, 100), slot(3, 0), slot(1, 50)];
        let devices = Devices::open(&slots, (512, false), sources(&[1024, 2000, 512]), 10_000).unwrap();
        let spot = |number, address| devices.spot(number, address).map(|spot| (spot.device, spot.offset));
        for (number, address, expected) in [
            (0, 0, (0, 0)),
            (0, 50 * 512 - 1, (0, 50 * 512 - 1)),
            (0, 50 * 512, (3, 0)),
            (0, 51 * 512, (0, 51 * 512)),
            (0, 101 * 512 + 7, (1, 519)),
            (0, 102 * 512, (0, 102 * 512)),
            (2, 5, (2, 5)),
            (6, 5, (2, 5)),
            (0xfffc, 5, (0, 5)),
        ] {
            assert_eq!(spot(number, address), Some(expected), "{number} {address}");
        }
        assert_eq!((devices.len_bytes(1), devices.len_bytes(2), devices.len_bytes(0)), (1024, 1536, 0));
        let devices = Devices::open(&slots[..1], (512, false), sources(&[1024]), 10_000).unwrap();
        assert_eq!(devices.spot(3, 0), Some(Spot { device: 1, offset: 0 }));
        assert_eq!(Devices::open(&[slot(1, 0); 4], (512, false), sources(&[512; 4]), 0).unwrap().spot(7, 0), None);
    }

    #[test]
    fn devices_must_be_there_and_long_enough() {
        let refused = |slots: &[DeviceSlot], lens: &[usize]| {
            Devices::open(slots, (512, false), sources(lens), 10_240).map(drop).unwrap_err().to_string()
        };
        assert_eq!(refused(&[slot(2, 0)], &[]), "the image needs 1 other device, but none was given");
        assert_eq!(refused(&[], &[5]), "the image needs no other device, but 1 was given");
        assert!(refused(&[slot(2, 0)], &[1023]).starts_with("device 1 has 1023 bytes, but the image expects 1024"));
        // One file that contains all devices.
        let flat = Devices::open(&[slot(10, 10)], (512, true), sources(&[]), 10_240).unwrap();
        assert_eq!(flat.spot(1, 512), Some(Spot { device: 0, offset: 11 * 512 }));
        assert!(refused(&[slot(11, 10)], &[]).contains("1 other device"));
    }
}

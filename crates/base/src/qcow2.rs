//! A qcow2 image, whose tables imago reads. Uncompressed content is read here, so that content
//! missing from the file is an error. Table entries for a read that must not wait are read here
//! too, because imago cannot say whether it would wait.

use std::{collections::HashSet, io, ops::Range, path::Path, sync::Arc};

use imago::{
    DenyImplicitOpenGate, FormatAccess, FormatDriverBuilder, Mapping, StorageOpenOptions, file::File as ImagoFile,
    qcow2::Qcow2 as Image,
};
use pagefold_disk::{Error, Extent};
use pagefold_storage::Storage;

use crate::{
    Format, OpenError,
    content::Content,
    holes::Holes,
    signature::{Signature, conversion, conversion_of_encrypted, repair},
};

/// Second-level tables that imago keeps, each of one cluster.
const KEPT_TABLES: u64 = 128;

/// The maximum number of parts of an image that are checked when it is opened: as many as a
/// terabyte in clusters of 64 KiB has if no two are contiguous. A small file may claim any number,
/// by referring to one table many times.
const MOST_PARTS: u64 = 1 << 24;

/// A qcow2 image that needs no other file.
pub(crate) struct Qcow2 {
    access: FormatAccess<ImagoFile>,
    storage: Arc<dyn Storage>,
    /// Where the tables of the second level are.
    tables: Tables,
    /// The length of the file when the image was opened.
    file_bytes: u64,
    holes: Holes,
    tables_bytes: u64,
}

/// The header fields that must be checked before the tables are read.
struct Header {
    version: u32,
    backing_at: u64,
    cluster_bits: u32,
    size_bytes: u64,
    /// Entries of the table of the first level.
    entries: u32,
    entries_at: u64,
    encryption: u32,
    /// Features required to read the image; from version 3 on.
    needed: u64,
}

/// Bits of an entry of either level: a position in the file.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
/// Bits of an entry of the second level. A cluster without other references can be written in place.
const ONLY_REFERENCE: u64 = 1 << 63;
const COMPRESSED: u64 = 1 << 62;
const ZEROS: u64 = 1;

/// The table of the first level.
struct Tables {
    cluster_bits: u32,
    /// Whether entries have the bit [`ZEROS`].
    has_zeros: bool,
    /// The positions of the tables of the second level; 0 for those that do not exist.
    seconds: Vec<u64>,
}

/// Where the bytes of a cluster are.
enum Place {
    Zeros,
    /// From this byte of the file on.
    File(u64),
}

/// The stretches of the file.
struct Stretches<'a> {
    storage: &'a dyn Storage,
    /// The one that was found last: parts of an image often share one.
    last: Range<u64>,
    is_hole: bool,
    /// How many may still be looked for. Further ones count as data.
    left: u64,
}

impl Stretches<'_> {
    /// Reports the holes of a range.
    fn holes(&mut self, range: Range<u64>, mut each: impl FnMut(Range<u64>)) {
        let mut at = range.start;
        while at < range.end {
            if !self.last.contains(&at) {
                let Some(left) = self.left.checked_sub(1) else { return };
                self.left = left;
                let found = self.storage.stretch_at(at);
                (self.last, self.is_hole) = (at..found.end.max(at + 1), found.is_hole);
            }
            let end = self.last.end.min(range.end);
            if self.is_hole {
                each(at..end);
            }
            at = end;
        }
    }
}

impl Tables {
    /// Returns the place of the cluster with the byte at `offset`, if it is not compressed and can
    /// be found without waiting for storage.
    fn try_place(&self, storage: &dyn Storage, offset: u64) -> Option<Place> {
        // A table of the second level has one cluster, of entries of 8 bytes.
        let entry_bits = self.cluster_bits - 3;
        let number = offset >> self.cluster_bits;
        let second = *self.seconds.get(usize::try_from(number >> entry_bits).ok()?)?;
        if second == 0 {
            return Some(Place::Zeros);
        }
        let mut entry = [0; 8];
        let at = second + (number & ((1 << entry_bits) - 1)) * 8;
        if storage.try_read_at(&mut entry, at) < entry.len() {
            return None;
        }
        // imago handles all other kinds of entries.
        let cluster_bytes = 1 << self.cluster_bits;
        match u64::from_be_bytes(entry) & !ONLY_REFERENCE {
            0 => Some(Place::Zeros),
            ZEROS if self.has_zeros => Some(Place::Zeros),
            place if place & OFFSET == place && place.is_multiple_of(cluster_bytes) => Some(Place::File(place)),
            _ => None,
        }
    }
}

impl Header {
    const BYTES: usize = 80;
    /// Feature bits of images to repair: the reference counts, or other metadata, may be wrong.
    const DIRTY: u64 = 0b01;
    const CORRUPT: u64 = 0b10;

    fn read(storage: &dyn Storage) -> io::Result<Self> {
        let mut front = [0; Self::BYTES];
        storage.read_exact_at(&mut front, 0)?;
        let word = |at: usize| u32::from_be_bytes([front[at], front[at + 1], front[at + 2], front[at + 3]]);
        let long = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
        let needed = if word(4) >= 3 { long(72) } else { 0 };
        Ok(Self {
            version: word(4),
            backing_at: long(8),
            cluster_bits: word(20),
            size_bytes: long(24),
            encryption: word(32),
            entries: word(36),
            entries_at: long(40),
            needed,
        })
    }

    /// Returns why an image with this header cannot be read alone.
    fn refusal(&self) -> Option<String> {
        const FEATURES: [(u64, &str); 3] = [
            (1 << 2, "keeps its data in an external file"),
            (1 << 3, "is compressed with Zstandard"),
            (1 << 4, "has extended L2 entries"),
        ];
        let features = FEATURES.iter().filter(|(bit, _)| self.needed & bit != 0);
        let mut found: Vec<_> = features.map(|(_, what)| (*what).to_owned()).collect();
        let known = FEATURES.iter().fold(Self::DIRTY | Self::CORRUPT, |known, (bit, _)| known | bit);
        if self.needed & !known != 0 {
            found.push(format!("needs unknown features ({:#x})", self.needed & !known));
        }
        if self.encryption != 0 {
            found.push("is encrypted".to_owned());
        }
        if self.backing_at != 0 {
            found.push("has a backing file".to_owned());
        }
        (!found.is_empty()).then(|| format!("the image {}", found.join(", and ")))
    }

    /// Returns the damage that the header states, or how it contradicts itself or the length of the
    /// file. imago allocates as many entries as the header claims, and reads what they do not cover as
    /// zeros.
    fn damage(&self, file_bytes: u64) -> Option<String> {
        if self.needed & Self::CORRUPT != 0 {
            return Some("it is marked as corrupt".to_owned());
        }
        if self.needed & Self::DIRTY != 0 {
            return Some("it is marked as dirty, because a program that wrote to it has not closed it".to_owned());
        }
        // The largest clusters have 2 MiB. imago refuses too small ones.
        if self.cluster_bits > 21 {
            return Some(format!("its clusters have 2^{} bytes, but 2^21 is the most", self.cluster_bits));
        }
        let entries_end = self.entries_at.checked_add(u64::from(self.entries) * 8);
        if entries_end.is_none_or(|end| end > file_bytes) {
            return Some(format!("its L1 table is outside the file, which ends at byte {file_bytes}"));
        }
        if !self.entries_at.is_multiple_of(1 << self.cluster_bits) {
            return Some(format!("its L1 table begins inside a cluster, at byte {}", self.entries_at));
        }
        // A table of the second level has one cluster, of entries of 8 bytes for a cluster each.
        let covered_bits = 2 * self.cluster_bits.max(9) - 3;
        let needed = self.size_bytes.div_ceil(1 << covered_bits);
        (needed > u64::from(self.entries)).then(|| {
            let (size, entries) = (self.size_bytes, self.entries);
            format!("its L1 table is too small for its size: {size} bytes need {needed} entries, and it has {entries}")
        })
    }

    /// Checks that the tables of the second level, and what they refer to, are in the file: imago
    /// reads everything beyond its end as zeros. The last cluster may be incomplete. Returns where the
    /// tables are.
    fn check_places(&self, storage: &dyn Storage, file_bytes: u64) -> io::Result<Tables> {
        /// Entries of the first level that are read together.
        const LISTED: u64 = 512;
        let cluster = 1u64 << self.cluster_bits.max(9);
        let end = file_bytes.next_multiple_of(cluster);
        let missing = |what: &str, at: u64| {
            let what = format!("{what} at byte {at} is outside the file, which ends at byte {file_bytes}");
            Err(io::Error::new(io::ErrorKind::InvalidData, what))
        };
        let has_zeros = self.version >= 3;
        let mut table = vec![0; cluster as usize];
        // A hostile image may name one table any number of times.
        let mut seen = HashSet::from([0]);
        let mut first = vec![0; 8 * u64::from(self.entries).min(LISTED) as usize];
        // The file has this many entries.
        let mut seconds = Vec::with_capacity(self.entries as usize);
        for number in 0..u64::from(self.entries) {
            if number % LISTED == 0 {
                first.truncate(8 * (u64::from(self.entries) - number).min(LISTED) as usize);
                storage.read_exact_at(&mut first, self.entries_at + number * 8)?;
            }
            let at = u64::from_be_bytes(first.as_chunks().0[(number % LISTED) as usize]) & OFFSET;
            seconds.push(at);
            if !seen.insert(at) {
                continue;
            }
            if at.checked_add(cluster).is_none_or(|end| end > file_bytes) {
                return missing("an L2 table", at);
            }
            if !at.is_multiple_of(cluster) {
                let what = format!("an L2 table begins inside a cluster, at byte {at}");
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
            storage.read_exact_at(&mut table, at)?;
            for entry in table.as_chunks().0.iter().map(|entry| u64::from_be_bytes(*entry)) {
                if entry & COMPRESSED != 0 {
                    // A position, and the number of further sectors. The last one may be incomplete.
                    let bits = 62 - self.cluster_bits.clamp(9, 21) + 8;
                    let (at, sectors) = (entry & ((1 << bits) - 1), (entry & (COMPRESSED - 1)) >> bits);
                    if at / 512 + sectors >= file_bytes.div_ceil(512) {
                        return missing("a compressed cluster", at);
                    }
                } else if entry & ZEROS != 0 {
                    if !has_zeros {
                        let what = "a cluster is marked as zeros, which needs version 3".to_owned();
                        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
                    }
                } else if (entry & OFFSET).saturating_add(cluster) > end {
                    return missing("a cluster", entry & OFFSET);
                }
            }
        }
        Ok(Tables { cluster_bits: self.cluster_bits.max(9), has_zeros, seconds })
    }

    /// Returns the most memory that the tables use once they have been read.
    fn tables_bytes(&self) -> u64 {
        u64::from(self.entries) * 16 + (u64::from(self.entries).min(KEPT_TABLES) << self.cluster_bits)
    }
}

impl Qcow2 {
    /// Opens an image and checks where all of its content is.
    pub(crate) fn open(path: &Path, storage: Arc<dyn Storage>) -> Result<Self, OpenError> {
        let failed = |source| OpenError::Io { path: path.into(), source };
        let unfit = |what: &str| OpenError::Unfit { path: path.into(), what: what.to_owned() };
        let file_bytes = storage.len_bytes().map_err(failed)?;
        if !Format::Qcow2.is_in(&*storage, 0).map_err(failed)? {
            let found =
                Signature::of(&*storage, 0).map_err(failed)?.map(|found| format!(", but {}", found.described(path)));
            return Err(unfit(&format!("not a qcow2 image{}", found.unwrap_or_default())));
        }
        let header = Header::read(&*storage).map_err(failed)?;
        if let Some(why) = header.refusal() {
            let way = if header.encryption == 0 { conversion(path) } else { conversion_of_encrypted(path) };
            return Err(unfit(&format!("{why}: {way}")));
        }
        if let Some(damage) = header.damage(file_bytes) {
            return Err(unfit(&format!("the image is damaged: {damage}; {}", repair(path))));
        }
        let tables = header.check_places(&*storage, file_bytes).map_err(failed)?;
        let Some(file) = storage.file() else {
            return Err(unfit(
                "a qcow2 image is read from a file only: download it, or push what 'pagefold pack' makes of it",
            ));
        };
        let file = ImagoFile::from_open_file(file.try_clone().map_err(failed)?, StorageOpenOptions::new());
        let image = Image::<ImagoFile>::builder(file.map_err(failed)?).open(DenyImplicitOpenGate::default());
        let image = image.map_err(|error| unfit(&format!("the qcow2 image is damaged or not supported: {error}")));
        let access = FormatAccess::new(image?);
        let (holes, tables_bytes) = (Holes::new(), header.tables_bytes());
        let mut qcow2 = Self { access, storage, tables, file_bytes, holes, tables_bytes };
        qcow2.holes = qcow2.look().map_err(failed)?;
        Ok(qcow2)
    }

    /// Returns the holes: zeros by the tables, and clusters in holes of the file. `qemu-img` makes
    /// such clusters with `preallocation=metadata`.
    fn look(&self) -> io::Result<Holes> {
        let size = self.access.size();
        let mut holes = Holes::new();
        let mut at = 0;
        let mut file = Stretches { storage: &*self.storage, last: 0..0, is_hole: false, left: MOST_PARTS };
        for _ in 0..MOST_PARTS {
            if at == size {
                return Ok(holes);
            }
            let (mapping, len) = self.mapping(at, size - at)?;
            // All other places were checked when the image was opened.
            match mapping {
                Mapping::Zero { .. } => holes.add(at..at + len),
                Mapping::Raw { offset, .. } => {
                    file.holes(offset..offset + len, |hole| {
                        holes.add(at + hole.start - offset..at + hole.end - offset);
                    });
                }
                _ => {}
            }
            at += len;
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, "the image is too fragmented"))
    }

    /// Returns the mapping at `at`, and its length: at least 1 byte and at most `most`.
    fn mapping(&self, at: u64, most: u64) -> io::Result<(Mapping<'_, ImagoFile>, u64)> {
        let (mapping, len) = self.access.get_mapping(at, most)?;
        if len == 0 || mapping.is_eof() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the tables do not cover the disk"));
        }
        Ok((mapping, len.min(most)))
    }

    fn read_parts(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let (mapping, len) = self.mapping(at, (buf.len() - done) as u64)?;
            let part = &mut buf[done..done + len as usize];
            match mapping {
                Mapping::Raw { offset, .. } => self.read_file(offset, part)?,
                Mapping::Zero { .. } => part.fill(0),
                _ => self.access.read(part, at)?,
            }
            done += len as usize;
        }
        // imago reads tables and compressed clusters beyond the end of a truncated file as zeros.
        if self.storage.len_bytes()? < self.file_bytes {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file was truncated"));
        }
        Ok(())
    }

    /// Reads from the file. If the file did not contain a last cluster completely when it was
    /// opened, the rest of that cluster reads as zeros.
    fn read_file(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let had = self.file_bytes.saturating_sub(offset).min(buf.len() as u64) as usize;
        let (stored, rest) = buf.split_at_mut(had);
        rest.fill(0);
        self.storage.read_exact_at(stored, offset)
    }
}

impl Content for Qcow2 {
    fn len_bytes(&self) -> u64 {
        self.access.size()
    }

    fn table_bytes(&self) -> u64 {
        self.tables_bytes + self.holes.table_bytes()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        self.read_parts(offset, buf).map_err(Error::Io)
    }

    fn try_read(&self, offset: u64, buf: &mut [u8]) -> usize {
        let cluster_bytes = 1 << self.tables.cluster_bits;
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let in_cluster = at % cluster_bytes;
            let left = (buf.len() - done) as u64;
            let part = &mut buf[done..done + left.min(cluster_bytes - in_cluster) as usize];
            let filled = match self.tables.try_place(&*self.storage, at) {
                Some(Place::Zeros) => {
                    part.fill(0);
                    part.len()
                }
                // Of an incomplete last cluster, only the bytes in the file are read.
                Some(Place::File(place)) => self.storage.try_read_at(part, place + in_cluster),
                None => 0,
            };
            done += filled;
            if filled < part.len() {
                break;
            }
        }
        done
    }

    fn extents(&self, offset: u64, len_bytes: u64, each: &mut dyn FnMut(Extent) -> bool) -> Result<(), Error> {
        self.holes.extents(offset..offset + len_bytes, each);
        Ok(())
    }
}

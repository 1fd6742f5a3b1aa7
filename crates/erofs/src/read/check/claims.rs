//! The purposes and owners of the parts of an image, and which parts may overlap.
//!
//! ```text
//! metadata       overlaps nothing
//! a cluster      may be shared as a whole: the same bytes, with the same start and end
//! a file's run   may equal or contain another file's run. A partial overlap is an error: no builder
//!                makes it. Whole files are shared as runs that are equal or that start together;
//!                otherwise blocks are shared, not runs
//! blocks         chunks, and uncompressed parts of compressed files: shared block by block, also
//!                with runs
//! ```
//!
//! If a file ends within a block that another file continues, the rest of the block must be zeros,
//! or the overlap is an error.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::error::{Error, Result};
use crate::format::{IN_BOX, SUPER_OFFSET, align};
use crate::read::devices::Spot;
use crate::read::image::Image;
use crate::read::paths::{PathId, Paths};
use crate::zeros::is_zeros;

/// Unclaimed blocks are read in pieces of this many bytes: a multiple of every block size.
const GAP_BYTES: u64 = 256 << 10;

/// The purpose of a part of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Purpose {
    /// Inodes, xattrs and directories.
    Metadata,
    /// Compressed data.
    Cluster,
    /// All blocks of a flat file.
    Run,
    /// Blocks that can be shared individually.
    Blocks,
    /// Uncompressed parts of compressed files: at any byte offset, shared like blocks.
    Plain,
}

/// The owner of a part of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    Superblock,
    Packed,
    Metabox,
    File(PathId),
}

/// A part of the image and its purpose. Data ends where the content ends, which may be within a
/// block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Claim {
    pub(crate) start: Spot,
    pub(crate) len: u64,
    pub(crate) purpose: Purpose,
}

/// The result of the first decoding of a cluster.
enum Verdict {
    Sound,
    Corrupt {
        what: &'static str,
        offset: u64,
    },
    /// The image could not be read, which says nothing about the cluster itself.
    Unknown,
}

/// The owner of a claimed part: the first by path, regardless of which thread claimed it first.
struct Claimed {
    owner: Owner,
    verdict: Arc<OnceLock<Verdict>>,
}

/// All claims made so far.
#[derive(Default)]
pub(crate) struct Claims {
    claims: Mutex<HashMap<Claim, Claimed>>,
}

/// Merges claims of adjacent blocks into one.
pub(crate) struct Joined<'a> {
    claims: &'a Claims,
    owner: Owner,
    purpose: Purpose,
    last: Option<(Spot, u64)>,
}

/// Two structures that overlap.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Overlap {
    pub(crate) what: &'static str,
    /// The offset of the overlap on its device.
    pub(crate) offset: u64,
    pub(crate) owner: Owner,
    pub(crate) other: Owner,
}

impl Owner {
    /// Returns the owner's path or description.
    pub(crate) fn show(self, paths: &Paths) -> Vec<u8> {
        match self {
            Self::Superblock => b"superblock".to_vec(),
            Self::Packed => b"packed inode".to_vec(),
            Self::Metabox => b"metadata box".to_vec(),
            Self::File(path) => paths.display(path),
        }
    }
}

impl Claims {
    fn lock(&self) -> MutexGuard<'_, HashMap<Claim, Claimed>> {
        // Nothing panics while the lock is held.
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn claim(&self, claim: Claim, owner: Owner) -> Arc<OnceLock<Verdict>> {
        match self.lock().entry(claim) {
            Entry::Occupied(mut claimed) => {
                let claimed = claimed.get_mut();
                claimed.owner = claimed.owner.min(owner);
                Arc::clone(&claimed.verdict)
            }
            Entry::Vacant(free) => Arc::clone(&free.insert(Claimed { owner, verdict: Arc::default() }).verdict),
        }
    }

    /// Claims a part that needs no decoding.
    pub(crate) fn add(&self, claim: Claim, owner: Owner) {
        self.claim(claim, owner);
    }

    /// Returns a collector that merges adjacent blocks before it claims them.
    pub(crate) fn joined(&self, owner: Owner, purpose: Purpose) -> Joined<'_> {
        Joined { claims: self, owner, purpose, last: None }
    }

    /// Claims a cluster and decodes it unless another extent already did.
    pub(crate) fn decode(&self, claim: Claim, owner: Owner, decode: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let verdict = self.claim(claim, owner);
        let mut failed = None;
        let found = verdict.get_or_init(|| match decode() {
            Ok(()) => Verdict::Sound,
            Err(Error::Corrupt { what, offset }) => Verdict::Corrupt { what, offset },
            Err(error) => {
                failed = Some(error);
                Verdict::Unknown
            }
        });
        match (failed, found) {
            (Some(error), _) => Err(error),
            (None, Verdict::Sound) => Ok(()),
            (None, Verdict::Corrupt { what, offset }) => Err(Error::Corrupt { what, offset: *offset }),
            (None, Verdict::Unknown) => decode(),
        }
    }

    /// Returns all claims, sorted by place.
    pub(crate) fn sorted(self) -> Sorted {
        let claims = self.claims.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut claims: Vec<_> = claims.into_iter().map(|(claim, claimed)| (claim, claimed.owner)).collect();
        claims.sort_unstable();
        Sorted { claims }
    }
}

/// Claims sorted by place.
pub(crate) struct Sorted {
    claims: Vec<(Claim, Owner)>,
}

impl Sorted {
    /// Returns the forbidden overlaps.
    pub(crate) fn overlaps(&self, image: &Image) -> Vec<Overlap> {
        let mut found = between(&self.claims, image.superblock().block_bytes());
        found.extend(behind_ends(image, &self.claims));
        found
    }

    /// Returns the start of each claim in the image itself, and the end of its last block.
    fn in_image(&self, block: u64) -> impl Iterator<Item = (u64, u64)> {
        // Claims in the metadata box sort after these.
        let in_image = |claim: &Claim| claim.start.device == 0 && claim.start.offset < IN_BOX;
        let claims = self.claims.iter().take_while(move |(claim, _)| in_image(claim));
        claims.map(move |(claim, _)| (claim.start.offset, claim.block_end(block)))
    }

    /// Returns the end of the last claim in the image itself.
    pub(crate) fn end(&self, image: &Image) -> u64 {
        self.in_image(image.superblock().block_bytes()).map(|(_, end)| end).max().unwrap_or(0)
    }

    /// Returns the offset of the first unclaimed, nonzero block before `end`, and the number of
    /// such blocks.
    pub(crate) fn nobodys(&self, image: &Image, end: u64) -> Option<(u64, u64)> {
        let block = image.superblock().block_bytes();
        // Blocks before the superblock's may hold a boot loader.
        let mut reach = align(SUPER_OFFSET, block);
        let mut found: Option<(u64, u64)> = None;
        let mut bytes = Vec::new();
        for (start, claim_end) in self.in_image(block).chain([(end, end)]) {
            let gap_end = start.min(end) / block * block;
            while reach < gap_end {
                let len = (gap_end - reach).min(GAP_BYTES) as usize;
                bytes.resize(len, 0);
                // Read errors are reported where the data is needed.
                if image.read_spot(&mut bytes, Spot { device: 0, offset: reach }).is_ok() {
                    for (offset, block) in (reach..).step_by(block as usize).zip(bytes.chunks(block as usize)) {
                        if !is_zeros(block) {
                            found.get_or_insert((offset, 0)).1 += 1;
                        }
                    }
                }
                reach += len as u64;
            }
            reach = reach.max(claim_end.checked_next_multiple_of(block).unwrap_or(u64::MAX));
        }
        found
    }
}

impl Joined<'_> {
    /// Adds `len` bytes of content at `start`.
    pub(crate) fn add(&mut self, start: Spot, len: u64) {
        match &mut self.last {
            Some((first, had)) if first.device == start.device && first.offset + *had == start.offset => *had += len,
            _ => {
                self.flush();
                self.last = Some((start, len));
            }
        }
    }

    fn flush(&mut self) {
        if let Some((start, len)) = self.last.take() {
            self.claims.add(Claim { start, len, purpose: self.purpose }, self.owner);
        }
    }
}

impl Drop for Joined<'_> {
    fn drop(&mut self) {
        self.flush();
    }
}

impl Claim {
    fn end(&self) -> u64 {
        self.start.offset.saturating_add(self.len)
    }

    /// Returns the end of the claim's last block, or of its last byte if it need not fill whole
    /// blocks.
    fn block_end(&self, block: u64) -> u64 {
        match self.purpose {
            Purpose::Metadata | Purpose::Cluster | Purpose::Plain => self.end(),
            Purpose::Run | Purpose::Blocks => self.end().checked_next_multiple_of(block).unwrap_or(u64::MAX),
        }
    }

    fn is_shared_by_blocks(&self) -> bool {
        matches!(self.purpose, Purpose::Run | Purpose::Blocks | Purpose::Plain)
    }
}

/// The farthest ends of the claims before a given one.
#[derive(Default)]
struct Sweep {
    /// The farthest end of metadata and clusters, then of blocks that may be shared.
    exclusive: Option<Reach>,
    shared: Option<Reach>,
    /// The run with the farthest end. Runs inside it may overlap freely.
    run: Option<Reach>,
}

#[derive(Clone, Copy)]
struct Reach {
    start: u64,
    end: u64,
    owner: Owner,
    purpose: Purpose,
}

/// Returns the claims that overlap earlier ones: each once, with one of the others.
fn between(claims: &[(Claim, Owner)], block: u64) -> Vec<Overlap> {
    let mut found = Vec::new();
    let mut sweep = Sweep::default();
    let mut device = 0;
    for (claim, owner) in claims {
        let Spot { device: here, offset } = claim.start;
        if here != device {
            (sweep, device) = (Sweep::default(), here);
        }
        if let Some((what, other)) = sweep.meets(claim, block) {
            found.push(Overlap { what, offset, owner: *owner, other });
        }
        let reach = Reach { start: offset, end: claim.block_end(block), owner: *owner, purpose: claim.purpose };
        farthest(if claim.is_shared_by_blocks() { &mut sweep.shared } else { &mut sweep.exclusive }, reach);
        if claim.purpose == Purpose::Run {
            farthest(&mut sweep.run, reach);
        }
    }
    found
}

impl Sweep {
    fn meets(&self, claim: &Claim, block: u64) -> Option<(&'static str, Owner)> {
        let start = claim.start.offset;
        let reaches = |reach: Option<Reach>| reach.filter(|reach| reach.end > start);
        let shared = reaches(self.shared).filter(|_| !claim.is_shared_by_blocks());
        if let Some(reach) = reaches(self.exclusive).or(shared) {
            let what = match (claim.purpose, reach.purpose) {
                (Purpose::Metadata, Purpose::Metadata) => "metadata overlaps other metadata",
                (Purpose::Metadata, _) | (_, Purpose::Metadata) => "metadata and data overlap",
                (Purpose::Cluster, Purpose::Cluster) => "different compressed clusters overlap",
                _ => "a compressed cluster overlaps uncompressed data",
            };
            return Some((what, reach.owner));
        }
        // If two runs start together, one contains the other.
        let part = |run: &Reach| run.start < start && run.end < claim.block_end(block);
        let run = reaches(self.run).filter(|_| claim.purpose == Purpose::Run).filter(part)?;
        Some(("files share some of their blocks", run.owner))
    }
}

fn farthest(before: &mut Option<Reach>, reach: Reach) {
    if before.is_none_or(|before| before.end < reach.end) {
        *before = Some(reach);
    }
}

/// Returns the files that end within a block that another file continues, where the rest of the
/// block is not all zeros.
fn behind_ends(image: &Image, claims: &[(Claim, Owner)]) -> Vec<Overlap> {
    let block = image.superblock().block_bytes();
    let data = || claims.iter().filter(|(claim, _)| claim.is_shared_by_blocks());
    let mut ends: Vec<_> =
        data().filter(|(claim, _)| claim.purpose != Purpose::Plain && claim.end() % block != 0).collect();
    ends.sort_unstable_by_key(|(claim, owner)| (claim.start.device, claim.end(), *owner));
    let mut others = data().peekable();
    let mut farthest: Option<(u16, u64, Owner)> = None;
    // Each block is read once, no matter how many files end in it.
    let mut last_read = None;
    let mut found = Vec::new();
    for (claim, owner) in ends {
        let (device, end) = (claim.start.device, claim.end());
        while let Some((other, other_owner)) =
            others.next_if(|(other, _)| (other.start.device, other.start.offset) <= (device, end))
        {
            if farthest.is_none_or(|(device, end, _)| (device, end) < (other.start.device, other.end())) {
                farthest = Some((other.start.device, other.end(), *other_owner));
            }
        }
        let Some((_, _, other)) = farthest.filter(|(other, other_end, _)| *other == device && *other_end > end) else {
            continue;
        };
        let at = Spot { device, offset: end / block * block };
        if last_read.is_none_or(|(read, _)| read != at) {
            // Read errors are reported where the file is read.
            last_read = Some((at, last_nonzero(image, at).unwrap_or(0)));
        }
        if last_read.is_some_and(|(_, nonzero_end)| at.offset + nonzero_end > end) {
            let what = "file ends within a block that another file continues";
            found.push(Overlap { what, offset: at.offset, owner: *owner, other });
        }
    }
    found
}

/// Returns the length of a block up to its last nonzero byte. The source may end within the block.
fn last_nonzero(image: &Image, at: Spot) -> Result<u64> {
    let len = (image.device_len(at.device) - at.offset.min(image.device_len(at.device)))
        .min(image.superblock().block_bytes());
    let mut bytes = vec![0; len as usize];
    image.read_spot(&mut bytes, at)?;
    Ok(bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1))
}

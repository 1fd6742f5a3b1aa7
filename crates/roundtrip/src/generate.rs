//! Generates cases from bytes.
//!
//! Lengths are near multiples of blocks and clusters, tails are near the size that fits inline, and
//! most files are modified copies of others.

use std::collections::HashSet;

use pagefold_erofs::{BuildOptions, ClusterCodec, Compression, Fragments, Hint, Indexes, Xattr};

use crate::case::{Case, EntryKind, Facts, TreeEntry};
use crate::choices::{Choices, Numbers};
use crate::segment::{Segment, Stuff, len, truncate};

/// The maximum size of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// About 40 KiB if blocks are short: fuzzers try more such cases per second.
    Tiny,
    /// A few hundred KiB, or more with long blocks.
    Small,
    /// Includes files of several MiB, which the builder splits into segments.
    Large,
}

/// The maximum number of entries of a case, not counting crowded directories.
const MOST_ENTRIES: usize = 24;

/// Returns bytes for [`Case::from_bytes`] that depend only on `seed`.
pub fn seed_bytes(seed: u64) -> Vec<u8> {
    let mut numbers = Numbers(seed);
    let most = 1 << (5 + numbers.below(4));
    let len = 16 + numbers.below(most);
    (0..len).map(|_| numbers.next() as u8).collect()
}

impl Case {
    /// Returns the case for `bytes`; any bytes are valid.
    pub fn from_bytes(bytes: &[u8], size: Size) -> Self {
        let mut choices = Choices::new(bytes);
        let options = options(&mut choices);
        let block = options.block_bytes;
        let most_bytes = match size {
            Size::Tiny => 40 << 10,
            Size::Small => (192 << 10).max(16 * u64::from(block)),
            Size::Large => 40 << 20,
        };
        let mut maker = Maker {
            cluster: options.pcluster_bytes,
            block,
            size,
            choices,
            case: Case::new(options),
            used: HashSet::new(),
        };
        maker.case.root = maker.facts(true);
        maker.case.root.permissions |= 0o755;
        while !maker.choices.is_empty()
            && maker.case.entries.len() < MOST_ENTRIES
            && maker.case.content_bytes() < most_bytes
        {
            maker.entry();
        }
        maker.case
    }

    /// Returns the case for a seed; one in 512 is large.
    pub fn from_seed(seed: u64) -> Self {
        let size = if seed % 512 == 511 { Size::Large } else { Size::Small };
        Self::from_bytes(&seed_bytes(seed), size)
    }
}

fn codec(choices: &mut Choices<'_>) -> ClusterCodec {
    let lz4 = ClusterCodec::Lz4;
    let zstd = ClusterCodec::Zstd { level: 1, window_log: 14 };
    let deflate = ClusterCodec::Deflate(1);
    // Slow codecs are rare.
    let lzma = ClusterCodec::MicroLzma { preset: 0, dict_bytes: 4096 };
    let high = ClusterCodec::Lz4Hc(3);
    let far = ClusterCodec::Zstd { level: -5, window_log: 17 };
    choices.one_of(&[
        lz4, zstd, lz4, deflate, lz4, zstd, lz4, deflate, lz4, far, lz4, zstd, lz4, lz4, lz4, lzma, lz4, zstd, lz4,
        deflate, lz4, zstd, lz4, deflate, lz4, far, lz4, zstd, lz4, lz4, lz4, high,
    ])
}

fn options(choices: &mut Choices<'_>) -> BuildOptions {
    let block_bytes = choices
        .one_of(&[4096, 512, 4096, 512, 4096, 512, 4096, 1024, 4096, 2048, 4096, 512, 8192, 16_384, 65_536, 32_768]);
    let cluster =
        |choices: &mut Choices<'_>| (block_bytes * choices.one_of(&[1, 1, 1, 2, 3, 4, 8, 16, 7, 64])).min(1 << 20);
    let codec_of_image = (choices.below(10) != 9).then(|| codec(choices));
    let pcluster_bytes = cluster(choices);
    let mut hints = Vec::new();
    for _ in 0..[0, 0, 1, 2, 1, 0][choices.below(6)] {
        let pattern = choices.one_of(&["*.jpg", "*.big", "*.jpg", "?1*", "d*/*"]);
        let compression = match choices.below(2) {
            0 => None,
            _ => Some(Compression { codec: codec(choices), pcluster_bytes: cluster(choices) }),
        };
        hints.push(Hint { pattern: pattern.as_bytes().to_vec(), compression });
    }
    let (packing, chunks) = (choices.byte(), choices.byte());
    let packs = codec_of_image.is_some();
    let any_plain = !packs || hints.iter().any(|hint: &Hint| hint.compression.is_none());
    let prefixes: &[&[u8]] = match chunks >> 6 {
        3 => &[b"user.note-", b"trusted.n", b"user.note-1", b"security.unused."],
        _ => &[],
    };
    BuildOptions {
        block_bytes,
        codec: codec_of_image,
        pcluster_bytes,
        hints,
        indexes: match packing & 3 {
            3 => Indexes::Full,
            2 => Indexes::Extents,
            1 => Indexes::Auto,
            _ => Indexes::Compact,
        },
        ztailpacking: packs && packing >> 2 & 3 == 3,
        fragments: match packing >> 4 & 3 {
            _ if !packs => Fragments::Off,
            0 | 1 => Fragments::Off,
            2 => Fragments::Tails,
            _ => Fragments::All,
        },
        dedupe: packs && packing >> 6 & 1 == 1,
        chunk_bytes: (any_plain && chunks & 1 == 1).then_some(block_bytes << ((chunks >> 1 & 7) % 5)),
        xattr_prefixes: prefixes.iter().map(|prefix| prefix.to_vec()).collect(),
        threads: 1,
        ..BuildOptions::default()
    }
}

struct Maker<'a> {
    choices: Choices<'a>,
    block: u32,
    cluster: u32,
    size: Size,
    case: Case,
    /// Used names, each with the index of its directory.
    used: HashSet<(Option<usize>, Vec<u8>)>,
}

impl Maker<'_> {
    fn entry(&mut self) {
        match self.choices.below(24) {
            0..=4 => {
                let segments = self.segments();
                self.file(segments);
            }
            5..=13 => self.edited(),
            14..=16 => {
                // The same content in another inode.
                if let Some(segments) = self.earlier() {
                    self.file(segments);
                }
            }
            17 => {
                let targets = self.places(|kind| !matches!(kind, EntryKind::Directory | EntryKind::Link(_)));
                if !targets.is_empty() {
                    let target = self.choices.one_of(&targets);
                    self.add(EntryKind::Link(target), Facts::default());
                }
            }
            18 | 19 => {
                let len = self.length().clamp(1, 4095) as usize;
                let target = b"../target/".iter().copied().cycle().take(len).collect();
                // All symbolic links that Linux creates have these permissions.
                let facts = Facts { permissions: 0o777, ..self.facts(false) };
                self.add(EntryKind::Symlink(target), facts);
            }
            20 => {
                let facts = Facts { permissions: 0o755, ..self.facts(true) };
                self.add(EntryKind::Directory, facts);
            }
            21 => self.crowd(),
            22 => {
                let (major, minor) =
                    (u32::from(self.choices.two_bytes()) & 0xfff, u32::from(self.choices.two_bytes()) << 4);
                let kind = match self.choices.below(4) {
                    0 => EntryKind::CharDevice(major, minor),
                    1 => EntryKind::BlockDevice(major, minor),
                    2 => EntryKind::Fifo,
                    _ => EntryKind::Socket,
                };
                let facts = self.facts(false);
                self.add(kind, facts);
            }
            _ => self.file(Vec::new()),
        }
    }

    /// Adds an entry under a name that is unused in its directory.
    fn add(&mut self, kind: EntryKind, facts: Facts) {
        let directories = self.places(|kind| matches!(kind, EntryKind::Directory));
        let number = self.choices.below(directories.len() + 2);
        let directory = directories.get(number).copied();
        let first = self.choices.one_of(b"abcdz0ABd");
        let end = self.choices.one_of(&["", "", ".jpg", "", ".big", ".txt"]);
        let name = if matches!(kind, EntryKind::Directory) {
            format!("d{}", self.case.entries.len())
        } else {
            format!("{}{}{end}", char::from(first), self.case.entries.len())
        };
        self.add_named(directory, name.into_bytes(), kind, facts);
    }

    fn add_named(&mut self, directory: Option<usize>, name: Vec<u8>, kind: EntryKind, facts: Facts) {
        if self.used.insert((directory, name.clone())) {
            self.case.entries.push(TreeEntry { directory, name, facts, kind });
        }
    }

    fn file(&mut self, segments: Vec<Segment>) {
        let facts = self.facts(true);
        self.add(EntryKind::Regular(segments), facts);
    }

    /// Adds names that fill several directory blocks.
    fn crowd(&mut self) {
        self.add(EntryKind::Directory, Facts { permissions: 0o755, ..Facts::default() });
        let directory = self.case.entries.len().checked_sub(1);
        let Some(directory) = directory.filter(|place| matches!(self.case.entries[*place].kind, EntryKind::Directory))
        else {
            return;
        };
        let (count, name_len) = (self.choices.below(60), self.choices.below(256));
        let same = self.choices.below(3) > 0;
        let mut target = None;
        for number in 0..count {
            let mut name = format!("{number:03}").into_bytes();
            let len = if same { name_len } else { self.choices.below(256) };
            name.resize(len.clamp(3, 255), b'n');
            let kind = target.map_or_else(|| EntryKind::Regular(Vec::new()), EntryKind::Link);
            target.get_or_insert(self.case.entries.len());
            self.add_named(Some(directory), name, kind, Facts::default());
        }
    }

    /// Returns the indexes of entries of some kinds.
    fn places(&self, is: impl Fn(&EntryKind) -> bool) -> Vec<usize> {
        (0..self.case.entries.len()).filter(|place| is(&self.case.entries[*place].kind)).take(200).collect()
    }

    /// Returns the content of an existing file.
    fn earlier(&mut self) -> Option<Vec<Segment>> {
        let places = self.places(|kind| matches!(kind, EntryKind::Regular(segments) if !segments.is_empty()));
        if places.is_empty() {
            return None;
        }
        match &self.case.entries[self.choices.one_of(&places)].kind {
            EntryKind::Regular(segments) => Some(segments.clone()),
            _ => None,
        }
    }

    /// Adds a modified copy of an existing file.
    fn edited(&mut self) {
        let Some(mut segments) = self.earlier() else {
            let segments = self.segments();
            return self.file(segments);
        };
        for _ in 0..1 + self.choices.below(2) {
            self.edit(&mut segments);
        }
        self.file(segments);
    }

    fn edit(&mut self, segments: &mut Vec<Segment>) {
        let block = u64::from(self.block);
        match self.choices.below(9) {
            // The same whole blocks with another end.
            0..=2 => {
                let whole = len(segments) / block * block;
                truncate(segments, whole);
                let (tail, from) = (self.tail(), 100_000 + 40 * u32::from(self.choices.byte()));
                let stuff = self.stuff();
                segments.push(Segment { stuff, from, len: tail });
            }
            3 => {
                let inserted = self.segment();
                let place = self.choices.below(segments.len() + 1);
                segments.insert(place, inserted);
            }
            4 => {
                let few = 1 + u32::from(self.choices.byte());
                let place = self.choices.below(segments.len() + 1);
                let stuff = self.stuff();
                segments.insert(place, Segment { stuff, from: 777, len: few });
            }
            5 if !segments.is_empty() => {
                let place = self.choices.below(segments.len());
                segments.remove(place);
            }
            6 if !segments.is_empty() => {
                let place = self.choices.below(segments.len());
                segments[place].from += 1 + u32::from(self.choices.byte());
            }
            7 => {
                let size = len(segments).min(self.length().into());
                truncate(segments, size);
            }
            _ => self.end(segments),
        }
    }

    /// Returns new content.
    fn segments(&mut self) -> Vec<Segment> {
        let mut segments: Vec<_> = (0..1 + self.choices.below(3)).map(|_| self.segment()).collect();
        if self.choices.below(2) == 0 {
            self.end(&mut segments);
        }
        if self.size == Size::Large && self.choices.below(4) == 0 {
            let mut long = self.segment();
            let step = [4 << 20, (4 << 20) - 4096, 16 << 20]
                [self.choices.below(if long.stuff == Stuff::Zeros { 3 } else { 2 })];
            long.len += step;
            let place = self.choices.below(segments.len() + 1);
            segments.insert(place, long);
        }
        segments
    }

    /// Changes the length after the last whole block.
    fn end(&mut self, segments: &mut Vec<Segment>) {
        let block = u64::from(self.block);
        let missing = (u64::from(self.tail()) + block - len(segments) % block) % block;
        let (stuff, from) = (self.stuff(), 50_000 + u32::from(self.choices.byte()));
        segments.push(Segment { stuff, from, len: missing as u32 });
    }

    fn segment(&mut self) -> Segment {
        let stuff = self.stuff();
        let from = self.choices.one_of(&[0, 0, 70_000, 140_000]) + self.choices.one_of(&[0, 0, 0, 1, self.block, 333]);
        Segment { stuff, from, len: self.length() }
    }

    fn stuff(&mut self) -> Stuff {
        self.choices.one_of(&[
            Stuff::Noise,
            Stuff::Text,
            Stuff::Noise,
            Stuff::Zeros,
            Stuff::Text,
            Stuff::Period(1),
            Stuff::Noise,
            Stuff::Period(250),
        ])
    }

    /// Returns the length after the last whole block, often close to what fits inline.
    fn tail(&mut self) -> u32 {
        let block = self.block;
        let few = u32::from(self.choices.byte()) % block;
        match self.choices.below(8) {
            0 | 1 => block - 32 - few % 34,
            2 | 3 => block - 1 - few % 66,
            4 => 0,
            5 => 1 + few % 64,
            6 => few,
            _ => block - 1 - few,
        }
    }

    /// Returns a length, often near a multiple of a block or a cluster.
    fn length(&mut self) -> u32 {
        let (block, cluster) = (self.block, self.cluster);
        let long = if self.size == Size::Tiny { 20 << 10 } else { 192 << 10 };
        let (number, kind) = (u32::from(self.choices.byte()), self.choices.below(20));
        let length = match kind {
            0 | 1 => return number,
            2..=6 => (1 + number % 4) * block,
            7 | 8 => (1 + number % 3) * cluster,
            9 | 10 => (number % 24) * block,
            11..=13 => return u32::from(self.choices.two_bytes()) % (4 * block),
            14 => (1 + number % 12) * (8 << 10),
            15 => (1 + number % 3) << 16,
            _ => block,
        };
        let few = u32::from(self.choices.byte());
        let length = length.min(long.max(3 * block));
        match self.choices.below(6) {
            0 | 1 => length,
            2 => length + 1,
            3 => length.saturating_sub(1),
            4 => length + few,
            _ => length.saturating_sub(few),
        }
    }

    /// Returns metadata. `user.` xattrs are only for regular files and directories.
    fn facts(&mut self, user: bool) -> Facts {
        let mut facts = Facts::default();
        match self.choices.below(12) {
            0..=5 => {}
            6 => facts.mtime = self.choices.one_of(&[(2, 0), (0, 0), (1, 1), (1 << 33, 999_999_999), (3, 0)]),
            7 => facts.uid = self.choices.one_of(&[65_536, 65_535, 4_000_000_000, 1000]),
            8 => facts.gid = self.choices.one_of(&[65_536, 65_535, 4_000_000_000, 1000]),
            9 => facts.permissions = self.choices.one_of(&[0o600, 0o4755, 0o1777, 0o777]),
            kind => {
                for _ in 0..1 + self.choices.below(if kind == 10 { 1 } else { 4 }) {
                    self.xattr(&mut facts, user);
                }
            }
        }
        facts.xattrs.sort();
        facts
    }

    fn xattr(&mut self, facts: &mut Facts, user: bool) {
        let prefix = self.choices.one_of(if user {
            &["user.", "trusted.", "user.", "security."]
        } else {
            &["trusted.", "security."][..]
        });
        let mut name = format!("{prefix}note-{}", self.choices.below(3)).into_bytes();
        let (few, which) = (self.choices.below(256), self.choices.below(12));
        let block = self.block as usize;
        let len = match which {
            0..=4 => few % 8,
            5 | 6 => few,
            // The inode, its xattr header and this xattr take a little more or less than a block.
            7 | 8 => (block + 16).saturating_sub(64 + 12 + 4 + name.len() + few % 64),
            9 => {
                name.resize(255, b'x');
                few
            }
            10 => block + few,
            _ => few * 230,
        };
        // Values are often equal.
        let value = vec![b'v' + (few % 2) as u8; len.min(usize::from(u16::MAX))];
        match which {
            // Too many for all to be shared.
            _ if few == 255 => {
                for number in 0..260 {
                    push(
                        facts,
                        Xattr {
                            name: format!("{prefix}many-{number}").into_bytes(),
                            value: value[..len.min(3)].to_vec(),
                        },
                    );
                }
            }
            _ => push(facts, Xattr { name, value }),
        }
    }
}

fn push(facts: &mut Facts, xattr: Xattr) {
    if facts.xattrs.iter().all(|other| other.name != xattr.name) {
        facts.xattrs.push(xattr);
    }
}

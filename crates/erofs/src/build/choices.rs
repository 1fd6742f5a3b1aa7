//! The choice of compression for each file.

use std::collections::HashMap;

use pagefold_codec::cluster::{ClusterCodec, ClusterFormat};

use super::options::{BuildOptions, Compression};
use super::patterns::applies;
use super::tree::{NodeId, NodeKind, Tree};
use crate::format::{DeflateConfig, Lz4Config, LzmaConfig, ZstdConfig};

/// The compression choices of an image's files.
pub(crate) struct Choices {
    /// Distinct choices. The first applies to files without a hint and to the packed inode.
    ways: Vec<Option<Compression>>,
    /// Files with another choice, and its index in `ways`.
    hinted: HashMap<NodeId, usize>,
    block_bytes: u32,
}

impl Choices {
    pub(crate) fn new(tree: &Tree, options: &BuildOptions) -> Self {
        let own = options.codec.map(|codec| Compression { codec, pcluster_bytes: options.pcluster_bytes });
        let mut choices = Self { ways: vec![own], hinted: HashMap::new(), block_bytes: options.block_bytes };
        if !options.hints.is_empty() {
            choices.hint(tree, options);
        }
        choices
    }

    /// Applies the hints to all files. If a file has several names, the first one with a hint
    /// counts, in the order of a walk.
    fn hint(&mut self, tree: &Tree, options: &BuildOptions) {
        let mut path = Vec::new();
        // Each item has the length of its parent's path.
        let mut pending = vec![(tree.root(), 0, &[][..])];
        while let Some((directory, parent_len, name)) = pending.pop() {
            path.truncate(parent_len);
            append(&mut path, name);
            let NodeKind::Directory(names) = &tree.node(directory).kind else { continue };
            let (len, mut below) = (path.len(), Vec::new());
            for (name, &id) in names {
                match tree.node(id).kind {
                    NodeKind::Directory(_) => below.push((id, len, &name[..])),
                    NodeKind::Regular { .. } => {
                        append(&mut path, name);
                        let hint = options.hints.iter().find(|hint| applies(&hint.pattern, &path));
                        path.truncate(len);
                        let Some(hint) = hint else { continue };
                        let known = self.ways.iter().position(|way| *way == hint.compression);
                        let way = known.unwrap_or_else(|| {
                            self.ways.push(hint.compression);
                            self.ways.len() - 1
                        });
                        self.hinted.entry(id).or_insert(way);
                    }
                    _ => {}
                }
            }
            pending.extend(below.into_iter().rev());
        }
    }

    /// Returns all choices. The first is the image's default.
    pub(crate) fn ways(&self) -> &[Option<Compression>] {
        &self.ways
    }

    /// Returns a file's index in [`Choices::ways`].
    pub(crate) fn way(&self, id: NodeId) -> usize {
        self.hinted.get(&id).copied().unwrap_or(0)
    }

    fn compressions(&self) -> impl Iterator<Item = Compression> {
        self.ways.iter().copied().flatten()
    }

    /// Returns whether anything is compressed.
    pub(crate) fn any(&self) -> bool {
        self.compressions().next().is_some()
    }

    /// Returns whether a cluster may have several blocks.
    pub(crate) fn big(&self) -> bool {
        self.compressions().any(|compression| compression.pcluster_bytes > self.block_bytes)
    }

    /// Returns whether configurations follow the superblock. LZ4 with single-block clusters needs
    /// none; every kernel reads it.
    pub(crate) fn has_configs(&self) -> bool {
        self.big() || self.compressions().any(|compression| algorithm(compression.codec) > 0)
    }

    /// Returns the superblock's bitmap of formats.
    pub(crate) fn formats(&self) -> u16 {
        if !self.has_configs() {
            return 0;
        }
        self.compressions().fold(0, |formats, compression| formats | 1 << algorithm(compression.codec))
    }

    /// Encodes the configurations, each preceded by its length, in the order of the formats'
    /// numbers. If files of one format differ in a setting, the value that suffices for all is
    /// used.
    pub(crate) fn configs(&self) -> Vec<u8> {
        let formats = self.formats();
        let most = |of: &dyn Fn(Compression) -> Option<u32>| self.compressions().filter_map(of).max().unwrap_or(0);
        let mut bytes = Vec::new();
        for number in (0..4).filter(|number| formats >> number & 1 == 1) {
            let config = match number {
                0 => {
                    let blocks = most(&|compression| {
                        (algorithm(compression.codec) == 0).then_some(compression.pcluster_bytes / self.block_bytes)
                    });
                    Lz4Config { max_distance: u16::MAX, max_pclusterblks: blocks as u16, reserved: [0; 10] }
                        .encode()
                        .to_vec()
                }
                1 => {
                    let dict_size = most(&|compression| match compression.codec {
                        ClusterCodec::MicroLzma { dict_bytes, .. } => Some(dict_bytes),
                        _ => None,
                    });
                    LzmaConfig { dict_size, format: 0, reserved: [0; 8] }.encode().to_vec()
                }
                2 => DeflateConfig { windowbits: 15, reserved: [0; 5] }.encode().to_vec(),
                _ => {
                    let window_log = most(&|compression| match compression.codec {
                        ClusterCodec::Zstd { window_log, .. } => Some(window_log),
                        _ => None,
                    });
                    ZstdConfig { format: 0, windowlog: (window_log - 10) as u8, reserved: [0; 4] }.encode().to_vec()
                }
            };
            bytes.extend_from_slice(&(config.len() as u16).to_le_bytes());
            bytes.extend_from_slice(&config);
        }
        bytes
    }
}

/// Appends a name to a path.
fn append(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}

/// Returns the number of a codec's format.
pub(crate) fn algorithm(codec: ClusterCodec) -> u8 {
    match codec.format() {
        ClusterFormat::Lz4 => 0,
        ClusterFormat::MicroLzma => 1,
        ClusterFormat::Deflate => 2,
        ClusterFormat::Zstd => 3,
    }
}

//! Small valid images that cover every codec and layout.

use std::{
    fs::{self, File},
    sync::Arc,
};

use pagefold_codec::cluster::ClusterCodec;
use pagefold_erofs::{BuildOptions, Content, Fragments, Indexes, Node, NodeKind, Tree, Xattr, build};

fn node(kind: NodeKind) -> Node {
    let xattrs = vec![Xattr { name: b"user.note".to_vec(), value: b"value".to_vec() }];
    Node { kind, permissions: 0o644, uid: 0, gid: 0, mtime_s: 1, mtime_nsec: 0, xattrs }
}

/// Returns images of a directory with files of the lengths `lens`, in blocks of `block_bytes`.
/// Their checksum feature is off, so that the covered bytes can be edited.
pub fn images(block_bytes: u32, lens: &[usize]) -> Vec<Vec<u8>> {
    let mut tree = Tree::new(node(NodeKind::Directory(Default::default())));
    let below = tree.add(tree.root(), b"directory", node(NodeKind::Directory(Default::default()))).unwrap();
    for &len in lens {
        let bytes: Arc<[u8]> = (0..len).map(|at| (at * at / 100) as u8).collect();
        let file = node(NodeKind::Regular { content: Content::Bytes(bytes), size: len as u64 });
        tree.add(below, format!("file-{len}").as_bytes(), file).unwrap();
    }
    tree.add(tree.root(), b"link", node(NodeKind::Symlink(b"directory/file-50".to_vec()))).unwrap();
    let base = BuildOptions { threads: 1, block_bytes, pcluster_bytes: block_bytes, ..BuildOptions::default() };
    let big = BuildOptions { pcluster_bytes: 2 * block_bytes, ..base.clone() };
    let zstd = Some(ClusterCodec::Zstd { level: 1, window_log: 16 });
    let lzma = Some(ClusterCodec::MicroLzma { preset: 1, dict_bytes: 1 << 16 });
    [
        BuildOptions { codec: None, ..base.clone() },
        BuildOptions { ztailpacking: true, ..base.clone() },
        BuildOptions { indexes: Indexes::Full, codec: zstd, ..big.clone() },
        BuildOptions { fragments: Fragments::Tails, dedupe: true, ..big },
        BuildOptions { codec: Some(ClusterCodec::Deflate(3)), ..base.clone() },
        BuildOptions { codec: lzma, ..base },
    ]
    .iter()
    .map(|options| {
        let file = tempfile::NamedTempFile::new().unwrap();
        let out = File::options().read(true).write(true).open(file.path()).unwrap();
        build(&tree, options, &out).unwrap();
        let mut bytes = fs::read(file.path()).unwrap();
        bytes[1024 + 8] &= !1;
        bytes
    })
    .collect()
}

/// Returns images with features that our builder does not write: encoded extents, directories
/// without `.`, a metadata box. Their checksum feature is off too.
pub fn foreign_images() -> Vec<Vec<u8>> {
    let images: [&[u8]; 3] = [
        include_bytes!("../../crates/erofs/tests/images/zstd-extents.erofs"),
        include_bytes!("../../crates/erofs/tests/images/lz4-extents.erofs"),
        include_bytes!("../../crates/erofs/tests/images/metabox.erofs"),
    ];
    images
        .map(|image| {
            let mut bytes = image.to_vec();
            bytes[1024 + 8] &= !1;
            bytes
        })
        .into()
}

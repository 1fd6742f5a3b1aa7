//! A sound image is edited, then checked and extracted: what is found sound must be extracted.
#![no_main]

use std::fs::File;
use std::sync::{Arc, OnceLock};

use libfuzzer_sys::fuzz_target;
use pagefold_codec::cluster::ClusterCodec;
use pagefold_erofs::{
    BuildOptions, Content, ExtractOptions, Fragments, Image, Indexes, Node, NodeKind, Tree, Xattr, build,
};

fn node(kind: NodeKind) -> Node {
    let xattrs = vec![Xattr { name: b"user.note".to_vec(), value: b"value".to_vec() }];
    Node { kind, permissions: 0o644, uid: 0, gid: 0, mtime_s: 1, mtime_nsec: 0, xattrs }
}

fn images() -> &'static [Vec<u8>] {
    static IMAGES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    IMAGES.get_or_init(|| {
        let mut tree = Tree::new(node(NodeKind::Fifo));
        let below = tree.add(tree.root(), b"directory", node(NodeKind::Directory(Default::default()))).unwrap();
        for len in [0usize, 50, 5000, 30_000] {
            let bytes: Arc<[u8]> = (0..len).map(|at| (at * at / 100) as u8).collect();
            let file = node(NodeKind::Regular { content: Content::Bytes(bytes), size: len as u64 });
            tree.add(below, format!("file-{len}").as_bytes(), file).unwrap();
        }
        tree.add(tree.root(), b"link", node(NodeKind::Symlink(b"directory/file-50".to_vec()))).unwrap();
        let zstd = Some(ClusterCodec::Zstd { level: 1, window_log: 16 });
        let base = BuildOptions { threads: 1, ..BuildOptions::default() };
        [
            BuildOptions { codec: None, ..base.clone() },
            BuildOptions { ztailpacking: true, ..base.clone() },
            BuildOptions { indexes: Indexes::Full, pcluster_bytes: 8192, codec: zstd, ..base.clone() },
            BuildOptions { fragments: Fragments::Tails, dedupe: true, pcluster_bytes: 8192, ..base },
        ]
        .iter()
        .map(|options| {
            let file = tempfile::NamedTempFile::new().unwrap();
            let out = File::options().read(true).write(true).open(file.path()).unwrap();
            build(&tree, options, &out).unwrap();
            let mut bytes = std::fs::read(file.path()).unwrap();
            // Without the checksum's feature what it covers can be edited.
            bytes[1024 + 8] &= !1;
            bytes
        })
        .collect()
    })
}

fuzz_target!(|input: &[u8]| {
    let Some((kind, edits)) = input.split_first() else { return };
    let images = images();
    let mut bytes = images[usize::from(*kind) % images.len()].clone();
    // An edit is an offset of 16 bits, from the front or from the end, and a byte.
    for edit in edits.chunks_exact(4) {
        let offset = usize::from(u16::from_le_bytes([edit[0], edit[1]]));
        let at = if edit[2] & 1 == 0 { offset } else { bytes.len().saturating_sub(1 + offset) };
        if let Some(byte) = bytes.get_mut(at) {
            *byte = edit[3];
        }
    }
    let Ok(image) = Image::open(bytes) else { return };
    let sound = image.check(1).problems.is_empty();
    let target = tempfile::tempdir().unwrap();
    let options = ExtractOptions { threads: 1, owners: false, xattrs: false, max_bytes: Some(64 << 20) };
    let extracted = image.extract(&target.path().join("out"), &options);
    if sound {
        // A name or a time that is sound in an image may still be none for the file system, and a device needs root.
        assert!(extracted.is_ok());
    }
});

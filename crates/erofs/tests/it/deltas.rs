//! Images that refer to their base's image instead of copying from it.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use pagefold_codec::cluster::ClusterCodec;
use pagefold_erofs::{BuildOptions, Change, Content, Image, Indexes, Overlay, ReadAt};
use proptest::prelude::*;
use sha2::{Digest as _, Sha256};

use crate::overlay::{bytes_of, change, disk_of, image_of, options, plain};
use crate::tools::{run, skip};

/// An image, and the images that it has data on, its base first.
#[derive(Clone)]
struct Chain(Vec<Vec<u8>>);

impl Chain {
    fn open(&self) -> Image {
        let others = self.0[1..].iter().map(|image| Box::new(image.clone()) as Box<dyn ReadAt>);
        Image::open_with_devices(self.0[0].clone(), others.collect(), 1 << 20).unwrap()
    }

    /// Returns an image of `disk` that refers to this one, and differs from it by `changes`.
    fn changed(&self, disk: &[u8], changes: &[Change], options: &BuildOptions) -> Self {
        let overlay = Overlay::new(disk.len() as u64, changes.to_vec(), Arc::new(disk.to_vec())).unwrap();
        let content = Content::Overlay(Arc::new(overlay.over(disk_of(&self.open()))));
        let new = image_of(content, disk.len() as u64, options);
        Self([&[new], &self.0[..]].concat())
    }

    fn options(&self, indexes: Indexes) -> BuildOptions {
        let like = BuildOptions::like(&disk_of(&self.open())).unwrap();
        BuildOptions { base_is_device: true, indexes, threads: 2, ..like }
    }

    fn content(&self) -> Vec<u8> {
        let file = disk_of(&self.open());
        let mut bytes = vec![0; file.inode().size as usize];
        assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
        bytes
    }

    /// Returns the disk as fsck.erofs extracts it.
    fn extracted(&self) -> Option<Vec<u8>> {
        let folder = tempfile::tempdir().unwrap();
        let path = |number: usize| folder.path().join(number.to_string());
        self.0.iter().enumerate().for_each(|(number, image)| fs::write(path(number), image).unwrap());
        let mut arguments = vec![format!("--extract={}", folder.path().join("out").display())];
        arguments.extend((1..self.0.len()).map(|number| format!("--device={}", path(number).display())));
        arguments.push(path(0).display().to_string());
        run("fsck.erofs", arguments)?;
        Some(fs::read(folder.path().join("out/disk")).unwrap())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, ..ProptestConfig::default() })]

    /// A disk above a disk above a disk, each an image that refers to those below, has the same
    /// content as a single image, and stores nothing twice.
    #[test]
    fn a_chain_of_images_holds_the_disk(
        runs in proptest::collection::vec((1usize..60_000, 0u8..4), 1..12),
        links in proptest::collection::vec(
            (-20_000isize..20_000, proptest::collection::vec((0u64..100_000, 1u64..5, 0u8..5), 0..6), 0..3u8),
            1..4,
        ),
        options in options(),
        seed in 0u64..1 << 40,
    ) {
        let mut disk = bytes_of(&runs, seed);
        let mut chain = Chain(vec![image_of(plain(&disk), disk.len() as u64, &options)]);
        for (number, (grown, stretches, indexes)) in links.iter().enumerate() {
            disk.resize(disk.len().saturating_add_signed(*grown).max(1), 0);
            let changes = change(&mut disk, stretches, seed + number as u64);
            let indexes = [Indexes::Auto, Indexes::Full, Indexes::Extents][usize::from(*indexes)];
            let options = chain.options(indexes);
            let next = chain.changed(&disk, &changes, &options);
            prop_assert!(next.content() == disk, "content of {options:?}");
            let report = next.open().check(1);
            prop_assert!(report.problems.is_empty(), "{:?}", report.problems);
            prop_assert_eq!(next.open().other_devices().count(), chain.0.len());
            let one = chain.changed(&disk, &changes, &BuildOptions { threads: 1, ..options.clone() });
            prop_assert!(next.0 == one.0, "other threads, another image");
            // Rewriting the same content makes no difference.
            let mut same = disk.clone();
            let all = change(&mut same, &[(0, disk.len().div_ceil(4096) as u64, 4)], 0);
            prop_assert!(next.0 == chain.changed(&disk, &all, &options).0, "equal content, another image");
            chain = next;
        }
    }
}

fn kinds() -> [(&'static str, Option<ClusterCodec>, u32); 4] {
    [
        ("plain", None, 4096),
        ("lz4", Some(ClusterCodec::Lz4), 4096),
        ("lz4 64K", Some(ClusterCodec::Lz4), 65536),
        ("zstd 64K", Some(ClusterCodec::Zstd { level: 1, window_log: 17 }), 65536),
    ]
}

/// Returns two links of a chain of 40 MiB, with their content.
fn long_chains() -> Vec<(&'static str, Chain, Vec<u8>)> {
    let mut chains = Vec::new();
    for (name, codec, pcluster_bytes) in kinds() {
        let options = BuildOptions { codec, pcluster_bytes, ..BuildOptions::default() };
        let mut disk = bytes_of(&[(9 << 20, 3), (3 << 20, 0), (20 << 20, 2), (8 << 20, 3), (500_001, 1)], 1);
        let mut chain = Chain(vec![image_of(plain(&disk), disk.len() as u64, &options)]);
        for link in 0..2 {
            let stretches: Vec<_> = (0..20).map(|number| (number * 457 + 100 * link, 1, 3)).collect();
            let changes = change(&mut disk, &stretches, 7 + link);
            chain = chain.changed(&disk, &changes, &chain.options(Indexes::Auto));
        }
        chains.push((name, chain, disk));
    }
    chains
}

#[test]
fn unchanged_clusters_are_not_stored() {
    for (name, chain, disk) in long_chains() {
        assert!(chain.content() == disk, "{name}");
        let (_, _, pcluster_bytes) = kinds().into_iter().find(|kind| kind.0 == name).unwrap();
        // Each change affects the clusters around it. An index of a block takes 4 or 8 bytes.
        let most = 20 * (3 * pcluster_bytes as usize + 8192) + disk.len() / 512 + 16384;
        for link in &chain.0[..2] {
            assert!(link.len() <= most, "{name}: {} bytes, {most} allowed", link.len());
        }
    }
}

/// For compressed files, it reads the image instead of the device (`erofs_map_dev` of 1.9.4).
#[test]
fn fsck_reads_a_chain_of_uncompressed_images() {
    const TEST: &str = "fsck_reads_a_chain_of_uncompressed_images";
    match Command::new("fsck.erofs").arg("-V").output() {
        Ok(said) if String::from_utf8_lossy(&said.stdout).contains(" 1.9") => {}
        _ => return skip(TEST, "fsck.erofs 1.9 is not installed; older ones do not read other devices"),
    }
    for (name, chain, disk) in long_chains().into_iter().filter(|(name, ..)| *name == "plain") {
        let Some(found) = chain.extracted() else { return skip(TEST, "fsck.erofs is not installed") };
        assert!(found == disk, "{name}: fsck.erofs extracts something else");
    }
}

#[test]
fn the_kernel_reads_a_chain() {
    const TEST: &str = "the_kernel_reads_a_chain";
    if !rustix::process::geteuid().is_root() {
        return skip(TEST, "only root can mount");
    }
    for (name, chain, disk) in long_chains() {
        let folder = tempfile::tempdir().unwrap();
        let path = |number: usize| folder.path().join(number.to_string());
        let mut devices = Vec::new();
        for (number, image) in chain.0.iter().enumerate() {
            fs::write(path(number), image).unwrap();
            match Loop::over(&path(number)) {
                Ok(device) => devices.push(device),
                Err(why) => return skip(TEST, &why),
            }
        }
        let target = folder.path().join("mounted");
        fs::create_dir(&target).unwrap();
        let others: Vec<_> = devices[1..].iter().map(|other| format!("device={}", other.0)).collect();
        let mounted = Command::new("mount")
            .args(["-t", "erofs", "-o", &format!("ro,{}", others.join(",")), &devices[0].0])
            .arg(&target)
            .output()
            .unwrap();
        if !mounted.status.success() {
            return skip(TEST, &format!("the kernel does not mount it: {}", String::from_utf8_lossy(&mounted.stderr)));
        }
        let found = fs::read(target.join("disk"));
        assert!(Command::new("umount").arg(&target).status().unwrap().success());
        assert!(found.unwrap() == disk, "{name}: the kernel reads something else");
    }
}

/// A loop device over a file.
struct Loop(String);

impl Loop {
    fn over(path: &Path) -> Result<Self, String> {
        let made = Command::new("losetup").args(["-f", "--show", "-r"]).arg(path).output();
        let made = made.map_err(|error| format!("losetup: {error}"))?;
        if !made.status.success() {
            return Err(String::from_utf8_lossy(&made.stderr).into_owned());
        }
        Ok(Self(String::from_utf8_lossy(&made.stdout).trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

/// Images that cannot be expressed are refused before anything is written.
#[test]
fn only_one_base_of_equal_blocks_can_be_referred_to() {
    let disk = bytes_of(&[(100_000, 3)], 1);
    let options = BuildOptions { base_is_device: true, ..BuildOptions::default() };
    let refused = |content: Content, options: &BuildOptions| {
        let node = |kind| pagefold_erofs::Node {
            kind,
            permissions: 0o644,
            uid: 0,
            gid: 0,
            mtime_s: 0,
            mtime_nsec: 0,
            xattrs: Vec::new(),
        };
        let mut tree = pagefold_erofs::Tree::new(node(pagefold_erofs::NodeKind::Fifo));
        let size = disk.len() as u64;
        tree.add(tree.root(), b"disk", node(pagefold_erofs::NodeKind::Regular { content, size })).unwrap();
        let out: File = tempfile::tempfile().unwrap();
        pagefold_erofs::build(&tree, options, &out).unwrap_err().to_string()
    };
    assert!(refused(plain(&disk), &options).contains("no base"));
    let base = Chain(vec![image_of(
        plain(&disk),
        disk.len() as u64,
        &BuildOptions { block_bytes: 512, pcluster_bytes: 512, ..BuildOptions::default() },
    )]);
    let overlay = Overlay::new(disk.len() as u64, Vec::new(), Arc::new(disk.clone())).unwrap();
    let content = Content::Overlay(Arc::new(overlay.over(disk_of(&base.open()))));
    assert!(refused(content, &options).contains("block size"));
}

/// A device that is another image of the same length would give wrong content without an error.
#[test]
fn another_image_is_not_taken_for_the_base() {
    let disk = bytes_of(&[(100_000, 3)], 1);
    let image = |disk: &[u8]| image_of(plain(disk), disk.len() as u64, &BuildOptions::default());
    let base = Chain(vec![image(&disk)]);
    let Chain(images) = base.changed(&disk, &[], &base.options(Indexes::Auto));
    let mut other = disk.clone();
    other[5000] ^= 1;
    for device in [image(&other), [&image(&disk)[..], &[0; 1 << 20]].concat()[1024..].to_vec()] {
        let opened = Image::open_with_devices(images[0].clone(), vec![Box::new(device)], 1 << 20);
        let error = opened.map(drop).unwrap_err().to_string();
        assert!(error.contains("the image expects"), "{error}");
    }
}

/// A device may be named by the sum of the blob that it is, or of one that begins with it: a blob has
/// more than its image.
#[test]
fn a_device_can_be_named_by_its_blob() {
    let disk = bytes_of(&[(100_000, 3)], 1);
    let base = Chain(vec![image_of(plain(&disk), disk.len() as u64, &BuildOptions::default())]);
    let blob = [&base.0[0][..], b"an index"].concat();
    let sum: [u8; 32] = Sha256::digest(&blob).into();
    let options = BuildOptions { base_sha256: Some(sum), ..base.options(Indexes::Auto) };
    let mut changed = disk.clone();
    changed[7000..9000].fill(5);
    let pages = [Change { at: 4096, len: 8192, zeros: false }];
    let Chain(images) = base.changed(&changed, &pages, &options);
    let chain = Chain(vec![images[0].clone(), blob.clone()]);
    assert!(chain.content() == changed);
    let hex: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(images[0].windows(64).any(|window| window == hex.as_bytes()));
    // Another image above both keeps the name.
    let next = chain.changed(&disk, &pages, &chain.options(Indexes::Auto));
    assert!(next.content() == disk);

    let mut other = blob.clone();
    *other.last_mut().unwrap() ^= 1;
    let error = |device: Box<dyn ReadAt>| {
        let opened = Image::open_with_devices(images[0].clone(), vec![device], 1 << 20);
        opened.map(drop).err().map(|error| error.to_string())
    };
    assert!(error(Box::new(other.clone())).unwrap().contains("has the SHA-256 sum"));
    assert!(error(Box::new(base.0[0].clone())).unwrap().contains(&format!("but the image expects {hex}")));
    // Distant data are not read for it.
    for (known, what) in
        [(Some(sum), None), (Some([0; 32]), Some("has the SHA-256 sum 0000")), (None, Some("only a file"))]
    {
        let found = error(Box::new(Known { bytes: blob.clone(), sum: known }));
        assert!(found.as_deref().unwrap_or_default().contains(what.unwrap_or_default()), "{found:?}");
        assert_eq!(found.is_some(), what.is_some());
    }
}

/// A source that is far, and may know its sum.
struct Known {
    bytes: Vec<u8>,
    sum: Option<[u8; 32]>,
}

impl ReadAt for Known {
    fn len_bytes(&self) -> std::io::Result<u64> {
        self.bytes.len_bytes()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<()> {
        self.bytes.read_exact_at(buf, offset)
    }

    fn unit_bytes(&self) -> u64 {
        64 << 10
    }

    fn blob_sha256(&self) -> Option<[u8; 32]> {
        self.sum
    }
}

/// Bytes at any offset.
struct Noise(u64);

impl ReadAt for Noise {
    fn len_bytes(&self) -> std::io::Result<u64> {
        Ok(u64::MAX)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<()> {
        for (byte, at) in buf.iter_mut().zip(offset..) {
            *byte = ((at ^ self.0).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
        }
        Ok(())
    }
}

/// A long disk that is almost only zeros has encoded extents even if it is not compressed.
#[test]
fn unchanged_parts_of_a_sparse_disk_are_not_stored() {
    const SIZE: u64 = 32 << 30;
    let change = |at: u64, len: u64| Change { at, len, zeros: false };
    let held: Vec<_> = (0..64).map(|number| change(number * (SIZE / 64), 64 << 10)).collect();
    let changed: Vec<_> = (0..10).map(|number| change(number * (SIZE / 16) + 4096, 8192)).collect();
    for codec in [None, Some(ClusterCodec::Lz4)] {
        let options = BuildOptions { codec, threads: 2, ..BuildOptions::default() };
        let disk = Overlay::new(SIZE, held.clone(), Arc::new(Noise(0))).unwrap();
        let base = Chain(vec![image_of(Content::Overlay(Arc::new(disk)), SIZE, &options)]);
        let overlay = Overlay::new(SIZE, changed.clone(), Arc::new(Noise(1))).unwrap();
        let content = Content::Overlay(Arc::new(overlay.over(disk_of(&base.open()))));
        let delta = image_of(content, SIZE, &base.options(Indexes::Auto));
        let index_bytes = 64 * 18 * 32;
        assert!(delta.len() < 10 * 2 * 4096 * 3 + index_bytes + 65536, "{codec:?}: {} bytes", delta.len());
        let chain = Chain([vec![delta], base.0].concat());
        assert!(chain.open().check(2).problems.is_empty(), "{codec:?}");
        let file = disk_of(&chain.open());
        for at in held.iter().map(|held| held.at) {
            let (mut found, mut expected) = (vec![1; 80 << 10], vec![0; 80 << 10]);
            Noise(0).read_exact_at(&mut expected[..64 << 10], at).unwrap();
            for change in changed.iter().filter(|change| (at..at + (64 << 10)).contains(&change.at)) {
                let start = (change.at - at) as usize;
                Noise(1).read_exact_at(&mut expected[start..start + 8192], change.at).unwrap();
            }
            file.read_at(&mut found, at).unwrap();
            assert!(found == expected, "{codec:?}: {at}");
        }
    }
}

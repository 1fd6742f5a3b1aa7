//! Images in which bytes were changed.

use std::fs::{self, File};

use pagefold_base::{Base, Cache, Options};
use pagefold_disk::BlockDevice;
use pagefold_erofs::{BuildOptions, ClusterCodec, Fragments};

use crate::{content, image_of};

/// An image with any byte changed is rejected, or opened and read to its end with or without
/// errors: never a panic. A change in the superblock, which has a checksum, is detected.
#[test]
fn a_changed_byte_is_an_error_or_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let raw = folder.path().join("disk.img");
    let content = content(200_000);
    fs::write(&raw, &content).expect("a file");
    let damaged = folder.path().join("damaged.erofs");
    let cache = Cache::new(1 << 20);
    let (mut refused, mut failed) = (0, 0);
    for (codec, fragments) in [
        (Some(ClusterCodec::Lz4), Fragments::Off),
        (Some(ClusterCodec::Zstd { level: 1, window_log: 16 }), Fragments::All),
        (None, Fragments::Off),
    ] {
        let options = BuildOptions { codec, fragments, pcluster_bytes: 16 << 10, ..BuildOptions::default() };
        let sound = fs::read(image_of(&raw, &options)).expect("an image");
        // The first blocks hold the metadata.
        let near = (1024..1152).chain((1152..16 << 10).step_by(29)).chain((16 << 10..sound.len()).step_by(4999));
        for at in near.filter(|at| *at < sound.len()) {
            let mut bytes = sound.clone();
            bytes[at] ^= 0x11 << (at % 4);
            fs::write(&damaged, &bytes).expect("an image");
            let base = match Base::open(&damaged, &Options::default(), &cache, |_| ()) {
                Ok(base) => base,
                Err(_) => {
                    refused += 1;
                    continue;
                }
            };
            // Byte 1032 says whether there is a checksum.
            assert!(at == 1032 || !(1024..1152).contains(&at), "byte {at} of the superblock");
            let mut buf = vec![0; 4096];
            for offset in (0..base.size_bytes().min(1 << 20)).step_by(4096) {
                let len = (base.size_bytes() - offset).min(4096) as usize;
                failed += u32::from(base.read(offset, &mut buf[..len]).is_err());
            }
            let mut covered = 0;
            let extents = base.extents(0, base.size_bytes(), &mut |extent| {
                covered += extent.len_bytes;
                true
            });
            assert!(covered <= base.size_bytes() && (extents.is_err() || covered == base.size_bytes()));
        }
    }
    assert!(refused > 60 && failed > 10, "{refused} refused, {failed} reads failed");
}

/// A truncated image is refused when it is opened, and the error says where it ends.
#[test]
fn a_truncated_image_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let raw = folder.path().join("disk.img");
    fs::write(&raw, content(1 << 20)).expect("a file");
    let image = image_of(&raw, &BuildOptions::default());
    let len = fs::metadata(&image).expect("an image").len();
    for cut in [len - 1, len / 2, 8192] {
        File::options().write(true).open(&image).expect("an image").set_len(cut).expect("a shorter file");
        let error = Base::open(&image, &Options::default(), &Cache::new(1 << 20), |_| ()).expect_err("truncated");
        let message = format!("{error:#}");
        assert!(message.contains(&format!("ends before byte {len}; it has {cut} bytes")), "{message}");
    }
}

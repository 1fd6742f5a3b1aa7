//! A valid image is edited, then checked and extracted: an image that passes the check must
//! extract.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use pagefold_erofs::{ExtractOptions, Image};

static IMAGES: LazyLock<Vec<Vec<u8>>> =
    LazyLock::new(|| [pagefold_fuzz::images(4096, &[0, 50, 5000, 30_000]), pagefold_fuzz::foreign_images()].concat());

fuzz_target!(|input: &[u8]| {
    let Some((kind, edits)) = input.split_first() else { return };
    let mut bytes = IMAGES[usize::from(*kind) % IMAGES.len()].clone();
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
    let options = ExtractOptions {
        threads: 1,
        owners: false,
        xattrs: false,
        max_bytes: Some(64 << 20),
        ..ExtractOptions::default()
    };
    let extracted = image.extract(&target.path().join("out"), &options);
    if sound {
        // A name or a time that is valid in an image may be invalid in the file system, and a
        // device needs root.
        assert!(extracted.is_ok());
    }
});

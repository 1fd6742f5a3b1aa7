//! Which formats are detected, and which files are rejected.

use std::{fs, path::Path};

use pagefold_base::{Base, Cache, Format, OpenError, Options};
use pagefold_disk::{BlockDevice, Error, Zeroes};
use pagefold_erofs::{BuildOptions, ScanOptions, Tree, build};

use crate::{image_of, open};

fn refused(path: &Path, options: &Options) -> OpenError {
    match Base::open(path, options, &Cache::new(1 << 20), |line| panic!("logged: {line}")) {
        Ok(base) => panic!("{base:?} was opened"),
        Err(error) => error,
    }
}

#[test]
fn content_and_name_must_agree() {
    let folder = tempfile::tempdir().expect("a folder");
    let raw = folder.path().join("disk.img");
    fs::write(&raw, vec![3; 5000]).expect("a file");
    let image = image_of(&raw, &BuildOptions::default());
    let says = |format| {
        let mut options = Options::default();
        options.format = Some(format);
        options
    };
    assert_eq!(open(&raw, &Options::default()).0.format(), Format::Raw);
    assert_eq!(open(&image, &Options::default()).0.format(), Format::Erofs);
    // Opened as raw, it is served unchanged.
    let (base, _) = open(&image, &says(Format::Raw));
    assert_eq!((base.format(), base.size_bytes()), (Format::Raw, fs::metadata(&image).expect("a file").len()));

    // A guest chooses the first bytes of its raw disk.
    let written = folder.path().join("written.img");
    fs::copy(&image, &written).expect("a copy");
    assert!(matches!(refused(&written, &Options::default()), OpenError::Doubtful { found: Format::Erofs, .. }));
    open(&written, &says(Format::Raw));
    open(&written, &says(Format::Erofs));
    fs::write(&written, [b"QFI\xfb".as_slice(), &[0; 4092]].concat()).expect("a file");
    let error = refused(&written, &Options::default());
    assert!(error.to_string().contains("its name does not end in '.qcow2'"), "{error}");
    open(&written, &says(Format::Raw));

    // A matching name alone does not make a file an image.
    let named = folder.path().join("named.EROFS");
    fs::copy(&raw, &named).expect("a copy");
    assert!(matches!(refused(&named, &Options::default()), OpenError::Unfit { .. }));
    open(&named, &says(Format::Raw));
    assert!(matches!(refused(&raw, &says(Format::Erofs)), OpenError::Erofs { .. }));
}

/// Contents and names in all combinations. Without a given format, a file is opened only as what it
/// is, and as a raw disk only if neither its content nor its name says otherwise.
#[test]
fn no_combination_of_content_and_name_is_misread() {
    let folder = tempfile::tempdir().expect("a folder");
    let raw = folder.path().join("disk.img");
    fs::write(&raw, vec![3; 5000]).expect("a file");
    let image = fs::read(image_of(&raw, &BuildOptions::default())).expect("an image");
    let headed = |at: usize, magic: &[u8]| {
        let mut bytes = vec![3; 5000];
        bytes[at..at + magic.len()].copy_from_slice(magic);
        bytes
    };
    let contents = [
        (vec![3; 5000], None),
        (headed(510, b"\x55\xaa"), None),
        (headed(1080, b"\x53\xef"), None),
        (image, Some("an EROFS image")),
        (headed(0, b"QFI\xfb\0\0\0\x02"), Some("a qcow2 image")),
        (headed(0, b"QFI\xfb\0\0\0\x01"), Some("a qcow image of version 1")),
        (headed(0, b"KDMV\x01\0\0\0"), Some("a VMDK disk")),
        (headed(0, b"LUKS\xba\xbe\0\x02"), Some("a LUKS volume")),
        (headed(0, b"\x1f\x8b\x08"), Some("gzip data")),
        (headed(0, b"\x50\x2a\x4d\x18\x04\0\0\0\0\0\0\0\x28\xb5\x2f\xfd"), Some("Zstandard data")),
        (headed(257, b"ustar\0"), Some("a tar archive")),
        (headed(0, b"hsqs\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x04\0"), Some("a squashfs image")),
    ];
    let names =
        ["d", "d.img", "d.raw", "d.iso", "d.txt", "d.erofs", "d.qcow2", "d.QCOW2", "d.vmdk", "d.img.gz", "d.tar"];
    for (bytes, found) in &contents {
        for name in names {
            let path = folder.path().join(name);
            fs::write(&path, bytes).expect("a file");
            let opened = Base::open(&path, &Options::default(), &Cache::new(1 << 20), |line| panic!("logged: {line}"));
            let claims = !["d", "d.img", "d.raw", "d.iso", "d.txt"].contains(&name);
            match (opened, found) {
                (Ok(base), None) => assert!(base.format() == Format::Raw && !claims, "{name}"),
                (Ok(base), Some(found)) => {
                    assert_eq!((base.format(), *found, name), (Format::Erofs, "an EROFS image", "d.erofs"));
                }
                (Err(error), None) => assert!(claims && error.to_string().contains("its name is that of"), "{error}"),
                (Err(error), Some(found)) => {
                    // A damaged image with the right name.
                    let is_named = error.to_string().contains(found) || error.to_string().contains("the image ");
                    assert!(is_named && (*found, name) != ("an EROFS image", "d.erofs"), "{found} {name}: {error}");
                }
            }
            let mut options = Options::default();
            options.format = Some(Format::Raw);
            let (base, _) = open(&path, &options);
            let mut front = [0; 512];
            base.read(0, &mut front).expect("a read");
            assert!(front == bytes[..512]);
            fs::remove_file(&path).expect("a file");
        }
    }
}

#[test]
fn what_cannot_be_a_base_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let empty = folder.path().join("empty");
    fs::write(&empty, "").expect("a file");
    let mut inside = Options::default();
    inside.inside = Some(b"/a".to_vec());
    assert!(matches!(refused(&empty, &Options::default()), OpenError::Unfit { .. }));
    assert!(matches!(refused(folder.path(), &Options::default()), OpenError::Unfit { .. }));
    assert!(matches!(refused("/dev/null".as_ref(), &Options::default()), OpenError::Unfit { .. }));
    assert!(matches!(refused(&folder.path().join("none"), &Options::default()), OpenError::Io { .. }));
    fs::write(&empty, [1; 512]).expect("a file");
    assert!(matches!(refused(&empty, &inside), OpenError::Unfit { .. }));
}

#[test]
fn a_file_of_an_image_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().join("root");
    fs::create_dir_all(root.join("disks")).expect("a folder");
    fs::write(root.join("disks/a"), vec![1; 4096]).expect("a file");
    fs::write(root.join("disks/b"), vec![2; 8192]).expect("a file");
    std::os::unix::fs::symlink("disks/b", root.join("latest")).expect("a link");
    let image = folder.path().join("images.erofs");
    let tree = Tree::scan(&root, &ScanOptions::default()).expect("a tree");
    build(&tree, &BuildOptions::default(), &fs::File::create(&image).expect("an image")).expect("an image");
    let inside = |path: &str| {
        let mut options = Options::default();
        options.inside = Some(path.into());
        options
    };
    for (path, byte, size) in [("/disks/a", 1, 4096), ("disks/b", 2, 8192), ("/latest", 2, 8192)] {
        let (base, _) = open(&image, &inside(path));
        let mut buf = [0; 512];
        base.read(512, &mut buf).expect("a read");
        assert_eq!((buf, base.size_bytes()), ([byte; 512], size), "{path}");
    }
    let several = refused(&image, &Options::default());
    assert!(several.to_string().contains("images.erofs:/PATH"), "{several}");
    assert!(matches!(refused(&image, &inside("/disks")), OpenError::Unfit { .. }));
    assert!(matches!(refused(&image, &inside("/none")), OpenError::Erofs { .. }));
}

#[test]
fn nothing_can_be_changed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("disk");
    fs::write(&path, vec![3; 4096]).expect("a file");
    let (base, _) = open(&path, &Options::default());
    assert!(base.read_only());
    for result in [base.write(0, &[1]), base.discard(0, 512), base.write_zeroes(0, 512, Zeroes::MayUnmap)] {
        assert!(matches!(result, Err(Error::ReadOnly)));
    }
    base.flush().expect("nothing to flush");
}

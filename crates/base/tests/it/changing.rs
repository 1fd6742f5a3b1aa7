//! Files that are truncated, written or replaced while they are in use.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
    sync::Arc,
};

use pagefold_base::{Base, Cache, Options};
use pagefold_disk::{BlockDevice, Error};
use pagefold_erofs::BuildOptions;
use pagefold_storage::{ReadAt, Storage, StoredFile};

use crate::{Lines, content, image_of, open};

/// A file that is examined before each read, and not once a second.
struct Examined(StoredFile);

impl ReadAt for Examined {
    fn len_bytes(&self) -> io::Result<u64> {
        self.0.len_bytes()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buf, offset)
    }
}

impl Storage for Examined {
    fn identity(&self) -> &str {
        self.0.identity()
    }

    fn is_changed(&self) -> bool {
        self.0.is_changed_now()
    }
}

/// Opens a base whose changes are noticed immediately.
fn open_examined(path: &Path) -> (Base, Lines) {
    let lines = Lines::default();
    let storage = Arc::new(Examined(StoredFile::open(path).expect("a file")));
    let base = Base::of(storage, path, &Options::default(), &Cache::new(1 << 20), lines.logger());
    (base.expect("a base"), lines)
}

#[test]
fn what_is_cut_off_is_an_error_and_never_zeros() {
    let folder = tempfile::tempdir().expect("a folder");
    let raw = folder.path().join("disk.img");
    let content = content(1 << 20);
    fs::write(&raw, &content).expect("a file");
    let image = image_of(&raw, &BuildOptions { pcluster_bytes: 4096, ..BuildOptions::default() });
    for path in [&raw, &image] {
        let (base, logged) = open(path, &Options::default());
        let len = fs::metadata(path).expect("a file").len();
        File::options().write(true).open(path).expect("a file").set_len(len / 2).expect("a shorter file");
        let mut failures = 0;
        let mut buf = [0; 4096];
        for at in (0..content.len()).step_by(4096) {
            match base.read(at as u64, &mut buf) {
                Ok(()) => assert!(buf == content[at..at + 4096], "bytes at {at}"),
                Err(Error::Io(error)) => {
                    assert!(error.to_string().contains(&path.display().to_string()), "{error}");
                    failures += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!((20..=200).contains(&failures), "{failures} reads failed");
        // The holes that the file system reports beyond the end are not reported as zeros.
        base.extents(0, base.size_bytes(), &mut |extent| {
            assert!(path != &raw || !extent.zero);
            true
        })
        .expect("extents");
        let lines = logged.lines();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].contains("was modified while in use") && lines[1].contains("cannot read byte"), "{lines:?}");
    }
}

#[test]
fn a_change_is_logged_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("disk.img");
    fs::write(&path, vec![1; 8192]).expect("a file");
    let (base, logged) = open_examined(&path);
    let mut buf = [0; 512];
    base.read(0, &mut buf).expect("a read");
    assert!(logged.lines().is_empty());
    let mut file = File::options().append(true).open(&path).expect("a file");
    for _ in 0..2 {
        file.write_all(&[2; 100]).expect("a write");
        base.read(4096, &mut buf).expect("a read");
        assert_eq!((logged.lines().len(), base.size_bytes(), buf[0]), (1, 8192, 1));
    }
}

#[test]
fn a_path_may_get_another_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let raw = folder.path().join("disk.img");
    fs::write(&raw, vec![1; 100_000]).expect("a file");
    let image = image_of(&raw, &BuildOptions::default());
    for path in [&raw, &image] {
        let (base, logged) = open_examined(path);
        fs::write(folder.path().join("other"), "another file").expect("a file");
        fs::rename(folder.path().join("other"), path).expect("a file in its place");
        let mut buf = [0; 512];
        base.read(50_000, &mut buf).expect("a read");
        assert_eq!((buf, logged.lines().len()), ([1; 512], 0));
    }
}

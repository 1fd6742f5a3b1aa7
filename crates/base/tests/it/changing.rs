//! Files that are truncated, written or replaced while they are in use.

use std::{
    fs::{self, File},
    io::Write,
    thread,
    time::{Duration, Instant},
};

use pagefold_base::Options;
use pagefold_disk::{BlockDevice, Error};
use pagefold_erofs::BuildOptions;

use crate::{content, image_of, open};

#[test]
fn what_is_cut_off_is_an_error_and_never_zeros() {
    let folder = tempfile::tempdir().expect("a folder");
    let raw = folder.path().join("disk.img");
    let content = content(1 << 20);
    fs::write(&raw, &content).expect("a file");
    let image = image_of(&raw, &BuildOptions { pcluster_bytes: 4096, ..BuildOptions::default() });
    for path in [&raw, &image] {
        let (base, told) = open(path, &Options::default());
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
        let lines = told.lines();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].contains("was modified while in use") && lines[1].contains("cannot read byte"), "{lines:?}");
    }
}

#[test]
fn a_change_is_logged_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("disk.img");
    fs::write(&path, vec![1; 8192]).expect("a file");
    let (base, told) = open(&path, &Options::default());
    let mut buf = [0; 512];
    base.read(0, &mut buf).expect("a read");
    let mut file = File::options().append(true).open(&path).expect("a file");
    file.write_all(&[2; 100]).expect("a write");
    let start = Instant::now();
    while told.lines().is_empty() {
        assert!(start.elapsed() < Duration::from_secs(30), "nothing is reported");
        base.read(4096, &mut buf).expect("a read");
        thread::sleep(Duration::from_millis(50));
    }
    file.write_all(&[2; 100]).expect("a write");
    thread::sleep(Duration::from_millis(2100));
    base.read(0, &mut buf).expect("a read");
    assert_eq!((told.lines().len(), base.size_bytes(), buf[0]), (1, 8192, 1));
}

#[test]
fn a_path_may_get_another_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let raw = folder.path().join("disk.img");
    fs::write(&raw, vec![1; 100_000]).expect("a file");
    let image = image_of(&raw, &BuildOptions::default());
    for path in [&raw, &image] {
        let (base, told) = open(path, &Options::default());
        fs::write(folder.path().join("other"), "another file").expect("a file");
        fs::rename(folder.path().join("other"), path).expect("a file in its place");
        let mut buf = [0; 512];
        thread::sleep(Duration::from_millis(1100));
        base.read(50_000, &mut buf).expect("a read");
        assert_eq!((buf, told.lines().len()), ([1; 512], 0));
    }
}

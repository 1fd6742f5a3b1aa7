//! Allowed and refused operations on files.

use std::{
    fs::{self, File, OpenOptions},
    io::{Error, ErrorKind},
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    sync::Arc,
};

use pagefold_disk::{BlockDevice, RamDisk};
use pagefold_executor::{Export, Quota};
use pagefold_faulty::Faulty;
use rustix::{
    fs::{FallocateFlags, XattrFlags, fallocate, fsetxattr, getxattr},
    io::Errno,
};

use crate::mounted::{Mounted, noise, until};

#[track_caller]
fn fails<T: std::fmt::Debug>(result: Result<T, Error>, errno: Errno) {
    assert_eq!(result.expect_err("a failure").raw_os_error(), Some(errno.raw_os_error()));
}

#[test]
fn files_come_and_go_with_their_exports() {
    let Some(mut mounted) = Mounted::new("files_come_and_go_with_their_exports") else { return };
    assert_eq!(mounted.names(), [""; 0]);
    let disk = mounted.disk("job-1", 1 << 20);
    mounted.disk("a/b", 512);
    mounted.disk("", 1024);
    mounted.disk("..", 4096);
    let private = Arc::new(RamDisk::new(&mounted.pool, 512).expect("a disk"));
    mounted.exports.add(Export::new("secret", private).private()).expect("a new name");
    let long = "x".repeat(300);
    mounted.disk(&long, 512);
    assert_eq!(mounted.names(), ["%", "%2E%2E", "a%2Fb", "job-1"]);
    for hidden in ["secret", &long[..255], "a", "%2f", "job-1 "] {
        assert_eq!(fs::metadata(mounted.path(hidden)).expect_err("hidden").kind(), ErrorKind::NotFound);
    }
    let sizes = ["%", "%2E%2E", "a%2Fb", "job-1"].map(|name| fs::metadata(mounted.path(name)).unwrap().len());
    assert_eq!(sizes, [1024, 4096, 512, 1 << 20]);

    let file = mounted.open("job-1");
    disk.resize(2 << 20).expect("room");
    assert_eq!(file.metadata().unwrap().len(), 2 << 20);
    file.write_all_at(b"end", (2 << 20) - 3).expect("room");
    disk.resize(1 << 20).expect("a smaller disk");
    assert_eq!(fs::metadata(mounted.path("job-1")).unwrap().len(), 1 << 20);
    assert_eq!(file.read_at(&mut [0; 4096], (1 << 20) - 100).expect("data"), 100, "a read at the new end is short");
    assert_eq!(file.read_at(&mut [0; 4096], 3 << 19).expect("the end"), 0);

    mounted.exports.rename("job-1", "job-2").expect("a new name");
    assert_eq!(mounted.names(), ["%", "%2E%2E", "a%2Fb", "job-2"]);
    let number = file.metadata().unwrap().ino();
    assert_eq!(fs::metadata(mounted.path("job-2")).unwrap().ino(), number);
    mounted.exports.remove("job-2").expect("it was there");
    mounted.disk("job-2", 1 << 20);
    assert_ne!(fs::metadata(mounted.path("job-2")).unwrap().ino(), number, "another disk is another file");
    fails(file.read_at(&mut [0; 4096], 0), Errno::SHUTDOWN);
    fails(file.write_at(&[0; 4096], 0), Errno::SHUTDOWN);
    fails(file.sync_all(), Errno::SHUTDOWN);
    drop(file);

    // With a file that is still open.
    let open = mounted.open("job-2");
    mounted.unmount();
    assert_eq!(fs::read_dir(mounted.path("")).expect("the directory below").count(), 0);
    open.read_at(&mut [0; 4096], 0).expect_err("the server is gone");
}

#[test]
fn unsupported_calls_fail_and_change_nothing() {
    let Some(mounted) = Mounted::new("unsupported_calls_fail_and_change_nothing") else { return };
    let (path, other) = (mounted.path("disk"), mounted.path("other"));
    let disk = mounted.disk("disk", 1 << 20);
    let data = noise(1 << 20, 1);
    disk.write(0, &data).expect("room");
    fails(File::create_new(&other), Errno::PERM);
    fails(fs::create_dir(&other), Errno::PERM);
    fails(fs::rename(&path, &other), Errno::PERM);
    fails(fs::hard_link(&path, &other), Errno::PERM);
    fails(std::os::unix::fs::symlink(&path, &other), Errno::PERM);
    fails(fs::remove_file(&path), Errno::PERM);
    fails(fs::set_permissions(&path, fs::Permissions::from_mode(0o777)), Errno::PERM);
    let file = mounted.open("disk");
    fails(file.set_len(0), Errno::PERM);
    fails(file.set_len(2 << 20), Errno::PERM);
    file.set_len(1 << 20).expect("its own size");
    assert_eq!(getxattr(&path, "user.a", &mut [0_u8; 10]), Err(Errno::OPNOTSUPP));
    assert_eq!(fsetxattr(&file, "user.a", b"b", XattrFlags::empty()), Err(Errno::OPNOTSUPP));
    fails(file.write_at(b"x", 1 << 20), Errno::FBIG);
    fails(file.write_at(b"x", i64::MAX as u64 - 4096), Errno::FBIG);
    assert_eq!(file.write_at(&data[..100], (1 << 20) - 60).expect("a part"), 60);
    file.write_all_at(&data[(1 << 20) - 60..], (1 << 20) - 60).expect("room");
    let allocate = |mode, offset, len| fallocate(&file, mode, offset, len);
    let keep = FallocateFlags::KEEP_SIZE;
    for mode in [FallocateFlags::empty(), keep] {
        assert_eq!(allocate(mode, 0, 4096), Err(Errno::OPNOTSUPP));
    }
    assert_eq!(allocate(FallocateFlags::ZERO_RANGE, 1 << 19, 1 << 20), Err(Errno::FBIG));
    assert_eq!(allocate(FallocateFlags::ZERO_RANGE, 4 << 20, 1), Err(Errno::FBIG));
    assert_eq!(allocate(FallocateFlags::COLLAPSE_RANGE, 0, 4096), Err(Errno::OPNOTSUPP));
    allocate(FallocateFlags::PUNCH_HOLE | keep, 1 << 20, i64::MAX as u64 - (1 << 20)).expect("nothing to do");
    assert_eq!(file.read_at(&mut [0; 10], i64::MAX as u64 - 10).expect("the end"), 0);
    assert_eq!(fs::read(&path).expect("the data"), data);
    assert_eq!(mounted.names(), ["disk"]);
    allocate(FallocateFlags::PUNCH_HOLE | keep, 0, i64::MAX as u64).expect("everything");
    assert!(fs::read(&path).expect("zeros").iter().all(|byte| *byte == 0));
}

#[test]
fn a_truncated_file_reads_as_zeros() {
    let Some(mounted) = Mounted::new("a_truncated_file_reads_as_zeros") else { return };
    let disk = mounted.disk("disk", 8 << 20);
    disk.write(0, &noise(8 << 20, 1)).expect("room");
    let file = File::create(mounted.path("disk")).expect("O_CREAT and O_TRUNC");
    assert_eq!(file.metadata().unwrap().len(), 8 << 20);
    let mut all = vec![1; 8 << 20];
    disk.read(0, &mut all).expect("data");
    assert!(all.iter().all(|byte| *byte == 0));
    file.write_all_at(b"x", (8 << 20) - 1).expect("room");
    assert_eq!(fs::metadata(mounted.path("disk")).unwrap().len(), 8 << 20);
}

#[test]
fn read_only_files_cannot_be_changed() {
    let Some(mounted) = Mounted::new("read_only_files_cannot_be_changed") else { return };
    let bytes = noise(1 << 20, 1);
    let base = Arc::new(Faulty::new(bytes.clone()).slow(64 << 10));
    base.set_short(true);
    mounted.base("base", base);
    let path = mounted.path("base");
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!((metadata.mode() & 0o7777, metadata.len()), (0o400, 1 << 20));
    for options in [OpenOptions::new().write(true), OpenOptions::new().read(true).write(true).truncate(true)] {
        let error = options.open(&path).expect_err("it is read-only").raw_os_error();
        let expected = if rustix::process::geteuid().is_root() { Errno::ROFS } else { Errno::ACCESS };
        assert_eq!(error, Some(expected.raw_os_error()));
    }
    assert_eq!(fs::read(&path).expect("the data"), bytes);
    // Past the page cache, with partly filled buffers.
    let direct = OpenOptions::new().read(true).custom_flags(0o40000).open(&path);
    if let Ok(direct) = direct {
        let mut piece = vec![0; 65536];
        assert_eq!(direct.read_at(&mut piece, 4096).ok(), Some(65536));
        assert!(piece == bytes[4096..][..65536]);
    }
}

#[test]
fn an_open_file_is_a_client() {
    let Some(mounted) = Mounted::new("an_open_file_is_a_client") else { return };
    mounted.disk("disk", 1 << 20);
    let export = mounted.exports.get("disk").expect("an export");
    export.set_quota(Quota { connections: Some(2), bytes_per_second: None });
    let files = [(); 2].map(|()| mounted.open("disk"));
    assert_eq!(export.connections(), 2);
    fails(File::open(mounted.path("disk")), Errno::USERS);
    drop(files);
    until("the clients leave", || export.connections() == 0);
    mounted.open("disk");
}

/// Requests that exceed the rate wait for each other, in one thread.
#[test]
fn a_rate_bounds_reads_and_writes() {
    let Some(mounted) = Mounted::new("a_rate_bounds_reads_and_writes") else { return };
    let disk = mounted.disk("disk", 4 << 20);
    let export = mounted.exports.get("disk").expect("an export");
    export.set_quota(Quota { connections: None, bytes_per_second: Some(8 << 20) });
    let file = mounted.open("disk");
    let start = std::time::Instant::now();
    std::thread::scope(|scope| {
        for part in 0..4_u64 {
            let file = &file;
            scope.spawn(move || {
                file.write_all_at(&noise(1 << 19, part), part << 20).expect("room");
                file.read_exact_at(&mut vec![0; 1 << 19], part << 20).expect("data");
            });
        }
    });
    // 4 MiB, of which a tenth of a second's are free.
    assert!(start.elapsed() >= std::time::Duration::from_millis(300), "{:?}", start.elapsed());
    let mut data = vec![0; 1 << 19];
    disk.read(3 << 20, &mut data).expect("data");
    assert!(data == noise(1 << 19, 3));
}

//! Servers whose disks outlive the process.

use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt, sync::Arc};

use pagefold_disk::BlockDevice;
use pagefold_faulty::Faulty;
use pagefold_server::{Add, BaseFile, Manage, Resize, Server, Sockets};
use rustix::fs::{SealFlags, fcntl_add_seals};

use crate::config;

/// Lets no process write to the files of pools by calls.
fn seal_pools() {
    for entry in fs::read_dir("/proc/self/fd").expect("descriptors").flatten() {
        let is_pool = fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().contains("memfd:pagefold-pool"));
        if is_pool && let Ok(file) = fs::File::options().read(true).write(true).open(entry.path()) {
            fcntl_add_seals(file, SealFlags::FUTURE_WRITE).expect("a file in memory");
        }
    }
}

/// The next process could not open such bases, and a command whose change it would not know fails.
#[test]
fn what_the_next_process_would_not_know_fails() {
    let mut config = config();
    config.keep_memory = true;
    let server = Server::new(config).expect("a server");
    let device = Arc::new(Faulty::new(vec![0; 4096])) as Arc<dyn BlockDevice>;
    let refused = server.serve_device("device", device).expect_err("no file").to_string();
    assert!(refused.contains("'device'") && refused.contains("--keep-memory"), "{refused}");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(OsStr::from_bytes(b"base-\xff"));
    fs::write(&path, [1; 4096]).expect("a file");
    let refused = server.serve_file(&BaseFile::new("base", path)).expect_err("not UTF-8").to_string();
    assert!(refused.contains("'base'") && refused.contains("UTF-8"), "{refused}");

    let sockets = Sockets::new().unix(folder.path().join("nbd.sock"));
    let _running = server.listen(sockets).and_then(|listening| listening.start()).expect("it listens");
    server.add(&Add::new("before", 1 << 20)).expect("a disk");
    seal_pools();
    let failed = server.add(&Add::new("after", 1 << 20)).expect_err("no note").to_string();
    assert!(failed.contains("the next one will not know of it"), "{failed}");
    let resize = Resize { name: "before".to_owned(), size_bytes: 2 << 20, shrink: false, force: false };
    server.resize(&resize).expect_err("no note");
    assert_eq!(server.device("before").expect("a disk").size_bytes(), 1 << 20);
}

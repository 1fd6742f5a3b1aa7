//! The modes of extracted files.

use std::{
    collections::BTreeMap,
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::Path,
    process::Command,
};

use pagefold_testing::{programs, skip, skip_for_good};
use rustix::fs::{CWD, FileType, Mode, XattrFlags, mknodat, setxattr};
use tempfile::TempDir;

use crate::server::{pagefold, run};

/// Returns the permissions and owners of a directory and everything below it, by path.
fn modes(root: &Path) -> BTreeMap<String, (u32, u32)> {
    let mut found = BTreeMap::new();
    let mut todo = vec![root.to_owned()];
    while let Some(path) = todo.pop() {
        let metadata = fs::symlink_metadata(&path).expect("a file");
        if metadata.is_dir() {
            todo.extend(fs::read_dir(&path).expect("a folder").map(|entry| entry.expect("a name").path()));
        }
        let name = path.strip_prefix(root).expect("a path below").display().to_string();
        found.insert(name, (metadata.mode() & 0o7777, metadata.uid()));
    }
    found
}

/// Creates a tree with all kinds of modes. If root creates it, some files belong to another user.
fn fill(root: &Path) {
    fs::create_dir_all(root.join("a/b")).expect("a folder");
    for (name, mode) in [
        ("plain", 0o666),
        ("set-uid", 0o4755),
        ("set-gid", 0o2775),
        ("both", 0o6777),
        ("closed", 0o400),
        ("odd", 0o517),
    ] {
        for folder in ["", "a", "a/b"] {
            let path = root.join(folder).join(name);
            fs::write(&path, name).expect("a file");
            if name == "both" && rustix::process::geteuid().is_root() {
                chown(&path, Some(12_345), Some(54_321)).expect("an owner");
            }
            fs::set_permissions(&path, Permissions::from_mode(mode)).expect("a mode");
        }
    }
    fs::hard_link(root.join("both"), root.join("a/linked")).expect("a link");
    mknodat(CWD, root.join("pipe"), FileType::Fifo, Mode::RWXU, 0).expect("a pipe");
    fs::set_permissions(root.join("pipe"), Permissions::from_mode(0o662)).expect("a mode");
    std::os::unix::fs::symlink("plain", root.join("link")).expect("a link");
    for (name, mode) in [("", 0o2775), ("a", 0o3777), ("a/b", 0o6775)] {
        fs::set_permissions(root.join(name), Permissions::from_mode(mode)).expect("a mode");
    }
}

/// Runs a shell command with a umask.
fn shell(umask: &str, words: &[&str]) {
    run(Command::new("sh").args(["-c", &format!("umask {umask}; exec \"$@\""), "sh"]).args(words));
}

#[test]
fn modes_are_restored_or_those_that_tar_would_give() {
    const TEST: &str = "modes_are_restored_or_those_that_tar_would_give";
    let Some([tar]) = programs(TEST, ["tar"]) else { return };
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    fs::create_dir(at("tree")).expect("a folder");
    fill(at("tree").as_ref());
    run(pagefold().args(["pack", &at("tree"), "-o", &at("image")]));
    run(Command::new(&tar).args(["-C", &at("tree"), "-cf", &at("tar"), "."]));
    let program = env!("CARGO_BIN_EXE_pagefold");
    for (umask, threads) in [("022", "1"), ("077", "2"), ("000", "2"), ("027", "1")] {
        let target = |name: &str| at(&format!("{name}-{umask}"));
        let extract = |name: &str, more: &[&str]| {
            let words = [program, "extract", &at("image"), "-C", &target(name), "--threads", threads];
            shell(umask, &[&words, more].concat());
            modes(target(name).as_ref())
        };
        let theirs = |name: &str, more: &[&str]| {
            fs::create_dir(target(name)).expect("a folder");
            let words = [tar.to_str().expect("a plain path"), "-C", &target(name), "-xf", &at("tar")];
            shell(umask, &[&words, more].concat());
            modes(target(name).as_ref())
        };
        assert_eq!(extract("same", &[]), modes(at("tree").as_ref()), "{umask}");
        let (ours, tars) = (extract("not", &["--no-same-permissions"]), theirs("tar", &["--no-same-permissions"]));
        assert_eq!(ours, tars, "{umask}");
        assert!(ours.iter().all(|(name, (mode, _))| name == "link" || mode & 0o7000 == 0), "{ours:?}");
        let both = ["--no-same-owner", "--no-same-permissions"];
        assert_eq!(extract("neither", &both), theirs("tar-neither", &both), "{umask}");
    }
}

/// ACLs, in the image or of the target, grant no user more than the umask allows.
#[test]
fn acls_and_capabilities_bring_no_rights_back() {
    const TEST: &str = "acls_and_capabilities_bring_no_rights_back";
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    fs::create_dir_all(at("tree/directory")).expect("a folder");
    // Version 2; owner rwx, user 1000 rwx, group rwx, mask rwx, others rwx.
    let entries: [(u16, u16, u32); 5] = [(1, 7, !0), (2, 7, 1000), (4, 7, !0), (16, 7, !0), (32, 7, !0)];
    let mut acl = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        acl.extend([&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat());
    }
    for name in ["file", "program"] {
        fs::write(at("tree/") + name, name).expect("a file");
    }
    mknodat(CWD, at("tree/pipe"), FileType::Fifo, Mode::RWXU, 0).expect("a pipe");
    for name in ["file", "directory", "pipe"] {
        let path = at("tree/") + name;
        if let Err(error) = setxattr(&path, "system.posix_acl_access", &acl, XattrFlags::empty()) {
            return skip(TEST, &format!("no ACLs here: {error}"));
        }
    }
    fs::set_permissions(at("tree/program"), Permissions::from_mode(0o777)).expect("a mode");
    let capable = rustix::process::geteuid().is_root() && {
        // Version 2, effective: CAP_NET_RAW.
        let capability = [0x0200_0001u32, 1 << 13, 0, 0, 0].map(u32::to_le_bytes).concat();
        setxattr(at("tree/program"), "security.capability", &capability, XattrFlags::empty()).is_ok()
    };
    run(pagefold().args(["pack", &at("tree"), "-o", &at("image")]));
    let program = env!("CARGO_BIN_EXE_pagefold");
    for (number, target_acl) in [false, true].into_iter().enumerate() {
        let out = at(&format!("out-{number}"));
        fs::create_dir(&out).expect("a folder");
        if target_acl {
            setxattr(&out, "system.posix_acl_default", &acl, XattrFlags::empty()).expect("an ACL");
        }
        shell("027", &[program, "extract", "--no-same-permissions", &at("image"), "-C", &out]);
        for (name, (mode, _)) in modes(out.as_ref()).iter().filter(|(name, _)| !name.is_empty()) {
            assert_eq!(mode & 0o7027, 0, "{name}: {mode:o}");
        }
        let len = rustix::fs::getxattr(format!("{out}/program"), "security.capability", &mut [0; 64]);
        assert_eq!(len, Err(rustix::io::Errno::NODATA));
    }
    if capable {
        run(pagefold().args(["extract", &at("image"), "-C", &at("same")]));
        let len = rustix::fs::getxattr(at("same/program"), "security.capability", &mut [0; 64]);
        assert_eq!(len, Ok(20), "without the option it is restored");
    } else {
        skip_for_good(TEST, "capabilities need root");
    }
}

use std::{
    io::Write,
    os::unix::fs::{PermissionsExt, symlink},
};

use rustix::fs::ioctl_setflags;
use tempfile::{NamedTempFile, TempDir};

use super::*;
use crate::ImageFormat;

/// A superblock's magic number where an image has it.
fn image(fill: u8) -> Vec<u8> {
    let mut bytes = vec![fill; 2048];
    bytes[1024..1028].copy_from_slice(&0xe0f5_e1e2_u32.to_le_bytes());
    bytes
}

fn at(path: &Path, force: bool) -> Result<NewFile> {
    NewFile::at(path, Written::Image(ImageFormat::Erofs), force, &Inputs::default())
}

/// Returns a complete draft of each kind.
fn drafts(new: &NewFile) -> [Draft; 2] {
    let drafts =
        [new.make_draft().expect("a draft"), Draft::Named(NamedTempFile::new_in(new.folder()).expect("a file"))];
    drafts.iter().for_each(|draft| draft.file().write_all(&image(9)).expect("an image"));
    drafts
}

/// A draft could not be removed there.
#[test]
fn nothing_is_written_to_an_append_only_directory_whose_file_would_be_replaced() {
    const TEST: &str = "nothing_is_written_to_an_append_only_directory_whose_file_would_be_replaced";
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("out.erofs");
    fs::write(&path, image(1)).expect("a file");
    let set = |flags| ioctl_setflags(File::open(folder.path()).expect("the folder"), flags);
    let flags = ioctl_getflags(File::open(folder.path()).expect("the folder"));
    let Ok(Ok(())) = flags.map(|flags| set(flags | IFlags::APPEND)) else {
        return pagefold_testing::skip_for_good(TEST, "not root, or the file system of /tmp has no such flag");
    };
    let refused = [false, true].map(|force| at(&path, force).map_err(|error| error.to_string()));
    let other = at(&folder.path().join("new.erofs"), false).map(|new| new.replaces());
    set(flags.expect("flags")).expect("the flags of before");
    for refused in refused {
        assert!(refused.as_ref().is_err_and(|error| error.contains("is append-only")), "{refused:?}");
    }
    assert_eq!(other.ok(), Some(false));
}

/// A file that is renewed keeps its mode, and its owner and access control list where that is
/// possible; a new one has the mode of new files.
#[test]
fn rights_outlive_the_file() {
    let is_root = rustix::process::geteuid().is_root();
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("out.erofs");
    let rights = || {
        let found = fs::metadata(&path).expect("a file");
        (found.mode() & 0o7777, found.uid(), found.gid())
    };
    let usual = rights_of_new_files(folder.path());
    for kind in 0..2 {
        let renew = || {
            let new = at(&path, false).expect("a place");
            let draft = drafts(&new).into_iter().nth(kind).expect("a draft");
            // Its content is not for others before it is complete, either.
            let mode = new.make_draft().expect("a draft").file().metadata().expect("a file").mode() & 0o777;
            assert_eq!(mode, if new.replaces() { 0o600 } else { usual });
            new.take(draft).expect("a file");
        };
        if kind == 0 {
            renew();
            assert_eq!(rights().0, usual);
        }
        for mode in [0o600, 0o644, 0o664, 0o440, 0o400, 0o777] {
            let (uid, gid) = if is_root { (1234, 4321) } else { (rights().1, rights().2) };
            std::os::unix::fs::chown(&path, Some(uid), Some(gid)).expect("an owner");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a mode");
            if is_root || mode & 0o200 != 0 {
                renew();
                assert_eq!(rights(), (mode, uid, gid), "{mode:o}");
            }
        }
        // Of the owner rw-, user 5 rw-, the group ---, the mask rw-, others ---.
        let entry = |tag: u8, rights: u8, id: u32| [&[tag, 0, rights, 0][..], &id.to_le_bytes()].concat();
        let list = [
            vec![2, 0, 0, 0],
            entry(1, 6, u32::MAX),
            entry(2, 6, 5),
            entry(4, 0, u32::MAX),
            entry(0x10, 6, u32::MAX),
            entry(0x20, 0, u32::MAX),
        ];
        let acl = "system.posix_acl_access";
        if rustix::fs::setxattr(&path, acl, &list.concat(), XattrFlags::empty()).is_ok() {
            renew();
            let mut found = [0; 100];
            let len = getxattr(&path, acl, &mut found).expect("a list");
            assert_eq!(found[..len], list.concat());
            rustix::fs::removexattr(&path, acl).expect("a list");
        }
    }
}

fn rights_of_new_files(folder: &Path) -> u32 {
    let path = folder.join("new");
    fs::write(&path, "").expect("a file");
    fs::metadata(&path).expect("a file").mode() & 0o777
}

#[test]
fn only_the_file_of_before_is_replaced() {
    type Change = (&'static str, fn(&Path));
    let others: [Change; 5] = [
        ("another image", |path| {
            fs::write(path.with_extension("new"), image(2)).expect("a file");
            fs::rename(path.with_extension("new"), path).expect("a name");
        }),
        ("another file", |path| {
            let _ = fs::remove_file(path);
            // The old inode may not be reused.
            fs::hard_link(path.with_file_name("spare"), path).expect("a link");
        }),
        ("a link", |path| {
            let _ = fs::remove_file(path);
            symlink("spare", path).expect("a link");
        }),
        ("a directory", |path| {
            let _ = fs::remove_file(path);
            fs::create_dir(path).expect("a directory");
        }),
        ("other content", |path| {
            fs::write(path, "precious").expect("a file");
        }),
    ];
    for kind in 0..2 {
        for old in [None, Some(image(1))] {
            for force in [false, true] {
                for (what, change) in others {
                    let folder = TempDir::new().expect("a folder");
                    let path = folder.path().join("out.erofs");
                    fs::write(folder.path().join("spare"), "spare").expect("a file");
                    old.iter().for_each(|old| fs::write(&path, old).expect("a file"));
                    let new = at(&path, force).expect("a place");
                    let draft = drafts(&new).into_iter().nth(kind).expect("a draft");
                    change(&path);
                    let found = fs::symlink_metadata(&path).expect("a file");
                    let content = fs::read(&path).ok();
                    if force && old.is_some() && what == "other content" {
                        // The same file may have any content then.
                        new.take(draft).expect("a file");
                        continue;
                    }
                    let message = said(&new.take(draft).expect_err(what));
                    assert!(message.contains("out.erofs"), "{message}");
                    let after = fs::symlink_metadata(&path).expect("a file");
                    assert_eq!(FileId::from(&after), FileId::from(&found), "{what}: {message}");
                    assert_eq!(fs::read(&path).ok(), content, "{what}");
                    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 2, "{what} left a file");
                }
            }
        }
    }
}

#[test]
fn a_file_appears_where_there_was_none_or_an_image() {
    for kind in 0..2 {
        for (old, is_removed) in [(None, false), (Some(image(1)), false), (Some(image(1)), true), (Some(vec![]), false)]
        {
            let folder = TempDir::new().expect("a folder");
            let path = folder.path().join("out.erofs");
            old.iter().for_each(|old| fs::write(&path, old).expect("a file"));
            let new = at(&path, false).expect("a place");
            assert_eq!(new.replaces(), old.is_some());
            let draft = drafts(&new).into_iter().nth(kind).expect("a draft");
            if is_removed {
                fs::remove_file(&path).expect("a file");
            }
            new.take(draft).expect("a file");
            assert_eq!(fs::read(&path).expect("an image"), image(9));
            assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
        }
    }
}

#[test]
fn replacing_other_files_needs_force() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("out");
    for (content, what) in [
        (&b"text"[..], "is not an EROFS image"),
        (b"QFI\xfb and more", "is a qcow2 image"),
        (b"\x1f\x8b\x08 and more", "is gzip data"),
    ] {
        fs::write(&path, content).expect("a file");
        let message = at(&path, false).expect_err("a file of another kind").to_string();
        assert!(message.contains(what) && message.contains("out") && message.contains("--force"), "{message}");
        at(&path, true).expect("a place");
    }
    fs::write(&path, image(0)).expect("a file");
    at(&path, false).expect("a place");
    for format in [ImageFormat::Raw, ImageFormat::Qcow2] {
        let new = NewFile::at(&path, Written::Image(format), false, &Inputs::default());
        let message = new.expect_err("an image of another format").to_string();
        assert!(message.contains("is an EROFS image"), "{message}");
    }
    fs::write(&path, "123\n").expect("a file");
    NewFile::at(&path, Written::ProcessId, false, &Inputs::default()).expect("a place");
    fs::write(&path, "123 or so\n").expect("a file");
    // Both are outputs of 'serve', which has no --force.
    for (written, what) in
        [(Written::ProcessId, "is not an unlocked file with a process ID"), (Written::Trace, "is not a trace")]
    {
        let message = NewFile::at(&path, written, false, &Inputs::default()).expect_err("text").to_string();
        assert!(message.contains(what) && message.ends_with("write to another file"), "{message}");
    }
}

#[test]
fn links_lead_to_the_file() {
    let folder = TempDir::new().expect("a folder");
    let folder = folder.path().canonicalize().expect("a path");
    fs::create_dir(folder.join("d")).expect("a directory");
    symlink("d/new", folder.join("one")).expect("a link");
    symlink("one", folder.join("two")).expect("a link");
    assert_eq!(at(&folder.join("two"), false).expect("a place").path(), folder.join("d/new"));
    symlink("round", folder.join("round")).expect("a link");
    let message = said(&at(&folder.join("round"), false).expect_err("a loop"));
    assert!(message.contains("round") && message.contains("symbolic links"), "{message}");
    symlink("none/new", folder.join("lost")).expect("a link");
    let message = said(&at(&folder.join("lost"), false).expect_err("no directory"));
    assert!(message.contains("making a file in") && message.contains("none"), "{message}");
}

/// The name gets another file between the check and the renaming.
#[test]
fn a_file_that_was_not_checked_gets_its_name_back() {
    for is_directory in [false, true] {
        let folder = TempDir::new().expect("a folder");
        let path = folder.path().join("out.erofs");
        fs::write(&path, image(1)).expect("a file");
        let new = at(&path, true).expect("a place");
        let Linked::Apart(temporary) = drafts(&new).into_iter().next().expect("a draft").link(&path).expect("a link")
        else {
            panic!("the old file is not there")
        };
        fs::rename(&path, folder.path().join("old")).expect("a name");
        match is_directory {
            true => fs::create_dir(&path).expect("a directory"),
            false => fs::write(&path, "precious").expect("a file"),
        }
        let message = new.rename(temporary).expect_err("another file").to_string();
        assert!(message.contains("replaced by others"), "{message}");
        assert!(if is_directory { path.is_dir() } else { fs::read(&path).is_ok_and(|text| text == b"precious") });
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 2, "a file was left");
    }
}

/// Formats an error with its causes.
fn said(error: &Error) -> String {
    let cause = std::error::Error::source(error).map_or_else(String::new, |cause| format!(": {cause}"));
    format!("{error}{cause}")
}

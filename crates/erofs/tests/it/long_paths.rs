//! Trees too deep for system calls to accept their paths.

use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use pagefold_erofs::{BuildOptions, FileKind, Image, ScanOptions, Tree, build};
use rustix::fs::{Mode, OFlags, XattrFlags, mkdirat, openat, symlinkat};

#[test]
fn a_tree_with_paths_of_any_length_is_packed() {
    let folder = tempfile::tempdir().unwrap();
    let top = folder.path().join("tree");
    fs::create_dir(&top).unwrap();
    let mut here: OwnedFd = File::open(&top).unwrap().into();
    let name = "n".repeat(255);
    let mut path = String::new();
    for depth in 0..40 {
        // Files on the way, some with paths of about 4096 bytes.
        let file = PathBuf::from(format!("/proc/self/fd/{}/file", here.as_raw_fd()));
        fs::write(&file, format!("at depth {depth}")).unwrap();
        symlinkat(format!("target {depth}"), &here, "link").unwrap();
        let _ = rustix::fs::setxattr(&file, "user.depth", &[depth], XattrFlags::empty());
        mkdirat(&here, &name, Mode::RWXU).unwrap();
        here = openat(&here, &name, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        path = format!("{path}/{name}");
    }
    assert!(path.len() > 2 * 4096);
    let tree = Tree::scan(&top, &ScanOptions::default()).unwrap();
    let out = folder.path().join("image");
    let options = BuildOptions { dedupe: true, ..BuildOptions::default() };
    build(&tree, &options, &File::options().read(true).write(true).create_new(true).open(&out).unwrap()).unwrap();
    let image = Image::open_path(&out).unwrap();
    assert!(image.check(1).problems.is_empty());
    for depth in 0..40u8 {
        let above = &path[..usize::from(depth) * (name.len() + 1)];
        let inode = image.resolve(format!("{above}/file").as_bytes()).unwrap();
        let mut content = [0; 20];
        let len = image.file(&inode).unwrap().read_at(&mut content, 0).unwrap();
        assert_eq!(content[..len], *format!("at depth {depth}").as_bytes());
        let xattrs = image.xattrs(&inode).unwrap();
        assert!(xattrs.iter().all(|xattr| xattr.value == [depth]), "{xattrs:?}");
        let link = image.resolve(format!("{above}/link").as_bytes()).unwrap();
        assert_eq!(link.kind, FileKind::Symlink);
        assert_eq!(image.read_link(&link).unwrap(), format!("target {depth}").as_bytes());
    }
}

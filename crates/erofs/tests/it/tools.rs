//! Programs and kernel features that tests need, and comparison of trees.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use pagefold_erofs::{FileKind, Image, Inode};

/// Reports that a test was skipped, or fails if skipping is not allowed.
#[expect(clippy::print_stderr, reason = "a test")]
pub(crate) fn skip(test: &str, why: &str) {
    assert!(std::env::var_os("PAGEFOLD_MUST_RUN").is_none_or(|value| value != "1"), "{test}: {why}");
    eprintln!("SKIPPED: {test}: {why}");
}

/// Runs a program. Returns `None` if it is not installed. Panics if it fails.
pub(crate) fn run<S: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = S>) -> Option<()> {
    let output = match Command::new(program).args(args).output() {
        Ok(output) => output,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        Err(error) => panic!("{program}: {error}"),
    };
    assert!(
        output.status.success(),
        "{program} failed: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Some(())
}

/// The properties of a file, apart from its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    mode: u32,
    owner: (u32, u32),
    size: u64,
    mtime: (i64, u32),
    device: Option<(u32, u32)>,
    nlink: u64,
    content: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The first path, in order, of the same inode.
    same_as: PathBuf,
}

impl Facts {
    pub(crate) fn is_regular(&self) -> bool {
        self.mode & 0o170_000 == 0o100_000
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.mode & 0o170_000 == 0o040_000
    }

    pub(crate) fn into_content(self) -> Vec<u8> {
        self.content
    }

    /// Excludes the time from the comparison.
    pub(crate) fn forget_time(&mut self) {
        self.mtime = (0, 0);
    }

    pub(crate) fn forget_xattrs(&mut self) {
        self.xattrs.clear();
    }

    pub(crate) fn set_owner(&mut self, uid: u32, gid: u32) {
        self.owner = (uid, gid);
    }

    pub(crate) fn mtime(&self) -> (i64, u32) {
        self.mtime
    }

    pub(crate) fn set_mtime(&mut self, seconds: i64) {
        self.mtime = (seconds, 0);
    }

    /// Makes this name a separate file, if the file has several names.
    pub(crate) fn set_alone(&mut self, path: &Path) {
        self.same_as = path.to_owned();
        self.nlink = self.nlink.min(1);
    }

    /// Excludes permissions, owner and time from the comparison.
    pub(crate) fn forget_metadata(&mut self) {
        self.mode &= 0o170_000;
        (self.owner, self.mtime) = ((0, 0), (0, 0));
    }

    /// Excludes the number of links from the comparison.
    pub(crate) fn forget_links(&mut self, path: &Path) {
        self.same_as = path.to_owned();
        self.nlink = 0;
    }

    /// Excludes POSIX ACLs from the comparison.
    pub(crate) fn forget_acls(&mut self) {
        self.xattrs.retain(|name, _| !name.starts_with(b"system.posix_acl_"));
    }
}

pub(crate) type Tree = BTreeMap<PathBuf, Facts>;

/// Returns the tree under `root` as the operating system shows it.
pub(crate) fn tree_of_directory(root: &Path) -> Tree {
    tree_of(root, |bytes| bytes)
}

fn tree_of(root: &Path, keep: fn(Vec<u8>) -> Vec<u8>) -> Tree {
    type Seen = BTreeMap<u64, PathBuf>;
    fn walk(root: &Path, path: &Path, keep: fn(Vec<u8>) -> Vec<u8>, seen: &mut Seen, tree: &mut Tree) {
        let here = root.join(path);
        let metadata = fs::symlink_metadata(&here).unwrap();
        let kind = metadata.file_type();
        let content = if kind.is_file() {
            keep(fs::read(&here).unwrap())
        } else if kind.is_symlink() {
            fs::read_link(&here).unwrap().into_os_string().into_vec()
        } else {
            Vec::new()
        };
        let device = (kind.is_char_device() || kind.is_block_device())
            .then(|| (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev())));
        let same_as = seen.entry(metadata.ino()).or_insert_with(|| path.to_owned()).clone();
        let facts = Facts {
            mode: metadata.mode(),
            owner: (metadata.uid(), metadata.gid()),
            size: if kind.is_dir() { 0 } else { metadata.size() },
            mtime: (metadata.mtime(), metadata.mtime_nsec() as u32),
            device,
            nlink: if kind.is_dir() { 0 } else { metadata.nlink() },
            content,
            xattrs: xattrs_of(&here),
            same_as,
        };
        tree.insert(path.to_owned(), facts);
        if kind.is_dir() {
            let mut names: Vec<_> = fs::read_dir(&here).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            for name in names {
                walk(root, &path.join(name), keep, seen, tree);
            }
        }
    }
    let mut tree = Tree::new();
    walk(root, Path::new(""), keep, &mut Seen::new(), &mut tree);
    tree
}

fn xattrs_of(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 1 << 16];
    let len = rustix::fs::llistxattr(path, &mut names[..]).unwrap_or(0);
    let mut xattrs = BTreeMap::new();
    for name in names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; 1 << 16];
        let len = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value[..]).unwrap();
        value.truncate(len);
        xattrs.insert(name.to_vec(), value);
    }
    xattrs
}

/// As [`tree_of_directory`], for trees that do not fit into memory or have links elsewhere: keeps
/// hashes of contents, and counts only links within the tree.
pub(crate) fn summary_of_directory(root: &Path) -> Tree {
    let mut tree = tree_of(root, |bytes| xxhash_rust::xxh3::xxh3_128(&bytes).to_le_bytes().to_vec());
    let mut names: BTreeMap<PathBuf, u64> = BTreeMap::new();
    for facts in tree.values() {
        *names.entry(facts.same_as.clone()).or_default() += 1;
    }
    for facts in tree.values_mut().filter(|facts| facts.nlink > 0) {
        facts.nlink = names[&facts.same_as];
    }
    tree
}

/// Returns the tree in an image as this crate reads it.
pub(crate) fn tree_of_image(image: &Image) -> Tree {
    fn walk(image: &Image, path: &Path, inode: &Inode, seen: &mut BTreeMap<u64, PathBuf>, tree: &mut Tree) {
        let mut content = Vec::new();
        if matches!(inode.kind, FileKind::Regular | FileKind::Symlink) {
            content.resize(inode.size as usize, 0);
            image.read_exact_at(inode, &mut content, 0).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
        let directory = inode.kind == FileKind::Directory;
        let same_as = seen.entry(inode.nid).or_insert_with(|| path.to_owned()).clone();
        let xattrs = image.xattrs(inode).unwrap();
        let facts = Facts {
            mode: u32::from(inode.mode),
            owner: (inode.uid, inode.gid),
            size: if directory { 0 } else { inode.size },
            mtime: (inode.mtime_s, inode.mtime_nsec),
            device: inode.device(),
            nlink: if directory { 0 } else { u64::from(inode.nlink) },
            content,
            xattrs: xattrs.into_iter().map(|xattr| (xattr.name, xattr.value)).collect(),
            same_as,
        };
        tree.insert(path.to_owned(), facts);
        if directory {
            for entry in image.read_dir(inode).unwrap() {
                assert_eq!(image.lookup(inode, &entry.name).unwrap(), Some(entry.nid));
                let child = image.inode(entry.nid).unwrap();
                walk(image, &path.join(OsStr::from_bytes(&entry.name)), &child, seen, tree);
            }
        }
    }
    let mut tree = Tree::new();
    walk(image, Path::new(""), &image.root().unwrap(), &mut BTreeMap::new(), &mut tree);
    tree
}

/// Panics at the first difference, without printing contents.
pub(crate) fn assert_same(left: &Tree, right: &Tree, what: &str) {
    let names = |tree: &Tree| tree.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(left), names(right), "{what}: names");
    for (path, left) in left {
        let right = &right[path];
        let (mut brief_left, mut brief_right) = (left.clone(), right.clone());
        brief_left.content.clear();
        brief_right.content.clear();
        assert_eq!(brief_left, brief_right, "{what}: {}", path.display());
        if left.content != right.content {
            let at = left.content.iter().zip(&right.content).position(|(left, right)| left != right);
            panic!("{what}: {}: contents differ at {at:?}", path.display());
        }
    }
}

/// An image mounted by the kernel, until dropped.
pub(crate) struct Mount {
    at: tempfile::TempDir,
}

/// The reason why the kernel rejected an image.
pub(crate) struct Refused {
    /// The image needs a feature that the kernel knows but was built without.
    pub(crate) unsupported: bool,
    pub(crate) message: String,
}

impl Mount {
    /// Mounts an image, or returns why the machine cannot. Panics if the kernel rejects this image
    /// but accepts others.
    pub(crate) fn new(image: &Path) -> Result<Self, String> {
        Self::attempt(image).map(|mounted| mounted.unwrap_or_else(|refused| panic!("{}", refused.message)))
    }

    /// As [`new`](Self::new), but returns the kernel's rejection.
    pub(crate) fn attempt(image: &Path) -> Result<Result<Self, Refused>, String> {
        let filesystems = fs::read_to_string("/proc/filesystems").unwrap_or_default();
        if !filesystems.lines().any(|line| line.trim() == "erofs") {
            return Err("the kernel has no EROFS".to_owned());
        }
        if !rustix::process::geteuid().is_root() {
            return Err("mounting needs root".to_owned());
        }
        let features = Path::new("/sys/fs/erofs/features");
        let needs = Image::open_path(image).map_or(0, |image| image.superblock().feature_incompat);
        if needs & 0x80 != 0 && features.is_dir() && !features.join("48bit").exists() {
            return Err("this kernel's EROFS has no encoded extents".to_owned());
        }
        let at = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "erofs", "-oloop,ro"]).arg(image).arg(at.path()).env("LC_ALL", "C");
        let mut message = String::new();
        // Another mount may take the loop device after it was found free.
        for _ in 0..5 {
            let output = match mount.output() {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    return Err("mount is not installed".to_owned());
                }
                output => output.unwrap(),
            };
            if output.status.success() {
                return Ok(Ok(Self { at }));
            }
            message = String::from_utf8_lossy(&output.stderr).into_owned();
        }
        let unsupported = message.contains("not supported");
        Ok(Err(Refused { unsupported, message }))
    }

    pub(crate) fn path(&self) -> &Path {
        self.at.path()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // A child process that another test is starting may still hold this test's open files.
        let _ = Command::new("umount").arg("-l").arg(self.at.path()).status();
    }
}

/// A small file system in memory, until dropped.
pub(crate) struct Small {
    at: tempfile::TempDir,
}

impl Small {
    /// Creates one of this size, or returns why the machine cannot.
    pub(crate) fn new(kib: usize) -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("mounting needs root".to_owned());
        }
        let at = tempfile::tempdir().unwrap();
        let size = format!("-osize={kib}k");
        let args = ["-t", "tmpfs", &size, "tmpfs"].map(OsStr::new);
        run("mount", args.into_iter().chain([at.path().as_os_str()])).ok_or("mount is not installed")?;
        Ok(Self { at })
    }

    pub(crate) fn path(&self) -> &Path {
        self.at.path()
    }

    pub(crate) fn make_read_only(&self) {
        run("mount", ["-oremount,ro".as_ref(), self.path().as_os_str()]).unwrap();
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // A child process that another test is starting may still hold this test's open files.
        let _ = Command::new("umount").arg("-l").arg(self.at.path()).status();
    }
}

//! The files that a program reads, which its output must not replace.

use std::{
    collections::BTreeSet,
    fs::{self, File, Metadata},
    iter,
    ops::Range,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

use pagefold_attach::loop_device;
use rustix::fs::{major, minor};

use crate::{
    Result,
    error::refuse,
    lease,
    mounts::{self, Sources},
};

/// A file, whatever its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
}

impl From<&Metadata> for FileId {
    fn from(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }
}

/// The path at which the system shows standard output's file.
pub(crate) const STANDARD_OUTPUT: &str = "/proc/self/fd/1";

/// Where the system describes its devices.
const SYSFS: &str = "/sys";

/// A place where bytes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Store {
    File(FileId),
    /// A block device, by its number.
    Device(u64),
}

impl Store {
    /// Returns where the content of a file is stored, regardless of the names and device nodes that
    /// lead to it.
    fn of(metadata: &Metadata) -> Self {
        match metadata.file_type().is_block_device() {
            true => Self::Device(metadata.rdev()),
            false => Self::File(metadata.into()),
        }
    }
}

/// The files that a program reads.
#[derive(Debug, Default)]
pub struct Inputs(Vec<Input>);

#[derive(Debug)]
struct Input {
    /// Its description in messages: `the source a.tar`.
    what: String,
    store: Store,
    is_directory: bool,
    /// Of a regular file with a known path.
    file: Option<Regular>,
    below: Below,
}

impl Input {
    /// `around` is the number of the mount that it is on, if that is known.
    fn of(what: String, metadata: &Metadata, around: Option<u64>) -> Self {
        Self::new(what, Store::of(metadata), metadata.is_dir(), around.unwrap_or(metadata.dev()))
    }

    /// `file_system` is the number of the one that it is on, unless it is a device.
    fn new(what: String, store: Store, is_directory: bool, file_system: u64) -> Self {
        let mut below = Below::default();
        match store {
            Store::Device(device) => add_below(Path::new(SYSFS), device, &mut below),
            Store::File(_) => {
                below.stores.insert(Store::Device(file_system));
                add_below(Path::new(SYSFS), file_system, &mut below);
            }
        }
        Self { what, store, is_directory, file: None, below }
    }
}

/// A regular file.
#[derive(Debug)]
struct Regular {
    /// Its path, without symbolic links.
    path: PathBuf,
    metadata: Metadata,
}

impl Regular {
    /// Returns whether a file on another file system has the length and the time of the last change of
    /// this one, to the nanosecond, as if that file system passed it on.
    fn looks_like(&self, other: &Metadata) -> bool {
        let sign = |of: &Metadata| (of.len(), of.mtime(), of.mtime_nsec());
        self.metadata.dev() != other.dev() && self.metadata.len() > 0 && sign(&self.metadata) == sign(other)
    }
}

/// What a file or a block device is stored in.
#[derive(Debug, Default)]
struct Below {
    /// The block devices and files.
    stores: BTreeSet<Store>,
    /// The directories that an overlay joins.
    directories: BTreeSet<Store>,
    /// The file systems and devices among them that may be stored in further files.
    unclear: BTreeSet<u64>,
    /// The loop devices among them, and the device itself if it is one.
    loops: Vec<Loop>,
    /// The mapped devices among them, and the device itself if it is one.
    mapped: Vec<Mapped>,
}

impl Below {
    /// Adds a store. Returns its number if it is a device that was not known yet.
    fn add(&mut self, store: Store) -> Option<u64> {
        match store {
            store if !self.stores.insert(store) => None,
            Store::Device(device) => Some(device),
            Store::File(_) => None,
        }
    }
}

/// A loop device.
#[derive(Debug)]
struct Loop {
    device: u64,
    /// What it is over.
    over: Store,
    /// The bytes of it that the device has.
    bytes: Range<u64>,
}

/// A device of the device mapper.
#[derive(Debug)]
struct Mapped {
    device: u64,
    /// The devices that it maps.
    over: BTreeSet<Store>,
    /// Its identifier, which says what made it: `LVM-…`, `part1-…`.
    uuid: String,
}

impl Mapped {
    /// Returns whether both may be devices for the same bytes. Volumes of LVM, and partitions, never are.
    fn may_share_with(&self, other: &Self) -> bool {
        let is_apart = |prefix: &str| self.uuid.starts_with(prefix) && other.uuid.starts_with(prefix);
        self.device != other.device && !self.over.is_disjoint(&other.over) && !is_apart("LVM-") && !is_apart("part")
    }
}

impl Loop {
    /// Returns whether both are devices for the same bytes.
    fn shares_with(&self, other: &Self) -> bool {
        let is_shared = self.bytes.start < other.bytes.end && other.bytes.start < self.bytes.end;
        self.device != other.device && self.over == other.over && is_shared
    }
}

impl Inputs {
    /// Adds the file that `path` leads to, if there is one: reading reports one that is missing.
    /// `role` says what it is, as in `the source`.
    pub fn add(&mut self, role: &str, path: &Path) {
        self.add_described(format!("{role} {}", path.display()), path);
    }

    fn add_described(&mut self, what: String, path: &Path) {
        let Ok(metadata) = fs::metadata(path) else { return };
        let plain = plain(path, &metadata);
        let around = plain.as_ref().and_then(|path| mounts::around(&mounts::table(), path));
        let mut input = Input::of(what, &metadata, around.map(|(device, _)| device));
        if let Some(path) = plain.filter(|_| metadata.is_file()) {
            add_files_of_layers(&path, &mut input.below.stores);
            input.file = Some(Regular { path, metadata });
        }
        self.0.push(input);
    }

    /// Adds the directory that `path` leads to and what is mounted below it, or the file.
    pub fn add_tree(&mut self, role: &str, path: &Path) {
        self.add(role, path);
        let found = fs::metadata(path).ok().filter(Metadata::is_dir);
        if let Some(directory) = found.and_then(|metadata| plain(path, &metadata)) {
            for at in mounts::below(&mounts::table(), &directory) {
                self.add_described(format!("{}, which is in {role} {}", at.display(), path.display()), &at);
            }
        }
    }

    /// Adds a file with these device and inode numbers, whatever its path. `what` describes it.
    pub fn add_numbered(&mut self, what: &str, (device, inode): (u64, u64)) {
        self.0.push(Input::new(what.to_owned(), Store::File(FileId { device, inode }), false, device));
    }

    /// Adds standard input.
    pub fn add_standard_input(&mut self) {
        if let Ok(metadata) = fs::metadata("/proc/self/fd/0") {
            self.0.push(Input::of("standard input".to_owned(), &metadata, None));
        }
    }

    /// Returns the device and inode numbers of the files that are inputs, or store one. A file in a layer
    /// of the overlay that `directory` is on, if it is on one, has another number there, too.
    pub fn files(&self, directory: &Path) -> BTreeSet<(u64, u64)> {
        let on_overlay = self.on_overlay_of(directory);
        let stores = self.0.iter().flat_map(|input| iter::once(&input.store).chain(&input.below.stores));
        let numbers = stores.chain(&on_overlay).filter_map(|store| match store {
            Store::File(FileId { device, inode }) => Some((*device, *inode)),
            Store::Device(_) => None,
        });
        numbers.collect()
    }

    /// Returns the files of an overlay whose content is an input.
    fn on_overlay_of(&self, directory: &Path) -> Vec<Store> {
        let Ok(directory) = fs::canonicalize(directory) else { return Vec::new() };
        let table = mounts::table();
        let Some((device, within)) = mounts::around(&table, &directory) else { return Vec::new() };
        let layers = Sources::of(&table, device, false).directories;
        let files = self.0.iter().filter_map(|input| input.file.as_ref());
        let pairs = files.flat_map(|file| layers.iter().map(|layer| (&*file.path, layer)));
        let merged = pairs.filter_map(|(file, layer)| {
            let in_layer = file.strip_prefix(fs::canonicalize(layer).ok()?).ok()?;
            let metadata = fs::metadata(directory.join(in_layer.strip_prefix(&within).ok()?)).ok()?;
            Some(Store::of(&metadata))
        });
        merged.collect()
    }

    /// Checks that writing to a file that exists does not change an input.
    ///
    /// # Errors
    /// The file is an input, or stores one, or is stored in one.
    pub(crate) fn check(&self, path: &Path, metadata: &Metadata) -> Result<()> {
        let store = Store::of(metadata);
        let mut below = Below::default();
        // On an overlay, a file has other numbers than in the layer where it is.
        let mut stores = BTreeSet::from([store]);
        match store {
            Store::Device(device) => add_below(Path::new(SYSFS), device, &mut below),
            Store::File(_) => {
                let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
                add_files_of_layers(&path, &mut stores);
            }
        }
        for input in &self.0 {
            if stores.contains(&input.store) {
                refuse!(
                    "{} is {}: an output never replaces an input; write to another file",
                    path.display(),
                    input.what
                );
            }
            let shares_loop = || input.below.loops.iter().any(|one| below.loops.iter().any(|it| it.shares_with(one)));
            let shares_mapped = || {
                let mapped = &input.below.mapped;
                mapped.iter().any(|one| below.mapped.iter().any(|it| it.may_share_with(one)))
            };
            let is_shared = !input.below.stores.is_disjoint(&stores) || below.stores.contains(&input.store);
            if is_shared || shares_loop() || shares_mapped() || is_within(&input.below.directories, path) {
                refuse!("{} shares its storage with {}: write to another file", path.display(), input.what);
            }
        }
        Ok(())
    }

    /// Returns the input that a file which is to be replaced may store in a way that is not visible: on a
    /// file system in user space, on a network, or with several devices. If it does, another program or
    /// the system has it open.
    pub(crate) fn perhaps_in(&self, path: &Path, metadata: &Metadata) -> Option<&str> {
        let around = fs::canonicalize(path).ok().and_then(|path| mounts::around(&mounts::table(), &path));
        let own = [Some(metadata.dev()), around.map(|(device, _)| device)];
        let is_unclear = |input: &&Input| input.below.unclear.iter().any(|device| !own.contains(&Some(*device)));
        let input = self.0.iter().find(is_unclear)?;
        let is_open = File::open(path).is_ok_and(|file| lease::is_open_elsewhere(&file));
        is_open.then_some(&*input.what)
    }

    /// Returns the input that a file which is to be replaced looks like, if its file system may pass on
    /// files of others: one in user space, or on a network.
    pub(crate) fn perhaps_is(&self, metadata: &Metadata) -> Option<&str> {
        let input = self.0.iter().find(|input| input.file.as_ref().is_some_and(|file| file.looks_like(metadata)))?;
        let mut below = Below::default();
        add_below(Path::new(SYSFS), metadata.dev(), &mut below);
        (!below.unclear.is_empty()).then_some(&*input.what)
    }

    /// Checks that writing to the file that `path` leads to, if there is one, does not change an input.
    ///
    /// # Errors
    /// [`Error::Refused`](crate::Error::Refused): the file is an input, or stores one, or is stored
    /// in one.
    pub fn check_path(&self, path: &Path) -> Result<()> {
        fs::metadata(path).map_or(Ok(()), |metadata| self.check(path, &metadata))
    }

    /// Checks standard output, to which a shell may have connected any file.
    ///
    /// # Errors
    /// [`Error::Refused`](crate::Error::Refused): writing to it changes an input.
    pub fn check_standard_output(&self) -> Result<()> {
        let path = Path::new(STANDARD_OUTPUT);
        let Ok(metadata) = fs::metadata(path) else { return Ok(()) };
        let name = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        self.check(&name, &metadata)?;
        match self.directory_around(&name) {
            Some(around) if metadata.len() > 0 => {
                refuse!("{} is in {around}, so that input would be lost: write to another file", name.display())
            }
            _ => Ok(()),
        }
    }

    /// Returns the directory among the inputs that contains the file at `path`, which has no
    /// symbolic links.
    pub(crate) fn directory_around(&self, path: &Path) -> Option<&str> {
        let directories = || self.0.iter().filter(|input| input.is_directory);
        directories().next()?;
        path.ancestors().skip(1).find_map(|above| {
            let above = Store::of(&fs::metadata(above).ok()?);
            directories().find(|input| input.store == above).map(|input| &*input.what)
        })
    }
}

/// Adds the devices and files that a block device or a file system is stored in: the disk of a
/// partition, the disks below a mapped device, the file of a loop device with its file system's device,
/// the image of a file system in user space, the directories of an overlay. What a program or another
/// machine serves, such as a network block device, is unclear.
fn add_below(sysfs: &Path, device: u64, found: &mut Below) {
    let mut above = vec![device];
    while let Some(device) = above.pop() {
        let name = format!("dev/block/{}:{}", major(device), minor(device));
        let folder = fs::canonicalize(sysfs.join(name)).ok();
        above.extend(add_sources(device, folder.is_some(), found));
        let Some(folder) = folder else { continue };
        let slaves = fs::read_dir(folder.join("slaves")).into_iter().flatten().flatten();
        let mut lower: Vec<PathBuf> = slaves.filter_map(|slave| fs::canonicalize(slave.path()).ok()).collect();
        if folder.join("partition").exists() {
            lower.extend(folder.parent().map(Path::to_path_buf));
        }
        let mut stores: Vec<_> = lower.iter().filter_map(|folder| number(folder)).map(Store::Device).collect();
        if let Some(over) = file_of_loop(&folder, device) {
            stores.push(over);
            if let Store::File(FileId { device: file_system, .. }) = over {
                stores.push(Store::Device(file_system));
            }
            found.loops.push(Loop { device, over, bytes: bytes_of_loop(&folder) });
        }
        if let Ok(uuid) = fs::read_to_string(folder.join("dm/uuid")) {
            found.mapped.push(Mapped { device, over: stores.iter().copied().collect(), uuid });
        } else if stores.is_empty() && is_served(&folder) {
            found.unclear.insert(device);
        }
        above.extend(stores.into_iter().filter_map(|store| found.add(store)));
    }
}

/// Returns whether a device, whose folder in sysfs this is, may have its content from a program.
fn is_served(folder: &Path) -> bool {
    let name = folder.file_name().unwrap_or_default().as_encoded_bytes();
    [&b"nbd"[..], b"ublkb", b"rbd"].iter().any(|served| name.starts_with(served))
}

/// Adds the images or directories that a file system is stored in, apart from its block device. Returns
/// the file systems and devices of those that were not known yet.
fn add_sources(device: u64, has_block_device: bool, found: &mut Below) -> Vec<u64> {
    let sources = Sources::of(&mounts::table(), device, has_block_device);
    let mut has_more = sources.has_more;
    let mut above = Vec::new();
    for directory in sources.directories {
        match fs::metadata(&directory) {
            Ok(metadata) if directory.is_absolute() => {
                found.directories.insert(Store::of(&metadata));
                above.extend(found.add(Store::Device(metadata.dev())));
            }
            _ => has_more = true,
        }
    }
    for metadata in sources.files.into_iter().filter_map(|path| fs::metadata(path).ok()) {
        above.extend(found.add(Store::of(&metadata)));
        if metadata.is_file() {
            above.extend(found.add(Store::Device(metadata.dev())));
        }
    }
    if has_more {
        found.unclear.insert(device);
    }
    above
}

/// Adds the files in layers of overlays that the file at `path`, which has no symbolic links, may be: only
/// directories on an overlay always have its device number.
fn add_files_of_layers(path: &Path, found: &mut BTreeSet<Store>) {
    let table = mounts::table();
    let mut above = vec![path.to_owned()];
    while let Some(path) = above.pop() {
        let Some((device, within)) = mounts::around(&table, &path) else { continue };
        let layers = Sources::of(&table, device, false).directories;
        for file in layers.iter().map(|layer| layer.join(&within)) {
            if let Ok(metadata) = fs::metadata(&file)
                && metadata.is_file()
                && found.insert(Store::of(&metadata))
            {
                above.extend(fs::canonicalize(&file));
            }
        }
    }
}

/// Returns a path without symbolic links. None if it leads elsewhere from here: in another mount
/// namespace.
fn plain(path: &Path, metadata: &Metadata) -> Option<PathBuf> {
    let plain = fs::canonicalize(path).ok()?;
    let found = fs::metadata(&plain).ok()?;
    (Store::of(&found) == Store::of(metadata)).then_some(plain)
}

/// Returns whether a file is in one of `directories`, at any depth.
fn is_within(directories: &BTreeSet<Store>, path: &Path) -> bool {
    if directories.is_empty() {
        return false;
    }
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    path.ancestors()
        .skip(1)
        .any(|above| fs::metadata(above).is_ok_and(|above| directories.contains(&Store::of(&above))))
}

/// Returns the file below a loop device, whose folder in sysfs is `folder`. The name that sysfs has
/// for it may be gone, or belong to another mount namespace, but only readers of the device may ask
/// the device.
fn file_of_loop(folder: &Path, device: u64) -> Option<Store> {
    let name = fs::read_to_string(folder.join("loop/backing_file")).ok()?;
    let number = folder.file_name().and_then(|name| name.to_str()?.strip_prefix("loop")?.parse().ok());
    let is_it = |number: &u32| fs::metadata(loop_device::path(*number)).is_ok_and(|node| node.rdev() == device);
    if let Some(Ok(below)) = number.filter(is_it).map(loop_device::file_of) {
        return Some(match below.device {
            0 => Store::File(FileId { device: below.file_system, inode: below.inode }),
            device => Store::Device(device),
        });
    }
    Some(Store::of(&fs::metadata(name.strip_suffix('\n').unwrap_or(&name)).ok()?))
}

/// Returns the bytes of its file that a loop device has.
fn bytes_of_loop(folder: &Path) -> Range<u64> {
    let number = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok();
    let start: u64 = number("loop/offset").unwrap_or_default();
    // 0 is the whole rest of the file.
    let len_bytes = number("loop/sizelimit").filter(|limit| *limit > 0).unwrap_or(u64::MAX);
    start..start.saturating_add(len_bytes)
}

/// Returns the number of the device whose folder in sysfs this is.
fn number(folder: &Path) -> Option<u64> {
    let text = fs::read_to_string(folder.join("dev")).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::makedev;

    use super::*;

    /// A mapped device on a partition of a disk and on a loop device, whose file is in `folder`.
    fn devices(folder: &Path) {
        fs::write(folder.join("file\n"), "content").expect("a file");
        let place = folder.join("devices");
        for (path, number) in
            [("sda", "8:0"), ("sda/sda1", "8:1"), ("sda/sda2", "8:2"), ("dm", "253:0"), ("loop", "7:3")]
        {
            fs::create_dir_all(place.join(path).join("slaves")).expect("a folder");
            fs::write(place.join(path).join("dev"), format!("{number}\n")).expect("a file");
            fs::create_dir_all(folder.join("dev/block")).expect("a folder");
            symlink(place.join(path), folder.join("dev/block").join(number)).expect("a link");
        }
        for number in ["1", "2"] {
            fs::write(place.join(format!("sda/sda{number}/partition")), number).expect("a file");
        }
        for (name, path) in [("sda1", "sda/sda1"), ("loop", "loop")] {
            symlink(place.join(path), place.join("dm/slaves").join(name)).expect("a link");
        }
        fs::create_dir(place.join("dm/dm")).expect("a folder");
        fs::write(place.join("dm/dm/uuid"), "LVM-volume\n").expect("a file");
        fs::create_dir(place.join("loop/loop")).expect("a folder");
        let backing = format!("{}\n", folder.join("file\n").display());
        fs::write(place.join("loop/loop/backing_file"), backing).expect("a file");
    }

    #[test]
    fn devices_below_a_device_are_found() {
        let folder = tempfile::tempdir().expect("a folder");
        devices(folder.path());
        let metadata = fs::metadata(folder.path().join("file\n")).expect("a file");
        let (file, file_system) = (Store::of(&metadata), Store::Device(metadata.dev()));
        let device = |major, minor| Store::Device(makedev(major, minor));
        for (major, minor, expected) in [
            (8, 0, vec![]),
            (8, 2, vec![device(8, 0)]),
            (7, 3, vec![file, file_system]),
            (253, 0, vec![device(8, 0), device(8, 1), device(7, 3), file, file_system]),
            (9, 9, vec![]),
        ] {
            let mut found = Below::default();
            add_below(folder.path(), makedev(major, minor), &mut found);
            assert_eq!(found.stores, expected.into_iter().collect(), "{major}:{minor}");
            let mapped: Vec<_> = found.mapped.into_iter().map(|mapped| (mapped.over, mapped.uuid)).collect();
            let over = BTreeSet::from([device(8, 1), device(7, 3)]);
            let expected = (major == 253).then(|| (over, "LVM-volume\n".to_owned()));
            assert_eq!(mapped, expected.into_iter().collect::<Vec<_>>(), "{major}:{minor}");
        }
    }

    #[test]
    fn what_programs_serve_is_unclear() {
        let folder = tempfile::tempdir().expect("a folder");
        for (path, number) in [("nbd0", "43:0"), ("nbd0/nbd0p1", "43:1"), ("sda", "8:0"), ("ublkb3", "259:3")] {
            let place = folder.path().join("devices").join(path);
            fs::create_dir_all(&place).expect("a folder");
            fs::write(place.join("dev"), format!("{number}\n")).expect("a file");
            fs::create_dir_all(folder.path().join("dev/block")).expect("a folder");
            symlink(&place, folder.path().join("dev/block").join(number)).expect("a link");
        }
        fs::write(folder.path().join("devices/nbd0/nbd0p1/partition"), "1").expect("a file");
        for (major, minor, expected) in
            [(43, 0, Some((43, 0))), (43, 1, Some((43, 0))), (8, 0, None), (259, 3, Some((259, 3)))]
        {
            let mut found = Below::default();
            add_below(folder.path(), makedev(major, minor), &mut found);
            let expected = expected.map(|(major, minor)| makedev(major, minor));
            assert_eq!(found.unclear, expected.into_iter().collect(), "{major}:{minor}");
        }
    }

    #[test]
    fn mapped_devices_over_the_same_device_may_share_bytes() {
        let one = |device, over: &[u64], uuid: &str| Mapped {
            device,
            over: over.iter().copied().map(Store::Device).collect(),
            uuid: uuid.to_owned(),
        };
        for (first, other, expected) in [
            (one(10, &[1], ""), one(11, &[1], ""), true),
            (one(10, &[1, 2], ""), one(11, &[2, 3], "LVM-a"), true),
            (one(10, &[1], ""), one(11, &[2], ""), false),
            (one(10, &[1], ""), one(10, &[1], ""), false),
            (one(10, &[1], "LVM-a"), one(11, &[1], "LVM-b"), false),
            (one(10, &[1], "part1-a"), one(11, &[1], "part2-a"), false),
            (one(10, &[1], "part1-a"), one(11, &[1], "LVM-a"), true),
        ] {
            let found = (first.may_share_with(&other), other.may_share_with(&first));
            assert_eq!(found, (expected, expected), "{first:?} {other:?}");
        }
    }

    #[test]
    fn loop_devices_for_the_same_bytes_share_them() {
        let over = Store::Device(1);
        let one = |device, over, bytes| Loop { device, over, bytes };
        let first = one(10, over, 0..100);
        for (other, expected) in [
            (one(11, over, 0..u64::MAX), true),
            (one(11, over, 99..100), true),
            (one(11, over, 100..u64::MAX), false),
            (one(11, Store::Device(2), 0..100), false),
            // Its partitions do not share bytes; others are compared by their numbers.
            (one(10, over, 0..100), false),
        ] {
            assert_eq!((first.shares_with(&other), other.shares_with(&first)), (expected, expected), "{other:?}");
        }
    }
}

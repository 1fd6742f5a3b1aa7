//! Images built by `mkfs.erofs`, with every option that affects the image: each must equal its
//! source and pass the check.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use pagefold_erofs::{Image, ReadAt};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};

use crate::tools::{Tree, assert_same, run, skip, tree_of_directory, tree_of_image};
use crate::trees;

type Version = (u32, u32);
/// Converts the source's tree into the expected one.
type Expected = fn(&mut Tree);

/// The version in Debian 12, which supports only LZ4.
const OLD: Version = (1, 5);
/// The version that `make deps` installs.
const NEW: Version = (1, 9);

/// The source of an image.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Directory,
    /// A tar archive of the directory.
    Archive,
    /// A tar archive of which the image is only an index, so that reading needs the archive.
    Index,
}

/// A set of options: the oldest `mkfs.erofs` that supports them; the options, with `BLOB` for the
/// path of another device; and the expected differences from the source.
struct Row {
    since: Version,
    source: Source,
    options: String,
    expected: Expected,
}

fn row(since: Version, options: impl Into<String>) -> Row {
    Row { since, source: Source::Directory, options: options.into(), expected: |_| {} }
}

fn new(options: &str) -> Row {
    row(NEW, options)
}

/// Options that versions since 1.5 support.
fn old_rows() -> Vec<Row> {
    let options = [
        "",
        "--chunksize=4096",
        "--chunksize=16384 -Eforce-chunk-indexes",
        "-zlz4",
        "-zlz4 -C65536",
        "-zlz4 -Elegacy-compress",
        "-zlz4 -Elegacy-compress -C65536",
        "-zlz4hc,9 -C1048576",
        "-zlz4 -Eztailpacking",
        "-zlz4hc -Eztailpacking -C16384",
        "-zlz4 -Efragments",
        "-zlz4 -Efragments -C131072",
        "-zlz4 -Eall-fragments",
        "-zlz4 -Efragments,dedupe",
        "-zlz4 -Ededupe -C65536",
        "-x1",
    ];
    options.map(|options| row(OLD, options)).into()
}

/// Each layout option with this codec.
fn codec_rows(codec: &str) -> Vec<Row> {
    let layouts = [
        "",
        "-C65536",
        "-b1024 -C8192",
        "-Eztailpacking",
        "-Eztailpacking -C65536",
        "-Efragments",
        "-Efragments -C65536",
        "-Eall-fragments -C65536",
        "-Eall-fragments,fragdedupe=inode",
        "-Efragments,fragdedupe=full",
        "-Ededupe",
        "-Ededupe -C65536",
        "-Ededupe,ztailpacking",
        "-Efragments,dedupe",
        "-Eall-fragments,dedupe -C32768",
        "-Elegacy-compress",
        "-Elegacy-compress,dedupe -C65536",
        "--max-extent-bytes=20000",
    ];
    layouts.map(|layout| new(&format!("-z{codec} {layout}"))).into()
}

/// Layout options for uncompressed blocks.
fn plain_rows() -> Vec<Row> {
    let options = [
        "-b512",
        "-b2048",
        "-Enoinline_data",
        "-E^inline_data",
        "-Enosbcrc",
        "-Eforce-inode-extended",
        "--dsunit=16",
        "--fsalignblks=16",
        "--chunksize=4096",
        "--chunksize=65536",
        "--chunksize=4096 --dsunit=4",
        "--chunksize=512 -b512",
        "--chunksize=4096 -Eforce-inode-blockmap",
        "--chunksize=4096 -Eforce-chunk-indexes",
        "--chunksize=4096 --blobdev=BLOB",
        "--chunksize=65536 --blobdev=BLOB",
        "--chunksize=1024 -b1024 --blobdev=BLOB",
        "-zlz4 -Enosbcrc",
        "-zlz4:deflate:zstd",
        "-L volume -U 01234567-89ab-cdef-0123-456789abcdef",
    ];
    options.map(new).into()
}

/// Metadata options: xattrs, owners, times, links.
fn metadata_rows() -> Vec<Row> {
    let options = [
        "-x0",
        "-x1",
        "-x100",
        "--xattr-prefix=user.le --xattr-prefix=trusted.overlay.",
        "-zlz4 -Efragments --xattr-prefix=user.le",
        "-zlz4 -Efragments,plain-xattr-prefixes --xattr-prefix=user.le",
        "-Eplain-xattr-prefixes --xattr-prefix=user.le -x1",
        "--xattr-inode-digest",
        "--xattr-inode-digest=erofs.sum",
        "-zlz4 -Efragments --xattr-inode-digest --xattr-prefix=user.le",
        "-Exattr-name-filter",
        "-E^xattr-name-filter",
        "--root-xattr-isize=600",
    ];
    let mut rows: Vec<_> = options.map(new).into();
    let changed: [(&str, Expected); 8] = [
        ("-Eforce-inode-compact -T1 --all-root", |tree| {
            tree.values_mut().for_each(|facts| {
                facts.set_mtime(1);
                facts.set_owner(0, 0);
            });
        }),
        ("-x-1", |tree| tree.values_mut().for_each(|facts| facts.forget_xattrs())),
        ("--all-root", |tree| tree.values_mut().for_each(|facts| facts.set_owner(0, 0))),
        ("--force-uid=7 --force-gid=70000", |tree| tree.values_mut().for_each(|facts| facts.set_owner(7, 70_000))),
        ("-T5 --all-time", |tree| tree.values_mut().for_each(|facts| facts.set_mtime(5))),
        ("--ignore-mtime -T5", |tree| tree.values_mut().for_each(|facts| facts.set_mtime(5))),
        ("-T5 --mkfs-time", |_| {}),
        ("--hard-dereference", |tree| tree.iter_mut().for_each(|(path, facts)| facts.set_alone(path))),
    ];
    rows.extend(changed.map(|(options, expected)| Row { expected, ..new(options) }));
    rows
}

fn archive_rows() -> Vec<Row> {
    let rows = [
        (Source::Archive, ""),
        (Source::Archive, "-zlz4 -Ededupe"),
        (Source::Archive, "-zzstd -C65536 -Eall-fragments"),
        (Source::Archive, "--chunksize=4096"),
        (Source::Archive, "--sort=none"),
        (Source::Index, ""),
        (Source::Index, "--xattr-prefix=user.le"),
    ];
    rows.map(|(source, options)| Row { source, ..new(options) }).into()
}

/// Returns the version of the `mkfs.erofs` on the `PATH`.
fn version() -> Option<Version> {
    let output = Command::new("mkfs.erofs").arg("-V").output().ok()?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let word = said.split_whitespace().find(|word| word.starts_with(|first: char| first.is_ascii_digit()))?;
    let mut numbers = word.split('.').map(|number| number.trim_end_matches(|end: char| !end.is_ascii_digit()).parse());
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

struct MadeSource {
    folder: tempfile::TempDir,
    tree: Tree,
}

impl MadeSource {
    /// Creates a source: a filled directory, and a tar archive of it.
    fn new(fill: fn(&Path)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("tree");
        fs::create_dir(&source).unwrap();
        fill(&source);
        // mkfs.erofs drops the nanoseconds of a file that was changed in the second of the build.
        let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
        for (path, facts) in tree_of_directory(&source) {
            let (tv_sec, nanoseconds) = facts.mtime();
            if (began - 3600..began + 3600).contains(&tv_sec) {
                let time = Timespec { tv_sec: 1_700_000_000, tv_nsec: nanoseconds.into() };
                let times = Timestamps { last_access: time, last_modification: time };
                rustix::fs::utimensat(CWD, source.join(path), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
            }
        }
        let tree = tree_of_directory(&source);
        Self { folder, tree }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Builds an image and compares it with the source.
    fn hold(&self, row: &Row) {
        let (image, blob) = (self.path("image"), self.path("blob"));
        let _ = fs::remove_file(&image);
        let blob_path = blob.to_str().unwrap();
        let mut args: Vec<String> = vec!["--quiet".to_owned()];
        args.extend(row.options.split_whitespace().map(|option| option.replace("BLOB", blob_path)));
        args.extend(match row.source {
            Source::Directory => None,
            Source::Archive => Some("--tar=f".to_owned()),
            Source::Index => Some("--tar=i".to_owned()),
        });
        let source = if row.source == Source::Directory { "tree" } else { "tar" };
        args.extend([&image, &self.path(source)].map(|path| path.to_str().unwrap().to_owned()));
        run("mkfs.erofs", &args).unwrap();
        let device = match row.source {
            Source::Index => Some(self.path("tar")),
            _ => row.options.contains("BLOB").then_some(blob),
        };
        let what = format!("mkfs.erofs {}", args[1..args.len() - 2].join(" "));
        let devices = device.into_iter().map(|path| Box::new(File::open(path).unwrap()) as Box<dyn ReadAt>).collect();
        let image = Image::open_with_devices(File::open(&image).unwrap(), devices, Image::DEFAULT_CACHE_BYTES)
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        let mut expected = self.tree.clone();
        (row.expected)(&mut expected);
        assert_same(&expected, &tree_of_image(&image), &what);
        let report = image.check(2);
        assert!(report.problems.is_empty() && report.warnings.is_empty(), "{what}: {report:?}");
    }
}

/// Builds and reads the images of all rows that this machine's `mkfs.erofs` supports.
fn hold_all(test: &str, fill: fn(&Path), rows: &[Row]) {
    let Some(have) = version() else { return skip(test, "mkfs.erofs is not installed") };
    if let Some(row) = rows.iter().find(|row| row.since > have) {
        let (wanted, have) = (format!("{}.{}", row.since.0, row.since.1), format!("{}.{}", have.0, have.1));
        skip(test, &format!("mkfs.erofs is {have}, and some options need {wanted} (scripts/erofs-utils builds it)"));
    }
    let made = MadeSource::new(fill);
    if rows.iter().any(|row| row.source != Source::Directory) {
        let (source, tar) = (made.path("tree"), made.path("tar"));
        let args =
            ["--format=pax", "--xattrs", "--xattrs-include=*", "--numeric-owner", "-C", source.to_str().unwrap()];
        if run("tar", args.iter().copied().chain(["-cf", tar.to_str().unwrap(), "."])).is_none() {
            return skip(test, "tar is not installed");
        }
    }
    rows.iter().filter(|row| row.since <= have).for_each(|row| made.hold(row));
}

fn awkward(root: &Path) {
    trees::awkward(root);
    // mkfs.erofs 1.5 fails on names of maximum length.
    fs::rename(root.join("n".repeat(255)), root.join("n".repeat(254))).unwrap();
}

/// Fills a tree that an archive can contain completely, so without sockets.
fn archived(root: &Path) {
    trees::awkward(root);
    fs::remove_file(root.join("socket")).unwrap();
}

#[test]
fn reads_images_of_mkfs() {
    hold_all("reads_images_of_mkfs", awkward, &old_rows());
}

#[test]
fn reads_uncompressed_images_of_mkfs() {
    hold_all("reads_uncompressed_images_of_mkfs", trees::awkward, &plain_rows());
}

#[test]
fn reads_metadata_of_mkfs() {
    hold_all("reads_metadata_of_mkfs", trees::awkward, &metadata_rows());
}

#[test]
fn reads_images_that_mkfs_makes_of_archives() {
    hold_all("reads_images_that_mkfs_makes_of_archives", archived, &archive_rows());
}

macro_rules! codecs {
    ($($test:ident: $codec:literal,)*) => {$(
        #[test]
        fn $test() {
            hold_all(stringify!($test), trees::small, &codec_rows($codec));
        }
    )*};
}

codecs! {
    reads_lz4_of_mkfs: "lz4",
    reads_lz4hc_of_mkfs: "lz4hc,level=9",
    reads_lzma_of_mkfs: "lzma,level=1",
    reads_deflate_of_mkfs: "deflate,level=3",
    reads_zstd_of_mkfs: "zstd,level=2",
}

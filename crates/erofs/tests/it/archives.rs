//! Images of tar archives.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use pagefold_erofs::{
    BuildOptions, IdMap, IdRange, Image, Indexes, Layer, NodeKind, ScanOptions, Tree, WarningKind, Whiteouts, build,
};

use crate::tools::{assert_same, run, skip, tree_of_directory, tree_of_image};
use crate::trees;

/// Builds an image of an archive and returns its tree.
fn image(folder: &Path, archive: &Path) -> crate::tools::Tree {
    let tree = Tree::from_tar(File::open(archive).unwrap(), &ScanOptions::default()).unwrap();
    let path = folder.join("image");
    let out = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    build(&tree, &BuildOptions { ztailpacking: true, ..BuildOptions::default() }, &out).unwrap();
    tree_of_image(&Image::open_path(&path).unwrap())
}

#[test]
fn an_archive_gives_the_tree_that_it_was_made_of() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("tree");
    fs::create_dir(&source).unwrap();
    trees::awkward(&source);
    // tar skips sockets.
    let _ = fs::remove_file(source.join("socket"));
    let archive = directory.path().join("tree.tar");
    let mut expected = tree_of_directory(&source);
    let tar = &["--format=pax", "--xattrs", "--xattrs-include=*", "--sort=name"];
    let with_acls = &["--format=pax", "--acls", "--xattrs", "--xattrs-include=[!s]*", "--xattrs-include=security.*"];
    let bsdtar = &["--format=pax", "--acls", "--xattrs", "--no-read-sparse", "--no-fflags"];
    for (program, options) in [("tar", &tar[..]), ("tar", with_acls), ("bsdtar", bsdtar)] {
        let paths = [source.as_os_str(), "-cf".as_ref(), archive.as_os_str(), ".".as_ref()];
        if run(program, options.iter().chain(&["-C"]).map(OsStr::new).chain(paths)).is_none() {
            skip("an_archive_gives_the_tree_that_it_was_made_of", &format!("{program} is not installed"));
            continue;
        }
        let found = image(directory.path(), &archive);
        assert_same(&expected, &found, &format!("{program} {options:?}"));
        // libarchive writes the fraction of a time before 1970 with the wrong sign.
        File::open(source.join("text-1")).unwrap().set_modified(UNIX_EPOCH - Duration::from_secs(5)).unwrap();
        expected = tree_of_directory(&source);
    }
}

/// Reads the tree of an archive with these members.
fn read(members: &[Vec<u8>], options: &ScanOptions) -> Result<Tree, String> {
    let mut archive = tempfile::tempfile().unwrap();
    archive.write_all(&[&members.concat()[..], &[0; 1024]].concat()).unwrap();
    let layer = Layer::from_tar(archive, Path::new("the.tar"), options);
    layer.and_then(Layer::into_tree).map_err(|error| error.to_string())
}

fn warnings_of(tree: &Tree) -> Vec<(WarningKind, u64, String)> {
    tree.warnings().into_iter().map(|warning| (warning.kind, warning.count, warning.examples[0].clone())).collect()
}

#[test]
fn acls_as_text_become_xattrs() {
    let id = |from| IdMap::new(vec![IdRange { from, to: 77, count: 1 }]).unwrap();
    let options = ScanOptions { uid_map: id(1000), ..ScanOptions::default() };
    let xattrs = |record: (&str, &str), options: &ScanOptions| {
        let tree = read(&[member(&[record], "file", b"")], options)?;
        let node = tree.node(tree.child(tree.root(), b"file").unwrap());
        Ok::<_, String>((node.xattrs.clone(), node.permissions, warnings_of(&tree)))
    };
    let access = |text| ("SCHILY.acl.access", text);
    let (found, _, warnings) =
        xattrs(access("user::rwx,user:x:r-x:1000,user:root:r--,group::r-x,mask::r-x,other::---"), &options).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].name, b"system.posix_acl_access");
    // Root sorts before the id that 1000 is mapped to.
    assert_eq!((found[0].value.len(), found[0].value[16], found[0].value[24]), (4 + 6 * 8, 0, 77));
    assert_eq!(warnings, []);
    assert_eq!(xattrs(access("user::rw-,group::r--,other::r--"), &options).unwrap(), (vec![], 0o644, vec![]));
    // Only directories have a default ACL.
    assert_eq!(xattrs(("SCHILY.acl.default", "user::rw-,group::r--,other::r--"), &options).unwrap().0, []);
    let unknown = access("user::rwx,user:no-such-user-here:r-x,group::---,mask::r-x,other::---");
    let (found, permissions, warnings) = xattrs(unknown, &options).unwrap();
    let example = "user:no-such-user-here in that of the.tar: file".to_owned();
    // The mask in the mode's group bits is not the group's rights.
    assert_eq!((found, permissions, warnings), (vec![], 0o604, vec![(WarningKind::AclName, 1, example)]));
    let error = xattrs(access("user::rwx,group:7:r-x,group::---,other::---"), &options).unwrap_err();
    assert!(error.starts_with("the.tar: file: its ACL (SCHILY.acl.access) cannot be read"), "{error}");
    let none = ScanOptions { no_xattrs: true, ..ScanOptions::default() };
    assert_eq!(xattrs(access("nonsense"), &none).unwrap(), (vec![], 0o644, vec![]));
    let (found, _, warnings) = xattrs(("SCHILY.acl.ace", "owner@:rw::allow"), &options).unwrap();
    assert_eq!((found, warnings), (vec![], vec![(WarningKind::Nfs4Acl, 1, "the.tar: file".to_owned())]));
}

#[test]
fn xattrs_are_read_in_libarchives_form_and_counted_where_they_cannot_be_held() {
    let encoded = ("LIBARCHIVE.xattr.user.a%3db", "AAFi");
    let both = ("LIBARCHIVE.xattr.user.c", "QQ");
    let plain = ("SCHILY.xattr.user.c", "other");
    let foreign = ("SCHILY.xattr.system.nfs4_acl", "x");
    let members = [member(&[encoded, both, plain, foreign], "one", b""), member(&[foreign], "two", b"")];
    let tree = read(&members, &ScanOptions::default()).unwrap();
    let node = tree.node(tree.child(tree.root(), b"one").unwrap());
    let found: Vec<_> = node.xattrs.iter().map(|xattr| (&xattr.name[..], &xattr.value[..])).collect();
    assert_eq!(found, [(&b"user.a=b"[..], &b"\0\x01b"[..]), (b"user.c", b"other")]);
    let example = "system.nfs4_acl of the.tar: one".to_owned();
    assert_eq!(warnings_of(&tree), [(WarningKind::XattrName, 2, example)]);
    let none = ScanOptions { no_xattrs: true, ..ScanOptions::default() };
    assert_eq!(warnings_of(&read(&members, &none).unwrap()), []);
    let error = read(&[member(&[("LIBARCHIVE.xattr.user.a", "*")], "one", b"")], &none).map(|_| ());
    assert_eq!(error, Ok(()));
    let error = read(&[member(&[("LIBARCHIVE.xattr.user.a", "*")], "one", b"")], &ScanOptions::default());
    assert_eq!(error.unwrap_err(), "the.tar: one: the value of its xattr user.a cannot be read");
}

/// Errors name the archive and the member, both before and during the build.
#[test]
fn members_that_an_image_cannot_hold_are_refused_by_name() {
    let pack = |members: &[Vec<u8>]| {
        let tree = read(members, &ScanOptions::default())?;
        let out = tempfile::tempfile().unwrap();
        build(&tree, &BuildOptions::default(), &out).map(|_| ()).map_err(|error| error.to_string())
    };
    let long = "v".repeat(65_536);
    let many: Vec<_> = (0..5).map(|n| (format!("SCHILY.xattr.user.{n}"), "v".repeat(60_000))).collect();
    let many: Vec<_> = many.iter().map(|(key, value)| (&key[..], &value[..])).collect();
    let mut bad_header = member(&[("a", "b")], "file", b"");
    bad_header[512] = b'x';
    let device = |major: &str, minor: &str| {
        let mut bytes = member(&[("SCHILY.devmajor", major), ("SCHILY.devminor", minor)], "d/device", b"");
        bytes[1024 + 156] = b'3';
        let mut header = tar::Header::from_byte_slice(bytes[1024..].first_chunk::<512>().unwrap()).clone();
        header.set_cksum();
        bytes[1024..].copy_from_slice(header.as_bytes());
        bytes
    };
    for (members, expected) in [
        (
            member(&[("SCHILY.xattr.user.x", &long)], "d/file", b""),
            "the.tar: d/file: the value of its xattr user.x has 65536 bytes; EROFS stores at most 65535",
        ),
        (member(&many, "d/file", b""), "the.tar: d/file: it has more than 256 KiB of xattrs"),
        (bad_header, "the.tar: pax: the PAX header cannot be read"),
        (device("4096", "0"), "the.tar: d/device: the device number 4096:0 is beyond EROFS's 4095:1048575"),
        (device("1", "1048576"), "the.tar: d/device: the device number 1:1048576 is beyond"),
        (device("1", "x"), "the.tar: d/device: its minor device number, 'x' in its PAX header, is not a number from 0"),
        (old_member(b'0', ".", "", 0, b""), "the.tar: .: it is not a directory: the root of an image must be one"),
        (old_member(b'2', "./", "x", 0, b""), "the.tar: ./: it is not a directory"),
        (
            old_member(b'1', "link", "none", 0, b""),
            "the.tar: link: it is a hard link to a file that does not precede it",
        ),
    ] {
        let error = pack(&[members]).unwrap_err();
        assert!(error.starts_with(expected), "{expected}: {error}");
    }
    assert_eq!(pack(&[device("4095", "1048575")]), Ok(()));
    let path = format!("d/{}", "n".repeat(256));
    let error = pack(&[member(&[("path", &path)], "x", b"")]).unwrap_err();
    assert_eq!(error, format!("the.tar: {path}: the name is longer than 255 bytes"));
}

/// The archive is truncated after it was scanned.
#[test]
fn members_that_can_no_longer_be_read_are_named() {
    let archive = tempfile::NamedTempFile::new().unwrap();
    let noise = trees::noise(100_000, 1);
    fs::write(&archive, member(&[("path", "d/file")], "x", &noise)).unwrap();
    let layer = Layer::from_tar(archive.reopen().unwrap(), Path::new("the.tar"), &ScanOptions::default()).unwrap();
    archive.as_file().set_len(50_000).unwrap();
    let out = tempfile::tempfile().unwrap();
    let error = build(&layer.into_tree().unwrap(), &BuildOptions::default(), &out).unwrap_err();
    assert_eq!(error.to_string(), "the.tar: d/file: was truncated while the image was built");
}

/// Covers each sparse format of GNU tar.
#[test]
fn members_with_holes_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("tree");
    fs::create_dir(&source).unwrap();
    let make = |name: &str, len: u64, data: &[(u64, usize)]| {
        let file = File::create(source.join(name)).unwrap();
        file.set_len(len).unwrap();
        for &(at, len) in data {
            file.write_all_at(&trees::text(len, 1), at).unwrap();
        }
    };
    make("all-hole", 100_000, &[]);
    make("ends-in-data", (5 << 20) + 77, &[(0, 4096), ((5 << 20) - 100, 177)]);
    make("ends-in-a-hole", 9 << 20, &[(4 << 20, 12_288)]);
    let pieces: Vec<_> = (0..300).map(|piece| (piece * 16_384, 4096)).collect();
    make("many-pieces", 300 * 16_384, &pieces);
    make(&format!("a-long-name-{}", "n".repeat(200)), 1 << 20, &[(65_536, 10)]);
    fs::write(source.join("no-holes"), trees::text(50_000, 2)).unwrap();
    // GNU's format has no nanoseconds.
    for path in fs::read_dir(&source).unwrap().map(|entry| entry.unwrap().path()).chain([source.clone()]) {
        File::open(path).unwrap().set_modified(UNIX_EPOCH + Duration::from_secs(1_000_000_000)).unwrap();
    }
    let expected = tree_of_directory(&source);
    let archive = directory.path().join("tree.tar");
    for format in [
        &["--format=gnu"][..],
        &["--format=pax", "--sparse-version=0.0"],
        &["--format=pax", "--sparse-version=0.1"],
        &["--format=pax", "--sparse-version=1.0"],
    ] {
        let options = format.iter().chain(&["--sparse", "--sort=name", "-C"]).map(OsStr::new);
        let paths = [source.as_os_str(), "-cf".as_ref(), archive.as_os_str(), ".".as_ref()];
        if run("tar", options.chain(paths)).is_none() {
            return skip("members_with_holes_are_read", "tar is not installed");
        }
        let len = fs::metadata(&archive).unwrap().len();
        assert!(len < 3 << 20, "{format:?}: the archive has the holes");
        let found = image(directory.path(), &archive);
        assert_same(&expected, &found, &format!("{format:?}"));
    }
}

/// Returns a PAX member: records, then a header and content.
fn member(records: &[(&str, &str)], name: &str, content: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    for (key, value) in records {
        let rest = format!(" {key}={value}\n");
        let digits = (1..9).find(|digits| (rest.len() + digits).to_string().len() == *digits).unwrap();
        write!(text, "{}{rest}", rest.len() + digits).unwrap();
    }
    let mut bytes = Vec::new();
    for (kind, name, content) in [(tar::EntryType::XHeader, "pax", &text[..]), (tar::EntryType::Regular, name, content)]
    {
        let mut header = tar::Header::new_ustar();
        header.set_path(name).unwrap();
        header.set_size(content.len() as u64);
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_cksum();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(content);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes
}

#[test]
fn a_label_becomes_the_xattr_that_it_stands_for() {
    let directory = tempfile::tempdir().unwrap();
    let archive = directory.path().join("labels.tar");
    let label = ("RHT.security.selinux", "system_u:object_r:etc_t:s0");
    let own = ("SCHILY.xattr.security.selinux", "other");
    fs::write(&archive, [member(&[label], "a", b""), member(&[label, own], "b", b"")].concat()).unwrap();
    let tree = Tree::from_tar(File::open(archive).unwrap(), &ScanOptions::default()).unwrap();
    for (name, value) in [(&b"a"[..], &b"system_u:object_r:etc_t:s0\0"[..]), (b"b", b"other")] {
        let xattrs = &tree.node(tree.child(tree.root(), name).unwrap()).xattrs;
        assert_eq!(xattrs.len(), 1);
        assert_eq!((&xattrs[0].name[..], &xattrs[0].value[..]), (&b"security.selinux"[..], value));
    }
}

#[test]
fn invalid_maps_of_holes_are_refused_by_name() {
    let version = [("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0"), ("GNU.sparse.realsize", "1000")];
    let at_once = |map| vec![("GNU.sparse.size", "1000"), ("GNU.sparse.map", map)];
    let before = |map: &str| [map.as_bytes(), &[0; 600]].concat();
    let turns = vec![("GNU.sparse.size", "9"), ("GNU.sparse.offset", "1"), ("GNU.sparse.numbytes", "2")];
    for (records, content) in [
        (at_once("500,20,100,20"), vec![1; 40]),
        (at_once("500,20,510,20"), vec![1; 40]),
        (at_once("990,20"), vec![1; 20]),
        (at_once("0,1,2"), vec![1; 20]),
        (at_once("0,30"), vec![1; 20]),
        (at_once("18446744073709551615,2"), vec![1; 20]),
        (at_once("0,18446744073709551616"), vec![1; 20]),
        (at_once("-1,2"), vec![1; 20]),
        (at_once("+1,2"), vec![1; 20]),
        (vec![("GNU.sparse.map", "0,1")], vec![1; 20]),
        (vec![("GNU.sparse.size", "x"), ("GNU.sparse.map", "0,1")], vec![1; 20]),
        ([&turns[..], &[("GNU.sparse.offset", "4")]].concat(), vec![1; 20]),
        ([&turns[..], &turns].concat(), vec![1; 20]),
        (vec![("GNU.sparse.major", "2"), ("GNU.sparse.minor", "0")], vec![1; 20]),
        (version[..2].to_vec(), before("0\n")),
        (version.to_vec(), before("2\n0\n10\n5\n10\n")),
        (version.to_vec(), before("1\n0\n1001\n")),
        (version.to_vec(), before("1\n0\n500\n")),
        (version.to_vec(), before("18446744073709551615\n")),
        (version.to_vec(), before("9999999999999\n0\n0\n")),
        (version.to_vec(), before("x\n")),
        (version.to_vec(), before("")),
        (version.to_vec(), vec![b'1'; 3000]),
        (version.to_vec(), b"0\n".to_vec()),
    ] {
        let mut archive = tempfile::tempfile().unwrap();
        archive.write_all(&member(&records, "the-member", &content)).unwrap();
        let error = Tree::from_tar(archive, &ScanOptions::default()).expect_err(&format!("{records:?}"));
        assert!(error.to_string().starts_with("the-member: "), "{records:?}: {error}");
    }
    let turns = [&turns[..], &[("GNU.sparse.offset", "4"), ("GNU.sparse.numbytes", "3")]].concat();
    for (records, content) in [(at_once(""), vec![]), (at_once("1000,0"), vec![]), (turns, vec![1; 5])] {
        let mut archive = tempfile::tempfile().unwrap();
        archive.write_all(&member(&records, "the-member", &content)).unwrap();
        Tree::from_tar(archive, &ScanOptions::default()).expect("a map of a hole");
    }
    // Holes of any length take nothing, up to the format's limit.
    let built = |size: &str, options: &BuildOptions| {
        let mut archive = tempfile::tempfile().unwrap();
        archive.write_all(&member(&[("GNU.sparse.size", size)], "a/member", &[])).unwrap();
        let tree = Tree::from_tar(archive, &ScanOptions::default()).unwrap();
        let out = tempfile::tempfile().unwrap();
        build(&tree, options, &out).map(|report| (report, out)).map_err(|error| error.to_string())
    };
    let base = BuildOptions::default();
    let (report, out) = built("1152921504606846976", &base).unwrap();
    assert!(report.image_bytes <= 3 * 4096);
    let image = Image::open(out).unwrap();
    assert_eq!(image.check(1).problems.len(), 0);
    assert_eq!(image.resolve(b"a/member").unwrap().size, 1 << 60);
    for options in
        [BuildOptions { indexes: Indexes::Compact, ..base.clone() }, BuildOptions { codec: None, ..base.clone() }]
    {
        let error = built("1152921504606846976", &options).unwrap_err();
        assert_eq!(error, "a/member: it is longer than 2^32 blocks");
    }
    assert_eq!(built("18446744073709551615", &base).unwrap_err(), "a/member: it is longer than 2^63 bytes");
}

/// A disk image may begin with zeros, like an empty archive.
#[test]
fn data_after_zeros_is_not_an_archive() {
    let read = |data_at: Option<u64>| {
        let archive = tempfile::tempfile().unwrap();
        archive.set_len(10_240).unwrap();
        if let Some(at) = data_at {
            archive.write_all_at(b"data", at).unwrap();
        }
        Tree::from_tar(archive, &ScanOptions::default())
    };
    assert!(read(None).is_ok(), "an empty archive");
    for at in [1024, 10_236] {
        let error = read(Some(at)).unwrap_err().to_string();
        assert!(error.starts_with(&format!("byte {at}: ")) && error.contains("not a tar archive"), "{error}");
    }
}

/// Returns a header in the pre-POSIX format, followed by content.
fn old_member(kind: u8, name: &str, link: &str, size: u64, content: &[u8]) -> Vec<u8> {
    let mut header = tar::Header::new_old();
    header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
    header.as_mut_bytes()[157..157 + link.len()].copy_from_slice(link.as_bytes());
    header.as_mut_bytes()[156] = kind;
    header.set_mode(0o750);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(size);
    header.set_cksum();
    let mut bytes = [header.as_bytes(), content].concat();
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn names_of(members: &[Vec<u8>]) -> Result<Vec<String>, String> {
    let directory = tempfile::tempdir().unwrap();
    let archive = directory.path().join("archive");
    fs::write(&archive, members.concat()).unwrap();
    let tree = Tree::from_tar(File::open(&archive).unwrap(), &ScanOptions::default());
    tree.map_err(|error| error.to_string())?;
    Ok(image(directory.path(), &archive).keys().map(|path| path.display().to_string()).collect())
}

#[test]
fn sizes_of_members_without_content_are_ignored() {
    let members = [
        old_member(b'5', "d", "", 4096, b""),
        old_member(b'0', "d/first", "", 600, &[b'x'; 600]),
        old_member(b'1', "d/link", "d/first", 600, b""),
        old_member(b'2', "d/symlink", "first", 5, b""),
        old_member(b'6', "d/fifo", "", 1, b""),
        old_member(b'0', "d/last", "", 1, b"x"),
        vec![0; 1024],
    ];
    let expected = ["", "d", "d/fifo", "d/first", "d/last", "d/link", "d/symlink"];
    assert_eq!(names_of(&members).unwrap(), expected);
}

#[test]
fn fields_that_are_left_out_are_zero() {
    let mut archive = tempfile::tempfile().unwrap();
    for (name, blank) in [("nul", 0), ("space", b' ')] {
        let mut bytes = old_member(b'0', name, "", 0, b"");
        // Mode, owner, group, length and time.
        bytes[100..148].fill(blank);
        let mut header = tar::Header::from_byte_slice(bytes.first_chunk::<512>().unwrap()).clone();
        header.set_cksum();
        archive.write_all(header.as_bytes()).unwrap();
    }
    let tree = Tree::from_tar(archive, &ScanOptions::default()).unwrap();
    for name in ["nul", "space"] {
        let node = tree.node(tree.child(tree.root(), name.as_bytes()).unwrap());
        assert_eq!((node.permissions, node.uid, node.gid, node.mtime_s), (0, 0, 0, 0));
    }
}

#[test]
fn directories_of_incremental_archives_are_directories() {
    let members = [
        old_member(b'V', "the archive's name", "", 99, b""),
        old_member(b'D', "d/", "", 6, b"Yfile\0"),
        old_member(b'0', "d/file", "", 1, b"x"),
        vec![0; 1024],
    ];
    let mut archive = tempfile::tempfile().unwrap();
    archive.write_all(&members.concat()).unwrap();
    let tree = Tree::from_tar(archive, &ScanOptions::default()).unwrap();
    let directory = tree.child(tree.root(), b"d").unwrap();
    assert_eq!(tree.node(directory).permissions, 0o750);
    assert!(tree.child(directory, b"file").is_some());
    assert_eq!(names_of(&members).unwrap(), ["", "d", "d/file"]);
}

/// Unknown members must not be skipped silently.
#[test]
fn members_of_unknown_kinds_are_refused() {
    let error = names_of(&[old_member(b'M', "part", "", 1, b"x"), vec![0; 1024]]).unwrap_err();
    assert_eq!(error, "part: unknown member type 'M'");
}

/// An excluded file may have hard links that are not excluded.
/// A directory whose files a later member replaces is reported, unless layers are stacked, where this
/// is the rule.
#[test]
fn directories_with_files_that_are_replaced_are_reported() {
    let kinds = [(b'0', "", "d"), (b'0', "", "d/."), (b'2', "target", "d"), (b'6', "", "d"), (b'1', "e", "d")];
    for (kind, link, name) in kinds {
        let replaced = |files: &[&str]| {
            let first = old_member(b'0', "e", "", 0, b"");
            let files = files.iter().map(|name| old_member(b'0', name, "", 0, b""));
            let members: Vec<_> =
                [first].into_iter().chain(files).chain([old_member(kind, name, link, 0, b"")]).collect();
            (warnings_of(&read(&members, &ScanOptions::default()).unwrap()), members)
        };
        let (warnings, members) = replaced(&["d/b", "d/c"]);
        assert_eq!(warnings, [(WarningKind::ReplacedDirectory, 1, format!("the.tar: {name}"))], "{name} {kind}");
        let layers = [&members[..], &[]].map(|members: &[Vec<u8>]| {
            let mut archive = tempfile::tempfile().unwrap();
            archive.write_all(&[members.concat(), vec![0; 1024]].concat()).unwrap();
            Layer::from_tar(archive, Path::new(""), &ScanOptions::default()).unwrap()
        });
        assert_eq!(warnings_of(&Layer::stack(layers, Whiteouts::Apply).unwrap()), []);
        // A file has none.
        assert_eq!(replaced(&["d"]).0, []);
    }
    let members = [old_member(b'0', "d/b", "", 0, b""), old_member(b'5', "d", "", 0, b"")];
    assert_eq!(warnings_of(&read(&members, &ScanOptions::default()).unwrap()), []);
}

#[test]
fn excluded_files_may_have_further_names() {
    let members = [
        old_member(b'0', "left-out", "", 1, b"x"),
        old_member(b'1', "out/also", "left-out", 0, b""),
        old_member(b'1', "here", "out/also", 0, b""),
        old_member(b'1', "there", "left-out", 0, b""),
        old_member(b'1', "out/nothing", "none", 0, b""),
        old_member(b'0', "left-out", "", 2, b"yz"),
        vec![0; 1024],
    ];
    let directory = tempfile::tempdir().unwrap();
    let archive = directory.path().join("archive");
    fs::write(&archive, members.concat()).unwrap();
    let excludes = vec![b"left-out".to_vec(), b"/out".to_vec()];
    let options = ScanOptions { excludes, ..ScanOptions::default() };
    let tree = Tree::from_tar(File::open(&archive).unwrap(), &options).unwrap();
    let [here, there] = [&b"here"[..], b"there"].map(|name| tree.child(tree.root(), name).unwrap());
    assert_eq!(here, there);
    let NodeKind::Regular { size, .. } = tree.node(here).kind else { panic!("not a file") };
    assert_eq!(size, 1);
    assert_eq!(tree.child(tree.root(), b"left-out"), None);
    assert_eq!(tree.child(tree.root(), b"out"), None);
    let error = Tree::from_tar(File::open(&archive).unwrap(), &ScanOptions::default()).unwrap_err().to_string();
    assert!(error.contains("out/nothing: it is a hard link to a file"), "{error}");
}

#[test]
fn a_slash_behind_a_name_means_a_directory() {
    let members = [old_member(0, "d/", "", 0, b""), old_member(0, "d/file", "", 1, b"x"), vec![0; 1024]];
    assert_eq!(names_of(&members).unwrap(), ["", "d", "d/file"]);
}

#[test]
fn archives_of_which_a_part_would_be_left_out_are_refused() {
    let one = || old_member(b'0', "one", "", 1, b"x");
    let two = || old_member(b'0', "two", "", 1, b"x");
    for zeros in [512, 1024, 10_240] {
        let error = names_of(&[one(), vec![0; zeros], two(), vec![0; 1024]]).unwrap_err();
        assert!(error.starts_with(&format!("byte {}: another archive begins", 1024 + zeros)), "{error}");
    }
    assert_eq!(names_of(&[one(), vec![0; 1024], b"not a header".to_vec()]).unwrap(), ["", "one"]);
    let error = names_of(&[one(), two()[..100].to_vec()]).unwrap_err();
    assert_eq!(error, "byte 1024: the archive ends inside a header");
    let error = names_of(&[b"some text\n".to_vec()]).unwrap_err();
    assert_eq!(error, "byte 0: the archive ends inside the first header; is this a tar archive?");
    let error = names_of(&[one(), old_member(b'L', "././@LongLink", "", 600, b"abc")]).unwrap_err();
    assert_eq!(error, "././@LongLink: the archive ends inside it");
    let error = names_of(&[one(), old_member(b'L', "././@LongLink", "", 3, b"abc")]).unwrap_err();
    assert_eq!(error, "byte 2048: the archive ends after an extension header");
    assert_eq!(names_of(&[]).unwrap_err(), "byte 0: an archive is never empty");
    assert_eq!(names_of(&[one()]).unwrap(), ["", "one"]);
}

//! Members of archives as different archivers write them, one property at a time.

use std::io::Write;
use std::path::Path;

use pagefold_erofs::{BuildOptions, Content, Image, Layer, NodeKind, ScanOptions, Tree, WarningKind, Whiteouts, build};
use proptest::prelude::*;

use crate::tar_writer::{Holes, Kind, Magic, Member, Numbers, add_up, archive, pax};
use crate::tools::{assert_same, tree_of_image};

fn layer(bytes: &[u8], options: &ScanOptions) -> Result<Layer, String> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    Layer::from_tar(file, Path::new("the.tar"), options).map_err(|error| error.to_string())
}

fn read_with(bytes: &[u8], options: &ScanOptions) -> Result<Tree, String> {
    layer(bytes, options)?.into_tree().map_err(|error| error.to_string())
}

fn read(members: &[Member]) -> Result<Tree, String> {
    read_with(&archive(members), &ScanOptions::default())
}

fn image(tree: &Tree) -> Image {
    let out = tempfile::tempfile().unwrap();
    build(tree, &BuildOptions { threads: 1, ..BuildOptions::default() }, &out).unwrap();
    let image = Image::open(out).unwrap();
    let problems = image.check(1).problems;
    assert!(problems.is_empty(), "{problems:?}");
    image
}

fn content(tree: &Tree, path: &str) -> Vec<u8> {
    let image = image(tree);
    let inode = image.resolve(path.as_bytes()).unwrap();
    let mut bytes = vec![0; inode.size as usize];
    image.read_exact_at(&inode, &mut bytes, 0).unwrap();
    bytes
}

#[test]
fn sums_of_signed_bytes_are_sums() {
    let member = |signed| Member { signed, ..Member::file("naïve", b"x") };
    let [unsigned, signed] = [false, true].map(|signed| member(signed).write());
    assert!(unsigned != signed);
    for bytes in [unsigned, signed] {
        assert!(read_with(&bytes, &ScanOptions::default()).is_ok());
    }
    let mut wrong = member(false).write();
    wrong[0] ^= 1;
    let error = read_with(&wrong, &ScanOptions::default()).unwrap_err();
    assert_eq!(error, "the.tar: byte 0: the header's checksum does not match; is this a tar archive?");
}

/// An archive that was cut is refused, or has a warning if it was cut between members.
#[test]
fn a_cut_archive_is_noticed_wherever_it_was_cut() {
    let long = "n".repeat(150);
    let members = [
        Member::file("a", &[0; 700]),
        Member::file(&long, &[1; 100]),
        Member::directory("d"),
        Member { content_of_link: Some(b"linked".to_vec()), ..Member::hard_link("link", "a") },
        Member::file("whole", &[2; 512]),
    ];
    let bytes = archive(&members);
    let mut ends: Vec<usize> = Vec::new();
    for member in &members {
        ends.push(ends.last().unwrap_or(&0) + member.write().len());
    }
    let end = *ends.last().unwrap();
    // A hard link's content begins here, and most have none.
    ends.push(ends[3] - 512);
    for len in 1..bytes.len() {
        let found = layer(&bytes[..len], &ScanOptions::default());
        let between = ends.iter().position(|end| *end == len);
        match found {
            Ok(layer) => {
                let tree = layer.into_tree().unwrap();
                let warnings: Vec<_> = tree.warnings().iter().map(|warning| warning.kind).collect();
                let expected = if between.is_some() { vec![WarningKind::NoEnd] } else { Vec::new() };
                assert_eq!(warnings, expected, "{len} of {}", bytes.len());
                assert!(between.is_some() || len >= end + 512, "{len} of {} is whole", bytes.len());
            }
            Err(error) => {
                assert!(between.is_none() && len < end + 512, "{len} of {}: {error}", bytes.len());
                assert!(error.contains("the archive ends"), "{error}");
            }
        }
    }
}

/// Errors name the field and what it holds, unless an option replaces it.
#[test]
fn invalid_numbers_are_shown() {
    let record = |key: &str, value: &str| {
        let records = pax(&[(key.to_owned(), value.as_bytes().to_vec())]);
        let mut header = Member::file("pax", &records).write();
        header[156] = b'x';
        let (front, rest) = header.split_first_chunk_mut::<512>().unwrap();
        add_up(front, false);
        [&front[..], rest, &Member::file("f", b"x").write()].concat()
    };
    let field = |at: usize, text: &[u8]| {
        let mut bytes = Member::file("f", b"x").write();
        bytes[at..at + text.len()].copy_from_slice(text);
        add_up(bytes.first_chunk_mut().unwrap(), false);
        bytes
    };
    let set = |field: &str| match field {
        "uid" => ScanOptions { uid: Some(5), ..ScanOptions::default() },
        "gid" => ScanOptions { gid: Some(5), ..ScanOptions::default() },
        _ => ScanOptions { mtime_s: Some(5), ..ScanOptions::default() },
    };
    for (bytes, what, by) in [
        (
            record("uid", "4294967296"),
            "owner, '4294967296' in its PAX header, is not a number from 0 to 4294967295; --uid",
            "uid",
        ),
        (record("uid", "-2"), "owner, '-2' in its PAX header, is not a number", "uid"),
        (field(108, b"\xff\xff\xff\xff\xff\xff\xff\xfe"), "owner, -2 in its header, is not a number", "uid"),
        (field(108, b"9999999\0"), "owner, '9999999' in its header, is not a number", "uid"),
        (
            record("gid", "x"),
            "group, 'x' in its PAX header, is not a number from 0 to 4294967295; --gid replaces it",
            "gid",
        ),
        (
            record("mtime", "100000000000000000000"),
            "time, '100000000000000000000' in its PAX header, is not a number from",
            "mtime",
        ),
        (record("mtime", "1.5a"), "time, '1.5a' in its PAX header, is not a number from", "mtime"),
        (record("mtime", "-9223372036854775808.5"), "time, '-9223372036854775808.5' in its PAX", "mtime"),
        (
            field(136, b"\x80\0\0\x01\0\0\0\0\0\0\0\0"),
            "time, 18446744073709551616 in its header, is not a number from -9",
            "mtime",
        ),
    ] {
        let error = read_with(&bytes, &ScanOptions::default()).map(|_| ()).unwrap_err();
        assert!(error.starts_with(&format!("the.tar: f: its {what}")), "{error}");
        let tree = read_with(&bytes, &set(by)).unwrap();
        let node = tree.node(tree.child(tree.root(), b"f").unwrap());
        assert!(matches!((by, node.uid, node.gid, node.mtime_s), ("uid", 5, ..) | ("gid", _, 5, _) | ("mtime", .., 5)));
    }
    for (bytes, what) in [
        (field(100, b"0008\0"), "its mode, '0008\\x0044' in its header"),
        (field(124, b"zz"), "its size, 'zz"),
        (record("size", "-1"), "its size, '-1' in its PAX header, is not a number from 0 to 9223372036854775807"),
    ] {
        let error = read_with(&bytes, &ScanOptions::default()).map(|_| ()).unwrap_err();
        assert!(error.starts_with(&format!("the.tar: f: {what}")), "{error}");
    }
}

#[test]
fn hard_links_may_have_content() {
    let file = || Member::file("a", b"abc");
    let after = || Member::file("c", b"c");
    let link = |content: Option<&[u8]>, false_size| Member {
        false_size,
        content_of_link: content.map(<[u8]>::to_vec),
        ..Member::hard_link("b", "a")
    };
    for magic in [Magic::Old, Magic::Ustar, Magic::Gnu] {
        for numbers in [Numbers::Octal, Numbers::Pax] {
            for (content_of_link, size, expected) in [
                (Some(&b"abc"[..]), 0, &b"abc"[..]),
                // As bsdtar extracts it.
                (Some(b"xyz!"), 0, b"xyz!"),
                (Some(&[7; 512]), 0, &[7; 512]),
                // The size is that of the target.
                (None, 3, b"abc"),
                (None, 5000, b"abc"),
                (None, 0, b"abc"),
            ] {
                let link = Member { magic, numbers, ..link(content_of_link, size) };
                for last in [false, true] {
                    let members = [file(), link.clone(), after()];
                    let tree = read(&members[..if last { 2 } else { 3 }]).unwrap();
                    let [a, b] = [b"a", b"b"].map(|name| tree.child(tree.root(), name).unwrap());
                    assert_eq!(a, b);
                    assert_eq!(content(&tree, "a"), expected);
                    assert_eq!(tree.child(tree.root(), b"c").is_some(), !last);
                }
            }
        }
    }
    // With content, the target need not be there.
    let tree = read(&[link(Some(b"alone"), 0), after()]).unwrap();
    assert_eq!(content(&tree, "b"), b"alone");
    let error = read(&[link(None, 0), after()]).unwrap_err();
    assert_eq!(error, "the.tar: b: it is a hard link to a file that does not precede it in the archive");
}

#[test]
fn hard_links_to_nothing_and_to_directories_are_refused_as_such() {
    for (target, what) in [
        ("d", "it is a hard link to a directory"),
        ("./", "it is a hard link to a directory"),
        ("l", "it is a hard link to a directory"),
        ("", "it is a hard link without a target"),
        ("f/x", "it is a hard link to a file that does not precede it in the archive"),
    ] {
        let members = [
            Member::directory("d"),
            Member::file("f", b""),
            Member::symlink("l", "d"),
            Member::hard_link("h", &format!("{target}{}", if target == "l" { "/" } else { "" })),
        ];
        let found = read(&members);
        if target == "l" {
            // A slash at the end has no effect: this is a second name of the symbolic link.
            assert!(found.is_ok());
            continue;
        }
        assert_eq!(found.unwrap_err(), format!("the.tar: h: {what}"));
    }
    let error = Layer::stack(
        [
            layer(&archive(&[Member::directory("d")]), &ScanOptions::default()).unwrap(),
            layer(&archive(&[Member::hard_link("h", "d")]), &ScanOptions::default()).unwrap(),
        ],
        Whiteouts::Apply,
    );
    assert_eq!(error.unwrap_err().to_string(), "the.tar: h: it is a hard link to a directory");
}

#[test]
fn members_without_a_name_are_placed() {
    let error = read(&[Member::file("a", b"x"), Member::file("", b"x")]).unwrap_err();
    assert_eq!(error, "the.tar: byte 1024: a member without a name");
    assert!(read(&[Member::directory(""), Member::file("a", b"x")]).is_ok(), "the root");
}

#[test]
fn a_file_is_not_the_root() {
    for path in ["/", "./", "."] {
        for content in [&b""[..], b"abc"] {
            let member =
                Member { numbers: Numbers::Pax, long: true, magic: Magic::Ustar, ..Member::file(path, content) };
            let found = read(&[member]);
            let is_directory = path.ends_with('/') && content.is_empty();
            assert_eq!(found.is_ok(), is_directory, "{path} {content:?}: {found:?}");
            let named = |error: String| error.contains("it is not a directory: the root of an image must be one");
            assert!(found.is_ok() || found.is_err_and(named), "{path}");
        }
    }
}

#[test]
fn directories_by_name_have_no_content_whatever_their_size() {
    for false_size in [0, 1, 512, 600, 5000] {
        for numbers in [Numbers::Octal, Numbers::Pax] {
            let directory = |path: &str| Member { false_size, numbers, magic: Magic::Old, ..Member::file(path, b"") };
            let members = [directory("one/"), directory("two/"), Member::file("two/f", b"x"), directory("three/")];
            let tree = read(&members).unwrap();
            for name in [&b"one"[..], b"two", b"three"] {
                let node = tree.child(tree.root(), name).unwrap();
                assert!(matches!(tree.node(node).kind, NodeKind::Directory(_)), "{false_size}");
            }
        }
    }
}

#[test]
fn solaris_headers_are_pax_headers() {
    let path = "n".repeat(150);
    let tree = read(&[Member { pax_kind: b'X', ..Member::file(&path, b"x") }]).unwrap();
    assert!(tree.child(tree.root(), path.as_bytes()).is_some());
}

#[test]
fn comments_in_maps_of_holes_are_passed_over() {
    let spans = vec![(5000, vec![1; 100]), (9000, Vec::new())];
    let member = Member::new("f", Kind::Sparse(9000, spans, Holes::Pax10));
    let mut bytes = archive(std::slice::from_ref(&member));
    let whole = content(&read_with(&bytes, &ScanOptions::default()).unwrap(), "f");
    assert!(whole.len() == 9000 && whole[5000..5100] == [1; 100]);
    let map = b"2\n5000\n100\n9000\n0\n";
    let at = bytes.windows(map.len()).position(|part| part == map).unwrap();
    // What pads the map to a block may be any bytes.
    for padding in [&b"x"[..], b"7\n", b"\n", b" "] {
        let mut odd = bytes.clone();
        let behind = &mut odd[at..at + 512][map.len()..];
        behind.iter_mut().zip(padding.iter().cycle()).for_each(|(byte, odd)| *byte = *odd);
        assert_eq!(content(&read_with(&odd, &ScanOptions::default()).unwrap(), "f"), whole);
    }
    let comments = b"#!gnu-sparse-format\n#format:1.0\n";
    bytes[at..at + comments.len()].copy_from_slice(comments);
    bytes[at + comments.len()..][..map.len()].copy_from_slice(map);
    assert_eq!(content(&read_with(&bytes, &ScanOptions::default()).unwrap(), "f"), whole);
    bytes[at..at + 512].fill(b'#');
    let error = read_with(&bytes, &ScanOptions::default()).unwrap_err();
    assert_eq!(error, "the.tar: f: its sparse map cannot be read");
}

#[test]
fn links_of_the_same_archive_are_followed_within_the_root() {
    let found = |link: &str, members: &[Member]| {
        let front = [Member::directory("usr"), Member::directory("usr/lib"), Member::file("usr/lib/a", b"a")];
        read(&[&front[..], &[Member::symlink("lib", link)], members].concat())
    };
    let inside = [Member::file("lib/x", b"x"), Member::directory("lib/d"), Member::file("lib/d/y", b"y")];
    for link in ["usr/lib", "/usr/lib", "../../usr/lib/", "./usr/../usr/./lib"] {
        let tree = found(link, &[&inside[..], &[Member::hard_link("b", "lib/a")]].concat()).unwrap();
        assert_eq!(content(&tree, "usr/lib/d/y"), b"y");
        assert_eq!(content(&tree, "usr/lib/x"), b"x");
        assert_eq!(content(&tree, "b"), b"a");
        assert!(matches!(&tree.node(tree.child(tree.root(), b"lib").unwrap()).kind, NodeKind::Symlink(_)));
    }
    // Missing directories are created, as for a link of a layer below.
    assert_eq!(content(&found("not/yet", &inside).unwrap(), "not/yet/x"), b"x");
    assert_eq!(content(&found("none/../usr/lib", &inside).unwrap(), "usr/lib/x"), b"x");
    let error = found("lib", &inside).unwrap_err();
    assert!(error.starts_with("the.tar: lib/x: its parent is a symbolic link that leads to itself"), "{error}");
    let error = found("usr/lib/a", &inside).unwrap_err();
    assert_eq!(error, "the.tar: lib/x: its parent is not a directory");
    // Exclusion applies to paths in the image and to those in the archive.
    for pattern in ["/lib/x", "/usr/lib/x", "x"] {
        let options = ScanOptions { excludes: vec![pattern.into()], ..ScanOptions::default() };
        let front = [Member::directory("usr"), Member::symlink("lib", "usr/lib")];
        let links = [Member::hard_link("h", "lib/x"), Member::hard_link("i", "usr/lib/x")];
        let bytes = archive(&[&front[..], &inside, &links[..usize::from(pattern != "/lib/x") + 1]].concat());
        let tree = read_with(&bytes, &options).unwrap();
        assert_eq!(content(&tree, "h"), b"x");
        assert!(image(&tree).resolve(b"usr/lib/x").is_err(), "{pattern}");
    }
}

#[test]
fn invalid_xattr_names_are_counted() {
    let long = format!("user.{}", "n".repeat(251));
    let names = [&long[..], "user.", "user.a\0b", "system.posix_acl_access.x", "user.good"];
    let xattrs = names.map(|name| (name.to_owned(), b"v".to_vec())).to_vec();
    let tree = read(&[Member { xattrs, ..Member::file("f", b"") }]).unwrap();
    let node = tree.node(tree.child(tree.root(), b"f").unwrap());
    assert_eq!(node.xattrs.len(), 1);
    let [warning] = &tree.warnings()[..] else { panic!("{:?}", tree.warnings()) };
    assert_eq!((warning.kind, warning.count), (WarningKind::ImpossibleXattrName, 4));
    assert!(warning.examples.iter().all(|example| example.len() < 120 && example.ends_with(" of the.tar: f")));
    image(&tree);
}

/// GNU tar's and libarchive's forms of one name.
#[test]
fn names_of_xattrs_are_decoded_as_they_were_encoded() {
    let member = |records: &[(&str, &str)]| {
        let records: Vec<_> =
            records.iter().map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec())).collect();
        let mut header = Member::file("pax", &pax(&records)).write();
        header[156] = b'x';
        add_up(header.first_chunk_mut().unwrap(), false);
        let tree = read_with(&[header, Member::file("f", b"").write()].concat(), &ScanOptions::default()).unwrap();
        let node = tree.node(tree.child(tree.root(), b"f").unwrap());
        node.xattrs.iter().map(|xattr| String::from_utf8(xattr.name.clone()).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(member(&[("SCHILY.xattr.user.a%3Db", "1"), ("SCHILY.xattr.user.p%25q", "1")]), ["user.a=b", "user.p%q"]);
    assert_eq!(
        member(&[("SCHILY.xattr.user.%253D", "1"), ("SCHILY.xattr.user.a%20b", "1")]),
        ["user.%3D", "user.a%20b"]
    );
    let both =
        |name: &str| member(&[(&format!("SCHILY.xattr.{name}"), "1"), (&format!("LIBARCHIVE.xattr.{name}"), "MQ")]);
    assert_eq!(both("user.a%3Db"), ["user.a=b"]);
    assert_eq!(both("user.a%20b"), ["user.a b"]);
    assert_eq!(both("user.%C3%A9"), ["user.é"]);
    assert_eq!(member(&[("SCHILY.xattr.user.a%3Db", "1"), ("LIBARCHIVE.xattr.user.a%3db", "MQ")]), ["user.a=b"]);
}

/// Paths of up to four directories or links to them, and a name that is neither.
fn below_links() -> impl Strategy<Value = String> {
    let folder = prop::sample::select(vec!["d", "e", "l", "m", "new"]);
    let names = ["x", "y", "z"];
    (prop::collection::vec(folder, 0..4), prop::sample::select(names.to_vec()))
        .prop_map(|(folders, name)| folders.into_iter().chain([name]).collect::<Vec<_>>().join("/"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Links are followed in the same way within one archive and across two.
    #[test]
    fn one_archive_is_as_two_layers(
        links in prop::collection::vec(prop::sample::select(vec!["d", "/e", "../d/e", "m", "l", "d/e/..", "no/where", "d/f"]), 4),
        members in prop::collection::vec((below_links(), 0..3u8), 1..10),
    ) {
        let front = ["./", "d", "e", "d/e"].map(Member::directory);
        let links = ["l", "m", "d/l", "e/m"].into_iter().zip(&links).map(|(path, to)| Member::symlink(path, to));
        let files = [Member::file("d/f", b"f"), Member::file("d/e/f", b"e")];
        let below = [&front[..], &files, &links.collect::<Vec<_>>()].concat();
        // Each has a name of its own: what is below a link of a lower layer is placed last.
        let above = members.iter().enumerate().map(|(number, (path, kind))| (format!("{path}-{number}"), path, kind));
        let above: Vec<_> = above.map(|(name, path, kind)| match kind {
            0 => Member::file(&name, name.as_bytes()),
            1 => Member::directory(&name),
            // To a file below, by any path.
            _ => Member::hard_link(&name, &path.replace('x', "f")),
        }).collect();
        let options = ScanOptions::default();
        let whole = layer(&archive(&[&below[..], &above].concat()), &options);
        let whole = whole.and_then(|layer| Layer::stack([layer], Whiteouts::Apply).map_err(|error| error.to_string()));
        let Ok(whole) = whole else { return Ok(()) };
        let layers = [&below, &above].map(|members| layer(&archive(members), &options).unwrap());
        let stacked = Layer::stack(layers, Whiteouts::Apply).map_err(|error| TestCaseError::fail(error.to_string()))?;
        let [whole, stacked] = [whole, stacked].map(|tree| tree_of_image(&image(&tree)));
        assert_same(&whole, &stacked, "one archive and two layers");
    }
}

/// A path of half a million names. How the work grows is bounded next to the code.
#[test]
fn a_path_of_half_a_million_names_is_read() {
    let path = "d/".repeat(500_000) + "file";
    for excludes in [vec![], vec![b"*.o".to_vec(), b"/d/e".to_vec(), b"fil".to_vec()]] {
        let tree = read_with(
            &archive(&[Member::file(&path, b"content")]),
            &ScanOptions { excludes, ..ScanOptions::default() },
        );
        let tree = tree.unwrap();
        let mut node = tree.root();
        while let Some(below) = tree.child(node, b"d") {
            node = below;
        }
        let file = tree.child(node, b"file").unwrap();
        assert!(matches!(&tree.node(file).kind, NodeKind::Regular { content: Content::Member(_), size: 7 }));
    }
}

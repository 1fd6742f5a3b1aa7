//! Images behind a header, as in firmware.

use std::{fs, io::Write};

use tempfile::TempDir;

use crate::server::{pagefold, run, run_to_fail};

/// Size of the header: deliberately unaligned.
const HEADER_BYTES: usize = 12_345;

/// Creates a tree, its image, and a file with that image between a header and other data. Returns a
/// function from a name to a path next to them.
fn place(folder: &TempDir, options: &[&str]) -> impl Fn(&str) -> String {
    let path = folder.path().to_owned();
    let at = move |name: &str| path.join(name).to_str().expect("a plain path").to_owned();
    fs::create_dir_all(at("tree/etc")).expect("a folder");
    fs::write(at("tree/etc/text"), "a line of some text\n".repeat(50_000)).expect("a file");
    fs::write(at("tree/small"), "small").expect("a file");
    run(pagefold().arg("pack").args(options).args([&at("tree"), "-o", &at("image")]));
    let mut embedded = fs::File::create(at("embedded")).expect("a file");
    let header: Vec<u8> = (0..HEADER_BYTES).map(|n| n.wrapping_mul(0x9e37_79b9).to_be_bytes()[6]).collect();
    for part in [&header[..], &fs::read(at("image")).expect("an image"), b"a trailer"] {
        embedded.write_all(part).expect("a file");
    }
    at
}

#[test]
fn every_command_reads_an_image_behind_a_header() {
    for options in [&[][..], &["--cluster", "64K"], &["--codec", "zstd", "--fragments=all"]] {
        let folder = TempDir::new().expect("a folder");
        let at = place(&folder, options);
        let offset = HEADER_BYTES.to_string();
        let same = |command: &[&str], path: &str| {
            let plain = run(pagefold().args(command).arg(at("image") + path));
            let embedded = run(pagefold().args(command).args(["--offset", &offset]).arg(at("embedded") + path));
            assert_eq!(plain, embedded, "{command:?}");
        };
        same(&["ls", "-lR"], "");
        same(&["ls", "-R", "--json"], "");
        same(&["cat"], ":/etc/text");
        same(&["check"], "");
        same(&["check", "--json"], ":/etc");
        same(&["info", "--read", "--json"], ":/etc/text");
        run(pagefold().args(["extract", "--offset", &offset, &at("embedded"), "-C", &at("out")]));
        for name in ["etc/text", "small"] {
            let read = |root: &str| fs::read(at(root) + "/" + name).expect("a file");
            assert!(read("tree") == read("out"), "{name}");
        }
    }
}

#[test]
fn an_offset_where_no_image_begins_is_named() {
    let folder = TempDir::new().expect("a folder");
    let at = place(&folder, &[]);
    let len = fs::metadata(at("embedded")).expect("a file").len();
    for command in ["ls", "info", "check"] {
        let fails = |offset: &str| run_to_fail(pagefold().args([command, "--offset", offset, &at("embedded")]));
        for (offset, why) in [
            ("12346".to_owned(), "at byte 12346 is not an EROFS image: no EROFS magic number at byte 13370"),
            ("0".to_owned(), "embedded is not an EROFS image: no EROFS magic number at byte 1024"),
            (len.to_string(), "is past the end of"),
            ("10G".to_owned(), "--offset 10737418240 is past the end of"),
            (u64::MAX.to_string(), "is past the end of"),
            ((len - 1).to_string(), "is not an EROFS image"),
            ("-1".to_owned(), "'-1' is not a size"),
            ("99999999999999999999".to_owned(), "64-bit"),
        ] {
            let message = fails(&offset);
            assert!(message.contains(why) && !message.contains("panicked"), "{command} --offset {offset}: {message}");
        }
    }
    // The error names the format of the data at that offset.
    let mut archive = vec![0; 5000];
    archive[700 + 257..][..5].copy_from_slice(b"ustar");
    fs::write(at("archive"), archive).expect("a file");
    let message = run_to_fail(pagefold().args(["ls", "--offset", "700", &at("archive")]));
    assert!(message.contains("at byte 700 is not an EROFS image; it is a tar archive"), "{message}");
    // A truncated image.
    let whole = fs::read(at("embedded")).expect("a file");
    fs::write(at("short"), &whole[..HEADER_BYTES + 5000]).expect("a file");
    let message = run_to_fail(pagefold().args(["check", "--offset", "12345", &at("short")]));
    assert!(message.contains("the image ends before byte "), "{message}");
}

//! The output of `--json` about images.

use std::{
    ffi::OsStr,
    fs::{self, FileTimes, Permissions},
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt, symlink},
    },
    process::Command,
    time::{Duration, UNIX_EPOCH},
};

use rustix::fs::{XattrFlags, lsetxattr};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::server::{pagefold, run, run_to_fail};

/// Returns the objects that a command prints, which must succeed.
fn records(command: &mut Command) -> Vec<Value> {
    run(command).lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect()
}

fn keys(record: &Value) -> Vec<&str> {
    record.as_object().expect("an object").keys().map(String::as_str).collect()
}

#[test]
fn ls_and_info_show_all_of_a_file() {
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    fs::create_dir_all(at("tree/d")).expect("a folder");
    fs::write(at("tree/d/text"), "a line of some text\n".repeat(5000)).expect("a file");
    fs::write(at("tree/d/gr\u{fc}n \"\n"), "").expect("a file");
    let odd = OsStr::from_bytes(b"\xffodd");
    fs::write(folder.path().join("tree/d").join(odd), "odd").expect("a file");
    symlink("text", at("tree/d/link")).expect("a link");
    symlink(odd, at("tree/d/other")).expect("a link");
    fs::hard_link(at("tree/d/text"), at("tree/d/same")).expect("a link");
    fs::set_permissions(at("tree/d/text"), Permissions::from_mode(0o4751)).expect("a mode");
    let time = UNIX_EPOCH - Duration::new(12_345, 678_901_234);
    let file = fs::File::open(at("tree/d/text")).expect("a file");
    file.set_times(FileTimes::new().set_modified(time)).expect("a time");
    let has_xattrs = [("user.text", &b"text"[..]), ("user.bytes", b"\xff\0")]
        .iter()
        .all(|(name, value)| lsetxattr(at("tree/d/text"), *name, value, XattrFlags::empty()).is_ok());
    run(pagefold().args(["pack", &at("tree"), "-o", &at("image")]));

    let all = records(pagefold().args(["ls", "-R", "--json", &at("image")]));
    let below = records(pagefold().args(["ls", "--json", &(at("image") + ":d/")]));
    assert_eq!(all[0]["path"], "/d");
    assert_eq!(all[1..], below, "paths begin at the root, wherever the list begins");
    assert_eq!(all.len(), 7);
    let find = |path: &str| all.iter().find(|record| record["path"] == path).expect("a record");
    let text = find("/d/text");
    let metadata = fs::metadata(at("tree/d/text")).expect("a file");
    for (field, value) in [
        ("type", json!("file")),
        ("mode", json!("4751")),
        ("uid", json!(metadata.uid())),
        ("gid", json!(metadata.gid())),
        ("size", json!(100_000)),
        ("mtime_s", json!(-12_346)),
        ("mtime_nsec", json!(321_098_766)),
        ("nlink", json!(2)),
        ("layout", json!("compressed_compact")),
        ("blocks", json!(1)),
    ] {
        assert_eq!(text[field], value, "{field}");
    }
    if has_xattrs {
        let value = json!([{"name": "user.bytes", "value_base64": "/wA="}, {"name": "user.text", "value": "text"}]);
        let mut found = text["xattrs"].as_array().expect("xattrs").clone();
        found.sort_by_key(|xattr| xattr["name"].to_string());
        assert_eq!(Value::from(found), value);
    }
    assert_eq!((&find("/d/same")["nid"], keys(text).contains(&"target")), (&text["nid"], false));
    assert_eq!((&find("/d/link")["type"], &find("/d/link")["target"]), (&json!("symlink"), &json!("text")));
    assert_eq!(find("/d/gr\u{fc}n \"\n")["size"], 0);
    // Names and targets that are not UTF-8 keep their bytes.
    assert_eq!(find("/d/other")["target_base64"], "/29kZA==");
    let odd = all.iter().find(|record| record["path_base64"] == "L2Qv/29kZA==").expect("a record");
    assert!(!keys(odd).contains(&"path") && odd["size"] == 3, "{odd}");

    for path in ["d/text", "/d/text"] {
        let one = records(pagefold().args(["info", "--json", &format!("{}:{path}", at("image"))]));
        assert_eq!((one.len(), &one[0]), (1, text));
        assert_eq!(records(pagefold().args(["ls", "--json", &format!("{}:{path}", at("image"))])), one);
    }
    let read = records(pagefold().args(["info", "--read", "--json", &(at("image") + ":d/text")]));
    assert_eq!((&read[0]["decoded"], &read[0]["decoded_in_place"]), (&json!(1), &json!(1)));
}

#[test]
fn devices_have_their_numbers() {
    const TEST: &str = "devices_have_their_numbers";
    let Some([tar]) = pagefold_testing::programs(TEST, ["tar"]) else { return };
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    run(Command::new(tar).args(["-C", "/", "-cf", &at("a.tar"), "dev/null"]));
    run(pagefold().args(["pack", &at("a.tar"), "-o", &at("image")]));
    let null = records(pagefold().args(["ls", "--json", &(at("image") + ":/dev")])).remove(0);
    assert_eq!((&null["type"], &null["device"]), (&json!("char"), &json!({"major": 1, "minor": 3})));
}

#[test]
fn info_describes_the_image() {
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    fs::create_dir(at("tree")).expect("a folder");
    let uuid = "00112233-4455-6677-8899-aabbccddeeff";
    let options = ["--codec", "zstd,3", "-T", "1000000000", "--uuid", uuid, "--volume-name", "some"];
    run(pagefold().arg("pack").args(options).args([&at("tree"), "-o", &at("image")]));
    let info = records(pagefold().args(["info", "--json", &at("image")])).remove(0);
    let len = fs::metadata(at("image")).expect("an image").len();
    for (field, value) in [
        ("size", json!(len)),
        ("block_size", json!(4096)),
        ("blocks", json!(len / 4096)),
        ("inodes", json!(1)),
        ("time_s", json!(1_000_000_000)),
        ("time_nsec", json!(0)),
        ("uuid", json!(uuid.replace('-', ""))),
        ("volume", json!("some")),
        ("formats", json!(["zstd"])),
        ("compatible", json!(3)),
    ] {
        assert_eq!(info[field], value, "{field}");
    }
    let words = run(pagefold().args(["info", &at("image")]));
    for name in info["features"].as_array().expect("names") {
        assert!(words.contains(name.as_str().expect("a name")), "{name}");
    }
}

#[test]
fn check_prints_problems_and_then_the_verdict() {
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    fs::create_dir_all(at("tree/etc")).expect("a folder");
    fs::write(at("tree/etc/text"), "a line of some text\n".repeat(5000)).expect("a file");
    run(pagefold().args(["pack", &at("tree"), "-o", &at("image")]));
    let verdict = json!({
        "sound": true, "problems": 0, "differences": null, "inodes": 3, "directories": 2, "file_bytes": 100_000
    });
    assert_eq!(records(pagefold().args(["check", "--json", &at("image")])), [verdict]);

    let mut damaged = fs::read(at("image")).expect("an image");
    damaged[4096..8192].fill(0xff);
    fs::write(at("damaged"), damaged).expect("a file");
    for (place, inodes) in [("", 3), (":etc", 2), (":/etc/text", 1)] {
        let output = pagefold().args(["check", "--json", &(at("damaged") + place)]).output().expect("a start");
        assert_eq!(output.status.code(), Some(1));
        let lines = String::from_utf8(output.stdout).expect("text");
        let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let [problem, verdict] = &lines[..] else { panic!("{lines:?}") };
        assert_eq!((&problem["path"], &problem["offset"]), (&json!("/etc/text"), &json!(4096)), "{place}");
        assert!(problem["what"].as_str().is_some_and(|what| what.contains("lz4")), "{problem}");
        assert_eq!((&verdict["sound"], &verdict["problems"]), (&json!(false), &json!(1)));
        assert_eq!(verdict["inodes"], inodes, "{place}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(said, format!("pagefold: {}: 1 problem\n", at("damaged")));
    }
    // A reader that stops reading does not hide the problems.
    let (reader, closed) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = pagefold().args(["check", "--json", &at("damaged")]).stdout(closed).output().expect("a start");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    // A file that is not an image has no verdict.
    let message = run_to_fail(pagefold().args(["check", "--json", &at("tree/etc/text")]));
    assert!(message.contains("is not an EROFS image"), "{message}");
}

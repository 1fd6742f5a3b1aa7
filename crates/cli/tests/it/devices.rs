//! Images with data on other devices, and warnings about images.

use std::fs;

use tempfile::TempDir;

use crate::images::output;
use crate::server::{pagefold, run_to_fail};

#[test]
fn data_lies_on_other_devices() {
    let Some([mkfs]) = pagefold_testing::programs("data_lies_on_other_devices", ["mkfs.erofs"]) else { return };
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    fs::create_dir(at("tree")).expect("a folder");
    let text = "a line of some text\n".repeat(5000);
    fs::write(at("tree/text"), &text).expect("a file");
    let blob = format!("--blobdev={}", at("blob"));
    output(std::process::Command::new(mkfs).args(["--quiet", "--chunksize=4096", &blob, &at("image"), &at("tree")]));

    let message = run_to_fail(pagefold().args(["check", &at("image")]));
    assert!(message.contains("needs 1 other device, but none was given (give each device with --device"), "{message}");
    let device = ["--device", &at("blob")];
    assert!(output(pagefold().arg("check").args(device).arg(at("image"))).starts_with("sound: 2 inodes"));
    assert_eq!(output(pagefold().arg("cat").args(device).arg(at("image") + ":/text")), text);
    assert_eq!(output(pagefold().arg("ls").args(device).arg(at("image"))), "text\n");
    assert!(output(pagefold().arg("info").args(device).args(["--read", &at("image")])).contains("other devices  1\n"));
    output(pagefold().arg("extract").args(device).args([&at("image"), "-C", &at("out")]));
    assert_eq!(fs::read_to_string(at("out/text")).expect("the file"), text);
    let message = run_to_fail(pagefold().arg("check").args(device).args(device).arg(at("image")));
    assert!(message.contains("but 2 were given"), "{message}");
    fs::write(at("short"), "short").expect("a file");
    let message = run_to_fail(pagefold().args(["ls", "--device", &at("short"), &at("image")]));
    assert!(message.contains("device 1 has 5 bytes, but the image expects"), "{message}");
    let message = run_to_fail(pagefold().args(["ls", "--device", &at("missing"), &at("image")]));
    assert!(message.contains("missing: No such file"), "{message}");

    // A single file can hold both, once the table says at which block the device's data begin.
    let mut whole = fs::read(at("image")).expect("an image");
    let blocks = whole.len().div_ceil(4096);
    whole.resize(blocks * 4096, 0);
    whole[1024 + 8] &= !1;
    let slot = usize::from(u16::from_le_bytes([whole[1024 + 88], whole[1024 + 89]])) * 128;
    whole[slot + 68..slot + 72].copy_from_slice(&(blocks as u32).to_le_bytes());
    whole[1024 + 36..1024 + 40].copy_from_slice(&(blocks as u32).to_le_bytes());
    fs::write(at("mapped"), &whole).expect("an image");
    assert_eq!(output(pagefold().arg("cat").args(device).arg(at("mapped") + ":/text")), text);
    whole.extend(fs::read(at("blob")).expect("a device"));
    fs::write(at("flat"), &whole).expect("an image");
    assert_eq!(output(pagefold().args(["cat", &(at("flat") + ":/text")])), text);
}

#[test]
fn overlaps_are_named_and_omissions_are_warned_of() {
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    fs::create_dir(at("tree")).expect("a folder");
    for name in ["one", "two"] {
        fs::write(at("tree").clone() + "/" + name, name.repeat(200)).expect("a file");
    }
    if rustix::fs::setxattr(at("tree/one"), "user.strange", b"value", rustix::fs::XattrFlags::empty()).is_err() {
        return pagefold_testing::skip_for_good("what_overlaps_is_named", "no xattrs where temporary files are");
    }
    output(pagefold().args(["pack", "--codec", "none", &at("tree"), "-o", &at("image")]));
    let mut bytes = fs::read(at("image")).expect("an image");
    bytes[1024 + 8] &= !1;
    let name = bytes.windows(7).position(|window| window == b"strange").expect("the name");
    bytes[name - 3] = 9;
    fs::write(at("image"), &bytes).expect("an image");
    let checked = pagefold().args(["check", &at("image")]).output().expect("the program starts");
    let said = String::from_utf8(checked.stderr).expect("text");
    assert!(checked.status.success() && said.contains("warning: /one: an xattr is skipped"), "{said}");
    let extracted = pagefold().args(["extract", &at("image"), "-C", &at("out")]).output().expect("the program starts");
    let said = String::from_utf8(extracted.stderr).expect("text");
    assert!(extracted.status.success() && said.contains("warning: /one: an xattr is skipped"), "{said}");

    // Long enough to contain the other's inode, whichever comes first.
    for name in ["one", "two"] {
        let content = name.repeat(200);
        let at = bytes.windows(600).position(|window| window == content.as_bytes()).expect("the content");
        let sizes = (0..at).rev().step_by(4).map(|end| end / 4 * 4);
        let size = sizes.into_iter().find(|at| bytes[*at..*at + 4] == 600u32.to_le_bytes()).expect("the size");
        bytes[size..size + 4].copy_from_slice(&1900u32.to_le_bytes());
    }
    fs::write(at("image"), &bytes).expect("an image");
    let message = run_to_fail(pagefold().args(["check", &at("image")]));
    assert!(
        message.contains("inode overlaps another: /one") || message.contains("inode overlaps another: /two"),
        "{message}"
    );
}

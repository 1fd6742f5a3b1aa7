//! Sources of `pagefold pack`: several sources, compressed archives, unreadable files.

use std::{
    fs::{self, File},
    os::unix::fs::{PermissionsExt, chown},
    path::Path,
    process::Command,
};

use pagefold_testing::{copy_program, programs, skip_for_good};
use tempfile::TempDir;

use crate::server::{pagefold, run_to_fail};

/// Runs `command`, which must succeed, and returns its standard output and standard error.
#[track_caller]
fn done(command: &mut Command) -> (String, String) {
    let output = command.output().expect("the program starts");
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(output.status.success(), "{said}");
    (String::from_utf8(output.stdout).expect("text"), said)
}

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(TempDir::new().expect("a folder"))
    }

    fn at(&self, name: &str) -> String {
        self.0.path().join(name).to_str().expect("a plain path").to_owned()
    }

    fn write(&self, name: &str, content: &[u8]) {
        let path = self.at(name);
        fs::create_dir_all(Path::new(&path).parent().expect("a folder")).expect("a folder");
        fs::write(path, content).expect("a file");
    }

    /// Creates an archive of a directory's content.
    fn tar(&self, name: &str) -> String {
        let archive = self.at(&format!("{name}.tar"));
        done(Command::new("tar").args(["--sort=name", "-C", &self.at(name), "-cf", &archive, "."]));
        archive
    }

    fn pack(&self, args: &[&str]) -> Command {
        let mut pack = pagefold();
        pack.args(["pack", "-o", &self.at("image")]).args(args);
        pack
    }

    /// Returns the paths in an image.
    fn list(&self, image: &str) -> String {
        let (list, _) = done(pagefold().args(["ls", "-R", &self.at(image)]));
        let mut paths: Vec<_> = list.lines().collect();
        paths.sort_unstable();
        paths.join(" ")
    }
}

#[test]
fn compressed_archives_are_read() {
    let folder = Folder::new();
    let at = |name: &str| folder.at(name);
    folder.write("tree/text", "a line of some text\n".repeat(50_000).as_bytes());
    folder.write("tree/noise", &(0..100_000u32).flat_map(|n| n.wrapping_mul(n ^ 77).to_le_bytes()).collect::<Vec<_>>());
    let archive = folder.tar("tree");
    done(&mut folder.pack(&[&archive]));
    let expected = fs::read(at("image")).expect("an image");
    let Some(compressors) = programs("compressed_archives_are_read", ["gzip", "zstd", "xz"]) else { return };
    for (program, name) in compressors.iter().zip(["tree.tar.gz", "tree.tgz.zst", "tree.tar.xz"]) {
        let compress = |input: &str, output: &str| {
            let mut command = Command::new(program);
            command.arg("-c").stdin(File::open(input).expect("an archive"));
            command.stdout(File::options().append(true).create(true).open(output).expect("a file"));
            done(&mut command);
        };
        compress(&archive, &at(name));
        // Layers are named by their checksums.
        fs::copy(at(name), at("0123456789abcdef")).expect("a copy");
        // Two parts, compressed separately.
        let whole = fs::read(&archive).expect("an archive");
        let (front, back) = whole.split_at(whole.len() / 3);
        let _ = fs::remove_file(at("two.tar.any"));
        for half in [front, back] {
            fs::write(at("half"), half).expect("a file");
            compress(&at("half"), &at("two.tar.any"));
        }
        for source in [at(name), at("0123456789abcdef"), at("two.tar.any"), "-".to_owned()] {
            let input = File::open(at(name)).expect("an archive");
            done(folder.pack(&[&source]).stdin(input));
            assert!(fs::read(at("image")).expect("an image") == expected, "{name}: {source}");
        }
        let compressed = fs::read(at("two.tar.any")).expect("an archive");
        for len in [compressed.len() / 2, compressed.len() - 1] {
            fs::write(at("cut.tar.any"), &compressed[..len]).expect("a file");
            let output = folder.pack(&[&at("cut.tar.any")]).output().expect("a start");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{name}: {said}");
            assert!(said.contains("cut.tar.any is damaged or truncated"), "{name}: {said}");
        }
        // A compressed file that is not an archive becomes a single file.
        compress(&at("tree/text"), &at("text.compressed"));
        done(&mut folder.pack(&[&at("text.compressed")]));
        assert_eq!(folder.list("image"), "text.compressed");
        fs::remove_file(at("text.compressed")).expect("a file");
        let mut pack = folder.pack(&[&at(name)]);
        let message = run_to_fail(pack.env("TMPDIR", at("none")));
        assert!(message.contains(&format!("{name} in {}", at("none"))) && message.contains("TMPDIR"), "{message}");
    }
}

#[test]
fn sources_are_laid_over_each_other() {
    let folder = Folder::new();
    let at = |name: &str| folder.at(name);
    folder.write("base/etc/one", b"one");
    folder.write("base/etc/two", b"two");
    folder.write("base/opt/old", b"old");
    folder.write("app/etc/.wh.one", b"");
    folder.write("app/etc/two", b"of the app");
    folder.write("app/.wh.opt", b"");
    folder.write("config/etc/local", b"local");
    let (base, app) = (folder.tar("base"), folder.tar("app"));
    let (_, said) = done(&mut folder.pack(&[&base, &app, &at("config")]));
    assert!(!said.contains("warning"), "{said}");
    assert_eq!(folder.list("image"), "etc etc/local etc/two");
    assert_eq!(done(pagefold().args(["cat", &(at("image") + ":etc/two")])).0, "of the app");
    done(folder.pack(&["-", &at("config")]).stdin(File::open(&base).expect("an archive")));
    assert_eq!(folder.list("image"), "etc etc/local etc/one etc/two opt opt/old");
    // A layer keeps the entries that mark deletions.
    let (_, said) = done(&mut folder.pack(&["--layer", &app]));
    assert!(!said.contains("warning"), "{said}");
    assert_eq!(folder.list("image"), "etc etc/one etc/two opt");
    let list = done(pagefold().args(["ls", "-lR", &at("image")])).0;
    let whiteouts: Vec<_> = list.lines().filter(|line| line.starts_with("c---------")).collect();
    assert!(whiteouts.len() == 2 && whiteouts.iter().all(|line| line.contains(" 0,0 ")), "{list}");
    done(&mut folder.pack(&["--layer", &app, &at("config")]));
    assert_eq!(folder.list("image"), "etc etc/local etc/one etc/two opt");
    // A single archive is packed as it is.
    let (_, said) = done(&mut folder.pack(&[&app]));
    assert_eq!(folder.list("image"), ".wh.opt etc etc/.wh.one etc/two");
    assert!(said.contains("warning: 2 whiteouts kept as ordinary files: use --layer"), "{said}");
    let fails = |args: &[&str], status| {
        let output = folder.pack(args).output().expect("a start");
        assert_eq!(output.status.code(), Some(status), "{args:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let message = fails(&[&base, &at("base/etc/one")], 1);
    assert!(message.contains("base/etc/one is not a directory or a tar archive"), "{message}");
    assert!(fails(&["-", "-"], 2).contains("one source only"));
    fails(&[], 2);
    let message = fails(&["--layer", &at("base/etc/one")], 1);
    assert!(message.contains("is not a directory or a tar archive"), "{message}");
}

/// The exit status is 1, and the message names the archive and the member.
#[test]
fn members_that_cannot_be_packed_are_named() {
    let folder = Folder::new();
    let at = |name: &str| folder.at(name);
    folder.write("tree/d/file", b"x");
    let value = "v".repeat(70_000);
    let mut tar = Command::new("tar");
    tar.args(["--format=pax", "--pax-option", &format!("SCHILY.xattr.user.big:={value}"), "-C", &at("tree")]);
    done(tar.args(["-cf", &at("a.tar"), "d/file"]));
    let output = folder.pack(&[&at("a.tar")]).output().expect("a start");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("a.tar: d/file: the value of its xattr user.big has 70000 bytes; EROFS stores at most"),
        "{said}"
    );
    let mut tar = Command::new("tar");
    tar.args(["--format=pax", "--pax-option", "SCHILY.xattr.system.other:=x", "-C", &at("tree")]);
    done(tar.args(["-cf", &at("b.tar"), "d"]));
    let (_, said) = done(&mut folder.pack(&[&at("b.tar")]));
    let expected =
        "warning: 2 extended attributes skipped because EROFS has no prefix for their names, such as system.other of ";
    assert!(said.contains(expected) && said.contains("b.tar: d/"), "{said}");
    assert_eq!(said.matches("warning").count(), 1, "{said}");
}

#[test]
fn unreadable_files_are_left_out_on_request() {
    const TEST: &str = "unreadable_files_are_left_out_on_request";
    if !rustix::process::geteuid().is_root() {
        return skip_for_good(TEST, "it takes root to become a user");
    }
    let Some([setpriv]) = programs(TEST, ["setpriv"]) else { return };
    let folder = Folder::new();
    let at = |name: &str| folder.at(name);
    fs::set_permissions(folder.0.path(), fs::Permissions::from_mode(0o755)).expect("a mode");
    for name in ["tree/open", "tree/d/open", "tree/closed-directory/below", "tree/d/closed", "tree/z"] {
        folder.write(name, name.as_bytes());
    }
    fs::hard_link(at("tree/d/closed"), at("tree/again")).expect("a link");
    for number in 0..30 {
        folder.write(&format!("tree/many/{number}"), b"");
        fs::set_permissions(at(&format!("tree/many/{number}")), fs::Permissions::from_mode(0o000)).expect("a mode");
    }
    for name in ["tree/closed-directory", "tree/d/closed"] {
        fs::set_permissions(at(name), fs::Permissions::from_mode(0o000)).expect("a mode");
    }
    copy_program(env!("CARGO_BIN_EXE_pagefold"), at("pagefold"));
    fs::create_dir(at("theirs")).expect("a folder");
    chown(at("theirs"), Some(65_534), Some(65_534)).expect("an owner");
    let pack = |args: &[&str]| {
        let mut command = Command::new(&setpriv);
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", &at("pagefold"), "pack", &at("tree")]);
        command.args(["-o", &at("theirs/image")]).args(args);
        command
    };
    let message = run_to_fail(&mut pack(&[]));
    assert!(message.contains("Permission denied") && message.contains(&at("tree/")), "{message}");
    assert!(message.ends_with("; --skip-unreadable goes on with the other files\n"), "{message}");
    assert!(!fs::exists(at("theirs/image")).expect("a folder"));
    let (_, said) = done(&mut pack(&["--skip-unreadable"]));
    // Two names of the file, the directory, and thirty more.
    assert!(said.contains("warning: 33 files skipped because they cannot be read"), "{said}");
    assert_eq!(said.matches("skipped: ").count(), 20, "{said}");
    assert_eq!(folder.list("theirs/image"), "d d/open many open z");
}

/// Files of procfs have content, but a length of 0.
#[test]
fn files_of_the_kernel_are_not_read_as_empty() {
    let folder = Folder::new();
    // A read of the second waits for the next message of the kernel, and only root may open it.
    for file in ["/proc/version", "/proc/kmsg"] {
        if File::open(file).is_ok() {
            let message = run_to_fail(&mut folder.pack(&[file]));
            assert!(message.contains(&format!("{file} has no length")), "{message}");
        }
    }
    folder.write("empty", b"");
    done(&mut folder.pack(&[&folder.at("empty")]));
    // Those of sysfs are shorter than they say.
    let thp = "/sys/kernel/mm/transparent_hugepage";
    if Path::new(thp).exists() {
        let message = run_to_fail(&mut folder.pack(&[thp]));
        assert!(message.ends_with("; --skip-unreadable goes on with the other files\n"), "{message}");
    }
}

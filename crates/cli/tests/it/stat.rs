//! `stat`, completions and the manual.

use crate::server::{Server, pagefold, run};

#[test]
fn stat_speaks_in_words() {
    let server = Server::start(&["--codec", "zstd,1", "--export", "name=a,size=1G", "--export", "name=b,size=2G"]);
    let text = run(&mut server.ask(&["stat"]));
    for words in ["2 disks, codec zstd-1", "disk 'a': 1 GiB", "disk 'b': 2 GiB", "no limit", "same-filled 0"] {
        assert!(text.contains(words), "'{words}' is not in:\n{text}");
    }
}

#[test]
fn stat_shows_what_a_disk_learns() {
    for codec in ["pleat", "fold-dict", "lz4-dict", "zstd-1-dict"] {
        let server = Server::start(&["--size", "1G", "--codec", codec]);
        let text = run(&mut server.ask(&["stat"]));
        assert!(text.contains(codec) && text.contains("not trained yet"), "{codec}:\n{text}");
        for (figure, value) in [("codec_tables", 1), ("trainings", 0), ("trainings_useless", 0), ("training_bytes", 0)]
        {
            assert_eq!(server.total(figure), value, "{codec}: {figure}");
        }
    }
}

#[test]
fn an_empty_8_gib_disk_costs_kilobytes() {
    let server = Server::start(&["--size", "8G", "--memory-limit", "none"]);
    assert!(server.total("spent_bytes") <= 64 << 10);
    assert!(server.figure("", "spent_bytes") <= 4 << 10);
}

#[test]
fn completions_and_manual_are_made() {
    for shell in ["bash", "zsh", "fish"] {
        assert!(run(pagefold().args(["completions", shell])).contains("memory-limit"), "{shell}");
    }
    assert!(run(pagefold().arg("man")).contains(".TH pagefold"));
    let folder = tempfile::TempDir::new().expect("a folder");
    run(pagefold().args(["man", "--to"]).arg(folder.path()));
    assert!(folder.path().join("pagefold-serve.1").is_file());
}

#[test]
fn help_has_examples() {
    let disks = ["serve", "disks", "stat", "top", "add", "resize", "rename", "reset", "limit", "compact"];
    let disks = disks.into_iter().chain(["fork", "snapshot", "rollback", "diff", "drop"]);
    let images = ["pack", "ls", "cat", "info", "check", "extract", "mount"];
    for command in disks.chain(images).chain(["completions", "man"]) {
        assert!(run(pagefold().args([command, "--help"])).contains("Example"), "{command}");
    }
}

//! A server's configuration file.

use std::{fs, os::unix::net::UnixStream};

use tempfile::TempDir;

use crate::server::{Server, pagefold, run};

fn file(folder: &TempDir, text: &str) -> String {
    let path = folder.path().join("serve.toml");
    fs::write(&path, text).expect("a file");
    path.to_str().expect("a plain path").to_owned()
}

#[test]
fn a_server_has_the_disks_of_its_file() {
    let folder = TempDir::new().expect("a folder");
    let image = folder.path().join("image.img");
    fs::write(&image, [7; 8192]).expect("an image");
    let socket = folder.path().join("job.sock");
    let text = format!(
        "memory-limit = '64M'\ncodec = 'lz4'\n[[disk]]\nname = 'scratch'\nsize = '1M'\nlimit = '1M'\n\
         [[base]]\nname = 'base'\nfile = '{}'\n[[fork]]\nfrom = 'base'\nname = ['job-1', 'job-2']\nconnections = 3\n\
         [[fork]]\nfrom = 'job-1'\nname = 'job-3'\nsocket = '{}'\nmode = '0666'\n",
        image.display(),
        socket.display(),
    );
    let config = file(&folder, &text);
    // The check prints what the server would use.
    let said = run(pagefold().args(["serve", "--check-config", "--config", &config]));
    for words in
        ["codec         lz4", "memory limit  64 MiB", "disk          'scratch', 1 MiB", "fork          'job-3', 8 KiB"]
    {
        assert!(said.contains(words), "{words} is not in {said}");
    }
    assert!(!socket.exists(), "the check makes no socket");
    let said = run(pagefold().args(["serve", "--check-config", "--size", "1M"]));
    assert!(said.contains("iB, half of the memory of the machine"), "{said}");
    let more = ["--metrics", "9809", "--metrics", "/run/m.sock", "--vhost-user", "/run/vm", "--files", "/run/files"];
    let said = run(pagefold().args(["serve", "--check-config", "--config", &config]).args(more));
    for words in [
        "metrics       127.0.0.1:9809",
        "metrics       /run/m.sock",
        "vhost-user    /run/vm",
        "files         /run/files",
    ] {
        assert!(said.contains(words), "{words} is not in {said}");
    }
    let server = Server::start(&["--config", &config, "--codec", "lzo"]);
    let disks = run(&mut server.ask(&["disks", "--json"]));
    let named = |name: &str| -> serde_json::Value {
        let lines = disks.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
        lines.into_iter().find(|disk| disk["name"] == name).unwrap_or_else(|| panic!("no {name} in {disks}"))
    };
    assert_eq!(named("scratch")["limit_bytes"], 1 << 20);
    assert_eq!((named("job-2")["from"].as_str(), &named("job-2")["max_connections"]), (Some("base"), &3.into()));
    assert_eq!(named("job-3")["socket"].as_str(), socket.to_str());
    UnixStream::connect(&socket).expect("it listens");
    let stat = run(&mut server.ask(&["stat"]));
    assert!(stat.contains("codec lzo"), "the command line wins: {stat}");
}

#[test]
fn invalid_entries_are_named_with_their_line() {
    let folder = TempDir::new().expect("a folder");
    for (text, words) in [
        ("memory-limit = '1K'\n", "limit"),
        ("\n[[base]]\nname = 'a'\nfile = '/no/such'\n", "serve.toml:2: "),
        ("[[fork]]\nfrom = 'none'\nname = 'a'\n", "serve.toml:1: "),
        ("[[disk]]\nname = 'a'\nsize = 100\n", "serve.toml:1: "),
        ("[[disk]]\nname = 'a@b'\nsize = 512\n", "serve.toml:1: "),
        ("sise = 1", "serve.toml:1: 'sise': unknown key"),
    ] {
        let config = file(&folder, text);
        for check in [&["--check-config"][..], &[]] {
            let mut command = pagefold();
            command.args(["serve", "--config", &config, "--dir"]).arg(folder.path().join("dir")).args(check);
            let output = command.output().expect("a start");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success() && said.contains(words), "{text}: {said}");
        }
    }
    let output = pagefold().args(["serve", "--config", "/no/such", "--check-config"]).output().expect("a start");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

/// The machine that runs this test can serve disks.
#[test]
fn the_doctor_finds_missing_requirements() {
    let folder = TempDir::new().expect("a folder");
    let dir = folder.path().join("dir");
    let lines = run(pagefold().args(["doctor", "--json", "--dir"]).arg(&dir));
    let records: Vec<serde_json::Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}")))
        .collect();
    assert!(records.iter().any(|record| record["name"] == "memory"), "{lines}");
    for record in &records {
        let status = record["status"].as_str().expect("a status");
        assert!(["ok", "limited", "missing"].contains(&status), "{record}");
        assert_eq!(record["do"] == "", status == "ok", "{record}");
    }
    // The page for operators names all checks.
    let page = include_str!("../../../../docs/operate.md");
    for record in &records {
        let name = record["name"].as_str().expect("a name");
        assert!(page.contains(&format!("`{name}`")), "{name}");
    }
    fs::write(&dir, "").expect("a file");
    let output = pagefold().args(["doctor", "--dir"]).arg(&dir).output().expect("a start");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(1) && said.contains("missing  directory"), "{said}");
}

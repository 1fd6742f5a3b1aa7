//! Images on web servers and in registries, as the program's users see them.

use std::{
    collections::hash_map::RandomState,
    fs,
    hash::{BuildHasher, Hasher},
    io::{Read, Write},
    net::TcpListener,
    ops::Range,
    path::Path,
    process::Command,
    time::Duration,
};

use pagefold_remote::Sum;
use pagefold_testing::{
    skip_for_good,
    web::{Reply, Server as WebServer},
};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::{
    images::output,
    server::{Server, pagefold, run_to_fail},
};

/// Bytes that compress to about half.
fn content(len: usize) -> Vec<u8> {
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_usize(len);
    let mut state = hasher.finish() | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 20) as u8 & 0x0f
        })
        .collect()
}

/// A folder with `tree.erofs` and `disk.erofs`, with their indexes.
fn images() -> (TempDir, Vec<u8>) {
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    let bytes = content(4 << 20);
    fs::create_dir(at("tree")).expect("a folder");
    fs::write(at("tree/file"), &bytes).expect("a file");
    fs::write(at("tree/small"), "small\n").expect("a file");
    fs::write(at("disk.img"), &bytes).expect("a file");
    output(pagefold().args(["pack", &at("tree"), "-o", &at("tree.erofs"), "--cluster", "16K"]));
    output(pagefold().args(["pack", &at("disk.img"), "-o", &at("disk.erofs"), "--cluster", "16K"]));
    for name in ["tree.erofs", "disk.erofs"] {
        assert!(output(pagefold().args(["index", &at(name)])).starts_with("sha256:"));
    }
    (folder, bytes)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

fn web(folder: &Path) -> WebServer {
    let folder = folder.to_owned();
    WebServer::start(move |request| match fs::read(folder.join(request.path.trim_start_matches('/'))) {
        Ok(bytes) => Reply::file(request, &bytes),
        Err(_) => Reply::status(404),
    })
}

fn cached(cache: &Path) -> Command {
    let mut command = pagefold();
    command.env("PAGEFOLD_CACHE", cache);
    command
}

#[test]
fn commands_read_images_from_the_web() {
    let (folder, bytes) = images();
    let web = web(folder.path());
    let cache = TempDir::new().expect("a folder");
    let url = web.url("/tree.erofs");
    let run = |args: &[&str]| output(cached(cache.path()).args(args));
    assert_eq!(run(&["cat", &format!("{url}:/small")]), "small\n");
    let fetched: u64 =
        web.requests().iter().filter_map(|request| Some(request.range()?.end - request.range()?.start)).sum();
    assert!(fetched < 200 << 10, "{fetched}");
    assert_eq!(run(&["ls", &url]), "file\nsmall\n");
    assert!(run(&["info", &url]).contains("lz4"));
    assert!(run(&["check", &url]).starts_with("sound: 3 inodes"));
    let out = folder.path().join("out");
    run(&["extract", &url, "-C", out.to_str().expect("a plain path")]);
    assert!(fs::read(out.join("file")).expect("a file") == bytes);
    let before = web.requests().len();
    run(&["check", "--offline", &url]);
    assert_eq!(web.requests().len(), before);
    assert!(run(&["cache"]).starts_with("sha256:"));
    assert!(run(&["cache", "--json"]).contains("\"held_bytes\":"));
    assert_eq!(run(&["cache", "--prune", "0"]), "");
    let message = run_to_fail(cached(cache.path()).args(["ls", "--offline", &url]));
    assert!(message.contains("--offline"), "{message}");
    // A fixed location needs no name.
    let fixed = run(&["fetch", &url]);
    let fixed = fixed.trim_end();
    assert!(fixed.contains("#sha256:"), "{fixed}");
    let before = web.requests().len();
    assert_eq!(run(&["cat", &format!("{fixed}:/small")]), "small\n");
    assert_eq!(web.requests().len(), before);
    let other = fixed.replace("#sha256:", "#sha256:0").chars().take(fixed.len()).collect::<String>();
    let message = run_to_fail(cached(cache.path()).args(["ls", &other]));
    assert!(message.contains("SHA-256"), "{message}");
}

#[test]
fn a_server_serves_and_forks_a_remote_disk() {
    let (folder, bytes) = images();
    let web = web(folder.path());
    let cache = TempDir::new().expect("a folder");
    let cache = cache.path().to_str().expect("a plain path");
    let server = Server::start(&["--memory-limit", "64M", "--chunk-cache", cache, &web.url("/disk.erofs")]);
    let opened = web.requests().len();
    assert!(opened < 10, "{opened}");
    output(&mut server.ask(&["fork", "disk", "job"]));
    let Some([nbdcopy]) = pagefold_testing::programs("remote", ["nbdcopy"]) else { return };
    for export in ["disk", "job"] {
        let copy = folder.path().join("copy");
        output(Command::new(&nbdcopy).arg(server.uri(export)).arg(&copy));
        assert!(fs::read(&copy).expect("a file") == bytes, "{export}");
    }
    let fetched: u64 =
        web.requests().iter().filter_map(|request| Some(request.range()?.end - request.range()?.start)).sum();
    assert!(fetched <= fs::metadata(folder.path().join("disk.erofs")).expect("a file").len(), "{fetched}");
    assert!(server.end(Signal::TERM).0.success());
}

/// Returns the ranges of the image of which the cache claims to have the chunks.
fn held(cache: &Path) -> Vec<Range<u64>> {
    let Some(blob) = fs::read_dir(cache.join("blobs")).ok().and_then(|mut blobs| blobs.next()) else {
        return Vec::new();
    };
    let blob = blob.expect("a blob").path();
    let (Ok(index), Ok(used)) = (fs::read(blob.join("index")), fs::read(blob.join("used"))) else { return Vec::new() };
    let index = pagefold_remote::Index::decode(&index, "index").expect("an index");
    let is_used = |chunk: &usize| used[chunk * 4..chunk * 4 + 4] != [0; 4];
    (0..index.len().min(used.len() / 4)).filter(is_used).map(|chunk| index.range(chunk)).collect()
}

/// A server that is killed while it fetches leaves a cache from which another one reads. What it has
/// stored is not asked for again.
fn killed_while_fetching(rounds: u64) {
    let (folder, bytes) = images();
    let path = folder.path().to_owned();
    let web = WebServer::start(move |request| match fs::read(path.join(request.path.trim_start_matches('/'))) {
        Ok(bytes) => Reply { delay: Duration::from_millis(3), ..Reply::file(request, &bytes) },
        Err(_) => Reply::status(404),
    });
    let cache = TempDir::new().expect("a folder");
    let (mut asked, mut starts) = (0, 0);
    for round in 0..rounds {
        let before = held(cache.path());
        let mut child = cached(cache.path()).args(["fetch", &web.url("/disk.erofs")]).spawn().expect("it starts");
        std::thread::sleep(Duration::from_millis(5 + 3 * (round * 7 % 16)));
        let _ = child.kill();
        child.wait().expect("it ends");
        let requests = web.requests().split_off(asked);
        asked += requests.len();
        for range in requests.iter().filter_map(|request| request.range()) {
            let twice = before.iter().find(|held| held.start < range.end && range.start < held.end);
            assert!(twice.is_none(), "round {round}: {range:?} although the cache has {twice:?}");
        }
        if !before.is_empty() && requests.iter().all(|request| request.range().is_none()) {
            // All of it is there, or it was killed too early. Begin again to be killed elsewhere.
            starts += 1;
            output(cached(cache.path()).args(["cache", "--prune", "0"]));
        }
    }
    assert!(starts < rounds);
    let file = output(cached(cache.path()).args(["ls", &web.url("/disk.erofs")]));
    let command = ["cat".to_owned(), format!("{}:/{}", web.url("/disk.erofs"), file.trim_end())];
    let copy = cached(cache.path()).args(command).output().expect("it starts");
    assert!(copy.stdout == bytes);
}

#[test]
fn a_server_that_is_killed_50_times_leaves_a_good_cache() {
    killed_while_fetching(50);
}

#[test]
#[ignore = "takes a minute; make soak runs it"]
fn a_server_that_is_killed_1000_times_leaves_a_good_cache() {
    killed_while_fetching(1000);
}

#[test]
fn errors_say_what_to_do() {
    let cache = TempDir::new().expect("a folder");
    for (name, what) in [
        ("https://user:secret@host/x", "password"),
        ("oci://host", "REPOSITORY"),
        ("s3://bucket", "BUCKET"),
        ("ftp://host/x", "https://"),
        ("http://192.0.2.1/x", "#sha256:"),
    ] {
        let message = run_to_fail(cached(cache.path()).args(["ls", name]));
        assert!(message.contains(what), "{message}");
    }
    let (folder, _) = images();
    let plain = web(folder.path());
    let nowhere = plain.url("/none:1").replace("http://", "oci://");
    let message = run_to_fail(cached(cache.path()).args(["ls", &nowhere]));
    assert!(message.contains("the registry has no such image: 404"), "{message}");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let _ = client.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
            let _ = client.read(&mut [0; 4096]);
        }
    });
    let message = run_to_fail(cached(cache.path()).args(["ls", &format!("https://{address}/tree.erofs")]));
    assert!(message.contains("the server does not use TLS, as https:// requires"), "{message}");
    let image = folder.path().join("tree.erofs");
    let message = run_to_fail(pagefold().arg("push").arg(&image).arg("https://host/x"));
    assert!(message.contains("pagefold index"), "{message}");
    let message = run_to_fail(pagefold().arg("push").arg(&image).args(["oci://127.0.0.1:1/x", "--offline"]));
    assert!(message.contains("--offline allows no requests"), "{message}");
    let message = run_to_fail(pagefold().arg("index").arg(&image).arg("-o").arg(&image));
    assert!(message.contains("input") || message.contains("the image"), "{message}");
    fs::remove_file(folder.path().join("tree.erofs.chunk-index")).expect("removed");
    let web = web(folder.path());
    let message = run_to_fail(cached(cache.path()).args(["ls", &web.url("/tree.erofs")]));
    assert!(message.contains("--unverified") && message.contains("pagefold index"), "{message}");
    assert_eq!(output(cached(cache.path()).args(["ls", "--unverified", &web.url("/tree.erofs")])), "file\nsmall\n");
}

/// A raw disk is read from afar as it is. For the rest, errors say what to do.
#[test]
fn disks_that_are_not_packed() {
    let (folder, bytes) = images();
    let at = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    for command in [vec!["index"], vec!["push"]] {
        let message = run_to_fail(pagefold().args(&command).arg(at("disk.img")).args(match command[0] {
            "push" => vec!["oci://127.0.0.1:1/x"],
            _ => Vec::new(),
        }));
        assert!(message.contains("disk.img is not an EROFS image"), "{message}");
    }
    let web = web(folder.path());
    let cache = TempDir::new().expect("a folder");
    let server = Server::start(&["--memory-limit", "64M", "--unverified", &web.url("/disk.img")]);
    if let Some([nbdcopy]) = pagefold_testing::programs("remote", ["nbdcopy"]) {
        output(Command::new(nbdcopy).arg(server.uri("disk")).arg(at("copy")));
        assert!(fs::read(at("copy")).expect("a file")[..bytes.len()] == bytes);
    }
    assert!(server.end(Signal::TERM).0.success());
    let Some([qemu_img]) = pagefold_testing::programs("remote", ["qemu-img"]) else { return };
    output(Command::new(qemu_img).args(["convert", "-O", "qcow2", &at("disk.img"), &at("disk.qcow2")]));
    let serve = ["serve", "--unverified", &web.url("/disk.qcow2")];
    let message = run_to_fail(cached(cache.path()).args(serve).arg("--dir").arg(folder.path()));
    assert!(message.contains("download it, or push what 'pagefold pack' makes of it"), "{message}");
}

/// Passwords and signatures do not appear in errors, whatever command gets the URL.
#[test]
fn errors_show_no_secret() {
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    fs::write(at("small"), "small").expect("a file");
    output(pagefold().args(["pack", &at("small"), "-o", &at("small.erofs")]));
    let server = Server::start(&["--memory-limit", "16M", "--size", "1M"]);
    for url in [
        "oci://user:s3cret@127.0.0.1:1/a",
        "oci://user:s3cret@127.0.0.1:1/a@sha256:0",
        "oci://user:s3cret@127.0.0.1:1",
        "https://user:s3cret@127.0.0.1:1",
        "https://user:s3cret@127.0.0.1:1/",
        "https://user:s3cret@127.0.0.1:1/x@sha256:00",
        "https://user:s3cret@127.0.0.1:1/x#sha256:00",
        "https://user:a/s3cret@127.0.0.1:1/x",
        "https://127.0.0.1:1/x?X-Amz-Signature=s3cret",
        "https://127.0.0.1:1/?X-Amz-Signature=s3cret",
        "ftp://user:s3cret@127.0.0.1:1/x",
        "s3://user:s3cret@bucket",
    ] {
        let (plain, out) = (at("small.erofs"), at("out"));
        for args in [
            &["ls", url][..],
            &["cat", url],
            &["info", url],
            &["check", url],
            &["extract", url, "-C", &out],
            &["mount", "-f", url, &out],
            &["fetch", url],
            &["push", &plain, url],
            &["serve", url],
            &["serve", &plain, "--device", url],
            &["ls", &plain, "--device", url],
        ] {
            let message = run_to_fail(cached(folder.path()).env("AWS_ENDPOINT_URL", "http://127.0.0.1:1").args(args));
            assert!(!message.contains("s3cret"), "{args:?}: {message}");
        }
        let message = run_to_fail(&mut server.ask(&["add", "other", "--base", url]));
        assert!(!message.contains("s3cret"), "{url}: {message}");
    }
}

/// What `fetch` leaves in the cache is all of the image, or it fails and says what is missing: the
/// limit is too low, the cache's disk is full, or nothing of the image can be kept.
#[test]
fn an_image_that_the_cache_cannot_hold_is_not_fetched() {
    const TEST: &str = "an_image_that_the_cache_cannot_hold_is_not_fetched";
    let (folder, _) = images();
    let web = web(folder.path());
    let url = web.url("/tree.erofs");
    let cache = folder.path().join("cache");
    let message = run_to_fail(cached(&cache).args(["fetch", "--chunk-cache-limit", "1M", &url]));
    let held =
        ["cache in ", text(&cache), "a limit of 1 MiB", "holds 0 B of 4", "MiB: give a larger --chunk-cache-limit"];
    assert!(held.iter().all(|part| message.contains(part)), "{message}");
    output(cached(&cache).args(["fetch", &url]));
    assert_eq!(output(cached(&cache).args(["cat", "--offline", &format!("{url}:/small")])), "small\n");
    // All of it is there.
    output(cached(&cache).args(["fetch", "--chunk-cache-limit", "1M", &url]));
    let unverified = ["fetch", "--unverified", &web.url("/disk.img")];
    let message = run_to_fail(cached(&cache).args(unverified));
    assert!(message.contains("keeps only images with a chunk index"), "{message}");
    if !rustix::process::geteuid().is_root() {
        return skip_for_good(TEST, "mounting needs root");
    }
    let Some([mount, umount]) = pagefold_testing::programs(TEST, ["mount", "umount"]) else { return };
    let full = folder.path().join("full");
    fs::create_dir(&full).expect("a folder");
    output(Command::new(mount).args(["-t", "tmpfs", "-osize=1m", "tmpfs"]).arg(&full));
    let message = run_to_fail(cached(&full).args(["fetch", &url]));
    output(Command::new(umount).arg("-l").arg(&full));
    let held = ["cache in ", text(&full), "a limit of 10 GiB", "No space left on device", "make room", "--chunk-cache"];
    assert!(held.iter().all(|part| message.contains(part)), "{message}");
}

/// A proxy, which may be another machine, does not stand between the program and this machine.
#[test]
fn no_proxy_for_this_machine() {
    let (folder, _) = images();
    let web = web(folder.path());
    let mut command = cached(&folder.path().join("cache"));
    command.envs([("HTTP_PROXY", "http://127.0.0.1:1"), ("ALL_PROXY", "http://127.0.0.1:1"), ("NO_PROXY", "")]);
    assert_eq!(output(command.args(["cat", &format!("{}:/small", web.url("/tree.erofs"))])), "small\n");
}

/// Each server gets its own password, and one without https on another machine gets none.
#[test]
fn passwords_go_to_their_servers() {
    let (folder, _) = images();
    let read = |name: &str| fs::read(folder.path().join(name)).expect("a file");
    let (image, index) = (read("disk.erofs"), read("disk.erofs.chunk-index"));
    let blob = [&image[..], &index].concat();
    let layer = serde_json::json!({
        "mediaType": "application/vnd.erofs", "digest": Sum::of(&blob).to_string(), "size": blob.len(),
        "annotations": {
            "org.erofs.chunk-index.range": format!("{}:{}", image.len(), blob.len()),
            "org.erofs.chunk-index.digest": Sum::of(&index).to_string(),
        },
    });
    let manifest = serde_json::json!({"schemaVersion": 2, "layers": [layer]}).to_string().into_bytes();
    let registry = |password: Option<&'static str>, has: Range<u64>| {
        let (blob, manifest) = (blob.clone(), manifest.clone());
        WebServer::start(move |request| {
            let given = request.headers.get("authorization").map(String::as_str);
            assert!(given.is_none() || given == password, "{given:?} is not for this server");
            match (given, request.range()) {
                (None, _) => Reply::status(401).with("www-authenticate", "Basic realm=\"x\""),
                (_, None) => Reply::file(request, &manifest),
                (_, Some(range)) if has.contains(&range.start) => Reply::file(request, &blob),
                _ => Reply::status(404),
            }
        })
    };
    // The mirror lacks the first part of the image.
    let origin = registry(Some("Basic dXNlcjpvbmU="), 0..u64::MAX);
    let mirror = registry(Some("Basic dXNlcjp0d28="), 1 << 20..u64::MAX);
    let plain = registry(None, 0..u64::MAX);
    let elsewhere = format!("0.0.0.0:{}", plain.address.port());
    let at = |name: &str| folder.path().join(name);
    let auths = serde_json::json!({"auths": {
        origin.address.to_string(): {"auth": "dXNlcjpvbmU="},
        mirror.address.to_string(): {"auth": "dXNlcjp0d28="},
        elsewhere.clone(): {"auth": "dXNlcjpzaXg="},
    }});
    fs::write(at("auth.json"), auths.to_string()).expect("a file");
    let conf = format!(
        "[[registry]]\nlocation = \"{}\"\nmirror = [{{ location = \"{}\" }}]\n",
        origin.address, mirror.address
    );
    fs::write(at("registries.conf"), conf).expect("a file");
    let hosts = at(&format!("hosts/{}", origin.address));
    fs::create_dir_all(&hosts).expect("a folder");
    fs::write(hosts.join("hosts.toml"), format!("[host.\"http://{elsewhere}\"]\n")).expect("a file");
    let mut command = cached(&at("cache"));
    command.env("REGISTRY_AUTH_FILE", at("auth.json")).env("CONTAINERS_REGISTRIES_CONF", at("registries.conf"));
    command.env("PAGEFOLD_HOSTS_DIR", at("hosts"));
    assert!(output(command.args(["fetch", &format!("oci://{}/a:1", origin.address)])).contains("@sha256:"));
    for server in [&origin, &mirror, &plain] {
        assert!(!server.requests().is_empty());
    }
}

/// A configuration that is named counts, also by a name in this directory.
#[test]
fn a_relative_registries_conf_counts() {
    let folder = TempDir::new().expect("a folder");
    let text = "[[registry]]\nlocation = \"blocked.example\"\nblocked = true\n";
    fs::write(folder.path().join("here.conf"), text).expect("a file");
    let mut ls = pagefold();
    ls.args(["ls", "oci://blocked.example/a"]).current_dir(&folder).env("CONTAINERS_REGISTRIES_CONF", "here.conf");
    let message = run_to_fail(&mut ls);
    assert!(message.contains("here.conf blocks blocked.example"), "{message}");
}

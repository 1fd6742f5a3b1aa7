//! Registries: one that tests direct, and a real one.

use std::{
    collections::HashMap,
    fs::{self, File},
    net::{SocketAddr, TcpListener},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use pagefold_remote::{Cache, Clusters, Location, Options, Pushed, Sum, open, push};
use pagefold_storage::Storage;
use pagefold_testing::web::{Reply, Request, Server};

use crate::reading::{bytes, compare, opened};

fn pushed(path: &Path, location: &str) -> Pushed {
    let file = File::open(path).expect("a file");
    let location = Location::parse(location).expect("a location");
    push(&file, "x", &Clusters::default(), &location, &Options::default()).expect("pushed")
}

fn image_file(folder: &Path, image: &[u8]) -> std::path::PathBuf {
    let path = folder.join("image");
    fs::write(&path, image).expect("a file");
    path
}

#[derive(Default)]
struct Contents {
    blobs: HashMap<String, Vec<u8>>,
    manifests: HashMap<String, Vec<u8>>,
    links: u32,
}

/// A registry whose tokens are valid for few requests, and which sends blobs from elsewhere.
fn registry(contents: Arc<Mutex<Contents>>, elsewhere: String, requests_of_a_token: u64) -> Server {
    let issued = AtomicU64::new(0);
    let used = AtomicU64::new(0);
    Server::start(move |request| {
        if let Some(query) = request.path.strip_prefix("/token?") {
            assert!(query.contains("service=here") && query.contains("scope=repository%3Aa%2Fb%3Apull"), "{query}");
            used.store(0, Relaxed);
            let token = issued.fetch_add(1, Relaxed) + 1;
            return Reply { body: format!("{{\"token\":\"t{token}\"}}").into(), ..Reply::status(200) };
        }
        let host = &request.headers["host"];
        let token = format!("Bearer t{}", issued.load(Relaxed));
        let known = request.headers.get("authorization") == Some(&token);
        if !known || used.fetch_add(1, Relaxed) >= requests_of_a_token {
            let challenge =
                format!("Bearer realm=\"http://{host}/token\",service=\"here\",scope=\"repository:a/b:pull\"");
            return Reply::status(401).with("www-authenticate", challenge);
        }
        answer(request, &mut contents.lock().expect("not poisoned"), &elsewhere)
    })
}

fn answer(request: &Request, contents: &mut Contents, elsewhere: &str) -> Reply {
    let Some(rest) = request.path.strip_prefix("/v2/a/b/") else { return Reply::status(404) };
    let (kind, name) = rest.split_once('/').expect("a kind");
    match (&*request.method, kind, name) {
        ("POST", "blobs", "uploads/") => Reply::status(202).with("location", "/v2/a/b/blobs/uploads/1?state=x"),
        ("PUT", "blobs", name) => {
            let digest = name.split_once("digest=").expect("a digest").1.replace("%3A", ":");
            assert_eq!(Sum::of(&request.body).to_string(), digest);
            contents.blobs.insert(digest, request.body.clone());
            Reply::status(201)
        }
        ("PUT", "manifests", name) => {
            contents.manifests.insert(Sum::of(&request.body).to_string(), request.body.clone());
            contents.manifests.insert(name.to_owned(), request.body.clone());
            Reply::status(201)
        }
        ("GET", "manifests", name) => {
            contents.manifests.get(name).map_or(Reply::status(404), |bytes| Reply::file(request, bytes))
        }
        ("HEAD", "blobs", name) => Reply::status(if contents.blobs.contains_key(name) { 200 } else { 404 }),
        ("GET", "blobs", name) => {
            contents.links += 1;
            let link = contents.links;
            Reply::status(307).with("location", format!("{elsewhere}/{name}?signature=secret{link}"))
        }
        _ => Reply::status(405),
    }
}

/// Pushing sends what the registry lacks. Reading follows redirects without the token, renews it, and
/// asks for the way again when a link has expired.
#[test]
fn tokens_and_redirects() {
    let contents = Arc::<Mutex<Contents>>::default();
    let blobs = Arc::clone(&contents);
    let uses = Mutex::new(HashMap::<String, u32>::new());
    let elsewhere = Server::start(move |request| {
        assert!(!request.headers.contains_key("authorization"), "a token went elsewhere");
        let mut uses = uses.lock().expect("not poisoned");
        let uses = uses.entry(request.path.clone()).or_default();
        *uses += 1;
        if *uses > 7 {
            return Reply::status(403);
        }
        let digest = request.path.trim_start_matches('/').split('?').next().expect("a path");
        Reply::file(request, &blobs.lock().expect("not poisoned").blobs[digest])
    });
    let server = registry(Arc::clone(&contents), elsewhere.url(""), 20);
    let folder = tempfile::tempdir().expect("a folder");
    let image = bytes(2_000_000, 1);
    let path = image_file(folder.path(), &image);
    let location = format!("oci://{}/a/b:1", server.address);
    let first = pushed(&path, &location);
    assert_eq!(first.bytes, first.sent_bytes);
    let second = pushed(&path, &location);
    assert!(second.sent_bytes < 2000 && second.fixed == first.fixed, "{second:?}");

    let cache = Arc::new(Cache::open(&folder.path().join("cache"), 1 << 30).expect("a cache"));
    let remote = opened(&location, |options| options.cache = Some(Arc::clone(&cache)));
    assert_eq!((remote.fixed(), remote.extension()), (Some(&first.fixed), Some("erofs")));
    compare(&image, &remote, 1, 10);
    remote.blob().fetch_all(&mut |_| {}).expect("all of it");
    let requests = server.requests().len() + elsewhere.requests().len();
    let warm = opened(&first.fixed.to_string(), |options| options.cache = Some(Arc::clone(&cache)));
    compare(&image, &warm, 2, 5);
    assert_eq!(server.requests().len() + elsewhere.requests().len(), requests);
    // A link is followed until it expires: the registry is not asked for each range.
    let asked = server.requests().iter().filter(|request| request.path.contains("/blobs/sha256")).count();
    assert!(asked < elsewhere.requests().len(), "{asked}");
}

#[test]
fn errors_show_neither_tokens_nor_signatures() {
    let contents = Arc::<Mutex<Contents>>::default();
    let elsewhere = Server::start(|_| Reply::status(404));
    let server = registry(Arc::clone(&contents), elsewhere.url(""), 100);
    let folder = tempfile::tempdir().expect("a folder");
    let path = image_file(folder.path(), &bytes(100_000, 1));
    let location = format!("oci://{}/a/b:1", server.address);
    pushed(&path, &location);
    let mut options = Options::default();
    options.patience = Duration::from_secs(1);
    let Err(error) = open(&Location::parse(&location).expect("a location"), &options) else { panic!("no index") };
    let text = format!("{error} {error:?}");
    assert!(text.contains("404") && !text.contains("secret") && !text.contains("t1"), "{text}");
}

/// A registry that sends other bytes than the manifest's sum says.
#[test]
fn changed_manifests_are_refused() {
    let contents = Arc::<Mutex<Contents>>::default();
    let server = registry(Arc::clone(&contents), String::new(), 100);
    let folder = tempfile::tempdir().expect("a folder");
    let fixed = pushed(&image_file(folder.path(), &bytes(50_000, 1)), &format!("oci://{}/a/b:1", server.address)).fixed;
    contents.lock().expect("not poisoned").manifests.values_mut().for_each(|bytes| bytes.push(b' '));
    let Err(error) = open(&fixed, &Options::default()) else { panic!("refused") };
    assert!(error.to_string().contains("manifest differs from its SHA-256"), "{error}");
}

/// Debian's registry, in a folder of its own.
pub(crate) struct Running(Child, #[expect(dead_code, reason = "removed on drop")] tempfile::TempDir);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts Debian's registry.
pub(crate) fn started_registry(test: &str) -> Option<(Running, SocketAddr)> {
    let [program] = pagefold_testing::programs(test, ["docker-registry"])?;
    let folder = tempfile::tempdir().expect("a folder");
    let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
    let config = folder.path().join("config.yml");
    let root = folder.path().join("root");
    let text = format!(
        "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: {address}}}\n",
        root.display()
    );
    fs::write(&config, text).expect("a file");
    let started = Command::new(program).arg("serve").arg(&config).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let running = Running(started.expect("a registry"), folder);
    while std::net::TcpStream::connect(address).is_err() {
        thread::sleep(Duration::from_millis(20));
    }
    Some((running, address))
}

#[test]
fn docker_registry() {
    let Some((_running, address)) = started_registry("docker_registry") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let image = bytes(3_000_000, 4);
    let path = image_file(folder.path(), &image);
    let location = format!("oci://{address}/disks/debian:13");
    let first = pushed(&path, &location);
    assert!(first.sent_bytes > 3_000_000);
    assert!(pushed(&path, &location).sent_bytes < 2000);
    for location in [location, first.fixed.to_string()] {
        compare(&image, &opened(&location, |_| {}), 5, 10);
    }
}

/// Devices are part of what an image is, and their indexes share one bound.
#[test]
fn images_with_devices() {
    let contents = Arc::<Mutex<Contents>>::default();
    let blobs = Arc::clone(&contents);
    let elsewhere = Server::start(move |request| {
        let digest = request.path.trim_start_matches('/').split('?').next().expect("a path");
        Reply::file(request, &blobs.lock().expect("not poisoned").blobs[digest])
    });
    let server = registry(Arc::clone(&contents), elsewhere.url(""), 1000);
    let folder = tempfile::tempdir().expect("a folder");
    let place = |tag: &str| format!("oci://{}/a/b:{tag}", server.address);
    let images = [bytes(100_000, 5), bytes(50_000, 6)];
    let layers = [0, 1].map(|number| {
        pushed(&image_file(folder.path(), &images[number]), &place(&number.to_string()));
        let manifest = contents.lock().expect("not poisoned").manifests[&number.to_string()].clone();
        let manifest: serde_json::Value = serde_json::from_slice(&manifest).expect("a manifest");
        manifest["layers"][0].clone()
    });
    let [image, mut device] = layers;
    device["annotations"]["org.erofs.role"] = "device".into();
    let store = |tag: &str, layers: &[&serde_json::Value]| {
        let manifest = serde_json::json!({"schemaVersion": 2, "layers": layers}).to_string();
        contents.lock().expect("not poisoned").manifests.insert(tag.to_owned(), manifest.into());
    };
    store("both", &[&device, &image]);
    let both = opened(&place("both"), |_| {});
    compare(&images[0], &both, 1, 3);
    let [found] = &both.devices().expect("devices")[..] else { panic!("one device") };
    assert_eq!(both.identity(), format!("{}+{}", opened(&place("0"), |_| {}).identity(), found.identity()));

    let index = serde_json::json!({
        "mediaType": "application/vnd.erofs.chunk-index.v1", "digest": Sum::of(b"x").to_string(), "size": 64 << 20,
    });
    device["annotations"].as_object_mut().expect("annotations").remove("org.erofs.chunk-index.range");
    store("long", &[&device, &index, &image]);
    let requests = elsewhere.requests().len();
    let Err(error) = open(&Location::parse(&place("long")).expect("a location"), &Options::default()) else {
        panic!("refused")
    };
    assert!(error.to_string().contains("64 MiB together"), "{error}");
    assert!(elsewhere.requests().len() <= requests + 1);
}

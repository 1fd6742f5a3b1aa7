//! Registries: one that tests direct, and a real one.

use std::{
    collections::HashMap,
    fs::{self, File},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use pagefold_remote::{
    Cache, Clusters, LayerFile, Location, MediaTypes, Options, Part, PushOptions, Pushed, Sum, check, open, push,
    push_trace,
};
use pagefold_storage::{ReadAt, Storage};
use pagefold_testing::{
    registry::Registry,
    web::{Reply, Request, Server},
};

use crate::reading::{bytes, compare, opened};

pub(crate) fn pushed(path: &Path, location: &str) -> Pushed {
    stored(&image_part(path), &[], location)
}

fn image_part(path: &Path) -> Part {
    let file = Arc::new(File::open(path).expect("a file"));
    Part::of_image(file, &Clusters::default()).expect("a part")
}

fn stored(image: &Part, devices: &[Part], location: &str) -> Pushed {
    let location = Location::parse(location).expect("a location");
    push(image, devices, &location, &PushOptions::default()).expect("pushed")
}

fn image_file(folder: &Path, image: &[u8]) -> std::path::PathBuf {
    let path = folder.join("image");
    fs::write(&path, image).expect("a file");
    path
}

#[derive(Default)]
pub(crate) struct Contents {
    pub(crate) blobs: HashMap<String, Vec<u8>>,
    pub(crate) manifests: HashMap<String, Vec<u8>>,
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

/// A server of blobs that a registry leads to.
pub(crate) fn store(contents: Arc<Mutex<Contents>>) -> Server {
    Server::start(move |request| {
        let digest = request.path.trim_start_matches('/').split('?').next().expect("a path");
        Reply::file(request, &contents.lock().expect("not poisoned").blobs[digest])
    })
}

pub(crate) fn answer(request: &Request, contents: &mut Contents, elsewhere: &str) -> Reply {
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
        ("HEAD", "manifests", name) => match contents.manifests.get(name) {
            Some(bytes) => Reply::status(200).with("docker-content-digest", Sum::of(bytes)),
            None => Reply::status(404),
        },
        ("HEAD", "blobs", name) => Reply::status(if contents.blobs.contains_key(name) { 200 } else { 404 }),
        ("GET", "blobs", name) => {
            contents.links += 1;
            let link = contents.links;
            Reply::status(307).with("location", format!("{elsewhere}/{name}?signature=secret{link}"))
        }
        _ => Reply::status(405),
    }
}

/// A tag that means the same as before costs a question, not a manifest: some registries limit these. One
/// that means something else is noticed.
#[test]
fn a_tag_is_asked_for() {
    let contents = Arc::<Mutex<Contents>>::default();
    let elsewhere = store(Arc::clone(&contents));
    let (inner, link) = (Arc::clone(&contents), elsewhere.url(""));
    let server = Server::start(move |request| answer(request, &mut inner.lock().expect("not poisoned"), &link));
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("oci://{}/a/b:1", server.address);
    let cache = Arc::new(Cache::open(&folder.path().join("cache"), 1 << 30).expect("a cache"));
    let open = || opened(&url, |options| options.cache = Some(Arc::clone(&cache)));
    for seed in [1, 2] {
        let image = bytes(100_000, seed);
        let fixed = pushed(&image_file(folder.path(), &image), &url).fixed;
        compare(&image, &open(), 1, 3);
        let all = || server.requests().len() + elsewhere.requests().len();
        let before = all();
        let remote = open();
        assert_eq!(remote.fixed(), Some(&fixed));
        remote.read_exact_at(&mut vec![0; 100_000], 0).expect("a read");
        assert_eq!((all() - before, &*server.requests().last().expect("a request").method), (1, "HEAD"));
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
    let is_read = |request: &&Request| request.method == "GET" && request.path.contains("/blobs/sha256");
    let (asked, followed) = (server.requests().iter().filter(is_read).count(), elsewhere.requests().len());
    assert!(asked < followed, "{asked} of {followed}");
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
    // A trace is not stored with a changed manifest either, even if only a list refers to it.
    let Location::Oci(reference) = &fixed else { panic!("a registry") };
    let architecture = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
    let list = serde_json::json!({"schemaVersion": 2, "manifests": [{
        "digest": reference.manifest.expect("a sum").to_string(), "size": 1,
        "platform": {"architecture": architecture, "os": "linux"},
    }]});
    contents.lock().expect("not poisoned").manifests.insert("list".to_owned(), list.to_string().into());
    let trace = folder.path().join("trace");
    fs::write(&trace, b"pgftrac1\0\0\0\0\0\0\0\0").expect("a file");
    let requests = || server.requests().iter().filter(|request| request.method != "GET").count();
    let before = requests();
    for location in [fixed.to_string(), format!("oci://{}/a/b:list", server.address)] {
        let (trace, location) = (File::open(&trace).expect("a file"), Location::parse(&location).expect("a location"));
        let error = push_trace(&trace, "x", &location, &PushOptions::default()).expect_err("refused");
        assert!(error.to_string().contains("manifest differs from its SHA-256"), "{error}");
    }
    assert_eq!(requests(), before);
}

#[test]
fn docker_registry() {
    let Some(registry) = Registry::start("docker_registry") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let image = bytes(3_000_000, 4);
    let path = image_file(folder.path(), &image);
    let location = registry.url("disks/debian:13");
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
    let elsewhere = store(Arc::clone(&contents));
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
    let add = |tag: &str, layers: &[&serde_json::Value]| {
        let manifest = serde_json::json!({"schemaVersion": 2, "layers": layers}).to_string();
        contents.lock().expect("not poisoned").manifests.insert(tag.to_owned(), manifest.into());
    };
    add("both", &[&device, &image]);
    let both = opened(&place("both"), |_| {});
    compare(&images[0], &both, 1, 3);
    let [found] = &both.devices().expect("devices")[..] else { panic!("one device") };
    assert_eq!(both.identity(), format!("{}+{}", opened(&place("0"), |_| {}).identity(), found.identity()));

    let index = serde_json::json!({
        "mediaType": "application/vnd.erofs.chunk-index.v1", "digest": Sum::of(b"x").to_string(), "size": 64 << 20,
    });
    device["annotations"].as_object_mut().expect("annotations").remove("org.erofs.chunk-index.range");
    add("long", &[&device, &index, &image]);
    let requests = elsewhere.requests().len();
    let Err(error) = open(&Location::parse(&place("long")).expect("a location"), &Options::default()) else {
        panic!("refused")
    };
    assert!(error.to_string().contains("64 MiB together"), "{error}");
    assert!(elsewhere.requests().len() <= requests + 1);
}

/// What a registry has in another repository is taken over there, with a token for both. Where that is
/// refused, and from other registries, it is sent.
#[test]
fn devices_that_a_registry_has_are_not_sent() {
    let contents = Arc::<Mutex<Contents>>::default();
    let elsewhere = store(Arc::clone(&contents));
    let inner = Arc::clone(&contents);
    let link = elsewhere.url("");
    let is_refused = Arc::new(AtomicBool::new(false));
    let refuses = Arc::clone(&is_refused);
    let server = Server::start(move |request| {
        let host = &request.headers["host"];
        if let Some(query) = request.path.strip_prefix("/token?") {
            return Reply {
                body: format!("{{\"token\":\"{}\"}}", query.matches("scope=").count()).into(),
                ..Reply::status(200)
            };
        }
        let Some((_, query)) = request.path.split_once("?mount=") else {
            if request.method == "HEAD" && request.path.starts_with("/v2/c/d/") {
                return Reply::status(404);
            }
            let path = request.path.replace("/v2/c/d/", "/v2/a/b/");
            return answer(&Request { path, ..request.clone() }, &mut inner.lock().expect("not poisoned"), &link);
        };
        assert!(query.ends_with("&from=a%2Fb"), "{query}");
        if refuses.load(Relaxed) {
            return Reply::status(403);
        }
        if request.headers.get("authorization").map(String::as_str) != Some("Bearer 2") {
            let challenge =
                format!("Bearer realm=\"http://{host}/token\",scope=\"repository:c/d:pull,push repository:a/b:pull\"");
            return Reply::status(401).with("www-authenticate", challenge);
        }
        Reply::status(201)
    });
    let folder = tempfile::tempdir().expect("a folder");
    let base = bytes(400_000, 7);
    let fixed = pushed(&image_file(folder.path(), &base), &format!("oci://{}/a/b:base", server.address)).fixed;
    let image = bytes(50_000, 8);
    let image = image_part(&image_file(folder.path(), &image));
    // What a tag leads to only says of itself which blob it is.
    let tagged = opened(&format!("oci://{}/a/b:base", server.address), |_| {});
    assert_eq!(tagged.blob_sha256(), None);
    let base = opened(&fixed.to_string(), |_| {});
    let device = || [Part::of_remote(&base).expect("a layer")];
    assert_eq!(base.blob_sha256(), Some(device()[0].sum().into()));
    let first = stored(&image, &device(), &format!("oci://{}/c/d:1", server.address));
    assert!(first.sent_bytes < 60_000 && first.bytes > 450_000, "{first:?}");
    // The part is sent from the registry that has it.
    is_refused.store(true, Relaxed);
    let again = stored(&image, &device(), &format!("oci://{}/c/d:2", server.address));
    assert!(again.sent_bytes > 400_000, "{again:?}");
    let Some(other) = Registry::start("devices_that_a_registry_has_are_not_sent") else { return };
    let copied = stored(&image, &device(), &other.url("x/y:1"));
    assert_eq!(copied.bytes, copied.sent_bytes);
    let opened = opened(&copied.fixed.to_string(), |_| {});
    let devices = opened.devices().expect("devices");
    assert_eq!(devices[0].blob_sha256(), base.blob_sha256());
    let mut found = vec![0; 400_000];
    devices[0].read_exact_at(&mut found, 0).expect("a read");
    let mut expected = vec![0; 400_000];
    base.read_exact_at(&mut expected, 0).expect("a read");
    assert!(found == expected);
}

/// A blob that ends with its index is not given another one. One without, which a device table names
/// by its sum, gets an index of its own.
#[test]
fn blobs_stay_as_they_are() {
    let Some(registry) = Registry::start("blobs_stay_as_they_are") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let blob = bytes(100_000, 9);
    let image = image_part(&image_file(folder.path(), &bytes(50_000, 8)));
    let sum: [u8; 32] = Sum::of(&blob).into();
    let tag: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
    let tag = tag.as_bytes().try_into().expect("64 digits");
    let device = || Part::of_device(Arc::new(blob.clone()), tag, &Clusters::default()).expect("a part");
    assert_eq!(device().sum(), Sum::of(&blob));
    let mut options = PushOptions::default();
    for (media_types, expected) in
        [(MediaTypes::Spec, "application/vnd.erofs"), (MediaTypes::Containerd, "application/vnd.erofs.layer.v1")]
    {
        options.media_types = media_types;
        let location = Location::parse(&registry.url("x/y:1")).expect("a location");
        let Location::Oci(fixed) = push(&image, &[device()], &location, &options).expect("pushed").fixed else {
            panic!("a registry")
        };
        let manifest = fs::read(registry.blob(&fixed.manifest.expect("a sum").to_string())).expect("a manifest");
        let manifest: serde_json::Value = serde_json::from_slice(&manifest).expect("a manifest");
        let kinds: Vec<_> =
            (0..3).map(|layer| manifest["layers"][layer]["mediaType"].as_str().expect("a type")).collect();
        assert_eq!(kinds, [expected, "application/vnd.erofs.chunk-index.v1", expected]);
        let config = fs::read(registry.blob(manifest["config"]["digest"].as_str().expect("a sum"))).expect("a file");
        let config: serde_json::Value = serde_json::from_slice(&config).expect("a configuration");
        // containerd compares the number of sums with that of the layers that it knows.
        let is_counted = |layer: &&serde_json::Value| media_types == MediaTypes::Spec || layer["mediaType"] == expected;
        let layers = manifest["layers"].as_array().expect("layers").iter().filter(is_counted);
        let sums: serde_json::Value = layers.map(|layer| layer["digest"].clone()).collect();
        assert_eq!(config["rootfs"]["diff_ids"], sums);
        let remote = opened(&registry.url("x/y:1"), |_| {});
        let devices = remote.devices().expect("devices");
        let mut found = vec![0; blob.len()];
        devices[0].read_exact_at(&mut found, 0).expect("a read");
        assert!(found == blob && devices[0].blob_sha256() == Some(sum));
    }
    let many: Vec<_> = (0..65).map(|_| device()).collect();
    let location = Location::parse(&registry.url("x/y:2")).expect("a location");
    let error = push(&image, &many, &location, &options).expect_err("too many").to_string();
    assert!(error.contains("65 devices, and at most 64 can be read"), "{error}");
    assert_eq!(check(None, &many, &location).expect_err("too many").to_string(), error);
    check(None, &many[1..], &location).expect("as many as can be read");
}

/// A manifest may give the sum of one layer, and the chunk index of another: containerd would use what
/// is stored under that sum for all images with the layer.
#[test]
fn layers_of_another_sum_are_refused() {
    let contents = Arc::<Mutex<Contents>>::default();
    let elsewhere = store(Arc::clone(&contents));
    let server = registry(Arc::clone(&contents), elsewhere.url(""), 1000);
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("oci://{}/a/b:1", server.address);
    let image = bytes(100_001, 5);
    pushed(&image_file(folder.path(), &image), &url);
    let written = || {
        let remote = opened(&url, |_| {});
        let layer = LayerFile::of(&remote).expect("a layer");
        let (path, file) = (layer.path(), tempfile::tempfile().expect("a file"));
        let text = layer.write(&file, &Options::default(), &mut |_| {});
        (path, text, layer.size_bytes())
    };
    let (path, text, size_bytes) = written();
    let place: serde_json::Value = serde_json::from_str(&text.expect("written")).expect("JSON");
    assert_eq!(place["hashoffset"], size_bytes.next_multiple_of(4096));
    let digits = "ab".repeat(32);
    {
        let mut contents = contents.lock().expect("not poisoned");
        let manifest: serde_json::Value = serde_json::from_slice(&contents.manifests["1"]).expect("a manifest");
        let digest = manifest["layers"][0]["digest"].as_str().expect("a sum");
        assert_eq!(path, Path::new(&format!("sha256/{}/{}.erofs", &digest[7..9], &digest[7..])));
        let (blob, manifest) = (contents.blobs[digest].clone(), manifest.to_string().replace(&digest[7..], &digits));
        contents.blobs.insert(format!("sha256:{digits}"), blob);
        contents.manifests.insert("1".to_owned(), manifest.into());
    }
    let (path, text, _) = written();
    assert_eq!(path, Path::new(&format!("sha256/ab/{digits}.erofs")));
    assert!(text.expect_err("refused").to_string().contains("differs from its SHA-256 sum"));
}

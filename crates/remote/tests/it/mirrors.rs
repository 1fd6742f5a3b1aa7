//! Mirrors of registries: they spare the registry requests, and cannot do harm.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use pagefold_remote::{Cache, Clusters, Error, Location, Mirrors, Options, Part, PushOptions, open, push, push_trace};
use pagefold_testing::web::{Reply, Request, Server};
use proptest::prelude::*;
use tempfile::TempDir;

use crate::{
    reading::{bytes, compare, opened},
    registries::{Contents, answer, pushed, store},
    traces,
};

/// What is wrong with a mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    Empty,
    Failing,
    Refusing,
    /// Its responses end early.
    Cut,
    WrongBytes,
    /// It ignores ranges.
    Whole,
    /// It sends other manifests.
    WrongManifests,
    /// No server listens.
    Gone,
    /// It accepts requests for blobs, and sends nothing.
    Silent,
}

use Fault::{Cut, Empty, Failing, Gone, Refusing, Silent, Whole, WrongBytes, WrongManifests};

/// A registry without tokens, and what is in it. It does not answer once it is out.
struct Origin {
    server: Server,
    contents: Arc<Mutex<Contents>>,
    is_out: Arc<AtomicBool>,
    _links: Server,
}

impl Origin {
    fn new() -> Self {
        let contents = Arc::<Mutex<Contents>>::default();
        let links = store(Arc::clone(&contents));
        let (inner, link, is_out) = (Arc::clone(&contents), links.url(""), Arc::new(AtomicBool::new(false)));
        let out = Arc::clone(&is_out);
        let server = Server::start(move |request| match out.load(Relaxed) {
            true => Reply::status(404),
            false => answer(request, &mut inner.lock().expect("not poisoned"), &link),
        });
        Self { server, contents, is_out, _links: links }
    }

    fn url(&self, tag: &str) -> String {
        format!("oci://{}/a/b:{tag}", self.server.address)
    }

    fn gets(&self) -> usize {
        self.server.requests().iter().filter(|request| request.method == "GET").count()
    }

    /// Starts a mirror of it.
    fn mirror(&self, fault: Fault) -> Server {
        let (contents, namespace) = (Arc::clone(&self.contents), format!("?ns={}", self.server.address));
        Server::start(move |request| {
            let path = request.path.replace("%3A", ":");
            let path = path.strip_suffix(&namespace).expect("the registry's name");
            assert_eq!(request.method, "GET");
            mirrored(fault, request, path, &contents.lock().expect("not poisoned"))
        })
    }

    /// Returns a folder with `hosts.toml` that names these mirrors.
    fn hosts(&self, mirrors: &[String]) -> TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        hosts(folder.path(), &self.server, mirrors);
        folder
    }
}

fn mirrored(fault: Fault, request: &Request, path: &str, contents: &Contents) -> Reply {
    let rest = path.strip_prefix("/v2/a/b/").expect("the repository");
    let (kind, name) = rest.split_once('/').expect("a kind");
    let found = if kind == "manifests" { contents.manifests.get(name) } else { contents.blobs.get(name) };
    let mut reply = found.map_or(Reply::status(404), |bytes| Reply::file(request, bytes));
    match fault {
        Empty => Reply::status(404),
        Failing => Reply::status(503).with("retry-after", 1000),
        Refusing => Reply::status(401).with("www-authenticate", "Basic realm=\"x\""),
        Cut => Reply { cut: Some(reply.body.len() / 2), ..reply },
        WrongBytes if kind == "blobs" => {
            reply.body.iter_mut().for_each(|byte| *byte ^= 1);
            reply
        }
        Whole if kind == "blobs" => Reply { body: contents.blobs[name].clone(), ..Reply::status(200) },
        WrongManifests if kind == "manifests" => Reply { body: b"{}".to_vec(), ..reply },
        Silent if kind == "blobs" => Reply { delay: Duration::from_secs(600), ..reply },
        _ => reply,
    }
}

fn hosts(folder: &Path, registry: &Server, mirrors: &[String]) {
    let directory = folder.join(format!("{}_{}_", registry.address.ip(), registry.address.port()));
    fs::create_dir(&directory).expect("a folder");
    let host = |url: &String| format!("[host.\"{url}\"]\ncapabilities = [\"pull\", \"resolve\"]\n");
    fs::write(directory.join("hosts.toml"), mirrors.iter().map(host).collect::<String>()).expect("a file");
}

fn with(hosts: &TempDir) -> impl Fn(&mut Options) + use<> {
    let hosts = hosts.path().to_owned();
    move |options| options.mirrors = Arc::new(Mirrors::of_files(Vec::new(), Some(hosts.clone())))
}

fn fault() -> impl Strategy<Value = Fault> {
    proptest::sample::select(vec![Fault::None, Empty, Failing, Refusing, Cut, WrongBytes, Whole, WrongManifests, Gone])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Whatever is wrong with mirrors, reads get the right bytes. What a sound mirror has is not
    /// requested from those after it.
    #[test]
    fn mirrors_are_tried_in_order(seed in any::<u32>(), faults in proptest::collection::vec(fault(), 1..5)) {
        let origin = Origin::new();
        let image = bytes(700_000, u64::from(seed));
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        fs::write(&path, &image).expect("a file");
        let fixed = pushed(&path, &origin.url("1")).fixed;
        let before = origin.gets();
        let mirrors: Vec<_> = faults.iter().map(|fault| (*fault, origin.mirror(*fault))).collect();
        let urls: Vec<_> = mirrors.iter().zip(1..).map(|((fault, mirror), port)| match fault {
            Gone => format!("http://127.0.0.1:{port}"),
            _ => mirror.url(""),
        }).collect();
        let hosts = origin.hosts(&urls);
        let remote = opened(&fixed.to_string(), with(&hosts));
        compare(&image, &remote, u64::from(seed), 3);
        let first = |of: &[Fault]| faults.iter().position(|fault| of.contains(fault));
        let manifests = first(&[Fault::None, WrongBytes, Whole]);
        let blobs = first(&[Fault::None, WrongManifests]);
        if let Some(last) = manifests.zip(blobs).map(|(one, other)| one.max(other)) {
            prop_assert!(mirrors[last + 1..].iter().all(|(_, mirror)| mirror.requests().is_empty()));
            prop_assert_eq!(origin.gets(), before);
        }
        for (fault, mirror) in &mirrors {
            // A mirror that failed is not asked for every range; one that sent wrong bytes is not asked again.
            let asked = mirror.requests().iter().filter(|request| request.path.contains("/blobs/")).count();
            prop_assert!(asked <= 40 || matches!(fault, Fault::None | WrongManifests), "{fault:?}: {asked}");
        }
    }
}

/// A registry that is out of reach is not missed: a mirror knows what a tag means, and has all blobs.
#[test]
fn a_mirror_stands_in_for_its_registry() {
    let origin = Origin::new();
    let image = bytes(300_000, 1);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("file");
    fs::write(&path, &image).expect("a file");
    let fixed = pushed(&path, &origin.url("1")).fixed;
    origin.is_out.store(true, Relaxed);
    let mirror = origin.mirror(Fault::None);
    let hosts = origin.hosts(&[mirror.url("")]);
    let remote = opened(&origin.url("1"), with(&hosts));
    assert_eq!(remote.fixed(), Some(&fixed));
    compare(&image, &remote, 1, 5);
}

/// By http from elsewhere, a mirror is believed what has a sum, but not what a tag means.
#[test]
fn mirrors_without_https_say_nothing_of_tags() {
    let origin = Origin::new();
    let images = [bytes(300_000, 2), bytes(300_000, 3)];
    let folder = tempfile::tempdir().expect("a folder");
    for (tag, image) in ["new", "old"].iter().zip(&images) {
        fs::write(folder.path().join(tag), image).expect("a file");
        pushed(&folder.path().join(tag), &origin.url(tag));
    }
    // The mirror gives an older image the tag.
    let mut contents = Contents::default();
    {
        let now = origin.contents.lock().expect("not poisoned");
        contents.blobs.clone_from(&now.blobs);
        contents.manifests.clone_from(&now.manifests);
        contents.manifests.insert("new".to_owned(), now.manifests["old"].clone());
    }
    let mirror = Server::start(move |request| {
        let path = request.path.split('?').next().expect("a path");
        mirrored(Fault::None, request, path, &contents)
    });
    // An address of this machine that is not one of its loopback addresses.
    let hosts = origin.hosts(&[format!("http://0.0.0.0:{}", mirror.address.port())]);
    compare(&images[0], &opened(&origin.url("new"), with(&hosts)), 1, 5);
    assert!(mirror.requests().iter().any(|request| request.path.contains("/blobs/")));
    assert!(mirror.requests().iter().all(|request| !request.path.contains("/manifests/new")));
    let ranges = origin.server.requests().iter().filter(|request| request.path.contains("/blobs/sha256")).count();
    assert_eq!(ranges, origin.server.requests().iter().filter(|request| request.method == "HEAD").count());
    // On this machine, the mirror is believed.
    let hosts = origin.hosts(&[mirror.url("")]);
    compare(&images[1], &opened(&origin.url("new"), with(&hosts)), 1, 5);
}

/// Mirrors that all send wrong bytes are an error only if the registry does, too.
#[test]
fn wrong_bytes_from_everywhere() {
    let origin = Origin::new();
    let image = bytes(300_000, 4);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("file");
    fs::write(&path, &image).expect("a file");
    let fixed = pushed(&path, &origin.url("1")).fixed;
    let mirrors: Vec<_> = (0..6).map(|_| origin.mirror(WrongBytes)).collect();
    let hosts = origin.hosts(&mirrors.iter().map(|mirror| mirror.url("")).collect::<Vec<_>>());
    compare(&image, &opened(&fixed.to_string(), with(&hosts)), 1, 3);
    origin.contents.lock().expect("not poisoned").blobs.values_mut().for_each(|blob| blob.fill(0));
    let mut options = Options::default();
    with(&hosts)(&mut options);
    match open(&Location::parse(&fixed.to_string()).expect("a location"), &options) {
        Err(Error::Sum { .. }) => {}
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("refused"),
    }
}

/// A mirror that sends nothing holds the first reads up, and no later ones.
#[test]
fn a_silent_mirror_is_asked_seldom() {
    let origin = Origin::new();
    let image = bytes(2_000_000, 5);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("file");
    fs::write(&path, &image).expect("a file");
    let fixed = pushed(&path, &origin.url("1")).fixed;
    let mirror = origin.mirror(Silent);
    let hosts = origin.hosts(&[mirror.url("")]);
    compare(&image, &opened(&fixed.to_string(), with(&hosts)), 1, 10);
    let asked = mirror.requests().iter().filter(|request| request.path.contains("/blobs/")).count();
    // One for the index.
    assert!((1..=2).contains(&asked), "{asked}");
}

/// A manifest that arrives steadily, but slowly, takes no time from the registry.
#[test]
fn a_mirror_has_little_time_for_a_manifest() {
    const PIECES: usize = 64;
    let origin = Origin::new();
    let image = bytes(300_000, 6);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("file");
    fs::write(&path, &image).expect("a file");
    let fixed = pushed(&path, &origin.url("1")).fixed;
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let sent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&sent);
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        let mut lines = BufReader::new(stream.try_clone().expect("a stream")).lines();
        while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
        let head = format!("HTTP/1.1 200 x\r\ncontent-length: {}\r\n\r\n", PIECES << 16);
        let mut alive = stream.write_all(head.as_bytes()).is_ok();
        while alive && count.fetch_add(1, Relaxed) < PIECES {
            thread::sleep(Duration::from_millis(500));
            alive = stream.write_all(&[b' '; 1 << 16]).is_ok();
        }
    });
    let hosts = origin.hosts(&[url]);
    compare(&image, &opened(&fixed.to_string(), with(&hosts)), 1, 3);
    assert!((1..PIECES).contains(&sent.load(Relaxed)));
}

/// Where something else stands for a registry, that gets and has all: images, traces and their list.
#[test]
fn a_registry_that_is_replaced_is_not_asked() {
    let replaced = Server::start(|request| panic!("asked for {}", request.path));
    let contents = Arc::<Mutex<Contents>>::default();
    let links = store(Arc::clone(&contents));
    let (inner, link) = (Arc::clone(&contents), links.url(""));
    let server = Server::start(move |request| {
        let mut request = request.clone();
        if let Some((before, namespace)) = request.path.split_once("ns=127.0.0.1%3A") {
            let after = namespace.trim_start_matches(|digit: char| digit.is_ascii_digit()).trim_start_matches('&');
            request.path = format!("{before}{after}").trim_end_matches(['?', '&']).to_owned();
        }
        answer(&request, &mut inner.lock().expect("not poisoned"), &link)
    });
    let folder = tempfile::tempdir().expect("a folder");
    let directory = folder.path().join(format!("{}_{}_", replaced.address.ip(), replaced.address.port()));
    fs::create_dir(&directory).expect("a folder");
    fs::write(directory.join("hosts.toml"), format!("server = \"{}\"\n", server.url(""))).expect("a file");
    let mirrors = Arc::new(Mirrors::of_files(Vec::new(), Some(folder.path().to_owned())));
    let mut options = PushOptions::default();
    options.mirrors = Arc::clone(&mirrors);

    let image = bytes(2_000_000, 7);
    let path = folder.path().join("file");
    fs::write(&path, &image).expect("a file");
    let url = |tag: &str| format!("oci://{}/a/b:{tag}", replaced.address);
    let location = |tag: &str| Location::parse(&url(tag)).expect("a location");
    let part = Part::of_image(Arc::new(File::open(&path).expect("a file")), &Clusters::default()).expect("a part");
    push(&part, &[], &location("1"), &options).expect("pushed");
    let open = || opened(&url("1"), |options| options.mirrors = Arc::clone(&mirrors));
    // A copy of what is there.
    let copy = Part::of_remote(&open()).expect("in a registry");
    push(&copy, &[], &location("2"), &options).expect("pushed");
    let trace = traces::recorded_with(&url("1"), &image, |options| options.mirrors = Arc::clone(&mirrors));
    fs::write(&path, &trace).expect("a file");
    push_trace(&File::open(&path).expect("a file"), "x", &location("1"), &options).expect("pushed");
    let cache = Arc::new(Cache::open(&folder.path().join("cache"), 1 << 30).expect("a cache"));
    let remote = traces::followed_with(&url("1"), traces::chunk_bytes(&trace), |options| {
        options.cache = Some(Arc::clone(&cache));
        options.mirrors = Arc::clone(&mirrors);
    });
    compare(&image, &remote, 1, 3);
    assert!(replaced.requests().is_empty());
}

/// A mirror that sends something else as a trace, or ends early, does not keep a host from following it.
#[test]
fn a_mirror_cannot_disable_a_trace() {
    let origin = Origin::new();
    let image = bytes(2_000_000, 8);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("file");
    fs::write(&path, &image).expect("a file");
    let fixed = pushed(&path, &origin.url("1")).fixed;
    let trace = traces::recorded_with(&fixed.to_string(), &image, |_| {});
    fs::write(&path, &trace).expect("a file");
    push_trace(&File::open(&path).expect("a file"), "x", &fixed, &PushOptions::default()).expect("pushed");
    for fault in [WrongBytes, Cut, Failing, Silent] {
        let mirror = origin.mirror(fault);
        let hosts = origin.hosts(&[mirror.url("")]);
        let cache = tempfile::tempdir().expect("a folder");
        let cache = Arc::new(Cache::open(cache.path(), 1 << 30).expect("a cache"));
        let remote = traces::followed_with(&fixed.to_string(), traces::chunk_bytes(&trace), |options| {
            with(&hosts)(options);
            options.cache = Some(Arc::clone(&cache));
        });
        compare(&image, &remote, 1, 2);
    }
}

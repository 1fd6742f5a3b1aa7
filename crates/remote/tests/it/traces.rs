//! Traces: recording, storing and following them.

use std::{
    fs::{self, File},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use pagefold_remote::{Cache, Location, Options, PushOptions, Recorder, Remote, open, push_trace};
use pagefold_storage::ReadAt;
use pagefold_testing::{
    registry::Registry,
    web::{Reply, Request, Server, Stall},
};
use proptest::prelude::*;

use crate::{
    reading::{bytes, compare, index_of, opened},
    registries::{Contents, answer, pushed, store},
};

/// Where a start reads.
const PLACES: [u64; 5] = [1_900_000, 100, 600_000, 640_000, 1_200_000];

fn read(remote: &Remote, image: &[u8]) {
    for at in PLACES {
        let mut buf = [0; 20_000];
        remote.read_exact_at(&mut buf, at).expect("a read");
        assert!(buf == image[at as usize..][..buf.len()]);
    }
}

/// Records a start of an image at a URL.
fn recorded(url: &str, image: &[u8]) -> Vec<u8> {
    recorded_with(url, image, |_| {})
}

/// The same with options.
pub(crate) fn recorded_with(url: &str, image: &[u8], change: impl Fn(&mut Options)) -> Vec<u8> {
    let recorder = Arc::new(Recorder::default());
    let remote = opened(url, |options| {
        options.recorder = Some(Arc::clone(&recorder));
        change(options);
    });
    recorder.start();
    read(&remote, image);
    let mut trace = Vec::new();
    let (chunks, bytes) = recorder.write(&mut trace).expect("a trace");
    assert!((5..10).contains(&chunks) && bytes < 500_000, "{chunks} chunks, {bytes} bytes");
    trace
}

/// Returns the bytes of a trace's chunks, which are those of one blob.
pub(crate) fn chunk_bytes(trace: &[u8]) -> u64 {
    trace.len() as u64 - 16 - 32 - 8 * u64::from(trace[12])
}

/// A server opens other images later: neither these nor those that nothing reads are in a trace, and none
/// stays open for it.
#[test]
fn a_trace_is_of_what_is_opened_first() {
    let (image, other) = (bytes(2_000_000, 9), bytes(100_000, 10));
    let server = Server::of_files([
        ("/a.chunk-index", index_of(&image)),
        ("/a", image.clone()),
        ("/b.chunk-index", index_of(&other)),
        ("/b", other),
    ]);
    let recorder = Arc::new(Recorder::default());
    let record = |path: &str| opened(&server.url(path), |options| options.recorder = Some(Arc::clone(&recorder)));
    let [unused, remote] = ["/b", "/a"].map(record);
    recorder.start();
    let later = record("/b");
    later.read_exact_at(&mut [0; 100], 0).expect("a read");
    read(&remote, &image);
    let mut trace = Vec::new();
    recorder.write(&mut trace).expect("a trace");
    assert_eq!(trace[8], 1);
    for remote in [unused, remote, later] {
        assert_eq!(Arc::strong_count(remote.blob()), 1);
    }
}

/// A server of an image, whose trace stops after this number of bytes while the flag is set.
fn stalling(image: &[u8], trace: Vec<u8>, at: usize, stall: &Stall) -> Server {
    let (index, content, stall) = (index_of(image), image.to_vec(), Arc::clone(stall));
    Server::start(move |request| match &*request.path {
        "/a" => Reply::file(request, &content),
        "/a.trace" => Reply { stall: Some((at, Arc::clone(&stall))), ..Reply::file(request, &trace) },
        _ => Reply::file(request, &index),
    })
}

/// Opens an image whose trace is followed, and waits until this number of bytes has arrived.
fn followed(url: &str, cache: &Arc<Cache>, bytes: u64) -> Remote {
    followed_with(url, bytes, |options| options.cache = Some(Arc::clone(cache)))
}

/// The same with other options.
pub(crate) fn followed_with(url: &str, bytes: u64, change: impl Fn(&mut Options)) -> Remote {
    let remote = opened(url, |options| {
        options.follows_traces = true;
        change(options);
    });
    let deadline = Instant::now() + Duration::from_secs(60);
    while remote.blob().fetched().bytes < bytes {
        assert!(Instant::now() < deadline, "the trace does not arrive: {:?}", remote.blob().fetched());
        thread::sleep(Duration::from_millis(1));
    }
    remote
}

fn cache() -> (tempfile::TempDir, Arc<Cache>) {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = Arc::new(Cache::open(folder.path(), 1 << 30).expect("a cache"));
    (folder, cache)
}

#[test]
fn a_trace_brings_what_a_start_reads() {
    let image = bytes(2_000_000, 1);
    let server = Server::of_files([("/a.chunk-index", index_of(&image)), ("/a", image.clone())]);
    let trace = recorded(&server.url("/a"), &image);
    let expected = chunk_bytes(&trace);
    let files = [("/a.chunk-index", index_of(&image)), ("/a", image.clone()), ("/a.trace", trace)];
    let server = Server::of_files(files);
    let (_folder, cache) = cache();
    let remote = followed(&server.url("/a"), &cache, expected);
    read(&remote, &image);
    // The index and the trace.
    assert_eq!(server.requests().len(), 2);
    assert_eq!(remote.blob().fetched().bytes, expected);
    // Once is enough for a host.
    let fixed = remote.fixed().expect("a sum").to_string();
    drop(remote);
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let before = server.requests().len();
        read(&followed(&fixed, &cache, 0), &image);
        thread::sleep(Duration::from_millis(20));
        if server.requests().len() == before {
            break;
        }
        assert!(Instant::now() < deadline, "the trace is asked for again");
    }
    // What was evicted is fetched along it again.
    cache.prune(0).expect("pruned");
    followed(&fixed, &cache, expected);
}

/// What is in the cache needs no request. A trace that was not there is looked for again when something is
/// not in the cache.
#[test]
fn a_warm_start_asks_for_nothing() {
    let image = bytes(2_000_000, 12);
    let server = Server::of_files([("/a.chunk-index", index_of(&image)), ("/a", image.clone())]);
    let (_folder, cache) = cache();
    let asked = |path: &str| server.requests().iter().filter(|request| request.path == path).count();
    let wait = |count: usize| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while asked("/a.trace") < count {
            assert!(Instant::now() < deadline, "the trace is not asked for");
            thread::sleep(Duration::from_millis(1));
        }
    };
    let cold = followed(&server.url("/a"), &cache, 0);
    read(&cold, &image);
    wait(1);
    let (fixed, before) = (cold.fixed().expect("a sum").to_string(), server.requests().len());
    drop(cold);
    let warm = followed(&fixed, &cache, 0);
    read(&warm, &image);
    thread::sleep(Duration::from_millis(50));
    assert_eq!(server.requests().len(), before);
    warm.read_exact_at(&mut [0; 100], 1_000_000).expect("a read");
    wait(2);
    assert_eq!(asked("/a.chunk-index"), 1);
}

/// A trace that is not there yet, or that arrives in part, is asked for again.
#[test]
fn a_trace_may_come_later() {
    let image = bytes(2_000_000, 8);
    let plain = Server::of_files([("/a.chunk-index", index_of(&image)), ("/a", image.clone())]);
    let trace = recorded(&plain.url("/a"), &image);
    let expected = chunk_bytes(&trace);
    let (index, content, asked) = (index_of(&image), image.clone(), AtomicUsize::new(0));
    let server = Server::start(move |request| match &*request.path {
        "/a" => Reply::file(request, &content),
        "/a.trace" => match asked.fetch_add(1, Relaxed) {
            0 => Reply::status(404),
            1 => Reply { cut: Some(100), ..Reply::file(request, &trace) },
            _ => Reply::file(request, &trace),
        },
        _ => Reply::file(request, &index),
    });
    let (_folder, cache) = cache();
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut open = Vec::new();
    while open.iter().map(|remote: &Remote| remote.blob().fetched().bytes).sum::<u64>() < expected {
        assert!(Instant::now() < deadline, "the trace is not asked for again");
        open.push(followed(&server.url("/a"), &cache, 0));
        thread::sleep(Duration::from_millis(20));
    }
    read(&open[0], &image);
    assert!(server.requests().iter().all(|request| request.path != "/a"));
}

/// Servers that start together ask for a trace once, and one does not wait for what another's is about to
/// bring.
#[test]
fn one_server_of_a_cache_follows_a_trace() {
    let image = bytes(2_000_000, 6);
    let plain = Server::of_files([("/a.chunk-index", index_of(&image)), ("/a", image.clone())]);
    let trace = recorded(&plain.url("/a"), &image);
    let stall = Arc::new(AtomicBool::new(true));
    let server = stalling(&image, trace, 60_000, &stall);
    let (folder, cache) = cache();
    let first = followed(&server.url("/a"), &cache, 1);
    let other = Arc::new(Cache::open(folder.path(), 1 << 30).expect("a cache"));
    let second = followed(&server.url("/a"), &other, 0);
    let start = Instant::now();
    read(&second, &image);
    // Far less than a server is waited for.
    assert!(start.elapsed() < Duration::from_secs(30), "the read waits for another server");
    read(&first, &image);
    assert!(stall.load(Relaxed));
    stall.store(false, Relaxed);
    assert_eq!(server.requests().iter().filter(|request| request.path == "/a.trace").count(), 1);
}

#[test]
fn a_trace_that_stalls_stops_no_read() {
    let image = bytes(2_000_000, 2);
    let plain = Server::of_files([("/a.chunk-index", index_of(&image)), ("/a", image.clone())]);
    let trace = recorded(&plain.url("/a"), &image);
    let stall = Arc::new(AtomicBool::new(true));
    let server = stalling(&image, trace, 120_000, &stall);
    let (_folder, cache) = cache();
    let remote = followed(&server.url("/a"), &cache, 1);
    read(&remote, &image);
    assert!(stall.load(Relaxed));
    compare(&image, &remote, 2, 3);
    stall.store(false, Relaxed);
}

/// While a trace arrives, nothing is read ahead of a reader that is in it but what the trace has. Others
/// are read ahead of as usual.
#[test]
fn a_trace_says_where_reads_end() {
    let image = bytes(2_000_000, 13);
    let plain = Server::of_files([("/a.chunk-index", index_of(&image)), ("/a", image.clone())]);
    let trace = recorded(&plain.url("/a"), &image);
    let touches = trace[16 + 32..].as_chunks::<8>().0.iter().take(trace[12].into());
    let touched: Vec<usize> = touches.map(|touch| touch[4].into()).collect();
    let stall = Arc::new(AtomicBool::new(true));
    let server = stalling(&image, trace, 120_000, &stall);
    let (_folder, cache) = cache();
    let remote = followed(&server.url("/a"), &cache, 1);
    let fetched_ahead = |chunk: usize| {
        let asked = || server.requests().iter().filter(|request| request.path == "/a").count();
        let before = asked();
        remote.fetch(&[remote.blob().index().range(chunk)]);
        asked() > before
    };
    let chunks = remote.blob().index().len();
    let after: Vec<_> =
        (1..chunks).filter(|chunk| touched.contains(&(chunk - 1)) && !touched.contains(chunk)).collect();
    let elsewhere: Vec<_> =
        (1..chunks).filter(|chunk| !touched.contains(&(chunk - 1)) && !touched.contains(chunk)).collect();
    assert!(after.len() >= 4 && elsewhere.len() >= 4);
    assert!(!after.into_iter().any(fetched_ahead));
    assert!(elsewhere.into_iter().all(fetched_ahead));
    stall.store(false, Relaxed);
}

/// However many of its chunks a stalled trace announced, reads of them wait once.
#[test]
fn a_trace_that_stalls_is_waited_for_once() {
    const BYTES: usize = 900_000;
    let image = bytes(1_000_000, 7);
    let plain = Server::of_files([("/a.chunk-index", index_of(&image)), ("/a", image.clone())]);
    let recorder = Arc::new(Recorder::default());
    let remote = opened(&plain.url("/a"), |options| options.recorder = Some(Arc::clone(&recorder)));
    recorder.start();
    remote.read_exact_at(&mut vec![0; BYTES], 0).expect("a read");
    let mut trace = Vec::new();
    let (chunks, _) = recorder.write(&mut trace).expect("a trace");
    assert!(chunks > 15);
    let stall = Arc::new(AtomicBool::new(true));
    let server = stalling(&image, trace, 120_000, &stall);
    for len in [BYTES, BYTES / 100] {
        let (_folder, cache) = cache();
        let remote = followed(&server.url("/a"), &cache, 1);
        let start = Instant::now();
        let mut found = vec![0; BYTES];
        for (number, part) in found.chunks_mut(len).enumerate() {
            remote.read_exact_at(part, (number * len) as u64).expect("a read");
        }
        assert!(found == image[..BYTES]);
        // A wait for each chunk would last longer.
        assert!(start.elapsed() < Duration::from_secs(20), "each chunk is waited for");
    }
    assert!(stall.load(Relaxed));
    stall.store(false, Relaxed);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Whatever a server sends as a trace, reads get the right bytes.
    #[test]
    fn hostile_traces(kind in 0..6, at in any::<prop::sample::Index>(), byte in 1_u8..) {
        let image = bytes(2_000_000, 3);
        let plain = Server::of_files([("/a.chunk-index", index_of(&image)), ("/a", image.clone())]);
        let good = recorded(&plain.url("/a"), &image);
        let (index, content) = (index_of(&image), image.clone());
        let server = Server::start(move |request| match &*request.path {
            "/a" => Reply::file(request, &content),
            "/a.trace" => {
                let mut reply = Reply::file(request, &good);
                match kind {
                    // In the head, and anywhere.
                    0 => reply.body[at.index(200)] ^= byte,
                    1 => reply.body[at.index(good.len())] ^= byte,
                    2 => reply.cut = Some(at.index(good.len())),
                    3 => reply.body.truncate(at.index(good.len())),
                    4 => reply.endless = true,
                    _ => reply.status = 500 + u16::from(byte % 5),
                }
                reply
            }
            _ => Reply::file(request, &index),
        });
        let (_folder, cache) = cache();
        let remote = followed(&server.url("/a"), &cache, 0);
        compare(&image, &remote, 3, 5);
        read(&remote, &image);
        prop_assert!(remote.blob().fetched().bytes < 4_500_000);
    }
}

#[test]
fn a_registry_keeps_traces() {
    let Some(registry) = Registry::start("a_registry_keeps_traces") else { return };
    let image = bytes(2_000_000, 4);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("image");
    let stored = |tag: &str, image: &[u8]| {
        fs::write(&path, image).expect("a file");
        let location = Location::parse(&registry.url(&format!("disks/debian:{tag}"))).expect("a location");
        pushed(&path, &location.to_string());
        location
    };
    let (location, other) = (stored("13", &image), stored("12", &bytes(100_000, 5)));
    let trace = recorded(&location.to_string(), &image);
    let expected = chunk_bytes(&trace);
    let file = folder.path().join("trace");
    fs::write(&file, &trace).expect("a file");
    let file = File::open(&file).expect("a file");
    let error = push_trace(&file, "x", &other, &PushOptions::default()).expect_err("of another image");
    assert!(error.to_string().contains("another image"), "{error}");
    // The newer one replaces the older one.
    for _ in 0..2 {
        push_trace(&file, "x", &location, &PushOptions::default()).expect("pushed");
    }
    let (_folder, cache) = cache();
    let remote = followed(&location.to_string(), &cache, expected);
    read(&remote, &image);
    assert_eq!(remote.blob().fetched().bytes, expected);
    let Ok(remote) = open(&other, &Options::default()) else { panic!("an image") };
    assert_eq!(remote.len_bytes().expect("a length"), 100_000);
}

/// How a registry answers questions for what refers to a manifest.
#[derive(Clone, Copy, Debug)]
enum Referrers {
    Refused,
    InPages,
}

/// A registry without the API for referrers, or that has it in pages, and keeps a tag for the list.
fn registry_with(how: Referrers, contents: &Arc<Mutex<Contents>>) -> (Server, Server) {
    let elsewhere = store(Arc::clone(contents));
    let (inner, link) = (Arc::clone(contents), elsewhere.url(""));
    let server = Server::start(move |request| {
        let contents = &mut inner.lock().expect("not poisoned");
        let Some(rest) = request.path.strip_prefix("/v2/a/b/referrers/") else {
            let is_tag = request.path.contains("/manifests/sha256-") && request.method == "GET";
            return match how {
                Referrers::InPages if is_tag && contents.manifests.contains_key("in pages") => Reply::status(404),
                _ => answer(request, contents, &link),
            };
        };
        let (page, next) = match (how, rest.split_once("page=")) {
            (Referrers::Refused, _) => return Reply::status(403),
            (_, Some((_, "2"))) => {
                let of = rest.split('?').next().expect("a sum").replace(':', "-");
                (contents.manifests.get(&of).cloned().unwrap_or_default(), 3)
            }
            // Without end.
            (_, page) => {
                let list = r#"{"manifests": [{"digest": 5}, {"artifactType": "other", "digest": "", "size": 0}]}"#;
                (list.into(), page.map_or(2, |_| 3))
            }
        };
        let link = format!(
            "</v2/a/b/x>; rel=\"prev\", <{}?page={next}>; rel=\"next\"",
            request.path.split('?').next().expect("a path")
        );
        Reply { body: page, ..Reply::status(200) }.with("link", link)
    });
    (server, elsewhere)
}

/// Registries that refuse the API for referrers have a list under a tag. What others put there stays.
#[test]
fn a_trace_is_found_in_pages_and_by_tag() {
    for how in [Referrers::Refused, Referrers::InPages] {
        let contents = Arc::<Mutex<Contents>>::default();
        let (server, _elsewhere) = registry_with(how, &contents);
        let folder = tempfile::tempdir().expect("a folder");
        let (path, image) = (folder.path().join("file"), bytes(2_000_000, 11));
        fs::write(&path, &image).expect("a file");
        let fixed = pushed(&path, &format!("oci://{}/a/b:1", server.address)).fixed;
        let Location::Oci(reference) = &fixed else { panic!("a registry") };
        let trace = recorded(&fixed.to_string(), &image);
        let expected = chunk_bytes(&trace);
        fs::write(&path, &trace).expect("a file");
        let push = || push_trace(&File::open(&path).expect("a file"), "x", &fixed, &PushOptions::default());
        let tag = reference.manifest.expect("a sum").to_string().replace(':', "-");
        let put = |text: &str| {
            contents.lock().expect("not poisoned").manifests.insert(tag.clone(), text.into());
        };
        put(r#"{"schemaVersion": 2, "layers": []}"#);
        let error = push().expect_err("refused");
        assert!(error.to_string().contains("names something else"), "{error}");
        let others = serde_json::json!({"digest": "sha512:x", "size": 7, "artifactType": "y", "data": "eA=="});
        put(&serde_json::json!({"schemaVersion": 2, "manifests": [others], "annotations": {"a": "b"}}).to_string());
        // The newer one replaces the older one.
        for _ in 0..2 {
            push().expect("pushed");
        }
        let list: serde_json::Value =
            serde_json::from_slice(&contents.lock().expect("not poisoned").manifests[&tag]).expect("a list");
        let all = list["manifests"].as_array().expect("entries");
        assert!(all.len() == 2 && all[0] == others && list["annotations"]["a"] == "b", "{list}");
        contents.lock().expect("not poisoned").manifests.insert("in pages".to_owned(), Vec::new());
        let (_folder, cache) = cache();
        let remote = followed(&fixed.to_string(), &cache, expected);
        read(&remote, &image);
        let asked = |request: &&Request| request.path.contains("/referrers/");
        assert!(server.requests().iter().filter(asked).count() <= 16);
    }
}

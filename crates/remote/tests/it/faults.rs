//! Servers with short tokens, errors now and then, and outages: no read fails, and what arrived is not
//! asked for again.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use pagefold_remote::{Cache, Sum};
use pagefold_testing::web::{Reply, Server};

use crate::reading::{Random, bytes, compare, index_of, opened};

const SIZE: usize = 6_000_000;

/// How long a token is valid.
const TOKEN: Duration = Duration::from_secs(2);

/// How long the server is away.
const OUTAGE: Duration = Duration::from_secs(2);

/// A registry with one image, which refuses 5 % of the requests, and all during an outage.
fn registry(image: &[u8], is_out: Arc<AtomicBool>) -> Server {
    let index = index_of(image);
    let blob = [image, &index].concat();
    let sum = Sum::of(&blob);
    let layer = serde_json::json!({
        "mediaType": "application/vnd.erofs", "digest": sum.to_string(), "size": blob.len(),
        "annotations": {
            "org.erofs.chunk-index.range": format!("{}:{}", image.len(), blob.len()),
            "org.erofs.chunk-index.digest": Sum::of(&index).to_string(),
        },
    });
    let manifest = serde_json::json!({"schemaVersion": 2, "layers": [layer]}).to_string();
    let (start, count) = (Instant::now(), AtomicU64::new(0));
    // A token is the time when it ends.
    let now = move || start.elapsed().as_millis();
    Server::start(move |request| {
        if is_out.load(Relaxed) {
            // The connection ends, too.
            return Reply { cut: Some(0), body: vec![0], ..Reply::status(502) };
        }
        if Random::new(count.fetch_add(1, Relaxed) + 1).below(20) == 0 {
            return Reply::status(503);
        }
        if request.path.starts_with("/token?") {
            let body = format!("{{\"token\":\"{}\",\"expires_in\":{}}}", now() + TOKEN.as_millis(), TOKEN.as_secs());
            return Reply { body: body.into(), ..Reply::status(200) };
        }
        let end = request.headers.get("authorization").and_then(|value| value.strip_prefix("Bearer ")?.parse().ok());
        if end.is_none_or(|end: u128| now() >= end) {
            let host = &request.headers["host"];
            let challenge = format!("Bearer realm=\"http://{host}/token\",service=\"x\",scope=\"repository:a:pull\"");
            return Reply::status(401).with("www-authenticate", challenge);
        }
        match &*request.path {
            "/v2/a/manifests/1" => Reply { body: manifest.clone().into(), ..Reply::status(200) },
            _ => Reply { delay: Duration::from_millis(2), ..Reply::file(request, &blob) },
        }
    })
}

#[test]
fn tokens_errors_and_an_outage() {
    let image = bytes(SIZE, 9);
    let is_out = Arc::new(AtomicBool::new(false));
    let server = registry(&image, Arc::clone(&is_out));
    let folder = tempfile::tempdir().expect("a folder");
    let cache = Arc::new(Cache::open(folder.path(), 1 << 30).expect("a cache"));
    let url = format!("oci://{}/a:1", server.address);
    let remote = opened(&url, |options| options.cache = Some(Arc::clone(&cache)));
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(TOKEN / 4);
            is_out.store(true, Relaxed);
            thread::sleep(OUTAGE);
            is_out.store(false, Relaxed);
        });
        // Reads in the time of several tokens.
        let end = Instant::now() + TOKEN * 3;
        let mut seed = 0;
        while Instant::now() < end {
            compare(&image, &remote, seed, 2);
            seed += 1;
            thread::sleep(Duration::from_millis(100));
        }
    });
    remote.blob().fetch_all(&mut |_| {}).expect("all of it");
    // What arrived arrived once.
    assert_eq!(remote.blob().fetched().bytes, SIZE as u64);
    let tokens = server.requests().iter().filter(|request| request.path.starts_with("/token?")).count();
    assert!(tokens > 2, "{tokens}");
    let before = server.requests().len();
    let fixed = remote.fixed().expect("a sum").to_string();
    compare(&image, &opened(&fixed, |options| options.cache = Some(Arc::clone(&cache))), 99, 10);
    assert_eq!(server.requests().len(), before);
}

/// What two servers of one cache fetch during an outage, they fetch once.
#[test]
fn servers_that_share_a_cache_wait_together() {
    let image = bytes(1_000_000, 10);
    let is_out = Arc::new(AtomicBool::new(false));
    let server = registry(&image, Arc::clone(&is_out));
    let folder = tempfile::tempdir().expect("a folder");
    let cache = Arc::new(Cache::open(folder.path(), 1 << 30).expect("a cache"));
    let url = format!("oci://{}/a:1", server.address);
    let remotes = [0, 1].map(|_| opened(&url, |options| options.cache = Some(Arc::clone(&cache))));
    is_out.store(true, Relaxed);
    thread::scope(|scope| {
        for remote in &remotes {
            scope.spawn(|| compare(&image, remote, 1, 5));
        }
        thread::sleep(OUTAGE / 4);
        is_out.store(false, Relaxed);
    });
    let fetched: u64 = remotes.iter().map(|remote| remote.blob().fetched().bytes).sum();
    remotes.iter().for_each(|remote| remote.blob().fetch_all(&mut |_| {}).expect("all of it"));
    let all: u64 = remotes.iter().map(|remote| remote.blob().fetched().bytes).sum();
    let whole: Range<u64> = 0..image.len() as u64;
    assert!(fetched <= all && all == whole.end, "{fetched} and {all} bytes");
}

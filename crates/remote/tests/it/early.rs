//! What is requested together with the index: it saves requests if it is right, and nothing depends on it.

use std::{
    ops::Range,
    sync::{Arc, Barrier, Mutex},
    thread,
    time::{Duration, Instant},
};

use pagefold_remote::{Cache, Location, Options, Remote, Sum, open};
use pagefold_storage::ReadAt;
use pagefold_testing::web::{Reply, Server, Stall};
use serde_json::json;

use crate::reading::{bytes, index_of};

/// Parts of an image that opening it reads, in whole chunks. What lies between them is too long to be read with
/// them.
const OPENING: [Range<usize>; 2] = [0..49_152, 1_474_560..1_572_864];

/// What comes of a request for one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Right,
    /// The right bytes after a while.
    Late,
    WrongBytes,
    Missing,
    Failure,
    WholeFile,
    OtherRange,
    Cut,
    Stalled,
    Endless,
}

/// A registry with one image; `stall` is its answer to the first request for each part.
struct Registry {
    server: Server,
    image: Vec<u8>,
    manifest: Sum,
    stall: Stall,
}

impl Registry {
    fn start(answers: [Answer; 2], opening: &str) -> Self {
        let image = bytes(2_000_000, 7);
        let index = index_of(&image);
        let blob = [&image[..], &index].concat();
        let annotations = json!({
            "org.erofs.chunk-index.range": format!("{}:{}", image.len(), blob.len()),
            "org.erofs.chunk-index.digest": Sum::of(&index).to_string(),
            "org.pagefold.opening": opening,
        });
        let layer = json!({
            "mediaType": "application/vnd.erofs",
            "digest": Sum::of(&blob).to_string(),
            "size": blob.len(),
            "annotations": annotations,
        });
        let manifest = json!({ "schemaVersion": 2, "layers": [layer] }).to_string().into_bytes();
        let (sum, stall) = (Sum::of(&manifest), Stall::new(true.into()));
        let (asked, stalled) = (Mutex::new([false; 2]), Arc::clone(&stall));
        let server = Server::start(move |request| {
            if request.path.contains("/manifests/") {
                return Reply { body: manifest.clone(), ..Reply::status(200) };
            }
            let range = request.range().map(|range| range.start as usize..range.end as usize);
            let part = OPENING.iter().position(|part| Some(part) == range.as_ref());
            let first = part.filter(|part| !std::mem::replace(&mut asked.lock().expect("the lock")[*part], true));
            let mut reply = Reply::file(request, &blob);
            match first.map_or(Answer::Right, |part| answers[part]) {
                Answer::Right => {}
                Answer::Late => reply.delay = Duration::from_millis(100),
                Answer::WrongBytes => reply.body.iter_mut().step_by(30_000).for_each(|byte| *byte ^= 1),
                Answer::Missing => return Reply::status(404),
                Answer::Failure => return Reply::status(503).with("retry-after", 0),
                Answer::WholeFile => return Reply { body: blob.clone(), ..Reply::status(200) },
                Answer::OtherRange => reply.headers[0].1 = format!("bytes 0-9/{}", blob.len()),
                Answer::Cut => reply.cut = Some(100),
                Answer::Stalled => reply.stall = Some((100, Arc::clone(&stalled))),
                Answer::Endless => reply.endless = true,
            }
            reply
        });
        Self { server, image, manifest: sum, stall }
    }

    fn open(&self) -> Remote {
        self.open_with(None)
    }

    fn open_with(&self, cache: Option<Cache>) -> Remote {
        let url = format!("oci://{}/a/b@{}", self.server.address, self.manifest);
        let mut options = Options::default();
        options.cache = cache.map(Arc::new);
        open(&Location::parse(&url).expect("a location"), &options).expect("an image")
    }

    /// Reads a part. Returns the number of requests for it.
    fn read(&self, remote: &Remote, part: Range<usize>) -> usize {
        let before = self.server.requests().len();
        let mut buf = vec![0; part.len()];
        remote.read_exact_at(&mut buf, part.start as u64).expect("a read");
        assert!(buf == self.image[part]);
        self.server.requests().len() - before
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.stall.store(false, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Returns the annotation of both parts.
fn opening() -> String {
    OPENING.map(|part| format!("{}:{}", part.start, part.end)).join(",")
}

/// The parts come with the index if they are right. Otherwise, each costs the request that a read makes
/// anyhow, and no byte of the wrong ones is used.
#[test]
fn what_opening_reads_comes_with_the_index() {
    use Answer::*;
    let kinds = [Right, Late, WrongBytes, Missing, Failure, WholeFile, OtherRange, Cut, Stalled, Endless];
    for (number, answer) in kinds.into_iter().enumerate() {
        let answers = [answer, kinds[(number * 4 + 2) % kinds.len()]];
        let registry = Registry::start(answers, &opening());
        let remote = registry.open();
        // The manifest, the index and both parts.
        assert_eq!(registry.server.requests().len(), 4, "{answers:?}");
        for (part, answer) in OPENING.into_iter().zip(answers) {
            // An endless body has the right bytes in front.
            let expected = usize::from(!matches!(answer, Right | Late | Endless));
            assert_eq!(registry.read(&remote, part), expected, "{answer:?}");
        }
        registry.read(&remote, 0..registry.image.len());
    }
}

/// What a manifest must not say is not requested.
#[test]
fn invalid_parts_are_not_requested() {
    for opening in ["", "9:9", "0:999999999", "0:49152,", "x:49152", "0:49152,50000:40000"] {
        let registry = Registry::start([Answer::Right; 2], opening);
        let remote = registry.open();
        assert_eq!(registry.server.requests().len(), 2, "{opening}");
        registry.read(&remote, 0..registry.image.len());
    }
    // Ranges that are not of whole chunks bring the chunks within them.
    let registry = Registry::start([Answer::Right; 2], "1:49152,1474560:1523713");
    let remote = registry.open();
    assert_eq!((registry.read(&remote, 1_474_560..1_523_712), registry.read(&remote, 0..49_152)), (0, 1));
}

/// Servers that open the image at the same time and share a cache request each part once, also if the one that
/// requests it is slow.
#[test]
fn servers_with_one_cache_request_the_parts_once() {
    loop {
        let begin = Instant::now();
        let parts = parts_requested_by_six();
        if parts == OPENING.map(|part| part.start) {
            return;
        }
        // A server waits that long for another one. A busy machine may need longer.
        assert!(begin.elapsed() >= Duration::from_millis(500), "{parts:?}");
    }
}

/// Opens the image six times at the same time, and returns the starts of the parts that are requested.
fn parts_requested_by_six() -> Vec<usize> {
    let registry = Registry::start([Answer::Late, Answer::Right], &opening());
    let folder = tempfile::tempdir().expect("a folder");
    let begin = Barrier::new(6);
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let cache = Cache::open(folder.path(), 1 << 30).expect("a cache");
                begin.wait();
                let remote = registry.open_with(Some(cache));
                for part in OPENING {
                    registry.read(&remote, part);
                }
            });
        }
    });
    let requests = registry.server.requests();
    let requested = requests.iter().filter_map(|request| request.range()).map(|range| range.start as usize);
    let mut parts: Vec<_> = requested.filter(|start| OPENING.iter().any(|part| part.start == *start)).collect();
    parts.sort_unstable();
    parts
}

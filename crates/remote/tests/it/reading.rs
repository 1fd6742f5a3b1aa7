//! Reads equal those of the plain bytes, whatever the server does in between.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use pagefold_remote::{Blob, Clusters, Location, Options, Remote, index, open};
use pagefold_storage::ReadAt;
use pagefold_testing::web::{Reply, Server};
use proptest::prelude::*;

/// A generator of numbers that a seed decides.
#[derive(Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }
}

pub(crate) fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..len).map(|_| random.below(256) as u8).collect()
}

pub(crate) fn index_of(image: &[u8]) -> Vec<u8> {
    index(&image.to_vec(), &Clusters::default()).expect("an index").encode()
}

pub(crate) fn opened(url: &str, change: impl Fn(&mut Options)) -> Remote {
    let mut options = Options::default();
    change(&mut options);
    open(&Location::parse(url).expect("a location"), &options).expect("an image")
}

/// Reads random parts, several at a time and from several threads, and compares them.
pub(crate) fn compare(image: &[u8], remote: &Remote, seed: u64, reads: usize) {
    thread::scope(|scope| {
        for thread in 0..4 {
            let mut random = Random::new(seed * 4 + thread);
            scope.spawn(move || {
                for _ in 0..reads {
                    let mut parts: Vec<(u64, Vec<u8>)> = (0..=random.below(3))
                        .map(|_| {
                            let start = random.below(image.len() as u64);
                            let len = random.below((image.len() as u64 - start).min(100_000) + 1);
                            (start, vec![0; len as usize])
                        })
                        .collect();
                    let mut borrowed: Vec<_> = parts.iter_mut().map(|(at, buf)| (*at, &mut buf[..])).collect();
                    remote.read_all_at(&mut borrowed).expect("a read");
                    for (at, buf) in &mut parts {
                        let expected = &image[*at as usize..][..buf.len()];
                        assert!(buf == expected, "{at}+{}", buf.len());
                        buf.fill(1);
                        let len = remote.try_read_at(buf, *at);
                        assert_eq!(buf[..len], expected[..len]);
                    }
                }
            });
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]

    #[test]
    fn a_server_that_fails_now_and_then(seed in any::<u32>(), with_cache in any::<bool>()) {
        let image = bytes(1_500_000, u64::from(seed));
        let (plain, index) = (image.clone(), index_of(&image));
        let count = AtomicU64::new(u64::from(seed));
        let server = Server::start(move |request| {
            let mut random = Random::new(count.fetch_add(1, Relaxed));
            if request.path.ends_with(".chunk-index") {
                return Reply { body: index.clone(), ..Reply::status(200) };
            }
            let mut reply = Reply::file(request, &plain);
            match random.below(40) {
                0 => reply = Reply::status(503),
                1 => reply = Reply::status(429).with("retry-after", 0),
                2 => reply.cut = Some(random.below(reply.body.len() as u64) as usize),
                3 => {
                    let at = random.below(reply.body.len() as u64) as usize;
                    reply.body[at] ^= 1 << random.below(8);
                }
                4 => reply.delay = Duration::from_millis(30),
                5 => reply.headers[0].1 = "bytes 0-1/9".to_owned(),
                _ => {}
            }
            reply
        });
        let folder = tempfile::tempdir().expect("a folder");
        let cache = with_cache.then(|| Arc::new(pagefold_remote::Cache::open(folder.path(), 1 << 30).expect("a cache")));
        let remote = opened(&server.url("/a.erofs"), |options| options.cache = cache.clone());
        compare(&image, &remote, u64::from(seed), 15);
    }
}

#[test]
fn neighbours_are_one_request_and_identical_reads_too() {
    let image = bytes(3_000_000, 1);
    let plain = image.clone();
    let index = index_of(&image);
    let server = Server::start(move |request| {
        if request.path.ends_with("index") {
            return Reply { body: index.clone(), ..Reply::status(200) };
        }
        Reply { delay: Duration::from_millis(50), ..Reply::file(request, &plain) }
    });
    let remote = opened(&server.url("/a"), |_| {});
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let mut buf = vec![0; 2_000_000];
                remote.read_exact_at(&mut buf, 500_000).expect("a read");
                assert!(buf == image[500_000..2_500_000]);
            });
        }
    });
    let blob: &Blob = remote.blob();
    assert_eq!(blob.fetched().requests, 1);
    assert!(blob.fetched().bytes < 2_000_000 + 2 * (48 << 10), "{:?}", blob.fetched());
    blob.fetch_all(&mut |_| {}).expect("all of it");
    assert!(blob.fetched().requests <= 6 && blob.fetched().bytes == 3_000_000, "{:?}", blob.fetched());
}

#[test]
fn parts_far_from_each_other_are_fetched_side_by_side() {
    let image = bytes(4_000_000, 2);
    let inside = Arc::new(AtomicU64::new(0));
    let most = Arc::new(AtomicU64::new(0));
    let (plain, index) = (image.clone(), index_of(&image));
    let (now, seen) = (Arc::clone(&inside), Arc::clone(&most));
    let server = Server::start(move |request| {
        if request.path.ends_with("index") {
            return Reply { body: index.clone(), ..Reply::status(200) };
        }
        seen.fetch_max(now.fetch_add(1, Relaxed) + 1, Relaxed);
        thread::sleep(Duration::from_millis(50));
        now.fetch_sub(1, Relaxed);
        Reply::file(request, &plain)
    });
    let remote = opened(&server.url("/a"), |_| {});
    let mut bufs = vec![[0; 10]; 30];
    let mut parts: Vec<_> = bufs.iter_mut().enumerate().map(|(at, buf)| (at as u64 * 130_000, &mut buf[..])).collect();
    remote.read_all_at(&mut parts).expect("a read");
    for (at, buf) in bufs.iter().enumerate() {
        assert_eq!(*buf, image[at * 130_000..][..10]);
    }
    assert_eq!(remote.blob().fetched().requests, 30);
    assert!((2..=8).contains(&most.load(Relaxed)), "{most:?}");
}

#[test]
fn the_end_of_an_image_is_an_error() {
    let image = bytes(20_000, 3);
    let server = Server::of_files([("/a.chunk-index", index_of(&image)), ("/a", image)]);
    let remote = opened(&server.url("/a"), |_| {});
    for (offset, len) in [(19_999, 2), (20_000, 1), (u64::MAX, 1), (u64::MAX, 0)] {
        let error = remote.read_exact_at(&mut vec![0; len], offset).expect_err("past the end");
        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof, "{offset}");
    }
    remote.read_exact_at(&mut [], 20_000).expect("nothing");
    assert_eq!(remote.len_bytes().expect("a length"), 20_000);
}

#[test]
fn connections_are_used_again() {
    let image = bytes(2_000_000, 4);
    let server = Server::of_files([("/a.chunk-index", index_of(&image)), ("/a", image.clone())]);
    let remote = opened(&server.url("/a"), |_| {});
    let mut buf = [0; 10];
    for at in 0..20 {
        remote.read_exact_at(&mut buf, at * 90_000).expect("a read");
        assert_eq!(buf, image[at as usize * 90_000..][..10]);
    }
    assert_eq!((server.requests().len(), server.connections()), (21, 1));
}

/// A mirror whose bytes are wrong is asked once, then the way to another one.
#[test]
fn a_way_that_leads_to_wrong_bytes_is_forgotten() {
    let image = bytes(500_000, 5);
    for kind in 0..3 {
        let plain = image.clone();
        let bad = Server::start(move |request| match (kind, Reply::file(request, &plain)) {
            (0, reply) => Reply { body: vec![0; reply.body.len()], ..reply },
            (1, reply) => Reply { cut: Some(100), ..reply },
            (_, reply) => Reply { cut: Some(0), ..reply },
        });
        let good = Server::of_files([("/a", image.clone())]);
        let places = [bad.url("/a"), good.url("/a")];
        let (asked, index) = (AtomicU64::new(0), index_of(&image));
        let server = Server::start(move |request| {
            if request.path.ends_with("index") {
                return Reply { body: index.clone(), ..Reply::status(200) };
            }
            let place = &places[(asked.fetch_add(1, Relaxed) as usize).min(1)];
            Reply::status(302).with("location", place)
        });
        let remote = opened(&server.url("/a"), |_| {});
        compare(&image, &remote, 6, 3);
        assert!(!bad.requests().is_empty() && server.requests().len() <= 12, "{}", server.requests().len());
    }
}

/// What is fetched together is there for reads, and ranges outside of the image do no harm.
#[test]
fn ranges_are_fetched_together() {
    let image = bytes(2_000_000, 7);
    let server = Server::of_files([("/a.chunk-index", index_of(&image)), ("/a", image.clone())]);
    let remote = opened(&server.url("/a"), |_| {});
    remote.fetch(&[500_000..900_000, 100..200, 600_000..1_000_000, 5..5, 1_999_999..u64::MAX]);
    assert_eq!(remote.blob().fetched().requests, 3);
    let mut buf = vec![0; 500_000];
    assert_eq!(remote.try_read_at(&mut buf, 500_000), buf.len());
    assert!(buf == image[500_000..1_000_000]);
    assert_eq!(remote.blob().fetched().requests, 3);
}

/// A reader of a sound chunk does not get the error of one who also asked for others.
#[test]
fn a_failure_is_only_that_of_those_who_asked_for_it() {
    let image = bytes(1_000_000, 8);
    let (plain, index) = (image.clone(), index_of(&image));
    let server = Server::start(move |request| {
        if request.path.ends_with("index") {
            return Reply { body: index.clone(), ..Reply::status(200) };
        }
        let mut reply = Reply { delay: Duration::from_millis(100), ..Reply::file(request, &plain) };
        // The byte at 300 000 is never right.
        let range = request.range().expect("a range");
        if range.contains(&300_000) {
            reply.body[(300_000 - range.start) as usize] ^= 1;
            reply.delay *= 3;
        }
        reply
    });
    let remote = opened(&server.url("/a"), |_| {});
    thread::scope(|scope| {
        let all = scope.spawn(|| remote.read_exact_at(&mut vec![0; 300_000], 300_000));
        thread::sleep(Duration::from_millis(150));
        let mut buf = vec![0; 10_000];
        remote.read_exact_at(&mut buf, 500_000).expect("sound bytes");
        assert!(buf == image[500_000..510_000]);
        assert!(all.join().expect("no panic").is_err());
    });
}

//! Servers that lie: an error in bounded time and memory, and no credential elsewhere.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use pagefold_remote::{Error, Location, Options, open};
use pagefold_storage::ReadAt;
use pagefold_testing::web::{Reply, Request, Server};

use crate::reading::{bytes, compare, index_of, opened};

const IMAGE_BYTES: usize = 100_000;

fn error_of(url: &str, change: impl Fn(&mut Options)) -> String {
    let mut options = Options::default();
    options.patience = Duration::from_secs(1);
    change(&mut options);
    match open(&Location::parse(url).expect("a location"), &options) {
        Ok(remote) => remote.read_exact_at(&mut [0; 1000], 50_000).expect_err("no bytes").to_string(),
        Err(error) => error.to_string(),
    }
}

/// Serves an image with its index, but with `reply` for ranges.
fn with_ranges(reply: impl Fn(&Request, &[u8]) -> Reply + Send + Sync + 'static) -> Server {
    let image = bytes(IMAGE_BYTES, 1);
    let index = index_of(&image);
    Server::start(move |request| match request.path.ends_with("index") {
        true => Reply { body: index.clone(), ..Reply::status(200) },
        false => reply(request, &image),
    })
}

#[test]
fn lies_about_ranges() {
    type Lie = fn(&Request, &[u8]) -> Reply;
    let cases: [(Lie, &str); 9] = [
        (|_, image| Reply { body: image.to_vec(), ..Reply::status(200) }, "whole file"),
        (|_, _| Reply::status(404), "404"),
        (|_, _| Reply::status(403), "403"),
        (|_, _| Reply::status(416), "ends before byte"),
        (|_, _| Reply::status(500), "500"),
        (|request, image| Reply { headers: Vec::new(), ..Reply::file(request, image) }, "another range"),
        (|request, image| Reply::file(request, &vec![0; image.len()]), "SHA-256"),
        (|request, image| Reply { cut: Some(10), ..Reply::file(request, image) }, "interrupted"),
        (|_, _| Reply::status(302).with("location", "file:///etc/passwd"), "another protocol"),
    ];
    for (lie, what) in cases {
        let error = error_of(&with_ranges(lie).url("/a"), |_| {});
        assert!(error.contains(what), "{error}");
    }
}

/// More bytes than were asked for are not read.
#[test]
fn endless_bodies() {
    let server = with_ranges(|request, image| Reply { endless: true, ..Reply::file(request, image) });
    let remote = opened(&server.url("/a"), |_| {});
    compare(&bytes(IMAGE_BYTES, 1), &remote, 1, 2);
    let server = Server::start(|_| Reply { endless: true, body: vec![0; 1 << 16], ..Reply::status(200) });
    let error = error_of(&server.url("/a"), |options| options.patience = Duration::from_secs(20));
    assert!(error.contains("exceeds") || error.contains("too long"), "{error}");
    let server = Server::start(|request| match request.path.as_str() {
        "/a.chunk-index" => Reply { endless: true, body: vec![0; 1000], ..Reply::status(200) },
        _ => Reply::status(404),
    });
    let error = error_of(&server.url("/a"), |_| {});
    assert!(error.contains("too long") || error.contains("exceeds"), "{error}");
}

#[test]
fn redirects_without_end() {
    let server = Server::start(|request| Reply::status(302).with("location", format!("{}x", request.path)));
    assert!(error_of(&server.url("/a"), |_| {}).contains("5 times"));
    assert!(server.requests().len() <= 6);
}

#[test]
fn indexes_that_are_none() {
    for (index, what) in [
        (b"<html>not found</html>".to_vec(), "not a chunk index"),
        (Vec::new(), "not a chunk index"),
        (index_of(&bytes(10_000_000, 2)), "SHA-256"),
    ] {
        let image = bytes(IMAGE_BYTES, 1);
        let server = Server::of_files([("/a.chunk-index", index), ("/a", image)]);
        let error = error_of(&server.url("/a"), |_| {});
        assert!(error.contains(what), "{error}");
    }
}

#[test]
fn a_wrong_sum_in_the_name() {
    let image = bytes(IMAGE_BYTES, 1);
    let server = Server::of_files([("/a.chunk-index", index_of(&image)), ("/a", image)]);
    let other = pagefold_remote::Sum::of(b"other");
    let error = error_of(&server.url(&format!("/a#{other}")), |_| {});
    assert!(error.contains("chunk index differs from its SHA-256"), "{error}");
}

#[test]
fn without_an_index_only_on_request() {
    let image = bytes(IMAGE_BYTES, 1);
    let server = Server::of_files([("/a", image.clone())]);
    let error = error_of(&server.url("/a"), |_| {});
    assert!(error.contains("pagefold index") && error.contains("--unverified"), "{error}");
    let remote = opened(&server.url("/a"), |options| options.may_be_unverified = true);
    compare(&image, &remote, 1, 5);
    assert_eq!(remote.fixed(), None);
}

#[test]
fn http_to_other_machines_needs_a_sum() {
    let error = open(&Location::parse("http://192.0.2.1/a").expect("a location"), &Options::default());
    let Err(error @ Error::Location { .. }) = error else { panic!("refused") };
    assert!(error.to_string().contains("#sha256:"), "{error}");
}

#[test]
fn a_file_that_changes_without_an_index() {
    let version = Arc::new(Mutex::new(1));
    let now = Arc::clone(&version);
    let server = Server::start(move |request| match request.path.as_str() {
        "/a" => {
            let version = *now.lock().expect("not poisoned");
            Reply::file(request, &bytes(IMAGE_BYTES, version)).with("etag", format!("\"{version}\""))
        }
        _ => Reply::status(404),
    });
    let remote = opened(&server.url("/a"), |options| options.may_be_unverified = true);
    remote.read_exact_at(&mut [0; 10], 0).expect("a read");
    *version.lock().expect("not poisoned") = 2;
    let error = remote.read_exact_at(&mut [0; 10], 80_000).expect_err("changed");
    assert!(error.to_string().contains("changed on the server"), "{error}");
}

/// What comes by http from elsewhere is not trusted because the way to it begins here.
#[test]
fn this_machine_may_not_vouch_for_others() {
    let image = bytes(IMAGE_BYTES, 1);
    let elsewhere = Server::of_files([("/a.chunk-index", index_of(&image)), ("/a", image.clone())]);
    // An address of this machine that is not one of its loopback addresses.
    let place = format!("http://0.0.0.0:{}", elsewhere.address.port());
    let server = Server::start(move |request| Reply::status(302).with("location", format!("{place}{}", request.path)));
    let folder = tempfile::tempdir().expect("a folder");
    let cache = Arc::new(pagefold_remote::Cache::open(folder.path(), 1 << 30).expect("a cache"));
    let with = |is_offline, may_be_unverified| {
        let mut options = Options::default();
        options.cache = Some(Arc::clone(&cache));
        (options.is_offline, options.may_be_unverified) = (is_offline, may_be_unverified);
        open(&Location::parse(&server.url("/a")).expect("a location"), &options)
    };
    let Err(error) = with(false, false) else { panic!("refused") };
    assert!(error.to_string().contains("#sha256:"), "{error}");
    let remote = with(false, true).expect("accepted");
    compare(&image, &remote, 1, 3);
    remote.blob().fetch_all(&mut |_| {}).expect("all of it");
    // What was accepted once is not verified from then on.
    assert!(with(true, false).is_err());
    compare(&image, &with(true, true).expect("as before"), 1, 3);
}

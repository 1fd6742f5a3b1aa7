//! The cache on disk.

use std::{fs, os::unix::fs::FileExt, path::Path, sync::Arc, thread, time::Duration};

use pagefold_remote::{Cache, Options};
use pagefold_storage::{ReadAt, Storage};
use pagefold_testing::web::{Reply, Server};

use crate::reading::{Random, bytes, compare, index_of, opened};

fn cache(path: &Path, limit_bytes: u64) -> Arc<Cache> {
    Arc::new(Cache::open(path, limit_bytes).expect("a cache"))
}

fn with(cache: &Arc<Cache>) -> impl Fn(&mut Options) + use<> {
    let cache = Arc::clone(cache);
    move |options| options.cache = Some(Arc::clone(&cache))
}

#[test]
fn a_warm_start_makes_no_request() {
    let image = bytes(1_000_000, 1);
    let server = Server::of_files([("/a.chunk-index", index_of(&image)), ("/a", image.clone())]);
    let folder = tempfile::tempdir().expect("a folder");
    let cache = cache(folder.path(), 1 << 30);
    let first = opened(&server.url("/a"), with(&cache));
    first.blob().fetch_all(&mut |_| {}).expect("all of it");
    let fixed = first.fixed().expect("a sum").to_string();
    let before = server.requests().len();
    let second = opened(&fixed, with(&cache));
    compare(&image, &second, 1, 10);
    assert_eq!(server.requests().len(), before);
    let [held] = &cache.list().expect("a list")[..] else { panic!("one blob") };
    assert_eq!((held.size_bytes, held.held_bytes), (1_000_000, 1_000_000));
}

/// A directory that only looks like a cache is neither used nor pruned.
#[test]
fn a_directory_with_other_files_is_no_cache() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    assert!(Cache::existing(&at("new"), 0).expect("nothing").is_none() && !at("new").exists());
    assert!(Cache::existing(folder.path(), 0).expect("nothing").is_none());
    for file in ["followed/notes", "blobs/0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef/x"] {
        fs::create_dir_all(at(file).parent().expect("a folder")).expect("a folder");
        fs::write(at(file), "precious").expect("a file");
    }
    for opened in [Cache::open(folder.path(), 0).map(Some), Cache::existing(folder.path(), 0)] {
        let Err(error) = opened else { panic!("it was opened") };
        assert!(error.to_string().contains("not a cache of remote images: name an empty"), "{error}");
    }
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 2);
    let cache = cache(&at("new"), 1 << 30);
    cache.prune(0).expect("a cache");
    assert!(Cache::existing(&at("new"), 0).expect("a cache").is_some() && at("new/CACHEDIR.TAG").exists());
    // A cache without a tag, as an early version made it, gets one.
    fs::remove_file(at("new/CACHEDIR.TAG")).expect("a tag");
    Cache::open(&at("new"), 0).expect("a cache");
    assert!(at("new/CACHEDIR.TAG").exists());
}

#[test]
fn offline_serves_what_is_there() {
    let image = bytes(1_000_000, 2);
    let server = Server::of_files([("/a.chunk-index", index_of(&image)), ("/a", image.clone())]);
    let folder = tempfile::tempdir().expect("a folder");
    let cache = cache(folder.path(), 1 << 30);
    let mut buf = [0; 1000];
    opened(&server.url("/a"), with(&cache)).read_exact_at(&mut buf, 5000).expect("a read");
    let before = server.requests().len();
    let offline = opened(&server.url("/a"), |options| {
        with(&cache)(options);
        options.is_offline = true;
    });
    offline.read_exact_at(&mut buf, 5000).expect("it is there");
    assert_eq!(buf, image[5000..6000]);
    let error = offline.read_exact_at(&mut buf, 500_000).expect_err("it is not there");
    assert!(error.to_string().contains("--offline"), "{error}");
    assert_eq!(server.requests().len(), before);
}

/// Bytes that change on disk are noticed and fetched again.
#[test]
fn flipped_bytes_are_fetched_again() {
    let image = bytes(1_000_000, 3);
    let server = Server::of_files([("/a.chunk-index", index_of(&image)), ("/a", image.clone())]);
    let folder = tempfile::tempdir().expect("a folder");
    let cache = cache(folder.path(), 1 << 30);
    opened(&server.url("/a"), with(&cache)).blob().fetch_all(&mut |_| {}).expect("all of it");
    let mut random = Random::new(4);
    for round in 0..20 {
        for entry in fs::read_dir(folder.path().join("blobs")).expect("a folder").flatten() {
            // All files: positions, sums and marks too.
            for name in ["data", "used", "index"] {
                let path = entry.path().join(name);
                let file = fs::OpenOptions::new().read(true).write(true).open(path).expect("a file");
                for _ in 0..3 {
                    let at = random.below(file.metadata().expect("metadata").len());
                    let mut byte = [0];
                    FileExt::read_exact_at(&file, &mut byte, at).expect("a byte");
                    file.write_all_at(&[byte[0] ^ 1 << random.below(8)], at).expect("a byte");
                }
            }
        }
        compare(&image, &opened(&server.url("/a"), with(&cache)), round, 3);
    }
}

#[test]
fn several_servers_send_for_each_chunk_once() {
    let image = bytes(3_000_000, 5);
    let (plain, index) = (image.clone(), index_of(&image));
    let server = Server::start(move |request| {
        if request.path.ends_with("index") {
            return Reply { body: index.clone(), ..Reply::status(200) };
        }
        Reply { delay: Duration::from_millis(5), ..Reply::file(request, &plain) }
    });
    let folder = tempfile::tempdir().expect("a folder");
    // Each has its own files, as a process has.
    let remotes: Vec<_> = (0..5).map(|_| opened(&server.url("/a"), with(&cache(folder.path(), 1 << 30)))).collect();
    thread::scope(|scope| {
        for remote in &remotes {
            scope.spawn(|| compare(&image, remote, 6, 10));
        }
    });
    let fetched: u64 = remotes.iter().map(|remote| remote.blob().fetched().bytes).sum();
    assert!(fetched <= 3_000_000, "{fetched}");
}

#[test]
fn the_coldest_chunks_leave_first() {
    let image = bytes(20 << 20, 7);
    let index = index_of(&image);
    let server = Server::of_files([("/a.chunk-index", index.clone()), ("/a", image.clone())]);
    let folder = tempfile::tempdir().expect("a folder");
    let cache = cache(folder.path(), 8 << 20);
    let remote = opened(&server.url("/a"), with(&cache));
    remote.blob().fetch_all(&mut |_| {}).expect("all of it");
    assert!(cache.disk_bytes().expect("a size") <= 12 << 20);
    compare(&image, &remote, 8, 5);
    // The second half was used in another minute than the first. The image ends after it, so nothing
    // is read ahead, which would still come while the cache is pruned.
    cache.prune(0).expect("emptied");
    let remote = opened(&server.url("/a"), with(&cache));
    remote.read_exact_at(&mut vec![0; 6 << 20], 14 << 20).expect("a read");
    for entry in fs::read_dir(folder.path().join("blobs")).expect("a folder").flatten() {
        let file = fs::OpenOptions::new().write(true).open(entry.path().join("used")).expect("a file");
        let now = fs::read(entry.path().join("used")).expect("a file");
        let chunks = remote.blob().index().len();
        for chunk in (0..chunks).filter(|chunk| now[chunk * 4..][..4] != [0; 4]) {
            let minute = if remote.blob().index().range(chunk).start < 17 << 20 { 900_u32 } else { 1000 };
            file.write_all_at(&minute.to_le_bytes(), chunk as u64 * 4).expect("a mark");
        }
    }
    cache.prune(3 << 20).expect("pruned");
    let fresh = opened(&server.url("/a"), with(&cache));
    fresh.read_exact_at(&mut vec![0; 2 << 20], 18 << 20).expect("a read");
    assert_eq!(fresh.blob().fetched().requests, 0);
    fresh.read_exact_at(&mut vec![0; 1 << 20], 14 << 20).expect("a read");
    assert!(fresh.blob().fetched().bytes >= 1 << 20, "{:?}", fresh.blob().fetched());
}

#[test]
fn a_cache_that_cannot_be_written_is_read() {
    let image = bytes(100_000, 9);
    let server = Server::of_files([("/a.chunk-index", index_of(&image)), ("/a", image.clone())]);
    let folder = tempfile::tempdir().expect("a folder");
    let remote = opened(&server.url("/a"), with(&cache(folder.path(), 1 << 30)));
    // Writes beyond what the file system has fail; here the files are gone under the reader.
    fs::remove_dir_all(folder.path()).expect("removed");
    compare(&image, &remote, 10, 5);
}

/// A cache that cannot hold chunks costs requests.
#[test]
fn a_cache_without_room_is_not_an_error() {
    let image = bytes(100_000, 11);
    let server = Server::of_files([("/a.chunk-index", index_of(&image)), ("/a", image.clone())]);
    let folder = tempfile::tempdir().expect("a folder");
    let cache = cache(folder.path(), 1 << 30);
    // No directory can be made below a file.
    fs::remove_dir(folder.path().join("blobs")).expect("removed");
    fs::write(folder.path().join("blobs"), "").expect("a file");
    compare(&image, &opened(&server.url("/a"), with(&cache)), 12, 5);
}

/// The files of a blob that is in use stay, and what is read later is kept in them.
#[test]
fn a_blob_in_use_is_emptied_but_not_removed() {
    let image = bytes(1_000_000, 13);
    let server = Server::of_files([("/a.chunk-index", index_of(&image)), ("/a", image.clone())]);
    let folder = tempfile::tempdir().expect("a folder");
    let cache = cache(folder.path(), 1 << 30);
    let remote = opened(&server.url("/a"), with(&cache));
    remote.blob().fetch_all(&mut |_| {}).expect("all of it");
    cache.prune(0).expect("emptied");
    let [held] = &cache.list().expect("a list")[..] else { panic!("one blob") };
    assert_eq!(held.held_bytes, 0);
    assert!(cache.disk_bytes().expect("a size") < 200 << 10);
    let second = opened(&server.url("/a"), with(&cache));
    second.blob().fetch_all(&mut |_| {}).expect("all of it");
    assert_eq!(cache.list().expect("a list")[0].held_bytes, 1_000_000);
    drop((remote, second));
    cache.prune(0).expect("emptied");
    assert!(cache.list().expect("a list").is_empty() && cache.disk_bytes().expect("a size") == 0);
    assert_eq!(fs::read_dir(folder.path().join("blobs")).expect("a folder").count(), 0);
}

/// Bytes on disk that no mark or no index explains are freed, so that the limit holds.
#[test]
fn what_nothing_refers_to_is_freed() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = cache(folder.path(), 1 << 30);
    for (seed, name) in [(14, Some("used")), (15, Some("index")), (16, None)] {
        let image = bytes(1_000_000, seed);
        let server = Server::of_files([("/a.chunk-index", index_of(&image)), ("/a", image.clone())]);
        let remote = opened(&server.url("/a"), with(&cache));
        remote.blob().fetch_all(&mut |_| {}).expect("all of it");
        let digits = remote.identity().trim_start_matches("sha256:").to_owned();
        drop(remote);
        let blob = folder.path().join("blobs").join(digits);
        match name {
            Some(name) => {
                let len = fs::metadata(blob.join(name)).expect("a file").len();
                fs::write(blob.join(name), vec![0; len as usize]).expect("a file");
            }
            None => {
                // All marks but that of the first chunk are gone.
                let used = fs::OpenOptions::new().write(true).open(blob.join("used")).expect("a file");
                let len = used.metadata().expect("metadata").len();
                used.write_all_at(&vec![0; len as usize - 4], 4).expect("marks");
            }
        }
    }
    fs::create_dir(folder.path().join("blobs/.removed-x")).expect("a folder");
    assert!(cache.disk_bytes().expect("a size") > 2_900_000);
    cache.prune(500_000).expect("pruned");
    assert!(cache.disk_bytes().expect("a size") <= 500_000);
    let [held] = &cache.list().expect("a list")[..] else { panic!("one blob") };
    assert!((1..100_000).contains(&held.held_bytes), "{held:?}");
}

/// Readers do not wait for a process that holds the cache's lock and does not go on.
#[test]
fn a_stopped_prune_does_not_stop_readers() {
    let image = bytes(9 << 20, 17);
    let server = Server::of_files([("/a.chunk-index", index_of(&image)), ("/a", image.clone())]);
    let folder = tempfile::tempdir().expect("a folder");
    let cache = cache(folder.path(), 1 << 20);
    let lock = fs::File::create(folder.path().join("lock")).expect("a file");
    lock.lock().expect("the lock");
    opened(&server.url("/a"), with(&cache)).blob().fetch_all(&mut |_| {}).expect("all of it");
    lock.unlock().expect("unlocked");
}

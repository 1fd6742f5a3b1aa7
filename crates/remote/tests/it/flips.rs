//! Flipped bits, wherever they are: what is wrong is never used, and the good copy is, if there is one.

use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use pagefold_remote::{Cache, Location, Mirrors, Options, Part, PushOptions, Remote, Sum, open, push};
use pagefold_storage::ReadAt;
use pagefold_testing::{
    registry::Registry,
    web::{Reply, Request, Server},
};
use serde_json::{Value, json};

use crate::reading::{Random, bytes, index_of};

const BLOCKS: u64 = 132;

/// A registry with one image.
struct Contents {
    image: Vec<u8>,
    blob: Vec<u8>,
    manifest: Vec<u8>,
}

/// What is wrong with what a server sends.
#[derive(Clone, Copy, Debug)]
struct Flip {
    in_manifest: bool,
    at: usize,
    bit: u8,
}

/// Where bits are flipped.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// In all that the only server sends.
    Server,
    /// In all that a mirror sends.
    Mirror,
    Cache,
}

impl Contents {
    /// Returns an image with its chunk index.
    fn indexed() -> Self {
        let image = bytes(BLOCKS as usize * 4096, 1);
        let index = index_of(&image);
        let blob = [&image[..], &index].concat();
        let annotations = json!({
            "org.erofs.chunk-index.range": format!("{}:{}", image.len(), blob.len()),
            "org.erofs.chunk-index.digest": Sum::of(&index).to_string(),
            "org.pagefold.opening": "0:49152,98304:147456",
        });
        Self::new(image, blob, &annotations)
    }

    /// Returns an image with a dm-verity tree that another program made.
    fn with_tree(test: &str) -> Option<Self> {
        let [veritysetup] = pagefold_testing::programs(test, ["veritysetup"])?;
        let image = bytes(BLOCKS as usize * 4096, 2);
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("image");
        fs::write(&path, &image).expect("a file");
        let mut format = Command::new(veritysetup);
        format.arg("format").args([&path, &path]).arg(format!("--hash-offset={}", image.len()));
        let made = format.arg(format!("--data-blocks={BLOCKS}")).output().expect("it starts");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let text = String::from_utf8(made.stdout).expect("text");
        let root = text.lines().find_map(|line| line.strip_prefix("Root hash:")).expect("a root").trim();
        let annotations = json!({
            "org.erofs.dmverity.root_digest": format!("sha256:{root}"),
            "org.erofs.dmverity.hash_offset": image.len().to_string(),
            "org.erofs.dmverity.block_size": "4096",
        });
        Some(Self::new(image, fs::read(&path).expect("a file"), &annotations))
    }

    fn new(image: Vec<u8>, blob: Vec<u8>, annotations: &Value) -> Self {
        let layer = json!({
            "mediaType": "application/vnd.erofs", "digest": Sum::of(&blob).to_string(), "size": blob.len(),
            "annotations": annotations,
        });
        let manifest = json!({"schemaVersion": 2, "layers": [layer]}).to_string().into_bytes();
        Self { image, blob, manifest }
    }

    fn reply(&self, request: &Request, flip: Option<Flip>) -> Reply {
        let path = request.path.split('?').next().expect("a path");
        let is_manifest = path.starts_with("/v2/a/manifests/");
        let mut bytes = match (is_manifest, path.starts_with("/v2/a/blobs/")) {
            (true, _) => self.manifest.clone(),
            (_, true) => self.blob.clone(),
            _ => return Reply::status(404),
        };
        if let Some(flip) = flip.filter(|flip| flip.in_manifest == is_manifest) {
            bytes[flip.at] ^= flip.bit;
        }
        Reply::file(request, &bytes)
    }

    fn flip(&self, random: &mut Random) -> Flip {
        let in_manifest = random.below(4) == 0;
        // Half of those in the blob are in the index or the tree.
        let (start, len) = match (in_manifest, random.below(2)) {
            (true, _) => (0, self.manifest.len()),
            (_, 0) => (0, self.blob.len()),
            _ => (self.image.len(), self.blob.len() - self.image.len()),
        };
        Flip { in_manifest, at: start + random.below(len as u64) as usize, bit: 1 << random.below(8) }
    }
}

/// Reads the whole image.
fn read(remote: &Remote) -> std::io::Result<Vec<u8>> {
    let mut found = vec![0; remote.len_bytes()? as usize];
    remote.read_exact_at(&mut found, 0)?;
    Ok(found)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").flatten();
    entries.flat_map(|entry| if entry.path().is_dir() { files(&entry.path()) } else { vec![entry.path()] }).collect()
}

/// Flips bits this often. Returns how often a read was refused.
fn flipped(contents: &Arc<Contents>, rounds: u64, seed: u64) -> u64 {
    let (flips, sound) = (Arc::<Mutex<Option<Flip>>>::default(), Arc::clone(contents));
    let (now, inner) = (Arc::clone(&flips), Arc::clone(contents));
    let flipping =
        Server::start(move |request| inner.reply(request, *now.lock().unwrap_or_else(PoisonError::into_inner)));
    let good = Server::start(move |request| sound.reply(request, None));
    let folder = tempfile::tempdir().expect("a folder");
    let directory = folder.path().join(format!("hosts/{}_{}_", good.address.ip(), good.address.port()));
    fs::create_dir_all(&directory).expect("a folder");
    fs::write(directory.join("hosts.toml"), format!("[host.\"{}\"]\n", flipping.url(""))).expect("a file");
    let manifest = Sum::of(&contents.manifest);
    let options = |place: Place, cache: Option<Arc<Cache>>| {
        let mut options = Options::default();
        options.cache = cache;
        let hosts = matches!(place, Place::Mirror).then(|| folder.path().join("hosts"));
        options.mirrors = Arc::new(Mirrors::of_files(Vec::new(), hosts));
        options
    };
    let opened = |server: &Server, options: &Options| {
        let name = format!("oci://{}/a@{manifest}", server.address);
        open(&Location::parse(&name).expect("a location"), options)
    };
    let mut random = Random::new(seed);
    let mut refused = 0;
    for round in 0..rounds {
        // Those of the only server take long, since it is asked again.
        let place = [Place::Mirror, Place::Cache, Place::Mirror, Place::Cache, Place::Server][(round % 5) as usize];
        let flip = contents.flip(&mut random);
        *flips.lock().unwrap_or_else(PoisonError::into_inner) = Some(flip);
        let case = format!("{place:?} {flip:?}");
        match place {
            Place::Server => {
                match opened(&flipping, &options(place, None)).map_err(Into::into).and_then(|it| read(&it)) {
                    Ok(found) => {
                        assert!(found == contents.image, "{case}");
                        // Nothing reads all of a tree's superblock, and upper levels follow from the last one.
                        assert!(!flip.in_manifest && flip.at >= contents.image.len(), "{case}");
                    }
                    Err(_) => refused += 1,
                }
            }
            Place::Mirror => {
                let remote = opened(&good, &options(place, None)).expect(&case);
                assert!(read(&remote).expect(&case) == contents.image, "{case}");
            }
            Place::Cache => {
                let cache = Arc::new(Cache::open(&folder.path().join("cache"), 1 << 30).expect("a cache"));
                let options = options(place, Some(cache));
                let remote = opened(&good, &options).expect(&case);
                assert!(read(&remote).expect(&case) == contents.image, "{case}");
                drop(remote);
                let all = files(&folder.path().join("cache"));
                for _ in 0..3 {
                    let path = &all[random.below(all.len() as u64) as usize];
                    let file = fs::OpenOptions::new().read(true).write(true).open(path).expect("a file");
                    let Some(at) = file.metadata().expect("metadata").len().checked_sub(1) else { continue };
                    let (at, mut byte) = (random.below(at + 1), [0]);
                    FileExt::read_exact_at(&file, &mut byte, at).expect("a byte");
                    file.write_all_at(&[byte[0] ^ 1 << random.below(8)], at).expect("a byte");
                }
                let remote = opened(&good, &options).expect(&case);
                assert!(read(&remote).expect(&case) == contents.image, "{case} {all:?}");
            }
        }
    }
    refused
}

fn flip_often(test: &str, rounds: u64) {
    let all = [Some(Contents::indexed()), Contents::with_tree(test)];
    for contents in all.into_iter().flatten().map(Arc::new) {
        let threads: Vec<_> = (0..8)
            .map(|seed| {
                let contents = Arc::clone(&contents);
                thread::spawn(move || flipped(&contents, rounds / 8, seed))
            })
            .collect();
        let refused: u64 = threads.into_iter().map(|thread| thread.join().expect("no panic")).sum();
        // A fifth is of the only server.
        assert!(refused > rounds / 5 * 2 / 3 && refused <= rounds / 5 + 8, "{refused} of {rounds}");
    }
}

#[test]
fn flipped_bits_are_never_used() {
    flip_often("flipped_bits_are_never_used", 160);
}

#[test]
#[ignore = "takes minutes; make soak runs it"]
fn ten_thousand_flipped_bits_are_never_used() {
    flip_often("ten_thousand_flipped_bits_are_never_used", 10_000);
}

/// A tree is an index like any other: what is in the cache needs no request.
#[test]
fn an_image_with_a_tree() {
    let Some(contents) = Contents::with_tree("an_image_with_a_tree") else { return };
    let contents = Arc::new(contents);
    let inner = Arc::clone(&contents);
    let server = Server::start(move |request| inner.reply(request, None));
    let folder = tempfile::tempdir().expect("a folder");
    let cache = Arc::new(Cache::open(folder.path(), 1 << 30).expect("a cache"));
    let opened = |name: &str, is_offline: bool| {
        let mut options = Options::default();
        (options.cache, options.is_offline) = (Some(Arc::clone(&cache)), is_offline);
        open(&Location::parse(name).expect("a location"), &options).expect("an image")
    };
    let name = format!("oci://{}/a:1", server.address);
    let remote = opened(&name, false);
    assert_eq!(remote.len_bytes().expect("a length"), contents.image.len() as u64);
    let mut found = [0; 5000];
    remote.read_exact_at(&mut found, 200_000).expect("a read");
    assert!(found[..] == contents.image[200_000..205_000]);
    // The manifest, the tree, and the chunks of the read.
    assert_eq!(server.requests().len(), 3);
    assert!(read(&remote).expect("a read") == contents.image);
    let requests = server.requests().len();
    let fixed = remote.fixed().expect("a sum").to_string();
    drop(remote);
    for (name, is_offline) in [(&fixed, false), (&name, true)] {
        assert!(read(&opened(name, is_offline)).expect("a read") == contents.image);
    }
    assert_eq!(server.requests().len(), requests);
    // Another registry gets it with its annotations.
    let Some(registry) = Registry::start("an_image_with_a_tree") else { return };
    let part = Part::of_remote(&opened(&fixed, false)).expect("a layer");
    let location = Location::parse(&registry.url("x/y:1")).expect("a location");
    let pushed = push(&part, &[], &location, &PushOptions::default()).expect("pushed");
    assert!(read(&opened(&pushed.fixed.to_string(), false)).expect("a read") == contents.image);
}

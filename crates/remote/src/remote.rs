//! Opening remote images.

use std::{
    cell::RefCell,
    io,
    ops::Range,
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use pagefold_storage::{ReadAt, Storage};
use ureq::http::Method;
use url::Url;

use crate::{
    access::{Access, Public, request},
    blob::{Blob, Noted},
    cache::Cache,
    early::Early,
    error::{Error, Result},
    follow::{self, Blobs},
    http::{Client, may_be_trusted, server},
    image::{Contents, IndexPlace, Layer, Layers, contents},
    index::{Index, MOST_INDEX_BYTES},
    location::{Location, Reference, shown},
    mirrors::Mirrors,
    missed::Missed,
    patience::{Failure, Patience},
    ranges::Ranges,
    recorder::Recorder,
    registry::Registry,
    s3::{Object, Store},
    sum::Sum,
    trace::TRACE_SUFFIX,
    verity::Tree,
};

/// The end of the name of a file's chunk index.
pub const INDEX_SUFFIX: &str = ".chunk-index";

/// The default time for which failures are waited out.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Chunks of a file without an index.
const UNVERIFIED_CHUNK_BYTES: u64 = 64 << 10;

/// Options for opening remote images. Change fields of [`Options::default`].
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// Where chunks are kept. `None`: only in memory.
    pub cache: Option<Arc<Cache>>,
    /// Whether only the cache is used, without any request.
    pub is_offline: bool,
    /// Whether files without an index are read, and indexes from servers that cannot be
    /// authenticated are trusted.
    pub may_be_unverified: bool,
    /// Mirrors of registries.
    pub mirrors: Arc<Mirrors>,
    /// How long failures of a server are waited out until a read fails.
    pub patience: Duration,
    /// Records which chunks are read first. A recorder is for one image.
    pub recorder: Option<Arc<Recorder>>,
    /// Whether a thread fetches along the newest trace of the image, if it has one.
    pub follows_traces: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cache: None,
            is_offline: false,
            may_be_unverified: false,
            mirrors: Arc::new(Mirrors::of_system()),
            patience: PATIENCE,
            recorder: None,
            follows_traces: false,
        }
    }
}

/// A remote image.
pub struct Remote {
    image: Arc<Blob>,
    devices: Vec<Arc<Remote>>,
    fixed: Option<Location>,
    /// Which layer of which repository it is.
    origin: Option<(Reference, Layer)>,
    /// The sum of the blob, if something other than the blob's own server vouches for it.
    sum: Option<Sum>,
    identity: String,
    extension: Option<&'static str>,
}

impl Remote {
    fn new(image: Arc<Blob>, identity: String) -> Self {
        Self { image, devices: Vec::new(), fixed: None, origin: None, sum: None, identity, extension: None }
    }

    /// Returns the image's blob.
    pub fn blob(&self) -> &Arc<Blob> {
        &self.image
    }

    /// Returns the blobs of the image and of its devices.
    pub fn blobs(&self) -> Vec<Arc<Blob>> {
        self.devices.iter().flat_map(|device| device.blobs()).chain([Arc::clone(&self.image)]).collect()
    }

    /// Returns which layer of which repository the image is.
    pub(crate) fn origin(&self) -> Option<&(Reference, Layer)> {
        self.origin.as_ref()
    }

    /// Returns the location with the sum that it led to, which stands for the same bytes for all
    /// time. `None` if nothing is verified, and for devices.
    pub fn fixed(&self) -> Option<&Location> {
        self.fixed.as_ref()
    }
}

impl ReadAt for Remote {
    fn len_bytes(&self) -> io::Result<u64> {
        self.image.len_bytes()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.image.read_exact_at(buf, offset)
    }

    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> usize {
        self.image.try_read_at(buf, offset)
    }

    fn read_all_at(&self, parts: &mut [(u64, &mut [u8])]) -> io::Result<()> {
        self.image.read_all_at(parts)
    }

    fn unit_bytes(&self) -> u64 {
        self.image.unit_bytes()
    }

    fn fetch(&self, ranges: &[Range<u64>]) {
        self.image.fetch(ranges);
    }

    fn blob_sha256(&self) -> Option<[u8; 32]> {
        self.sum.map(Into::into)
    }
}

impl Storage for Remote {
    fn identity(&self) -> &str {
        &self.identity
    }

    fn extension(&self) -> Option<&str> {
        self.extension
    }

    fn devices(&self) -> io::Result<Vec<Arc<dyn Storage>>> {
        Ok(self.devices.iter().map(|device| Arc::clone(device) as Arc<dyn Storage>).collect())
    }
}

/// A manifest.
struct Found {
    sum: Sum,
    bytes: Vec<u8>,
    /// Whether the cache did not have it.
    is_new: bool,
}

/// How the parts of a remote image are reached.
struct Opener<'a> {
    client: Arc<Client>,
    location: &'a Location,
    options: &'a Options,
    /// The blobs that are open.
    blobs: RefCell<Blobs>,
    missed: Arc<Missed>,
}

/// Opens an image without reading its content. Only what is not in the cache is asked for: nothing
/// at all if the location [is fixed](Location::is_fixed) and was opened before.
///
/// # Errors
/// [`Error`].
pub fn open(location: &Location, options: &Options) -> Result<Remote> {
    let client = Arc::new(Client::new());
    let opener = Opener { client, location, options, blobs: RefCell::default(), missed: Arc::default() };
    match location {
        Location::Web { url, index } => opener.with_sidecar_index(*index, url, &|suffix| {
            let mut url = url.clone();
            url.set_path(&format!("{}{suffix}", url.path()));
            Box::new(Public(url))
        }),
        Location::S3 { bucket, key, index } => {
            let store = Arc::new(Store::of_environment(bucket)?);
            opener.with_sidecar_index(*index, store.url(), &|suffix| {
                Box::new(Object { store: Arc::clone(&store), key: format!("{key}{suffix}") })
            })
        }
        Location::Oci(reference) => opener.in_registry(reference),
    }
}

impl Opener<'_> {
    fn cache(&self) -> Option<&Arc<Cache>> {
        self.options.cache.as_ref()
    }

    fn name(&self) -> String {
        self.location.to_string()
    }

    fn patience(&self) -> Patience {
        Patience::opening(self.options.patience)
    }

    /// Returns the result of the last opening of a location without a sum. A result that was
    /// accepted without verification is returned only if unverified ones are accepted now.
    fn remembered(&self, key: &str) -> Option<Sum> {
        let cache = self.cache()?;
        let unverified = || cache.name(&unverified(key)).filter(|_| self.options.may_be_unverified);
        cache.name(key).or_else(unverified)
    }

    fn remember(&self, key: &str, sum: Sum, is_authentic: bool) {
        let Some(cache) = self.cache() else { return };
        match is_authentic {
            true => cache.set_name(key, sum),
            false => cache.set_name(&unverified(key), sum),
        }
    }

    /// Opens a file whose index is next to it. `server` is a URL of its server. `access` returns the way
    /// to the file with this suffix.
    fn with_sidecar_index(
        &self,
        pinned: Option<Sum>,
        server: &Url,
        access: &dyn Fn(&str) -> Box<dyn Access>,
    ) -> Result<Remote> {
        // The same bucket and key are another object elsewhere.
        let key = match self.location {
            Location::S3 { .. } => format!("{} {server}", self.name()),
            _ => self.name(),
        };
        let sum = match (pinned, self.options.is_offline) {
            (None, true) => self.remembered(&key),
            (pinned, _) => pinned,
        };
        let is_sure = |is_authentic| pinned.is_some() || is_authentic || self.options.may_be_unverified;
        let cached = sum.and_then(|sum| Some((sum, self.cache()?.index(sum)?)));
        let is_new = cached.is_none();
        let follow = |sum: Sum| {
            let trace = access(TRACE_SUFFIX);
            self.following(sum, is_new, move || Ok(vec![trace]))
        };
        // Before the index arrives, if its sum is known.
        let mut following = pinned.filter(|_| is_new).and_then(follow);
        let (sum, index) = match cached {
            Some(found) => found,
            None if self.options.is_offline => return Err(Error::Offline(self.name())),
            None if !is_sure(may_be_trusted(server)) => return Err(self.not_authentic("#sha256:DIGITS")),
            None => match self.fetched_index(pinned, &*access(INDEX_SUFFIX))? {
                Some((_, _, is_authentic)) if !is_sure(is_authentic) => {
                    return Err(self.not_authentic("#sha256:DIGITS"));
                }
                Some((sum, index, is_authentic)) => {
                    if pinned.is_none() {
                        self.remember(&key, sum, is_authentic);
                    }
                    (sum, index)
                }
                None if self.options.may_be_unverified => return self.unverified(access("")),
                None => {
                    let what = format!(
                        "no {INDEX_SUFFIX} next to it, so that nothing can be verified: make one with \
                        'pagefold index', or read it as it is with --unverified"
                    );
                    return Err(Error::Server { url: self.name(), what });
                }
            },
        };
        let image = self.blob(sum, index, is_new, vec![access("")], &[]);
        if !is_new || pinned.is_none() {
            following = follow(sum);
        }
        if let Some(following) = following {
            let _ = following.send(self.blobs.take());
        }
        let mut fixed = self.location.clone();
        if let Location::Web { index, .. } | Location::S3 { index, .. } = &mut fixed {
            *index = Some(sum);
        }
        Ok(Remote { fixed: Some(fixed), ..Remote::new(image, sum.to_string()) })
    }

    fn not_authentic(&self, sum: &str) -> Error {
        let what = format!(
            "its content cannot be trusted, because not every request used https: add the sum, as {sum}, or use --unverified"
        );
        Error::Location { location: self.name(), what }
    }

    /// Returns the index, and whether the way that it came is authenticated; or `None` if the server
    /// does not have it.
    fn fetched_index(&self, pinned: Option<Sum>, access: &dyn Access) -> Result<Option<(Sum, Index, bool)>> {
        let bytes = self.patience().repeat(|until| {
            let reply = request(&self.client, access, &Method::GET, &[], None, until)?;
            match (reply.status.as_u16(), reply.is_authentic) {
                (200, is_authentic) => Ok(Some((reply.read_all(MOST_INDEX_BYTES, until)?, is_authentic))),
                (404 | 410, _) => {
                    reply.finish();
                    Ok(None)
                }
                _ => Err(reply.failure("the server refuses")),
            }
        })?;
        let Some((bytes, is_authentic)) = bytes else { return Ok(None) };
        let sum = Sum::of(&bytes);
        let url = shown(&access.url(&Method::HEAD));
        if pinned.is_some_and(|pinned| pinned != sum) {
            return Err(Error::Sum { url, what: "the chunk index".to_owned() });
        }
        Ok(Some((sum, Index::decode(&bytes, &url)?, is_authentic)))
    }

    /// Opens a file that has no index. Chunks are kept in memory only.
    fn unverified(&self, access: Box<dyn Access>) -> Result<Remote> {
        let mut ranges = Ranges::new(Arc::clone(&self.client), vec![access]);
        let size_bytes = self.patience().repeat(|until| ranges.pin(until))?;
        if size_bytes > i64::MAX as u64 || size_bytes / UNVERIFIED_CHUNK_BYTES > MOST_INDEX_BYTES / 48 {
            return Err(server(&ranges.url(), "the file is too large to be read without an index"));
        }
        let index = Arc::new(Index::without_sums(size_bytes, UNVERIFIED_CHUNK_BYTES));
        let version = ranges.version().map_or_else(String::new, |version| format!("{version:?}"));
        let identity = format!("unverified:{}:{size_bytes}:{version}", self.name());
        let image = Blob::new(self.name(), index, Some(ranges), None, false, self.options.patience, Noted::default());
        Ok(Remote::new(image, identity))
    }

    /// Returns the blob with this index, which is not from the cache if it `is_new`.
    /// `opening` is requested with the index.
    fn blob(
        &self,
        sum: Sum,
        index: Index,
        is_new: bool,
        ways: Vec<Box<dyn Access>>,
        opening: &[Range<u64>],
    ) -> Arc<Blob> {
        let index = Arc::new(index);
        // A cache that has no room costs requests, not the image.
        let chunks = self.cache().and_then(|cache| cache.chunks(sum, &index, is_new).ok());
        let ranges = (!self.options.is_offline).then(|| Ranges::new(Arc::clone(&self.client), ways));
        let recorder = self.options.recorder.as_ref();
        let touches = recorder.and_then(|recorder| recorder.begin(sum));
        let number = touches.as_ref().map(|touches| touches.number());
        let noted = Noted { touches, opening: opening.to_vec(), missed: Arc::clone(&self.missed) };
        let blob = Blob::new(self.name(), index, ranges, chunks, true, self.options.patience, noted);
        if let (Some(recorder), Some(number)) = (recorder, number) {
            recorder.add(number, &blob);
        }
        self.blobs.borrow_mut().push((sum, Arc::downgrade(&blob)));
        blob
    }

    /// Starts a thread that follows a trace once it gets the blobs; `find` returns the ways to the
    /// trace. If the image was opened before, following begins when a chunk is missing, because
    /// what is in the cache needs no trace. `None` if traces are not wanted, or this one was
    /// followed before. `of` is a sum of the image.
    fn following(
        &self,
        of: Sum,
        is_new: bool,
        find: impl FnOnce() -> Result<Vec<Box<dyn Access>>> + Send + 'static,
    ) -> Option<mpsc::Sender<Blobs>> {
        let is_followed = self.cache().is_some_and(|cache| cache.is_followed(of));
        if !self.options.follows_traces || self.options.is_offline || is_followed {
            return None;
        }
        let (give, take) = mpsc::channel();
        let (client, cache) = (Arc::clone(&self.client), self.cache().cloned());
        let begin = move || {
            // Held until the thread ends.
            let right = cache.as_ref().map(|cache| cache.try_following(of));
            if matches!(right, Some(None)) {
                return;
            }
            let ended = move || {
                cache.iter().for_each(|cache| cache.set_followed(of));
                drop(right);
            };
            follow::start(client, take, find, ended);
        };
        match is_new {
            true => begin(),
            false => self.missed.then(begin),
        }
        Some(give)
    }

    fn in_registry(&self, reference: &Reference) -> Result<Remote> {
        let registry = Arc::new(Registry::new(Arc::clone(&self.client), reference, &self.options.mirrors)?);
        let known = match (reference.manifest, self.options.is_offline) {
            (None, true) => self.remembered(&self.name()),
            (known, _) => known,
        };
        let follow = |of: Sum, is_new: bool| {
            let (registry, limit) = (Arc::clone(&registry), self.options.patience);
            self.following(of, is_new, move || registry.trace(of, limit))
        };
        let cached = known.and_then(|sum| self.cached_manifest(sum));
        // Before the manifest arrives, if its sum is known.
        let mut following = known.and_then(|sum| follow(sum, cached.is_none()));
        let mut found = match (known, cached) {
            (_, Some(found)) => found,
            (Some(sum), None) => self.fetched_manifest(&registry, sum)?,
            (None, None) => self.tagged_manifest(&registry, reference)?,
        };
        let (sum, mut layers) = (found.sum, None);
        // A list refers to manifests, not to further lists.
        for _ in 0..2 {
            match contents(&found.bytes, &self.name())? {
                Contents::Layers(all) => {
                    layers = Some(all);
                    break;
                }
                Contents::Other(other) => {
                    let cached = self.cached_manifest(other);
                    found = cached.map_or_else(|| self.fetched_manifest(&registry, other), Ok)?;
                }
            }
        }
        let wrong = || Error::Manifest { name: self.name(), what: "a list of lists of manifests".to_owned() };
        let Layers { devices, image } = layers.ok_or_else(wrong)?;
        if known != Some(found.sum) {
            following = follow(found.sum, found.is_new);
        }
        let mut room = MOST_INDEX_BYTES;
        let mut opened = |layer: Layer, is_vouched: bool| {
            let remote = self.layer(&registry, &layer, &mut room)?;
            let sum = is_vouched.then_some(layer.blob);
            Result::Ok(Remote { origin: Some((reference.clone(), layer)), sum, ..remote })
        };
        // A manifest binds an index to the sum of a layer. If the manifest was found by a tag, only
        // the server vouches for that sum. Therefore the image whose device the layer is must
        // contain the same sum, or the user must name it.
        let image = opened(image, reference.manifest.is_some())?;
        let devices = devices.into_iter().map(|device| opened(device, true).map(Arc::new));
        let devices: Vec<_> = devices.collect::<Result<_>>()?;
        if let Some(following) = following {
            let _ = following.send(self.blobs.take());
        }
        let identity = devices.iter().fold(image.identity.clone(), |all, device| format!("{all}+{}", device.identity));
        let fixed = Location::Oci(Reference { manifest: Some(sum), ..reference.clone() });
        Ok(Remote { devices, fixed: Some(fixed), identity, extension: Some("erofs"), ..image })
    }

    fn cached_manifest(&self, sum: Sum) -> Option<Found> {
        Some(Found { sum, bytes: self.cache()?.manifest(sum)?, is_new: false })
    }

    /// Returns the manifest with this sum.
    fn fetched_manifest(&self, registry: &Registry, sum: Sum) -> Result<Found> {
        if self.options.is_offline {
            return Err(Error::Offline(self.name()));
        }
        let fetch = |until| registry.manifest(&sum.to_string(), Some(sum), until);
        let (bytes, _) = self.patience().repeat(fetch)?;
        if Sum::of(&bytes) != sum {
            return Err(Error::Sum { url: self.name(), what: "the manifest".to_owned() });
        }
        self.cache().iter().for_each(|cache| cache.set_manifest(&bytes));
        Ok(Found { sum, bytes, is_new: true })
    }

    /// Returns the manifest that a tag means now.
    fn tagged_manifest(&self, registry: &Registry, reference: &Reference) -> Result<Found> {
        if self.options.is_offline {
            return Err(Error::Offline(self.name()));
        }
        let tag = reference.last();
        let is_sure = |is_authentic| is_authentic || self.options.may_be_unverified;
        let before = self.remembered(&self.name()).and_then(|sum| self.cached_manifest(sum));
        // If the registry does not send the sum alone, the manifest is requested.
        if let Some(before) = before
            && let Ok(Some((now, is_authentic))) = registry.meaning(&tag, self.patience().until())
            && now == before.sum
            && is_sure(is_authentic)
        {
            return Ok(before);
        }
        let (bytes, is_authentic) = self.patience().repeat(|until| registry.manifest(&tag, None, until))?;
        let sum = Sum::of(&bytes);
        if !is_sure(is_authentic) {
            return Err(self.not_authentic("@sha256:DIGITS"));
        }
        self.remember(&self.name(), sum, is_authentic);
        let is_new = self.cached_manifest(sum).is_none();
        self.cache().iter().for_each(|cache| cache.set_manifest(&bytes));
        Ok(Found { sum, bytes, is_new })
    }

    /// Opens a layer. The indexes of all have `room` together.
    fn layer(&self, registry: &Registry, layer: &Layer, room: &mut u64) -> Result<Remote> {
        let wrong = |what: &str| Error::Manifest { name: self.name(), what: what.to_owned() };
        let Some(sum) = layer.identity() else {
            return Err(wrong("no chunk index and no dm-verity tree, so that nothing can be verified"));
        };
        let too_long = || wrong("the chunk indexes of its layers exceed 64 MiB together");
        // Where the index is, or the tree.
        let (of, range) = match (&layer.index, &layer.tree) {
            (Some(IndexPlace::Apart(_, size)), _) => (sum, 0..*size),
            (Some(IndexPlace::Inside(range, _)), _) => (layer.blob, range.clone()),
            (None, Some(tree)) => (layer.blob, tree.offset..tree.offset + tree.len_bytes().map_err(wrong)?),
            (None, None) => unreachable!("without identity"),
        };
        if range.end - range.start > *room {
            return Err(too_long());
        }
        if of == layer.blob && range.end > layer.size_bytes {
            return Err(wrong("the dm-verity tree of a layer exceeds it"));
        }
        let cache = self.cache().map(|cache| &**cache);
        let cached = cache.and_then(|cache| cache.index(sum));
        let is_new = cached.is_none();
        let (index, early) = match cached {
            Some(index) => (index, Early::elsewhere(cache, sum)),
            None if self.options.is_offline => return Err(Error::Offline(self.name())),
            None => {
                let early = Early::request(&self.client, || registry.ways(layer.blob), &layer.opening, cache, sum);
                let ranges = Ranges::new(Arc::clone(&self.client), registry.ways(of)?);
                let index = self.patience().repeat(|until| self.fetch_index(&ranges, &range, layer, until))?;
                (index, early)
            }
        };
        // The index in the cache may be longer than the manifest says.
        *room = room.checked_sub(index.encoded_bytes()).ok_or_else(too_long)?;
        if index.stored_end() > layer.size_bytes {
            let what = "invalid chunk index: it exceeds the blob".to_owned();
            return Err(Error::Index { name: self.name(), what });
        }
        let image = self.blob(sum, index, is_new, registry.ways(layer.blob)?, &layer.opening);
        if let Some(early) = early {
            early.land(&image);
        }
        Ok(Remote::new(image, sum.to_string()))
    }

    /// Returns the chunk index of a layer, or that of its tree, from the first way that has it.
    fn fetch_index(&self, ranges: &Ranges, at: &Range<u64>, layer: &Layer, until: Instant) -> Result<Index, Failure> {
        let mut bytes = vec![0; (at.end - at.start) as usize];
        if bytes.is_empty() {
            return Ok(Index::decode(&bytes, &self.name())?);
        }
        let limit = until.saturating_duration_since(Instant::now());
        for _ in 0..ranges.ways() {
            let mut body = ranges.open(at.clone(), until)?;
            let read = body.fill(&mut bytes, limit).and_then(|()| self.read_index(&bytes, layer));
            let Err(failure) = read else { return read };
            ranges.failed(&mut body, failure)?;
        }
        Err(Failure::passing(server(&ranges.url(), "the server and all its mirrors failed")))
    }

    fn read_index(&self, bytes: &[u8], layer: &Layer) -> Result<Index, Failure> {
        let url = self.name();
        match (&layer.index, &layer.tree) {
            (Some(place), _) if Sum::of(bytes) == place.sum() => Ok(Index::decode(bytes, &url)?),
            (None, Some(place)) => {
                Ok(Index::of_tree(Tree::read(place, bytes).map_err(|what| Error::Tree { url, what })?))
            }
            _ => Err(Error::Sum { url, what: "the chunk index".to_owned() }.into()),
        }
    }
}

/// Returns the name in the cache of what was accepted without verification.
fn unverified(key: &str) -> String {
    format!("unverified {key}")
}

//! Storing images in registries and buckets.

use std::{
    io::{Cursor, Read},
    sync::Arc,
    time::Duration,
};

use serde_json::json;
use ureq::http::{HeaderValue, Method, StatusCode, header};

use crate::{
    access::request,
    error::{Error, Result},
    http::{Client, Outgoing, memory_bytes},
    image::{
        CONTAINERD_LAYER, DEVICE, INDEX, INDEX_DIGEST, INDEX_RANGE, INDEX_TARGET, IndexPlace, LAYER, MOST_DEVICES,
        OPENING, ROLE, TREE_BLOCK, TREE_OFFSET, TREE_ROOT,
    },
    index::MOST_INDEX_BYTES,
    location::{Location, Reference},
    mirrors::Mirrors,
    part::{Content, Download, Part, image_bytes},
    patience::Patience,
    range_text,
    ranges::Ranges,
    registry::{CONFIG, Descriptor, MANIFEST, Manifest, Registry},
    remote::{INDEX_SUFFIX, PATIENCE},
    s3::{Object, Store},
    sum::Sum,
    verity::BLOCK_BYTES,
};

/// The most bytes that S3 accepts in one request.
const MOST_OBJECT_BYTES: u64 = 5 << 30;

/// Options for storing images. Change fields of [`PushOptions::default`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PushOptions {
    /// The media types of layers in the manifest.
    pub media_types: MediaTypes,
    /// How long failures of a server are waited out.
    pub patience: Duration,
    /// Mirrors of registries. Where one of them replaces a registry, images are stored in the
    /// replacement.
    pub mirrors: Arc<Mirrors>,
}

impl Default for PushOptions {
    fn default() -> Self {
        Self { media_types: MediaTypes::default(), patience: PATIENCE, mirrors: Arc::new(Mirrors::of_system()) }
    }
}

/// Media types of layers that are EROFS images.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MediaTypes {
    /// The media type of erofs-image-spec.
    #[default]
    Spec,
    /// The media type of containerd and erofs-utils.
    Containerd,
}

/// An image that was stored.
#[derive(Clone, Debug)]
pub struct Pushed {
    /// The location with the sum that stands for these bytes for all time.
    pub fixed: Location,
    /// The bytes of all that the image consists of.
    pub bytes: u64,
    /// The bytes that the server did not have.
    pub sent_bytes: u64,
}

/// Stores an image at `location`, with its chunk index. `devices` hold data of it, in the order of its
/// device table. A registry gets them too; a bucket does not.
///
/// # Errors
/// [`Error`]. What was sent until then may remain, but nothing refers to it.
pub fn push(image: &Part, devices: &[Part], location: &Location, options: &PushOptions) -> Result<Pushed> {
    check(Some(image), devices, location)?;
    match location {
        Location::S3 { bucket, key, .. } => to_bucket(image, location, bucket, key, options),
        Location::Oci(reference) => to_registry(image, devices, reference, options),
        Location::Web { .. } => Err(no_push(location)),
    }
}

fn no_push(location: &Location) -> Error {
    let what = format!(
        "push stores to oci:// and s3://; for a web server, copy the image and the {INDEX_SUFFIX} that \
         'pagefold index' makes"
    );
    Error::Location { location: location.to_string(), what }
}

/// Checks that an image with these devices, which may be unfinished, can be stored at `location` and read
/// there.
///
/// # Errors
/// [`Error::Location`]: nothing is stored at such a location, or the image has too many devices, or their
/// indexes are too long together.
pub fn check(image: Option<&Part>, devices: &[Part], location: &Location) -> Result<()> {
    let wrong = |what: String| Err(Error::Location { location: location.to_string(), what });
    match location {
        Location::Web { .. } => return Err(no_push(location)),
        Location::S3 { index: None, .. } | Location::Oci(Reference { manifest: None, .. }) => {}
        Location::S3 { .. } | Location::Oci(_) => {
            return wrong("a push needs a tag or a key without a sum: the sum follows from the image".to_owned());
        }
    }
    if devices.len() > MOST_DEVICES {
        return wrong(format!(
            "the image has {} devices, and at most {MOST_DEVICES} can be read: 'pagefold freeze' without --backing \
            writes an image that has none",
            devices.len()
        ));
    }
    if devices.iter().chain(image).map(Part::index_bytes).sum::<u64>() > MOST_INDEX_BYTES {
        return wrong("the chunk indexes exceed 64 MiB together".to_owned());
    }
    Ok(())
}

fn to_bucket(image: &Part, location: &Location, bucket: &str, key: &str, options: &PushOptions) -> Result<Pushed> {
    let wrong = |what: &str| Error::Location { location: location.to_string(), what: what.to_owned() };
    let (Content::Here { bytes, index, .. }, Some(IndexPlace::Inside(place, sum))) =
        (&image.content, &image.layer.index)
    else {
        return Err(wrong("a layer of a registry is not stored in a bucket"));
    };
    let size_bytes = place.start;
    if size_bytes > MOST_OBJECT_BYTES {
        return Err(wrong("an object is stored in one request, of at most 5 GiB"));
    }
    let client = Client::new();
    let store = Arc::new(Store::of_environment(bucket)?);
    let put = |key, body: &Outgoing<'_>| {
        put_object(&client, &Object { store: Arc::clone(&store), key }, body, options.patience)
    };
    put(key.to_owned(), &Outgoing { len_bytes: size_bytes, open: &|| image_bytes(&**bytes, size_bytes) })?;
    let body = Outgoing { len_bytes: index.len() as u64, open: &|| memory_bytes(index) };
    put(format!("{key}{INDEX_SUFFIX}"), &body)?;
    let fixed = Location::S3 { bucket: bucket.to_owned(), key: key.to_owned(), index: Some(*sum) };
    Ok(Pushed { fixed, bytes: place.end, sent_bytes: place.end })
}

fn to_registry(image: &Part, devices: &[Part], reference: &Reference, options: &PushOptions) -> Result<Pushed> {
    let client = Arc::new(Client::new());
    let registry = Arc::new(Registry::for_storing(Arc::clone(&client), reference, &options.mirrors)?);
    let mut storing = Storing { client, registry, options, bytes: 0, sent_bytes: 0 };
    let mut layers = Vec::new();
    // A manifest must not end with an index or a device.
    for (part, is_device) in devices.iter().map(|device| (device, true)).chain([(image, false)]) {
        storing.store_part(part)?;
        layers.extend(descriptors(part, is_device, options.media_types));
    }
    let config = config(&layers, options.media_types);
    let sum = Sum::of(&config);
    storing.store(sum, &Outgoing { len_bytes: config.len() as u64, open: &|| memory_bytes(&config) }, None)?;
    let manifest = Manifest {
        schema_version: 2,
        media_type: MANIFEST.to_owned(),
        config: Some(descriptor(CONFIG, sum, config.len() as u64)),
        layers,
        manifests: Vec::new(),
    };
    let manifest = serde_json::to_vec(&manifest).map_err(|error| Error::Manifest {
        name: Location::Oci(reference.clone()).to_string(),
        what: error.to_string(),
    })?;
    storing.patience().repeat(|until| storing.registry.set_manifest(&reference.last(), MANIFEST, &manifest, until))?;
    let fixed = Location::Oci(Reference { manifest: Some(Sum::of(&manifest)), ..reference.clone() });
    let of_manifest = manifest.len() as u64;
    Ok(Pushed { fixed, bytes: storing.bytes + of_manifest, sent_bytes: storing.sent_bytes + of_manifest })
}

/// Stores an object in a bucket.
pub(crate) fn put_object(client: &Client, object: &Object, body: &Outgoing<'_>, patience: Duration) -> Result<()> {
    let kind = [(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"))];
    Patience::opening(patience).repeat(|until| {
        let reply = request(client, object, &Method::PUT, &kind, Some(body), until)?;
        match reply.status {
            StatusCode::OK | StatusCode::CREATED | StatusCode::NO_CONTENT => Ok(()),
            _ => Err(reply.failure("the server refuses")),
        }
    })
}

/// An image that is being stored in a repository.
pub(crate) struct Storing<'a> {
    pub(crate) client: Arc<Client>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) options: &'a PushOptions,
    pub(crate) bytes: u64,
    pub(crate) sent_bytes: u64,
}

impl Storing<'_> {
    pub(crate) fn patience(&self) -> Patience {
        Patience::opening(self.options.patience)
    }

    /// Stores a blob, unless the repository has it, or the registry has it in the repository `from`.
    pub(crate) fn store(&mut self, sum: Sum, body: &Outgoing<'_>, from: Option<&str>) -> Result<()> {
        self.bytes += body.len_bytes;
        let is_there = self.patience().repeat(|until| self.registry.has(sum, until))?;
        if !is_there && self.patience().repeat(|until| self.registry.upload(sum, body, from, until))? {
            self.sent_bytes += body.len_bytes;
        }
        Ok(())
    }

    fn store_part(&mut self, part: &Part) -> Result<()> {
        match &part.content {
            Content::There(reference) => {
                let registry = Registry::new(Arc::clone(&self.client), reference, &self.options.mirrors)?;
                let from = registry.mountable_from(&self.registry);
                let patience = self.options.patience;
                for (sum, size_bytes) in part.blobs() {
                    let ranges = Ranges::new(
                        Arc::clone(&self.client),
                        vec![Box::new(registry.source_place(&format!("blobs/{sum}"))?)],
                    );
                    // The registry that the bytes go to compares them with their sum.
                    let open = || -> Box<dyn Read> {
                        Box::new(Download::new(&ranges, 0..size_bytes, Patience::new(patience)))
                    };
                    self.store(sum, &Outgoing { len_bytes: size_bytes, open: &open }, from)?;
                }
            }
            Content::Here { bytes, index, is_appended } => {
                let size_bytes = part.layer.size_bytes;
                let own_bytes = if *is_appended { size_bytes - index.len() as u64 } else { size_bytes };
                let end = if *is_appended { &index[..] } else { &[] };
                let open = || -> Box<dyn Read> { Box::new(image_bytes(&**bytes, own_bytes).chain(Cursor::new(end))) };
                self.store(part.layer.blob, &Outgoing { len_bytes: size_bytes, open: &open }, None)?;
                if let Some(IndexPlace::Apart(sum, size_bytes)) = &part.layer.index {
                    let open = || memory_bytes(index);
                    self.store(*sum, &Outgoing { len_bytes: *size_bytes, open: &open }, None)?;
                }
            }
        }
        Ok(())
    }
}

/// Returns the descriptors of a part's layers for a manifest.
fn descriptors(part: &Part, is_device: bool, media_types: MediaTypes) -> Vec<Descriptor> {
    let media_type = match media_types {
        MediaTypes::Spec => LAYER,
        MediaTypes::Containerd => CONTAINERD_LAYER,
    };
    let mut layer = descriptor(media_type, part.layer.blob, part.layer.size_bytes);
    let mut note = |key: &str, value: String| layer.annotations.insert(key.to_owned(), value);
    if is_device {
        note(ROLE, DEVICE.to_owned());
    }
    if let Some(tree) = &part.layer.tree {
        note(TREE_ROOT, tree.root.to_string());
        note(TREE_OFFSET, tree.offset.to_string());
        note(TREE_BLOCK, BLOCK_BYTES.to_string());
    }
    if !part.layer.opening.is_empty() {
        note(OPENING, range_text::text(&part.layer.opening));
    }
    match &part.layer.index {
        Some(IndexPlace::Inside(range, sum)) => {
            note(INDEX_RANGE, format!("{}:{}", range.start, range.end));
            note(INDEX_DIGEST, sum.to_string());
            vec![layer]
        }
        Some(IndexPlace::Apart(sum, size_bytes)) => {
            let mut index = descriptor(INDEX, *sum, *size_bytes);
            index.annotations.insert(INDEX_TARGET.to_owned(), part.layer.blob.to_string());
            vec![layer, index]
        }
        None => vec![layer],
    }
}

fn descriptor(media_type: &str, sum: Sum, size: u64) -> Descriptor {
    Descriptor {
        media_type: media_type.to_owned(),
        digest: sum.to_string(),
        size,
        annotations: Default::default(),
        platform: None,
    }
}

/// Returns an image's configuration: the same bytes for the same layers. To containerd, an index is not a
/// layer.
fn config(layers: &[Descriptor], media_types: MediaTypes) -> Vec<u8> {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let layers = layers.iter().filter(|layer| media_types == MediaTypes::Spec || layer.media_type != INDEX);
    let sums: Vec<_> = layers.map(|layer| &layer.digest).collect();
    let config = json!({
        "architecture": architecture,
        "os": "linux",
        "os.features": ["erofs"],
        "config": {},
        "rootfs": { "type": "layers", "diff_ids": sums },
    });
    config.to_string().into_bytes()
}

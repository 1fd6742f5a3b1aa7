//! Storing images in registries and buckets.

use std::{
    fs::File,
    io::{self, Cursor, Read},
    ops::Range,
    os::unix::fs::FileExt,
    sync::Arc,
};

use serde_json::json;
use ureq::http::{HeaderValue, Method, StatusCode, header};

use crate::{
    access::request,
    cut::{Clusters, index_with},
    error::{Error, Result},
    http::{Client, Outgoing},
    image::{INDEX_DIGEST, INDEX_RANGE, LAYER},
    location::{Location, Reference},
    patience::Patience,
    registry::{CONFIG, Descriptor, MANIFEST, Manifest, Registry},
    remote::{INDEX_SUFFIX, Options},
    s3::{Object, Store},
    sum::{Sum, Summing},
};

/// The most bytes that S3 accepts in one request.
const MOST_OBJECT_BYTES: u64 = 5 << 30;

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

/// Stores the image in `file`, whose name is `path`, at `location`, with its chunk index.
///
/// # Errors
/// [`Error`]. What was sent until then may remain, but nothing refers to it.
pub fn push(file: &File, path: &str, clusters: &Clusters, location: &Location, options: &Options) -> Result<Pushed> {
    let failed = |source: io::Error| Error::Io { path: path.to_owned(), source };
    let mut summing = Summing::default();
    let index = index_with(file, clusters, &mut |bytes| summing.add(bytes)).map_err(failed)?;
    let (size_bytes, index) = (index.size_bytes(), index.encode());
    let client = Arc::new(Client::new());
    let patience = || Patience::opening(options.patience);
    match location {
        Location::Web { .. } => {
            let what = format!(
                "push stores to oci:// and s3://; for a web server, copy the image and the \
                {INDEX_SUFFIX} that 'pagefold index' makes"
            );
            Err(Error::Location { location: location.to_string(), what })
        }
        Location::S3 { bucket, key, index: None } => {
            if size_bytes > MOST_OBJECT_BYTES {
                let what = "an object is stored in one request, of at most 5 GiB".to_owned();
                return Err(Error::Location { location: location.to_string(), what });
            }
            let store = Arc::new(Store::of_environment(bucket)?);
            let put = |key: String, body: &Outgoing<'_>| {
                let object = Object { store: Arc::clone(&store), key };
                let kind = [(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"))];
                patience().repeat(|until| {
                    let reply = request(&client, &object, &Method::PUT, &kind, Some(body), until)?;
                    match reply.status {
                        StatusCode::OK | StatusCode::CREATED | StatusCode::NO_CONTENT => Ok(()),
                        _ => Err(reply.failure("the server refuses")),
                    }
                })
            };
            put(key.clone(), &Outgoing { len_bytes: size_bytes, open: &|| part(file, 0..size_bytes) })?;
            let bytes = &index;
            let open = || -> Box<dyn Read> { Box::new(Cursor::new(bytes.clone())) };
            put(format!("{key}{INDEX_SUFFIX}"), &Outgoing { len_bytes: index.len() as u64, open: &open })?;
            let sent_bytes = size_bytes + index.len() as u64;
            let fixed = Location::S3 { bucket: bucket.clone(), key: key.clone(), index: Some(Sum::of(&index)) };
            Ok(Pushed { fixed, bytes: sent_bytes, sent_bytes })
        }
        Location::Oci(reference @ Reference { manifest: None, .. }) => {
            let registry = Arc::new(Registry::new(client, reference)?);
            summing.add(&index);
            let blob = summing.sum();
            let blob_bytes = size_bytes + index.len() as u64;
            let mut sent_bytes = 0;
            let mut store = |sum: Sum, body: &Outgoing<'_>| {
                if !patience().repeat(|until| registry.has(sum, until))? {
                    patience().repeat(|until| registry.upload(sum, body, until))?;
                    sent_bytes += body.len_bytes;
                }
                Result::Ok(())
            };
            // A manifest may not end with an index: it is the end of the blob.
            let bytes = &index;
            let open = || -> Box<dyn Read> { Box::new(part(file, 0..size_bytes).chain(Cursor::new(bytes.clone()))) };
            store(blob, &Outgoing { len_bytes: blob_bytes, open: &open })?;
            let config = config(blob);
            let open = || -> Box<dyn Read> { Box::new(Cursor::new(config.clone())) };
            store(Sum::of(&config), &Outgoing { len_bytes: config.len() as u64, open: &open })?;
            let layer = Descriptor {
                annotations: [
                    (INDEX_RANGE.to_owned(), format!("{size_bytes}:{blob_bytes}")),
                    (INDEX_DIGEST.to_owned(), Sum::of(&index).to_string()),
                ]
                .into(),
                ..descriptor(LAYER, blob, blob_bytes)
            };
            let manifest = Manifest {
                schema_version: 2,
                media_type: MANIFEST.to_owned(),
                config: Some(descriptor(CONFIG, Sum::of(&config), config.len() as u64)),
                layers: vec![layer],
                manifests: Vec::new(),
            };
            let manifest = serde_json::to_vec(&manifest).map_err(|error| failed(error.into()))?;
            patience().repeat(|until| registry.set_manifest(&reference.last(), &manifest, until))?;
            let bytes = blob_bytes + (config.len() + manifest.len()) as u64;
            let fixed = Location::Oci(Reference { manifest: Some(Sum::of(&manifest)), ..reference.clone() });
            Ok(Pushed { fixed, bytes, sent_bytes: sent_bytes + manifest.len() as u64 })
        }
        Location::S3 { .. } | Location::Oci(_) => {
            let what = "a sum names what exists: push to a tag or a key alone".to_owned();
            Err(Error::Location { location: location.to_string(), what })
        }
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

/// Returns an image's configuration: the same bytes for the same blob.
fn config(blob: Sum) -> Vec<u8> {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let config = json!({
        "architecture": architecture,
        "os": "linux",
        "os.features": ["erofs"],
        "config": {},
        "rootfs": { "type": "layers", "diff_ids": [blob.to_string()] },
    });
    config.to_string().into_bytes()
}

/// Returns a reader of a part of a file, independent of others.
pub(crate) fn part(file: &File, range: Range<u64>) -> Box<dyn Read + '_> {
    Box::new(Part { file, range })
}

struct Part<'a> {
    file: &'a File,
    range: Range<u64>,
}

impl Read for Part<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = (self.range.end - self.range.start).min(buf.len() as u64) as usize;
        let len = self.file.read_at(&mut buf[..len], self.range.start)?;
        self.range.start += len as u64;
        Ok(len)
    }
}

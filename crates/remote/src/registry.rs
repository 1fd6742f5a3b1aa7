//! Images in registries: the OCI distribution protocol.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use serde::{Deserialize, Serialize};
use ureq::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use url::Url;

use crate::{
    access::{Access, request},
    error::{Error, Result},
    http::{Client, Outgoing, Reply, same, server},
    location::{Location, Reference, is_loopback},
    part::memory_bytes,
    patience::Failure,
    sum::Sum,
    tokens::Tokens,
};

pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const MANIFEST_LIST: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const ACCEPTED: &str = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, \
application/vnd.docker.distribution.manifest.v2+json, application/vnd.docker.distribution.manifest.list.v2+json";

/// The longest manifest that is read. Registries accept at least as much.
const MOST_MANIFEST_BYTES: u64 = 4 << 20;

/// A registry's repository.
pub(crate) struct Registry {
    client: Arc<Client>,
    base: Url,
    name: String,
    tokens: Tokens,
}

/// A manifest or a list of manifests. Unknown fields are ignored.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Manifest {
    pub(crate) schema_version: u32,
    #[serde(default)]
    pub(crate) media_type: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) config: Option<Descriptor>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) layers: Vec<Descriptor>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) manifests: Vec<Descriptor>,
}

/// What a manifest refers to.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    #[serde(default)]
    pub(crate) media_type: String,
    pub(crate) digest: String,
    pub(crate) size: u64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) annotations: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) platform: Option<Platform>,
}

/// Which machines a manifest is for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Platform {
    pub(crate) architecture: String,
    pub(crate) os: String,
    #[serde(default, rename = "os.features", skip_serializing_if = "Vec::is_empty")]
    pub(crate) os_features: Vec<String>,
}

/// A place in a repository.
pub(crate) struct Place {
    registry: Arc<Registry>,
    url: Url,
}

impl Registry {
    pub(crate) fn new(client: Arc<Client>, reference: &Reference) -> Result<Self> {
        let wrong = |what: String| Error::Location { location: Location::Oci(reference.clone()).to_string(), what };
        let (registry, server) = match &*reference.registry {
            "docker.io" | "index.docker.io" => ("registry-1.docker.io", "https://index.docker.io/v1/"),
            other => (other, other),
        };
        let mut base = Url::parse(&format!("https://{registry}/v2/")).map_err(|error| wrong(error.to_string()))?;
        // As docker does it. The port of a URL whose scheme changes would be lost if it were https's.
        if is_loopback(&base) {
            base = Url::parse(&format!("http://{registry}/v2/")).map_err(|error| wrong(error.to_string()))?;
        }
        let name = match registry {
            "registry-1.docker.io" if !reference.repository.contains('/') => {
                format!("library/{}", reference.repository)
            }
            _ => reference.repository.clone(),
        };
        Ok(Self { client, base, name, tokens: Tokens::new(server.to_owned()) })
    }

    /// Returns the path of the repository.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether both are repositories of one registry.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        self.base == other.base && self.name != other.name
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn place(self: &Arc<Self>, rest: &str) -> Result<Place> {
        let url = self.base.join(&format!("{}/{rest}", self.name));
        let url = url.map_err(|error| server(&self.base, &error.to_string()))?;
        Ok(Place { registry: Arc::clone(self), url })
    }

    /// Returns the place with a URL, if it is at this registry.
    pub(crate) fn place_of(self: &Arc<Self>, url: Url) -> Option<Place> {
        same(&url, &self.base).then(|| Place { registry: Arc::clone(self), url })
    }

    pub(crate) fn blob(self: &Arc<Self>, sum: Sum) -> Result<Place> {
        self.place(&format!("blobs/{sum}"))
    }

    /// Returns the bytes of a manifest, and whether the way that they came is authenticated.
    pub(crate) fn manifest(self: &Arc<Self>, last: &str, until: Instant) -> Result<(Vec<u8>, bool), Failure> {
        let place = self.place(&format!("manifests/{last}"))?;
        let accepted = [(header::ACCEPT, HeaderValue::from_static(ACCEPTED))];
        let reply = request(&self.client, &place, &Method::GET, &accepted, None, until)?;
        match (reply.status, reply.is_authentic) {
            (StatusCode::OK, is_authentic) => Ok((reply.read_all(MOST_MANIFEST_BYTES, until)?, is_authentic)),
            _ => Err(reply.failure("the server refuses")),
        }
    }

    /// Returns whether the repository has a blob.
    pub(crate) fn has(self: &Arc<Self>, sum: Sum, until: Instant) -> Result<bool, Failure> {
        let reply = request(&self.client, &self.blob(sum)?, &Method::HEAD, &[], None, until)?;
        match reply.status {
            StatusCode::OK => Ok(true),
            StatusCode::NOT_FOUND => Ok(false),
            _ => Err(reply.failure("the registry refuses")),
        }
    }

    /// Uploads a blob, or takes it over from another repository of the registry, if that is possible.
    /// Returns whether it was uploaded.
    pub(crate) fn upload(
        self: &Arc<Self>,
        sum: Sum,
        body: &Outgoing<'_>,
        from: Option<&str>,
        until: Instant,
    ) -> Result<bool, Failure> {
        let mut start = self.place("blobs/uploads/")?;
        if let Some(from) = from {
            start.url.query_pairs_mut().append_pair("mount", &sum.to_string()).append_pair("from", from);
        }
        let nothing = || -> Box<dyn std::io::Read> { Box::new(std::io::empty()) };
        let nothing = Outgoing { len_bytes: 0, open: &nothing };
        let reply = request(&self.client, &start, &Method::POST, &[], Some(&nothing), until)?;
        match (reply.status, from) {
            (StatusCode::ACCEPTED, _) => {}
            (StatusCode::CREATED, Some(_)) => return Ok(false),
            // The other repository may be out of the user's reach.
            (status, Some(_)) if status.is_client_error() && !reply.failure("").passing => {
                reply.finish();
                return self.upload(sum, body, None, until);
            }
            _ => return Err(reply.failure("the registry accepts no upload")),
        }
        let next = reply.header(header::LOCATION).and_then(|location| reply.url.join(location).ok());
        let mut next = next.ok_or_else(|| server(&reply.url, "the registry names no place for an upload"))?;
        if next.scheme() != "https" && next.scheme() != self.base.scheme() {
            return Err(server(&reply.url, "the registry names a place without https for an upload").into());
        }
        next.query_pairs_mut().append_pair("digest", &sum.to_string());
        let place = Place { registry: Arc::clone(self), url: next };
        let kind = [(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"))];
        self.created(request(&self.client, &place, &Method::PUT, &kind, Some(body), until)?)?;
        Ok(true)
    }

    /// Stores a manifest under a tag or its sum.
    pub(crate) fn set_manifest(
        self: &Arc<Self>,
        last: &str,
        media_type: &'static str,
        bytes: &[u8],
        until: Instant,
    ) -> Result<Reply, Failure> {
        let body = Outgoing { len_bytes: bytes.len() as u64, open: &|| memory_bytes(bytes) };
        let kind: [(HeaderName, HeaderValue); 1] = [(header::CONTENT_TYPE, HeaderValue::from_static(media_type))];
        let place = self.place(&format!("manifests/{last}"))?;
        self.created(request(&self.client, &place, &Method::PUT, &kind, Some(&body), until)?)
    }

    fn created(&self, reply: Reply) -> Result<Reply, Failure> {
        match reply.status {
            StatusCode::CREATED | StatusCode::OK | StatusCode::NO_CONTENT => Ok(reply),
            _ => Err(reply.failure("the registry refuses")),
        }
    }
}

impl Access for Place {
    fn url(&self, _method: &Method) -> Url {
        self.url.clone()
    }

    fn authorization(&self) -> Option<HeaderValue> {
        self.registry.tokens.authorization().filter(|_| same(&self.url, &self.registry.base))
    }

    fn challenged(
        &self,
        client: &Client,
        refused: &Reply,
        used: Option<&HeaderValue>,
        until: Instant,
    ) -> Result<bool, Failure> {
        if refused.status != StatusCode::UNAUTHORIZED || !same(&refused.url, &self.registry.base) {
            return Ok(false);
        }
        self.registry.tokens.challenged(client, refused, used, until)
    }
}

//! Images in registries: the OCI distribution protocol.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use ureq::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use url::Url;

use crate::{
    access::{Access, request},
    error::{Error, Result},
    http::{Client, Outgoing, Reply, may_be_trusted, same, server},
    location::{Location, Reference, is_loopback},
    mirrors::{Has, Mirror, Mirrors, base, canonical},
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

/// A mirror that failed is not asked for so long, unless nothing else is left.
const REST: Duration = Duration::from_secs(10);

/// How long one of several servers may take to send a manifest.
const MIRROR_TIME: Duration = Duration::from_secs(10);

/// A registry's repository.
pub(crate) struct Registry {
    client: Arc<Client>,
    /// The registry itself.
    home: Arc<Server>,
    /// Where its images are read: from mirrors, and from the last one if all others lack something.
    readers: Vec<Arc<Server>>,
}

/// A server that has images of a repository.
struct Server {
    place: Mirror,
    tokens: Tokens,
    /// Until when others are asked first.
    rests_until: Mutex<Option<Instant>>,
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
    server: Arc<Server>,
    url: Url,
}

impl Server {
    /// Returns the server at a place. Its credentials are those for `name`.
    fn new(place: Mirror, name: String) -> Arc<Self> {
        Arc::new(Self { place, tokens: Tokens::new(name), rests_until: Mutex::new(None) })
    }

    fn of_mirror(place: Mirror) -> Arc<Self> {
        let host = place.base.host_str().unwrap_or_default();
        let name = match place.base.port() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        };
        Self::new(place, credentials_of(&name))
    }

    fn place(self: &Arc<Self>, rest: &str) -> Result<Place> {
        let base = &self.place.base;
        let url = base.join(&format!("{}/{rest}", self.place.repository));
        let mut url = url.map_err(|error| server(base, &error.to_string()))?;
        if let Some(namespace) = &self.place.namespace {
            url.query_pairs_mut().append_pair("ns", namespace);
        }
        Ok(Place { server: Arc::clone(self), url })
    }
}

/// Returns the name of a registry in docker's configuration.
fn credentials_of(registry: &str) -> String {
    match registry {
        "docker.io" | "registry-1.docker.io" => "https://index.docker.io/v1/".to_owned(),
        other => other.to_owned(),
    }
}

impl Registry {
    /// Returns the repository at the registry itself.
    pub(crate) fn new(client: Arc<Client>, reference: &Reference) -> Result<Self> {
        let wrong = |what: &str| Error::Location {
            location: Location::Oci(reference.clone()).to_string(),
            what: what.to_owned(),
        };
        let (registry, repository) = canonical(reference);
        let mut url = base(&registry, "https");
        // As docker does it. The port of a URL whose scheme changes would be lost if it were https's.
        if url.as_ref().is_some_and(is_loopback) {
            url = base(&registry, "http");
        }
        let base = url.ok_or_else(|| wrong("the registry must be a host with an optional port"))?;
        let place = Mirror { base, repository, namespace: None, headers: Vec::new(), has: Has::ALL };
        let home = Server::new(place, credentials_of(&registry));
        Ok(Self { client, readers: vec![Arc::clone(&home)], home })
    }

    /// Returns the repository, whose images are read from mirrors.
    pub(crate) fn with_mirrors(client: Arc<Client>, reference: &Reference, mirrors: &Mirrors) -> Result<Self> {
        let mut registry = Self::new(client, reference)?;
        let places = mirrors.places(reference)?;
        let others = places.mirrors.into_iter();
        let home = &registry.home.place;
        let is_home = |place: &Mirror| place.base == home.base && place.repository == home.repository;
        let others = others.filter(|place| places.is_replaced || !is_home(place));
        let others: Vec<_> = others.map(Server::of_mirror).collect();
        let last = (!places.is_replaced).then(|| Arc::clone(&registry.home));
        registry.readers = others.into_iter().chain(last).collect();
        Ok(registry)
    }

    /// Returns the path of the repository.
    pub(crate) fn name(&self) -> &str {
        &self.home.place.repository
    }

    /// Returns whether both are repositories of one registry.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        self.base() == other.base() && self.name() != other.name()
    }

    fn base(&self) -> &Url {
        &self.home.place.base
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Returns a place at the registry itself.
    pub(crate) fn place(&self, rest: &str) -> Result<Place> {
        self.home.place(rest)
    }

    /// Returns the place with a URL, if it is at this registry.
    pub(crate) fn place_of(&self, url: Url) -> Option<Place> {
        same(&url, self.base()).then(|| Place { server: Arc::clone(&self.home), url })
    }

    /// Returns a blob at the registry itself.
    pub(crate) fn blob(&self, sum: Sum) -> Result<Place> {
        self.place(&format!("blobs/{sum}"))
    }

    /// Returns the ways to a blob in the order in which they are tried. What comes must be verified.
    pub(crate) fn ways(&self, sum: Sum) -> Result<Vec<Box<dyn Access>>> {
        let mut ways: Vec<Box<dyn Access>> = Vec::new();
        for (number, reader) in self.readers.iter().enumerate() {
            if reader.place.has.sums || number + 1 == self.readers.len() {
                ways.push(Box::new(reader.place(&format!("blobs/{sum}"))?));
            }
        }
        Ok(ways)
    }

    /// Returns the bytes of a manifest, and whether the way that they came is authenticated. If mirrors
    /// send nothing, another one than that with the sum `of`, or what a tag means without being
    /// authenticated, the last server is asked. Its bytes are not compared.
    pub(crate) fn manifest(&self, last: &str, of: Option<Sum>, until: Instant) -> Result<(Vec<u8>, bool), Failure> {
        let (end, mirrors) = self.readers.split_last().expect("the registry itself or what replaces it");
        for mirror in mirrors {
            let place = mirror.place(&format!("manifests/{last}"))?;
            let has = if of.is_some() { mirror.place.has.sums } else { mirror.place.has.tags };
            if !has || place.is_resting() {
                continue;
            }
            match self.manifest_at(&place, until.min(Instant::now() + MIRROR_TIME)) {
                Ok((bytes, is_authentic)) if of.map_or(is_authentic, |of| Sum::of(&bytes) == of) => {
                    return Ok((bytes, is_authentic));
                }
                Err(failure) if failure.passing => place.rest(),
                _ => {}
            }
        }
        self.manifest_at(&end.place(&format!("manifests/{last}"))?, until)
    }

    fn manifest_at(&self, place: &Place, until: Instant) -> Result<(Vec<u8>, bool), Failure> {
        let accepted = [(header::ACCEPT, HeaderValue::from_static(ACCEPTED))];
        let reply = request(&self.client, place, &Method::GET, &accepted, None, until)?;
        match (reply.status, reply.is_authentic) {
            (StatusCode::OK, is_authentic) => Ok((reply.read_all(MOST_MANIFEST_BYTES, until)?, is_authentic)),
            _ => Err(reply.failure("the server refuses")),
        }
    }

    /// Returns whether the repository has a blob.
    pub(crate) fn has(&self, sum: Sum, until: Instant) -> Result<bool, Failure> {
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
        &self,
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
        if next.scheme() != "https" && next.scheme() != self.base().scheme() {
            return Err(server(&reply.url, "the registry names a place without https for an upload").into());
        }
        next.query_pairs_mut().append_pair("digest", &sum.to_string());
        let place = Place { server: Arc::clone(&self.home), url: next };
        let kind = [(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"))];
        self.created(request(&self.client, &place, &Method::PUT, &kind, Some(body), until)?)?;
        Ok(true)
    }

    /// Stores a manifest under a tag or its sum.
    pub(crate) fn set_manifest(
        &self,
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
        self.server.tokens.authorization().filter(|_| self.is_at_server(&self.url))
    }

    fn headers(&self) -> &[(HeaderName, HeaderValue)] {
        if self.is_at_server(&self.url) { &self.server.place.headers } else { &[] }
    }

    fn is_resting(&self) -> bool {
        let until = *self.server.rests_until.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| Instant::now() < until)
    }

    fn rest(&self) {
        *self.server.rests_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + REST);
    }

    fn challenged(
        &self,
        client: &Client,
        refused: &Reply,
        used: Option<&HeaderValue>,
        until: Instant,
    ) -> Result<bool, Failure> {
        // Mirrors may be reached without https. Passwords and tokens are not sent so.
        let may_be_asked = self.is_at_server(&refused.url) && may_be_trusted(&refused.url);
        if refused.status != StatusCode::UNAUTHORIZED || !may_be_asked {
            return Ok(false);
        }
        self.server.tokens.challenged(client, refused, used, until)
    }
}

impl Place {
    fn is_at_server(&self, url: &Url) -> bool {
        same(url, &self.server.place.base)
    }
}

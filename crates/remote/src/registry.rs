//! Images in registries: the OCI distribution protocol.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use ureq::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use url::Url;

use crate::{
    access::{Access, request},
    error::{Error, Result},
    http::{Client, Outgoing, Reply, may_be_trusted, memory_bytes, same, server},
    location::{Location, Reference, is_loopback},
    mirrors::{Has, Mirror, Mirrors, base, canonical},
    patience::Failure,
    rest::Rest,
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

/// How long a mirror may take to send a manifest.
const MIRROR_TIME: Duration = Duration::from_secs(10);

/// A registry's repository.
pub(crate) struct Registry {
    client: Arc<Client>,
    /// Where its images are stored.
    home: Arc<Server>,
    /// Where they are read, in order: mirrors first, and last the registry itself or its
    /// replacement.
    readers: Vec<Arc<Server>>,
}

/// A server that has images of a repository.
struct Server {
    place: Mirror,
    tokens: Tokens,
    rest: Arc<Rest>,
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

/// A blob or manifest that a manifest refers to.
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
        Arc::new(Self { place, tokens: Tokens::new(name), rest: Arc::default() })
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
    /// Returns the repository; its images may be read from mirrors.
    pub(crate) fn new(client: Arc<Client>, reference: &Reference, mirrors: &Mirrors) -> Result<Self> {
        let wrong = |what: &str| Error::Location {
            location: Location::Oci(reference.clone()).to_string(),
            what: what.to_owned(),
        };
        let (registry, repository) = canonical(reference);
        let mut url = base(&registry, "https");
        // As docker does. The URL is built again: a change of its scheme would lose the port of
        // https.
        if url.as_ref().is_some_and(is_loopback) {
            url = base(&registry, "http");
        }
        let base = url.ok_or_else(|| wrong("the registry must be a host with an optional port"))?;
        let place = Mirror { base, repository, namespace: None, headers: Vec::new(), has: Has::ALL };
        let places = mirrors.places(reference)?;
        let is_it = |other: &Mirror| other.base == place.base && other.repository == place.repository;
        let others = places.mirrors.into_iter().filter(|other| places.is_replaced || !is_it(other));
        let others: Vec<_> = others.map(Server::of_mirror).collect();
        let itself = Server::new(place, credentials_of(&registry));
        let home = places.home.map_or_else(|| Arc::clone(&itself), Server::of_mirror);
        let readers = others.into_iter().chain((!places.is_replaced).then_some(itself)).collect();
        Ok(Self { client, home, readers })
    }

    /// Returns the repository for storing, without mirrors.
    pub(crate) fn for_storing(client: Arc<Client>, reference: &Reference, mirrors: &Mirrors) -> Result<Self> {
        let registry = Self::new(client, reference, mirrors)?;
        Ok(Self { readers: vec![Arc::clone(&registry.home)], ..registry })
    }

    /// Returns the registry itself, or its replacement.
    fn source(&self) -> &Arc<Server> {
        self.readers.last().expect("the registry itself or what replaces it")
    }

    /// Returns this repository's path if `other` stores in a different repository of the same
    /// registry, so that the registry can take blobs over.
    pub(crate) fn mountable_from(&self, other: &Self) -> Option<&str> {
        let source = &self.source().place;
        (source.base == *other.base() && source.repository != other.home.place.repository)
            .then_some(&*source.repository)
    }

    fn base(&self) -> &Url {
        &self.home.place.base
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Returns a place where images are stored.
    pub(crate) fn place(&self, rest: &str) -> Result<Place> {
        self.home.place(rest)
    }

    /// Returns a place at the registry itself, or at its replacement.
    pub(crate) fn source_place(&self, rest: &str) -> Result<Place> {
        self.source().place(rest)
    }

    /// Returns the place for a URL, if it is at that server.
    pub(crate) fn source_place_of(&self, url: Url) -> Option<Place> {
        let source = self.source();
        same(&url, &source.place.base).then(|| Place { server: Arc::clone(source), url })
    }

    fn blob(&self, sum: Sum) -> Result<Place> {
        self.place(&format!("blobs/{sum}"))
    }

    /// Returns the ways to a blob in the order in which they are tried. The caller must verify the
    /// bytes.
    pub(crate) fn ways(&self, sum: Sum) -> Result<Vec<Box<dyn Access>>> {
        let mut ways: Vec<Box<dyn Access>> = Vec::new();
        for (number, reader) in self.readers.iter().enumerate() {
            if reader.place.has.sums || number + 1 == self.readers.len() {
                ways.push(Box::new(reader.place(&format!("blobs/{sum}"))?));
            }
        }
        Ok(ways)
    }

    /// Returns the bytes of a manifest, and whether they came from an authenticated server. A
    /// mirror's reply is used only if it has the sum `of` or, for a tag, if the mirror is
    /// authenticated; otherwise the last server is asked, whose bytes are not compared.
    pub(crate) fn manifest(&self, last: &str, of: Option<Sum>, until: Instant) -> Result<(Vec<u8>, bool), Failure> {
        self.ask(&Method::GET, last, of.is_some(), until, |reply, until| {
            let is_authentic = reply.is_authentic;
            let bytes = reply.read_all(MOST_MANIFEST_BYTES, until)?;
            let is_usable = of.map_or(is_authentic, |of| Sum::of(&bytes) == of);
            Ok(((bytes, is_authentic), is_usable))
        })
    }

    /// Returns the sum that a tag refers to, without the manifest, if the first trusted server
    /// sends it. Registries with a limit for reading manifests do not count these requests.
    pub(crate) fn meaning(&self, tag: &str, until: Instant) -> Result<Option<(Sum, bool)>, Failure> {
        self.ask(&Method::HEAD, tag, false, until, |reply, _| {
            let sum = reply.header(HeaderName::from_static("docker-content-digest")).and_then(Sum::parse);
            let is_authentic = reply.is_authentic;
            Ok((sum.map(|sum| (sum, is_authentic)), is_authentic))
        })
    }

    /// Requests a manifest from the mirrors in order, until `read` accepts a reply, then from the
    /// last server.
    fn ask<T>(
        &self,
        method: &Method,
        last: &str,
        is_sum: bool,
        until: Instant,
        read: impl Fn(Reply, Instant) -> Result<(T, bool), Failure>,
    ) -> Result<T, Failure> {
        let at = format!("manifests/{last}");
        let ask = |client: &Client, server: &Arc<Server>, until: Instant| {
            let accepted = [(header::ACCEPT, HeaderValue::from_static(ACCEPTED))];
            let reply = request(client, &server.place(&at)?, method, &accepted, None, until)?;
            match reply.status {
                StatusCode::OK => read(reply, until),
                StatusCode::NOT_FOUND => Err(reply.failure("the registry has no such image")),
                _ => Err(reply.failure("the server refuses")),
            }
        };
        for mirror in &self.readers[..self.readers.len() - 1] {
            let has = mirror.place.has;
            // A reply about a tag is not trusted without https.
            let may_have = if is_sum { has.sums } else { has.tags && may_be_trusted(&mirror.place.base) };
            let Some(mut turn) = may_have.then(|| mirror.rest.turn(Instant::now())).flatten() else { continue };
            let end = until.min(Instant::now() + MIRROR_TIME);
            match ask(&self.client.hasty().until(end), mirror, end) {
                Ok((found, is_usable)) => {
                    turn.succeeded();
                    if is_usable {
                        return Ok(found);
                    }
                }
                Err(failure) if failure.passing => turn.failed(Instant::now()),
                Err(_) => {}
            }
        }
        ask(&self.client, self.source(), until).map(|(found, _)| found)
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
    /// Returns false if the registry took it over.
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
            // The user may have no access to the other repository.
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

    fn rest(&self) -> Option<&Arc<Rest>> {
        Some(&self.server.rest)
    }

    fn challenged(
        &self,
        client: &Client,
        refused: &Reply,
        used: Option<&HeaderValue>,
        until: Instant,
    ) -> Result<bool, Failure> {
        // Mirrors may be used without https, but without passwords and tokens.
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

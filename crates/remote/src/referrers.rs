//! What refers to a manifest in a registry: with the API of version 1.1 of the protocol, or with the
//! tag that stands for it in older registries.

use std::{collections::BTreeMap, io::Read, sync::Arc, thread, time::Instant};

use serde::{Deserialize, Serialize};
use serde_json::json;
use ureq::http::{HeaderName, HeaderValue, Method, StatusCode, header};

use crate::{
    access::request,
    http::{Outgoing, Reply, server},
    patience::Failure,
    registry::{MANIFEST, MANIFEST_LIST, Registry},
    sum::Sum,
};

/// The longest list that is read.
const MOST_LIST_BYTES: u64 = 4 << 20;

/// The configuration of a manifest that needs none.
pub(crate) const NO_CONFIG: &[u8] = b"{}";
const NO_CONFIG_TYPE: &str = "application/vnd.oci.empty.v1+json";

/// When a referrer was made, as text that sorts by time.
pub(crate) const CREATED: &str = "org.opencontainers.image.created";

/// A manifest that refers to another.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Referrer {
    #[serde(default)]
    media_type: String,
    digest: String,
    size: u64,
    #[serde(default)]
    artifact_type: String,
    #[serde(default)]
    pub(crate) annotations: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
struct List {
    #[serde(default)]
    manifests: Vec<Referrer>,
}

/// A manifest that refers to `subject`, with one blob.
pub(crate) struct NewReferrer<'a> {
    pub(crate) kind: &'a str,
    pub(crate) subject: (Sum, u64),
    pub(crate) blob: (Sum, u64),
    pub(crate) annotations: BTreeMap<String, String>,
}

impl Registry {
    /// Returns what of this kind refers to a manifest.
    pub(crate) fn referrers(self: &Arc<Self>, of: Sum, kind: &str, until: Instant) -> Result<Vec<Referrer>, Failure> {
        // Both at the same time: each takes a while, and a start waits for what they lead to.
        let (by_tag, found) = thread::scope(|scope| {
            let by_tag = scope.spawn(|| self.list(&format!("manifests/{}", fallback_tag(of)), until));
            let found = self.list(&format!("referrers/{of}?artifactType={kind}"), until);
            (by_tag.join().unwrap_or(Ok(None)), found)
        });
        let mut found = match found? {
            Some(found) => found,
            None => by_tag?.unwrap_or_default(),
        };
        found.retain(|referrer| referrer.artifact_type == kind);
        Ok(found)
    }

    /// Returns a list of manifests, or `None` if the registry has none there.
    fn list(self: &Arc<Self>, at: &str, until: Instant) -> Result<Option<Vec<Referrer>>, Failure> {
        let place = self.place(at)?;
        let accepted = [(header::ACCEPT, HeaderValue::from_static(MANIFEST_LIST))];
        let reply = request(self.client(), &place, &Method::GET, &accepted, None, until)?;
        match reply.status {
            StatusCode::OK => {
                let url = reply.url.clone();
                let bytes = reply.read_all(MOST_LIST_BYTES, until)?;
                let list: List = serde_json::from_slice(&bytes)
                    .map_err(|error| server(&url, &format!("invalid list of manifests: {error}")))?;
                Ok(Some(list.manifests))
            }
            StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST | StatusCode::METHOD_NOT_ALLOWED => {
                reply.finish();
                Ok(None)
            }
            _ => Err(reply.failure("the server refuses")),
        }
    }

    /// Stores a manifest that refers to another. Its blobs are there already. Where the registry does
    /// not list it itself, replaces those of its kind in the list under the tag.
    pub(crate) fn refer(self: &Arc<Self>, new: &NewReferrer<'_>, until: Instant) -> Result<Vec<u8>, Failure> {
        let (subject, subject_bytes) = new.subject;
        let (blob, blob_bytes) = new.blob;
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": new.kind,
            "config": descriptor(NO_CONFIG_TYPE, Sum::of(NO_CONFIG), NO_CONFIG.len() as u64),
            "layers": [descriptor(new.kind, blob, blob_bytes)],
            "subject": descriptor(MANIFEST, subject, subject_bytes),
            "annotations": new.annotations,
        });
        let bytes = manifest.to_string().into_bytes();
        let sum = Sum::of(&bytes);
        let reply = self.put(&sum.to_string(), MANIFEST, &bytes, until)?;
        if reply.headers.contains_key("oci-subject") {
            return Ok(bytes);
        }
        let tag = fallback_tag(subject);
        let mut all = self.list(&format!("manifests/{tag}"), until)?.unwrap_or_default();
        all.retain(|referrer| referrer.artifact_type != new.kind);
        all.push(Referrer {
            media_type: MANIFEST.to_owned(),
            digest: sum.to_string(),
            size: bytes.len() as u64,
            artifact_type: new.kind.to_owned(),
            annotations: new.annotations.clone(),
        });
        let list = json!({ "schemaVersion": 2, "mediaType": MANIFEST_LIST, "manifests": all });
        self.put(&tag, MANIFEST_LIST, list.to_string().as_bytes(), until)?;
        Ok(bytes)
    }

    fn put(self: &Arc<Self>, last: &str, kind: &'static str, bytes: &[u8], until: Instant) -> Result<Reply, Failure> {
        let open = || -> Box<dyn Read> { Box::new(std::io::Cursor::new(bytes.to_vec())) };
        let body = Outgoing { len_bytes: bytes.len() as u64, open: &open };
        let kind: [(HeaderName, HeaderValue); 1] = [(header::CONTENT_TYPE, HeaderValue::from_static(kind))];
        let place = self.place(&format!("manifests/{last}"))?;
        let reply = request(self.client(), &place, &Method::PUT, &kind, Some(&body), until)?;
        match reply.status {
            StatusCode::CREATED | StatusCode::OK | StatusCode::NO_CONTENT => Ok(reply),
            _ => Err(reply.failure("the registry refuses")),
        }
    }
}

fn descriptor(kind: &str, sum: Sum, size: u64) -> serde_json::Value {
    json!({ "mediaType": kind, "digest": sum.to_string(), "size": size })
}

/// Returns the tag that stands for the list of what refers to a manifest.
fn fallback_tag(of: Sum) -> String {
    of.to_string().replace(':', "-")
}

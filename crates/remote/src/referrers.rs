//! Manifests that refer to another manifest in a registry, found with the API of version 1.1 of the
//! protocol, or with the tag that replaces it in older registries.

use std::{collections::BTreeMap, thread, time::Instant};

use serde::Deserialize;
use serde_json::{Value, json};
use ureq::http::{HeaderValue, Method, StatusCode, header};
use url::Url;

use crate::{
    access::{Access, request},
    http::{Reply, server},
    patience::Failure,
    registry::{MANIFEST, MANIFEST_LIST, Place, Registry},
    sum::Sum,
};

/// The longest list that is read, with all its pages.
const MOST_LIST_BYTES: u64 = 4 << 20;

/// The most pages of a list that are read.
const MOST_PAGES: u32 = 16;

/// The configuration of a manifest that needs none.
pub(crate) const NO_CONFIG: &[u8] = b"{}";
const NO_CONFIG_TYPE: &str = "application/vnd.oci.empty.v1+json";

/// When a referrer was made, as text that sorts by time.
pub(crate) const CREATED: &str = "org.opencontainers.image.created";

/// A manifest that refers to another.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Referrer {
    #[serde(default)]
    artifact_type: String,
    #[serde(default)]
    pub(crate) annotations: BTreeMap<String, String>,
}

/// A list of manifests, including the fields that other programs stored.
struct Page {
    list: Value,
    len_bytes: u64,
    next: Option<Url>,
}

/// A manifest that refers to `subject`, with one blob.
pub(crate) struct NewReferrer<'a> {
    pub(crate) kind: &'a str,
    pub(crate) subject: (Sum, u64),
    pub(crate) blob: (Sum, u64),
    pub(crate) annotations: BTreeMap<String, String>,
}

impl Registry {
    /// Returns the referrers of this kind to a manifest.
    pub(crate) fn referrers(&self, of: Sum, kind: &str, until: Instant) -> Result<Vec<Referrer>, Failure> {
        let tagged = || self.list(&format!("manifests/{}", fallback_tag(of)), until);
        // Both requests at the same time: a start waits for their results.
        let (by_tag, found) = thread::scope(|scope| {
            let by_tag = thread::Builder::new().spawn_scoped(scope, tagged);
            let found = self.list(&format!("referrers/{of}?artifactType={kind}"), until);
            let by_tag = by_tag.map_or_else(|_| tagged(), |thread| thread.join().unwrap_or(Ok(None)));
            (by_tag, found)
        });
        let found = match found {
            Ok(Some(found)) => found,
            Ok(None) => by_tag?.unwrap_or_default(),
            Err(failure) if failure.passing => return Err(failure),
            // Registries refuse an unknown API with several statuses.
            Err(failure) => by_tag?.ok_or(failure)?,
        };
        let parsed = found.into_iter().filter_map(|one| Referrer::deserialize(one).ok());
        Ok(parsed.filter(|referrer| referrer.artifact_type == kind).collect())
    }

    /// Returns the entries of a list of manifests, or `None` if the registry has no list there.
    fn list(&self, at: &str, until: Instant) -> Result<Option<Vec<Value>>, Failure> {
        let mut place = Some(self.source_place(at)?);
        let (mut all, mut left_bytes) = (None, MOST_LIST_BYTES);
        for _ in 0..MOST_PAGES {
            let Some(at) = place else { break };
            let Some(mut page) = self.page(&at, left_bytes, until)? else { break };
            let entries = page.list.get_mut("manifests").and_then(Value::as_array_mut).map(std::mem::take);
            all.get_or_insert_with(Vec::new).extend(entries.unwrap_or_default());
            left_bytes -= page.len_bytes;
            place = page.next.and_then(|next| self.source_place_of(next));
        }
        Ok(all)
    }

    /// Returns a list of manifests, or `None` if the registry has nothing there.
    fn page(&self, at: &Place, most_bytes: u64, until: Instant) -> Result<Option<Page>, Failure> {
        let accepted = [(header::ACCEPT, HeaderValue::from_static(MANIFEST_LIST))];
        let reply = request(self.client(), at, &Method::GET, &accepted, None, until)?;
        match reply.status {
            StatusCode::OK => {
                let (url, next) = (reply.url.clone(), next(&reply));
                let bytes = reply.read_all(most_bytes, until)?;
                let list = serde_json::from_slice(&bytes)
                    .map_err(|error| server(&url, &format!("invalid list of manifests: {error}")))?;
                Ok(Some(Page { list, len_bytes: bytes.len() as u64, next }))
            }
            StatusCode::NOT_FOUND => {
                reply.finish();
                Ok(None)
            }
            _ => Err(reply.failure("the server refuses")),
        }
    }

    /// Stores a manifest that refers to another; its blobs are stored already. If the registry does
    /// not list it by itself, replaces those of its kind in the list under the tag and keeps the
    /// rest of the list.
    pub(crate) fn refer(&self, new: &NewReferrer<'_>, until: Instant) -> Result<Vec<u8>, Failure> {
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
        let reply = self.set_manifest(&sum.to_string(), MANIFEST, &bytes, until)?;
        if reply.headers.contains_key("oci-subject") {
            return Ok(bytes);
        }
        let tag = fallback_tag(subject);
        let place = self.place(&format!("manifests/{tag}"))?;
        let none = || json!({ "schemaVersion": 2, "mediaType": MANIFEST_LIST, "manifests": [] });
        let mut list = self.page(&place, MOST_LIST_BYTES, until)?.map_or_else(none, |page| page.list);
        let Some(all) = list.get_mut("manifests").and_then(Value::as_array_mut) else {
            let what = "the tag for the list of referrers names something else; it is left unchanged";
            return Err(server(&place.url(&Method::GET), what).into());
        };
        all.retain(|one| one.get("artifactType").and_then(Value::as_str) != Some(new.kind));
        let mut entry = descriptor(MANIFEST, sum, bytes.len() as u64);
        entry["artifactType"] = new.kind.into();
        entry["annotations"] = json!(new.annotations);
        all.push(entry);
        self.set_manifest(&tag, MANIFEST_LIST, list.to_string().as_bytes(), until)?;
        Ok(bytes)
    }
}

/// Returns where the next page of a list is.
fn next(reply: &Reply) -> Option<Url> {
    let mut rest = reply.header(header::LINK)?;
    while let Some((_, link)) = rest.split_once('<') {
        let (target, after) = link.split_once('>')?;
        let (notes, others) = after.split_once(',').unwrap_or((after, ""));
        if notes.split(';').any(|note| matches!(note.trim(), "rel=\"next\"" | "rel=next")) {
            return reply.url.join(target).ok();
        }
        rest = others;
    }
    None
}

fn descriptor(kind: &str, sum: Sum, size: u64) -> serde_json::Value {
    json!({ "mediaType": kind, "digest": sum.to_string(), "size": size })
}

/// Returns the tag of the list of referrers to a manifest.
fn fallback_tag(of: Sum) -> String {
    of.to_string().replace(':', "-")
}

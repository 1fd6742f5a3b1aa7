//! Stores traces with their images, and finds them.

use std::{
    collections::BTreeMap,
    fs::File,
    io::Read,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::{
    access::Access,
    error::{Error, Result},
    http::{Client, Outgoing, memory_bytes},
    image::{Contents, Layer, Layers, contents},
    location::{Location, Reference},
    part::{Part, image_bytes},
    patience::Patience,
    push::{PushOptions, Pushed, Storing, put_object},
    referrers::{CREATED, NO_CONFIG, NewReferrer},
    registry::Registry,
    s3::{Object, Store},
    sum::{Sum, Summing},
    trace::{TRACE_SUFFIX, Trace},
};

/// The media type of traces.
const TRACE: &str = "application/vnd.pagefold.trace.v1";

/// The blob that a trace's manifest refers to, so that the manifest need not be read.
const TRACE_BLOB: &str = "org.pagefold.trace.blob";

/// Bytes that are read at a time.
const PIECE_BYTES: usize = 1 << 20;

impl Registry {
    /// Returns the ways to the newest trace of the image with this manifest, if there is one.
    pub(crate) fn trace(&self, of: Sum, limit: Duration) -> Result<Vec<Box<dyn Access>>> {
        let all = Patience::opening(limit).repeat(|until| self.referrers(of, TRACE, until))?;
        let created = |annotations: &BTreeMap<String, String>| annotations.get(CREATED).cloned();
        let blob = |annotations: &BTreeMap<String, String>| Sum::parse(annotations.get(TRACE_BLOB)?);
        let traces = all.iter().filter_map(|one| Some((created(&one.annotations), blob(&one.annotations)?)));
        match traces.max() {
            Some((_, sum)) => self.ways(sum),
            None => Ok(Vec::new()),
        }
    }
}

/// Checks that the file `path` is a trace, and for a registry that it is one of the image of which
/// these are all parts, before these are stored.
///
/// # Errors
/// [`Error`]; it is not.
pub fn check_trace(file: &File, path: &str, parts: &[&Part], location: &Location) -> Result<()> {
    let failed = |source| Error::Io { path: path.to_owned(), source };
    let size_bytes = file.metadata().map_err(failed)?.len();
    let trace = Trace::read(&mut image_bytes(file, size_bytes)).map_err(failed)?;
    let has = |blob: &Sum| parts.iter().any(|part| part.layer.identity() == Some(*blob));
    match location {
        Location::Oci(_) if !trace.blobs.iter().all(has) => Err(of_another(path, location)),
        _ => Ok(()),
    }
}

fn of_another(path: &str, location: &Location) -> Error {
    Error::Location { location: location.to_string(), what: format!("{path} is a trace of another image") }
}

/// Stores the trace in `file`, whose name is `path`, with the image at `location`. A registry must
/// have the image already.
///
/// # Errors
/// [`Error`]; the file is not a trace or, for a registry, is the trace of another image.
pub fn push_trace(file: &File, path: &str, location: &Location, options: &PushOptions) -> Result<Pushed> {
    let failed = |source| Error::Io { path: path.to_owned(), source };
    let size_bytes = file.metadata().map_err(failed)?.len();
    let trace = Trace::read(&mut image_bytes(file, size_bytes)).map_err(failed)?;
    let client = Arc::new(Client::new());
    let body = Outgoing { len_bytes: size_bytes, open: &|| image_bytes(file, size_bytes) };
    let wrong = |what: &str| Error::Location { location: location.to_string(), what: what.to_owned() };
    match location {
        Location::Web { .. } => {
            Err(wrong("for a web server, copy the trace next to the image, with .trace appended to its name"))
        }
        Location::S3 { bucket, key, .. } => {
            let object =
                Object { store: Arc::new(Store::of_environment(bucket)?), key: format!("{key}{TRACE_SUFFIX}") };
            put_object(&client, &object, &body, options.patience)?;
            Ok(Pushed { fixed: location.clone(), bytes: size_bytes, sent_bytes: size_bytes })
        }
        Location::Oci(reference) => {
            let registry = Arc::new(Registry::for_storing(Arc::clone(&client), reference, &options.mirrors)?);
            let mut storing = Storing { client, registry, options, bytes: 0, sent_bytes: 0 };
            let find = |last: &str, sum: Option<Sum>| {
                let (manifest, _) = storing.patience().repeat(|until| storing.registry.manifest(last, sum, until))?;
                match sum.is_none_or(|sum| sum == Sum::of(&manifest)) {
                    true => Ok(manifest),
                    false => Err(Error::Sum { url: location.to_string(), what: "the manifest".to_owned() }),
                }
            };
            let mut manifest = find(&reference.last(), reference.manifest)?;
            if let Contents::Other(other) = contents(&manifest, &location.to_string())? {
                manifest = find(&other.to_string(), Some(other))?;
            }
            let Contents::Layers(layers) = contents(&manifest, &location.to_string())? else {
                return Err(wrong("a list of lists of manifests"));
            };
            if !trace.blobs.iter().all(|blob| indexes(&layers).any(|index| index == *blob)) {
                return Err(of_another(path, location));
            }
            let blob = sum_of(file, size_bytes).map_err(failed)?;
            storing.store(blob, &body, None)?;
            let config = Outgoing { len_bytes: NO_CONFIG.len() as u64, open: &|| memory_bytes(NO_CONFIG) };
            storing.store(Sum::of(NO_CONFIG), &config, None)?;
            let new = NewReferrer {
                kind: TRACE,
                subject: (Sum::of(&manifest), manifest.len() as u64),
                blob: (blob, size_bytes),
                annotations: [(CREATED.to_owned(), now()), (TRACE_BLOB.to_owned(), blob.to_string())].into(),
            };
            let manifest = storing.patience().repeat(|until| storing.registry.refer(&new, until))?;
            let sent_bytes = storing.sent_bytes + manifest.len() as u64;
            let fixed = Reference { manifest: Some(new.subject.0), ..reference.clone() };
            Ok(Pushed { fixed: Location::Oci(fixed), bytes: size_bytes, sent_bytes })
        }
    }
}

fn indexes(layers: &Layers) -> impl Iterator<Item = Sum> {
    let all = layers.devices.iter().chain([&layers.image]);
    all.filter_map(Layer::identity)
}

fn sum_of(file: &File, size_bytes: u64) -> std::io::Result<Sum> {
    let (mut summing, mut from) = (Summing::default(), image_bytes(file, size_bytes));
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match from.read(&mut piece)? {
            0 => return Ok(summing.sum()),
            len => summing.add(&piece[..len]),
        }
    }
}

/// Returns the current time in the format of RFC 3339.
fn now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    date(seconds)
}

/// Returns a time in seconds since 1970 in the format of RFC 3339.
fn date(seconds: u64) -> String {
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March here, so that a leap day is the last day.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = era * 400 + year + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", time / 3600, time / 60 % 60, time % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_735_689_600, "2025-01-01T00:00:00Z"),
        ] {
            assert_eq!(date(seconds), text);
        }
    }
}

//! Finds the blobs of an image in a manifest, as erofs-image-spec describes it.

use std::ops::Range;

use crate::{
    cut::usual_bytes,
    error::{Error, Result},
    index::MOST_INDEX_BYTES,
    range_text::{number, parse, parse_all},
    registry::{Descriptor, MANIFEST_LIST, Manifest, Platform},
    sum::Sum,
    verity::{BLOCK_BYTES, TreePlace},
};

pub(crate) const LAYER: &str = "application/vnd.erofs";
/// containerd's name for the same.
pub(crate) const CONTAINERD_LAYER: &str = "application/vnd.erofs.layer.v1";
pub(crate) const INDEX: &str = "application/vnd.erofs.chunk-index.v1";
pub(crate) const INDEX_RANGE: &str = "org.erofs.chunk-index.range";
pub(crate) const INDEX_DIGEST: &str = "org.erofs.chunk-index.digest";
const INDEX_TYPE: &str = "org.erofs.chunk-index.mediaType";
pub(crate) const INDEX_TARGET: &str = "org.erofs.chunk-index.target";
pub(crate) const TREE_ROOT: &str = "org.erofs.dmverity.root_digest";
pub(crate) const TREE_OFFSET: &str = "org.erofs.dmverity.hash_offset";
pub(crate) const TREE_BLOCK: &str = "org.erofs.dmverity.block_size";
/// The ranges that opening the image reads, as `START:END,START:END`: whole chunks, requested
/// together with the index.
pub(crate) const OPENING: &str = "org.pagefold.opening";
pub(crate) const ROLE: &str = "org.erofs.role";
pub(crate) const DEVICE: &str = "device";

/// The most devices of an image that are read.
pub(crate) const MOST_DEVICES: usize = 64;

/// A blob with an image, and where its index is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layer {
    pub(crate) blob: Sum,
    pub(crate) size_bytes: u64,
    pub(crate) index: Option<IndexPlace>,
    pub(crate) tree: Option<TreePlace>,
    /// The ranges that opening the image reads. This only determines when they are requested.
    pub(crate) opening: Vec<Range<u64>>,
}

impl Layer {
    /// Returns the identity of the image in the cache and in traces: the sum of its index, or the
    /// identity of its tree. `None` if nothing can be verified.
    pub(crate) fn identity(&self) -> Option<Sum> {
        let index = self.index.as_ref().map(IndexPlace::sum);
        index.or_else(|| self.tree.as_ref().map(TreePlace::identity))
    }
}

/// Where an index is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum IndexPlace {
    /// The index is in the blob of the image. Its sum may be missing. The blob's sum does not
    /// verify it then either, so the index is not used.
    Inside(Range<u64>, Sum),
    /// A blob of its own.
    Apart(Sum, u64),
}

impl IndexPlace {
    pub(crate) fn sum(&self) -> Sum {
        match self {
            Self::Inside(_, sum) | Self::Apart(sum, _) => *sum,
        }
    }

    /// Returns the length of the index.
    pub(crate) fn len_bytes(&self) -> u64 {
        match self {
            Self::Inside(range, _) => range.end - range.start,
            Self::Apart(_, size_bytes) => *size_bytes,
        }
    }
}

/// An image with the devices that it refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layers {
    pub(crate) devices: Vec<Layer>,
    pub(crate) image: Layer,
}

/// The kinds of manifests.
#[derive(Debug)]
pub(crate) enum Contents {
    Layers(Layers),
    /// The sum of the manifest to read instead.
    Other(Sum),
}

/// Reads a manifest. `name` says in errors which.
pub(crate) fn contents(bytes: &[u8], name: &str) -> Result<Contents> {
    let wrong = |what: &str| Error::Manifest { name: name.to_owned(), what: what.to_owned() };
    let manifest: Manifest =
        serde_json::from_slice(bytes).map_err(|error| wrong(&format!("invalid manifest: {error}")))?;
    if manifest.schema_version != 2 {
        return Err(wrong("not a manifest of schema version 2"));
    }
    if manifest.media_type == MANIFEST_LIST || !manifest.manifests.is_empty() {
        return of_this_machine(&manifest.manifests).map(Contents::Other).map_err(|what| wrong(&what));
    }
    layers(&manifest.layers).map(Contents::Layers).map_err(|what| wrong(&what))
}

/// Returns the manifest for this machine: one with EROFS layers, if the list says so.
fn of_this_machine(manifests: &[Descriptor]) -> Result<Sum, String> {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let fits = |platform: &Platform| platform.os == "linux" && platform.architecture == architecture;
    let has_erofs = |platform: &Platform| platform.os_features.iter().any(|feature| feature == "erofs");
    let fitting = |erofs: bool| {
        manifests.iter().find(|manifest| {
            manifest.platform.as_ref().is_some_and(|platform| fits(platform) && (!erofs || has_erofs(platform)))
        })
    };
    let found = fitting(true).or_else(|| fitting(false)).ok_or(format!("no image for linux/{architecture}"))?;
    sum(found)
}

fn sum(descriptor: &Descriptor) -> Result<Sum, String> {
    Sum::parse(&descriptor.digest).ok_or_else(|| "a digest is not SHA-256".to_owned())
}

fn layers(descriptors: &[Descriptor]) -> Result<Layers, String> {
    let mut found: Vec<(Layer, bool)> = Vec::new();
    for (number, descriptor) in descriptors.iter().enumerate() {
        let note = |key: &str| descriptor.annotations.get(key).map(String::as_str);
        if descriptor.media_type == INDEX {
            let (layer, _) = found.last_mut().ok_or("no layer precedes a chunk index")?;
            if note(INDEX_TARGET).is_some_and(|target| target != layer.blob.to_string()) {
                return Err("a chunk index does not follow the layer that it names".to_owned());
            }
            if descriptor.size > MOST_INDEX_BYTES {
                return Err("the chunk index exceeds 64 MiB".to_owned());
            }
            layer.index.get_or_insert(IndexPlace::Apart(sum(descriptor)?, descriptor.size));
            continue;
        }
        let is_device = match note(ROLE) {
            Some(DEVICE) => true,
            None | Some("overlay-lower") => false,
            Some("overlay-data") => return Err("layers of file data for overlayfs are not supported".to_owned()),
            Some(_) => return Err(format!("the role of layer {number} is unknown")),
        };
        // containerd's name for the same.
        let is_erofs = descriptor.media_type == LAYER
            || (descriptor.media_type.starts_with("application/vnd.erofs.layer")
                && !descriptor.media_type.contains('+'));
        if descriptor.media_type.ends_with("+zstd") {
            return Err(format!("layer {number} is compressed as a whole, so it cannot be read in parts"));
        }
        if !is_erofs && !is_device {
            return Err(format!(
                "not an EROFS image: the media type of layer {number} is {}",
                descriptor.media_type.escape_debug()
            ));
        }
        let index = match (note(INDEX_RANGE), note(INDEX_DIGEST)) {
            (Some(range), Some(digest)) if note(INDEX_TYPE).is_none_or(|kind| kind == INDEX) => {
                let range = parse(range, descriptor.size, MOST_INDEX_BYTES);
                let range = range.ok_or("the range of a chunk index is invalid")?;
                let sum = Sum::parse(digest).ok_or("the digest of a chunk index is not SHA-256")?;
                Some(IndexPlace::Inside(range, sum))
            }
            _ => None,
        };
        let tree = match (note(TREE_ROOT), note(TREE_OFFSET)) {
            (Some(root), Some(offset)) => Some(tree(root, offset, note(TREE_BLOCK), descriptor.size)?),
            _ => None,
        };
        let opening = note(OPENING).map_or_else(Vec::new, |text| parse_all(text, descriptor.size));
        let (blob, size_bytes) = (sum(descriptor)?, descriptor.size);
        found.push((Layer { blob, size_bytes, index, tree, opening }, is_device));
    }
    let (image, is_device) = found.pop().ok_or("the manifest has no layers")?;
    if is_device {
        return Err("the last layer is a device, which nothing refers to".to_owned());
    }
    if found.iter().any(|(_, is_device)| !is_device) {
        return Err("the image has several layers, which only a container runtime can stack".to_owned());
    }
    if found.len() > MOST_DEVICES {
        return Err(format!("the image has more than {MOST_DEVICES} devices"));
    }
    Ok(Layers { devices: found.into_iter().map(|(layer, _)| layer).collect(), image })
}

/// Reads where a dm-verity tree is.
fn tree(root: &str, offset: &str, block: Option<&str>, size_bytes: u64) -> Result<TreePlace, String> {
    let root = Sum::parse(root).or_else(|| Sum::parse(&format!("sha256:{root}")));
    let root = root.ok_or("the root digest of a dm-verity tree is not SHA-256")?;
    if block.is_some_and(|block| block.parse() != Ok(BLOCK_BYTES)) {
        return Err("the blocks of a dm-verity tree are not 4096 bytes long".to_owned());
    }
    let offset = number(offset).filter(|offset| *offset < size_bytes);
    let offset = offset.ok_or("the offset of a dm-verity tree is invalid")?;
    Ok(TreePlace { root, offset, chunk_bytes: usual_bytes(offset) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn layer(kind: &str, byte: u8, annotations: &Value) -> Value {
        json!({"mediaType": kind, "digest": Sum::of(&[byte]).to_string(), "size": 100, "annotations": annotations})
    }

    fn read(layers: &[Value]) -> Result<Contents> {
        contents(json!({"schemaVersion": 2, "layers": layers}).to_string().as_bytes(), "x")
    }

    #[test]
    fn images() {
        let inside = json!({INDEX_RANGE: "60", INDEX_DIGEST: Sum::of(b"i").to_string()});
        let Ok(Contents::Layers(found)) = read(&[layer(LAYER, 1, &inside)]) else { panic!("an image") };
        assert_eq!(found.image.index, Some(IndexPlace::Inside(60..100, Sum::of(b"i"))));
        let device = json!({ROLE: "device"});
        let target = json!({INDEX_TARGET: Sum::of(&[1]).to_string()});
        let layers = [
            layer("application/octet-stream", 1, &device),
            layer(INDEX, 2, &target),
            layer("application/vnd.erofs.layer.v1", 3, &inside),
        ];
        let Ok(Contents::Layers(found)) = read(&layers) else { panic!("an image") };
        assert_eq!(found.devices.len(), 1);
        assert_eq!(found.devices[0].index, Some(IndexPlace::Apart(Sum::of(&[2]), 100)));
        let list = json!({"schemaVersion": 2, "mediaType": MANIFEST_LIST, "manifests": [
            {"digest": Sum::of(b"w").to_string(), "size": 1, "platform": {"os": "windows", "architecture": "amd64"}},
            {"digest": Sum::of(b"a").to_string(), "size": 1, "platform": {"os": "linux", "architecture": "amd64"}},
            {"digest": Sum::of(b"b").to_string(), "size": 1, "platform": {"os": "linux", "architecture": "arm64"}},
        ]});
        assert!(matches!(contents(list.to_string().as_bytes(), "x"), Ok(Contents::Other(_))));
    }

    #[test]
    fn vectors() {
        let image = (0..12_388_u32).map(|at| (at % 251) as u8);
        let index = include_bytes!("../vectors/three.chunk-index");
        let blob: Vec<u8> = image.chain(index.iter().copied()).collect();
        let manifest = include_bytes!("../vectors/manifest.json");
        let Ok(Contents::Layers(found)) = contents(manifest, "x") else { panic!("an image") };
        let place = IndexPlace::Inside(12_388..blob.len() as u64, Sum::of(index));
        let layer = Layer {
            blob: Sum::of(&blob),
            size_bytes: blob.len() as u64,
            index: Some(place),
            tree: None,
            opening: Vec::new(),
        };
        assert_eq!(found, Layers { devices: Vec::new(), image: layer });
    }

    #[test]
    fn errors_name_what_is_wrong() {
        let none = json!({});
        for (layers, what) in [
            (vec![], "no layers"),
            (vec![layer(INDEX, 1, &none)], "no layer precedes"),
            (vec![layer("application/vnd.oci.image.layer.v1.tar+gzip", 1, &none)], "not an EROFS image"),
            (vec![layer("application/vnd.erofs+zstd", 1, &none)], "compressed as a whole"),
            (vec![layer(LAYER, 1, &json!({ROLE: "device"}))], "device"),
            (vec![layer(LAYER, 1, &none), layer(LAYER, 2, &none)], "several layers"),
            (vec![layer(LAYER, 1, &json!({ROLE: "device"})); 66], "device"),
            (
                [vec![layer(LAYER, 1, &json!({ROLE: "device"})); 65], vec![layer(LAYER, 1, &none)]].concat(),
                "64 devices",
            ),
            (vec![layer(LAYER, 1, &json!({ROLE: "x"}))], "role"),
            (vec![layer(LAYER, 1, &none), layer(INDEX, 2, &json!({INDEX_TARGET: "sha256:1"}))], "does not follow"),
            (vec![layer(LAYER, 1, &json!({INDEX_RANGE: "50:101", INDEX_DIGEST: Sum::of(b"").to_string()}))], "range"),
            (vec![layer(LAYER, 1, &json!({TREE_ROOT: "x", TREE_OFFSET: "50"}))], "root digest"),
            (vec![layer(LAYER, 1, &json!({TREE_ROOT: "0".repeat(64), TREE_OFFSET: "100"}))], "offset"),
            (
                vec![layer(LAYER, 1, &json!({TREE_ROOT: "0".repeat(64), TREE_OFFSET: "50", TREE_BLOCK: "512"}))],
                "4096 bytes",
            ),
            (vec![layer(LAYER, 1, &json!({INDEX_RANGE: "+5", INDEX_DIGEST: Sum::of(b"").to_string()}))], "range"),
        ] {
            let error = read(&layers).expect_err(what).to_string();
            assert!(error.contains(what), "{error}");
        }
    }

    proptest! {
        #[test]
        fn hostile_manifests(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let inside = json!({INDEX_RANGE: "60", INDEX_DIGEST: Sum::of(b"i").to_string()});
            let manifest = json!({"schemaVersion": 2, "layers": [layer(LAYER, 1, &inside)]});
            let mut bytes = manifest.to_string().into_bytes();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if let Ok(Contents::Layers(layers)) = contents(&bytes, "x")
                && let Some(IndexPlace::Inside(range, _)) = layers.image.index
            {
                prop_assert!(range.end <= layers.image.size_bytes);
            }
        }
    }
}

//! Container images: OCI layouts, and the archives of `docker save`.
//!
//! ```text
//! OCI layout     oci-layout, index.json -> [index ->] manifest -> config, layers
//!                all of them in blobs/ALGORITHM/DIGEST; a directory, or the same as an archive
//! docker save    manifest.json -> config, layers: paths in the archive
//! ```
//!
//! A directory or an archive is first read as a tree of files, in which all paths are looked up: a
//! path or a link never leads out of it. Nothing in it is trusted: each blob must have the digest
//! that names it, and each decompressed layer the digest in the config.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::{env, fmt};

use pagefold_base::{Format, Kind, Signature};
use pagefold_erofs::{Content, Layer, NodeId, NodeKind, ScanOptions, Tree};
use serde::{Deserialize, de::DeserializeOwned};
use sha2::{Digest as _, Sha256, Sha512};

use crate::decompress::decompressed;
use crate::spool::spool;
use crate::{
    Error, Result,
    error::{Within, ensure, refuse},
};

/// The two documents at the top of an OCI layout.
pub(crate) const LAYOUT: &str = "oci-layout";
pub(crate) const INDEX: &str = "index.json";
const BLOBS: &str = "blobs";

/// The document of `docker save`, what it was before Docker 1.10, and the layers in their directories.
const MANIFEST: &str = "manifest.json";
const REPOSITORIES: &str = "repositories";
const LAYER: &str = "layer.tar";

/// The end of an encrypted layer's type.
const ENCRYPTED: &str = "+encrypted";

/// What to do with an incomplete image.
const RENEW: &str = "save or copy the image again; to pack what there is, give a directory with it and --format raw";

const NO_IMAGE: &str = "it contains no image that can be read";

/// The maximum size of a manifest, an index or a config in bytes; registries allow 4 MiB.
const MOST_DOCUMENT_BYTES: u64 = 4 << 20;
/// The maximum number of indexes between `index.json` and a manifest.
const MOST_INDEXES: u32 = 4;
/// The maximum number of images of a layout that are examined.
const MOST_IMAGES: usize = 1 << 10;
const MOST_LAYERS: usize = 1 << 10;
/// The maximum number of links in a path, as in Linux.
const MOST_LINKS: u32 = 40;

/// Marks entries that describe an image, such as its provenance.
const REFERENCE_TYPE: &str = "vnd.docker.reference.type";
/// Names of an image in an index.
const REFERENCES: [&str; 2] = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];

/// The platform of an image: `OS/ARCHITECTURE[/VARIANT]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Platform {
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
    variant: Option<String>,
}

impl Platform {
    /// Parses `OS/ARCHITECTURE[/VARIANT]`.
    ///
    /// # Errors
    /// The text is not a platform; the error shows how to write one.
    pub fn parse(text: &str) -> Result<Self, String> {
        let parts: Vec<_> = text.split('/').collect();
        let (os, architecture, variant) = match parts[..] {
            [os, architecture] => (os, architecture, None),
            [os, architecture, variant] => (os, architecture, Some(variant.to_owned())),
            _ => return Err(format!("'{text}' is not OS/ARCHITECTURE[/VARIANT], as in linux/arm64")),
        };
        Ok(Self { os: os.to_owned(), architecture: architecture.to_owned(), variant })
    }

    /// Returns the platform of this machine, in the words of images.
    fn of_machine() -> Self {
        let architecture = match env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            "x86" => "386",
            "powerpc64" => "ppc64le",
            "loongarch64" => "loong64",
            other => other,
        };
        Self { os: env::consts::OS.to_owned(), architecture: architecture.to_owned(), variant: None }
    }

    /// Returns whether an image for `other` is wanted if this platform is.
    fn accepts(&self, other: &Self) -> bool {
        let variant = self.variant.is_none() || self.variant == other.variant;
        self.os == other.os && self.architecture == other.architecture && variant
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant.as_deref().map_or(Ok(()), |variant| write!(f, "/{variant}"))
    }
}

/// A reference to a blob.
#[derive(Clone, Debug, Deserialize)]
struct Descriptor {
    digest: String,
    size: u64,
    platform: Option<Platform>,
    #[serde(rename = "mediaType", default)]
    media_type: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// An index or a manifest.
#[derive(Debug, Deserialize)]
struct Document {
    manifests: Option<Vec<Descriptor>>,
    config: Option<Descriptor>,
    #[serde(default)]
    layers: Vec<Descriptor>,
}

/// An image of a `manifest.json`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

impl Saved {
    /// Returns whether it is written as by `docker save`, though files that it names may be missing.
    fn is_of_docker(&self) -> bool {
        let name = self.config.rsplit('/').next().unwrap_or_default();
        !self.layers.is_empty() || is_blob("sha256", name.trim_end_matches(".json").as_bytes())
    }
}

#[derive(Debug, Deserialize)]
struct Config {
    #[serde(flatten)]
    platform: Platform,
    rootfs: RootFs,
}

#[derive(Debug, Deserialize)]
struct RootFs {
    diff_ids: Vec<String>,
}

/// An image in a directory or an archive.
struct ListedImage {
    /// Its names for users.
    names: Vec<String>,
    config: Config,
    layers: Vec<Blob>,
    /// Identifies the image.
    id: String,
}

/// The place of a blob, and its digest if the place states one.
struct Blob {
    path: String,
    digest: Option<Digest>,
    size: Option<u64>,
    is_encrypted: bool,
}

/// Returns the layers of the container image that a tree of files contains, the lowest first;
/// `None` if it contains none. `name` is the tree's source.
pub(crate) fn layers(
    tree: &Tree,
    name: &Path,
    platform: Option<&Platform>,
    options: &ScanOptions,
) -> Result<Option<Vec<Layer>>> {
    let files = Files { tree };
    let shown = || name.display().to_string();
    let images = if files.has(LAYOUT) && files.has(INDEX) {
        files.of_layout().within(shown)?
    } else if let Some(saved) = files.saved().within(shown)? {
        files.of_docker(saved).within(shown)?
    } else {
        files.parts().check().within(shown)?;
        files.check_docker().within(shown)?;
        return Ok(None);
    };
    let image = chosen(images, platform).within(shown)?;
    let count = image.layers.len();
    ensure!(count <= MOST_LAYERS, "{}: the image has {count} layers, more than {MOST_LAYERS}", shown());
    ensure!(
        count == image.config.rootfs.diff_ids.len(),
        "{}: the image has {count} layers, but its config describes {}",
        shown(),
        image.config.rootfs.diff_ids.len()
    );
    let mut layers = Vec::new();
    for (number, (blob, diff_id)) in image.layers.iter().zip(&image.config.rootfs.diff_ids).enumerate() {
        let name = PathBuf::from(format!("{}: layer {} of {count}", shown(), number + 1));
        layers.push(files.layer(blob, diff_id, &name, options)?);
    }
    Ok(Some(layers))
}

/// Returns the image for a platform: the only one, or the only one for this machine.
fn chosen(mut images: Vec<ListedImage>, platform: Option<&Platform>) -> Result<ListedImage> {
    ensure!(!images.is_empty(), "{NO_IMAGE}");
    let mut seen = std::collections::HashSet::new();
    images.retain(|image| seen.insert(image.id.clone()));
    let listed = |images: &[ListedImage]| {
        let mut texts: Vec<_> = images
            .iter()
            .map(|image| {
                let names = image.names.join(", ");
                if names.is_empty() {
                    image.config.platform.to_string()
                } else {
                    format!("{} ({names})", image.config.platform)
                }
            })
            .collect();
        texts.dedup();
        texts.join(", ")
    };
    let all = listed(&images);
    let only = images.len() == 1 && platform.is_none();
    let wanted = platform.cloned().unwrap_or_else(Platform::of_machine);
    images.retain(|image| only || wanted.accepts(&image.config.platform));
    match images.len() {
        0 => refuse!("it contains no image for {wanted}: select one with --platform: {all}"),
        1 => Ok(images.remove(0)),
        _ => refuse!(
            "it contains several images for {wanted}: {}: save one of them, or select a variant with --platform",
            listed(&images)
        ),
    }
}

/// Which parts of an OCI layout there are.
pub(crate) struct LayoutParts {
    has_layout: bool,
    /// Whether `index.json` is an index of images.
    has_index: bool,
    has_blobs: bool,
}

impl LayoutParts {
    /// Returns those in a directory of the system.
    pub(crate) fn of_directory(path: &Path) -> Self {
        let index = Some(path.join(INDEX)).filter(|index| index.is_file()).and_then(|index| File::open(index).ok());
        let index = index.map(|file| BufReader::new(file.take(MOST_DOCUMENT_BYTES)));
        let index = index.and_then(|index| serde_json::from_reader::<_, Document>(index).ok());
        Self {
            has_layout: path.join(LAYOUT).is_file(),
            has_index: index.is_some_and(|index| index.manifests.is_some()),
            has_blobs: ALGORITHMS.iter().any(|(name, ..)| {
                let blobs = fs::read_dir(path.join(BLOBS).join(name)).into_iter().flatten().flatten();
                blobs.into_iter().any(|blob| is_blob(name, blob.file_name().as_bytes()))
            }),
        }
    }

    /// Fails if a layout lacks one of its documents. Other files with one of these names are not
    /// next to blobs.
    pub(crate) fn check(&self) -> Result<()> {
        let missing = match (self.has_layout, self.has_index) {
            (true, false) => INDEX,
            (false, true) => LAYOUT,
            _ => return Ok(()),
        };
        ensure!(!self.has_blobs, "it is an incomplete OCI layout: {missing} is missing: {RENEW}");
        Ok(())
    }
}

/// The files of a directory or an archive.
struct Files<'a> {
    tree: &'a Tree,
}

impl Files<'_> {
    /// Returns the regular file at a path, through links within the tree.
    fn file(&self, path: &str) -> Result<(&Content, u64)> {
        let mut rest: Vec<Vec<u8>> = components(path.as_bytes());
        let mut above: Vec<NodeId> = Vec::new();
        let (mut at, mut links) = (self.tree.root(), 0);
        while let Some(name) = rest.pop() {
            if name == b".." {
                at = above.pop().unwrap_or(self.tree.root());
                continue;
            }
            let Some(child) = self.tree.child(at, &name) else {
                let why = if links > 0 { ": a link leads to a file outside, or to none" } else { "" };
                refuse!("{path} is missing{why}");
            };
            if let NodeKind::Symlink(target) = &self.tree.node(child).kind {
                links += 1;
                ensure!(links <= MOST_LINKS, "{path}: too many symbolic links");
                if target.starts_with(b"/") {
                    above.clear();
                    at = self.tree.root();
                }
                rest.extend(components(target));
                continue;
            }
            above.push(at);
            at = child;
        }
        match &self.tree.node(at).kind {
            NodeKind::Regular { content, size } => Ok((content, *size)),
            _ => refuse!("{path} is not a regular file"),
        }
    }

    fn has(&self, path: &str) -> bool {
        self.file(path).is_ok()
    }

    /// Reads a document, whose digest is checked if the place states one.
    fn document<T: DeserializeOwned>(&self, blob: &Blob) -> Result<T> {
        let (content, size) = self.file(&blob.path)?;
        ensure!(
            size <= MOST_DOCUMENT_BYTES,
            "{} has {size} bytes; a document may have at most {MOST_DOCUMENT_BYTES}",
            blob.path
        );
        let mut bytes = vec![0; size as usize];
        content.read_exact_at(&mut bytes, 0).within(|| blob.path.clone())?;
        if let Some(digest) = &blob.digest {
            let mut hash = Hash::new(digest.algorithm);
            hash.update(&bytes);
            digest.check(hash).within(|| blob.path.clone())?;
        }
        serde_json::from_slice(&bytes).within(|| format!("{} cannot be understood", blob.path))
    }

    /// Returns the images that `manifest.json` describes, if it is one of `docker save`. Fails if it
    /// is, but a file that it names is missing.
    fn saved(&self) -> Result<Option<Vec<Saved>>> {
        let Ok(saved) = self.document::<Vec<Saved>>(&Blob::at(MANIFEST)) else { return Ok(None) };
        let named = || saved.iter().flat_map(|image| image.layers.iter().chain([&image.config]));
        let absent = named().find_map(|path| self.file(path).err());
        match absent {
            Some(absent) if saved.iter().any(Saved::is_of_docker) => {
                refuse!("it is an incomplete archive of 'docker save': {absent}, but {MANIFEST} names it: {RENEW}")
            }
            None if !saved.is_empty() => Ok(Some(saved)),
            _ => Ok(None),
        }
    }

    /// Fails if these are the files of `docker save`, though its manifest is missing or describes no
    /// image.
    fn check_docker(&self) -> Result<()> {
        let NodeKind::Directory(names) = &self.tree.node(self.tree.root()).kind else { return Ok(()) };
        let is_layer = |name: &[u8], id| is_blob("sha256", name) && self.tree.child(id, LAYER.as_bytes()).is_some();
        let has_layers = names.iter().any(|(name, id)| is_layer(name, *id));
        let is_part = |name: &[u8]| {
            let name = name.strip_suffix(b".json").or(name.strip_suffix(b".tar"));
            name.is_some_and(|name| is_blob("sha256", name))
        };
        let has = |name: &str| names.contains_key(name.as_bytes());
        match has(MANIFEST) {
            true if has_layers || names.keys().any(|name| is_part(name)) => {
                refuse!("it is an incomplete archive of 'docker save': {MANIFEST} does not describe an image: {RENEW}")
            }
            false if has_layers && has(REPOSITORIES) => refuse!(
                "it is an archive of 'docker save' without {MANIFEST}, as before Docker 1.10: 'docker load' and 'docker \
                 save' write a current one; to pack what there is, give a directory with it and --format raw"
            ),
            false if has_layers => {
                refuse!("it is an incomplete archive of 'docker save': {MANIFEST} is missing: {RENEW}")
            }
            _ => Ok(()),
        }
    }

    /// Returns which parts of an OCI layout there are.
    fn parts(&self) -> LayoutParts {
        let index = Blob::at(INDEX);
        LayoutParts {
            has_layout: self.has(LAYOUT),
            has_index: self.document::<Document>(&index).is_ok_and(|index| index.manifests.is_some()),
            has_blobs: ALGORITHMS.iter().any(|(name, ..)| {
                let folder = self.tree.child(self.tree.root(), BLOBS.as_bytes());
                let folder = folder.and_then(|folder| self.tree.child(folder, name.as_bytes()));
                match folder.map(|folder| &self.tree.node(folder).kind) {
                    Some(NodeKind::Directory(blobs)) => blobs.keys().any(|blob| is_blob(name, blob)),
                    _ => false,
                }
            }),
        }
    }

    fn of_docker(&self, saved: Vec<Saved>) -> Result<Vec<ListedImage>> {
        saved
            .into_iter()
            .take(MOST_IMAGES)
            .map(|image| {
                // The config is named by its digest.
                let name = image.config.rsplit('/').next().unwrap_or_default();
                let digest = Digest::parse(&format!("sha256:{}", name.trim_end_matches(".json"))).ok();
                let config = self.document(&Blob { digest, ..Blob::at(&image.config) })?;
                let layers = image.layers.iter().map(|path| Blob::at(path)).collect();
                Ok(ListedImage { names: image.repo_tags.unwrap_or_default(), config, layers, id: image.config })
            })
            .collect()
    }

    fn of_layout(&self) -> Result<Vec<ListedImage>> {
        let index = Blob::at(INDEX);
        let (mut images, mut absent) = (Vec::new(), None);
        self.of_index(self.document(&index)?, MOST_INDEXES, &mut images, &mut absent)?;
        match absent.filter(|_| images.is_empty()) {
            Some(absent) => Err(absent).within(|| NO_IMAGE.to_owned()),
            None => Ok(images),
        }
    }

    /// Finds the images of an index, and why the first of those that it lists is `absent`.
    fn of_index(
        &self,
        index: Document,
        depth: u32,
        images: &mut Vec<ListedImage>,
        absent: &mut Option<Error>,
    ) -> Result<()> {
        for descriptor in index.manifests.unwrap_or_default() {
            let blob = Blob::of(&descriptor)?;
            if descriptor.annotations.contains_key(REFERENCE_TYPE) {
                continue;
            }
            // An index may list images for other platforms that were not saved.
            if let Err(error) = self.file(&blob.path) {
                absent.get_or_insert(error);
                continue;
            }
            ensure!(images.len() < MOST_IMAGES, "it contains more than {MOST_IMAGES} images");
            let document: Document = self.document(&blob)?;
            if document.manifests.is_some() {
                ensure!(depth > 0, "indexes are nested more than {MOST_INDEXES} levels deep");
                self.of_index(document, depth - 1, images, absent)?;
                continue;
            }
            let Some(config) = &document.config else { refuse!("{} is not a manifest", blob.path) };
            let mut config: Config = self
                .document(&Blob::of(config)?)
                .within(|| "it contains something other than a container image".to_owned())?;
            if let Some(platform) = descriptor.platform {
                config.platform = platform;
            }
            let names = REFERENCES.iter().find_map(|key| descriptor.annotations.get(*key)).cloned();
            let layers = document.layers.iter().map(Blob::of).collect::<Result<_>>()?;
            images.push(ListedImage { names: names.into_iter().collect(), config, layers, id: descriptor.digest });
        }
        Ok(())
    }

    /// Reads a layer, decompressed to a temporary file.
    fn layer(&self, blob: &Blob, diff_id: &str, name: &Path, options: &ScanOptions) -> Result<Layer> {
        let shown = || name.display().to_string();
        ensure!(
            !blob.is_encrypted,
            "{}: it is encrypted: 'skopeo copy --decryption-key KEY oci:ENCRYPTED oci:NEW' decrypts an image",
            shown()
        );
        let (content, size) = self.file(&blob.path).within(shown)?;
        let reading = || Reading { content, at: 0, size };
        if let Some(digest) = &blob.digest {
            ensure!(
                blob.size == Some(size),
                "{}: {} has {size} bytes, not the size that its manifest states",
                shown(),
                blob.path
            );
            let mut hash = Hash::new(digest.algorithm);
            io::copy(&mut reading(), &mut hash).within(shown)?;
            digest.check(hash).within(|| format!("{}: {}", shown(), blob.path))?;
        }
        let diff_id = Digest::parse(diff_id).within(shown)?;
        let mut hash = Hash::new(diff_id.algorithm);
        let source = decompressed(reading()).within(shown)?;
        let kept = spool(Hashed { source, hash: &mut hash }, name)?;
        diff_id.check(hash).within(|| format!("{}, decompressed", shown()))?;
        match Signature::of(&kept, 0).within(shown)? {
            Some(found) if found.kind() == Kind::Base(Format::Erofs) => refuse!(
                "{}: {} is an EROFS image: give this file to 'pagefold ls', 'pagefold extract' or 'pagefold serve --format erofs'",
                shown(),
                blob.path
            ),
            Some(found) if !matches!(found.kind(), Kind::Tar | Kind::Disk) => {
                refuse!("{}: {} is not a tar archive, but {}", shown(), blob.path, found.name())
            }
            _ => {}
        }
        Ok(Layer::from_tar(kept, name, options)?)
    }
}

/// Returns the components of a path, the last first.
fn components(path: &[u8]) -> Vec<Vec<u8>> {
    let parts = path.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b"."));
    parts.rev().map(<[u8]>::to_vec).collect()
}

impl Blob {
    /// Returns a file without a descriptor.
    fn at(path: &str) -> Self {
        Self { path: path.to_owned(), digest: None, size: None, is_encrypted: false }
    }

    fn of(descriptor: &Descriptor) -> Result<Self> {
        let digest = Digest::parse(&descriptor.digest)?;
        let path = format!("blobs/{}", descriptor.digest.replacen(':', "/", 1));
        let is_encrypted = descriptor.media_type.ends_with(ENCRYPTED);
        Ok(Self { path, digest: Some(digest), size: Some(descriptor.size), is_encrypted })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    Sha256,
    Sha512,
}

/// The algorithms' names, and the number of their digests' digits.
const ALGORITHMS: [(&str, Algorithm, usize); 2] =
    [("sha256", Algorithm::Sha256, 64), ("sha512", Algorithm::Sha512, 128)];

/// Returns whether `name` is a digest by this algorithm, as names of blobs are.
fn is_blob(algorithm: &str, name: &[u8]) -> bool {
    str::from_utf8(name).is_ok_and(|name| Digest::parse(&format!("{algorithm}:{name}")).is_ok())
}

/// A digest with its algorithm.
struct Digest {
    algorithm: Algorithm,
    hex: String,
}

impl Digest {
    /// Parses `ALGORITHM:HEX`.
    fn parse(text: &str) -> Result<Self> {
        let (algorithm, hex) = text.split_once(':').unwrap_or((text, ""));
        let Some((_, algorithm, digits)) = ALGORITHMS.iter().find(|(name, ..)| *name == algorithm) else {
            refuse!("'{text}' is not a digest by SHA-256 or SHA-512")
        };
        let is_hex = hex.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
        ensure!(hex.len() == *digits && is_hex, "'{text}' is not a digest");
        Ok(Self { algorithm: *algorithm, hex: hex.to_owned() })
    }

    fn check(&self, hash: Hash) -> Result<()> {
        let found = hash.hex();
        ensure!(found == self.hex, "its digest is {found}, not {}: it is damaged", self.hex);
        Ok(())
    }
}

/// A digest being computed.
enum Hash {
    Sha256(Sha256),
    Sha512(Box<Sha512>),
}

impl Hash {
    fn new(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::Sha256 => Self::Sha256(Sha256::new()),
            Algorithm::Sha512 => Self::Sha512(Box::default()),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::Sha512(hash) => hash.update(bytes),
        }
    }

    fn hex(self) -> String {
        let bytes = match self {
            Self::Sha256(hash) => hash.finalize().to_vec(),
            Self::Sha512(hash) => hash.finalize().to_vec(),
        };
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl io::Write for Hash {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A reader whose bytes are hashed.
struct Hashed<'a, R> {
    source: R,
    hash: &'a mut Hash,
}

impl<R: Read> Read for Hashed<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = self.source.read(buf)?;
        self.hash.update(&buf[..len]);
        Ok(len)
    }
}

/// The content of a file, read from its start.
struct Reading<'a> {
    content: &'a Content,
    at: u64,
    size: u64,
}

impl Read for Reading<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = (self.size - self.at).min(buf.len() as u64) as usize;
        self.content.read_exact_at(&mut buf[..len], self.at)?;
        self.at += len as u64;
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(platform: &str, id: &str) -> ListedImage {
        let config = Config {
            platform: Platform::parse(platform).expect("a platform"),
            rootfs: RootFs { diff_ids: Vec::new() },
        };
        ListedImage { names: Vec::new(), config, layers: Vec::new(), id: id.to_owned() }
    }

    #[test]
    fn the_image_for_a_platform_is_chosen() {
        let choose = |images: &[(&str, &str)], platform: Option<&str>| {
            let platform = platform.map(|text| Platform::parse(text).expect("a platform"));
            let images = images.iter().map(|(platform, id)| image(platform, id)).collect();
            chosen(images, platform.as_ref()).map(|image| image.id).map_err(|error| error.to_string())
        };
        let several = [("linux/s390x", "a"), ("linux/arm/v6", "b"), ("linux/arm/v7", "c"), ("plan9/mips", "d")];
        assert_eq!(choose(&several, Some("linux/s390x")).as_deref(), Ok("a"));
        assert_eq!(choose(&several, Some("linux/arm/v7")).as_deref(), Ok("c"));
        let error = choose(&several, Some("linux/arm")).expect_err("two variants");
        assert!(error.contains("linux/arm/v6, linux/arm/v7"), "{error}");
        let error = choose(&several, Some("linux/386")).expect_err("none");
        assert!(error.contains("no image for linux/386") && error.contains("plan9/mips"), "{error}");
        // A single image is taken on any machine, unless another platform is requested.
        assert_eq!(choose(&several[3..], None).as_deref(), Ok("d"));
        assert!(choose(&several[3..], Some("linux/arm")).is_err());
        // Two names of one image.
        assert_eq!(choose(&[("plan9/mips", "d"), ("plan9/mips", "d")], None).as_deref(), Ok("d"));
        let machine = Platform::of_machine().to_string();
        assert_eq!(choose(&[("plan9/mips", "d"), (&machine, "e")], None).as_deref(), Ok("e"));
        assert!(choose(&[], None).is_err());
        assert!(Platform::parse("linux").is_err());
    }

    #[test]
    fn digests_are_paths_only_if_they_are_digests() {
        let hex = "0123456789abcdef".repeat(4);
        assert!(Digest::parse(&format!("sha256:{hex}")).is_ok());
        for text in [
            "",
            "sha256:",
            "md5:00",
            "sha256:../../etc/passwd",
            &format!("sha256:{}", hex.to_uppercase()),
            &format!("sha512:{hex}"),
        ] {
            assert!(Digest::parse(text).is_err(), "{text}");
        }
    }
}

//! The parts of an image in a registry.

use std::{
    io::{self, Read},
    ops::Range,
    sync::Arc,
};

use pagefold_storage::ReadAt;

use crate::{
    cut::{Clusters, index_with},
    image::{IndexPlace, Layer},
    index::{Index, MOST_INDEX_BYTES},
    location::Reference,
    patience::Patience,
    ranges::{RangeBody, Ranges},
    remote::Remote,
    sum::{Sum, Summing},
};

/// A blob with an image, or with data of one, that becomes a layer in a registry.
pub struct Part {
    pub(crate) layer: Layer,
    pub(crate) content: Content,
}

/// The source of a part's bytes.
pub(crate) enum Content {
    /// This file or blob, and its encoded index.
    Here {
        bytes: Arc<dyn ReadAt>,
        index: Vec<u8>,
        /// Whether the blob ends with the index, but the bytes do not.
        is_appended: bool,
    },
    /// In a registry.
    There(Reference),
}

impl Part {
    /// Returns the blob of an image: the image and the index that is made of it. A blob that ends with
    /// its index stays as it is. Reads all of it.
    ///
    /// # Errors
    /// The image cannot be read.
    pub fn of_image(image: Arc<dyn ReadAt>, clusters: &Clusters) -> io::Result<Self> {
        if let Some(part) = Self::with_own_index(&image, clusters)? {
            return Ok(part);
        }
        let (mut sum, index) = indexed(&*image, clusters)?;
        let (size_bytes, opening, index) = (index.size_bytes(), clusters.opening(&index), index.encode());
        sum.add(&index);
        let end = size_bytes + index.len() as u64;
        let place = IndexPlace::Inside(size_bytes..end, Sum::of(&index));
        let layer = Layer { blob: sum.sum(), size_bytes: end, index: Some(place), tree: None, opening };
        Ok(Self { layer, content: Content::Here { bytes: image, index, is_appended: true } })
    }

    /// Returns the blob that holds data of an image whose device table names it by `tag`. If that is
    /// the sum of the whole blob, the blob stays as it is, and an index that it lacks becomes a layer
    /// of its own. Reads all of it.
    ///
    /// # Errors
    /// The device cannot be read.
    pub fn of_device(device: Arc<dyn ReadAt>, tag: &[u8; 64], clusters: &Clusters) -> io::Result<Self> {
        if !tag.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
            return Self::of_image(device, clusters);
        }
        if let Some(part) = Self::with_own_index(&device, clusters)? {
            return Ok(part);
        }
        let (sum, index) = indexed(&*device, clusters)?;
        let (size_bytes, opening, index) = (index.size_bytes(), clusters.opening(&index), index.encode());
        let place = IndexPlace::Apart(Sum::of(&index), index.len() as u64);
        let layer = Layer { blob: sum.sum(), size_bytes, index: Some(place), tree: None, opening };
        Ok(Self { layer, content: Content::Here { bytes: device, index, is_appended: false } })
    }

    /// Returns a blob that ends with the right index of the image in it.
    fn with_own_index(blob: &Arc<dyn ReadAt>, clusters: &Clusters) -> io::Result<Option<Self>> {
        let image_bytes = clusters.image_bytes();
        let size_bytes = blob.len_bytes()?;
        let index_bytes = size_bytes.saturating_sub(image_bytes);
        if image_bytes == 0 || !(1..=MOST_INDEX_BYTES).contains(&index_bytes) {
            return Ok(None);
        }
        let mut encoded = vec![0; index_bytes as usize];
        blob.read_exact_at(&mut encoded, image_bytes)?;
        let index = Index::decode(&encoded, "").ok().filter(|index| index.size_bytes() == image_bytes);
        let Some(index) = index else { return Ok(None) };
        let mut sum = Summing::default();
        let mut bytes = Vec::new();
        for chunk in 0..index.len() {
            let range = index.range(chunk);
            bytes.resize((range.end - range.start) as usize, 0);
            blob.read_exact_at(&mut bytes, range.start)?;
            if index.stored(chunk) != range || !index.is_right(chunk, &bytes) {
                return Ok(None);
            }
            sum.add(&bytes);
        }
        sum.add(&encoded);
        let opening = clusters.opening(&index);
        let place = IndexPlace::Inside(image_bytes..size_bytes, Sum::of(&encoded));
        let layer = Layer { blob: sum.sum(), size_bytes, index: Some(place), tree: None, opening };
        let content = Content::Here { bytes: Arc::clone(blob), index: encoded, is_appended: false };
        Ok(Some(Self { layer, content }))
    }

    /// Returns an opened image's layer in its registry, without its devices. `None` if the image is
    /// not in a registry. Reads nothing.
    pub fn of_remote(remote: &Remote) -> Option<Self> {
        let (reference, layer) = remote.origin()?;
        Some(Self { layer: layer.clone(), content: Content::There(reference.clone()) })
    }

    /// Returns the sum of the blob.
    pub fn sum(&self) -> Sum {
        self.layer.blob
    }

    /// Returns the sum of the bytes that the part was made of, unless the blob also has an index.
    pub fn sum_of_bytes(&self) -> Option<Sum> {
        match self.content {
            Content::Here { is_appended: true, .. } => None,
            _ => Some(self.layer.blob),
        }
    }

    /// Returns the length of the index.
    pub(crate) fn index_bytes(&self) -> u64 {
        self.layer.index.as_ref().map_or(0, IndexPlace::len_bytes)
    }

    /// Returns the blobs that the part consists of, with their lengths.
    pub(crate) fn blobs(&self) -> Vec<(Sum, u64)> {
        let own = (self.layer.blob, self.layer.size_bytes);
        match &self.layer.index {
            Some(IndexPlace::Apart(sum, size_bytes)) => vec![own, (*sum, *size_bytes)],
            _ => vec![own],
        }
    }
}

/// Returns the unfinished sum of an image, and its index.
fn indexed(image: &dyn ReadAt, clusters: &Clusters) -> io::Result<(Summing, Index)> {
    let mut sum = Summing::default();
    let index = index_with(image, clusters, &mut |bytes| sum.add(bytes))?;
    Ok((sum, index))
}

/// Returns a reader of an image's bytes, independent of others.
pub(crate) fn image_bytes(image: &dyn ReadAt, size_bytes: u64) -> Box<dyn Read + '_> {
    Box::new(ImageBytes { image, range: 0..size_bytes })
}

struct ImageBytes<'a> {
    image: &'a dyn ReadAt,
    range: Range<u64>,
}

impl Read for ImageBytes<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = (self.range.end - self.range.start).min(buf.len() as u64) as usize;
        self.image.read_exact_at(&mut buf[..len], self.range.start)?;
        self.range.start += len as u64;
        Ok(len)
    }
}

/// Reads a range of a blob from its registry as it arrives. Failures that may pass are waited out. The
/// bytes are not verified.
pub(crate) struct Download<'a> {
    ranges: &'a Ranges,
    range: Range<u64>,
    body: Option<RangeBody>,
    patience: Patience,
}

impl<'a> Download<'a> {
    pub(crate) fn new(ranges: &'a Ranges, range: Range<u64>, patience: Patience) -> Self {
        Self { ranges, range, body: None, patience }
    }
}

impl Read for Download<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = (self.range.end - self.range.start).min(buf.len() as u64) as usize;
        if len == 0 {
            return Ok(0);
        }
        loop {
            let opened = match self.body.take() {
                Some(body) => Ok(body),
                None => self.ranges.open(self.range.clone(), self.patience.until()),
            };
            let filled = opened.and_then(|mut body| {
                let filled = body.fill(&mut buf[..len], self.patience.limit());
                filled.inspect_err(|_| self.ranges.forget(&body))?;
                Ok(body)
            });
            match filled {
                Ok(body) => {
                    self.body = Some(body);
                    self.range.start += len as u64;
                    self.patience.restart();
                    return Ok(len);
                }
                Err(failure) => self.patience.wait(failure)?,
            }
        }
    }
}

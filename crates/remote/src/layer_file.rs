//! A layer of an image as containerd's EROFS snapshotter finds it in a cache of layers.
//!
//! ```text
//! sha256/XX/DIGITS.erofs             the layer up to a multiple of 4 KiB, and its dm-verity tree
//! sha256/XX/DIGITS.erofs.dmverity    {"roothash": "DIGITS", "hashoffset": START OF THE TREE}
//! ```
//!
//! DIGITS are those of the layer's sum, XX the first two.

use std::{
    fs::File,
    io::{self, Read as _},
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::Arc,
};

use serde_json::json;

use crate::{
    blob::Blob,
    error::{Error, Result},
    http::Client,
    image::Layer,
    location::Reference,
    part::Download,
    patience::Patience,
    ranges::Ranges,
    registry::Registry,
    remote::{Options, Remote},
    sum::{Sum, Summing},
    tree_writer::TreeWriter,
    verity::BLOCK_BYTES,
};

/// Bytes of a layer that are copied together: whole blocks.
const COPY_BYTES: usize = 1 << 20;

/// An image in a registry that is a single layer.
pub struct LayerFile<'a> {
    image: &'a Blob,
    reference: &'a Reference,
    layer: &'a Layer,
}

impl<'a> LayerFile<'a> {
    /// Returns the layer of an image.
    ///
    /// # Errors
    /// The image is not in a registry, or it has devices, which containerd does not support.
    pub fn of(remote: &'a Remote) -> Result<Self> {
        let name = || remote.blob().name().to_owned();
        let wrong = |what: &str| Error::Location { location: name(), what: what.to_owned() };
        let (reference, layer) = remote.origin().ok_or_else(|| wrong("only images at oci:// are layers"))?;
        if remote.blobs().len() > 1 {
            return Err(wrong("containerd does not support images that refer to their base"));
        }
        if layer.size_bytes > i64::MAX as u64 {
            return Err(Error::Manifest { name: name(), what: "the layer is too large".to_owned() });
        }
        Ok(Self { image: remote.blob(), reference, layer })
    }

    /// Returns the path of the layer in a cache of layers.
    pub fn path(&self) -> PathBuf {
        let digits = self.layer.blob.hex();
        ["sha256", &digits[..2], &format!("{digits}.erofs")].iter().collect()
    }

    /// Returns the length of the layer, without the tree.
    pub fn size_bytes(&self) -> u64 {
        self.layer.size_bytes
    }

    /// Returns whether a file begins with the layer, as its sum shows.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn is_in(&self, file: &File) -> io::Result<bool> {
        let (mut sum, mut at) = (Summing::default(), 0);
        let mut buf = vec![0; COPY_BYTES];
        while at < self.layer.size_bytes {
            let most = (self.layer.size_bytes - at).min(COPY_BYTES as u64) as usize;
            let len = file.read_at(&mut buf[..most], at)?;
            if len == 0 {
                return Ok(false);
            }
            sum.add(&buf[..len]);
            at += len as u64;
        }
        Ok(sum.sum() == self.layer.blob)
    }

    /// Writes the layer to an empty file, with a dm-verity tree. Calls `progress` with the bytes of
    /// the layer that were written. Returns the content of the file next to it.
    ///
    /// # Errors
    /// As for a read; or the layer differs from its sum, or the file cannot be written to.
    pub fn write(&self, to: &File, options: &Options, progress: &mut dyn FnMut(u64)) -> io::Result<String> {
        let Layer { blob: sum, size_bytes, .. } = *self.layer;
        let mut copy = Copy::new(to, size_bytes.div_ceil(BLOCK_BYTES));
        let mut take = |bytes: &[u8]| {
            copy.add(bytes)?;
            progress(copy.bytes);
            Ok(())
        };
        let mut start = 0;
        if self.image.index().is_in_place() {
            self.image.each_chunk(&mut take)?;
            start = self.image.index().size_bytes();
        }
        // The index or a tree, or what an index leaves out.
        if start < size_bytes && options.is_offline {
            return Err(Error::Offline(self.image.name().to_owned()).into());
        }
        let client = Arc::new(Client::new());
        let registry = Registry::new(Arc::clone(&client), self.reference, &options.mirrors)?;
        let ranges = Ranges::new(client, registry.ways(sum)?);
        let mut rest = Download::new(&ranges, start..size_bytes, Patience::new(options.patience));
        let mut buf = vec![0; COPY_BYTES];
        loop {
            match rest.read(&mut buf)? {
                0 => break,
                len => take(&buf[..len])?,
            }
        }
        // A manifest may name the sum of another layer than the one whose chunks its index has.
        let (found, root) = copy.finish(sum)?;
        if found != sum {
            return Err(Error::Sum { url: self.image.name().to_owned(), what: "the layer".to_owned() }.into());
        }
        let tree_at = size_bytes.next_multiple_of(BLOCK_BYTES);
        Ok(format!("{:#}\n", json!({ "roothash": root.hex(), "hashoffset": tree_at })))
    }
}

/// A layer that is being written.
struct Copy<'a> {
    to: &'a File,
    bytes: u64,
    sum: Summing,
    tree: TreeWriter<'a>,
    /// The end of what was written, less than a block.
    rest: Vec<u8>,
}

impl<'a> Copy<'a> {
    fn new(to: &'a File, blocks: u64) -> Self {
        Self { to, bytes: 0, sum: Summing::default(), tree: TreeWriter::new(to, blocks), rest: Vec::new() }
    }

    fn add(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        self.to.write_all_at(bytes, self.bytes)?;
        self.bytes += bytes.len() as u64;
        self.sum.add(bytes);
        while !bytes.is_empty() {
            let missing = BLOCK_BYTES as usize - self.rest.len();
            let (next, after) = bytes.split_at(missing.min(bytes.len()));
            self.rest.extend(next);
            if next.len() == missing {
                self.tree.add(&self.rest)?;
                self.rest.clear();
            }
            bytes = after;
        }
        Ok(())
    }

    /// Returns the sum of the layer, and that of the root of its tree, which is named `name`.
    fn finish(mut self, name: Sum) -> io::Result<(Sum, Sum)> {
        if !self.rest.is_empty() {
            self.rest.resize(BLOCK_BYTES as usize, 0);
            self.tree.add(&self.rest)?;
        }
        Ok((self.sum.sum(), self.tree.finish(name)?))
    }
}

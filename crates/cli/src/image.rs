//! Code shared by the subcommands that read images.

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::{
    ffi::{OsStr, OsString},
    sync::Arc,
};

use anyhow::{Context, anyhow, bail, ensure};
use pagefold_base::{Format, Kind, Signature};
use pagefold_erofs::{BuildReport, Embedded, Error, FileKind, Image, Inode, Notice, Problem, ReadAt};
use pagefold_output::Inputs;
use pagefold_storage::{Location, Storage};

use crate::{
    log, places,
    report::print,
    size, storage,
    storage::RemoteArgs,
    text::{date, show},
};

/// An image file and a path in it, from an argument of the form `IMAGE[:PATH]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ImagePath {
    pub(crate) image: PathBuf,
    pub(crate) path: Vec<u8>,
}

impl From<OsString> for ImagePath {
    /// If the whole text names a file, it is the image, including any colons. Otherwise, the path
    /// starts after the last colon with an existing file before it, or after the first colon if
    /// there is none. In a URL, the path starts with a slash, after the first such colon that does
    /// not end the scheme.
    fn from(text: OsString) -> Self {
        let bytes = text.as_bytes();
        if let Location::Url { scheme, url } = Location::of(Path::new(&text)) {
            let place = scheme.len() + "://".len();
            let colon = url[place..].find(":/").map(|colon| place + colon);
            let (image, path) = colon.map_or((url, ""), |colon| (&url[..colon], &url[colon + 1..]));
            return Self { image: image.into(), path: path.into() };
        }
        let mut colons = bytes.iter().enumerate().filter(|(_, byte)| **byte == b':').map(|(at, _)| at);
        let is_image = |colon: &usize| Path::new(OsStr::from_bytes(&bytes[..*colon])).exists();
        match colons.clone().rfind(is_image).or_else(|| colons.next()) {
            Some(colon) if !Path::new(&text).exists() => {
                Self { image: OsString::from_vec(bytes[..colon].to_vec()).into(), path: bytes[colon + 1..].to_vec() }
            }
            _ => Self { image: text.into(), path: Vec::new() },
        }
    }
}

/// The location of an image's data, for all commands that read one.
#[derive(clap::Args)]
pub(crate) struct ImageArgs {
    /// Offset of the image in its file, for an image behind a header
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "0", hide_default_value = true)]
    #[arg(allow_negative_numbers = true)]
    offset: u64,

    /// A file that holds data of the image (mkfs.erofs --blobdev, --tar=i); repeat in the order of
    /// the image's device table
    #[arg(long = "device", value_name = "FILE")]
    devices: Vec<PathBuf>,

    #[command(flatten)]
    remote: RemoteArgs,
}

impl ImageArgs {
    /// Opens an image. Warns if it is truncated.
    pub(crate) fn open(&self, path: &Path) -> anyhow::Result<Image> {
        let image = self.open_with(path, Image::DEFAULT_CACHE_BYTES)?;
        if let Err(error) = image.check_len() {
            print(&format!("warning: {}: {error}", show(path.as_os_str().as_bytes())));
        }
        Ok(image)
    }

    /// Opens an image and caches at most `cache_bytes` of decoded clusters.
    pub(crate) fn open_with(&self, path: &Path, cache_bytes: usize) -> anyhow::Result<Image> {
        let shown = || pagefold_storage::shown(path);
        let file = self.open_storage(path)?;
        let devices = match &self.devices[..] {
            [] => file.devices().with_context(shown)?,
            given => {
                let open = |device: &PathBuf| {
                    storage::open(device, &self.remote).with_context(|| pagefold_storage::shown(device))
                };
                given.iter().map(open).collect::<anyhow::Result<_>>()?
            }
        };
        let devices = devices.into_iter().map(|device| Box::new(device) as Box<dyn ReadAt>).collect();
        // Without an offset, read the file directly, without a wrapper.
        let image = match self.offset {
            0 => Image::open_with_devices(file, devices, cache_bytes),
            offset => {
                let embedded = Embedded::new(file, offset).with_context(shown)?;
                Image::open_with_devices(embedded, devices, cache_bytes)
            }
        };
        image.map_err(|error| match error {
            Error::Devices(_) => {
                anyhow!("{}: {error} (give each device with --device, in the order of the image's table)", shown())
            }
            error => anyhow::Error::new(error).context(shown()),
        })
    }

    /// Returns the files that hold the image at `path`.
    pub(crate) fn inputs(&self, path: &Path) -> Inputs {
        let mut inputs = Inputs::default();
        inputs.add("the image", path);
        self.devices.iter().for_each(|device| inputs.add("the device", device));
        inputs
    }

    /// Opens an image's storage. [Other files](check) are refused.
    fn open_storage(&self, path: &Path) -> anyhow::Result<Arc<dyn Storage>> {
        let shown = || pagefold_storage::shown(path);
        let is_file = !Location::of(path).is_url();
        if is_file && path.is_dir() {
            bail!("{} is a directory, not an image", shown());
        }
        let file =
            storage::open(path, &self.remote).with_context(|| match path_in_a_file(path).filter(|_| is_file) {
                Some(place) => format!("{} (for a path in an image, write {place})", shown()),
                None => shown(),
            })?;
        check(path, &*file, self.offset)?;
        Ok(file)
    }
}

/// The place of an image's magic number.
const SUPERBLOCK_AT: u64 = 1024;

/// Checks that there is an image at `offset` of the storage of this name.
///
/// # Errors
/// The messages name well-known formats, and places where an image may be.
pub(crate) fn check(path: &Path, storage: &dyn Storage, offset: u64) -> anyhow::Result<()> {
    let shown = || pagefold_storage::shown(path);
    let len = storage.len_bytes().with_context(shown)?;
    if offset > 0 {
        ensure!(offset < len, "--offset {offset} is past the end of {}, which has {len} bytes", shown());
    }
    if Format::Erofs.is_in(storage, offset).with_context(shown)? {
        return Ok(());
    }
    let there = if offset == 0 { String::new() } else { format!(" at byte {offset}") };
    let found = Signature::of(storage, offset).with_context(shown)?;
    let what = match found {
        Some(found) => format!("it is {}", found.described(path)),
        None if len - offset < SUPERBLOCK_AT + 4 => format!("it ends at byte {len}, before an image's magic number"),
        None => format!("no EROFS magic number at byte {}", offset.saturating_add(SUPERBLOCK_AT)),
    };
    let joint = if found.is_some() { ';' } else { ':' };
    // Other files are not searched: their content is not a disk's.
    let is_disk = found.is_none_or(|found| matches!(found.kind(), Kind::Disk));
    let is_file = !Location::of(path).is_url();
    let places = if is_disk && is_file { places::found(storage, offset, len) } else { Vec::new() };
    let advice = places::advice(&places);
    bail!("{}{there} is not an EROFS image{joint} {what}{advice}", shown());
}

/// Returns `IMAGE:/PATH` for a path below a file, as if the file were a directory.
fn path_in_a_file(path: &Path) -> Option<String> {
    // Without a slash at its end, which a file cannot have.
    let path: PathBuf = path.components().collect();
    let file = path.ancestors().find(|above| above.is_file())?;
    let below = path.strip_prefix(file).ok()?;
    Some(show(&[file.as_os_str().as_bytes(), b":/", below.as_os_str().as_bytes()].concat()))
}

/// Returns the inode at a path in the image of this name.
pub(crate) fn resolve(image: &Image, name: &Path, path: &[u8]) -> anyhow::Result<Inode> {
    let found = image.resolve(path).map_err(|error| match error {
        Error::NotFound(_) => error.into(),
        other => anyhow::Error::new(other).context(show(path)),
    });
    found.with_context(|| pagefold_storage::shown(name))
}

/// Returns a printable form of the path `below` relative to the directory at `path`. If `below`
/// does not begin with a slash, it names something outside of any directory and is shown alone.
pub(crate) fn show_below(path: &[u8], below: &[u8]) -> String {
    if !below.starts_with(b"/") {
        return show(below);
    }
    let start = path.strip_suffix(b"/").unwrap_or(path);
    let below = if start.is_empty() || below != b"/" { below } else { b"" };
    show(&[start, below].concat())
}

/// If a new image has encoded extents, or clusters of zeros that are shared, writes which Linux mounts
/// it to standard error, and how to `avoid` that.
pub(crate) fn print_needed_linux(path: &Path, report: &BuildReport, avoid: &str) {
    let (version, why) = if report.files_with_extents > 0 {
        ("6.15", "files that are almost only zeros have encoded extents")
    } else if report.shares_zeros {
        ("6.1 or later", "long files with many zeros share clusters of zeros")
    } else {
        return;
    };
    log::line(&format!("{}: mounting it needs Linux {version}: {why}{avoid}", path.display()));
}

/// Writes a line about each problem to standard error.
pub(crate) fn print_problems(path: &[u8], problems: &[Problem]) {
    for Problem { path: below, error, other } in problems {
        let other = other.as_ref().map_or_else(String::new, |other| format!(": {}", show_below(path, other)));
        log::line(&format!("{}: {error}{other}", show_below(path, below)));
    }
}

/// Writes a line about each warning, and the number of `more` warnings, to standard error.
pub(crate) fn print_warnings(path: &[u8], warnings: &[Notice], more: u64) {
    for Notice { path: below, what, .. } in warnings {
        log::line(&format!("warning: {}: {what}", show_below(path, below)));
    }
    if more > 0 {
        log::line(&format!("warning: {more} more warnings like these"));
    }
}

/// Formats mode, links, owner, size and time in one line, like `ls -l`.
pub(crate) fn long(inode: &Inode) -> String {
    let kind = match inode.kind {
        FileKind::Regular => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::CharDevice => 'c',
        FileKind::BlockDevice => 'b',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
    };
    let size = match inode.device() {
        Some((major, minor)) => format!("{major},{minor}"),
        None => inode.size.to_string(),
    };
    format!(
        "{kind}{} {:>3} {:>5} {:>5} {size:>12} {}",
        rights(inode.permissions()),
        inode.nlink,
        inode.uid,
        inode.gid,
        date(inode.mtime_s, inode.mtime_nsec)
    )
}

/// Formats permissions, set-id and sticky bits like `ls -l`.
fn rights(permissions: u16) -> String {
    let mut text = String::with_capacity(9);
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = permissions >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (permissions & special != 0, bits & 1 != 0) {
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        let place = |text: &str| ImagePath::from(OsString::from(text));
        assert_eq!(place("no-such.erofs"), ImagePath { image: "no-such.erofs".into(), path: Vec::new() });
        assert_eq!(place("no-such.erofs:/etc"), ImagePath { image: "no-such.erofs".into(), path: b"/etc".to_vec() });
        assert_eq!(place("a:b:c").path, b"b:c");
        for (text, image, path) in [
            ("https://host:8080/x.erofs", "https://host:8080/x.erofs", ""),
            ("oci://host:5000/a/x:13", "oci://host:5000/a/x:13", ""),
            ("oci://host:5000/a/x:13:/etc/a:/b", "oci://host:5000/a/x:13", "/etc/a:/b"),
            ("s3://bucket/x.erofs:/", "s3://bucket/x.erofs", "/"),
        ] {
            assert_eq!(place(text), ImagePath { image: image.into(), path: path.into() });
        }
        let folder = tempfile::tempdir().expect("a folder");
        let image = folder.path().join("an:image");
        std::fs::write(&image, "").expect("a file");
        let image = image.to_str().expect("a plain path");
        for path in ["c", "c:d", "/e/c:d:"] {
            let expected = ImagePath { image: image.into(), path: path.as_bytes().to_vec() };
            assert_eq!(place(&format!("{image}:{path}")), expected);
        }
        assert_eq!(place(image).path, b"");
    }

    #[test]
    fn paths_are_shown_from_where_they_begin() {
        for (path, below, shown) in [
            ("", "/a/b", "/a/b"),
            ("/etc", "/a", "/etc/a"),
            ("etc/", "/a", "etc/a"),
            ("/etc/a", "/", "/etc/a"),
            ("/", "/", "/"),
            ("/etc", "packed inode", "packed inode"),
        ] {
            assert_eq!(show_below(path.as_bytes(), below.as_bytes()), shown, "{path} {below}");
        }
    }

    #[test]
    fn rights_are_those_of_ls() {
        for (permissions, text) in [
            (0o644, "rw-r--r--"),
            (0o4755, "rwsr-xr-x"),
            (0o6640, "rwSr-S---"),
            (0o1777, "rwxrwxrwt"),
            (0o1000, "--------T"),
            (0, "---------"),
        ] {
            assert_eq!(rights(permissions), text);
        }
    }
}

//! Code shared by the subcommands that read images.

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::{
    ffi::{OsStr, OsString},
    fmt::Write as _,
    fs::File,
    io,
};

use anyhow::{Context, anyhow, bail, ensure};
use pagefold_erofs::{BuildReport, Embedded, Error, FileKind, Image, Inode, Notice, Problem, ReadAt};

use crate::size;

/// An image file and a path in it, from an argument of the form `IMAGE[:PATH]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ImagePath {
    pub(crate) image: PathBuf,
    pub(crate) path: Vec<u8>,
}

impl From<OsString> for ImagePath {
    /// If the whole text names a file, it is the image, including any colons. Otherwise, the path
    /// starts after the last colon with an existing file before it, or after the first colon if
    /// there is none.
    fn from(text: OsString) -> Self {
        let bytes = text.as_bytes();
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
}

impl ImageArgs {
    /// Opens an image.
    pub(crate) fn open(&self, path: &Path) -> anyhow::Result<Image> {
        self.open_with(path, Image::DEFAULT_CACHE_BYTES)
    }

    /// Opens an image and caches at most `cache_bytes` of decoded clusters.
    pub(crate) fn open_with(&self, path: &Path, cache_bytes: usize) -> anyhow::Result<Image> {
        let shown = || path.display().to_string();
        let file = self.open_file(path)?;
        let mut devices: Vec<Box<dyn ReadAt>> = Vec::new();
        for device in &self.devices {
            devices.push(Box::new(File::open(device).with_context(|| device.display().to_string())?));
        }
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

    /// Opens an image's file. Other files are refused, with an error that names well-known formats.
    fn open_file(&self, path: &Path) -> anyhow::Result<File> {
        const SUPERBLOCK: (u64, &[u8]) = (1024, &0xe0f5_e1e2_u32.to_le_bytes());
        const OTHERS: [(u64, &[u8], &str); 6] = [
            (0, b"hsqs", "a squashfs image"),
            (1080, b"\x53\xef", "an ext2, ext3 or ext4 file system"),
            (0, b"XFSB", "an XFS file system"),
            (0x8001, b"CD001", "an ISO 9660 image"),
            (257, b"ustar", "a tar archive: 'pagefold pack' makes an image of it"),
            (0, b"PK\x03\x04", "a zip archive"),
        ];
        let shown = || path.display().to_string();
        let file = File::open(path).with_context(shown)?;
        if file.metadata().with_context(shown)?.is_dir() {
            bail!("{} is a directory, not an image", shown());
        }
        if self.offset > 0 {
            let len = file.len_bytes().with_context(shown)?;
            let offset = self.offset;
            ensure!(offset < len, "--offset {offset} is past the end of {}, which has {len} bytes", shown());
        }
        let mut front = [0; 6];
        let mut has = |at: u64, magic: &[u8]| {
            let front = &mut front[..magic.len()];
            let at = self.offset.checked_add(at);
            at.is_some_and(|at| ReadAt::read_exact_at(&file, front, at).is_ok()) && front == magic
        };
        if has(SUPERBLOCK.0, SUPERBLOCK.1) {
            return Ok(file);
        }
        let there = if self.offset == 0 { String::new() } else { format!(" at byte {}", self.offset) };
        if let Some((_, _, what)) = OTHERS.iter().find(|(at, magic, _)| has(*at, magic)) {
            bail!("{}{there} is not an EROFS image; it is {what}", shown());
        }
        if let Some(program) = compressor_at(&file, self.offset).with_context(shown)? {
            bail!("{}{there} is not an EROFS image; it is compressed by {program}", shown());
        }
        let magic = self.offset.saturating_add(SUPERBLOCK.0);
        bail!("{}{there} is not an EROFS image: no EROFS magic number at byte {magic}", shown());
    }
}

/// Returns the program that compressed a file; it decompresses with `-dc`.
pub(crate) fn compressor(file: &File) -> io::Result<Option<&'static str>> {
    compressor_at(file, 0)
}

/// Like [`compressor`], for data that begin at `offset`.
fn compressor_at(file: &File, offset: u64) -> io::Result<Option<&'static str>> {
    let mut front = [0; MAGIC_BYTES];
    let len = file.read_at(&mut front, offset)?;
    Ok(compressor_of(&front[..len]))
}

/// Length of the longest magic number of compressed files.
pub(crate) const MAGIC_BYTES: usize = 6;

/// Returns the program that compressed data beginning with `front`.
pub(crate) fn compressor_of(front: &[u8]) -> Option<&'static str> {
    const MAGIC: [(&[u8], &str); 6] = [
        (b"\x1f\x8b", "gzip"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"\xfd7zXZ\0", "xz"),
        (b"BZh", "bzip2"),
        (b"\x04\x22\x4d\x18", "lz4"),
        (b"LZIP", "lzip"),
    ];
    MAGIC.iter().find(|(magic, _)| front.starts_with(magic)).map(|(_, program)| *program)
}

/// Returns the inode at a path in an image.
pub(crate) fn resolve(image: &Image, path: &[u8]) -> anyhow::Result<Inode> {
    image.resolve(path).map_err(|error| match error {
        Error::NotFound(_) => error.into(),
        other => anyhow::Error::new(other).context(show(path)),
    })
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

/// If a new image has encoded extents, writes which Linux mounts it to standard error, and how to
/// `avoid` them.
pub(crate) fn tell_needed_linux(path: &Path, report: &BuildReport, avoid: &str) {
    if report.files_with_extents > 0 {
        let why = "files that are almost only zeros have encoded extents";
        eprintln!("{}: mounting it needs Linux 6.15: {why}{avoid}", path.display());
    }
}

/// Writes a line about each problem to standard error.
pub(crate) fn tell_problems(path: &[u8], problems: &[Problem]) {
    for Problem { path: below, error, other } in problems {
        let other = other.as_ref().map_or_else(String::new, |other| format!(": {}", show_below(path, other)));
        eprintln!("{}: {error}{other}", show_below(path, below));
    }
}

/// Writes a line about each warning, and the number of `more` warnings, to standard error.
pub(crate) fn tell_warnings(path: &[u8], warnings: &[Notice], more: u64) {
    for Notice { path: below, what, .. } in warnings {
        eprintln!("warning: {}: {what}", show_below(path, below));
    }
    if more > 0 {
        eprintln!("warning: {more} more warnings like these");
    }
}

/// Formats a time since 1970 as a date in UTC (Hinnant, *chrono-Compatible Low-Level Date
/// Algorithms*).
pub(crate) fn date(seconds: i64, nanoseconds: u32) -> String {
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Years begin in March, so the leap day is the last day of a year; 400 years always have the
    // same number of days.
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let year = 400 * era + year + i64::from(month >= 10);
    let month = if month < 10 { month + 3 } else { month - 9 };
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{nanoseconds:09}")
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
        "{kind}{:04o} {:>3} {:>5} {:>5} {size:>12} {}",
        inode.permissions(),
        inode.nlink,
        inode.uid,
        inode.gid,
        date(inode.mtime_s, inode.mtime_nsec)
    )
}

/// Returns a name in printable form: control characters and invalid UTF-8 are escaped.
pub(crate) fn show(name: &[u8]) -> String {
    let mut shown = String::new();
    for chunk in name.utf8_chunks() {
        for letter in chunk.valid().chars() {
            if letter.is_control() {
                let _ = write!(shown, "{}", letter.escape_default());
            } else {
                shown.push(letter);
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(shown, "\\x{byte:02x}");
        }
    }
    shown
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
    fn dates() {
        for (seconds, date_) in [
            (0, "1970-01-01 00:00:00"),
            (-1, "1969-12-31 23:59:59"),
            (68_169_599, "1972-02-28 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (951_868_800, "2000-03-01 00:00:00"),
            (1_798_761_599, "2026-12-31 23:59:59"),
            (4_107_542_400, "2100-03-01 00:00:00"),
            (10_000_000_000, "2286-11-20 17:46:40"),
            (-2_208_988_800, "1900-01-01 00:00:00"),
            (i64::MAX, "292277026596-12-04 15:30:07"),
        ] {
            assert_eq!(date(seconds, 5), format!("{date_}.000000005"), "{seconds}");
        }
        assert!(date(i64::MIN, 0).starts_with("-292277022657-01-27 "));
    }

    #[test]
    fn names_are_safe_to_show() {
        assert_eq!(show("grün".as_bytes()), "grün");
        assert_eq!(show(b"\x1b[2J\xff\n"), "\\u{1b}[2J\\xff\\n");
    }
}

//! Files that are served as read-only disks: their names, how they are opened, and their memory.

use std::{
    ffi::{OsStr, OsString},
    fmt,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use pagefold_base::{Base, Cache, Format, Lease, OpenError, Options};
use pagefold_control::{AddBase, Code, Failure};
use pagefold_disk::Pool;

use super::disks::Counted;
use crate::image::ImagePath;

/// Maximum memory of the cache.
const CACHE_BYTES: u64 = 64 << 20;

/// The cache may use at most this fraction (1/16) of the memory limit.
const PART_OF_LIMIT: u64 = 16;

/// A file to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BaseFile {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) inside: Option<Vec<u8>>,
    pub(crate) format: Option<Format>,
}

impl BaseFile {
    /// Parses `[NAME=]FILE[:PATH]`. The default name is the file's name without its last extension.
    pub(crate) fn parse(text: OsString, format: Option<Format>) -> Result<Self, String> {
        let (name, place) = split_name(&text);
        let ImagePath { image, path: inside } = ImagePath::from(place);
        let inside = Some(inside).filter(|inside| !inside.is_empty());
        let name = match name {
            Some(name) => Some(name.to_owned()),
            None => {
                let file = inside.as_deref().map_or(image.as_path(), |inside| Path::new(OsStr::from_bytes(inside)));
                file.file_stem().and_then(OsStr::to_str).map(str::to_owned)
            }
        };
        let name = name.ok_or_else(|| format!("'{0}' gives the disk no name: write NAME={0}", text.display()))?;
        let path = std::path::absolute(&image).map_err(|error| format!("'{}': {error}", image.display()))?;
        Ok(Self { name, path, inside, format })
    }
}

/// Splits off the name before an equals sign, unless the whole text names an existing file, or the
/// name would contain a slash.
fn split_name(text: &OsStr) -> (Option<&str>, OsString) {
    let bytes = text.as_bytes();
    let is_named = !ImagePath::from(text.to_owned()).image.exists();
    let sign = bytes.iter().position(|byte| *byte == b'=').filter(|_| is_named);
    let name = sign.and_then(|sign| str::from_utf8(&bytes[..sign]).ok()).filter(|name| !name.contains('/'));
    match (name, sign) {
        (Some(name), Some(sign)) => (Some(name), OsString::from_vec(bytes[sign + 1..].to_vec())),
        _ => (None, text.to_owned()),
    }
}

impl TryFrom<&AddBase> for BaseFile {
    type Error = Failure;

    fn try_from(base: &AddBase) -> Result<Self, Failure> {
        let AddBase { name, path, inside, format, .. } = base.clone();
        if !Path::new(&path).is_absolute() {
            let what = format!("field `path`: '{path}' is not an absolute path");
            return Err(Failure::new(Code::InvalidRequest, what));
        }
        let format = format.map(|format| format.parse()).transpose();
        let format = format.map_err(|what| Failure::new(Code::InvalidRequest, format!("field `format`: {what}")))?;
        Ok(Self { name, path: path.into(), inside: inside.map(String::into_bytes), format })
    }
}

impl fmt::Display for BaseFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        self.inside.as_deref().map_or(Ok(()), |inside| write!(f, ":{}", OsStr::from_bytes(inside).display()))
    }
}

/// Returns the cache of a server's bases. It counts against the limit while there are any bases.
pub(crate) fn cache(pool: &Pool) -> Cache {
    let pool = pool.clone();
    Cache::leased(move || {
        let limit_bytes = CACHE_BYTES.min(pool.stats().mem_limit / PART_OF_LIMIT);
        let held = Counted::take(&pool, limit_bytes)?;
        Some(Lease { limit_bytes: limit_bytes as usize, held: Box::new(held) })
    })
}

/// Opens a base. `tell` receives later events of its file.
pub(crate) fn open(
    file: &BaseFile,
    cache: &Cache,
    tell: impl Fn(&str) + Send + Sync + 'static,
) -> Result<Base, Failure> {
    let mut options = Options::default();
    options.format = file.format;
    options.inside.clone_from(&file.inside);
    Base::open(&file.path, &options, cache, tell).map_err(|error| {
        let code = if matches!(error, OpenError::NoMemory { .. }) { Code::NoMemory } else { Code::InvalidBase };
        Failure::new(code, crate::message(&error.into()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bases_are_named() {
        let parse = |text: &str| BaseFile::parse(text.into(), None).expect("a base");
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("a=b.erofs");
        std::fs::write(&file, "").expect("a file");
        let path = file.to_str().expect("a plain path");
        let base = |name: &str, path: &str, inside: Option<&str>| BaseFile {
            name: name.to_owned(),
            path: path.into(),
            inside: inside.map(|inside| inside.as_bytes().to_vec()),
            format: None,
        };
        assert_eq!(parse("/no/debian.erofs"), base("debian", "/no/debian.erofs", None));
        assert_eq!(parse("/no/debian.img.erofs"), base("debian.img", "/no/debian.img.erofs", None));
        assert_eq!(parse("/no/all.erofs:/disks/a.raw"), base("a", "/no/all.erofs", Some("/disks/a.raw")));
        assert_eq!(parse("root=/no/debian.erofs"), base("root", "/no/debian.erofs", None));
        assert_eq!(parse("/no=such/disk"), base("disk", "/no=such/disk", None));
        assert_eq!(parse("=/no/disk"), base("", "/no/disk", None));
        assert_eq!(parse(path), base("a=b", path, None));
        assert_eq!(parse(&format!("c={path}:/d")), base("c", path, Some("/d")));
        assert_eq!(parse(&format!("{path}:/d")), base("d", path, Some("/d")));
        assert!(BaseFile::parse("/".into(), None).is_err());
        assert!(parse("disk").path.is_absolute());
    }
}

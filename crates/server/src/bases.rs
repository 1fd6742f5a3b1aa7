//! Files that are served as read-only disks: their names, how they are opened, and their memory.

use std::{
    ffi::OsStr,
    fmt,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use pagefold_base::{Base, Cache, Format, Lease, OpenError, Options};
use pagefold_control::{AddBase, Code, Failure};
use pagefold_disk::Pool;

use crate::{counted::Counted, error::message};

/// Maximum memory of the cache.
const CACHE_BYTES: u64 = 64 << 20;

/// The cache may use at most this fraction (1/16) of the memory limit.
const PART_OF_LIMIT: u64 = 16;

/// A file to serve as a read-only disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseFile {
    /// Name of the disk.
    pub name: String,
    /// Path of the file; users may be in other directories, so it should be absolute.
    pub path: PathBuf,
    /// Path of the disk in the file, if the file is an EROFS image.
    pub inside: Option<Vec<u8>>,
    /// Format of the file, whatever its name and its content; `None`: both determine it.
    pub format: Option<Format>,
}

impl BaseFile {
    /// Describes a file whose name and content determine its format.
    pub fn new(name: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        Self { name: name.into(), path: path.into(), inside: None, format: None }
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
        Failure::new(code, message(&error))
    })
}

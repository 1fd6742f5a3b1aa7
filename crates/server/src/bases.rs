//! Files that are served as read-only disks: their names, how they are opened, and their memory.

use std::{ffi::OsStr, fmt, os::unix::ffi::OsStrExt, path::PathBuf};

use pagefold_base::{Base, Cache, Format, Lease, OpenError, Options};
use pagefold_control::{AddBase, Code, Failure, Figures};
use pagefold_disk::{BaseCache, Pool};
use pagefold_storage::{Location, Open, WithDevices};

use crate::{counted::Counted, error::message, machine::Memory};

/// Maximum memory of the cache of decoded clusters.
const CLUSTERS_BYTES: u64 = 64 << 20;

/// The cache of decoded clusters may use at most 1/16 of the memory limit and, if a size for both
/// caches is given, at most 1/8 of that size.
const CLUSTERS_PART_OF_LIMIT: u64 = 16;
const CLUSTERS_PART: u64 = 8;

/// The default size of both caches: this fraction (1/4) of the memory limit, or of the machine's
/// memory if there is no limit.
const PART_OF_LIMIT: u64 = 4;

/// A file to serve as a read-only disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseFile {
    /// Name of the disk.
    pub name: String,
    /// Path of the file, or a URL; users may be in other directories, so a path should be absolute.
    pub path: PathBuf,
    /// Path of the disk in the file, if the file is an EROFS image.
    pub inside: Option<Vec<u8>>,
    /// Paths or URLs of the EROFS image's devices, in the order of its device table.
    pub devices: Vec<PathBuf>,
    /// Format of the file; if `None`, its name and content determine it.
    pub format: Option<Format>,
}

impl BaseFile {
    /// Describes a file whose name and content determine its format.
    pub fn new(name: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        Self { name: name.into(), path: path.into(), inside: None, devices: Vec::new(), format: None }
    }
}

impl TryFrom<&AddBase> for BaseFile {
    type Error = Failure;

    fn try_from(base: &AddBase) -> Result<Self, Failure> {
        let AddBase { name, path, inside, devices, format, .. } = base.clone();
        for (field, path) in std::iter::once(("path", &path)).chain(devices.iter().map(|path| ("devices", path))) {
            if matches!(Location::of(path.as_ref()), Location::File(path) if !path.is_absolute()) {
                let what = format!("field `{field}`: '{path}' is neither an absolute path nor a URL");
                return Err(Failure::new(Code::InvalidRequest, what));
            }
        }
        let devices = devices.into_iter().map(Into::into).collect();
        let format = format.map(|format| format.parse()).transpose();
        let format = format.map_err(|what| Failure::new(Code::InvalidRequest, format!("field `format`: {what}")))?;
        Ok(Self { name, path: path.into(), inside: inside.map(String::into_bytes), devices, format })
    }
}

impl fmt::Display for BaseFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&pagefold_storage::shown(&self.path))?;
        self.inside.as_deref().map_or(Ok(()), |inside| write!(f, ":{}", OsStr::from_bytes(inside).display()))
    }
}

/// The caches of a server's bases.
pub(crate) struct BaseCaches {
    /// Decoded clusters. They count against the limit while there are any bases.
    clusters: Cache,
    /// Compressed pages, which are evicted when disks need the memory.
    pub(crate) pages: BaseCache,
    /// The maximum size of both; `None` means a quarter of the limit.
    given_bytes: Option<u64>,
}

impl BaseCaches {
    pub(crate) fn new(pool: &Pool, given_bytes: Option<u64>) -> Self {
        let all = pool.clone();
        let clusters = Cache::leased(move || {
            let limit_bytes = clusters_bytes(&all, given_bytes);
            let held = Counted::take(&all, limit_bytes)?;
            Some(Lease { limit_bytes: limit_bytes as usize, held: Box::new(held) })
        });
        Self { clusters, pages: BaseCache::new(pool, pages_bytes(pool, given_bytes)), given_bytes }
    }

    /// Follows a change of the memory limit.
    pub(crate) fn follow(&self, pool: &Pool) {
        self.pages.set_limit(pages_bytes(pool, self.given_bytes));
    }

    /// Returns the bytes of decoded clusters, and the most that these may be.
    pub(crate) fn clusters_bytes(&self) -> (u64, u64) {
        (self.clusters.kept_bytes() as u64, self.clusters.limit_bytes() as u64)
    }

    /// Returns the description for clients of the control socket.
    pub(crate) fn figures(&self) -> Figures {
        let figures = [
            ("base_cache_bytes", self.clusters.kept_bytes() as u64),
            ("base_cache_limit", self.clusters.limit_bytes() as u64),
            ("base_pages_bytes", self.pages.used_bytes()),
            ("base_pages_limit", self.pages.limit_bytes()),
        ];
        figures.into_iter().map(|(name, bytes)| (name.to_owned(), bytes.into())).collect()
    }
}

/// Returns the most bytes that both caches together use.
fn all_bytes(pool: &Pool, given_bytes: Option<u64>) -> u64 {
    given_bytes.unwrap_or_else(|| {
        let limit_bytes = pool.stats().mem_limit;
        let whole_bytes = if limit_bytes == u64::MAX { machine_bytes() } else { limit_bytes };
        whole_bytes / PART_OF_LIMIT
    })
}

fn machine_bytes() -> u64 {
    Memory::find().map_or(0, |memory| memory.half_bytes() * 2)
}

fn clusters_bytes(pool: &Pool, given_bytes: Option<u64>) -> u64 {
    let most_bytes = CLUSTERS_BYTES.min(pool.stats().mem_limit / CLUSTERS_PART_OF_LIMIT);
    given_bytes.map_or(most_bytes, |bytes| most_bytes.min(bytes / CLUSTERS_PART))
}

fn pages_bytes(pool: &Pool, given_bytes: Option<u64>) -> u64 {
    all_bytes(pool, given_bytes).saturating_sub(clusters_bytes(pool, given_bytes))
}

/// Opens a base, whose storage `open_storage` opens. `warn` receives later events of its file.
pub(crate) fn open(
    file: &BaseFile,
    open_storage: &Open,
    caches: &BaseCaches,
    warn: impl Fn(&str) + Send + Sync + 'static,
) -> Result<Base, Failure> {
    let mut options = Options::default();
    options.format = file.format;
    options.inside.clone_from(&file.inside);
    let open_at = |path: &PathBuf| open_storage(path).map_err(|source| OpenError::of_storage(path, source));
    let storage = open_at(&file.path).and_then(|storage| {
        let devices = file.devices.iter().map(open_at).collect::<Result<_, _>>()?;
        Ok(WithDevices::over(storage, devices))
    });
    storage.and_then(|storage| Base::of(storage, &file.path, &options, &caches.clusters, warn)).map_err(|error| {
        let code = if matches!(error, OpenError::NoMemory { .. }) { Code::NoMemory } else { Code::InvalidBase };
        Failure::new(code, message(&error))
    })
}

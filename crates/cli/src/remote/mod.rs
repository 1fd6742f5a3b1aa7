//! Images in registries, in buckets and on web servers.

pub(crate) mod cache;
pub(crate) mod fetch;
pub(crate) mod index;
pub(crate) mod parts;
pub(crate) mod push;
pub(crate) mod record;

use std::{env, io, path::PathBuf, sync::Arc};

use anyhow::{Context, anyhow, ensure};
use pagefold_remote::{Cache, Location, Options, Recorder, Remote};
use pagefold_storage::Storage;
use rustix::process::geteuid;

use crate::{report::misuse, size};

/// The limit of the cache, unless another one is given.
const USUAL_LIMIT_BYTES: u64 = 10 << 30;

/// How remote images are read.
#[derive(Clone, Default, clap::Args)]
#[command(next_help_heading = "Options for images at https://, s3:// and oci://")]
pub(crate) struct RemoteArgs {
    #[command(flatten)]
    cache: CacheArgs,

    /// Make no request: what the cache lacks is an I/O error
    #[arg(long)]
    offline: bool,

    /// Read files without a chunk index, whose bytes nothing verifies
    #[arg(long)]
    unverified: bool,

    /// Records which chunks are read first.
    #[arg(skip)]
    recorder: Option<Arc<Recorder>>,

    /// Whether the command follows the traces of images.
    #[arg(skip)]
    follows_traces: bool,
}

/// Where chunks are kept.
#[derive(Clone, Default, clap::Args)]
pub(crate) struct CacheArgs {
    /// Directory of the cache [default: $PAGEFOLD_CACHE, or /var/cache/pagefold for root and
    /// ~/.cache/pagefold for others]
    #[arg(long = "chunk-cache", value_name = "DIR")]
    cache_directory: Option<PathBuf>,

    /// Limit of the cache on disk, for all programs that use it [default: $PAGEFOLD_CACHE_LIMIT, or
    /// 10G]
    #[arg(long = "chunk-cache-limit", value_name = "SIZE", value_parser = size::parse)]
    cache_limit: Option<u64>,
}

impl CacheArgs {
    fn directory(&self) -> anyhow::Result<PathBuf> {
        let own = || env::var_os("PAGEFOLD_CACHE").filter(|path| !path.is_empty()).map(PathBuf::from);
        let variable = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        if let Some(given) = self.cache_directory.clone().or_else(own) {
            return Ok(std::path::absolute(given)?);
        }
        if geteuid().is_root() {
            return Ok("/var/cache/pagefold".into());
        }
        let usual = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
        let usual =
            usual.ok_or_else(|| misuse(anyhow!("no directory for the cache: give --chunk-cache DIR, or set HOME")))?;
        Ok(usual.join("pagefold"))
    }

    fn open(&self) -> anyhow::Result<Arc<Cache>> {
        Ok(Arc::new(Cache::open(&self.directory()?, self.limit()?).context("cannot use the cache")?))
    }

    /// Opens the cache, if it exists.
    fn existing(&self) -> anyhow::Result<Option<Cache>> {
        Cache::existing(&self.directory()?, self.limit()?).context("cannot use the cache")
    }

    fn limit(&self) -> anyhow::Result<u64> {
        Ok(match (self.cache_limit, env::var("PAGEFOLD_CACHE_LIMIT")) {
            (Some(limit), _) => limit,
            (None, Ok(text)) => size::parse(&text).map_err(|error| anyhow!("PAGEFOLD_CACHE_LIMIT: {error}"))?,
            (None, Err(_)) => USUAL_LIMIT_BYTES,
        })
    }
}

impl RemoteArgs {
    /// Checks that requests are allowed: `what` cannot do without them.
    pub(crate) fn must_send(&self, what: &str) -> anyhow::Result<()> {
        ensure!(!self.offline, misuse(anyhow!("{what} sends to a server, but --offline allows no requests")));
        Ok(())
    }

    /// Opens an image.
    pub(crate) fn open(&self, url: &str) -> io::Result<Arc<dyn Storage>> {
        Ok(Arc::new(self.open_remote(url).map_err(|error| io::Error::other(crate::text::message(&error)))?))
    }

    fn open_remote(&self, url: &str) -> anyhow::Result<Remote> {
        let location = Location::parse(url)?;
        Ok(pagefold_remote::open(&location, &self.options()?)?)
    }

    fn options(&self) -> anyhow::Result<Options> {
        let mut options = Options::default();
        options.cache = Some(self.cache.open()?);
        options.is_offline = self.offline;
        options.may_be_unverified = self.unverified;
        options.recorder.clone_from(&self.recorder);
        options.follows_traces = self.follows_traces;
        Ok(options)
    }
}

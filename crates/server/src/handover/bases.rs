//! The bases of a server that is taken over. They are opened before its content is read, because
//! their storage may be slow and clients wait while the other server pauses.

use std::{io, sync::Arc};

use pagefold_base::Base;
use pagefold_control::BaseRecord;
use pagefold_disk::Pool;

use crate::{
    BaseFile, Config, TakeOverError,
    bases::{BaseCaches, open},
};

/// A base, and the description with which it was opened.
pub(super) type Opened = (Arc<Base>, BaseFile);

/// The bases that were opened.
#[derive(Default)]
pub(super) struct OpenedBases {
    /// `None` before the pool exists.
    caches: Option<BaseCaches>,
    all: Vec<(BaseRecord, Opened)>,
    /// Why one could not be opened.
    pub(super) failed: Option<TakeOverError>,
}

impl OpenedBases {
    /// Opens the bases of `records`, whose pages are kept in `pool`.
    pub(super) fn open(&mut self, pool: &Pool, records: &[BaseRecord], config: &Config) -> io::Result<()> {
        self.caches = Some(BaseCaches::new(pool, config.base_cache_bytes));
        for record in records {
            if let Err(error) = self.get(record, config) {
                let text = error.to_string();
                self.failed = Some(error);
                return Err(io::Error::other(text));
            }
        }
        Ok(())
    }

    /// Returns the base of a record. Opens it if it is not open yet.
    pub(super) fn get(&mut self, record: &BaseRecord, config: &Config) -> Result<Opened, TakeOverError> {
        if let Some((_, (base, file))) = self.all.iter().find(|(known, _)| known == record) {
            return Ok((Arc::clone(base), file.clone()));
        }
        let caches = self.caches.as_ref().ok_or_else(|| TakeOverError::Invalid("the pool is missing".to_owned()))?;
        let opened = open_base(record, caches, config)?;
        self.all.push((record.clone(), opened.clone()));
        Ok(opened)
    }

    /// Returns the caches of bases.
    pub(super) fn into_caches(self) -> Option<BaseCaches> {
        self.caches
    }
}

/// Opens a base, and checks that it has not changed.
fn open_base(record: &BaseRecord, caches: &BaseCaches, config: &Config) -> Result<Opened, TakeOverError> {
    let shown = &record.path;
    let cannot = |what: String| TakeOverError::Cannot(format!("the base {shown}: {what}"));
    let file = BaseFile {
        name: String::new(),
        path: record.path.clone().into(),
        inside: record.inside.clone().map(String::into_bytes),
        devices: record.devices.iter().map(Into::into).collect(),
        format: Some(record.format.parse().map_err(cannot)?),
    };
    let (observer, path) = (config.observer.clone(), record.path.clone());
    let warn = move |line: &str| observer.warn(&format!("base {path}: {line}"));
    let opened = open(&file, &*config.open, caches, warn).map_err(|failure| cannot(failure.to_string()))?;
    if opened.identity() != record.identity {
        return Err(cannot("the file was replaced or changed".to_owned()));
    }
    Ok((Arc::new(opened), file))
}

//! Named devices.

use std::{fmt, sync::Arc};

use pagefold_disk::{BlockDevice, Checked};

use crate::{
    Error,
    protocol::{MAX_STRING_BYTES, transmission},
};

/// A device under a name.
pub struct Export {
    name: String,
    device: Checked<Arc<dyn BlockDevice>>,
}

impl Export {
    /// Serves `device` as `name`; the empty name is a name like any other.
    pub fn new(name: impl Into<String>, device: Arc<dyn BlockDevice>) -> Self {
        Self { name: name.into(), device: Checked::new(device) }
    }

    /// Serves `device` as `name` and refuses every change.
    pub fn read_only(name: impl Into<String>, device: Arc<dyn BlockDevice>) -> Self {
        Self { name: name.into(), device: Checked::read_only(device) }
    }

    /// The name that clients ask for.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn device(&self) -> &Checked<Arc<dyn BlockDevice>> {
        &self.device
    }

    /// The export's transmission flags for a client that negotiated `structured` replies or not.
    pub(crate) fn flags(&self, structured: bool) -> u16 {
        let mut flags = transmission::HAS_FLAGS
            | transmission::SEND_FLUSH
            | transmission::SEND_FUA
            | transmission::CAN_MULTI_CONN
            | transmission::SEND_CACHE;
        flags |= if self.device.read_only() {
            transmission::READ_ONLY
        } else {
            transmission::SEND_TRIM | transmission::SEND_WRITE_ZEROES | transmission::SEND_FAST_ZERO
        };
        if structured {
            flags |= transmission::SEND_DF;
        }
        flags
    }
}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Export").field("name", &self.name).field("size_bytes", &self.device.size_bytes()).finish()
    }
}

/// The exports of a server: at least one, each with its own name.
#[derive(Clone, Debug)]
pub struct Exports(Arc<[Arc<Export>]>);

impl Exports {
    /// Checks the names.
    pub fn new(exports: impl IntoIterator<Item = Export>) -> Result<Self, Error> {
        let exports: Arc<[Arc<Export>]> = exports.into_iter().map(Arc::new).collect();
        if exports.is_empty() {
            return Err(Error::NoExport);
        }
        for (index, export) in exports.iter().enumerate() {
            if export.name.len() > MAX_STRING_BYTES {
                return Err(Error::NameTooLong(export.name.len()));
            }
            if exports.iter().take(index).any(|before| before.name == export.name) {
                return Err(Error::DuplicateExport(export.name.clone()));
            }
        }
        Ok(Self(exports))
    }

    /// The export of this name; the first one when the name is empty and no export has the empty name.
    pub(crate) fn find(&self, name: &[u8]) -> Option<&Arc<Export>> {
        let named = self.0.iter().find(|export| export.name.as_bytes() == name);
        named.or_else(|| if name.is_empty() { self.0.first() } else { None })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Export>> {
        self.0.iter()
    }
}

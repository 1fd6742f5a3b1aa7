//! Where a file's clusters are stored.

use std::ops::Range;

use super::file::File;
use crate::error::Result;
use crate::format::Place;

impl File {
    /// Calls `each` with the address and the stored length of each of the file's clusters, in the
    /// order of its content. Clusters that several extents share are repeated. Files that are not
    /// compressed have none.
    ///
    /// An address beyond the image is in a device.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt) if the mapping is invalid.
    pub fn stored_clusters(&self, each: &mut dyn FnMut(Range<u64>)) -> Result<()> {
        for extent in self.extents(0..self.inode().size) {
            if let Place::Plain { pa, plen, .. } | Place::Encoded { pa, plen, .. } = extent?.place {
                each(pa..pa.saturating_add(u64::from(plen)));
            }
        }
        Ok(())
    }
}

//! How many clusters a server decodes for the pages of one cluster, read in random order.

use pagefold_codec::PAGE_SIZE;

use super::subjects::{Disk, Setup, Subject};
use crate::{client::Nbd, load::Random};

/// Pages of a region, all of which are read, and regions, spread over the disk.
const REGION_PAGES: u64 = 16;
const REGIONS: u64 = 64;

/// Returns the mean over regions of 64 KiB, read one page after another by a new server. `None` if the
/// server does not count.
pub(super) fn per_region(setup: &Setup, subject: Subject) -> anyhow::Result<Option<f64>> {
    let disk = Disk::new(setup, subject)?;
    let mut control = disk.control()?;
    let Ok(before) = control.figure("base_decoded_clusters") else { return Ok(None) };
    let served = disk.served(setup);
    let mut client = Nbd::connect(served.socket, served.export)?;
    let (mut random, mut page) = (Random::new(1), [0; PAGE_SIZE]);
    let stride = (setup.pages() / REGIONS).next_multiple_of(REGION_PAGES);
    for region in (0..setup.pages() - REGION_PAGES).step_by(stride as usize) {
        for at in random.permutation(REGION_PAGES) {
            client.read((region + at) * PAGE_SIZE as u64, &mut page)?;
        }
    }
    let regions = (setup.pages() - REGION_PAGES).div_ceil(stride);
    Ok(Some((control.figure("base_decoded_clusters")? - before) / regions as f64))
}

//! Many small stores: the memory of a process with a thousand forks.

use pagefold_codec::by_name;

use super::{MOSAIC, Output, memory::resident_bytes};
use crate::{load::Slots, pages::Data, product::Product};

const STORES: usize = 1000;
const SLOTS: u64 = (8 << 30) / 4096;
const PAGES: usize = 64;

/// Makes the stores, each of 8 GiB with 64 pages, and compares their reported memory with the
/// process's growth.
pub(super) fn run(output: &Output, codec: &str, data: &Data) -> anyhow::Result<()> {
    let case = format!("{STORES}-stores/{}/{codec}", data.name);
    let before = resident_bytes()?;
    let mut stores = Vec::new();
    for number in 0..STORES {
        let store = Product::new(SLOTS, by_name(codec)?)?;
        for page in 0..PAGES {
            store.write_slot(page as u64, &data.pages[(number * PAGES + page) % data.pages.len()])?;
        }
        stores.push(store);
    }
    let (mut compressed, mut spent) = (0, 0);
    let (mut table, mut pool, mut streams) = (0, 0, 0);
    for store in &stores {
        let figures = store.figures();
        compressed += figures.compr_data_size;
        spent += figures.spent_bytes;
        table += figures.table_bytes;
        pool += figures.mem_used_total;
        streams += figures.stream_bytes;
    }
    let put = |metric: &str, bytes: u64| output.put(&case, MOSAIC, metric, bytes as f64 / STORES as f64, "bytes");
    put("rss_bytes", resident_bytes()?.saturating_sub(before));
    put("spent_bytes", spent);
    put("compressed_bytes", compressed);
    put("pool_bytes", pool);
    put("table_bytes", table);
    put("stream_bytes", streams);
    Ok(())
}

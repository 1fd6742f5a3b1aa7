//! Many small stores: what a process with a thousand forks spends.

use pagefold_codec::by_name;
use pagefold_store::{Config, Store};

use super::{Output, memory::resident_bytes};
use crate::pages::Data;

const STORES: usize = 1000;
const SLOTS: u64 = (8 << 30) / 4096;
const PAGES: usize = 64;

/// Makes the stores, each of 8 GiB with 64 pages spread over it, and compares what they say with the process's growth.
pub(super) fn run(output: &Output, codec: &str, data: &Data) -> anyhow::Result<()> {
    let case = format!("{STORES}-stores/{}/{codec}", data.name);
    let before = resident_bytes()?;
    let mut stores = Vec::new();
    for number in 0..STORES {
        let store = Store::new(Config { slots: SLOTS, codec: by_name(codec)?, ..Config::default() })?;
        for page in 0..PAGES {
            store.write(page as u64, &data.pages[(number * PAGES + page) % data.pages.len()])?;
        }
        stores.push(store);
    }
    let (mut compressed, mut spent) = (0, 0);
    let (mut table, mut pool, mut streams) = (0, 0, 0);
    for store in &stores {
        let stats = store.stats();
        compressed += stats.compr_data_size;
        spent += stats.spent_bytes;
        table += stats.table_bytes;
        pool += stats.mem_used_total;
        streams += stats.stream_bytes;
    }
    let put = |metric: &str, bytes: u64| output.put(&case, "mosaic", metric, bytes as f64 / STORES as f64, "bytes");
    put("rss_bytes", resident_bytes()?.saturating_sub(before));
    put("spent_bytes", spent);
    put("compressed_bytes", compressed);
    put("pool_bytes", pool);
    put("table_bytes", table);
    put("stream_bytes", streams);
    Ok(())
}

//! A stream of a pool: any bytes give an error, or a pool that is consistent and stays so. Checksums
//! are not compared (`blocks.rs` in the store).
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use pagefold_codec::{PAGE_SIZE, by_name};
use pagefold_disk::{BlockDevice, ImportedDisks, PoolConfig, RamDisk};
use pagefold_faulty::Faulty;

const PAGE_BYTES: u64 = PAGE_SIZE as u64;

/// What is below disks that have a base.
static BASE: [u8; 20 * PAGE_SIZE] = [5; 20 * PAGE_SIZE];

fuzz_target!(|data: &[u8]| {
    let Ok(codec) = by_name(&std::env::var("PAGEFOLD_CODEC").unwrap_or_default()) else { return };
    let config = PoolConfig::default().codec(codec).dedupe(true).memory_limit(8 << 20);
    let Ok(imported) = ImportedDisks::read(config, &mut &*data, &mut |_| Ok(())) else { return };
    let pool = imported.pool().clone();
    pool.check().expect("consistent after the import");
    let base = |_| Ok::<_, ()>(Arc::new(Faulty::new(&BASE[..])) as Arc<dyn BlockDevice>);
    let mut disks = imported.restore(None, base).expect("bases");
    disks.truncate(8);
    let mut page = [0; PAGE_SIZE];
    for disk in &disks {
        for place in [0, 1, 2, 63, 64, 65, 4095, 4096] {
            let offset = place * PAGE_BYTES;
            if offset + PAGE_BYTES > disk.size_bytes() {
                continue;
            }
            // Objects may be damaged, and the pool full.
            let _ = disk.read(offset, &mut page);
            let _ = disk.write(offset, &[place as u8 | 1; PAGE_SIZE]);
            let _ = disk.discard(offset, PAGE_BYTES);
        }
        let _: Option<RamDisk> = disk.fork().ok();
        let _ = disk.changes(0, disk.size_bytes().min(1 << 24), &mut |_| true);
    }
    pool.check().expect("consistent after use");
    drop(disks);
    pool.check().expect("consistent without disks");
});

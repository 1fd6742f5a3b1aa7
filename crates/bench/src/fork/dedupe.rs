//! Cost of deduplication if all pages differ, and its gain if all are equal.

use pagefold_codec::{PAGE_SIZE, Page, by_name};
use pagefold_disk::{BlockDevice, Pool, PoolConfig, RamDisk};

use super::depth::page_of;
use crate::speed::Speed;
use crate::{
    load::Random,
    pages::Data,
    verdict::{Output, Target::AtLeast},
};

/// Two disks with the same work: in a pool without deduplication, and in one with it.
const DEDUPE: [bool; 2] = [false, true];

/// Writes unique pages, overwrites them with other unique pages, writes the first disk's pages to a
/// second disk, and reads those.
const PASSES: [&str; 4] = ["write_different", "overwrite_different", "write_equal", "read_equal"];

/// Operations per turn.
const CHUNK: usize = 512;

pub(super) fn run(output: &mut Output, codec: &str, data: &Data, pages: u64, rounds: usize) -> anyhow::Result<()> {
    let case = format!("dedupe/{}/{codec}", data.name);
    let mut speeds: [[Speed; 2]; PASSES.len()] = Default::default();
    let mut spent = [[0; 2]; PASSES.len()];
    for round in 0..rounds as u64 {
        let pools: Vec<Disks> =
            DEDUPE.iter().map(|&dedupe| Disks::new(codec, pages, dedupe)).collect::<anyhow::Result<_>>()?;
        let mut random = Random::new(round + 1);
        let orders: Vec<Vec<u64>> = PASSES.iter().map(|_| random.permutation(pages)).collect();
        let mut page = [0; PAGE_SIZE];
        for (pass, order) in orders.iter().enumerate() {
            for (at, slots) in order.chunks(CHUNK).enumerate() {
                for turn in 0..pools.len() {
                    let which = (turn + at) % pools.len();
                    let Disks { first, second, .. } = &pools[which];
                    speeds[pass][which].chunk(slots.len() as u64, || {
                        slots.iter().try_for_each(|&slot| {
                            let offset = slot * PAGE_SIZE as u64;
                            match PASSES[pass] {
                                "write_different" => first.write(offset, different(data, slot, 1, &mut page))?,
                                "overwrite_different" => first.write(offset, different(data, slot, 2, &mut page))?,
                                "write_equal" => second.write(offset, different(data, slot, 2, &mut page))?,
                                _ => second.read(offset, &mut page)?,
                            }
                            Ok(())
                        })
                    })?;
                }
            }
            for (spent, disks) in spent[pass].iter_mut().zip(&pools) {
                disks.pool.compact();
                *spent = disks.pool.stats().spent_bytes;
            }
        }
    }
    for ((pass, [without, with]), spent) in PASSES.iter().zip(&speeds).zip(spent) {
        output.put(&case, &format!("{pass}_mb_s"), with.per_s() * PAGE_SIZE as f64 / 1e6, "MB/s");
        let (speed, cpu) = (with.per_s() / without.per_s(), with.per_cpu_s() / without.per_cpu_s());
        output.judge(&case, &format!("{pass}_over_without"), speed, "x", AtLeast(0.95));
        output.put(&case, &format!("{pass}_over_without_of_cpu_time"), cpu, "x");
        output.put(&case, &format!("{pass}_spent_over_without"), spent[1] as f64 / spent[0] as f64, "x");
    }
    Ok(())
}

/// Makes a unique page that resembles the data's.
fn different<'a>(data: &Data, slot: u64, pass: u64, page: &'a mut Page) -> &'a Page {
    page.copy_from_slice(page_of(data, slot * 7 + pass));
    page[1000..1008].copy_from_slice(&(slot << 8 | pass).to_le_bytes());
    page
}

struct Disks {
    pool: Pool,
    first: RamDisk,
    second: RamDisk,
}

impl Disks {
    fn new(codec: &str, pages: u64, dedupe: bool) -> anyhow::Result<Self> {
        let pool = Pool::new(PoolConfig::default().codec(by_name(codec)?).dedupe(dedupe))?;
        let disk = || RamDisk::new(&pool, pages * PAGE_SIZE as u64);
        Ok(Self { first: disk()?, second: disk()?, pool })
    }
}

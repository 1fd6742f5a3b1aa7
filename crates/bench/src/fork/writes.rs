//! Writes to a fork, beside those to a plain disk.

use std::time::Instant;

use pagefold_codec::{PAGE_SIZE, by_name};
use pagefold_disk::{BlockDevice, Pool, PoolConfig, RamDisk};

use super::depth::{disk_of, page_of};
use crate::{
    load::Random,
    pages::Data,
    report::median,
    verdict::{Output, Target::AtLeast},
};

/// What is written to: a disk on its own; a fork of a disk that holds nothing; a fork of one that holds every page.
const SHAPES: [&str; 3] = ["plain", "fork-of-empty", "fork-of-full"];

/// First all slots at random, then so many again.
const PASSES: [&str; 2] = ["first-write", "overwrite"];

pub(super) fn run(output: &mut Output, codec: &str, data: &Data, pages: u64, rounds: usize) -> anyhow::Result<()> {
    let case = format!("writes/{}/{codec}", data.name);
    let mut rates = [const { [const { Vec::new() }; PASSES.len()] }; SHAPES.len()];
    // One round more: the first makes what the process keeps.
    for round in 0..=rounds {
        for turn in 0..SHAPES.len() {
            let which = (turn + round) % SHAPES.len();
            let done = one_round(codec, data, pages, SHAPES[which], round as u64)?;
            if round > 0 {
                for (rates, rate) in rates[which].iter_mut().zip(done) {
                    rates.push(rate);
                }
            }
        }
    }
    for (at, pass) in PASSES.iter().enumerate() {
        let plain = median(&rates[0][at]);
        for (shape, rates) in SHAPES.iter().zip(&rates) {
            let rate = median(&rates[at]);
            output.put(&case, &format!("{shape}_{pass}_mb_s"), rate, "MB/s");
            if *shape != SHAPES[0] {
                output.judge(&case, &format!("{shape}_{pass}_over_plain"), rate / plain, "x", AtLeast(0.95));
            }
        }
    }
    Ok(())
}

/// MB/s of each pass.
fn one_round(codec: &str, data: &Data, pages: u64, shape: &str, seed: u64) -> anyhow::Result<[f64; PASSES.len()]> {
    let pool = Pool::new(PoolConfig { codec: by_name(codec)?, ..PoolConfig::default() })?;
    let parent = match shape {
        "fork-of-full" => disk_of(&pool, data, pages)?,
        _ => RamDisk::new(&pool, pages * PAGE_SIZE as u64)?,
    };
    let disk = if shape == "plain" { parent } else { parent.fork()? };
    let mut random = Random::new(seed + 1);
    let first = random.permutation(pages);
    let again: Vec<u64> = (0..pages).map(|_| random.below(pages)).collect();
    let rates = [first, again].map(|slots| {
        let start = Instant::now();
        for slot in slots {
            disk.write(slot * PAGE_SIZE as u64, page_of(data, slot + seed))?;
        }
        anyhow::Ok((pages * PAGE_SIZE as u64) as f64 / 1e6 / start.elapsed().as_secs_f64())
    });
    let [first, again] = rates;
    Ok([first?, again?])
}

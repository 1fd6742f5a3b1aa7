//! Requests to vhost-user-blk devices.

use std::{path::Path, thread, time::Instant};

use anyhow::{Context, anyhow, ensure};
use pagefold_codec::PAGE_SIZE;
use pagefold_report::Latencies;
use pagefold_vhost_user::client::{Client, Layout, Operation, Options, Queue};

use super::case::{Case, Measured, Times};
use crate::load::Random;

/// Bytes of a request that fills a disk.
const LONG_BYTES: usize = 128 << 10;

fn connect(socket: &Path, queues: usize, depth: usize, most_bytes: usize) -> anyhow::Result<Client> {
    let (queues, depth) = (u16::try_from(queues)?, u16::try_from(depth)?);
    Ok(Client::connect(socket, Options { queues, depth, most_bytes: most_bytes as u64, ..Options::default() })?)
}

/// Writes a disk's content, in order.
pub(super) fn fill(socket: &Path, content: &[u8]) -> anyhow::Result<()> {
    let mut client = connect(socket, 1, 1, LONG_BYTES)?;
    for (part, at) in content.chunks(LONG_BYTES).zip((0..).step_by(LONG_BYTES)) {
        client.queues[0].write(at, part)?;
    }
    Ok(())
}

/// Runs one case: a queue, and a thread, for each client.
pub(super) fn run(socket: &Path, content: &[u8], case: Case, times: Times, seed: u64) -> anyhow::Result<Measured> {
    let mut client = connect(socket, case.clients, case.depth, PAGE_SIZE)?;
    let start = Instant::now();
    let (begin, end) = (start + times.warm, start + times.warm + times.measured);
    let (mut requests, mut latencies) = (0, Latencies::new());
    thread::scope(|scope| {
        let threads: Vec<_> = client
            .queues
            .iter_mut()
            .enumerate()
            .map(|(number, queue)| {
                let random = Random::new(seed * 1000 + number as u64 + 1);
                scope.spawn(move || drive(queue, content, case, random, begin, end))
            })
            .collect();
        for thread in threads {
            let (count, times) = thread.join().map_err(|_| anyhow!("a thread of the load panicked"))??;
            requests += count;
            latencies.add(&times);
        }
        anyhow::Ok(())
    })?;
    Ok(Measured { rate: requests as f64 / times.measured.as_secs_f64(), p99_us: latencies.at(0.99) / 1e3 })
}

/// Keeps `case.depth` requests in flight. Returns how many were answered in the measured time, and
/// their latencies.
fn drive(
    queue: &mut Queue,
    content: &[u8],
    case: Case,
    mut random: Random,
    begin: Instant,
    end: Instant,
) -> anyhow::Result<(u64, Latencies)> {
    let pages = (content.len() / PAGE_SIZE) as u64;
    let (mut count, mut latencies) = (0, Latencies::new());
    let mut sent = vec![begin; case.depth];
    loop {
        let now = Instant::now();
        while queue.in_flight() < case.depth && now < end {
            let at = random.below(pages) * PAGE_SIZE as u64;
            // Another page's content, so that the write changes the page.
            let from = random.below(pages) as usize * PAGE_SIZE;
            let operation = match case.is_write {
                true => Operation::Write(at, &content[from..from + PAGE_SIZE]),
                false => Operation::Read(at, PAGE_SIZE as u64),
            };
            let slot = queue.submit(operation, Layout::default())?.context("no room for a request")?;
            sent[usize::from(slot)] = now;
        }
        queue.kick()?;
        if queue.in_flight() == 0 {
            return Ok((count, latencies));
        }
        let mut answer = Some(queue.wait()?);
        let arrived = Instant::now();
        while let Some(one) = answer {
            ensure!(one.status == 0, "a request failed with status {}", one.status);
            if arrived >= begin {
                count += u64::from(arrived < end);
                latencies.record(arrived - sent[usize::from(one.slot)]);
            }
            answer = queue.take_answer()?;
        }
    }
}

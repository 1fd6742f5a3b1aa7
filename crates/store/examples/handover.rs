//! Hands a pool over to another one in the same process, as one process does to the next: one thread
//! writes the stream, another reads it. Prints how long that takes, first in one pass, then in rounds
//! while a thread replaces pages, and then how much of that is after the thread has stopped.
//!
//! ```sh
//! cargo run --release -p pagefold-store --example handover -- 2 fold   # GiB of pages, codec
//! ```

use std::{
    error::Error,
    fs,
    io::{self, Write as _},
    os::unix::net::UnixStream,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use pagefold_store::{Disk, ExportedDisk, PAGE_SIZE, Page, Pool, PoolConfig, Precopy};

/// Returns the seconds that the process has run on CPUs, in steps of a hundredth.
fn cpu_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let mut fields = stat.rsplit(')').next()?.split(' ').skip(12);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    Some((ticks()? + ticks()?) / 100.0)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let gib: f64 = arguments.next().as_deref().unwrap_or("1").parse()?;
    let config = PoolConfig::default().codec(pagefold_codec::by_name(&arguments.next().unwrap_or("fold".to_owned()))?);
    let pool = Pool::new(config.clone())?;
    let slots = (gib * f64::from(1 << 18)) as u64;
    let disk = pool.disk(slots)?;
    let mut noise = Noise(1);
    for slot in 0..slots {
        disk.write(slot, &noise.page())?;
    }
    let before = pool.stats();

    let (mut from, mut to) = UnixStream::pair()?;
    let (start, cpu_before) = (Instant::now(), cpu_seconds());
    let imported = thread::scope(|scope| {
        let same = config.clone();
        let reader = scope.spawn(move || Pool::import(same, &mut to));
        let done = pool.export(&[ExportedDisk { disk: &disk, note: b"" }], &mut from);
        drop(from);
        done.map_err(io::Error::other)?;
        reader.join().map_err(|_| io::Error::other("the reader panicked"))?.map_err(io::Error::other)
    })?;
    let seconds = start.elapsed().as_secs_f64();
    let cpu_seconds = cpu_seconds().zip(cpu_before).map_or(f64::NAN, |(now, before)| now - before);

    let after = imported.pool.stats();
    let stored_gib = before.compr_data_size as f64 / (1_u64 << 30) as f64;
    writeln!(
        io::stdout(),
        "{stored_gib:.2} GiB stored, {seconds:.2} s: {:.2} s for each GiB stored, {:.2} s for each GiB of pages \
         ({:.2} s of CPU for each GiB stored); memory {:.4} of before",
        seconds / stored_gib,
        seconds / gib,
        cpu_seconds / stored_gib,
        after.mem_used_total as f64 / before.mem_used_total as f64
    )?;
    drop(imported);
    in_rounds(&pool, &disk, config)
}

/// Hands the pool over in rounds while a thread replaces random pages, 10,000 a second.
fn in_rounds(pool: &Pool, disk: &Disk, config: PoolConfig) -> Result<(), Box<dyn Error>> {
    let (mut from, mut to) = UnixStream::pair()?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = scope.spawn(move || Pool::import(config, &mut to));
        let writer = scope.spawn(|| {
            let mut noise = Noise(2);
            while !stop.load(Relaxed) {
                for _ in 0..100 {
                    let slot = noise.word() % disk.slots();
                    disk.write(slot, &noise.page())?;
                }
                thread::sleep(Duration::from_millis(10));
            }
            Ok::<_, pagefold_store::Error>(())
        });
        let mut precopy = Precopy::begin(pool)?;
        let mut rounds = Vec::new();
        while rounds.len() < 6 && rounds.last().is_none_or(|&bytes| bytes > 1 << 20) {
            rounds.push(precopy.round(&[disk], &mut from)?);
        }
        stop.store(true, Relaxed);
        writer.join().map_err(|_| io::Error::other("the writer panicked"))??;
        let (start, cpu_before) = (Instant::now(), cpu_seconds());
        let rest = precopy.finish(&[ExportedDisk { disk, note: b"" }], &mut from)?;
        drop(from);
        let imported = reader.join().map_err(|_| io::Error::other("the reader panicked"))??;
        let ms = start.elapsed().as_secs_f64() * 1e3;
        let cpu_ms = cpu_seconds().zip(cpu_before).map_or(f64::NAN, |(now, before)| now - before) * 1e3;
        writeln!(io::stdout(), "rounds of {rounds:?} bytes; then {rest} bytes in {ms:.1} ms ({cpu_ms:.0} ms of CPU)")?;
        drop(imported);
        Ok(())
    })
}

/// Pages of which half is noise, which compress to about 2 KiB.
struct Noise(u64);

impl Noise {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 ^ self.0 >> 29
    }

    fn page(&mut self) -> Page {
        let mut page = [0; PAGE_SIZE];
        for word in page[..PAGE_SIZE / 2].as_chunks_mut::<8>().0 {
            *word = self.word().to_le_bytes();
        }
        page
    }
}

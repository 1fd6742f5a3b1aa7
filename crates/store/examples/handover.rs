//! Hands a pool over to another one in the same process, as one process does to the next: one thread
//! writes the stream, another reads it. Prints how long that takes.
//!
//! ```sh
//! cargo run --release -p pagefold-store --example handover -- 2 fold   # GiB of pages, codec
//! ```

use std::{
    error::Error,
    fs,
    io::{self, Write as _},
    os::unix::net::UnixStream,
    thread,
    time::Instant,
};

use pagefold_store::{ExportedDisk, PAGE_SIZE, Pool, PoolConfig};

/// Returns the seconds that the process has run on CPUs, in steps of a hundredth.
fn cpu_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let mut fields = stat.rsplit(')').next()?.split(' ').skip(12);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    Some((ticks()? + ticks()?) / 100.0)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let gib: u64 = arguments.next().as_deref().unwrap_or("1").parse()?;
    let config = PoolConfig::default().codec(pagefold_codec::by_name(&arguments.next().unwrap_or("fold".to_owned()))?);
    let pool = Pool::new(config.clone())?;
    let slots = gib << 18;
    let disk = pool.disk(slots)?;
    let mut page = [0; PAGE_SIZE];
    let mut state = 1_u64;
    for slot in 0..slots {
        // Half a page of noise, which compresses to about 2 KiB.
        for word in page[..PAGE_SIZE / 2].as_chunks_mut::<8>().0 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *word = (state ^ state >> 29).to_le_bytes();
        }
        disk.write(slot, &page)?;
    }
    let before = pool.stats();

    let (mut from, mut to) = UnixStream::pair()?;
    let (start, cpu_before) = (Instant::now(), cpu_seconds());
    let imported = thread::scope(|scope| {
        let reader = scope.spawn(move || Pool::import(config, &mut to));
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
        seconds / gib as f64,
        cpu_seconds / stored_gib,
        after.mem_used_total as f64 / before.mem_used_total as f64
    )?;
    Ok(())
}

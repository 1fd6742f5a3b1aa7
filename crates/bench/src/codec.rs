//! `pagefold-bench codec`: compressed bytes and speed of every page codec on the same pages, interleaved.

use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use pagefold_codec::{PAGE_SIZE, Page, Stream, by_name};

use crate::report::Figure;

/// Options of `pagefold-bench codec`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Files whose 4 KiB pages are compressed (a last partial page is left out)
    #[arg(long, required = true, num_args = 1..)]
    data: Vec<PathBuf>,
    /// Codecs, by name
    #[arg(long, value_delimiter = ',', default_value = "lz4,zstd-1")]
    codecs: Vec<String>,
    /// Pages taken of each file, spread evenly over it
    #[arg(long, default_value_t = 2048)]
    pages: usize,
    /// Rounds; each figure is that of its fastest round
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

struct Subject {
    name: String,
    stream: Box<dyn Stream>,
    objects: Vec<u8>,
    lens: Vec<usize>,
    compress: Duration,
    decompress: Duration,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    for path in &args.data {
        let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let case = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let (all, _) = bytes.as_chunks::<PAGE_SIZE>();
        let mixed: Vec<&Page> = all.iter().filter(|page| page[8..] != page[..PAGE_SIZE - 8]).collect();
        let step = (mixed.len() / args.pages).max(1);
        let pages: Vec<&Page> = mixed.into_iter().step_by(step).take(args.pages).collect();
        let mut subjects = Vec::new();
        for name in &args.codecs {
            subjects.push(Subject {
                name: name.clone(),
                stream: by_name(name)?.stream()?,
                objects: vec![0; pages.len() * PAGE_SIZE],
                lens: vec![0; pages.len()],
                compress: Duration::MAX,
                decompress: Duration::MAX,
            });
        }
        for _ in 0..args.rounds {
            for subject in &mut subjects {
                round(subject, &pages)?;
            }
        }
        for subject in &subjects {
            report(args.json, &case, subject, pages.len());
        }
    }
    Ok(())
}

fn round(subject: &mut Subject, pages: &[&Page]) -> anyhow::Result<()> {
    let start = Instant::now();
    for ((page, object), len) in pages.iter().zip(subject.objects.chunks_mut(PAGE_SIZE)).zip(&mut subject.lens) {
        *len = subject.stream.compress(page, object).unwrap_or(PAGE_SIZE);
    }
    subject.compress = subject.compress.min(start.elapsed());
    let mut back = [0; PAGE_SIZE];
    let start = Instant::now();
    for (object, &len) in subject.objects.chunks(PAGE_SIZE).zip(&subject.lens) {
        if len < PAGE_SIZE {
            subject.stream.decompress(&object[..len], &mut back)?;
        }
    }
    subject.decompress = subject.decompress.min(start.elapsed());
    for ((page, object), &len) in pages.iter().zip(subject.objects.chunks(PAGE_SIZE)).zip(&subject.lens) {
        if len < PAGE_SIZE {
            subject.stream.decompress(&object[..len], &mut back)?;
            ensure!(back == **page, "{} changed a page", subject.name);
        }
    }
    Ok(())
}

fn report(json: bool, case: &str, subject: &Subject, pages: usize) {
    let total = (pages * PAGE_SIZE) as f64;
    let speed = |time: Duration| total / time.as_secs_f64() / 1e6;
    let bytes = subject.lens.iter().sum::<usize>() as f64;
    let figures = [
        ("pages", pages as f64, "pages"),
        ("compressed_bytes", bytes, "bytes"),
        ("compress_mb_s", speed(subject.compress), "MB/s"),
        ("decompress_mb_s", speed(subject.decompress), "MB/s"),
    ];
    if json {
        for (metric, value, unit) in figures {
            Figure { bench: "codec", case, subject: &subject.name, metric, value, unit }.print_json();
        }
    } else {
        println!(
            "{case:16} {:12} {:9} bytes  {:.4}  {:7.1} MB/s  {:7.1} MB/s",
            subject.name,
            bytes,
            bytes / total,
            figures[2].1,
            figures[3].1
        );
    }
}

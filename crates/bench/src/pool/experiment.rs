//! The experiment with which xcfmalloc was proposed ("staging: zcache: xcfmalloc support", 2011):
//! pages of zeros, and text that LZO compresses to 75 % with little deviation. The figure is its
//! *effective compression*: memory spent / page bytes.

use anyhow::{Context, ensure};
use pagefold_codec::{PAGE_SIZE, Page, Stream, by_name};
use pagefold_kinds::Pages;
use pagefold_published::{AllocatorKind, Heap, Store, StoreConfig, strategy::BitSpin};
use pagefold_report::Output;
use pagefold_store::Objects;

use crate::{
    load::{Device, Random, Slots, Stored},
    product::{MOSAIC, Product},
    subjects::Zram,
};

const PAGES: usize = 64 << 10;

/// Distinct pages of text; the others repeat them.
const TEXTS: usize = 2048;
const TEXT_BYTES: std::ops::RangeInclusive<usize> = PAGE_SIZE * 3 / 4 - 24..=PAGE_SIZE * 3 / 4 + 24;

/// The source's own table, in percent.
const SOURCE: [(&str, f64, f64); 2] = [("xvmalloc", 1.93, 99.95), ("xcfmalloc", 3.72, 78.11)];

const CODEC: &str = "lzo";

pub(super) fn run(output: &mut Output, zram: bool) -> anyhow::Result<()> {
    let codec = by_name(CODEC)?;
    let percent = |bytes: u64| bytes as f64 * 100.0 / (PAGES * PAGE_SIZE) as f64;
    for (name, zeros, text) in SOURCE {
        output.put_of(&format!("{name}-2011"), "zeros-as-objects", "effective_percent", zeros, "%");
        output.put_of(&format!("{name}-2011"), "text-75", "effective_percent", text, "%");
    }

    let mut object = [0; PAGE_SIZE];
    let len = codec.stream()?.compress(&[0; PAGE_SIZE], &mut object).context("zeros compress")?;
    let mut zeros = |subject: &str, spent_bytes: u64| {
        output.put_of(subject, "zeros-as-objects", "effective_percent", percent(spent_bytes), "%");
    };
    let heap = Objects::new()?;
    for _ in 0..PAGES {
        heap.put(&object[..len]).context("out of memory")?;
    }
    zeros(MOSAIC, heap.spent_bytes());
    for kind in AllocatorKind::ALL {
        let heap = Heap::new(kind, PAGES as u64)?;
        for _ in 0..PAGES {
            heap.put(&object[..len]).context("out of memory")?;
        }
        zeros(kind.name(), heap.spent_bytes());
    }

    let texts = texts(&mut *codec.stream()?)?;
    let fill = |slots: &dyn Slots| (0..PAGES).try_for_each(|slot| slots.write_slot(slot as u64, &texts[slot % TEXTS]));
    let mut text = |subject: &str, compressed_bytes: u64, spent_bytes: u64| {
        output.put_of(subject, "text-75", "compressed_bytes", compressed_bytes as f64, "bytes");
        output.put_of(subject, "text-75", "spent_bytes", spent_bytes as f64, "bytes");
        output.put_of(subject, "text-75", "effective_percent", percent(spent_bytes), "%");
    };
    let store = Product::new(PAGES as u64, by_name(CODEC)?)?;
    fill(&store)?;
    let (compressed, spent) = store.bytes()?;
    text(MOSAIC, compressed, spent);
    for allocator in AllocatorKind::ALL {
        let config = StoreConfig { codec: by_name(CODEC)?, allocator, ..StoreConfig::new(PAGES as u64) };
        let store = Store::<BitSpin>::new(config)?;
        fill(&store)?;
        text(allocator.name(), store.stats().compr_data_size, store.stats().spent_bytes);
    }
    if zram {
        let disk = Zram::new(CODEC, PAGES as u64)?;
        let mut device = disk.worker(0)?;
        for slot in (0..PAGES).step_by(TEXTS) {
            device.write(slot as u64, &texts)?;
        }
        let (compressed, spent) = disk.bytes()?;
        text("zram-zsmalloc", compressed, spent);
    }
    Ok(())
}

/// Makes pages of words: some from a small vocabulary, and enough unique ones to compress to 75 %.
fn texts(stream: &mut dyn Stream) -> anyhow::Result<Pages> {
    let mut random = Random::new(75);
    let vocabulary: Vec<Vec<u8>> = (0..200).map(|_| word(&mut random)).collect();
    let mut texts = Pages::new(TEXTS);
    for text in texts.as_mut() {
        let (mut few, mut many) = (0, 1000);
        let seed = random.next();
        loop {
            let new_words = (few + many) / 2;
            fill(text, &vocabulary, new_words, seed);
            let mut object = [0; PAGE_SIZE];
            let len = stream.compress(text, &mut object).unwrap_or(PAGE_SIZE);
            if TEXT_BYTES.contains(&len) || many - few <= 1 {
                break;
            }
            if len > *TEXT_BYTES.end() { many = new_words } else { few = new_words }
        }
        ensure!(ratio(text, stream) < 0.8, "a text that does not compress");
    }
    Ok(texts)
}

fn ratio(text: &Page, stream: &mut dyn Stream) -> f64 {
    let mut object = [0; PAGE_SIZE];
    stream.compress(text, &mut object).unwrap_or(PAGE_SIZE) as f64 / PAGE_SIZE as f64
}

/// Fills a page with words, of which `new_words` in a thousand are unique.
fn fill(text: &mut Page, vocabulary: &[Vec<u8>], new_words: u64, seed: u64) {
    let mut random = Random::new(seed);
    let mut at = 0;
    while at < PAGE_SIZE {
        // The random numbers do not depend on `new_words`, so that more new words never make a page
        // compress better.
        let known = &vocabulary[random.below(vocabulary.len() as u64) as usize];
        let new = word(&mut random);
        let word = if random.below(1000) < new_words { &new } else { known };
        for byte in word.iter().chain(b" ").take(PAGE_SIZE - at) {
            text[at] = *byte;
            at += 1;
        }
    }
}

fn word(random: &mut Random) -> Vec<u8> {
    let len = 3 + random.below(8);
    (0..len).map(|_| b"etaoinshrdlucmfwypvbgkjqxz"[random.below(26) as usize]).collect()
}

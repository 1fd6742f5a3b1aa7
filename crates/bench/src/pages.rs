//! The pages that the store's benches write: a file's, or those of a heap that the bench starts itself.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader},
    ops::Deref,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, ensure};
use pagefold_codec::{PAGE_SIZE, Page};

/// Pages in one piece of memory that begins at a page boundary, as `O_DIRECT` wants it.
pub(crate) struct Pages {
    bytes: Vec<u8>,
    start: usize,
    count: usize,
}

impl Pages {
    /// `count` pages of zeros.
    pub(crate) fn new(count: usize) -> Self {
        let bytes = vec![0u8; (count + 1) * PAGE_SIZE];
        let start = bytes.as_ptr().align_offset(PAGE_SIZE);
        Self { bytes, start, count }
    }

    pub(crate) fn as_mut(&mut self) -> &mut [Page] {
        &mut self.bytes[self.start..].as_chunks_mut().0[..self.count]
    }
}

impl Deref for Pages {
    type Target = [Page];

    fn deref(&self) -> &[Page] {
        &self.bytes[self.start..].as_chunks().0[..self.count]
    }
}

/// Pages with the name they have in a case.
pub(crate) struct Data {
    pub(crate) name: String,
    pub(crate) pages: Pages,
}

/// What a heap is made of when no data is given: parsed documents, their text, and an index over them.
const HEAP: &str = r"
import json, random, sys
random.seed(1)
words = [''.join(random.choices('etaoinshrdlucmfwyp', k=random.randint(2, 9))) for _ in range(5000)]
def record(number):
    return {'id': number, 'name': ' '.join(random.choices(words, k=3)), 'score': random.random() * 100,
            'tags': random.choices(words, k=random.randint(0, 6)), 'parent': random.randrange(number + 1)}
kept = [json.loads(json.dumps(record(number))) for number in range(int(sys.argv[1]))]
text = [json.dumps(one) for one in kept[::3]]
index = {one['name']: one for one in kept}
print('ready', flush=True)
sys.stdin.read()
";

/// The data that the options name, each with at least one and at most `pages_max` pages that are not same-filled; without
/// any, the heap of a Python process that is started for it.
pub(crate) fn gather(paths: &[PathBuf], pages_max: usize) -> anyhow::Result<Vec<Data>> {
    if paths.is_empty() {
        return Ok(vec![heap(pages_max)?]);
    }
    paths.iter().map(|path| file(path, pages_max)).collect()
}

fn file(path: &Path, pages_max: usize) -> anyhow::Result<Data> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    select(name, bytes.as_chunks().0, pages_max)
}

/// Keeps the pages that are not same-filled, spread evenly over all of them, in whole groups of 32: the largest request.
fn select(name: String, all: &[Page], pages_max: usize) -> anyhow::Result<Data> {
    let mixed: Vec<&Page> = all.iter().filter(|page| page[8..] != page[..PAGE_SIZE - 8]).collect();
    let count = mixed.len().min(pages_max) / 32 * 32;
    ensure!(count > 0, "{name} has fewer than 32 pages that are not same-filled");
    let mut pages = Pages::new(count);
    for (at, page) in pages.as_mut().iter_mut().enumerate() {
        *page = *mixed[at * mixed.len() / count];
    }
    Ok(Data { name, pages })
}

fn heap(pages_max: usize) -> anyhow::Result<Data> {
    // A record takes about 900 bytes of memory.
    let records = pages_max * 5;
    let mut child = Command::new("python3")
        .args(["-c", HEAP, &records.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start python3; name files with --data instead")?;
    let ready = child.stdout.take().context("no pipe from python3")?;
    let mut line = String::new();
    BufReader::new(ready).read_line(&mut line)?;
    let memory = anonymous_memory(child.id());
    child.kill()?;
    child.wait()?;
    ensure!(line == "ready\n", "python3 failed");
    select("heap".to_owned(), memory?.as_chunks().0, pages_max)
}

/// The bytes of a process's writable anonymous mappings.
fn anonymous_memory(process: u32) -> anyhow::Result<Vec<u8>> {
    let maps = fs::read_to_string(format!("/proc/{process}/maps"))?;
    let memory = File::open(format!("/proc/{process}/mem"))?;
    let mut bytes = Vec::new();
    for line in maps.lines() {
        let mut fields = line.split_whitespace();
        let (Some(range), Some(access)) = (fields.next(), fields.next()) else { continue };
        let name = fields.nth(3).unwrap_or("");
        if !access.starts_with("rw") || !(name.is_empty() || name == "[heap]") {
            continue;
        }
        let (start, end) = range.split_once('-').context("a mapping without a range")?;
        let (start, end) = (u64::from_str_radix(start, 16)?, u64::from_str_radix(end, 16)?);
        let mut mapping = vec![0; (end - start) as usize];
        memory.read_exact_at(&mut mapping, start)?;
        bytes.append(&mut mapping);
    }
    Ok(bytes)
}

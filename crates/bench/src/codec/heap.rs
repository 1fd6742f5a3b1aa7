//! The anonymous memory of a program started for the purpose, read while it waits.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader},
    os::unix::fs::FileExt,
    process::{Child, Command, Stdio},
};

use anyhow::{Context, ensure};
use pagefold_codec::PAGE_SIZE;

/// A program, and the source it is to run: it fills its heap, writes a line, and waits for its input to end.
pub(crate) struct Program {
    command: &'static str,
    flag: &'static str,
    source: &'static str,
}

/// A Python program that has parsed modules and JSON and keeps objects, texts and numbers.
pub(crate) const PYTHON: Program = Program {
    command: "python3",
    flag: "-c",
    source: r#"
import ast, json, os, random, sys
random.seed(7)
folder = os.path.dirname(os.__file__)
sources = [open(os.path.join(folder, f), encoding="utf-8", errors="replace").read()
    for f in sorted(os.listdir(folder)) if f.endswith(".py")][:80]
trees = [ast.parse(s) for s in sources[:25]]
class Order:
    def __init__(self, n):
        self.id, self.total = n, random.random() * 100
        self.lines = [("article-%d" % random.randrange(5000), random.randrange(9)) for _ in range(random.randrange(1, 8))]
orders = {n: Order(n) for n in range(40000)}
parsed = json.loads(json.dumps([{"id": o.id, "total": o.total, "lines": o.lines} for o in list(orders.values())[:15000]]))
words = {}
for s in sources:
    for w in s.split(): words[w] = words.get(w, 0) + 1
print("ready", flush=True)
sys.stdin.read()
"#,
};

/// A Node program that keeps objects, maps, arrays and texts.
pub(crate) const NODE: Program = Program {
    command: "node",
    flag: "-e",
    source: r#"
let state = 12345;
const random = (n) => { state = (Math.imul(state, 1103515245) + 12345) >>> 0; return (state >>> 8) % n; };
const orders = new Map();
for (let n = 0; n < 60000; n++) {
  const lines = [];
  for (let k = random(7); k >= 0; k--) lines.push({ article: "article-" + random(5000), count: random(9) });
  orders.set(n, { id: n, total: random(1e6) / 100, customer: "customer " + random(9000), lines });
}
const parsed = JSON.parse(JSON.stringify([...orders.values()].slice(0, 20000)));
const index = {};
for (const order of orders.values()) (index[order.customer] ||= []).push(order.id);
console.log("ready");
process.stdin.resume();
process.stdin.on("end", () => process.exit(orders.size + parsed.length + Object.keys(index).length > 0 ? 0 : 1));
"#,
};

/// Ends the program when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing left to end.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Up to `limit` bytes of the pages that `program` has in its private anonymous mappings once it is ready.
pub(crate) fn pages_of(program: Program, limit: usize) -> anyhow::Result<Vec<u8>> {
    let child = Command::new(program.command)
        .args([program.flag, program.source])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {}", program.command))?;
    let mut running = Running(child);
    let output = running.0.stdout.take().context("no output")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    ensure!(line == "ready\n", "{} ended before it was ready", program.command);
    read_pages(running.0.id(), limit)
}

fn read_pages(pid: u32, limit: usize) -> anyhow::Result<Vec<u8>> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let memory = File::open(format!("/proc/{pid}/mem"))?;
    let present = File::open(format!("/proc/{pid}/pagemap"))?;
    let mut bytes = Vec::new();
    for (start, end) in maps.lines().filter_map(anonymous) {
        for address in (start..end).step_by(PAGE_SIZE) {
            if bytes.len() + PAGE_SIZE > limit {
                return Ok(bytes);
            }
            let mut page = [0; PAGE_SIZE];
            if was_touched(&present, address)? && memory.read_exact_at(&mut page, address).is_ok() {
                bytes.extend_from_slice(&page);
            }
        }
    }
    Ok(bytes)
}

/// The range of a line of `/proc/PID/maps`, if it is private, writable and backed by no file
/// (proc_pid_maps(5): `start-end perms offset dev inode [name]`).
fn anonymous(line: &str) -> Option<(u64, u64)> {
    let mut fields = line.split_whitespace();
    let (range, permissions) = (fields.next()?, fields.next()?);
    let name = fields.nth(3);
    if !permissions.starts_with("rw") || !permissions.ends_with('p') || name.is_some_and(|name| name != "[heap]") {
        return None;
    }
    let (start, end) = range.split_once('-')?;
    Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
}

/// Is the page in memory or swapped out (proc_pid_pagemap(5): bits 63 and 62)? All others would read as zeros.
fn was_touched(pagemap: &File, address: u64) -> anyhow::Result<bool> {
    let mut word = [0; 8];
    pagemap.read_exact_at(&mut word, address / PAGE_SIZE as u64 * 8)?;
    Ok(u64::from_le_bytes(word) >> 62 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_private_anonymous_memory_is_read() {
        let heap = "55d0c0a00000-55d0c0b00000 rw-p 00000000 00:00 0                          [heap]";
        assert_eq!(anonymous(heap), Some((0x55d0_c0a0_0000, 0x55d0_c0b0_0000)));
        assert_eq!(
            anonymous("7f0000000000-7f0000001000 rw-p 00000000 00:00 0"),
            Some((0x7f00_0000_0000, 0x7f00_0000_1000))
        );
        for other in [
            "7ffd5e400000-7ffd5e421000 rw-p 00000000 00:00 0                          [stack]",
            "7f0000000000-7f0000001000 r--p 00000000 00:00 0",
            "7f0000000000-7f0000001000 rw-s 00000000 00:00 0",
            "7f0000000000-7f0000001000 rw-p 00001000 08:01 77   /usr/lib/libc.so.6",
            "nonsense",
        ] {
            assert_eq!(anonymous(other), None, "{other}");
        }
    }
}

//! The kinds of data to measure: files that were named, or what this machine has.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, bail};

use super::{
    files::{has_extension, is_text, joined},
    heap,
};
use crate::synthetic;

/// Bytes gathered of each kind.
const LIMIT: usize = 24 << 20;
/// A kind with fewer bytes says little and is left out.
const LEAST: usize = 256 << 10;
/// Pages of each synthetic kind.
const SYNTHETIC_PAGES: usize = 4096;

/// A database as a web service keeps it: users, events with JSON, an index.
const DATABASE: &str = r#"
import json, random, sqlite3, sys
random.seed(11)
db = sqlite3.connect(sys.argv[1])
db.execute("create table user(id integer primary key, name text, mail text, city text, joined real)")
db.execute("create table event(id integer primary key, user integer, kind text, at real, body text)")
names = ["".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=random.randint(4, 9))) for _ in range(3000)]
cities = random.choices(names, k=200)
for n in range(30000):
    name = random.choice(names).title() + " " + random.choice(names).title()
    db.execute("insert into user values(?,?,?,?,?)",
        (n, name, name.lower().replace(" ", ".") + "@example.org", random.choice(cities), 1.6e9 + random.random() * 1e8))
for n in range(80000):
    body = json.dumps({"path": "/" + random.choice(names), "status": random.choice([200, 200, 200, 304, 404]),
        "ms": round(random.expovariate(0.1), 2), "agent": "client/%d.%d" % (random.randint(1, 9), random.randint(0, 30))})
    db.execute("insert into event values(?,?,?,?,?)", (n, random.randint(0, 29999), random.choice(["view", "click", "buy"]),
        1.7e9 + n * 3.7 + random.random(), body))
db.execute("create index event_by_user on event(user, at)")
db.commit()
"#;

/// The content of each of `paths`, called by its file name; by its whole path where two have the same name.
pub(crate) fn files(paths: &[PathBuf]) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let short = |path: &Path| path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let mut kinds = Vec::new();
    for path in paths {
        let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let unique = paths.iter().filter(|other| short(other) == short(path)).count() == 1;
        kinds.push((if unique { short(path) } else { path.display().to_string() }, bytes));
    }
    Ok(kinds)
}

/// What this machine has, and synthetic pages.
pub(super) fn all() -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let mut kinds = vec![
        ("binaries", joined(&["/usr/bin", "/usr/lib"], LIMIT, |_, content| content.starts_with(b"\x7fELF"))),
        ("text", joined(&["/usr/share/doc", "/usr/include", "/usr/share/perl"], LIMIT, |_, content| is_text(content))),
        ("xml", joined(&["/usr/share"], LIMIT, |path, _| has_extension(path, &["xml", "svg", "rng", "ui"]))),
        (
            "images",
            joined(&["/usr/share", "/usr/lib"], LIMIT, |path, _| has_extension(path, &["png", "jpg", "gif", "ico"])),
        ),
    ];
    for (name, program) in [("heap-python", heap::PYTHON), ("heap-node", heap::NODE)] {
        match heap::pages_of(program, LIMIT) {
            Ok(bytes) => kinds.push((name, bytes)),
            Err(error) => eprintln!("SKIPPED: {name}: {error:#}"),
        }
    }
    match database() {
        Ok(bytes) => kinds.push(("database", bytes)),
        Err(error) => eprintln!("SKIPPED: database: {error:#}"),
    }
    kinds.retain(|(name, bytes)| {
        if bytes.len() < LEAST {
            eprintln!("SKIPPED: {name}: this machine has too little of it");
        }
        bytes.len() >= LEAST
    });
    let mut kinds: Vec<(String, Vec<u8>)> = kinds.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect();
    for percent in [25, 50, 75] {
        let pages = synthetic::of_ratio(percent, SYNTHETIC_PAGES);
        kinds.push((format!("synthetic-{percent}"), pages.as_flattened().to_vec()));
    }
    Ok(kinds)
}

/// An SQLite database, made by Python's own module.
fn database() -> anyhow::Result<Vec<u8>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("database");
    let status = Command::new("python3").arg("-c").arg(DATABASE).arg(&path).status().context("cannot start python3")?;
    if !status.success() {
        bail!("python3 could not make it");
    }
    Ok(fs::read(&path)?)
}

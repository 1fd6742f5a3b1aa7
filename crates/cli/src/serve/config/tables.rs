//! Disks, bases and forks that a configuration file describes.

use std::collections::{HashMap, HashSet};

use anyhow::anyhow;
use pagefold_base::Format;
use pagefold_control::{Add, AddBase, DiskQuota, DiskSocket, Fork, MAX_FORKS};
use pagefold_server::{Failure, Manage, Server, parse_group, parse_mode};
use toml_edit::Table;

use super::document::{Document, Entry};
use crate::{
    manage::{
        add::add_base,
        quota::{parse_connections, parse_rate},
    },
    report::misuse,
    size,
};

/// The disks, bases and forks of a configuration file.
#[derive(Default)]
pub(crate) struct AtStart(pub(super) Tables);

/// A disk, a base or forks, and the place in the file that describes them, for errors.
pub(super) struct Placed<T> {
    place: String,
    pub(super) what: T,
}

impl<T> Placed<T> {
    fn with(&self, what: T) -> Self {
        Self { place: self.place.clone(), what }
    }
}

/// The options `mode` and `group`, checked.
#[derive(Clone, Default)]
pub(super) struct SocketDefaults {
    pub(super) mode: Option<String>,
    pub(super) group: Option<String>,
}

#[derive(Default)]
pub(super) struct Tables {
    pub(super) disks: Vec<Placed<Add>>,
    pub(super) bases: Vec<Placed<AddBase>>,
    pub(super) forks: Vec<Placed<Fork>>,
}

/// Keys that all kinds of tables have.
const COMMON: [&str; 5] = ["connections", "rate", "socket", "mode", "group"];

impl Tables {
    pub(super) const KINDS: [&str; 3] = ["disk", "base", "fork"];

    /// Reads the tables. `sockets` are the mode and the group of sockets whose tables have none.
    pub(super) fn read(document: &Document, sockets: &SocketDefaults) -> anyhow::Result<Self> {
        let mut found = Self::default();
        let mut names = HashMap::new();
        for entry in document.top().iter().filter(|entry| Self::KINDS.contains(&entry.key)) {
            let tables = entry.item.as_array_of_tables();
            let tables =
                tables.ok_or_else(|| entry.wrong(format!("write [[{0}]], and repeat it for each {0}", entry.key)))?;
            for table in tables {
                let place = document.place(table.span());
                let read = Reader::new(document, table, entry.key, sockets)?;
                let named = match entry.key {
                    "disk" => {
                        let what = read.disk()?;
                        let names = vec![what.name.clone()];
                        found.disks.push(Placed { place: place.clone(), what });
                        names
                    }
                    "base" => {
                        let what = read.base()?;
                        let names = vec![what.name.clone()];
                        found.bases.push(Placed { place: place.clone(), what });
                        names
                    }
                    _ => {
                        let what = read.fork()?;
                        let names = what.names.clone();
                        found.forks.push(Placed { place: place.clone(), what });
                        names
                    }
                };
                for name in named {
                    if let Some(before) = names.insert(name.clone(), place.clone()) {
                        return Err(misuse(anyhow!("{place}: the name '{name}' is also given at {before}")));
                    }
                }
            }
        }
        Ok(found)
    }
}

impl Tables {
    /// Drops the disks and bases that the command line replaces, and their forks. `given` are the
    /// names on the command line.
    pub(super) fn replace(&mut self, disks: bool, bases: bool, given: &[String]) {
        let mut gone = HashSet::new();
        if disks {
            gone.extend(self.disks.drain(..).map(|disk| disk.what.name));
        }
        if bases {
            gone.extend(self.bases.drain(..).map(|base| base.what.name));
        }
        gone.retain(|name| !given.contains(name));
        self.forks.retain(|fork| {
            let Fork { from, names, .. } = &fork.what;
            let stays = !gone.contains(from);
            if !stays {
                gone.extend(names.iter().cloned());
            }
            stays
        });
    }
}

impl AtStart {
    /// Returns the same disks without sockets of their own: a running server may have these open.
    pub(super) fn without_sockets(&self) -> Self {
        let Tables { disks, bases, forks } = &self.0;
        let disks = disks.iter().map(|disk| disk.with(Add { socket: None, ..disk.what.clone() }));
        let bases = bases.iter().map(|base| base.with(AddBase { socket: None, ..base.what.clone() }));
        let forks = forks.iter().map(|fork| fork.with(Fork { socket: None, ..fork.what.clone() }));
        Self(Tables { disks: disks.collect(), bases: bases.collect(), forks: forks.collect() })
    }

    /// Creates the disks.
    pub(in super::super) fn add_disks(&self, server: &Server, read_only: bool) -> anyhow::Result<()> {
        self.0.disks.iter().try_for_each(|Placed { place, what }| {
            let disk = Add { read_only: what.read_only || read_only, ..what.clone() };
            server.add(&disk).map(drop).map_err(|failure| failed(place, &failure))
        })
    }

    /// Serves the bases, then creates the forks.
    pub(in super::super) fn add_bases_and_forks(&self, server: &Server) -> anyhow::Result<()> {
        for Placed { place, what } in &self.0.bases {
            server.add_base(what).map_err(|failure| failed(place, &failure))?;
        }
        for Placed { place, what } in &self.0.forks {
            for names in what.names.chunks(MAX_FORKS) {
                let fork = Fork { names: names.to_vec(), ..what.clone() };
                server.fork(&fork).map_err(|failure| failed(place, &failure))?;
            }
        }
        Ok(())
    }
}

fn failed(place: &str, failure: &Failure) -> anyhow::Error {
    misuse(anyhow!("{place}: {failure}"))
}

/// The entries of one table.
struct Reader<'a> {
    document: &'a Document,
    table: &'a Table,
    kind: &'a str,
    entries: Vec<Entry<'a>>,
    sockets: &'a SocketDefaults,
}

impl<'a> Reader<'a> {
    fn new(
        document: &'a Document,
        table: &'a Table,
        kind: &'a str,
        sockets: &'a SocketDefaults,
    ) -> anyhow::Result<Self> {
        let own: &[&str] = match kind {
            "disk" => &["name", "size", "limit", "read-only"],
            "base" => &["name", "file", "format", "device"],
            _ => &["from", "name", "limit", "read-only"],
        };
        let entries = document.entries(table, kind_word(kind));
        let known: Vec<_> = own.iter().copied().chain(COMMON).collect();
        if let Some(entry) = entries.iter().find(|entry| !known.contains(&entry.key)) {
            let codec = if entry.key == "codec" { "the codec applies to all disks of a server; " } else { "" };
            return Err(entry.wrong(format!("unknown key; {codec}known keys of [[{kind}]]: {}", known.join(", "))));
        }
        Ok(Self { document, table, kind, entries, sockets })
    }

    fn entry(&self, key: &str) -> Option<&Entry<'a>> {
        self.entries.iter().find(|entry| entry.key == key)
    }

    fn needed(&self, key: &str) -> anyhow::Result<&Entry<'a>> {
        let place = || self.document.place(self.table.span());
        self.entry(key).ok_or_else(|| misuse(anyhow!("{}: this {} has no '{key}'", place(), self.kind)))
    }

    fn parsed<T>(&self, key: &str, parse: impl Fn(&str) -> Result<T, String>) -> anyhow::Result<Option<T>> {
        let Some(entry) = self.entry(key) else { return Ok(None) };
        Ok(Some(parse(&entry.text()?).map_err(|what| entry.wrong(what))?))
    }

    fn flag(&self, key: &str) -> anyhow::Result<bool> {
        self.entry(key).map_or(Ok(false), Entry::flag)
    }

    fn texts(&self, key: &str) -> anyhow::Result<Vec<String>> {
        self.entry(key).map_or_else(|| Ok(Vec::new()), Entry::texts)
    }

    fn quota(&self) -> anyhow::Result<DiskQuota> {
        let connections = self.parsed("connections", parse_connections)?;
        Ok(DiskQuota { connections, bytes_per_second: self.parsed("rate", parse_rate)? })
    }

    fn socket(&self) -> anyhow::Result<Option<DiskSocket>> {
        let checked = |check: fn(&str) -> Result<u32, String>| move |text: &str| check(text).map(|_| text.to_owned());
        let path = self.parsed("socket", |text| Ok(text.to_owned()))?;
        let (mode, group) = (self.parsed("mode", checked(parse_mode))?, self.parsed("group", checked(parse_group))?);
        let Some(path) = path else {
            let alone = self.entry("mode").or_else(|| self.entry("group"));
            return alone
                .map_or(Ok(None), |entry| Err(entry.wrong("applies to the disk's own socket: give 'socket' too")));
        };
        let path = std::path::absolute(&path)?.display().to_string();
        let SocketDefaults { mode: common_mode, group: common_group } = self.sockets.clone();
        Ok(Some(DiskSocket { path, mode: mode.or(common_mode), group: group.or(common_group) }))
    }

    fn disk(&self) -> anyhow::Result<Add> {
        let size = self.needed("size")?;
        let size_bytes = size::parse(&size.text()?).map_err(|what| size.wrong(what))?;
        Ok(Add {
            name: self.needed("name")?.text()?,
            size_bytes,
            limit_bytes: self.parsed("limit", size::parse)?,
            read_only: self.flag("read-only")?,
            socket: self.socket()?,
            quota: self.quota()?,
        })
    }

    fn base(&self) -> anyhow::Result<AddBase> {
        let format = self.parsed("format", |text| text.parse::<Format>().map_err(|error| error.to_string()))?;
        let devices: Vec<_> = self.texts("device")?.into_iter().map(Into::into).collect();
        let file = self.needed("file")?;
        let base = add_base(self.needed("name")?.text()?, file.text()?.into(), &devices, format);
        let base = base.map_err(|error| file.wrong(crate::text::message(&error)))?;
        Ok(AddBase { socket: self.socket()?, quota: self.quota()?, ..base })
    }

    fn fork(&self) -> anyhow::Result<Fork> {
        let name = self.needed("name")?;
        let names = name.texts()?;
        if names.is_empty() {
            return Err(name.wrong("has no name"));
        }
        Ok(Fork {
            from: self.needed("from")?.text()?,
            names,
            limit_bytes: self.parsed("limit", size::parse)?,
            read_only: self.flag("read-only")?,
            socket: self.socket()?,
            quota: self.quota()?,
        })
    }
}

/// Returns the beginning of an error about an entry of a table.
fn kind_word(kind: &str) -> &'static str {
    match kind {
        "disk" => "disk: ",
        "base" => "base: ",
        _ => "fork: ",
    }
}

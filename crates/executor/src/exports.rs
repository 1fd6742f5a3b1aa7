//! Named devices, added, renamed and removed while a server runs.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Bound,
    sync::{Arc, PoisonError, RwLock, RwLockWriteGuard},
};

use crate::{
    activity::{AllDone, Latencies, Removed},
    export::Export,
    watch::{Event, Watch, Watchers},
};

/// Longest name of an export in bytes: what NBD allows.
pub const MAX_NAME_BYTES: usize = 4096;

/// Why an export cannot be added or renamed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// Two exports have the same name.
    #[error("duplicate export name `{0}`: give each export its own name")]
    Duplicate(String),
    /// No export has the name that is to be changed.
    #[error("no export named `{0}`")]
    Unknown(String),
    /// A name is too long.
    #[error("export name of {0} bytes: at most {MAX_NAME_BYTES} are allowed")]
    TooLong(usize),
    /// Two exports have the same number, or it is the greatest.
    #[error("export number {0} cannot be used")]
    Number(u64),
    /// A name contains control characters, which clients and logs cannot show.
    #[error("export name with control characters: {0:?}")]
    Control(String),
}

/// The exports of a server, each with its own name. Clones are handles to the same exports, so
/// exports can be added, removed and renamed while the server runs.
#[derive(Clone, Debug, Default)]
pub struct Exports {
    table: Arc<RwLock<ExportTable>>,
    /// If present, the set consists of this export alone, under any name, and the table is empty.
    only: Option<Arc<Export>>,
}

/// `numbers` and `by_age` refer to the same exports.
#[derive(Debug, Default)]
struct ExportTable {
    numbers: HashMap<Arc<str>, u64>,
    /// Keyed by number; the oldest export has the lowest.
    by_age: BTreeMap<u64, Arc<Export>>,
    next_number: u64,
    watchers: Watchers,
    latencies: Arc<Latencies>,
    removed: Removed,
}

impl Exports {
    /// Creates an empty set. Until an export is added, a server refuses every client's choice.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a set that always has just this export, under its current name and as the default.
    /// Once it has been removed from the set that it came from, clients are refused.
    pub fn only(export: Arc<Export>) -> Self {
        Self { table: Arc::default(), only: Some(export) }
    }

    /// Adds an export. Clients may choose it from now on.
    ///
    /// # Errors
    /// [`ExportError::Duplicate`], or the name is longer than 4096 bytes or has control characters.
    pub fn add(&self, export: Export) -> Result<(), ExportError> {
        let table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let number = table.next_number;
        Self::add_to(table, export, number)
    }

    /// Adds an export with this number, which no export may have had before. Later ones get higher
    /// numbers.
    ///
    /// # Errors
    /// Those of [`add`](Self::add), and [`ExportError::Number`].
    pub fn add_numbered(&self, export: Export, number: u64) -> Result<(), ExportError> {
        let table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if number == u64::MAX || table.by_age.contains_key(&number) {
            return Err(ExportError::Number(number));
        }
        Self::add_to(table, export, number)
    }

    fn add_to(
        mut table: RwLockWriteGuard<'_, ExportTable>,
        mut export: Export,
        number: u64,
    ) -> Result<(), ExportError> {
        let name = export.name();
        check_name(&name)?;
        if table.numbers.contains_key(&name) {
            return Err(ExportError::Duplicate(name.to_string()));
        }
        table.next_number = table.next_number.max(number + 1);
        export.latencies = Some(Arc::clone(&table.latencies));
        let export = Arc::new(export);
        if !export.hidden {
            let (name, export) = (Arc::clone(&name), Arc::clone(&export));
            table.watchers.notify(&Event::Added { number, name, export });
        }
        table.numbers.insert(name, number);
        table.by_age.insert(number, export);
        Ok(())
    }

    /// Returns the number that the next export gets.
    pub fn next_number(&self) -> u64 {
        self.table.read().unwrap_or_else(PoisonError::into_inner).next_number
    }

    /// Gives later exports numbers from `number` on.
    pub fn skip_numbers(&self, number: u64) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.next_number = table.next_number.max(number);
    }

    /// Returns the set's export, if the set always has [only](Self::only) one.
    pub fn only_one(&self) -> Option<&Arc<Export>> {
        self.only.as_ref()
    }

    /// Returns a watch of the exports that clients may see. It reports those that exist now, and
    /// each that comes, goes or is renamed. A set of [only](Self::only) one export never changes.
    pub fn watch(&self) -> Watch {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let all: Vec<_> = table.by_age.iter().map(|(number, export)| (*number, Arc::clone(export))).collect();
        let only = self.only.iter().filter(|only| only.exists()).map(|only| (0, Arc::clone(only)));
        let seen = all.into_iter().chain(only).filter(|(_, export)| !export.hidden);
        let events = seen.map(|(number, export)| Event::Added { number, name: export.name(), export });
        table.watchers.add(events.collect())
    }

    /// Removes the export with exactly this name; returns `None` if there is none.
    ///
    /// Requests that have reached the device finish. Its clients' later requests fail with
    /// ESHUTDOWN, and their connections end soon after. The server drops the device when the last
    /// request is done, which may be after this returns.
    pub fn remove(&self, name: &str) -> Option<Arc<Export>> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let (name, number) = table.numbers.remove_entry(name)?;
        let export = table.by_age.remove(&number)?;
        if !export.hidden {
            table.watchers.notify(&Event::Removed { number, name, export: Arc::clone(&export) });
        }
        // While the table is locked, so that the client's requests are always counted once.
        let (left, activities) = export.leave();
        table.removed.lock().add(activities);
        drop(table);
        left.close();
        Some(export)
    }

    /// Renames an export for clients that connect from now on. Existing connections continue.
    ///
    /// # Errors
    /// [`ExportError::Unknown`], and those of [`Exports::add`]. On failure, nothing has changed.
    pub fn rename(&self, old: &str, new: &str) -> Result<(), ExportError> {
        check_name(new)?;
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let unknown = || ExportError::Unknown(old.to_owned());
        let number = table.numbers.get(old).copied().ok_or_else(unknown)?;
        if old == new {
            return Ok(());
        }
        if table.numbers.contains_key(new) {
            return Err(ExportError::Duplicate(new.to_owned()));
        }
        let name: Arc<str> = new.into();
        let export = table.by_age.get(&number).map(Arc::clone).ok_or_else(unknown)?;
        export.set_name(Arc::clone(&name));
        table.numbers.remove(old);
        table.numbers.insert(Arc::clone(&name), number);
        if !export.hidden {
            table.watchers.notify(&Event::Renamed { number, before: old.into(), name });
        }
        Ok(())
    }

    /// Returns the counts of all clients' requests, including those to removed exports.
    pub fn done(&self) -> AllDone {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let mut sum = table.removed.lock().done();
        table.by_age.values().for_each(|export| sum.add(&export.done()));
        sum
    }

    /// Returns how long their requests took.
    pub fn latencies(&self) -> Arc<Latencies> {
        Arc::clone(&self.table.read().unwrap_or_else(PoisonError::into_inner).latencies)
    }

    /// Returns the number of exports.
    pub fn count(&self) -> usize {
        self.only.as_ref().map_or_else(|| self.table.read().unwrap_or_else(PoisonError::into_inner).by_age.len(), |_| 1)
    }

    /// Returns the current exports, the oldest first.
    pub fn list(&self) -> Vec<Arc<Export>> {
        if let Some(only) = &self.only {
            return only.exists().then(|| Arc::clone(only)).into_iter().collect();
        }
        self.table.read().unwrap_or_else(PoisonError::into_inner).by_age.values().cloned().collect()
    }

    /// Returns up to `most` exports that clients may see, with their numbers: the oldest that are
    /// younger than the one with the number `after`.
    pub fn list_after(&self, after: Option<u64>, most: usize) -> Vec<(u64, Arc<Export>)> {
        if let Some(only) = &self.only {
            let found = (after.is_none() && only.exists()).then(|| (0, Arc::clone(only)));
            return found.into_iter().take(most).collect();
        }
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let seen = table.by_age.range((start, Bound::Unbounded)).filter(|(_, export)| !export.hidden);
        seen.take(most).map(|(number, export)| (*number, Arc::clone(export))).collect()
    }

    /// Returns the export with exactly this name.
    pub fn get(&self, name: &str) -> Option<Arc<Export>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.numbers.get(name).and_then(|number| table.by_age.get(number)).cloned()
    }

    /// Returns the export with exactly this name, and its number, which no other export ever has.
    pub fn get_numbered(&self, name: &str) -> Option<(u64, Arc<Export>)> {
        if let Some(only) = &self.only {
            return (only.exists() && *only.name() == *name).then(|| (0, Arc::clone(only)));
        }
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let number = *table.numbers.get(name)?;
        Some((number, Arc::clone(table.by_age.get(&number)?)))
    }

    /// Returns the export with this number.
    pub fn numbered(&self, number: u64) -> Option<Arc<Export>> {
        if let Some(only) = &self.only {
            return (number == 0 && only.exists()).then(|| Arc::clone(only));
        }
        self.table.read().unwrap_or_else(PoisonError::into_inner).by_age.get(&number).cloned()
    }

    /// Returns the export with this name. If the name is empty and no export has the empty name,
    /// returns the oldest export that is not hidden.
    pub fn find(&self, name: &[u8]) -> Option<Arc<Export>> {
        let name = str::from_utf8(name).ok()?;
        if let Some(only) = &self.only {
            return (only.exists() && (name.is_empty() || *only.name() == *name)).then(|| Arc::clone(only));
        }
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let export = match table.numbers.get(name) {
            Some(number) => table.by_age.get(number),
            None if name.is_empty() => table.by_age.values().find(|export| !export.hidden),
            None => None,
        };
        export.cloned()
    }
}

fn check_name(name: &str) -> Result<(), ExportError> {
    if name.len() > MAX_NAME_BYTES {
        return Err(ExportError::TooLong(name.len()));
    }
    if name.contains(char::is_control) {
        return Err(ExportError::Control(name.to_owned()));
    }
    Ok(())
}

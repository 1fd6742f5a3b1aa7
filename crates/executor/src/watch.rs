//! Reports exports that come and go.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
};

use crate::export::Export;

/// A change of an export. Its number stays the same as long as it exists, and no other export
/// ever has it.
#[derive(Clone, Debug)]
pub enum Event {
    /// It exists, under this name.
    Added {
        /// Its number.
        number: u64,
        /// Its name at that time.
        name: Arc<str>,
        /// The export.
        export: Arc<Export>,
    },
    /// It has another name.
    Renamed {
        /// Its number.
        number: u64,
        /// Its former name.
        before: Arc<str>,
        /// Its name at that time.
        name: Arc<str>,
    },
    /// It was removed.
    Removed {
        /// Its number.
        number: u64,
        /// Its last name.
        name: Arc<str>,
        /// The export, which cannot be opened any more.
        export: Arc<Export>,
    },
}

impl Event {
    /// Returns the number of the export.
    pub fn number(&self) -> u64 {
        match self {
            Self::Added { number, .. } | Self::Renamed { number, .. } | Self::Removed { number, .. } => *number,
        }
    }
}

/// Reports exports as they come and go, in the order in which they do. No change of the exports waits
/// for it.
#[derive(Debug)]
pub struct Watch(Arc<Shared>);

/// Ends a [`Watch`] from any thread.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Events that were not taken yet.
    events: VecDeque<Event>,
    stopped: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch {
    /// Waits for the next event. Returns `None` once the watch was stopped.
    pub fn wait(&mut self) -> Option<Event> {
        let mut state = self.0.lock();
        loop {
            if state.stopped {
                return None;
            }
            if let Some(event) = state.events.pop_front() {
                return Some(event);
            }
            state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns the next event if there is one.
    pub fn take(&mut self) -> Option<Event> {
        self.0.lock().events.pop_front()
    }

    /// Returns a handle that ends [`wait`](Self::wait).
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.0))
    }
}

impl Stopper {
    /// Ends [`Watch::wait`], now and from now on.
    pub fn stop(&self) {
        self.0.lock().stopped = true;
        self.0.changed.notify_all();
    }
}

/// The watches of a set of exports, which changes them while it is locked, so that all see the same
/// order.
#[derive(Debug, Default)]
pub(crate) struct Watchers(Vec<Weak<Shared>>);

impl Watchers {
    pub(crate) fn add(&mut self, events: VecDeque<Event>) -> Watch {
        let shared = Arc::new(Shared { state: Mutex::new(State { events, stopped: false }), changed: Condvar::new() });
        self.0.retain(|watch| watch.strong_count() > 0);
        self.0.push(Arc::downgrade(&shared));
        Watch(shared)
    }

    pub(crate) fn notify(&self, event: &Event) {
        for watch in self.0.iter().filter_map(Weak::upgrade) {
            watch.lock().notify(event);
            watch.changed.notify_all();
        }
    }
}

impl State {
    /// Adds an event. The events of an export that comes and goes unseen cancel each other. So
    /// there are at most as many events as exports that exist or were seen, even if they are not
    /// taken for long. Only renames are not bounded.
    fn notify(&mut self, event: &Event) {
        let is_own = |other: &Event| other.number() == event.number();
        if matches!(event, Event::Removed { .. })
            && self.events.iter().any(|event| is_own(event) && matches!(event, Event::Added { .. }))
        {
            self.events.retain(|event| !is_own(event));
        } else {
            self.events.push_back(event.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, thread};

    use pagefold_disk::{Pool, PoolConfig, RamDisk};

    use super::*;
    use crate::Exports;

    fn export(name: &str) -> Export {
        let pool = Pool::new(PoolConfig::default()).expect("a pool");
        Export::new(name, Arc::new(RamDisk::new(&pool, 4096).expect("a disk")))
    }

    /// Applies an event to names; fails if the event is impossible.
    fn follow(names: &mut BTreeMap<String, u64>, event: Event) {
        match event {
            Event::Added { number, name, .. } => {
                assert_eq!(names.insert(name.to_string(), number), None, "{name} exists");
            }
            Event::Renamed { number, before, name } => {
                assert_eq!(names.remove(&*before), Some(number), "{before}");
                assert_eq!(names.insert(name.to_string(), number), None, "{name} exists");
            }
            Event::Removed { number, name, .. } => assert_eq!(names.remove(&*name), Some(number), "{name}"),
        }
    }

    #[test]
    fn a_watch_reports_existing_added_and_removed_exports() {
        let exports = Exports::new();
        exports.add(export("a")).expect("a name");
        exports.add(export("secret").private()).expect("a name");
        let mut watch = exports.watch();
        let mut seen = BTreeMap::new();
        follow(&mut seen, watch.take().expect("the first export"));
        assert!(watch.take().is_none(), "a private export is seen");
        exports.rename("a", "b").expect("a name");
        exports.add(export("a")).expect("a name");
        // Two exports exchange their names.
        for (old, new) in [("a", "c"), ("b", "a"), ("c", "b")] {
            exports.rename(old, new).expect("a name");
        }
        exports.add(export("short")).expect("a name");
        exports.remove("short").expect("an export");
        exports.remove("secret").expect("an export");
        while let Some(event) = watch.take() {
            follow(&mut seen, event);
        }
        assert_eq!(seen, [("a".to_owned(), 0), ("b".to_owned(), 2)].into());
        exports.remove("a").expect("an export");
        let Some(Event::Removed { export, .. }) = watch.wait() else { panic!("not removed") };
        assert!(export.open().is_none());
    }

    /// While the watcher takes no events, the queue does not exceed the number of exports.
    #[test]
    fn exports_that_come_and_go_unseen_are_forgotten() {
        let exports = Exports::new();
        let mut watch = exports.watch();
        exports.add(export("stays")).expect("a name");
        for _ in 0..1000 {
            exports.add(export("goes")).expect("a name");
            exports.rename("goes", "gone").expect("a name");
            exports.remove("gone").expect("an export");
        }
        let mut seen = BTreeMap::new();
        let mut count = 0;
        while let Some(event) = watch.take() {
            follow(&mut seen, event);
            count += 1;
        }
        assert_eq!(seen, [("stays".to_owned(), 0)].into());
        assert_eq!(count, 1);
    }

    #[test]
    fn a_watch_that_waits_can_be_stopped() {
        let exports = Exports::new();
        let mut watch = exports.watch();
        let stopper = watch.stopper();
        let (sender, seen) = std::sync::mpsc::channel();
        let waits = thread::spawn(move || {
            sender.send(watch.wait().map(|event| event.number())).expect("a receiver");
            watch.wait().is_none()
        });
        exports.add(export("a")).expect("a name");
        assert_eq!(seen.recv(), Ok(Some(0)));
        stopper.stop();
        assert!(waits.join().expect("no panic"));
        // No thread waits for a dropped watch.
        exports.add(export("b")).expect("a name");
    }
}

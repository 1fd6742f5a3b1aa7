//! A server that ends and leaves its disks and clients to the next process, in a store of descriptors that
//! outlives it, such as a service manager's.
//!
//! ```text
//! server                                         store                    next process
//! a text that says what is lost if it is killed → lost
//! pauses: no command, no request in progress
//! writes the record and the pool into a file
//! in memory, seals it                           → state
//! listening sockets, clients, other files       → 0, 1, 2, …
//! waits until the store has them                → no lost
//! exits                                                             → makes all of it
//!                                                                     marks the state as taken
//!                                                 empty             ← removes everything; serves
//! ```
//!
//! The names of files there say which process has stored them ([`Passed::parts_of`]). If something
//! fails, the server marks the state as taken before its clients continue, and stores a text that
//! says why. So a process never continues with a state that is older than the answers that clients
//! got, and begins with empty disks only if nothing is stored.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, BufWriter, Read, Write},
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use pagefold_disk::export_disks;
use pagefold_serve::{Handed, Passed, Shared};
use rustix::fs::{SealFlags, fcntl_add_seals, fcntl_get_seals};

use super::{
    give::{COMMANDS, Found, Pause, REQUESTS, lack, lack_of_memory, longest_pause, record},
    kept::Killed,
    pool_file,
    record::Record,
};
use crate::{
    DescriptorStore, Server, TakeOverError,
    ending::SAME_SIGNAL,
    memory_file::{is_free, mark_taken, memory_file},
    server::{Giving, Listened},
};

/// How long requests in progress may take to end after their clients were disconnected.
const CLIENTS: Duration = Duration::from_secs(80);

/// The first bytes of a state.
const MAGIC: [u8; 8] = *b"PFparked";

/// The ends of the names of a state, and of a text that says why there is none; the process comes
/// before them.
const STATE: &str = "state";
const LOST: &str = "lost";

/// The longest such text.
const LOST_BYTES: u64 = 4096;

/// The seals that protect a state from changes.
const SEALS: SealFlags = SealFlags::SEAL.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::WRITE);

const BUFFER_BYTES: usize = 1 << 20;

/// How often, and at which intervals, removing files from the store is retried.
const REMOVALS: u32 = 600;
const REMOVAL_PAUSE: Duration = Duration::from_secs(1);

/// Interval between two checks whether another process is still taking the server over.
const TICK: Duration = Duration::from_millis(50);

/// Begins to leave the server's disks and clients in the store, and to end it. If this fails later,
/// the server ends without leaving them. Returns whether it has begun.
pub(crate) fn leave(server: &Server, why: &str) -> bool {
    let Some(listened) = server.0.listened.get() else { return false };
    let Giving { store, leaving, .. } = &listened.giving;
    let Some(store) = store.as_ref().filter(|store| store.room() > 0) else { return false };
    if listened.ending.has_begun() {
        return false;
    }
    if let Err(begun) = leaving.set(Instant::now()).map_err(|_| leaving.get()) {
        // Another signal ends the server.
        return begun.is_some_and(|begun| begun.elapsed() < SAME_SIGNAL);
    }
    server.0.observer.info(&format!("{why}, leaving disks and clients to the next process"));
    store.ends_within(longest(server));
    let lost = Lost { store: Arc::clone(store), is_kept: pool_file::file(server).is_some() };
    lost.says("the server was killed while it left them");
    let fails = |server: &Server, lost: &Lost, error: &str| {
        lost.forget();
        lost.says(error);
        let what = if lost.is_kept {
            "the clients are disconnected, and the next process finds the disks as after a crash"
        } else {
            "the disks are lost: they cannot be left to the next process"
        };
        server.0.observer.error(&format!("{what}: {error}"));
    };
    let (server_of_thread, lost_of_thread, why) = (server.clone(), lost.clone(), why.to_owned());
    let leave = move || {
        let (server, lost) = (server_of_thread, lost_of_thread);
        let Some(listened) = server.0.listened.get() else { return };
        if let Err(error) = park(&server, listened, &lost) {
            fails(&server, &lost, &error);
            listened.ending.begin(&why);
        }
    };
    let started = thread::Builder::new().name("leave".to_owned()).spawn(leave);
    started.map_err(|error| fails(server, &lost, &format!("a thread cannot be started: {error}"))).is_ok()
}

/// A text in the store that says why the disks are lost, if it is there.
#[derive(Clone)]
struct Lost {
    store: Arc<dyn DescriptorStore>,
    /// Whether the store already has the pool's memory, so that a kill loses nothing.
    is_kept: bool,
}

impl Lost {
    fn says(&self, why: &str) {
        if self.is_kept {
            return;
        }
        // The log has the reason even if the store does not have the text.
        if let Ok(text) = lost(why) {
            let _ = self.store.keep(&name(&LOST), text.as_fd());
        }
    }

    /// Stores no text, because nothing can be lost.
    fn forget(&self) {
        let _ = self.store.remove(&name(&LOST));
    }
}

/// Returns the name under which this process stores something.
fn name(what: &dyn std::fmt::Display) -> String {
    Passed::name_of(std::process::id(), &what.to_string())
}

/// Returns how long leaving everything may take.
fn longest(server: &Server) -> Duration {
    COMMANDS + CLIENTS + longest_pause(server)
}

/// Leaves everything in the store, and ends the server. Fails with the reason; the server must then
/// end without leaving anything.
fn park(server: &Server, listened: &Listened, lost: &Lost) -> Result<(), String> {
    let (store, start) = (&*lost.store, Instant::now());
    let most = longest(server);
    let why_not = || match () {
        () if listened.ending.has_begun() => Some("the server has to end".to_owned()),
        () if start.elapsed() > most => Some(format!("it takes more than {} s", most.as_secs())),
        () => None,
    };
    let Giving { begun, control, transports, .. } = &listened.giving;
    // A process that is taking the server over gets the same signal, or finishes soon.
    while begun.swap(true, Ordering::SeqCst) {
        if listened.server.was_given() {
            lost.forget();
            return Ok(());
        }
        why_not().map_or(Ok(()), Err)?;
        thread::sleep(TICK);
    }
    let commands = control.get().map(|control| control.handle.pause(COMMANDS).ok_or("a command is in progress"));
    let commands = commands.transpose()?;
    if let Some(lack) = lack(server).or_else(|| lack_of_memory(server)) {
        return Err(lack);
    }
    transports.stop();
    let paused = listened.server.pause_without(REQUESTS).map_err(|error| error.to_string())?;
    let (handed, left_out) = what_stays(listened, paused.handed(), store.room())?;
    let found = Found::of(server);
    let pause = Pause { sockets: &handed, transports: &[] };
    let mut record = record(server, listened, &pause, &found)?;
    record.control = record.control.filter(|control| !control.is_passed);
    let pool = &server.0.disks.table().pool;
    let state = State::write(&record, &why_not, |out| {
        export_disks(pool, &found.stored(), out).map_err(|error| error.to_string())
    })?;
    let kept = keep(listened, &handed, store, &state).and_then(|()| match why_not() {
        Some(why) => Err(why),
        None => Ok(()),
    });
    if let Err(why) = kept {
        if let Some(file) = pool_file::file(server) {
            // Until it is stored, the state is the only copy.
            let _ = store.keep(&name(&pool_file::POOL), file.as_fd()).and_then(|()| store.settle());
        }
        // From here on, clients may get other answers.
        state.mark_taken().map_err(|error| format!("{why}; the state cannot be marked: {error}"))?;
        let _ = store.remove(&name(&STATE));
        return Err(why);
    }
    // From here on, the next process serves. It marks the file too.
    let _ = pool_file::file(server).map(mark_taken);
    let observer = &server.0.observer;
    if left_out > 0 {
        observer.warn(&format!("{left_out} clients lose their connections, which cannot be kept"));
    }
    let (clients, ms) = (handed.clients.len() + handed.newcomers.len(), start.elapsed().as_secs_f64() * 1e3);
    observer
        .info(&format!("left {} disks and {clients} clients to the next process in {ms:.1} ms", record.disks.len()));
    if let Some(control) = control.get() {
        control.file.leave();
    }
    if let Some(commands) = commands {
        commands.give_away();
    }
    paused.give_away();
    Ok(())
}

/// Returns the files to leave in a store of at most `most`, without those that the service manager
/// passes again, and the number of clients left out.
fn what_stays(listened: &Listened, handed: &Handed<Shared>, most: usize) -> Result<(Handed<Shared>, usize), String> {
    let Giving { control, belongings, .. } = &listened.giving;
    let listeners = handed.listeners.iter().filter(|(state, _)| !state.is_passed());
    let listeners: Vec<_> = listeners.map(|(state, fd)| (state.clone(), Arc::clone(fd))).collect();
    let control = usize::from(control.get().is_some_and(|control| !control.is_passed));
    // One for the state, and one for the text that says that the disks are lost, until they are
    // stored.
    let needed = 2 + listeners.len() + control + belongings.files.len();
    let room = most.checked_sub(needed);
    let room = room.ok_or_else(|| {
        format!("{needed} descriptors are needed, and the service manager stores {most} (FileDescriptorStoreMax=)")
    })?;
    let clients = handed.clients.iter().take(room).map(|(state, fd)| (state.clone(), Arc::clone(fd)));
    let clients: Vec<_> = clients.collect();
    let newcomers = handed.newcomers.iter().take(room - clients.len());
    let newcomers: Vec<_> = newcomers.map(|(state, fd)| (state.clone(), Arc::clone(fd))).collect();
    let without = handed.clients.len() - clients.len() + handed.newcomers.len() - newcomers.len();
    Ok((Handed { listeners, clients, newcomers, left_out: 0 }, handed.left_out + without))
}

/// Stores everything, beginning with the state, without which the rest is useless.
fn keep(
    listened: &Listened,
    handed: &Handed<Shared>,
    store: &dyn DescriptorStore,
    state: &State,
) -> Result<(), String> {
    let Giving { control, belongings, .. } = &listened.giving;
    let control = control.get().filter(|control| !control.is_passed).map(|control| control.listener.as_fd());
    let sockets = handed.listeners.iter().map(|(_, fd)| fd).chain(handed.clients.iter().map(|(_, fd)| fd));
    let sockets = sockets.chain(handed.newcomers.iter().map(|(_, fd)| fd)).map(|fd| (**fd).as_fd());
    let files = belongings.files.iter().map(|(_, file)| file.as_fd());
    let kept = store.keep(&name(&STATE), state.0.as_fd());
    let kept = kept.and_then(|()| {
        let mut all = sockets.chain(control).chain(files).enumerate();
        all.try_for_each(|(number, file)| store.keep(&name(&number), file))
    });
    // The next process would have the pool three times.
    let others = [LOST, pool_file::POOL];
    let kept = kept.and_then(|()| others.iter().try_for_each(|other| store.remove(&name(other))));
    let kept = kept.and_then(|()| store.settle());
    kept.map_err(|error| format!("the service manager does not keep them: {error}"))
}

/// Removes the files with these names from a store, later if the store does not respond now.
pub(super) fn remove_all(store: &Arc<dyn DescriptorStore>, names: BTreeSet<String>) {
    let mut left = not_removed(&**store, names);
    if left.is_empty() {
        return;
    }
    let store = Arc::clone(store);
    let again = move || {
        for _ in 0..REMOVALS {
            thread::sleep(REMOVAL_PAUSE);
            left = not_removed(&*store, std::mem::take(&mut left));
            if left.is_empty() {
                return;
            }
        }
    };
    // If no thread can be started, they stay there, but the state is marked.
    let _ = thread::Builder::new().name("store".to_owned()).spawn(again);
}

/// Removes these names. If the store does not receive one, stops and returns that name and the
/// following ones.
fn not_removed(store: &dyn DescriptorStore, names: BTreeSet<String>) -> BTreeSet<String> {
    names.into_iter().skip_while(|name| store.remove(name).is_ok()).collect()
}

fn seal(file: &File) -> io::Result<()> {
    Ok(fcntl_add_seals(file, SEALS)?)
}

/// Makes a file that says why nothing was left.
fn lost(why: &str) -> io::Result<File> {
    let mut file = memory_file("pagefold-lost")?;
    file.write_all(why.as_bytes())?;
    seal(&file)?;
    Ok(file)
}

/// A sealed file with the record and the pool of a server.
pub(super) struct State(File);

impl State {
    /// Writes a state; `stream` writes the pool. Gives up when `why_not` has a reason.
    fn write(
        record: &Record,
        why_not: &dyn Fn() -> Option<String>,
        stream: impl FnOnce(&mut dyn Write) -> Result<(), String>,
    ) -> Result<Self, String> {
        let failed = |error: io::Error| format!("cannot write a file in memory: {error}");
        let text = serde_json::to_vec(record).map_err(|error| failed(error.into()))?;
        let file = memory_file("pagefold-state").map_err(failed)?;
        let mut out = BufWriter::with_capacity(BUFFER_BYTES, Unless { file: &file, why_not });
        let header = [MAGIC, (text.len() as u64).to_le_bytes()].concat();
        out.write_all(&header).and_then(|()| out.write_all(&text)).map_err(failed)?;
        let written = stream(&mut out).and_then(|()| out.flush().map_err(failed));
        if let Err(error) = written {
            return Err(why_not().unwrap_or(error));
        }
        drop(out);
        seal(&file).map_err(failed)?;
        Ok(Self(file))
    }

    /// Reads a state, and returns its record. The pool is left to be read. `file` is untrusted.
    pub(super) fn read(file: OwnedFd) -> Result<(Self, Record), TakeOverError> {
        let invalid = |what: &str| TakeOverError::Invalid(format!("the state of the previous server: {what}"));
        let seals = fcntl_get_seals(&file).map_err(|_| invalid("it is not a file in memory"))?;
        if !seals.contains(SEALS) {
            return Err(invalid("it is not sealed"));
        }
        let mut file = File::from(file);
        io::Seek::rewind(&mut file).map_err(TakeOverError::Broken)?;
        let mut header = [0; 16];
        file.read_exact(&mut header).map_err(|_| invalid("it is too short"))?;
        let (magic, len) = header.split_at(8);
        let len_bytes = len.first_chunk().map_or(0, |len| u64::from_le_bytes(*len));
        if magic != MAGIC {
            return Err(invalid("it begins with other bytes"));
        }
        let mut text = Vec::new();
        // The length of the file bounds the memory.
        let read = (&file).take(len_bytes).read_to_end(&mut text).map_err(TakeOverError::Broken)?;
        if (read as u64) < len_bytes {
            return Err(invalid("it is too short"));
        }
        let record = serde_json::from_slice(&text).map_err(|error| invalid(&error.to_string()))?;
        Ok((Self(file), record))
    }

    /// Returns the reader of the pool.
    pub(super) fn pool(&self) -> impl Read + '_ {
        io::BufReader::with_capacity(BUFFER_BYTES, &self.0)
    }

    /// Keeps every other process from continuing with it.
    fn mark_taken(&self) -> io::Result<()> {
        mark_taken(&self.0)
    }
}

/// Writes unless there is a reason not to.
struct Unless<'a> {
    file: &'a File,
    why_not: &'a dyn Fn() -> Option<String>,
}

impl Write for Unless<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match (self.why_not)() {
            Some(why) => Err(io::Error::other(why)),
            None => self.file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a server has left in a store.
pub(super) struct Left {
    pub(super) disks: LeftDisks,
    /// By number.
    pub(super) files: Vec<(usize, OwnedFd)>,
    /// All files with disks of earlier servers, which are to be marked as taken.
    pub(super) memory: Vec<OwnedFd>,
}

/// The disks of a server that has ended.
pub(super) enum LeftDisks {
    /// It has left them.
    State(OwnedFd),
    /// It was killed.
    Pool(Box<Killed>),
}

impl Left {
    /// Finds, among the stored files, what the last server left, or its memory if it was killed.
    ///
    /// # Errors
    /// The server has left nothing, and says why; or its state is missing or damaged; or there are
    /// several.
    pub(super) fn find(stored: Vec<(String, OwnedFd)>) -> Result<Self, TakeOverError> {
        let (mut states, mut pools, mut files, mut memory) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (mut lost, mut was_any) = (None, false);
        for (name, file) in stored {
            let Some((process, what)) = Passed::parts_of(&name) else { continue };
            match what {
                LOST => lost = Some(text_of(file)),
                STATE | pool_file::POOL => {
                    was_any = true;
                    // If a state is not marked, no server has served since it was stored.
                    if is_free(&file) {
                        memory.push(file.try_clone().map_err(TakeOverError::Broken)?);
                        if what == STATE {
                            states.push((process, file));
                        } else {
                            pools.push((name, file));
                        }
                    }
                }
                number => files.extend(number.parse().ok().map(|number: usize| (process, number, file))),
            }
        }
        if states.len() > 1 {
            return Err(TakeOverError::Invalid("there are the states of several servers".to_owned()));
        }
        if let Some((process, state)) = states.pop() {
            let files = files.into_iter().filter(|(of, ..)| *of == process);
            let files = files.map(|(_, number, file)| (number, file)).collect();
            return Ok(Self { disks: LeftDisks::State(state), files, memory });
        }
        // If there are two, the server was killed during a take-over, so both have the same
        // content.
        if let Some((name, file)) = pools.pop() {
            let killed = Killed::open(&file).map_err(|error| match error {
                TakeOverError::Invalid(what) => TakeOverError::Invalid(format!("{name}: {what}")),
                error => error,
            })?;
            return Ok(Self { disks: LeftDisks::Pool(Box::new(killed)), files: Vec::new(), memory });
        }
        Err(match lost {
            Some(why) => TakeOverError::Lost(why),
            None if was_any => TakeOverError::Lost("the process that continued with them has ended".to_owned()),
            None => TakeOverError::Invalid("the state of the previous server is missing".to_owned()),
        })
    }

    /// Returns the files of `count` numbers; `None` for those that are missing.
    pub(super) fn numbered(files: Vec<(usize, OwnedFd)>, count: usize) -> Result<Vec<Option<OwnedFd>>, TakeOverError> {
        let mut all: Vec<Option<OwnedFd>> = std::iter::repeat_with(|| None).take(count).collect();
        for (number, file) in files {
            match all.get_mut(number) {
                Some(place @ None) => *place = Some(file),
                Some(Some(_)) => return Err(TakeOverError::Invalid(format!("there are two files {number}"))),
                None => return Err(TakeOverError::Invalid("there are more files than sockets".to_owned())),
            }
        }
        Ok(all)
    }
}

/// Returns the text that says why disks are lost.
fn text_of(file: OwnedFd) -> String {
    let (mut text, mut why) = (File::from(file), String::new());
    let read = io::Seek::rewind(&mut text).and_then(|()| text.take(LOST_BYTES).read_to_string(&mut why));
    if read.is_ok() { why } else { "for an unknown reason".to_owned() }
}

#[cfg(test)]
mod tests {
    use std::{
        os::fd::BorrowedFd,
        sync::{Mutex, PoisonError},
    };

    use super::*;

    /// A store that does not receive some messages.
    #[derive(Default)]
    struct Deaf {
        removed: Mutex<Vec<String>>,
        fails: Mutex<Vec<bool>>,
    }

    impl DescriptorStore for Deaf {
        fn room(&self) -> usize {
            1
        }

        fn begins_within(&self, _: Duration) {}

        fn ends_within(&self, _: Duration) {}

        fn keep(&self, _: &str, _: BorrowedFd<'_>) -> io::Result<()> {
            Ok(())
        }

        fn settle(&self) -> io::Result<()> {
            Ok(())
        }

        fn remove(&self, name: &str) -> io::Result<()> {
            if self.fails.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or(false) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.removed.lock().unwrap_or_else(PoisonError::into_inner).push(name.to_owned());
            Ok(())
        }
    }

    #[test]
    fn removals_that_the_store_does_not_receive_are_retried() {
        let names = || ["a", "b", "c"].map(str::to_owned);
        let store = Arc::new(Deaf::default());
        // The second message fails, and the first of the next attempt.
        store.fails.lock().expect("no panic").extend([false, true, true, false]);
        remove_all(&(Arc::clone(&store) as Arc<dyn DescriptorStore>), names().into());
        assert_eq!(*store.removed.lock().expect("no panic"), ["a"]);
        let deadline = Instant::now() + Duration::from_secs(60);
        while *store.removed.lock().expect("no panic") != names() {
            assert!(Instant::now() < deadline, "not removed");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

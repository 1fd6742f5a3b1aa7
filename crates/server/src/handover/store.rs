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
//! Names say which process has stored them ([`Passed::parts_of`]). If something fails, the server
//! marks the state as taken before its clients go on, and the text says why: a process continues only with
//! a state that is as new as what clients were answered, and begins with empty disks only if nothing is stored.

use std::{
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
    give::{COMMANDS, Found, REQUESTS, lack, lack_of_memory, longest_pause, record},
    kept::{self, Killed},
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

/// What follows the process in the names of a state, and of a text that says why there is none.
const STATE: &str = "state";
const LOST: &str = "lost";

/// The longest such text.
const LOST_BYTES: u64 = 4096;

/// What keeps a state from being changed.
const SEALS: SealFlags = SealFlags::SEAL.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::WRITE);

const BUFFER_BYTES: usize = 1 << 20;

/// Pause between two looks whether another process still takes the server over.
const TICK: Duration = Duration::from_millis(50);

/// Begins to end the server, whose disks and clients stay in the store. It ends without that if something
/// fails. Returns whether it has begun.
pub(crate) fn leave(server: &Server, why: &str) -> bool {
    let Some(listened) = server.0.listened.get() else { return false };
    let Giving { store, leaving, .. } = &listened.giving;
    let Some(store) = store.as_ref().filter(|store| store.room() > 0) else { return false };
    if listened.ending.has_begun() {
        return false;
    }
    if let Err(begun) = leaving.set(Instant::now()).map_err(|_| leaving.get()) {
        // Another signal ends it.
        return begun.is_some_and(|begun| begun.elapsed() < SAME_SIGNAL);
    }
    server.0.observer.info(&format!("{why}, leaving disks and clients to the next process"));
    let (server, store, why) = (server.clone(), Arc::clone(store), why.to_owned());
    let leave = move || {
        let Some(listened) = server.0.listened.get() else { return };
        store.ends_within(longest(&server));
        if let Err(lost) = park(&server, listened, &*store) {
            let what = match kept::file(&server) {
                None => "the disks are lost: they cannot be left to the next process",
                Some(_) => "the clients are disconnected, and the next process finds the disks as after a crash",
            };
            server.0.observer.error(&format!("{what}: {lost}"));
            listened.ending.begin(&why);
        }
    };
    thread::Builder::new().name("leave".to_owned()).spawn(leave).is_ok()
}

/// Returns how long it may take to leave everything.
fn longest(server: &Server) -> Duration {
    COMMANDS + CLIENTS + longest_pause(server)
}

/// Leaves everything in the store, and ends the server. Returns why not: it then has to end without.
fn park(server: &Server, listened: &Listened, store: &dyn DescriptorStore) -> Result<(), String> {
    let start = Instant::now();
    let most = longest(server);
    let why_not = || match () {
        () if listened.ending.has_begun() => Some("the server has to end".to_owned()),
        () if start.elapsed() > most => Some(format!("it takes more than {} s", most.as_secs())),
        () => None,
    };
    let Giving { begun, control, transports, .. } = &listened.giving;
    // A process that takes the server over gets the same signal, or is done soon.
    while begun.swap(true, Ordering::SeqCst) {
        if listened.server.was_given() {
            return Ok(());
        }
        why_not().map_or(Ok(()), Err)?;
        thread::sleep(TICK);
    }
    let name = |what: &dyn std::fmt::Display| Passed::name_of(std::process::id(), &what.to_string());
    let pool_file = kept::file(server);
    let says = |why: &str| {
        // If it is not kept, or not yet, the log still says it. The memory of the pool is kept already.
        if pool_file.is_none()
            && let Ok(text) = lost(why)
        {
            let _ = store.keep(&name(&LOST), text.as_fd());
        }
    };
    says("the server was killed while it left them");
    let parked = (|| {
        let commands = control.get().map(|control| control.handle.pause(COMMANDS).ok_or("a command is in progress"));
        let commands = commands.transpose()?;
        if let Some(lack) = lack(server).or_else(|| lack_of_memory(server)) {
            return Err(lack);
        }
        transports.stop();
        let paused = listened.server.pause_without(REQUESTS).map_err(|error| error.to_string())?;
        let (handed, left_out) = what_stays(listened, paused.handed(), store.room())?;
        let found = Found::of(server);
        let mut record = record(server, listened, &handed, &found)?;
        record.control = record.control.filter(|control| !control.is_passed);
        let pool = &server.0.disks.table().pool;
        let state = State::write(&record, &why_not, |out| {
            export_disks(pool, &found.stored(), out).map_err(|error| error.to_string())
        })?;
        let kept = keep(listened, &handed, store, &state, &name).and_then(|()| match why_not() {
            Some(why) => Err(why),
            None => Ok(()),
        });
        if let Err(why) = kept {
            // From here on, clients may get other answers.
            let _ = store.remove(&name(&STATE));
            state.mark_taken().map_err(|error| format!("{why}; the state cannot be marked: {error}"))?;
            if let Some(file) = pool_file {
                let _ = store.keep(&name(&kept::POOL), file.as_fd());
            }
            return Err(why);
        }
        // From here on, the next process serves. It marks the file too.
        let _ = pool_file.map(mark_taken);
        let observer = &server.0.observer;
        if left_out > 0 {
            observer.warn(&format!("{left_out} clients lose their connections, which cannot be kept"));
        }
        let (clients, ms) = (handed.clients.len() + handed.newcomers.len(), start.elapsed().as_secs_f64() * 1e3);
        observer.info(&format!(
            "left {} disks and {clients} clients to the next process in {ms:.1} ms",
            record.disks.len()
        ));
        if let Some(control) = control.get() {
            control.file.leave();
        }
        if let Some(commands) = commands {
            commands.give_away();
        }
        paused.give_away();
        Ok(())
    })();
    parked.inspect_err(|why: &String| {
        let _ = store.remove(&name(&LOST));
        says(why);
    })
}

/// Returns what is left in a store of at most `most` files: not what the service manager passes again.
/// Also returns how many clients are left out.
fn what_stays(listened: &Listened, handed: &Handed<Shared>, most: usize) -> Result<(Handed<Shared>, usize), String> {
    let Giving { control, belongings, .. } = &listened.giving;
    let listeners = handed.listeners.iter().filter(|(state, _)| !state.is_passed());
    let listeners: Vec<_> = listeners.map(|(state, fd)| (state.clone(), Arc::clone(fd))).collect();
    let control = usize::from(control.get().is_some_and(|control| !control.is_passed));
    // The state, and the text that says that it is lost, until it is not.
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

/// Stores everything: the state first, without which the rest is of no use.
fn keep(
    listened: &Listened,
    handed: &Handed<Shared>,
    store: &dyn DescriptorStore,
    state: &State,
    name: &dyn Fn(&dyn std::fmt::Display) -> String,
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
    let others = [LOST, kept::POOL];
    let kept = kept.and_then(|()| others.iter().try_for_each(|other| store.remove(&name(other))));
    let kept = kept.and_then(|()| store.settle());
    kept.map_err(|error| format!("the service manager does not keep them: {error}"))
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

    /// Reads a state, and returns its record. What is left to be read is the pool. `file` is untrusted.
    pub(super) fn read(file: OwnedFd) -> Result<(Self, Record), TakeOverError> {
        let invalid = |what: &str| TakeOverError::Invalid(format!("the state of the server before: {what}"));
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

    /// Returns what reads the pool.
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
    /// By their numbers.
    pub(super) files: Vec<(usize, OwnedFd)>,
    /// Everything with disks of servers before, to be marked.
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
    /// Finds what the last server has left among what is stored, or what it had when it was killed.
    ///
    /// # Errors
    /// It says why it has left nothing, the state is missing or damaged, or there are several.
    pub(super) fn find(stored: Vec<(String, OwnedFd)>) -> Result<Self, TakeOverError> {
        let (mut states, mut pools, mut files, mut memory) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (mut lost, mut was_any) = (None, false);
        for (name, file) in stored {
            let Some((process, what)) = Passed::parts_of(&name) else { continue };
            match what {
                LOST => lost = Some(text_of(file)),
                STATE | kept::POOL => {
                    was_any = true;
                    // No server has served after a state was stored that is not marked.
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
        // If there are several, a process has not gone on with one of them yet, so both have the same.
        for (name, file) in pools {
            let opened = Killed::open(&file).map_err(|error| match error {
                TakeOverError::Invalid(what) => TakeOverError::Invalid(format!("{name}: {what}")),
                error => error,
            })?;
            if let Some(killed) = opened {
                return Ok(Self { disks: LeftDisks::Pool(Box::new(killed)), files: Vec::new(), memory });
            }
        }
        Err(match lost {
            Some(why) => TakeOverError::Lost(why),
            None if was_any => TakeOverError::Lost("the process that continued with them has ended".to_owned()),
            None => TakeOverError::Invalid("the state of the server before is missing".to_owned()),
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

//! Continues a server whose process was killed. Its pool is in a file in memory, which is in a
//! store of descriptors while the server runs:
//!
//! ```text
//! server                                         store                    next process
//! makes the pool in a file                      → pool
//! records the list of disks in the file
//! serves; notes each change before it answers
//! is killed                                                         → reads the pool (`Salvage`)
//!                                                                     marks the file as taken
//!                                                another pool     ←   removes this one; serves
//! ```
//!
//! Disks have what clients had written, as after `SIGKILL` of any program that writes to files. Connections
//! are lost. A server that leaves its disks or is taken over marks its file when the next process's own file is
//! stored, and before that process serves.

use std::{
    fs::{self, File},
    io::{self, BufReader, BufWriter, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::PathBuf,
    thread,
    time::Duration,
};

use pagefold_disk::{ImportError, ImportedDisks, KeptDisk, Pool, PoolConfig, Salvage, kept_disks};
use pagefold_serve::{Handed, Permissions};
use serde::{Deserialize, Serialize};

use super::{
    give::{Found, Pause, record},
    pool_file::{file, name},
    record::{Kind, Record},
};
use crate::{
    Observer, Server, TakeOverError,
    machine::Memory,
    memory_file::{mark_free, mark_taken},
    server::Listened,
    socket::ServedSocket,
};

/// How often writing a note is tried, and the pause between two attempts.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(10);

/// How long after taking a server over a process stores its file, if that server did not. Earlier,
/// the process may not know the service manager, or the service manager may not know that the
/// process belongs to the service.
const PAUSES: [Duration; 3] = [Duration::from_millis(20), Duration::from_millis(200), Duration::from_secs(2)];

/// The note about the server in the pool's file.
#[derive(Serialize, Deserialize)]
struct Note {
    /// As in a handover, without sockets and clients.
    record: Record,
    /// In the order of a stream.
    disks: Vec<DiskNote>,
    /// Disks with sockets of their own, and the paths.
    sockets: Vec<(String, PathBuf)>,
}

#[derive(Serialize, Deserialize)]
struct DiskNote {
    key: u64,
    slots: u64,
    limit_bytes: u64,
    is_over: bool,
    note: Vec<u8>,
}

/// If the pool is in a file, notes there which disks exist now. Fails with the reason.
pub(crate) fn note(server: &Server) -> Result<(), String> {
    let Some(listened) = server.0.listened.get().filter(|_| file(server).is_some()) else { return Ok(()) };
    let mut noted = write_note(server, listened);
    for _ in 1..ATTEMPTS {
        if noted.is_ok() {
            break;
        }
        // A disk is missing because another command is dropping it.
        thread::sleep(PAUSE);
        noted = write_note(server, listened);
    }
    noted
}

fn write_note(server: &Server, listened: &Listened) -> Result<(), String> {
    let table = server.0.disks.table();
    // Notes are written one after the other, so that the last one has all changes.
    let _turn = table.noting();
    let found = Found::of(server);
    let mut record = record(server, listened, &Pause { sockets: &Handed::default(), transports: &[] }, &found)?;
    (record.control, record.files) = (None, Vec::new());
    let kept = kept_disks(&found.stored()).ok_or("a disk is not in the file")?;
    let disks = kept.into_iter().map(|KeptDisk { key, slots, limit_bytes, is_over, note, .. }| DiskNote {
        key,
        slots,
        limit_bytes,
        is_over,
        note,
    });
    let note = Note { record, disks: disks.collect(), sockets: found.sockets() };
    let text = serde_json::to_vec(&note).map_err(|error| error.to_string())?;
    table.pool.keep_note(&text).map_err(|error| error.to_string())
}

/// Notes which disks exist, and stores the pool's file, before clients are served. Fails with the
/// reason if the note cannot be written.
pub(crate) fn begin(server: &Server) -> Result<(), String> {
    note(server)?;
    let Some(listened) = server.0.listened.get() else { return Ok(()) };
    let (Some(file), Some(store)) = (file(server), &listened.giving.store) else { return Ok(()) };
    let kept = store.keep(&name(std::process::id()), file.as_fd()).and_then(|()| store.settle());
    kept.unwrap_or_else(|error| warn_of_loss(&server.0.observer, &error));
    Ok(())
}

/// Marks the pool's file as free, if there is one: the previous process no longer continues.
pub(crate) fn free(server: &Server) {
    if let Some(Err(error)) = file(server).map(mark_free) {
        warn_of_loss(&server.0.observer, &error);
    }
}

/// Stores the pool's file, if there is one, in place of that of the process `before`, which this
/// process has taken over. The file already has its note.
pub(crate) fn replace(server: &Server, before: u32) {
    let Some(listened) = server.0.listened.get() else { return };
    let Some(store) = listened.giving.store.clone() else { return };
    let (own, observer) = (name(std::process::id()), server.0.observer.clone());
    let keeps = file(server).map(File::try_clone).transpose().and_then(|file| {
        let keep = move || {
            let mut kept = Ok(());
            for pause in PAUSES {
                thread::sleep(pause);
                // A manager stores one copy.
                kept = file.as_ref().map_or(Ok(()), |file| store.keep(&own, file.as_fd()));
                kept = kept.and_then(|()| store.remove(&name(before)));
            }
            if let (Err(error), Some(_)) = (kept, &file) {
                warn_of_loss(&observer, &error);
            }
        };
        thread::Builder::new().name("keep".to_owned()).spawn(keep)
    });
    if let (Err(error), Some(_)) = (keeps, file(server)) {
        warn_of_loss(&server.0.observer, &error);
    }
}

fn warn_of_loss(observer: &Observer, error: &io::Error) {
    observer.warn(&format!("if the server is killed, its disks are lost: its memory is not stored: {error}"));
}

/// Removes the pool's file from the store: the disks end with the server.
pub(crate) fn discard(server: &Server) {
    let Some(listened) = server.0.listened.get() else { return };
    let (Some(file), Some(store)) = (file(server), &listened.giving.store) else { return };
    let _ = mark_taken(file);
    let _ = store.remove(&name(std::process::id())).and_then(|()| store.settle());
}

/// The file of a pool whose process was killed.
pub(super) struct Killed {
    salvage: Salvage,
    note: Note,
    /// The memory that reading it needs: as much again, and the reader's notes.
    memory_bytes: u64,
}

impl Killed {
    /// Opens the file of a pool, which is untrusted.
    pub(super) fn open(file: &OwnedFd) -> Result<Self, TakeOverError> {
        let file = File::from(file.try_clone().map_err(TakeOverError::Broken)?);
        let stored_bytes = file.metadata().map_err(TakeOverError::Broken)?.blocks() * 512;
        let salvage = Salvage::open(file).map_err(invalid)?;
        let memory_bytes = stored_bytes + salvage.work_bytes().map_err(TakeOverError::Broken)?;
        let note = salvage.note().map_err(invalid)?.ok_or_else(|| invalid("it has no note of its disks"))?;
        let note: Note = serde_json::from_slice(&note).map_err(invalid)?;
        Ok(Self { salvage, note, memory_bytes })
    }

    pub(super) fn record(&self) -> &Record {
        &self.note.record
    }

    pub(super) fn into_record(self) -> Record {
        self.note.record
    }

    /// Restores a pool from it.
    pub(super) fn import(
        &self,
        pool: PoolConfig,
        made: &mut dyn FnMut(&Pool) -> io::Result<()>,
    ) -> Result<ImportedDisks, TakeOverError> {
        if let Some(memory) = Memory::available().filter(|memory| memory.bytes < self.memory_bytes) {
            let needed = pagefold_size::show(self.memory_bytes);
            let what = format!("to read the memory of the previous server takes {needed}, and less is left: {memory}");
            return Err(TakeOverError::Cannot(what));
        }
        let disks = self.note.disks.iter().map(|disk| {
            let DiskNote { key, slots, limit_bytes, is_over, ref note } = *disk;
            KeptDisk::new(key, slots, limit_bytes, is_over, note.clone())
        });
        let disks: Vec<_> = disks.collect();
        let (reader, writer) = io::pipe().map_err(TakeOverError::Broken)?;
        thread::scope(|scope| {
            let write = || {
                let mut out = BufWriter::with_capacity(1 << 20, writer);
                let beyond = self.salvage.write(&disks, &mut out).map_err(invalid)?;
                out.flush().map_err(TakeOverError::Broken).map(|()| beyond)
            };
            let writes = thread::Builder::new().name("salvage".to_owned()).spawn_scoped(scope, write);
            let writes = writes.map_err(TakeOverError::Broken)?;
            let mut reader = BufReader::with_capacity(1 << 20, reader);
            let imported = ImportedDisks::read(pool, &mut reader, made);
            drop(reader);
            let written = writes.join().unwrap_or_else(|_| Err(invalid("its reader failed")));
            match (imported, written) {
                (Ok(imported), Ok(beyond)) => {
                    let cut = beyond.into_iter().try_for_each(|number| imported.cut(number));
                    cut.map(|()| imported).map_err(|error| TakeOverError::Cannot(error.to_string()))
                }
                // The stream ends early because something is wrong with the file.
                (Err(ImportError::Invalid { .. } | ImportError::Read(_)) | Ok(_), Err(error)) => Err(error),
                (Err(error), _) => Err(TakeOverError::Cannot(error.to_string())),
            }
        })
    }

    /// Completes a server that was restored from it: removes disks that were being dropped, and
    /// opens the sockets of single disks.
    pub(super) fn complete(&self, server: &Server) -> Result<(), TakeOverError> {
        let disks = self.note.record.disks.iter().filter(|disk| disk.kind != Kind::Base);
        let kept = self.note.disks.iter().skip(self.note.record.bases.len());
        for (disk, DiskNote { key, slots, .. }) in disks.zip(kept) {
            let kept = KeptDisk::new(*key, *slots, 0, false, Vec::new());
            // A snapshot is dropped with its disk.
            if !self.salvage.has(&kept).map_err(invalid)? && server.0.disks.find(&disk.name).is_ok() {
                let removed = server.0.disks.remove(&disk.name, true, true);
                // A disk without a base would be empty.
                removed.map_err(|failure| TakeOverError::Cannot(failure.to_string()))?;
            }
        }
        for (name, path) in &self.note.sockets {
            // The socket's file has outlived the process.
            let mut permissions = Permissions::default();
            if let Ok(found) = fs::symlink_metadata(path) {
                permissions.mode = found.mode() & 0o777;
                permissions.group = Some(found.gid());
            }
            let again = ServedSocket::again(path.clone(), permissions);
            if let Err(failure) = server.0.disks.table().adopt_socket(name, again) {
                let path = path.display();
                server.0.observer.warn(&format!("disk '{name}' has lost its own socket {path}: {failure}"));
            }
        }
        Ok(())
    }
}

fn invalid(error: impl std::fmt::Display) -> TakeOverError {
    TakeOverError::Invalid(error.to_string())
}

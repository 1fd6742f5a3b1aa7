//! Operations on a server's disks, for clients of the control socket and for the program itself.

use std::{os::fd::OwnedFd, path::Path, process, time::Duration};

use pagefold_control::{
    Add, AddBase, Batch, BindSpare, Changes, Code, Compacted, DeviceEnding, DeviceFault, DiskRecord, DiskStat, Dropped,
    Failure, Fork, FrozenRuns, HandingOver, Held, Instant, Limited, LimitedConnections, Manage, NewDevice, Quota,
    Renamed, Resize, Resized, ServerStat, SpareRecord, Stopping, check_limit, check_new_name, check_snapshot,
};

use crate::{Address, BaseFile, Devices, Server, disk::done_figures, handover, server::Listened};

fn failed(why: String) -> Failure {
    Failure::new(Code::Failed, why)
}

impl Server {
    /// Notes a command's change in the pool's file, and returns the change.
    fn noted<T>(&self, changed: T) -> Result<T, Failure> {
        handover::note(self).map(|()| changed).map_err(|why| {
            let what =
                format!("the command is done, but if the server is killed, the next one will not know of it: {why}");
            self.0.observer.warn(&what);
            failed(what)
        })
    }

    /// Records the size that a disk is about to get.
    fn note_first(&self) -> Result<(), Failure> {
        handover::note(self).map_err(|why| failed(format!("the change cannot be recorded: {why}")))
    }

    fn devices(&self) -> Result<&dyn Devices, Failure> {
        let devices = self.0.listened.get().and_then(|listened| listened.devices.get());
        devices.ok_or_else(|| failed("this server serves no block devices".to_owned()))
    }
}

impl Manage for Server {
    fn list(&self, batch: Batch<'_>) -> Vec<DiskRecord> {
        if batch.after.is_none() {
            self.0.observer.debug("control: list");
        }
        self.0.disks.list(batch).into_iter().map(|found| self.record(found)).collect()
    }

    fn server(&self) -> ServerStat {
        self.0.observer.debug("control: stat");
        let mut total = self.0.disks.total();
        if let Some(listened) = self.0.listened.get() {
            let (server, figures) = (&listened.server, &mut total.figures);
            figures.insert("connections".to_owned(), server.connections().into());
            figures.insert("connections_limit".to_owned(), server.connections_limit().into());
        }
        total.figures.extend(done_figures(&self.0.disks.done()));
        ServerStat {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: process::id(),
            uptime_seconds: self.0.listened.get().map_or(0, |listened| listened.start.elapsed().as_secs()),
            codec: total.codec,
            disks: total.disks,
            limit_bytes: total.limit_bytes,
            files: self.0.files.clone(),
            figures: total.figures,
        }
    }

    fn stats(&self, batch: Batch<'_>) -> Vec<DiskStat> {
        self.0.disks.stats(batch)
    }

    fn stat(&self, name: &str) -> Result<DiskStat, Failure> {
        self.0.disks.stat(name)
    }

    fn add(&self, disk: &Add) -> Result<DiskRecord, Failure> {
        disk.check()?;
        let found = self.0.disks.add(disk)?;
        self.log_disk(&found);
        self.noted(self.record(found))
    }

    fn add_base(&self, base: &AddBase) -> Result<DiskRecord, Failure> {
        base.check()?;
        self.serve_on(&BaseFile::try_from(base)?, base.socket.as_ref(), base.quota).and_then(|added| self.noted(added))
    }

    fn fork(&self, fork: &Fork) -> Result<Vec<DiskRecord>, Failure> {
        fork.check()?;
        let found = self.0.disks.fork(fork)?;
        self.0.events.forks.add(found.len() as u64);
        found.iter().for_each(|found| self.log_disk(found));
        self.noted(found.into_iter().map(|found| self.record(found)).collect())
    }

    fn snapshot(&self, name: &str, snapshot: &str) -> Result<DiskRecord, Failure> {
        check_snapshot(name, snapshot)?;
        let found = self.0.disks.snapshot(name, snapshot)?;
        self.0.events.snapshots.add(1);
        self.log_disk(&found);
        self.noted(self.record(found))
    }

    fn rollback(&self, name: &str, snapshot: &str, force: bool) -> Result<DiskRecord, Failure> {
        let found = self.0.disks.rollback(name, snapshot, force, &|| self.note_first())?;
        self.0.events.rollbacks.add(1);
        self.0.observer.info(&format!("rolled disk '{name}' back to its snapshot '{snapshot}'"));
        self.noted(self.record(found))
    }

    fn changes(&self, name: &str, offset: u64) -> Result<Changes, Failure> {
        self.0.observer.debug("control: changes");
        self.0.disks.changes(name, offset)
    }

    fn drop(&self, name: &str, snapshots: bool, force: bool) -> Result<Dropped, Failure> {
        let (found, file_users) = self.0.disks.remove(name, snapshots, force)?;
        let with = match found.snapshots {
            0 => String::new(),
            count => format!(" and its snapshots, {count}"),
        };
        self.0.observer.info(&format!("dropped disk '{name}'{with}"));
        self.noted(Dropped { disk: self.record(found), file_users })
    }

    fn resize(&self, resize: &Resize) -> Result<Resized, Failure> {
        resize.check()?;
        let before_bytes = self.0.disks.resize(resize, &|| self.note_first())?;
        let Resize { name, size_bytes, .. } = resize;
        self.0.observer.info(&format!("resized disk '{name}' to {}", pagefold_size::written(*size_bytes)));
        self.noted(Resized { name: name.clone(), before_bytes, size_bytes: *size_bytes })
    }

    fn rename(&self, name: &str, to: &str) -> Result<Renamed, Failure> {
        check_new_name(name, to)?;
        let socket = self.0.disks.rename(name, to)?;
        self.0.observer.info(&format!("renamed disk '{name}' to '{to}'"));
        self.noted(Renamed { before: name.to_owned(), name: to.to_owned(), uris: self.uris(to, socket.as_deref()) })
    }

    fn reset(&self, name: &str, force: bool) -> Result<DiskRecord, Failure> {
        let found = self.0.disks.reset(name, force)?;
        self.0.observer.info(&format!("reset disk '{name}'"));
        self.noted(self.record(found))
    }

    fn limit(&self, name: Option<&str>, limit_bytes: Option<u64>) -> Result<Limited, Failure> {
        if name.is_some() {
            check_limit(limit_bytes)?;
        }
        let (before_bytes, spent_bytes) = self.0.disks.set_limit(name, limit_bytes)?;
        let what = name.map_or_else(|| "the server".to_owned(), |name| format!("disk '{name}'"));
        let limit = limit_bytes.map_or_else(|| "none".to_owned(), pagefold_size::written);
        self.0.observer.info(&format!("set the limit of {what} to {limit}"));
        let warnings = if name.is_none() { self.limit_warnings(limit_bytes) } else { Vec::new() };
        self.noted(Limited { name: name.map(str::to_owned), before_bytes, limit_bytes, spent_bytes, warnings })
    }

    fn limit_connections(&self, connections: u64) -> Result<LimitedConnections, Failure> {
        let count = usize::try_from(connections).unwrap_or(usize::MAX);
        if count == 0 {
            return Err(Failure::new(Code::InvalidRequest, "a server has at least 1 connection"));
        }
        let Some(listened) = self.0.listened.get() else {
            return Err(Failure::new(Code::Failed, "the server does not listen yet"));
        };
        let refused = self.0.when_connections.as_ref().and_then(|prepare| prepare(count));
        self.0.disks.client_memory().set_connections(count);
        let before = listened.server.set_connections(count) as u64;
        self.0.observer.info(&format!("set the maximum number of connections to {connections}"));
        let warnings: Vec<_> = refused.into_iter().chain(self.0.disks.client_memory().warning()).collect();
        warnings.iter().for_each(|warning| self.0.observer.warn(warning));
        self.noted(LimitedConnections { before, connections, warnings })
    }

    fn quota(&self, quota: &Quota) -> Result<DiskRecord, Failure> {
        quota.check()?;
        let name = &quota.name;
        let found = self.0.disks.set_quota(name, quota.of_disk())?;
        self.0.observer.info(&format!("set the quota of disk '{name}' to {}", quota.of_disk()));
        self.noted(self.record(found))
    }

    fn compact(&self, time: Duration) -> Result<Compacted, Failure> {
        self.0.observer.debug("control: compact");
        let has_begun = || self.0.listened.get().is_some_and(|listened| listened.ending.has_begun());
        let compacted = self.0.disks.compact(time, &|| !has_begun())?;
        self.0.events.compactions.add(1);
        self.0.events.compacted_bytes.add(compacted.before_bytes.saturating_sub(compacted.after_bytes));
        Ok(compacted)
    }

    fn freeze(&self, name: &str) -> Result<(Instant, Held), Failure> {
        let (mut instant, held) = self.0.disks.freeze(name)?;
        self.0.events.freezes.add(1);
        self.0.observer.debug(&format!("froze disk '{name}' as export '{}'", instant.export));
        for address in self.addresses() {
            match address {
                Address::Unix(path) => instant.sockets.extend(path.to_str().map(str::to_owned)),
                // Readers of instants do not use TLS.
                Address::Tcp { address, tls: false, .. } => instant.addresses.push(address.to_string()),
                Address::Tcp { .. } | Address::Vsock { .. } => {}
            }
        }
        Ok((instant, Box::new(held)))
    }

    fn frozen_runs(&self, export: &str, offset_bytes: u64) -> Result<FrozenRuns, Failure> {
        self.0.disks.frozen_runs(export, offset_bytes)
    }

    fn serve_device(&self, device: &NewDevice, file: OwnedFd) -> Result<DiskRecord, Failure> {
        let NewDevice { name, number, .. } = device;
        let found = self.0.disks.find(name)?;
        let export = self.0.disks.exports().get(name).ok_or_else(|| Failure::no_such_disk(name))?;
        self.devices()?.serve(&export, device, file).map_err(failed)?;
        self.0.observer.info(&format!("attached disk '{name}' as device {number} of the kernel's ublk driver"));
        Ok(self.record(found))
    }

    fn spare(&self, size_bytes: u64) -> Result<SpareRecord, Failure> {
        Ok(SpareRecord { export: self.devices()?.spare(size_bytes).map_err(failed)? })
    }

    fn bind_spare(&self, bind: &BindSpare) -> Result<DiskRecord, Failure> {
        let BindSpare { name, device, .. } = bind;
        let found = self.0.disks.find(name)?;
        let export = self.0.disks.exports().get(name).ok_or_else(|| Failure::no_such_disk(name))?;
        self.devices()?.bind(&export, bind).map_err(failed)?;
        self.0.observer.info(&format!("attached disk '{name}' as {device}"));
        Ok(self.record(found))
    }

    fn device_fault(&self, why: Option<String>) -> DeviceFault {
        if let Some(why) = &why {
            self.0.observer.warn(&format!("creating no more ublk devices: {why}"));
        }
        DeviceFault { why: self.0.listened.get().and_then(|listened| listened.devices.fault(why)) }
    }

    fn end_device(&self, device: &str, pid: Option<u32>) -> DeviceEnding {
        let path = Path::new(device);
        let is_device = self.devices().is_ok_and(|devices| devices.end(path));
        let listened = self.0.listened.get();
        let is_file = listened.is_some_and(|listened| listened.files.end(path));
        let closed = pid.and_then(|pid| Some(listened?.server.disconnect(pid))).unwrap_or(0);
        let what = if is_file { "the device over " } else { "" };
        self.0.observer.info(&format!("{what}{device} is being detached"));
        DeviceEnding { served: is_device || is_file || closed > 0 }
    }

    fn take_over(&self, socket: OwnedFd, ahead: bool) -> Result<HandingOver, Failure> {
        handover::begin(self, socket, ahead)
    }

    fn stop(&self, force: bool) -> Stopping {
        let why = "a client asked for it";
        match self.0.listened.get() {
            Some(Listened { ending, .. }) if force => ending.force(why),
            Some(Listened { ending, .. }) => ending.begin(why),
            None => {}
        }
        Stopping { waits_for: self.0.disks.busy() }
    }
}

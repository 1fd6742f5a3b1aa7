//! A server's metrics. `docs/metrics.md` describes each.
//!
//! The list of disks is read in parts, so that a server with many disks is not delayed for long;
//! all other values are read directly. All samples of a family are adjacent, as the formats demand.

use std::time::UNIX_EPOCH;

use pagefold_control::{Batch, DiskKind};
use pagefold_disk::PoolStats;
use pagefold_executor::Operation;
use pagefold_metrics::{Kind, Source, Text};

use crate::{Server, disk::Measured, process::anonymous_bytes, server::Listened};

/// Disks with rows of their own: the first by name.
const MOST_DISKS: usize = 2000;
/// Disks with longer names have no rows, which bounds the length of rows.
const MOST_NAME_BYTES: usize = 128;
/// The number of disks that are read while the list is locked.
const BATCH: usize = 256;

impl Source for Server {
    fn write(&self, text: &mut Text) {
        self.write_server(text);
        self.write_memory(text);
        self.write_bases(text);
        self.write_requests(text);
        let (disks, all) = self.measured();
        text.family("pagefold_disks_without_rows", Kind::Gauge, "Disks without rows of their own.")
            // Disks may have been dropped since.
            .value(&[], all.saturating_sub(disks.len() as u64));
        write_disks(text, &disks);
    }
}

fn gauge(text: &mut Text, name: &str, help: &str, value: u64) {
    text.family(name, Kind::Gauge, help).value(&[], value);
}

fn counter(text: &mut Text, name: &str, help: &str, value: u64) {
    text.family(name, Kind::Counter, help).value(&[], value);
}

fn kind_name(kind: DiskKind) -> &'static str {
    match kind {
        DiskKind::Snapshot => "snapshot",
        DiskKind::Base => "base",
        _ => "ram",
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

impl Server {
    /// Returns the disks that have rows, and the number of all.
    fn measured(&self) -> (Vec<Measured>, u64) {
        let (mut disks, mut last) = (Vec::new(), None::<String>);
        while disks.len() < MOST_DISKS {
            let batch =
                self.0.disks.measured(Batch { after: last.as_deref(), most: BATCH.min(MOST_DISKS - disks.len()) });
            let Some(end) = batch.last() else { break };
            last = Some(end.name.clone());
            disks.extend(batch.into_iter().filter(|disk| disk.name.len() <= MOST_NAME_BYTES));
        }
        (disks, self.0.disks.kinds().iter().sum())
    }

    fn write_server(&self, text: &mut Text) {
        let core = &self.0;
        let (disks, codec) = (core.disks.kinds(), core.disks.codec());
        text.family("pagefold_build", Kind::Info, "The program's version, and the codec of its disks.")
            .info(&[("version", env!("CARGO_PKG_VERSION")), ("codec", &codec)]);
        if let Some(Listened { server, start_time, .. }) = core.listened.get() {
            let since = start_time.duration_since(UNIX_EPOCH).unwrap_or_default();
            text.family("pagefold_start_time_seconds", Kind::Gauge, "When the server began to listen, in Unix time.")
                .value(&[], since.as_secs_f64());
            gauge(
                text,
                "pagefold_connections",
                "Connections of NBD clients and vhost-user frontends.",
                server.connections() as u64,
            );
            gauge(
                text,
                "pagefold_connections_limit",
                "How many connections are allowed.",
                server.connections_limit() as u64,
            );
            let mut family =
                text.family("pagefold_refused", Kind::Counter, "Clients that were refused or had to wait.");
            server.refused().iter().for_each(|&(reason, count)| family.value(&[("reason", reason)], count));
        }
        let mut family = text.family("pagefold_disks", Kind::Gauge, "Disks.");
        for (kind, count) in ["ram", "snapshot", "base"].into_iter().zip(disks) {
            family.value(&[("kind", kind)], count);
        }
        let events = &core.events;
        for (name, help, count) in [
            ("pagefold_clients", "NBD clients that have chosen a disk.", &events.clients),
            ("pagefold_forks", "Forks that were made.", &events.forks),
            ("pagefold_snapshots", "Snapshots that were made.", &events.snapshots),
            ("pagefold_rollbacks", "Disks that were rolled back.", &events.rollbacks),
            ("pagefold_freezes", "Instants of disks that were held for 'freeze'.", &events.freezes),
            ("pagefold_compactions", "Compactions that clients asked for.", &events.compactions),
            ("pagefold_compacted_bytes", "Memory that such compactions have freed.", &events.compacted_bytes),
        ] {
            counter(text, name, help, count.get());
        }
    }

    fn write_memory(&self, text: &mut Text) {
        let disks = &self.0.disks;
        let PoolStats {
            orig_data_size,
            compr_data_size,
            mem_used_total,
            mem_used_max,
            same_pages,
            huge_pages,
            shared_pages,
            shared_saved_bytes,
            table_bytes,
            stream_bytes,
            training_bytes,
            trainings,
            trainings_useless,
            clean_pages,
            clean_bytes,
            outside_bytes,
            spent_bytes,
            ..
        } = disks.pool_stats();
        gauge(text, "pagefold_stored_bytes", "Bytes of the pages stored, before compression.", orig_data_size);
        gauge(text, "pagefold_compressed_bytes", "Bytes of the same pages, compressed.", compr_data_size);
        let mut family = text.family(
            "pagefold_pages",
            Kind::Gauge,
            "Pages that are same-filled, incompressible, shared, or kept of bases.",
        );
        for (kind, pages) in [
            ("same_filled", same_pages),
            ("incompressible", huge_pages),
            ("shared", shared_pages),
            ("base", clean_pages),
        ] {
            family.value(&[("kind", kind)], pages);
        }
        gauge(text, "pagefold_shared_saved_bytes", "What sharing equal pages saves.", shared_saved_bytes);
        let mut family = text.family(
            "pagefold_memory_bytes",
            Kind::Gauge,
            "Memory that counts against the limit, by what it is for.",
        );
        for (kind, bytes) in [
            ("objects", mem_used_total),
            ("tables", table_bytes),
            ("streams", stream_bytes),
            ("training", training_bytes),
            ("clients_and_bases", outside_bytes),
        ] {
            family.value(&[("kind", kind)], bytes);
        }
        gauge(text, "pagefold_memory_spent_bytes", "All memory that counts against the limit.", spent_bytes);
        gauge(text, "pagefold_memory_peak_bytes", "The maximum that this memory has reached.", mem_used_max);
        let help = "The part of this memory that pages of bases take until disks need it.";
        gauge(text, "pagefold_memory_reclaimable_bytes", help, clean_bytes);
        if let Some(limit_bytes) = disks.limit_bytes() {
            gauge(text, "pagefold_memory_limit_bytes", "The memory limit.", limit_bytes);
        }
        let client_bytes = disks.client_memory().taken_bytes();
        gauge(text, "pagefold_client_memory_bytes", "Records, buffers and threads of NBD clients.", client_bytes);
        if let Some(bytes) = anonymous_bytes() {
            gauge(text, "pagefold_process_memory_bytes", "The memory of the process without files.", bytes);
        }
        let mut family = text.family("pagefold_trainings", Kind::Counter, "Trainings of the codec's tables.");
        family.value(&[("result", "better")], trainings);
        family.value(&[("result", "useless")], trainings_useless);
    }

    fn write_bases(&self, text: &mut Text) {
        let caches = self.0.disks.base_caches();
        let help = "Memory of the caches of bases.";
        let mut family = text.family("pagefold_base_cache_bytes", Kind::Gauge, help);
        let (clusters_bytes, clusters_limit_bytes) = caches.clusters_bytes();
        family.value(&[("cache", "clusters")], clusters_bytes);
        family.value(&[("cache", "pages")], caches.pages.used_bytes());
        let help = "The maximum size of each cache. It is reserved for clusters while a base needs them; pages \
                    get it only if disks leave room.";
        let mut family = text.family("pagefold_base_cache_limit_bytes", Kind::Gauge, help);
        family.value(&[("cache", "clusters")], clusters_limit_bytes);
        family.value(&[("cache", "pages")], caches.pages.limit_bytes());
        counter(
            text,
            "pagefold_base_cache_hit_bytes",
            "Bytes that were read from pages of bases which are kept compressed.",
            caches.pages.hit_bytes(),
        );
        counter(
            text,
            "pagefold_base_cache_misses",
            "Units of bases that were read because no compressed pages of them are kept.",
            caches.pages.missed_units(),
        );
        counter(
            text,
            "pagefold_base_decoded_clusters",
            "Clusters that were decoded for bases.",
            self.0.disks.decoded_clusters(),
        );
    }

    fn write_requests(&self, text: &mut Text) {
        let (done, latencies) = (self.0.disks.done(), self.0.disks.latencies());
        let mut each = |name, help, value: &dyn Fn(Operation) -> u64| {
            let mut family = text.family(name, Kind::Counter, help);
            Operation::ALL.iter().for_each(|of| family.value(&[("operation", of.name())], value(*of)));
        };
        each("pagefold_requests", "Requests that were received.", &|of| done.of(of).requests);
        each("pagefold_request_errors", "Requests that have failed.", &|of| done.of(of).errors);
        each("pagefold_request_bytes", "Bytes of the requests that have succeeded.", &|of| done.of(of).bytes);
        let waiting = self.0.disks.waiting().iter().map(|(_, waiting)| waiting).sum();
        gauge(text, "pagefold_waiting_requests", "Requests that wait for room.", waiting);
        let help = "The time from a request's receipt to its reply, of one in 16 requests of each client.";
        let mut family = text.family("pagefold_request_duration_seconds", Kind::Histogram, help);
        for operation in Operation::ALL {
            let times = latencies.of(operation);
            let buckets =
                times.buckets.iter().map(|(end, count)| (end.map(|end| seconds(end.as_nanos() as u64)), *count));
            family.histogram(&[("operation", operation.name())], buckets, times.sum.as_secs_f64());
        }
    }
}

/// Writes the rows of disks.
fn write_disks(text: &mut Text, disks: &[Measured]) {
    let mut family = text.family("pagefold_disk", Kind::Info, "A disk: its kind.");
    disks.iter().for_each(|disk| family.info(&[("disk", &disk.name), ("kind", kind_name(disk.kind))]));
    let mut gauges = |name, help, value: &dyn Fn(&Measured) -> Option<u64>| {
        let mut family = text.family(name, Kind::Gauge, help);
        for disk in disks {
            if let Some(value) = value(disk) {
                family.value(&[("disk", &disk.name)], value);
            }
        }
    };
    gauges("pagefold_disk_size_bytes", "The size of a disk.", &|disk| Some(disk.size_bytes));
    gauges("pagefold_disk_memory_limit_bytes", "The memory limit of a disk that has one.", &|disk| disk.limit_bytes);
    gauges("pagefold_disk_memory_bytes", "The memory of a disk's own pages.", &|disk| {
        disk.stats.as_ref().map(|stats| stats.spent_bytes)
    });
    gauges("pagefold_disk_stored_bytes", "Bytes of the pages that a disk has written itself.", &|disk| {
        disk.stats.as_ref().map(|stats| stats.orig_data_size)
    });
    gauges("pagefold_disk_compressed_bytes", "Bytes of the same pages, compressed.", &|disk| {
        disk.stats.as_ref().map(|stats| stats.compr_data_size)
    });
    gauges("pagefold_disk_connections", "Clients of a disk.", &|disk| Some(disk.clients));
    gauges("pagefold_disk_waiting_requests", "Requests of a disk that wait for room.", &|disk| Some(disk.waiting));
    // Rates need a first value for common requests; other rows appear only with the first such
    // request.
    let has_row = |of, value| value > 0 || matches!(of, Operation::Read | Operation::Write);
    let mut counters = |name, help, value: &dyn Fn(&Measured, Operation) -> u64| {
        let mut family = text.family(name, Kind::Counter, help);
        for (disk, of) in disks.iter().flat_map(|disk| Operation::ALL.map(|of| (disk, of))) {
            let value = value(disk, of);
            if has_row(of, value) {
                family.value(&[("disk", &disk.name), ("operation", of.name())], value);
            }
        }
    };
    counters("pagefold_disk_requests", "Requests to a disk.", &|disk, of| disk.done.of(of).requests);
    counters("pagefold_disk_request_errors", "Requests to a disk that have failed.", &|disk, of| {
        disk.done.of(of).errors
    });
    let help = "Bytes of the requests to a disk that have succeeded.";
    counters("pagefold_disk_request_bytes", help, &|disk, of| disk.done.of(of).bytes);
    let help = "The time from the receipt of a request to its reply, of one in 16 requests of each client.";
    let mut family = text.family("pagefold_disk_request_duration_seconds", Kind::Summary, help);
    for disk in disks {
        for of in Operation::ALL {
            let done = disk.done.of(of);
            if has_row(of, done.timed) {
                let labels = [("disk", &*disk.name), ("operation", of.name())];
                family.summary(&labels, done.timed, seconds(done.timed_ns));
            }
        }
    }
}

//! `pagefold stat`: shows the contents and memory use of a server's disks.

use std::io::{self, Write};

use pagefold_control::{Command, DiskKind, DiskStat, Figures, ServerStat, Stat};

use crate::{figure::Figure, output::output, peer::Peer, size, text::plain};

/// Bytes of a page of zram.
const PAGE_BYTES: u64 = 4096;

/// Show the contents and the memory use of disks
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold stat
  pagefold stat root --json
  read -r stored compressed used rest < <(pagefold stat --zram mm_stat)

The figures have the meaning of zram's mm_stat. For the server, spent_bytes is all memory that \
counts against its limit: objects with their waste, page tables, compression streams, trained \
tables and buffers of clients; process_bytes is the resident memory of the process. For a disk, \
memory is its compressed objects and its page table. tables_id identifies the trained tables or \
dictionary of the codec; their gain was measured at training.

--zram prints the columns of zram's file with that name, for scripts that read it. mm_stat: \
orig_data_size compr_data_size mem_used_total mem_limit mem_used_max same_pages pages_compacted \
huge_pages huge_pages_since. io_stat: failed_reads failed_writes invalid_io notify_free. What \
pagefold does not count is 0: pages_compacted, huge_pages_since and invalid_io, and mem_used_max of \
a disk.")]
pub(crate) struct Args {
    /// Show only this disk
    name: Option<String>,

    #[command(flatten)]
    peer: Peer,

    /// Print one JSON object per line
    #[arg(long)]
    json: bool,

    /// Print the row of zram's file with this name: of the disk, or of all disks together
    #[arg(long, value_enum, value_name = "FILE", conflicts_with = "json")]
    zram: Option<ZramFile>,
}

/// A file in the kernel's directory of a zram device.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum ZramFile {
    /// Contents and memory
    #[value(name = "mm_stat")]
    Memory,
    /// Failed requests
    #[value(name = "io_stat")]
    Requests,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let stat: Stat = args.peer.connect()?.call(&Command::Stat { name: args.name.clone() })?;
    let mut out = output();
    if let Some(file) = args.zram {
        let disk = stat.disks.first().filter(|_| args.name.is_some());
        let (limit, figures) = match disk {
            Some(disk) => (disk.limit_bytes, &disk.figures),
            None => (stat.server.limit_bytes, &stat.server.figures),
        };
        writeln!(out, "{}", zram_row(file, limit, figures))?;
        return Ok(out.flush()?);
    }
    if args.name.is_none() {
        let print = if args.json { server_json } else { server_words };
        print(&mut out, &stat.server)?;
    }
    for disk in &stat.disks {
        let print = if args.json { disk_json } else { disk_words };
        print(&mut out, disk, &stat.server.codec)?;
    }
    Ok(out.flush()?)
}

/// Returns the row of a file of zram. Its columns are those of Linux 6.18.
fn zram_row(file: ZramFile, limit: Option<u64>, figures: &Figures) -> String {
    let get = |name| get(figures, name);
    let columns = match file {
        ZramFile::Memory => vec![
            get("orig_data_size"),
            get("compr_data_size"),
            // Waste belongs to all disks together, not to a single one.
            find(figures, "mem_used_total").unwrap_or_else(|| get("spent_bytes")),
            limit.unwrap_or(0),
            get("mem_used_max"),
            get("same_pages"),
            0,
            get("huge_pages"),
            0,
        ],
        ZramFile::Requests => vec![
            get("read_errors"),
            get("write_errors") + get("write_zeroes_errors") + get("discard_errors"),
            0,
            get("discard_bytes") / PAGE_BYTES,
        ],
    };
    columns.iter().map(|column| format!("{column:>8}")).collect::<Vec<_>>().join(" ")
}

/// Returns the value of a figure if the server has it.
fn find(figures: &Figures, name: &str) -> Option<u64> {
    figures.get(name).and_then(serde_json::Value::as_u64)
}

/// Returns a figure, or 0 if the server does not have it.
pub(crate) fn get(figures: &Figures, name: &str) -> u64 {
    find(figures, name).unwrap_or(0)
}

fn server_json(out: &mut dyn Write, server: &ServerStat) -> io::Result<()> {
    let figure =
        |metric, value, unit| Figure { bench: "server", case: "", subject: &server.codec, metric, value, unit };
    figure("disks", server.disks, "disks").write(out)?;
    figure("uptime_seconds", server.uptime_seconds, "s").write(out)?;
    if let Some(limit) = server.limit_bytes {
        figure("limit_bytes", limit, "bytes").write(out)?;
    }
    write_figures(out, "server", "", &server.codec, &server.figures)
}

fn disk_json(out: &mut dyn Write, disk: &DiskStat, codec: &str) -> io::Result<()> {
    let limit = disk.limit_bytes.map(|limit| ("limit_bytes", limit));
    for (metric, value) in [("size_bytes", disk.size_bytes)].into_iter().chain(limit) {
        Figure { bench: "stat", case: &disk.name, subject: codec, metric, value, unit: "bytes" }.write(out)?;
    }
    write_figures(out, "stat", &disk.name, codec, &disk.figures)
}

fn write_figures(out: &mut dyn Write, bench: &str, case: &str, codec: &str, figures: &Figures) -> io::Result<()> {
    for (metric, value) in figures.iter().filter_map(|(metric, value)| Some((metric.as_str(), value.as_u64()?))) {
        let unit = match metric {
            "codec_tables" => "tables",
            "tables_id" => "id",
            "tables_age_s" => "s",
            "tables_gain_permille" => "permille",
            "trainings" | "trainings_useless" => "trainings",
            "waiting_requests" => "requests",
            metric if metric.ends_with("_pages") => "pages",
            metric if metric.ends_with("_ns") => "ns",
            metric if ["_requests", "_errors", "_timed"].iter().any(|end| metric.ends_with(end)) => "requests",
            _ => "bytes",
        };
        // Without trained tables, these two figures do not exist.
        let none = matches!(metric, "tables_age_s" | "tables_gain_permille") && get(figures, "trainings") == 0;
        if !none {
            Figure { bench, case, subject: codec, metric, value, unit }.write(out)?;
        }
    }
    Ok(())
}

fn server_words(out: &mut dyn Write, server: &ServerStat) -> io::Result<()> {
    let disks = if server.disks == 1 { "1 disk".to_owned() } else { format!("{} disks", server.disks) };
    let age = age(server.uptime_seconds);
    writeln!(out, "server (process {}, up {age}): {disks}, codec {}", server.pid, server.codec)?;
    figures_words(out, &server.figures, server.limit_bytes)?;
    if get(&server.figures, "codec_tables") > 0 {
        write_tables(out, &server.codec, &server.figures)?;
    }
    Ok(())
}

fn disk_words(out: &mut dyn Write, disk: &DiskStat, _: &str) -> io::Result<()> {
    if disk.kind == DiskKind::Base {
        let (name, size) = (plain(&disk.name), size::written(disk.size_bytes));
        return writeln!(out, "base '{name}': {size}, read-only");
    }
    writeln!(out, "disk '{}': {}", plain(&disk.name), size::written(disk.size_bytes))?;
    figures_words(out, &disk.figures, disk.limit_bytes)
}

/// Writes the amount of data stored and the memory used.
fn figures_words(out: &mut dyn Write, figures: &Figures, limit: Option<u64>) -> io::Result<()> {
    let percent = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 * 100.0 };
    let (stored, compressed) = (get(figures, "orig_data_size"), get(figures, "compr_data_size"));
    writeln!(out, "  stored      {:>10}   pages written and not discarded", size::show(stored))?;
    let part = percent(compressed, stored);
    writeln!(out, "  compressed  {:>10}   {part:.1} % of what is stored", size::show(compressed))?;
    let limit = limit.map_or_else(|| "no limit".to_owned(), |limit| format!("limit {}", size::written(limit)));
    let spent = get(figures, "spent_bytes");
    let most =
        find(figures, "mem_used_max").map(|most| format!("most ever {}; ", size::show(most))).unwrap_or_default();
    // Pages of bases are neither stored nor reserved: they make room when it is needed.
    let (outside, clean) = (get(figures, "outside_bytes"), get(figures, "clean_bytes"));
    let spent = spent.saturating_sub(clean);
    let part = percent(spent.saturating_sub(outside), stored);
    let with = if outside > 0 { format!("; {} with what is reserved", size::show(spent)) } else { String::new() };
    let own = size::show(spent.saturating_sub(outside));
    writeln!(out, "  memory      {own:>10}   {part:.1} % of what is stored{with}; {most}{limit}")?;
    let parts = [
        ("mem_used_total", "objects"),
        ("table_bytes", "tables"),
        ("stream_bytes", "streams"),
        ("training_bytes", "trained tables"),
        ("outside_bytes", "reserved for clients and bases"),
    ];
    let parts = parts.iter().filter_map(|(name, what)| Some((what, find(figures, name).filter(|&bytes| bytes > 0)?)));
    let parts: Vec<_> = parts.map(|(what, bytes)| format!("{what} {}", size::show(bytes))).collect();
    if !parts.is_empty() {
        writeln!(out, "    {}", parts.join(", "))?;
    }
    if let (Some(clients), Some(process)) = (find(figures, "client_bytes"), find(figures, "process_bytes")) {
        let (clients, process) = (size::show(clients), size::show(process));
        writeln!(out, "    clients take {clients} now; the whole process takes {process} of the system's memory")?;
    }
    if let Some(most) = find(figures, "base_cache_limit").filter(|&most| most > 0) {
        let (kept, most) = (size::show(get(figures, "base_cache_bytes")), size::show(most));
        writeln!(out, "    the cache of bases has {kept} of its {most}")?;
    }
    if let Some(bytes) = find(figures, "base_pages_bytes").filter(|&bytes| bytes > 0) {
        let (bytes, most) = (size::show(bytes), size::show(get(figures, "base_pages_limit")));
        writeln!(out, "    pages of bases take {bytes}, of at most {most}, and make room for disks")?;
    }
    if let waiting @ 1.. = get(figures, "waiting_requests") {
        let requests = if waiting == 1 { "1 request".to_owned() } else { format!("{waiting} requests") };
        writeln!(out, "  waiting     {requests:>10}   for room within the limit")?;
    }
    if let saved @ 1.. = get(figures, "shared_saved_bytes") {
        let pages = get(figures, "shared_pages");
        writeln!(out, "  equal       {:>10}   saved by keeping {pages} equal pages together", size::show(saved))?;
    }
    let (same, huge) = (get(figures, "same_pages"), get(figures, "huge_pages"));
    writeln!(out, "  pages       same-filled {same}, incompressible {huge}")
}

/// Writes what a training codec has learnt.
fn write_tables(out: &mut dyn Write, codec: &str, figures: &Figures) -> io::Result<()> {
    // `fold-dict` trains more than a dictionary, and may have none.
    let is_dictionary = codec.ends_with("-dict") && codec != "fold-dict";
    let what = if is_dictionary { "dictionary" } else { "tables" };
    let (trained, useless) = (get(figures, "trainings"), get(figures, "trainings_useless"));
    let times = |count| if count == 1 { "once".to_owned() } else { format!("{count} times") };
    let id = format!("{:08x}", get(figures, "tables_id"));
    if trained > 0 {
        let gain = get(figures, "tables_gain_permille") as f64 / 10.0;
        let (bytes, age) = (size::show(get(figures, "tables_bytes")), age(get(figures, "tables_age_s")));
        writeln!(
            out,
            "  {what:<10}  {id:>10}   {bytes}, trained {age} ago on pages written, {gain:.1} % off such pages"
        )?;
    } else if get(figures, "tables_id") > 0 {
        writeln!(out, "  {what:<10}  {id:>10}   came with the codec")?;
    } else {
        writeln!(out, "  {what:<10}  {:>10}", "none")?;
    }
    let bytes = get(figures, "training_bytes");
    let under_way = get(figures, "codec_tables") == 1 && bytes > 0;
    match (trained, useless) {
        (0, 0) if under_way => writeln!(out, "    being trained on pages written, with {}", size::show(bytes))?,
        (0, 0) => writeln!(out, "    not trained yet: training begins after 16 MiB of writes")?,
        (_, 0) => writeln!(out, "    trained {}, which helped", times(trained))?,
        (0, _) => writeln!(out, "    trained {}, which did not help these pages", times(useless))?,
        _ => writeln!(
            out,
            "    trained {}, which helped {} and did not help {}",
            times(trained + useless),
            times(trained),
            times(useless)
        )?,
    }
    match get(figures, "codec_tables").saturating_sub(1) {
        0 => Ok(()),
        1 => writeln!(out, "    {} of memory for the trained tables", size::show(bytes)),
        kept => writeln!(out, "    {} of memory for {kept} sets of trained tables", size::show(bytes)),
    }
}

/// Formats a duration for humans, in the largest unit that gives at least 2.
pub(crate) fn age(seconds: u64) -> String {
    let units = [(86_400, "days"), (3600, "hours"), (60, "minutes")];
    let unit = units.into_iter().find(|(unit, _)| seconds >= 2 * unit);
    unit.map_or_else(|| format!("{seconds} s"), |(unit, name)| format!("{} {name}", seconds / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(codec: &str, values: &[(&str, u64)]) -> String {
        let figures = values.iter().map(|&(name, value)| (name.to_owned(), value.into())).collect();
        let mut out = Vec::new();
        write_tables(&mut out, codec, &figures).expect("memory");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn rows_have_zrams_columns() {
        let values = [
            ("orig_data_size", 4096_u64),
            ("compr_data_size", 1000),
            ("spent_bytes", 5000),
            ("same_pages", 3),
            ("huge_pages", 4),
            ("read_errors", 1),
            ("write_errors", 2),
            ("discard_errors", 5),
            ("discard_bytes", 8192),
        ];
        let figures: Figures = values.iter().map(|&(name, value)| (name.to_owned(), value.into())).collect();
        let columns = |file, limit| {
            let row = zram_row(file, limit, &figures);
            row.split_whitespace().map(|column| column.parse().expect("a number")).collect::<Vec<u64>>()
        };
        assert_eq!(columns(ZramFile::Memory, None), [4096, 1000, 5000, 0, 0, 3, 0, 4, 0]);
        assert_eq!(columns(ZramFile::Memory, Some(9))[3], 9);
        assert_eq!(columns(ZramFile::Requests, None), [1, 7, 0, 2]);
    }

    #[test]
    fn trained_tables_are_shown() {
        let text =
            words("lz4-dict", &[("codec_tables", 1), ("tables_id", 0), ("trainings", 0), ("trainings_useless", 0)]);
        assert!(text.contains("dictionary        none") && text.contains("not trained yet"), "{text}");
        let text = words("fold-dict", &[("codec_tables", 1), ("tables_id", 0)]);
        assert!(text.contains("tables            none") && text.contains("not trained yet"), "{text}");
        let text = words("lz4-dict", &[("codec_tables", 1), ("tables_id", 0), ("training_bytes", 29360128)]);
        assert!(text.contains("being trained on pages written, with 28 MiB"), "{text}");
        let text =
            words("lz4-dict", &[("codec_tables", 1), ("tables_id", 0), ("trainings", 0), ("trainings_useless", 1)]);
        assert!(text.contains("trained once, which did not help"), "{text}");
        let text =
            words("pleat", &[("codec_tables", 1), ("tables_id", 16), ("trainings", 0), ("trainings_useless", 2)]);
        assert!(text.contains("tables        00000010   came with the codec"), "{text}");
        let text = words(
            "zstd-1-dict",
            &[
                ("codec_tables", 3),
                ("tables_id", 2882400018),
                ("tables_bytes", 65536),
                ("tables_age_s", 7300),
                ("tables_gain_permille", 123),
                ("trainings", 2),
                ("trainings_useless", 1),
                ("training_bytes", 131072),
            ],
        );
        let line = "dictionary    abcdef12   64 KiB, trained 2 hours ago on pages written, 12.3 % off such pages";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("trained 3 times, which helped 2 times and did not help once"), "{text}");
        assert!(text.contains("128 KiB of memory for 2 sets of trained tables"), "{text}");
        assert_eq!([0, 119, 120, 7200, 172_800].map(age), ["0 s", "119 s", "2 minutes", "2 hours", "2 days"]);
    }
}

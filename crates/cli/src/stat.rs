//! `pagefold stat`: what a server's disks hold and what that costs.

use std::io::{self, Write};

use anyhow::Context;
use pagefold_serve::client::ExportInfo;
use serde_json::json;

use crate::{output::output, peer::Peer, size};

/// Show what a server's disks hold and the memory they take
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold stat --unix /run/user/1000/disk.sock
  pagefold stat --tcp 127.0.0.1:10809 --name root --json

The figures mean what zram's mm_stat means by them; spent_bytes is all memory of the disk: objects, \
table, streams, trained tables. They travel as the export's description, so `nbdinfo` shows them too.")]
pub(crate) struct Args {
    #[command(flatten)]
    peer: Peer,

    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

/// A device's description, taken apart.
struct Figures<'a> {
    codec: &'a str,
    values: Vec<(&'a str, u64)>,
}

impl<'a> Figures<'a> {
    fn parse(description: &'a str) -> Option<Self> {
        let mut codec = "";
        let mut values = Vec::new();
        let mut words = description.split(' ');
        if words.next() != Some("pagefold") {
            return None;
        }
        for word in words {
            match word.split_once('=')? {
                ("codec", name) => codec = name,
                (name, value) => values.push((name, value.parse().ok()?)),
            }
        }
        Some(Self { codec, values })
    }

    fn get(&self, name: &str) -> u64 {
        self.values.iter().find(|(other, _)| *other == name).map_or(0, |&(_, value)| value)
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let names = args.peer.exports()?;
    let mut client = args.peer.connect()?;
    let mut out = output();
    for name in names {
        let info = client.info(&name)?;
        let description = info.description.as_deref().unwrap_or_default();
        let figures = Figures::parse(description).with_context(|| format!("export '{name}' is not a pagefold disk"))?;
        let print = if args.json { print_json } else { print_words };
        print(&mut out, &name, &info, &figures)?;
    }
    out.flush()?;
    Ok(())
}

fn print_json(out: &mut dyn Write, name: &str, info: &ExportInfo, figures: &Figures<'_>) -> io::Result<()> {
    let size = ("size_bytes", info.size_bytes);
    for (metric, value) in [size].iter().chain(&figures.values) {
        let unit = match *metric {
            "codec_tables" => "tables",
            "trainings" | "trainings_useless" => "trainings",
            metric if metric.ends_with("_pages") => "pages",
            _ => "bytes",
        };
        // No limit is no figure.
        if (*metric, *value) != ("mem_limit", u64::MAX) {
            let figure = json!({
                "bench": "stat", "case": name, "subject": figures.codec, "metric": metric, "value": value, "unit": unit,
            });
            writeln!(out, "{figure}")?;
        }
    }
    Ok(())
}

fn print_words(out: &mut dyn Write, name: &str, info: &ExportInfo, figures: &Figures<'_>) -> io::Result<()> {
    let bytes = |name| size::show(figures.get(name));
    let percent = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 * 100.0 };
    let (stored, spent) = (figures.get("orig_data_size"), figures.get("spent_bytes"));
    let limit = match figures.get("mem_limit") {
        u64::MAX => "no limit".to_owned(),
        limit => format!("limit {}", size::show(limit)),
    };
    writeln!(out, "export '{name}': {} disk, codec {}", size::show(info.size_bytes), figures.codec)?;
    writeln!(out, "  stored      {:>10}   pages written and not discarded", size::show(stored))?;
    writeln!(
        out,
        "  compressed  {:>10}   {:.1} % of what is stored",
        bytes("compr_data_size"),
        percent(figures.get("compr_data_size"), stored)
    )?;
    writeln!(
        out,
        "  memory      {:>10}   {:.1} % of what is stored; most ever {}; {limit}",
        size::show(spent),
        percent(spent, stored),
        bytes("mem_used_max")
    )?;
    writeln!(
        out,
        "    objects {}, table {}, streams {}",
        bytes("mem_used_total"),
        bytes("table_bytes"),
        bytes("stream_bytes")
    )?;
    writeln!(
        out,
        "  pages       same-filled {}, incompressible {}",
        figures.get("same_pages"),
        figures.get("huge_pages")
    )?;
    let tables = figures.get("codec_tables");
    if tables > 0 {
        writeln!(
            out,
            "  tables      {tables:>10}   of the codec; training on the pages written helped {} times, did not {} times; {} for it",
            figures.get("trainings"),
            figures.get("trainings_useless"),
            bytes("training_bytes")
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_are_taken_apart() {
        let figures = Figures::parse("pagefold codec=zstd-1 orig_data_size=8192 same_pages=1").expect("ours");
        assert_eq!((figures.codec, figures.get("orig_data_size"), figures.get("absent")), ("zstd-1", 8192, 0));
        for foreign in ["", "something else", "pagefold codec", "pagefold size=many"] {
            assert!(Figures::parse(foreign).is_none(), "{foreign}");
        }
    }
}

//! `pagefold stat`: what a server's disks hold and what that costs.

use std::io::{self, Write};

use anyhow::Context;
use pagefold_serve::client::ExportInfo;

use crate::{figure::Figure, output::output, peer::Peer, size};

/// Show what a server's disks hold and the memory they take
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold stat --unix /run/user/1000/disk.sock
  pagefold stat --tcp 127.0.0.1:10809 --name root --json

The figures mean what zram's mm_stat means by them; spent_bytes is all memory of the disk: objects, \
table, streams, trained tables. tables_id names the tables or the dictionary that pages are compressed with; its gain \
is measured when it was trained. They travel as the export's description, so `nbdinfo` shows them too.")]
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
            "tables_id" => "id",
            "tables_age_s" => "s",
            "tables_gain_permille" => "permille",
            "trainings" | "trainings_useless" => "trainings",
            metric if metric.ends_with("_pages") => "pages",
            _ => "bytes",
        };
        // No limit is no figure, nor is what only trained tables have.
        let none = match *metric {
            "mem_limit" => *value == u64::MAX,
            "tables_age_s" | "tables_gain_permille" => figures.get("trainings") == 0,
            _ => false,
        };
        if !none {
            Figure { bench: "stat", case: name, subject: figures.codec, metric, value: *value, unit }.write(out)?;
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
    if figures.get("codec_tables") > 0 {
        write_tables(out, figures)?;
    }
    Ok(())
}

/// What a disk whose codec learns has learnt.
fn write_tables(out: &mut dyn Write, figures: &Figures<'_>) -> io::Result<()> {
    let what = if figures.codec.ends_with("-dict") { "dictionary" } else { "tables" };
    let (trained, useless) = (figures.get("trainings"), figures.get("trainings_useless"));
    let times = |count| if count == 1 { "once".to_owned() } else { format!("{count} times") };
    let id = format!("{:08x}", figures.get("tables_id"));
    if trained > 0 {
        let gain = figures.get("tables_gain_permille") as f64 / 10.0;
        let (bytes, age) = (size::show(figures.get("tables_bytes")), age(figures.get("tables_age_s")));
        writeln!(
            out,
            "  {what:<10}  {id:>10}   {bytes}, trained {age} ago on pages written, {gain:.1} % off such pages"
        )?;
    } else if figures.get("tables_id") > 0 {
        writeln!(out, "  {what:<10}  {id:>10}   came with the codec")?;
    } else {
        writeln!(out, "  {what:<10}  {:>10}", "none")?;
    }
    let bytes = figures.get("training_bytes");
    let under_way = figures.get("codec_tables") == 1 && bytes > 0;
    match (trained, useless) {
        (0, 0) if under_way => writeln!(out, "    being trained on pages written, with {}", size::show(bytes))?,
        (0, 0) => writeln!(out, "    not trained yet: it takes 16 MiB written")?,
        (_, 0) => writeln!(out, "    trained {}, which helped", times(trained))?,
        (0, _) => writeln!(out, "    trained {}, which did not help these pages", times(useless))?,
        _ => writeln!(
            out,
            "    trained {}: {} it helped, {} not",
            times(trained + useless),
            times(trained),
            times(useless)
        )?,
    }
    match figures.get("codec_tables").saturating_sub(1) {
        0 => Ok(()),
        kept => writeln!(out, "    {} for {kept} of them in memory", size::show(bytes)),
    }
}

/// A time for people: in the greatest unit of which it has two.
fn age(seconds: u64) -> String {
    let units = [(86_400, "days"), (3600, "hours"), (60, "minutes")];
    let unit = units.into_iter().find(|(unit, _)| seconds >= 2 * unit);
    unit.map_or_else(|| format!("{seconds} s"), |(unit, name)| format!("{} {name}", seconds / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(description: &str) -> String {
        let figures = Figures::parse(description).expect("ours");
        let mut out = Vec::new();
        write_tables(&mut out, &figures).expect("memory");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn what_was_learnt_is_told() {
        let text = words("pagefold codec=lz4-dict codec_tables=1 tables_id=0 trainings=0 trainings_useless=0");
        assert!(text.contains("dictionary        none") && text.contains("not trained yet"), "{text}");
        let text = words("pagefold codec=lz4-dict codec_tables=1 tables_id=0 training_bytes=29360128");
        assert!(text.contains("being trained on pages written, with 28.0 MiB"), "{text}");
        let text = words("pagefold codec=lz4-dict codec_tables=1 tables_id=0 trainings=0 trainings_useless=1");
        assert!(text.contains("trained once, which did not help"), "{text}");
        let text = words("pagefold codec=pleat codec_tables=1 tables_id=16 trainings=0 trainings_useless=2");
        assert!(text.contains("tables        00000010   came with the codec"), "{text}");
        let text = words(
            "pagefold codec=zstd-1-dict codec_tables=3 tables_id=2882400018 tables_bytes=65536 tables_age_s=7300 \
             tables_gain_permille=123 trainings=2 trainings_useless=1 training_bytes=131072",
        );
        let line = "dictionary    abcdef12   64.0 KiB, trained 2 hours ago on pages written, 12.3 % off such pages";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("trained 3 times: 2 times it helped, once not"), "{text}");
        assert!(text.contains("128 KiB for 2 of them in memory"), "{text}");
        assert_eq!([0, 119, 120, 7200, 172_800].map(age), ["0 s", "119 s", "2 minutes", "2 hours", "2 days"]);
    }

    #[test]
    fn descriptions_are_taken_apart() {
        let figures = Figures::parse("pagefold codec=zstd-1 orig_data_size=8192 same_pages=1").expect("ours");
        assert_eq!((figures.codec, figures.get("orig_data_size"), figures.get("absent")), ("zstd-1", 8192, 0));
        for foreign in ["", "something else", "pagefold codec", "pagefold size=many"] {
            assert!(Figures::parse(foreign).is_none(), "{foreign}");
        }
    }
}

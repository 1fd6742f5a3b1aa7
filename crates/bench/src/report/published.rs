//! The tables of the five sources, and where a run has the same figures.

mod fio;

use super::record::{Pick, Record};
use crate::{figure::geometric_mean, streams::LINES};

/// A source's table next to the same table as measured here.
pub(super) struct PublishedTable {
    pub(super) title: &'static str,
    /// Who published it, where and when.
    pub(super) source: &'static str,
    /// How it was measured there.
    pub(super) there: &'static str,
    /// How it is measured here, and what differs.
    pub(super) here: &'static str,
    pub(super) unit: &'static str,
    pub(super) published: &'static [&'static str],
    pub(super) measured: &'static [&'static str],
    pub(super) rows: Vec<Row>,
    /// Decimal places.
    pub(super) decimals: usize,
    /// Whether means compared with each side's first column are meaningful.
    pub(super) has_means: bool,
}

pub(super) struct Row {
    /// Consecutive rows of a group share a heading; empty if there are no groups.
    pub(super) group: String,
    pub(super) name: String,
    /// One value per column; `None` where the source has none.
    pub(super) published: Vec<Option<f64>>,
    pub(super) measured: Vec<Cell>,
}

/// Where a run has a figure.
pub(super) struct Cell {
    bench: &'static str,
    case: String,
    subject: &'static str,
    take: Take,
}

/// How a cell's figure is computed from a run's.
#[derive(Clone, Copy)]
enum Take {
    /// The metric times a factor, for the source's unit.
    Scaled(&'static str, f64),
    /// The reciprocal of the metric.
    Inverse(&'static str),
    /// The first metric in percent of the second.
    Percent(&'static str, &'static str),
    /// Seconds to compress and decompress this many MB.
    Coding(f64),
    /// Not measured.
    Nothing,
}

impl Cell {
    pub(super) fn value(&self, record: &Record) -> Option<f64> {
        let mean = |metric| record.mean(&Pick { bench: self.bench, case: &self.case, subject: self.subject, metric });
        match self.take {
            Take::Scaled(metric, factor) => Some(mean(metric)? * factor),
            Take::Inverse(metric) => Some(1.0 / mean(metric)?),
            Take::Percent(metric, of) => Some(mean(metric)? * 100.0 / mean(of)?),
            Take::Coding(mb) => Some(mb / mean("compress_mb_s")? + mb / mean("decompress_mb_s")?),
            Take::Nothing => None,
        }
    }
}

/// The rows' values as shown, of the source or of the run.
pub(super) type Values = Vec<Vec<Option<f64>>>;

impl PublishedTable {
    pub(super) fn published_values(&self) -> Values {
        self.rows.iter().map(|row| row.published.clone()).collect()
    }

    pub(super) fn measured_values(&self, record: &Record) -> Values {
        self.rows.iter().map(|row| row.measured.iter().map(|cell| cell.value(record)).collect()).collect()
    }
}

/// Returns for each column the geometric mean of its values divided by the first column's, over the
/// rows that have both.
pub(super) fn means(values: &[&[Option<f64>]]) -> Vec<Option<f64>> {
    let columns = values.first().map_or(0, |row| row.len());
    let of = |column: usize| {
        let ratios: Vec<f64> = values.iter().filter_map(|row| Some((*row.get(column)?)? / row[0]?)).collect();
        (!ratios.is_empty()).then(|| geometric_mean(&ratios))
    };
    (0..columns).map(of).collect()
}

/// Returns all tables, by source.
pub(super) fn tables() -> Vec<PublishedTable> {
    vec![
        backends_speed(),
        backends_size(),
        streams(),
        locks_iozone(),
        locks_contended(),
        effective_compression(),
        dynamic_sizes(),
        dynamic_speeds(),
        image_sizes(),
        sequential_reads(),
    ]
}

fn row(name: &str, published: &[f64], measured: Vec<Cell>) -> Row {
    let published = published.iter().map(|&value| (!value.is_nan()).then_some(value)).collect();
    Row { group: String::new(), name: name.to_owned(), published, measured }
}

/// A value that the source does not have.
const NONE: f64 = f64::NAN;

fn codec_cells(subject: &'static str, takes: [Take; 3]) -> Vec<Cell> {
    takes.map(|take| Cell { bench: "codec", case: "*".to_owned(), subject, take }).into()
}

fn backends_speed() -> PublishedTable {
    let cells = |subject| {
        codec_cells(
            subject,
            [Take::Inverse("ratio"), Take::Scaled("compress_mb_s", 1.0), Take::Scaled("decompress_mb_s", 1.0)],
        )
    };
    PublishedTable {
        title: "zram's compression backends: ratio and speed",
        source: "Sergey Senozhatsky, “zram: introduce compressing backend abstraction”, Linux, April 2014",
        there: "Figures of the LZ4 project for whole files.",
        here: "4 KiB pages, one thread, geometric means over the kinds of data; docs/codecs.md has the codecs.",
        unit: "ratio; MB/s",
        published: &["ratio", "compress", "decompress"],
        measured: &["ratio", "compress", "decompress"],
        rows: vec![
            row("LZ4 (r101; here liblz4)", &[2.084, 422.0, 1820.0], cells("liblz4")),
            row("LZO 2.06 (here liblzo2)", &[2.106, 414.0, 600.0], cells("liblzo2")),
            row("pagefold's lz4", &[NONE; 3], cells("lz4")),
            row("pagefold's lzo", &[NONE; 3], cells("lzo")),
            row("pagefold's lz4dyn", &[NONE; 3], cells("lz4dyn")),
            row("pagefold's fold (default)", &[NONE; 3], cells("fold")),
        ],
        decimals: 2,
        has_means: false,
    }
}

/// Bytes that the source wrote to its disk.
const BACKENDS_BYTES: f64 = 3_221_225_472.0;

fn backends_size() -> PublishedTable {
    let cells = |subject: &'static str| {
        let memory = format!("*/{subject}");
        let mut cells =
            codec_cells(subject, [Take::Coding(BACKENDS_BYTES / 1e6), Take::Scaled("ratio", 100.0), Take::Nothing]);
        cells[2] =
            Cell { bench: "pool", case: memory, subject: "mosaic", take: Take::Percent("spent_bytes", "orig_bytes") };
        cells
    };
    let published = |seconds: f64, compressed_bytes: f64, used_bytes: f64| {
        [seconds, compressed_bytes * 100.0 / BACKENDS_BYTES, used_bytes * 100.0 / BACKENDS_BYTES]
    };
    PublishedTable {
        title: "zram's compression backends: time and memory",
        source: "Sergey Senozhatsky, “zram: rename zstrm find-release functions” (backends of the crypto API), Linux, July 2016",
        there: "fio over a zram disk of 3 GiB with data that repeats; the time is of all its passes with one job, the sizes \
                are zram's compr_data_size and mem_used_total.",
        here: "The time to compress and decompress as many bytes page by page, one thread, geometric means over the kinds \
               of data, which repeat far less. RAM is pagefold's store with all it spends, filled with heaps.",
        unit: "seconds; % of the original",
        published: &["seconds", "compressed", "RAM"],
        measured: &["seconds", "compressed", "RAM"],
        rows: vec![
            row("842", &published(197.908, 673_185_792.0, 690_266_112.0), cells("842")),
            row("DEFLATE", &published(253.260, 24_379_392.0, 37_761_024.0), cells("deflate-1")),
            row("LZ4", &published(27.023, 23_592_960.0, 37_761_024.0), cells("lz4")),
            row("LZ4HC", &published(56.394, 23_592_960.0, 37_761_024.0), cells("lz4hc-9")),
            row("LZO", &published(28.156, 34_603_008.0, 50_335_744.0), cells("lzo")),
            row("pagefold's fold (default)", &[NONE; 3], cells("fold")),
        ],
        decimals: 2,
        has_means: false,
    }
}

/// A line of zram-perf-test's tables: its direction and its pattern.
type Line = (&'static str, &'static str);

const DYNAMIC_LINES: [Line; 8] = [
    ("WRITE", "seq-write"),
    ("WRITE", "rand-write"),
    ("READ", "seq-read"),
    ("READ", "rand-read"),
    ("READ", "mixed-seq"),
    ("WRITE", "mixed-seq"),
    ("READ", "mixed-rand"),
    ("WRITE", "mixed-rand"),
];

/// Returns the rows of a table of zram-perf-test. `columns` are this run's buffers and subjects.
fn fio_rows<const N: usize>(
    published: &[[[f64; N]; 8]; 10],
    lines: [Line; 8],
    columns: &[(&'static str, &'static str)],
) -> Vec<Row> {
    let jobs = published.iter().zip(1..);
    jobs.flat_map(|(of_jobs, jobs)| {
        of_jobs.iter().zip(lines).map(move |(values, (direction, pattern))| {
            let metric = if direction == "READ" { "read_mb_s" } else { "write_mb_s" };
            let cell = |&(buffer, subject): &(&str, &'static str)| Cell {
                bench: "streams",
                case: format!("{buffer}/{pattern}/4k/{jobs}"),
                subject,
                take: Take::Scaled(metric, 1.0),
            };
            let published = values.iter().copied().map(Some).collect();
            let group = if jobs == 1 { "1 job".to_owned() } else { format!("{jobs} jobs") };
            let name = format!("{direction} {pattern}");
            Row { group, name, published, measured: columns.iter().map(cell).collect() }
        })
    })
    .collect()
}

fn streams() -> PublishedTable {
    let columns = [
        ("pattern", "idle-4"),
        ("pattern", "idle-8"),
        ("pattern", "per-cpu-mutex"),
        ("pattern", "single"),
        ("pattern", "per-cpu"),
    ];
    PublishedTable {
        title: "zram's stream policies",
        source: "Sergey Senozhatsky, “zram: user per-cpu compression streams”, Linux, May 2016",
        there: "4 CPUs, zram of 3 GiB, LZO, fio (zram-perf-test).",
        here: "The same patterns in one process, LZ4, each job over the whole store. All columns but the last are the \
               published policies in one small store; the last is pagefold's. KB/s of the source are divided by 1024.",
        unit: "MB/s",
        published: &["4 streams", "8 streams", "one a CPU"],
        measured: &["4 streams", "8 streams", "one a CPU", "one stream", "pagefold"],
        rows: fio_rows(&fio::STREAMS, LINES, &columns),
        decimals: 0,
        has_means: true,
    }
}

const LOCKS: &[&str] = &["table rwlock", "CAS", "spinlock", "rwlock", "bit_spinlock"];
const LOCKS_AND_OURS: &[&str] = &["table rwlock", "CAS", "spinlock", "rwlock", "bit_spinlock", "pagefold"];
const LOCK_SUBJECTS: [&str; 6] = ["table-rwlock", "cas", "spin", "rwlock", "bit-spin", "hazard"];

/// Converts MB/s (10⁶ bytes) to KB/s (1024 bytes).
const KB_OF_MB: f64 = 1e6 / 1024.0;

fn lock_row(name: &str, pattern: &str, published: [f64; 5]) -> Row {
    let cell = |subject| Cell {
        bench: "locks",
        case: format!("*/{pattern}/*"),
        subject,
        take: Take::Scaled("*_mb_s", KB_OF_MB),
    };
    row(name, &published, LOCK_SUBJECTS.map(cell).into())
}

const LOCKS_SOURCE: &str = "Weijie Yang, “zram: remove global tb_lock with fine grain lock”, Linux lists, May 2014";

fn locks_iozone() -> PublishedTable {
    PublishedTable {
        title: "Lock strategies: iozone",
        source: LOCKS_SOURCE,
        there: "Core 2 Q8400 with 4 CPUs, zram with 4 streams and LZO, ext4 on it; iozone -t 4 -R -r 16K -s 200M, \
                the mean of 10 runs.",
        here: "iozone's patterns by threads of one process, no file system between, LZ4. All columns but the last are the \
               published locks in one small store; the last is pagefold's, which reads without a lock.",
        unit: "KB/s",
        published: LOCKS,
        measured: LOCKS_AND_OURS,
        rows: vec![
            lock_row(
                "Initial write",
                "initial-write",
                [1_381_094.0, 1_425_435.0, 1_422_860.0, 1_423_075.0, 1_421_521.0],
            ),
            lock_row("Rewrite", "rewrite", [1_529_479.0, 1_641_199.0, 1_668_762.0, 1_672_855.0, 1_654_910.0]),
            lock_row("Read", "read", [8_468_009.0, 11_324_979.0, 11_305_569.0, 11_117_273.0, 10_997_202.0]),
            lock_row("Re-read", "re-read", [8_467_476.0, 11_260_914.0, 11_248_059.0, 11_145_336.0, 10_906_486.0]),
            lock_row("Reverse read", "reverse-read", [6_821_393.0, 8_106_334.0, 8_282_174.0, 8_279_195.0, 8_109_186.0]),
            lock_row("Stride read", "stride-read", [7_191_093.0, 8_994_306.0, 9_153_982.0, 8_961_224.0, 9_004_434.0]),
            lock_row("Random read", "random-read", [7_156_353.0, 8_957_932.0, 9_167_098.0, 8_980_465.0, 8_940_476.0]),
            lock_row("Mixed workload", "mixed", [4_172_747.0, 5_680_814.0, 5_927_825.0, 5_489_578.0, 5_972_253.0]),
            lock_row("Random write", "random-write", [1_483_044.0, 1_605_588.0, 1_594_329.0, 1_600_453.0, 1_596_010.0]),
            lock_row("Pwrite", "pwrite", [1_276_644.0, 1_303_108.0, 1_311_612.0, 1_314_228.0, 1_300_960.0]),
            lock_row("Pread", "pread", [4_324_337.0, 4_632_869.0, 4_618_386.0, 4_457_870.0, 4_500_166.0]),
        ],
        decimals: 0,
        has_means: true,
    }
}

fn locks_contended() -> PublishedTable {
    PublishedTable {
        title: "Lock strategies: fio, all jobs on the same 10 MB",
        source: LOCKS_SOURCE,
        there: "The same machine; fio, 4 jobs, requests of 32 KiB on a zram disk of 10 MB, the mean of 10 runs.",
        here: "The same load by threads of one process, LZ4, fewer loops over the disk.",
        unit: "KB/s",
        published: LOCKS,
        measured: LOCKS_AND_OURS,
        rows: vec![
            lock_row("seq-write", "contended-seq-write", [933_789.0, 999_357.0, 1_003_298.0, 995_961.0, 1_001_958.0]),
            lock_row(
                "seq-read",
                "contended-seq-read",
                [5_634_130.0, 6_577_930.0, 6_380_861.0, 6_243_912.0, 6_230_006.0],
            ),
            lock_row("seq-rw", "contended-seq-rw", [1_405_687.0, 1_638_117.0, 1_640_256.0, 1_633_903.0, 1_634_459.0]),
            lock_row("rand-rw", "contended-rand-rw", [1_386_119.0, 1_614_664.0, 1_617_211.0, 1_609_267.0, 1_612_471.0]),
        ],
        decimals: 0,
        has_means: true,
    }
}

fn effective_compression() -> PublishedTable {
    let cells = |case: &str| {
        ["xvmalloc", "xcfmalloc", "zram-zsmalloc", "mosaic"]
            .map(|subject| Cell {
                bench: "pool",
                case: case.to_owned(),
                subject,
                take: Take::Scaled("effective_percent", 1.0),
            })
            .into()
    };
    PublishedTable {
        title: "Effective compression of xvmalloc and xcfmalloc",
        source: "Seth Jennings, “staging: zcache: xcfmalloc support”, Linux lists, September 2011",
        there: "A program with 512 MB of pages under a limit of 256 MB, 32 bits, LZO; pages in use of the pool / pages \
                stored. The text is made to 75 % by LZO.",
        here: "65,536 pages, LZO, all memory that a store spends / bytes of the pages. Zeros are stored as objects, as the \
               source did; a store of pagefold keeps them in the table. zsmalloc is the kernel's, with the text alone.",
        unit: "%",
        published: &["xvmalloc", "xcfmalloc"],
        measured: &["xvmalloc", "xcfmalloc", "zsmalloc", "pagefold"],
        rows: vec![
            row("zero filled", &[1.93, 3.72], cells("zeros-as-objects")),
            row("text (75 %)", &[99.95, 78.11], cells("text-75")),
        ],
        decimals: 2,
        has_means: false,
    }
}

const DYNAMIC_SOURCE: &str =
    "Maninder Singh and Vaneet Narang, “lz4: Implement lz4 with dynamic offset length”, Linux lists, March 2018";

/// Bytes that the source stored.
const DYNAMIC_BYTES: f64 = 78_917_632.0;

fn dynamic_sizes() -> PublishedTable {
    let cells = |codec: &str| {
        ["compressed_bytes", "spent_bytes"]
            .map(|metric| Cell {
                bench: "pool",
                case: format!("*/{codec}"),
                subject: "mosaic",
                take: Take::Percent(metric, "orig_bytes"),
            })
            .into()
    };
    let published = |bytes: [f64; 2]| bytes.map(|bytes| bytes * 100.0 / DYNAMIC_BYTES);
    PublishedTable {
        title: "LZO, LZ4 and LZ4_DYN: sizes",
        source: DYNAMIC_SOURCE,
        there: "orig_data_size 78,917,632 bytes of an input that is not named; compr_data_size and mem_used_total of zram.",
        here: "Heaps of programs in pagefold's store; RAM is all that it spends, with tables and buffers.",
        unit: "% of the original",
        published: &["compressed", "RAM"],
        measured: &["compressed", "RAM"],
        rows: vec![
            row("LZO", &published([15_894_668.0, 17_117_184.0]), cells("lzo")),
            row("LZ4", &published([16_310_717.0, 17_592_320.0]), cells("lz4")),
            row("LZ4_DYN (here lz4dyn)", &published([15_520_506.0, 16_748_544.0]), cells("lz4dyn")),
            row("pagefold's fold (default)", &[NONE; 2], cells("fold")),
        ],
        decimals: 2,
        has_means: false,
    }
}

fn dynamic_speeds() -> PublishedTable {
    PublishedTable {
        title: "LZ4 and LZ4_DYN: speeds",
        source: DYNAMIC_SOURCE,
        there: "zram, fio (zram-perf-test).",
        here: "The same patterns in one process, each job over the whole of pagefold's store. KB/s of the source are \
               divided by 1024.",
        unit: "MB/s",
        published: &["LZ4", "LZ4_DYN"],
        measured: &["lz4", "lz4dyn"],
        rows: fio_rows(&fio::DYNAMIC, DYNAMIC_LINES, &[("pattern", "per-cpu"), ("pattern-lz4dyn", "per-cpu")]),
        decimals: 0,
        has_means: true,
    }
}

const EROFS_SOURCE: &str = "Gao Xiang, “staging: erofs: decompression inplace approach”, Linux lists, June 2019";

/// The source's images, with the subjects here.
const EROFS_ROWS: [(&str, &str, f64, f64); 6] = [
    ("ext4", "kernel-ext4", 1_000_000_000.0, 745.0),
    ("erofs 4k", "kernel-erofs-4k", 558_133_248.0, 755.4),
    ("squashfs 4k", "kernel-squashfs-4k", 621_211_648.0, 90.18),
    ("squashfs 8k", "kernel-squashfs-8k", 556_191_744.0, 109.4),
    ("squashfs 16k", "kernel-squashfs-16k", 502_661_120.0, 161.2),
    ("squashfs 128k", "kernel-squashfs-128k", 398_204_928.0, 291.6),
];

/// Further images measured here.
const EROFS_MORE: [(&str, &str); 2] =
    [("erofs 4k by mkfs.erofs", "kernel-mkfs.erofs-4k"), ("pagefold, library", "pagefold-4k")];

fn image_sizes() -> PublishedTable {
    let cells = |subject| {
        vec![Cell {
            bench: "image",
            case: "*/source-table".to_owned(),
            subject,
            take: Take::Scaled("image_bytes", 1e-6),
        }]
    };
    let there = EROFS_ROWS.map(|(name, subject, bytes, _)| row(name, &[bytes / 1e6], cells(subject)));
    let here = [row("erofs 4k by mkfs.erofs", &[NONE], cells("kernel-mkfs.erofs-4k"))];
    PublishedTable {
        title: "Images by file system and cluster size: bytes",
        source: EROFS_SOURCE,
        there: "enwik9, 1,000,000,000 bytes, LZ4. The row of ext4 is the file itself.",
        here: "Text of this machine as one file, LZ4. ‘erofs 4k’ is pagefold's image; ext4 is the file system's image.",
        unit: "MB",
        published: &["size"],
        measured: &["size"],
        rows: there.into_iter().chain(here).collect(),
        decimals: 1,
        has_means: false,
    }
}

fn sequential_reads() -> PublishedTable {
    let cells = |subject| {
        ["cold", "warm"]
            .map(|cache| Cell {
                bench: "image",
                case: format!("*/source-table/{cache}"),
                subject,
                take: Take::Scaled("seq_read_mb_s", MIB_OF_MB),
            })
            .into()
    };
    let there = EROFS_ROWS.map(|(name, subject, _, mib_s)| row(name, &[mib_s], cells(subject)));
    let here = EROFS_MORE.map(|(name, subject)| row(name, &[NONE], cells(subject)));
    PublishedTable {
        title: "Sequential read by file system and cluster size",
        source: EROFS_SOURCE,
        there: "i5-8250U at 1.8 GHz, NVMe, Linux 5.2-rc3, LZ4; the mean of 5 runs.",
        here: "One thread, kernel mounts over a loop device; cold: the image is out of the page cache of this machine, \
               warm: it is in it. ‘erofs 4k’ is pagefold's image read by the kernel.",
        unit: "MiB/s",
        published: &["read"],
        measured: &["cold", "warm"],
        rows: there.into_iter().chain(here).collect(),
        decimals: 0,
        has_means: false,
    }
}

/// Converts MB to MiB.
const MIB_OF_MB: f64 = 1e6 / (1 << 20) as f64;

#[cfg(test)]
mod tests {
    use super::{super::record, *};

    #[test]
    fn tables_have_a_value_for_each_column() {
        let tables = tables();
        assert_eq!(tables.len(), 10);
        for table in &tables {
            for row in &table.rows {
                assert_eq!(row.published.len(), table.published.len(), "{}: {}", table.title, row.name);
                assert_eq!(row.measured.len(), table.measured.len(), "{}: {}", table.title, row.name);
            }
            assert!(table.measured_values(&Record::default()).iter().flatten().all(Option::is_none));
        }
    }

    #[test]
    fn the_sources_say_what_they_say() {
        let tables = tables();
        let published = |title: &str, row: &str, column: usize| {
            let table = tables.iter().find(|table| table.title == title).unwrap();
            table.rows.iter().find(|other| other.name == row).unwrap().published[column].unwrap()
        };
        assert_eq!(published("zram's compression backends: ratio and speed", "LZ4 (r101; here liblz4)", 2), 1820.0);
        assert_eq!(published("Lock strategies: iozone", "Mixed workload", 4), 5_972_253.0);
        assert_eq!(published("Effective compression of xvmalloc and xcfmalloc", "text (75 %)", 1), 78.11);
        assert!((published("LZO, LZ4 and LZ4_DYN: sizes", "LZ4_DYN (here lz4dyn)", 0) - 19.67).abs() < 0.01);
        assert_eq!(published("Sequential read by file system and cluster size", "squashfs 128k", 0), 291.6);
        let streams = tables.iter().find(|table| table.title == "zram's stream policies").unwrap();
        let last = streams.rows.last().unwrap();
        assert_eq!((last.group.as_str(), last.name.as_str()), ("10 jobs", "WRITE mixed-rand"));
        assert_eq!(last.published, [Some(1855.7), Some(1914.6), Some(2078.1)]);
    }

    #[test]
    fn cells_are_made_of_a_runs_figures() {
        let mut record = Record::default();
        for (metric, value) in [("compress_mb_s", 100.0), ("decompress_mb_s", 400.0), ("ratio", 0.5)] {
            let line = record::Line::about("text", "lz4", metric, value, "");
            record.add(record::Line { bench: "codec".to_owned(), ..line });
        }
        let value = |take| Cell { bench: "codec", case: "*".to_owned(), subject: "lz4", take }.value(&record);
        for (take, expected) in [
            (Take::Coding(400.0), 5.0),
            (Take::Inverse("ratio"), 2.0),
            (Take::Scaled("ratio", 10.0), 5.0),
            (Take::Percent("ratio", "compress_mb_s"), 0.5),
        ] {
            assert!((value(take).unwrap() - expected).abs() < 1e-9, "{expected}");
        }
        assert_eq!(value(Take::Scaled("absent", 1.0)), None);
    }

    #[test]
    fn means_are_over_rows_that_have_both() {
        let rows: [&[Option<f64>]; 3] = [&[Some(1.0), Some(2.0)], &[Some(2.0), Some(16.0)], &[None, Some(9.0)]];
        assert_eq!(means(&rows), [Some(1.0), Some(4.0)]);
        assert_eq!(means(&[]), []);
    }
}

//! Statistics of pools and disks.

/// One figure of [`Stats`] or [`DiskStats`], for programs that show all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Figure {
    /// The name of its field.
    pub name: &'static str,
    /// Its value, in the unit given by the name or the field's documentation.
    pub value: u64,
}

fn named<const N: usize>(figures: [(&'static str, u64); N]) -> impl Iterator<Item = Figure> {
    figures.into_iter().map(|(name, value)| Figure { name, value })
}

/// What a pool holds and the memory that it uses. The first seven figures mean the same as in
/// zram's `mm_stat` (kernel document `admin-guide/blockdev/zram.rst`).
///
/// `spent_bytes = mem_used_total + table_bytes + stream_bytes + training_bytes + outside_bytes ≤
/// mem_limit`, plus what is taken beyond the limit ([`Pool::take_exempt`](crate::Pool::take_exempt))
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Bytes of the stored pages, including same-filled ones.
    pub orig_data_size: u64,
    /// Bytes of their objects; same-filled pages have none.
    pub compr_data_size: u64,
    /// Bytes of memory held for objects, including all overhead.
    pub mem_used_total: u64,
    /// The limit of `spent_bytes`; `u64::MAX` if there is none.
    pub mem_limit: u64,
    /// The maximum of `spent_bytes` so far.
    pub mem_used_max: u64,
    /// Pages of one repeated 8-byte word, stored in their entries.
    pub same_pages: u64,
    /// Pages stored uncompressed, because they do not compress.
    pub huge_pages: u64,
    /// Pages, of any disks, that share their objects with equal ones.
    pub shared_pages: u64,
    /// Bytes that deduplication saves: what these objects would use in addition if stored
    /// separately.
    pub shared_saved_bytes: u64,
    /// Bytes of the table of entries, and of the index of equal pages.
    pub table_bytes: u64,
    /// Bytes of compression streams and counters.
    pub stream_bytes: u64,
    /// Number of codec tables in use: 1 until some are trained, 0 if the codec has none.
    pub codec_tables: u64,
    /// A hash of the tables currently used for compression; 0 if there are none.
    pub tables_id: u64,
    /// Bytes of these tables.
    pub tables_bytes: u64,
    /// Seconds since they were trained; 0 if they came with the codec.
    pub tables_age_s: u64,
    /// By how many thousandths they shrink pages more than the codec's initial tables, measured
    /// when they were trained.
    pub tables_gain_permille: u64,
    /// Number of trainings that found better tables.
    pub trainings: u64,
    /// Number of trainings that found no better tables.
    pub trainings_useless: u64,
    /// Bytes of trained tables, and of a training in progress.
    pub training_bytes: u64,
    /// Pages of clean disks ([`Pool::clean_disk`](crate::Pool::clean_disk)), which the figures of
    /// stored pages leave out.
    pub clean_pages: u64,
    /// Bytes of their objects and tables, which are in `mem_used_total` and `table_bytes` too.
    pub clean_bytes: u64,
    /// Bytes that the process uses outside the pool, within its limit and beyond it.
    pub outside_bytes: u64,
    /// The sum of all these bytes.
    pub spent_bytes: u64,
}

impl Stats {
    /// Returns the part of `spent_bytes` that cannot be discarded to make room.
    pub fn needed_bytes(&self) -> u64 {
        self.spent_bytes.saturating_sub(self.clean_bytes)
    }

    /// Returns every figure, in the order of the fields.
    pub fn figures(&self) -> impl Iterator<Item = Figure> + use<> {
        named([
            ("orig_data_size", self.orig_data_size),
            ("compr_data_size", self.compr_data_size),
            ("mem_used_total", self.mem_used_total),
            ("mem_limit", self.mem_limit),
            ("mem_used_max", self.mem_used_max),
            ("same_pages", self.same_pages),
            ("huge_pages", self.huge_pages),
            ("shared_pages", self.shared_pages),
            ("shared_saved_bytes", self.shared_saved_bytes),
            ("table_bytes", self.table_bytes),
            ("stream_bytes", self.stream_bytes),
            ("codec_tables", self.codec_tables),
            ("tables_id", self.tables_id),
            ("tables_bytes", self.tables_bytes),
            ("tables_age_s", self.tables_age_s),
            ("tables_gain_permille", self.tables_gain_permille),
            ("trainings", self.trainings),
            ("trainings_useless", self.trainings_useless),
            ("training_bytes", self.training_bytes),
            ("clean_pages", self.clean_pages),
            ("clean_bytes", self.clean_bytes),
            ("outside_bytes", self.outside_bytes),
            ("spent_bytes", self.spent_bytes),
        ])
    }
}

/// What a disk holds and the memory that it uses.
///
/// `spent_bytes = compr_data_size + table_bytes`: the overhead of its objects, streams and trained
/// tables count for the pool only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiskStats {
    /// Bytes of the stored pages, including same-filled ones.
    pub orig_data_size: u64,
    /// Bytes of their objects; same-filled pages have none.
    pub compr_data_size: u64,
    /// Pages of one repeated 8-byte word, stored in their entries.
    pub same_pages: u64,
    /// Pages stored uncompressed, because they do not compress.
    pub huge_pages: u64,
    /// The part of `compr_data_size` that is in objects shared with equal pages of this disk or
    /// others; each of these pages counts the object in full.
    pub shared_bytes: u64,
    /// Bytes of the disk's table of entries.
    pub table_bytes: u64,
    /// The bytes that count against `mem_limit`.
    pub spent_bytes: u64,
    /// The limit of `spent_bytes`; `u64::MAX` if there is none.
    pub mem_limit: u64,
}

impl DiskStats {
    /// Returns every figure, in the order of the fields.
    pub fn figures(&self) -> impl Iterator<Item = Figure> + use<> {
        named([
            ("orig_data_size", self.orig_data_size),
            ("compr_data_size", self.compr_data_size),
            ("same_pages", self.same_pages),
            ("huge_pages", self.huge_pages),
            ("shared_bytes", self.shared_bytes),
            ("table_bytes", self.table_bytes),
            ("spent_bytes", self.spent_bytes),
            ("mem_limit", self.mem_limit),
        ])
    }
}

//! A store's figures.

/// One figure of [`Stats`] or [`DiskStats`], for programs that show all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Figure {
    /// The name of its field.
    pub name: &'static str,
    /// Its value, in the unit that the name or the field's documentation says.
    pub value: u64,
}

fn named<const N: usize>(figures: [(&'static str, u64); N]) -> impl Iterator<Item = Figure> {
    figures.into_iter().map(|(name, value)| Figure { name, value })
}

/// What a store holds and what that costs. The first seven mean what zram's `mm_stat` means by them
/// (kernel document `admin-guide/blockdev/zram.rst`).
///
/// `spent_bytes = mem_used_total + table_bytes + stream_bytes + training_bytes + beside_bytes ≤
/// mem_limit`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Bytes of the pages stored, same-filled ones included.
    pub orig_data_size: u64,
    /// Bytes of their objects; same-filled pages have none.
    pub compr_data_size: u64,
    /// Bytes of memory held for objects, with all waste.
    pub mem_used_total: u64,
    /// The most that `spent_bytes` may become; `u64::MAX` when there is no limit.
    pub mem_limit: u64,
    /// The most that `spent_bytes` has been.
    pub mem_used_max: u64,
    /// Pages that are one 8-byte word over and over, kept in their entries.
    pub same_pages: u64,
    /// Pages that do not compress, kept as they are.
    pub huge_pages: u64,
    /// Pages, of any disks, that share their objects with equal ones.
    pub shared_pages: u64,
    /// Bytes that their objects would take more if each were kept for itself.
    pub shared_saved_bytes: u64,
    /// Bytes of the table of entries, and of what finds equal pages.
    pub table_bytes: u64,
    /// Bytes of compression streams and counters.
    pub stream_bytes: u64,
    /// Codec tables in use: 1 until some were trained, 0 with a codec that has none.
    pub codec_tables: u64,
    /// A hash of the tables with which pages are compressed now; 0 for none.
    pub tables_id: u64,
    /// Bytes of these tables.
    pub tables_bytes: u64,
    /// Seconds since they were trained; 0 if they came with the codec.
    pub tables_age_s: u64,
    /// By how many thousandths they make pages smaller than what came with the codec does, measured
    /// when they were trained.
    pub tables_gain_permille: u64,
    /// How often tables were trained that were better.
    pub trainings: u64,
    /// How often training found that tables would not help.
    pub trainings_useless: u64,
    /// Bytes of trained tables, and of a training that is under way.
    pub training_bytes: u64,
    /// Bytes that the process takes beside the pool and that count against its limit.
    pub beside_bytes: u64,
    /// All of that.
    pub spent_bytes: u64,
}

impl Stats {
    /// Every figure, in the order of the fields.
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
            ("beside_bytes", self.beside_bytes),
            ("spent_bytes", self.spent_bytes),
        ])
    }
}

/// What a disk holds and what that costs.
///
/// `spent_bytes = compr_data_size + table_bytes`: its objects' waste, streams and trained tables
/// are the pool's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiskStats {
    /// Bytes of the pages stored, same-filled ones included.
    pub orig_data_size: u64,
    /// Bytes of their objects; same-filled pages have none.
    pub compr_data_size: u64,
    /// Pages that are one 8-byte word over and over, kept in their entries.
    pub same_pages: u64,
    /// Pages that do not compress, kept as they are.
    pub huge_pages: u64,
    /// Of `compr_data_size`, bytes of objects that equal pages of this disk or others share; they
    /// count for each in full.
    pub shared_bytes: u64,
    /// Bytes of its table of entries.
    pub table_bytes: u64,
    /// What counts against `mem_limit`.
    pub spent_bytes: u64,
    /// The most that `spent_bytes` may become; `u64::MAX` when there is no limit.
    pub mem_limit: u64,
}

impl DiskStats {
    /// Every figure, in the order of the fields.
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

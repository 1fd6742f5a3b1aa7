//! Extracts an image and packs the result again.

use std::fs;
use std::path::Path;

use pagefold_erofs::{BuildOptions, ExtractOptions, Image, ScanOptions, Tree, build};

use crate::case::Case;
use crate::compare::Keeps;
use crate::expected::Expected;
use crate::memory_file;
use crate::memory_file::read_all;

/// Extracts the case's image into a directory that it creates, compares that with the case, scans
/// it and builds the image again, which must have the same bytes. Returns `false` if the file
/// system does not support everything, such as long xattrs, or the user may not set some xattrs.
///
/// # Errors
/// The difference.
pub fn repack(case: &Case, expected: &Expected, image: &Path, target: &Path) -> Result<bool, String> {
    let opened = Image::open_path(image).map_err(|error| error.to_string())?;
    let options = ExtractOptions { threads: 2, ..ExtractOptions::default() };
    let report = opened.extract(target, &options).map_err(|error| format!("extracting: {error}"))?;
    if !report.problems.is_empty() {
        let refused = report.problems.iter().all(|problem| matches!(problem.error, pagefold_erofs::Error::Io { .. }));
        return if refused { Ok(false) } else { Err(format!("extracting: {:?}", report.problems)) };
    }
    if !report.left_out.xattrs.is_empty() {
        return Ok(false);
    }
    expected.compare_directory(target, Keeps::COPY).map_err(|what| format!("extracted: {what}"))?;
    let tree = Tree::scan(target, &ScanOptions::default()).map_err(|error| format!("scanning: {error}"))?;
    let again = memory_file().map_err(|error| error.to_string())?;
    let options = BuildOptions { threads: 2, ..case.options.clone() };
    build(&tree, &options, &again).map_err(|error| format!("packing again: {error}"))?;
    let before = fs::read(image).map_err(|error| error.to_string())?;
    let after = read_all(&again).map_err(|error| error.to_string())?;
    if before != after {
        let at = before.iter().zip(&after).position(|(before, after)| before != after);
        return Err(format!(
            "packing it again changes the image: {} bytes, now {}, first difference at {at:?}",
            before.len(),
            after.len()
        ));
    }
    Ok(true)
}

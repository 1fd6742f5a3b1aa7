//! Kernel block devices: [`nbd`], over connections to an NBD server, and [`loop_device`], over a
//! file; and their [`partitions`]. All need root.
//!
//! A device stays when the process that created it ends. `/sys` describes it, so it can be found
//! again without a separate record.

pub mod loop_device;
pub mod nbd;
pub mod partitions;

use std::{fs, io, path::Path};

/// Returns the numbers of the block devices whose names begin with `prefix`, ascending.
fn numbers(prefix: &str) -> io::Result<Vec<u32>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir("/sys/block")? {
        let name = entry?.file_name();
        numbers.extend(name.to_str().and_then(|name| name.strip_prefix(prefix)?.parse::<u32>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Returns the content of an attribute without its newline; `None` if the device does not have it,
/// or has vanished.
fn attribute(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text.strip_suffix('\n').unwrap_or(&text).to_owned())),
        Err(error) if matches!(error.raw_os_error(), Some(2 | 6 | 19)) => Ok(None),
        Err(error) => Err(error),
    }
}

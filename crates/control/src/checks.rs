//! Checks of requests' values.

use std::collections::HashSet;

use pagefold_size::{show, written};

use crate::{Add, AddBase, Code, DiskQuota, Failure, Fork, Quota, Resize, check_name};

/// Maximum number of disks per fork request: the answer has a record of each.
pub const MAX_FORKS: usize = 512;

/// A disk's size is a multiple of this.
const SECTOR_BYTES: u64 = 512;

/// Smallest rate of a disk: below it, a single large request would take longer than clients wait.
pub const MIN_RATE_BYTES: u64 = 64 << 10;

/// Smallest memory limit of a disk: a page that does not compress, and the table that refers to it.
pub const MIN_LIMIT_BYTES: u64 = 8 << 10;

impl Add {
    /// Checks the name, the size, the limit and the quota.
    ///
    /// # Errors
    /// See [`check_name`], [`check_size`], [`check_limit`] and [`DiskQuota::check`].
    pub fn check(&self) -> Result<(), Failure> {
        check_name(&self.name)?;
        check_size(self.size_bytes)?;
        check_limit(self.limit_bytes)?;
        self.quota.check()
    }
}

impl AddBase {
    /// Checks the name and the quota.
    ///
    /// # Errors
    /// See [`check_name`] and [`DiskQuota::check`].
    pub fn check(&self) -> Result<(), Failure> {
        check_name(&self.name)?;
        self.quota.check()
    }
}

impl Resize {
    /// Checks the size.
    ///
    /// # Errors
    /// See [`check_size`].
    pub fn check(&self) -> Result<(), Failure> {
        check_size(self.size_bytes)
    }
}

impl Fork {
    /// Checks the names, the limit and the quota.
    ///
    /// # Errors
    /// See [`check_name`], [`check_limit`] and [`DiskQuota::check`]; a name is given twice, or there are
    /// too many for the answer or for the socket.
    pub fn check(&self) -> Result<(), Failure> {
        let Self { names, limit_bytes, socket, quota, .. } = self;
        check_limit(*limit_bytes)?;
        quota.check()?;
        if names.is_empty() || names.len() > MAX_FORKS {
            let what = format!("field `names`: expected 1 to {MAX_FORKS} names, got {}", names.len());
            return Err(Failure::new(Code::InvalidRequest, what));
        }
        if socket.is_some() && names.len() > 1 {
            let what = "field `socket`: each disk needs a socket of its own: fork them one by one, from a snapshot";
            return Err(Failure::new(Code::InvalidRequest, what));
        }
        let mut seen = HashSet::new();
        for name in names {
            check_name(name)?;
            if !seen.insert(name) {
                return Err(Failure::new(
                    Code::NameInUse,
                    format!("'{name}' is given twice: each fork needs its own name"),
                ));
            }
        }
        Ok(())
    }
}

impl Quota {
    /// Checks the number of connections and the rate.
    ///
    /// # Errors
    /// [`Code::InvalidRequest`].
    pub fn check(&self) -> Result<(), Failure> {
        self.of_disk().check()
    }
}

impl DiskQuota {
    /// Checks the number of connections and the rate.
    ///
    /// # Errors
    /// [`Code::InvalidRequest`].
    pub fn check(&self) -> Result<(), Failure> {
        let wrong = |what: String| Err(Failure::new(Code::InvalidRequest, what));
        match self {
            Self { connections: Some(0), .. } => wrong("field `connections`: expected at least 1".to_owned()),
            Self { bytes_per_second: Some(rate), .. } if *rate < MIN_RATE_BYTES => {
                wrong(format!("field `bytes_per_second`: expected at least {MIN_RATE_BYTES}, got {rate}"))
            }
            _ => Ok(()),
        }
    }
}

/// Checks whether a disk can have this size, apart from limits of the system.
///
/// # Errors
/// [`Code::InvalidSize`].
pub fn check_size(size_bytes: u64) -> Result<(), Failure> {
    if size_bytes == 0 || !size_bytes.is_multiple_of(SECTOR_BYTES) {
        let what = format!("invalid disk size {size_bytes}: must be a non-zero multiple of {SECTOR_BYTES}");
        return Err(Failure::new(Code::InvalidSize, what));
    }
    Ok(())
}

/// Checks whether a disk can have this memory limit; `None` is no limit.
///
/// # Errors
/// [`Code::InvalidLimit`].
pub fn check_limit(limit_bytes: Option<u64>) -> Result<(), Failure> {
    if let Some(limit_bytes) = limit_bytes.filter(|&limit_bytes| limit_bytes < MIN_LIMIT_BYTES) {
        let what = format!(
            "memory limit of {} is too small: a disk with a single page needs {}",
            written(limit_bytes),
            show(MIN_LIMIT_BYTES)
        );
        return Err(Failure::new(Code::InvalidLimit, what));
    }
    Ok(())
}

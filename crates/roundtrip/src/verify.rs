//! Builds an image of a case and reads it back.

use std::fs::{self, File};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use pagefold_erofs::{BuildOptions, Error, Image, build};

use crate::case::{Case, Store};
use crate::expected::Expected;
use crate::memory_file::{memory_file, read_all};

/// The result of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The image is as expected.
    Sound,
    /// The builder rejects the options, for this reason.
    Refused(String),
}

/// Builds the case's image with one thread in a new file at `path`: the same bytes as in
/// [`round_trip`].
///
/// # Errors
/// Errors of the builder and the system.
pub fn build_into(case: &Case, expected: &Expected, path: &Path) -> Result<(), Error> {
    let failed = |source| Error::Io { what: format!("creating {}", path.display()), source };
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let out = File::options().read(true).write(true).create_new(true).open(path).map_err(failed)?;
    build_in(case, expected, 1, Store::Memory, &out)
}

fn build_in(case: &Case, expected: &Expected, threads: usize, store: Store, out: &File) -> Result<(), Error> {
    let tree = case.tree(&expected.contents, store)?;
    let report = build(&tree, &BuildOptions { threads, ..case.options.clone() }, out)?;
    let len = out.metadata().map_err(|source| Error::Io { what: "the image's length".to_owned(), source })?.len();
    assert_eq!(report.image_bytes, len, "the builder reports a wrong length of the image");
    Ok(())
}

/// Builds the case's image with one thread from contents in memory, and with two threads from
/// contents stored without zeros. Both images must be equal. Reading back, from memory or from a
/// file, must yield the case's contents, and `check` must find no problems.
///
/// # Errors
/// The first failure.
pub fn round_trip(case: &Case) -> Result<Outcome, String> {
    let expected = Expected::of(case);
    let files = memory_file().and_then(|first| Ok((first, memory_file()?)));
    let (first, second) = files.map_err(|error| error.to_string())?;
    match build_in(case, &expected, 1, Store::Memory, &first) {
        Ok(()) => {}
        Err(error @ Error::Options(_)) if refused(case) => return Ok(Outcome::Refused(error.to_string())),
        Err(error) => return Err(format!("not built: {error}")),
    }
    build_in(case, &expected, 2, Store::Spans, &second)
        .map_err(|error| format!("not built by two threads: {error}"))?;
    let bytes = read_all(&first).map_err(|error| format!("the image: {error}"))?;
    let again = read_all(&second).map_err(|error| format!("the image: {error}"))?;
    if bytes != again {
        let at = bytes.iter().zip(&again).position(|(left, right)| left != right);
        return Err(format!(
            "two threads, or holes, change the image: {} bytes and {}, from {at:?}",
            bytes.len(),
            again.len()
        ));
    }
    let seed = bytes.len() as u64;
    let in_memory = (seed / 512).is_multiple_of(2);
    let image = if in_memory { Image::open_with(bytes, 1 << 20) } else { Image::open_with(first, 1 << 20) };
    let image = image.map_err(|error| format!("not opened: {error}"))?;
    expected.compare_image(&image, seed)?;
    let problems = image.check(1).problems;
    if !problems.is_empty() {
        return Err(format!("check: {problems:?}"));
    }
    Ok(Outcome::Sound)
}

/// Returns whether the options alone are rejected.
fn refused(case: &Case) -> bool {
    let empty = Case::new(case.options.clone());
    memory_file().and_then(|out| build_in(&empty, &Expected::of(&empty), 1, Store::Memory, &out)).is_err()
}

/// Like [`round_trip`], with panics as failures.
///
/// # Errors
/// The errors of [`round_trip`], or the panic's message.
pub fn attempt(case: &Case) -> Result<Outcome, String> {
    catch_unwind(AssertUnwindSafe(|| round_trip(case))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("panic: {}", text.unwrap_or("without a message")))
    })
}

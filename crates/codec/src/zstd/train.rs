//! libzstd's training of dictionaries.

use crate::PAGE_SIZE;

/// Returns a dictionary of at most `size` bytes that libzstd trains on `pages`, stored
/// contiguously. Returns `None` if libzstd finds none.
pub(crate) fn trained_dictionary(pages: &[u8], size: usize) -> Option<Vec<u8>> {
    let mut trained = vec![0; size];
    let page_sizes = vec![PAGE_SIZE; pages.len() / PAGE_SIZE];
    let len = zstd_safe::train_from_buffer(trained.as_mut_slice(), pages, &page_sizes).ok()?;
    trained.truncate(len);
    Some(trained)
}

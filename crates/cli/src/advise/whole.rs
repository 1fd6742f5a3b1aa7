//! A sparse file with little data is packed as it is. Where few zeros surround short stretches of data,
//! clusters end in other places than those of samples.

use std::{
    fs::File,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use pagefold_erofs::{BuildOptions, Content, NodeKind, build};
use rustix::fs::{SeekFrom, seek};

use super::{
    clock::Deadline,
    costs::{empty_tree, memory_file, node},
    input::{Files, Input, InputKind},
};

/// Maximum data of such a file: all choices together take about two seconds of processor time.
const MOST_DATA_BYTES: u64 = 16 << 20;

/// Maximum number of stretches of data.
const MOST_STRETCHES: usize = 1 << 16;

/// Returns the bytes of images of the file for each choice, as long as the time suffices, if it has at
/// most `most_bytes` of data.
pub(super) fn pack(
    input: &Input,
    choices: &[BuildOptions],
    most_bytes: u64,
    end: Deadline<'_>,
    threads: usize,
) -> anyhow::Result<Vec<Option<u64>>> {
    let found: Vec<_> = choices.iter().map(|_| Mutex::new(None)).collect();
    let next = AtomicUsize::new(0);
    let work = |file: &Arc<File>| -> anyhow::Result<()> {
        while let number = next.fetch_add(1, Ordering::Relaxed)
            && let Some(options) = choices.get(number)
            && !end.is_over()
        {
            let mut tree = empty_tree();
            let content = Content::Open(Arc::clone(file), Path::new(&input.name).into());
            let file = node(NodeKind::Regular { content, size: input.bytes() });
            tree.add(tree.root(), b"disk", file)?;
            // A file that changes is only sampled.
            if let Ok(report) = build(&tree, options, &memory_file()?) {
                *found[number].lock().unwrap_or_else(PoisonError::into_inner) = Some(report.image_bytes);
            }
        }
        Ok(())
    };
    if let Some(file) = sparse_file(input, most_bytes.min(MOST_DATA_BYTES)) {
        thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(|| work(file))).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect::<anyhow::Result<()>>()
        })?;
    }
    Ok(found.into_iter().map(|found| found.into_inner().unwrap_or_else(PoisonError::into_inner)).collect())
}

/// Returns the file if it has holes, and at most `most_bytes` of data.
fn sparse_file(input: &Input, most_bytes: u64) -> Option<&Arc<File>> {
    let Files::One(file) = &input.files else { return None };
    if input.kind != InputKind::File {
        return None;
    }
    let (len, mut at, mut data_bytes) = (input.bytes(), 0, 0);
    for _ in 0..MOST_STRETCHES {
        let data = match seek(file, SeekFrom::Data(at)) {
            Ok(data) if data < len => data,
            Ok(_) | Err(rustix::io::Errno::NXIO) => return (data_bytes < len).then_some(file),
            Err(_) => return None,
        };
        at = seek(file, SeekFrom::Hole(data)).ok()?.min(len);
        data_bytes += at - data;
        if data_bytes > most_bytes {
            return None;
        }
    }
    None
}

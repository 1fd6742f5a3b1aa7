//! A sparse file with little data is packed as it is. Where few zeros surround short stretches of data,
//! clusters end in other places than those of samples.

use std::{fs::File, path::Path, sync::Arc};

use pagefold_erofs::{BuildOptions, Content, NodeKind, build};
use rustix::fs::{SeekFrom, seek};

use super::{
    clock::Deadline,
    costs::{empty_tree, memory_file, node},
    input::{Files, Input, InputKind},
    parallel,
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
    let Some(file) = sparse_file(input, most_bytes.min(MOST_DATA_BYTES)) else { return Ok(vec![None; choices.len()]) };
    parallel::each(choices.len(), threads, end, |number| {
        let mut tree = empty_tree();
        let content = Content::Open(Arc::clone(file), Path::new(&input.name).into());
        tree.add(tree.root(), b"disk", node(NodeKind::Regular { content, size: input.bytes() }))?;
        // A file that changes is only sampled.
        Ok(build(&tree, &choices[number], &memory_file()?).ok().map(|report| report.image_bytes))
    })
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

//! Bases of every kind against the plain files that they represent.

mod changing;
mod damaged;
mod formats;
mod inside;
mod opening;
mod qcow2;
mod reading;
mod ready;
mod signatures;
mod together;

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use pagefold_base::{Base, Cache, Options};
use pagefold_erofs::{BuildOptions, Content, Node, NodeKind, Tree, build};

/// The lines that a base logged.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    fn lines(&self) -> Vec<String> {
        self.0.lock().expect("the lock").clone()
    }

    fn logger(&self) -> impl Fn(&str) + Send + Sync + 'static {
        let lines = self.clone();
        move |line| lines.0.lock().expect("the lock").push(line.to_owned())
    }
}

/// Opens a base, with a cache of a megabyte, too small for the content of the tests.
fn open(path: &Path, options: &Options) -> (Base, Lines) {
    let lines = Lines::default();
    (Base::open(path, options, &Cache::new(1 << 20), lines.logger()).expect("a base"), lines)
}

fn node(kind: NodeKind) -> Node {
    Node { kind, permissions: 0o755, uid: 0, gid: 0, mtime_s: 0, mtime_nsec: 0, xattrs: Vec::new() }
}

/// Builds an image with only the file at `path`, under its name.
fn image_of(path: &Path, options: &BuildOptions) -> PathBuf {
    let mut tree = Tree::new(node(NodeKind::Fifo));
    let size = fs::metadata(path).expect("the file").len();
    let kind =
        NodeKind::Regular { content: Content::Open(Arc::new(File::open(path).expect("the file")), path.into()), size };
    let name = path.file_name().expect("a name").as_encoded_bytes();
    tree.add(tree.root(), name, node(kind)).expect("a name");
    let image = path.with_extension("erofs");
    let file = File::options().read(true).write(true).create(true).truncate(true).open(&image);
    build(&tree, options, &file.expect("an image")).expect("an image");
    image
}

/// Content with compressible runs, noise and zeros in between, and a length that is not a multiple
/// of anything.
fn content(len: usize) -> Vec<u8> {
    let mut word = 0x9e37_79b9_7f4a_7c15_u64;
    let mut content = Vec::with_capacity(len + 8192);
    while content.len() < len {
        word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        let run = 512 + (word >> 40) as usize % 30_000;
        match (word >> 33) % 4 {
            0 => content.resize(content.len() + run, 0),
            1 => content.extend((0..run).map(|at| (word.rotate_left(at as u32 % 61) >> 20) as u8 ^ at as u8)),
            2 => content.extend((0..run).flat_map(|at| format!("{} ", at as u64 ^ word >> 44).into_bytes()).take(run)),
            _ => content.resize(content.len() + run, (word >> 24) as u8),
        }
    }
    content.truncate(len);
    content
}

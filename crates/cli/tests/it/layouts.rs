//! Random layouts of files, and commands that write somewhere in them, next to a plain model of
//! what may be replaced.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{MetadataExt, symlink},
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use proptest::{collection::vec, prelude::*, sample::select};
use tempfile::TempDir;

use crate::server::{Server, make_image, pagefold, run};

/// Directories; the first is a source.
const FOLDERS: [&str; 3] = ["s", "s/sub", "o"];

/// Names of files and of outputs.
const NAMES: [&str; 9] = ["n.txt", "g", "l1", "a.erofs", "l2.erofs", "b.img", "c.raw", "d.qcow2", "e.tar.gz"];

/// Extensions that mean another format than EROFS, and those that mean none.
const NOT_EROFS: [&str; 5] = ["raw", "qcow2", "tar", "gz", "vmdk"];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Text,
    Noise,
    Empty,
    Erofs,
    Qcow2,
}

impl Kind {
    fn content(self, number: usize) -> Vec<u8> {
        match self {
            Self::Text => format!("text {number}\n").into_bytes(),
            Self::Noise => (0..5000 + number).map(|at| (at * at / 7 + number) as u8).collect(),
            Self::Empty => Vec::new(),
            Self::Erofs => erofs().clone(),
            Self::Qcow2 => [&b"QFI\xfb\0\0\0\x03"[..], &[number as u8; 600]].concat(),
        }
    }
}

/// A small image.
fn erofs() -> &'static Vec<u8> {
    static IMAGE: OnceLock<Vec<u8>> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let folder = TempDir::new().expect("a folder");
        fs::create_dir(folder.path().join("s")).expect("a folder");
        let image = folder.path().join("image");
        run(pagefold().arg("pack").arg(folder.path().join("s")).arg("-o").arg(&image));
        fs::read(image).expect("an image")
    })
}

#[derive(Clone, Debug)]
enum Entry {
    File(Kind),
    /// To the entry with this number, if it precedes.
    HardLink(usize),
    /// To a path, which may not exist.
    SymbolicLink(usize, usize),
}

fn entry() -> impl Strategy<Value = Entry> {
    prop_oneof![
        5 => select(vec![Kind::Text, Kind::Noise, Kind::Empty, Kind::Erofs, Kind::Erofs, Kind::Qcow2]).prop_map(Entry::File),
        2 => (0usize..8).prop_map(Entry::HardLink),
        2 => (0..FOLDERS.len(), 0..NAMES.len()).prop_map(|(folder, name)| Entry::SymbolicLink(folder, name)),
    ]
}

/// Entries by folder and name.
type Layout = Vec<((usize, usize), Entry)>;

fn layout() -> impl Strategy<Value = Layout> {
    vec(((0..FOLDERS.len(), 0..NAMES.len()), entry()), 2..9)
}

/// A layout in a directory, with its content before a command runs.
struct MadeLayout {
    root: TempDir,
    before: BTreeMap<PathBuf, FoundFile>,
}

/// What has a name.
#[derive(Clone, Debug, PartialEq)]
enum FoundFile {
    File(Vec<u8>),
    Link(PathBuf),
    Folder,
    Other,
}

impl MadeLayout {
    fn new(layout: &Layout) -> Self {
        let root = TempDir::new().expect("a folder");
        let at = |(folder, name): (usize, usize)| root.path().join(FOLDERS[folder]).join(NAMES[name]);
        for folder in FOLDERS {
            fs::create_dir(root.path().join(folder)).expect("a folder");
        }
        symlink("../s", root.path().join("o/link")).expect("a link");
        for (number, (place, entry)) in layout.iter().enumerate() {
            // A name that is taken stays.
            let _ = match entry {
                Entry::File(_) if fs::symlink_metadata(at(*place)).is_ok() => Ok(()),
                Entry::File(kind) => fs::write(at(*place), kind.content(number)),
                Entry::HardLink(other) => {
                    layout.get(*other).map_or(Ok(()), |(other, _)| fs::hard_link(at(*other), at(*place)))
                }
                Entry::SymbolicLink(folder, name) => symlink(at((*folder, *name)), at(*place)),
            };
        }
        let mut made = Self { root, before: BTreeMap::new() };
        made.before = made.found();
        made
    }

    fn path(&self, below: &str) -> PathBuf {
        self.root.path().join(below)
    }

    fn found(&self) -> BTreeMap<PathBuf, FoundFile> {
        let mut found = BTreeMap::new();
        let mut folders = vec![self.root.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                let kind = fs::symlink_metadata(&path).expect("a file").file_type();
                let what = match kind {
                    kind if kind.is_file() => FoundFile::File(fs::read(&path).expect("a file")),
                    kind if kind.is_symlink() => FoundFile::Link(fs::read_link(&path).expect("a link")),
                    kind if kind.is_dir() => FoundFile::Folder,
                    _ => FoundFile::Other,
                };
                if what == FoundFile::Folder {
                    folders.push(path.clone());
                }
                found.insert(path, what);
            }
        }
        found
    }

    /// Checks that a command that ended changed nothing but `output`.
    fn check(&self, output: Option<&Path>) -> Result<(), TestCaseError> {
        let (mut before, mut after) = (self.before.clone(), self.found());
        if let Some(output) = output {
            before.remove(output);
            prop_assert!(matches!(after.remove(output), Some(FoundFile::File(_))), "no output");
        }
        for (path, what) in &before {
            prop_assert!(after.get(path) == Some(what), "{} is not what it was", path.display());
        }
        prop_assert_eq!(before.len(), after.len(), "a file was left");
        Ok(())
    }
}

/// Returns the path at which a file that is written to `path` appears.
fn end_of(path: &Path) -> Option<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..10 {
        if let Ok(found) = fs::canonicalize(&path) {
            return Some(found);
        }
        match fs::read_link(&path) {
            Ok(target) => path = path.parent()?.join(target),
            Err(_) => return Some(fs::canonicalize(path.parent()?).ok()?.join(path.file_name()?)),
        }
    }
    None
}

fn inode(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

fn is_erofs(content: &[u8]) -> bool {
    content.get(1024..1028) == Some(&[0xe2, 0xe1, 0xf5, 0xe0])
}

fn extension(path: &Path) -> String {
    path.extension().map_or_else(String::new, |extension| extension.to_string_lossy().to_ascii_lowercase())
}

/// Returns whether a name says what the bytes of a source are.
fn says_a_format(path: &Path) -> bool {
    !["txt", ""].contains(&&*extension(path))
}

/// Ways to write a path, where the link `o/link` leads to `s`.
#[derive(Clone, Copy, Debug)]
enum Spelling {
    Plain,
    Detour,
    ThroughLink,
}

fn spell(place: (usize, usize), spelling: Spelling) -> String {
    let (folder, name) = (FOLDERS[place.0], NAMES[place.1]);
    match (spelling, folder.strip_prefix('s')) {
        (Spelling::ThroughLink, Some(below)) => format!("o/link{below}/{name}"),
        (Spelling::Detour, _) => format!("o/../{folder}/{name}"),
        _ => format!("{folder}/{name}"),
    }
}

fn place() -> impl Strategy<Value = (usize, usize)> {
    (0..FOLDERS.len(), 0..NAMES.len())
}

/// An output: mostly an entry of the layout, with this number.
fn output() -> impl Strategy<Value = (Option<usize>, (usize, usize))> {
    (prop_oneof![4 => (0usize..9).prop_map(Some), 1 => Just(None)], place())
}

fn chosen(layout: &Layout, output: (Option<usize>, (usize, usize))) -> (usize, usize) {
    output.0.map_or(output.1, |number| layout[number % layout.len()].0)
}

fn spelling() -> impl Strategy<Value = Spelling> {
    select(vec![Spelling::Plain, Spelling::Detour, Spelling::ThroughLink])
}

/// Returns whether `pack` may write its output there.
fn may_pack(made: &MadeLayout, source: &str, output: &Path, force: bool) -> bool {
    if NOT_EROFS.contains(&&*extension(output)) {
        return false;
    }
    let Some(end) = end_of(output) else { return false };
    let Ok(content) = fs::read(&end) else { return !end.exists() };
    let source = fs::canonicalize(made.path(source)).expect("a source");
    let is_ours = content.is_empty() || is_erofs(&content);
    if source.is_file() {
        return inode(&end) != inode(&source) && (is_ours || force);
    }
    let others = made.before.iter().filter(|(path, what)| {
        matches!(what, FoundFile::File(_)) && path.starts_with(&source) && **path != end && inode(path) == inode(&end)
    });
    if others.count() > 0 {
        return false;
    }
    is_ours || force && !end.starts_with(&source)
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: 80, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn packing_loses_nothing(
        layout in layout(),
        (output, spelling, force) in (output(), spelling(), any::<bool>()),
        // The entry that is the source, or the directory.
        source in prop_oneof![Just(None), (0usize..9).prop_map(Some)],
    ) {
        let made = MadeLayout::new(&layout);
        let source = source.map(|number| spell(layout[number % layout.len()].0, Spelling::Plain)).filter(|source| {
            let what = made.before.get(&made.path(source));
            let is_plain = matches!(what, Some(FoundFile::File(bytes)) if !is_erofs(bytes) && !bytes.starts_with(b"QFI"));
            is_plain && !says_a_format(Path::new(source))
        });
        let source = source.unwrap_or_else(|| "s".to_owned());
        let output = chosen(&layout, output);
        let output = made.path(&spell(output, spelling));
        let end = end_of(&output);
        let may = may_pack(&made, &source, &output, force);
        let mut command = pagefold();
        command.args(["pack", "-T", "0"]).arg(made.path(&source)).arg("-o").arg(&output).args(force.then_some("--force"));
        let ended = command.output().expect("a start");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        prop_assert_eq!(ended.status.success(), may, "pack {} -o {}: {}", source, output.display(), said);
        if !may {
            return made.check(None);
        }
        let end = end.expect("an output");
        made.check(Some(&end))?;
        run(pagefold().args(["check", "-T", "0", "--against"]).arg(made.path(&source)).arg(&end));
    }

    #[test]
    fn freezing_loses_nothing(
        layout in layout(),
        (output, spelling, force) in (output(), spelling(), any::<bool>()),
        format in select(vec![None, Some("erofs"), Some("raw"), Some("qcow2"), Some("changes")]),
        disk in select(vec!["base", "packed", "job"]),
        // Which file of the server the output is a link to, if any.
        (link, is_hard) in (prop_oneof![3 => Just(None), 2 => (0usize..3).prop_map(Some)], any::<bool>()),
    ) {
        let served = Served::get();
        let made = MadeLayout::new(&layout);
        // A base has no changes.
        let disk = if format == Some("changes") { "job" } else { disk };
        let output = chosen(&layout, output);
        let output = made.path(&spell(output, spelling));
        let target = link.map(|link| served.files[link].0.clone()).filter(|target| {
            fs::symlink_metadata(&output).is_err()
                && if is_hard { fs::hard_link(target, &output) } else { symlink(target, &output) }.is_ok()
        });
        let made = MadeLayout { before: made.found(), ..made };
        let end = end_of(&output);
        let named = match &*extension(&output) {
            "erofs" => Some("erofs"),
            "img" | "raw" => Some("raw"),
            "qcow2" => Some("qcow2"),
            _ => None,
        };
        let other = ["tar", "gz", "vmdk"].contains(&&*extension(&output));
        let wanted = match format {
            Some("changes") => Some("raw"),
            Some(format) => Some(format),
            None => named,
        };
        let agrees = !other && (named.is_none() || named == wanted || extension(&output) == "img");
        let existing = end.as_ref().map(|end| fs::read(end).ok());
        let may = target.is_none() && wanted.is_some() && agrees && match &existing {
            None => false,
            Some(None) => end.as_ref().is_some_and(|end| !end.exists()),
            Some(Some(content)) => {
                force || content.is_empty() || match wanted {
                    Some("erofs") => is_erofs(content),
                    Some("qcow2") => content.starts_with(b"QFI\xfb"),
                    _ => false,
                }
            }
        };
        let shown = output.to_str().expect("a plain path");
        let mut command = match format {
            Some("changes") => served.server.ask(&["diff", disk, "--to", shown]),
            Some(format) => served.server.ask(&["freeze", disk, "--format", format, "-o", shown]),
            None => served.server.ask(&["freeze", disk, "-o", shown]),
        };
        let ended = command.args(force.then_some("--force")).output().expect("a start");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        prop_assert_eq!(ended.status.success(), may, "{:?}: {}", command, said);
        for (path, content) in &served.files {
            prop_assert!(fs::read(path).is_ok_and(|found| found == *content), "{} is not what it was", path.display());
        }
        if !may {
            return made.check(None);
        }
        let end = end.expect("an output");
        made.check(Some(&end))?;
        let content = fs::read(&end).expect("an output");
        match (format, wanted) {
            (Some("changes"), _) => prop_assert_eq!(content.len(), served.disk.len()),
            (_, Some("raw")) => prop_assert!(content == served.disk, "another disk"),
            (_, Some("qcow2")) => prop_assert!(content.starts_with(b"QFI\xfb")),
            _ => {
                let found = pagefold().arg("cat").arg(format!("{}:/disk.img", end.display())).output();
                prop_assert!(found.is_ok_and(|found| found.stdout == served.disk), "another disk");
            }
        }
    }
}

/// A server, the files that it uses with their content, and the content of each of its disks.
struct Served {
    server: Server,
    _folder: TempDir,
    files: Vec<(PathBuf, Vec<u8>)>,
    disk: Vec<u8>,
}

impl Served {
    /// Returns the server of all cases.
    fn get() -> std::rc::Rc<Self> {
        thread_local! {
            static SERVED: std::cell::OnceCell<std::rc::Rc<Served>> = const { std::cell::OnceCell::new() };
        }
        SERVED.with(|served| std::rc::Rc::clone(served.get_or_init(|| std::rc::Rc::new(Self::start()))))
    }

    fn start() -> Self {
        let folder = TempDir::new().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        make_image(&at("base.img"), 1);
        run(pagefold().arg("pack").arg(at("base.img")).arg("-o").arg(at("packed.erofs")));
        let text = |path: PathBuf| path.to_str().expect("a plain path").to_owned();
        let server = Server::start(&[&text(at("base.img")), &text(at("packed.erofs"))]);
        run(&mut server.ask(&["fork", "packed", "job"]));
        let files = [at("base.img"), at("packed.erofs"), server.folder().join("lock")];
        let files = files.map(|path| (path.clone(), fs::read(path).expect("a file"))).into();
        let disk = fs::read(at("base.img")).expect("a disk");
        Self { server, _folder: folder, files, disk }
    }
}

/// Names that are not UTF-8 or have a line feed are valid too.
#[test]
fn odd_names_are_outputs_too() {
    use std::os::unix::ffi::OsStrExt;
    let folder = TempDir::new().expect("a folder");
    fs::create_dir(folder.path().join("s")).expect("a folder");
    fs::write(folder.path().join("s/text"), "text").expect("a file");
    for name in [&b"\xff.erofs"[..], b"a\nb.erofs", b"-", b" .erofs", b"--force"] {
        let name = Path::new(std::ffi::OsStr::from_bytes(name));
        let output = folder.path().join("s").join(name);
        for _ in 0..2 {
            run(Command::new(env!("CARGO_BIN_EXE_pagefold"))
                .arg("pack")
                .arg(folder.path().join("s"))
                .arg("-o")
                .arg(&output));
            let image = fs::read(&output).expect("an image");
            assert!(is_erofs(&image) && image.len() < 9000);
        }
        fs::remove_file(&output).expect("an image");
    }
}

//! No files of a crate use each other in a circle.
//!
//! A file uses another if its code names something that the other one defines. A name is followed
//! through imports to the file with the definition, so a module that only declares its children, or
//! re-exports what they define (`pub use`), does not use them, and to import from such a module is to
//! use the file with the definition. Tests (`#[cfg(test)]`) may use anything. Methods are not
//! followed: where a type has methods in several files, their order is for readers to see.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// A path of names, such as `crate::a::B`.
type Names = Vec<String>;

/// A module: a file, or a part of one.
#[derive(Default)]
struct Module {
    file: PathBuf,
    children: BTreeSet<String>,
    defined: BTreeSet<String>,
    /// By the name that each has here.
    imports: BTreeMap<String, Names>,
    globs: Vec<Names>,
    /// Paths in code and in imports that are not re-exports.
    used: Vec<Names>,
    /// Re-exported names, each with its path, which are uses if the module's own code has them.
    reexported: Vec<(String, Names)>,
    /// All names in code.
    words: BTreeSet<String>,
}

/// The modules of a crate by their paths; the root's is empty.
#[derive(Default)]
struct Crate {
    modules: BTreeMap<Names, Module>,
}

fn word(tree: Option<&TokenTree>) -> Option<String> {
    match tree {
        Some(TokenTree::Ident(word)) => Some(word.to_string().trim_start_matches("r#").to_owned()),
        _ => None,
    }
}

fn is_mark(tree: Option<&TokenTree>, mark: char) -> bool {
    matches!(tree, Some(TokenTree::Punct(found)) if found.as_char() == mark)
}

fn group(tree: Option<&TokenTree>, delimiter: Delimiter) -> Option<TokenStream> {
    match tree {
        Some(TokenTree::Group(group)) if group.delimiter() == delimiter => Some(group.stream()),
        _ => None,
    }
}

/// Returns whether `trees` have `::` at `at`.
fn is_step(trees: &[TokenTree], at: usize) -> bool {
    is_mark(trees.get(at), ':') && is_mark(trees.get(at + 1), ':')
}

/// Returns whether an attribute leaves its item to tests: `cfg(test)`, or `cfg(all(…))` with it.
fn is_for_tests(attribute: &TokenStream) -> bool {
    let text: String = attribute.to_string().chars().filter(|letter| !letter.is_whitespace()).collect();
    let all = text.strip_prefix("cfg(all(").and_then(|conditions| conditions.strip_suffix("))"));
    text == "cfg(test)" || all.is_some_and(|conditions| conditions.split(',').any(|condition| condition == "test"))
}

/// Returns the place after the item at `at`.
fn after_item(trees: &[TokenTree], mut at: usize) -> usize {
    while at < trees.len() {
        if is_mark(trees.get(at), ';') || group(trees.get(at), Delimiter::Brace).is_some() {
            return at + 1;
        }
        at += 1;
    }
    at
}

/// Adds the paths of an import, each with its name in this module, `*` for all of a module's names.
fn imported(trees: &[TokenTree], before: &[String], found: &mut Vec<(Names, String)>) {
    let (mut path, mut at) = (before.to_vec(), 0);
    while at < trees.len() {
        if let Some(inner) = group(trees.get(at), Delimiter::Brace) {
            let inner: Vec<_> = inner.into_iter().collect();
            inner.split(|tree| is_mark(Some(tree), ',')).for_each(|tree| imported(tree, &path, found));
            return;
        }
        if is_mark(trees.get(at), '*') {
            found.push((path, "*".to_owned()));
            return;
        }
        if let Some(name) = word(trees.get(at)) {
            if name != "self" || path.is_empty() {
                path.push(name);
            }
            if !is_step(trees, at + 1) {
                let renamed = (word(trees.get(at + 1)).as_deref() == Some("as")).then(|| word(trees.get(at + 2)));
                let name = renamed.flatten().or_else(|| path.last().cloned());
                found.extend(name.map(|name| (path, name)));
                return;
            }
        }
        at += 1;
    }
}

impl Crate {
    fn of(root: &Path) -> Self {
        let mut all = Self::default();
        all.read_file(Vec::new(), root, root.parent().expect("a folder"));
        all
    }

    fn read_file(&mut self, path: Names, file: &Path, folder: &Path) {
        let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let code: TokenStream = text.parse().unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        self.read(path, file, folder, code);
    }

    /// Reads a module. Those below it that have files are in `folder`.
    fn read(&mut self, path: Names, file: &Path, folder: &Path, code: TokenStream) {
        let mut module = Module { file: file.to_owned(), ..Module::default() };
        self.read_code(&path, folder, &code.into_iter().collect::<Vec<_>>(), &mut module);
        self.modules.insert(path, module);
    }

    fn read_code(&mut self, path: &Names, folder: &Path, trees: &[TokenTree], module: &mut Module) {
        let mut at = 0;
        while let Some(tree) = trees.get(at) {
            if is_mark(Some(tree), '#')
                && let Some(attribute) = group(trees.get(at + 1), Delimiter::Bracket)
            {
                at += 2;
                if is_for_tests(&attribute) {
                    at = after_item(trees, at);
                }
                continue;
            }
            if let TokenTree::Group(group) = tree {
                self.read_code(path, folder, &group.stream().into_iter().collect::<Vec<_>>(), module);
            }
            let Some(name) = word(Some(tree)) else {
                at += 1;
                continue;
            };
            let next = word(trees.get(at + 1));
            match (name.as_str(), next) {
                ("mod", Some(child)) => {
                    let below = [path.clone(), vec![child.clone()]].concat();
                    if let Some(code) = group(trees.get(at + 2), Delimiter::Brace) {
                        self.read(below, &module.file, &folder.join(&child), code);
                    } else {
                        let files = [folder.join(format!("{child}.rs")), folder.join(&child).join("mod.rs")];
                        let file = files.iter().find(|file| file.exists()).expect("a module's file");
                        self.read_file(below, file, &folder.join(&child));
                    }
                    module.children.insert(child);
                    at += 3;
                    continue;
                }
                ("use", _) => {
                    let end = (at..trees.len()).find(|&end| is_mark(trees.get(end), ';')).unwrap_or(trees.len());
                    let is_public = word(at.checked_sub(1).and_then(|at| trees.get(at))).as_deref() == Some("pub")
                        || at > 1 && word(trees.get(at - 2)).as_deref() == Some("pub");
                    let mut found = Vec::new();
                    imported(&trees[at + 1..end], &[], &mut found);
                    for (path, name) in found {
                        if name == "*" {
                            module.globs.push(path);
                        } else {
                            module.imports.insert(name.clone(), path.clone());
                            if is_public {
                                module.reexported.push((name, path));
                            } else {
                                module.used.push(path);
                            }
                        }
                    }
                    at = end;
                    continue;
                }
                ("struct" | "enum" | "trait" | "fn" | "const" | "static" | "type" | "union", Some(defined)) => {
                    module.defined.insert(defined);
                }
                ("macro_rules", _) => module.defined.extend(word(trees.get(at + 2))),
                _ => {}
            }
            let mut names = vec![name];
            while is_step(trees, at + 1)
                && let Some(name) = word(trees.get(at + 3))
            {
                names.push(name);
                at += 3;
            }
            module.words.extend(names.iter().cloned());
            if names.len() > 1 {
                module.used.push(names);
            }
            at += 1;
        }
    }

    /// Follows names from a module. Returns the module at their end, and the name that it defines;
    /// `None` for names of other crates.
    fn follow(&self, from: &[String], names: &[String], depth: usize) -> Option<(Names, Option<String>)> {
        let mut here = from.to_vec();
        let mut names = names;
        match names.first()?.as_str() {
            "crate" => {
                here.clear();
                names = &names[1..];
            }
            "self" => names = &names[1..],
            "super" => {
                while names.first().is_some_and(|name| name == "super") {
                    here.pop()?;
                    names = &names[1..];
                }
            }
            first => {
                let module = &self.modules[&here];
                if !module.children.contains(first) && !module.imports.contains_key(first) {
                    return None;
                }
            }
        }
        if depth > 20 {
            return None;
        }
        while let Some((name, rest)) = names.split_first() {
            let module = self.modules.get(&here)?;
            let below = [here.clone(), vec![name.clone()]].concat();
            let is_item_too = rest.is_empty() && module.imports.contains_key(name);
            if self.modules.contains_key(&below) && !is_item_too {
                here = below;
            } else if let Some(path) = module.imports.get(name).filter(|path| path[..] != [name.clone()]) {
                match self.follow(&here, path, depth + 1)? {
                    (module, None) => here = module,
                    found => return Some(found),
                }
            } else {
                let has_it = |path: &Names| {
                    let (found, None) = self.follow(&here, path, depth + 1)? else { return None };
                    let module = self.modules.get(&found)?;
                    let is_there = module.defined.contains(name) || module.imports.contains_key(name);
                    is_there
                        .then(|| self.follow(&found, &[vec!["self".to_owned()], names.to_vec()].concat(), depth + 1))
                };
                let from_glob = if module.defined.contains(name) { None } else { module.globs.iter().find_map(has_it) };
                return from_glob.unwrap_or_else(|| Some((here.clone(), Some(name.clone()))));
            }
            names = rest;
        }
        Some((here, None))
    }

    /// Returns for each file those that it uses, and the names.
    fn uses(&self) -> BTreeMap<PathBuf, BTreeMap<PathBuf, BTreeSet<String>>> {
        let mut uses = BTreeMap::<PathBuf, BTreeMap<PathBuf, BTreeSet<String>>>::new();
        for (path, module) in &self.modules {
            let own = module.reexported.iter().filter(|(name, _)| module.words.contains(name)).map(|(_, path)| path);
            for names in module.used.iter().chain(own) {
                if let Some((at, Some(name))) = self.follow(path, names, 0) {
                    let file = &self.modules[&at].file;
                    if *file != module.file {
                        uses.entry(module.file.clone()).or_default().entry(file.clone()).or_default().insert(name);
                    }
                }
            }
        }
        uses
    }
}

/// Returns the circles: sets of files of which each reaches each.
fn circles(uses: &BTreeMap<PathBuf, BTreeMap<PathBuf, BTreeSet<String>>>) -> Vec<BTreeSet<&PathBuf>> {
    let reached = |start| {
        let (mut reached, mut pending) = (BTreeSet::new(), vec![start]);
        while let Some(file) = pending.pop() {
            let next = uses.get(file).into_iter().flat_map(BTreeMap::keys);
            pending.extend(next.filter(|next| reached.insert(*next)));
        }
        reached
    };
    let all: BTreeMap<&PathBuf, BTreeSet<&PathBuf>> = uses.keys().map(|file| (file, reached(file))).collect();
    let mut circles = Vec::<BTreeSet<&PathBuf>>::new();
    for (file, reached) in &all {
        if reached.contains(file) && !circles.iter().any(|circle| circle.contains(file)) {
            let circle = reached.iter().filter(|other| all.get(*other).is_some_and(|back| back.contains(file)));
            circles.push(circle.copied().collect());
        }
    }
    circles
}

#[test]
fn no_files_use_each_other_in_a_circle() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the crates");
    let (mut wrong, mut count) = (String::new(), 0);
    for entry in fs::read_dir(&crates).expect("the crates").flatten() {
        let sources = entry.path().join("src");
        for root in ["lib.rs", "main.rs"].map(|root| sources.join(root)).iter().filter(|root| root.exists()) {
            let uses = Crate::of(root).uses();
            count += uses.len();
            let shown = |file: &Path| file.strip_prefix(&crates).expect("a file").display().to_string();
            for circle in circles(&uses) {
                wrong += "a circle:\n";
                for file in &circle {
                    for (other, names) in uses[*file].iter().filter(|(other, _)| circle.contains(other)) {
                        let names = names.iter().cloned().collect::<Vec<_>>().join(", ");
                        wrong += &format!("  {} uses {names} of {}\n", shown(file), shown(other));
                    }
                }
            }
        }
    }
    assert!(count > 400, "{count} files");
    assert!(wrong.is_empty(), "{wrong}");
}

/// The folders of a crate depend in one direction too, where files of each are one thing.
#[test]
fn no_folders_of_the_store_use_each_other_in_a_circle() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../store/src");
    let whole = |file: &Path| {
        let first = file.strip_prefix(&sources).expect("a file of the crate").iter().next();
        PathBuf::from(first.expect("a name"))
    };
    let mut uses = BTreeMap::<PathBuf, BTreeMap<PathBuf, BTreeSet<String>>>::new();
    for (file, used) in Crate::of(&sources.join("lib.rs")).uses() {
        for (other, names) in used.into_iter().filter(|(other, _)| whole(other) != whole(&file)) {
            uses.entry(whole(&file)).or_default().entry(whole(&other)).or_default().extend(names);
        }
    }
    assert!(uses.contains_key(Path::new("tree")), "{uses:?}");
    let found = circles(&uses);
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn names_lead_to_the_files_that_define_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    };
    write("lib.rs", "mod face; mod user; mod low; #[cfg(test)] mod tests; pub use face::Thing;");
    write("face/mod.rs", "//! super::low::Low\nmod inner; pub(crate) use self::inner::{Thing, make};");
    write("face/inner.rs", "use super::super::low::Low; pub struct Thing(Low); pub fn make() {}");
    write("user.rs", "use crate::{Thing, face}; fn run(_: Thing) { face::make(); vec![low(crate::low::LOW)]; }");
    write("low.rs", "pub struct Low; pub const LOW: u8 = 1; #[cfg(test)] mod tests { use crate::user::run; }");
    let uses = Crate::of(&folder.path().join("lib.rs")).uses();
    let of = |file: &str| {
        let found = uses.get(&folder.path().join(file)).into_iter().flatten();
        let shown = found.map(|(other, names)| {
            let other = other.strip_prefix(folder.path()).expect("a file").display();
            format!("{other}: {}", names.iter().cloned().collect::<Vec<_>>().join(" "))
        });
        shown.collect::<Vec<_>>()
    };
    assert_eq!(of("user.rs"), ["face/inner.rs: Thing make", "low.rs: LOW"]);
    assert_eq!(of("face/inner.rs"), ["low.rs: Low"]);
    assert_eq!((of("lib.rs"), of("face/mod.rs"), of("low.rs")), (vec![], vec![], vec![]));
    assert!(circles(&uses).is_empty());
    write("low.rs", "pub struct Low; pub const LOW: u8 = super::user::run();");
    let uses = Crate::of(&folder.path().join("lib.rs")).uses();
    let found = circles(&uses);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].len(), 3, "user → inner → low → user: {found:?}");
}
